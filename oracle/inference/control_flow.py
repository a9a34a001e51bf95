"""Constants, branches, loops, lists, states and `classify`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .language import (
    IOS15,
    IOS16,
    IOS17,
    IOS18,
    REFUSED,
    Instance,
    Operand,
    block,
    const,
    filled,
    gives,
    instance,
    list_of,
    listed,
    ref,
    state,
    tensor,
    values,
)

OPERATIONS = (
    "classify", "cond", "const", "list_gather", "list_length", "list_read", "list_scatter", "list_write", "make_list",
    "read_state", "select", "while_loop", "write_state",
)  # fmt: skip

UNCHECKED = "coremltools does not check it"
NARROWED = "coremltools narrows the constants that it makes; the file says what it says"


WRONG_WHEN_FIXED = {"cond/iOS15/open-predicate/fixed": (UNCHECKED, REFUSED)}


def instances() -> Iterator[Instance]:
    yield from _const()
    yield from _classify()
    yield from _cond()
    yield from _while_loop()
    yield from _loops_over_lists()
    yield from _make_list()
    yield from _reading_lists()
    yield from _writing_lists()
    yield from _select()
    yield from _states()


def outputs(*described: dict[str, Any]) -> dict[str, Any]:
    return {"outputs": list(described)}


def of(dtype: str, *shape: Any, **more: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), **more}


def _const() -> Iterator[Instance]:
    def constant(label: str, value: Operand | None, opset: str = IOS15, **more: Any) -> Instance:
        return instance("const", opset, label, attributes={"val": value} if value else {}, **more)

    for dtype in ("fp16", "fp32"):
        yield constant(f"float-{dtype}", const(dtype, 1.5))
        yield constant(f"floats-{dtype}", const(dtype, [[1.5, -2.0]]))
        yield constant(f"large-{dtype}", filled(dtype, 64, 128))
    for dtype in ("int32", "int8", "uint8", "int16", "uint16", "uint32"):
        yield constant(f"ints-{dtype}", const(dtype, [1, 2, 3]), IOS17)
    for dtype in ("uint1", "uint2", "uint3", "uint4", "uint6", "int4"):
        yield constant(f"packed-{dtype}", const(dtype, [1, 0, 1, 1, 0]), IOS18)
    yield constant("text", const("string", "valid"))
    yield constant("bool", const("bool", True))
    yield constant("bools", const("bool", [True, False]))
    yield constant("empty", filled("int32", 0))
    yield constant("texts", listed("string", "cat", "dog"))
    yield constant("int64s", listed("int64", 1, 2, 3))
    yield constant("nothing", None)
    yield constant("nothing-listed", listed("string"), because=UNCHECKED_LENGTH, instead=EMPTY_LIST)
    wide = of("int64", 2, value=[1, 2])
    yield constant("wide", const("int64", [1, 2]), because=NARROWED, instead=outputs(wide))
    double = of("fp64", 2, value=[1.5, 2.0])
    yield constant("double", const("fp64", [1.5, 2.0]), because=NARROWED, instead=outputs(double))
    yield instance("const", IOS15, "as-input", val=const("fp32", 1.0), because=INPUT, instead=REFUSED)


UNCHECKED_LENGTH = "coremltools cannot tell the element type of an empty list, of which the file says it"
EMPTY_LIST = outputs({"list": True, "dtype": "string", "shape": [], "length": 0})
INPUT = "`val` is an argument of coremltools' builder, but an attribute in files"


def _classify() -> Iterator[Instance]:
    def classify(label: str, probabilities: Operand | None, classes: Operand | None, **more: Any) -> Instance:
        opset = more.pop("opset", IOS15)
        return instance("classify", opset, label, probabilities=probabilities, classes=classes, **more)

    animals = listed("string", "cat", "dog", "eel")
    yield classify("texts", tensor("fp32", 3), animals)
    yield classify("texts-rank2", tensor("fp32", 1, 3), animals, opset=IOS17)
    yield classify("numbers", tensor("fp32", 3), listed("int64", 4, 5, 6))
    yield classify("open", tensor("fp32", "s0", 3), animals)
    yield classify("open-all", tensor("fp32", "s0"), listed("int64", 4, 5, 6), opset=IOS18)
    yield classify("too-many", tensor("fp32", 2), animals)
    yield classify("too-few", tensor("fp32", 4), listed("int64", 4, 5, 6))
    yield classify("half", tensor("fp16", 3), animals)
    yield classify("int32", tensor("fp32", 3), listed("int32", 4, 5, 6))
    yield classify("tensor", tensor("fp32", 3), const("int32", [4, 5, 6]))
    yield classify("missing", tensor("fp32", 3), None)


def _cond() -> Iterator[Instance]:
    def cond(label: str, taken: list[Operand], otherwise: list[Operand], **more: Any) -> Instance:
        more = {"pred": tensor("bool"), **more}
        return instance("cond", IOS15, label, blocks=[block(taken), block(otherwise)], **more)

    def absolute(*shape: int | str) -> Operand:
        return gives("abs", x=tensor("fp32", *shape))

    yield cond("same", [absolute(2, 3)], [absolute(2, 3)])
    yield cond("open", [absolute("s0", 3)], [absolute("s0", 3)])
    unsure = {"because": UNSURE, "instead": outputs(of("fp32", "?", 3))}
    yield cond("open-differ", [absolute("s0", 3)], [absolute("s1", 3)], **unsure)
    yield cond("scalars", [absolute()], [absolute()])
    yield cond("two", [absolute(2), tensor("int32")], [absolute(2), tensor("int32")])
    yield cond("outer", [tensor("fp16", 2)], [tensor("fp16", 2)])
    ints = [const("int32", [1, 2])], [const("int32", [3, 4])]
    yield cond("known", *ints, pred=const("bool", True))
    yield cond("known-otherwise", *ints, pred=const("bool", False))
    yield cond("known-values", *ints)
    yield cond("open-known", [absolute("s0", 3)], [absolute(2, 3)], **unsure)
    yield cond("known-open", [absolute(2, 3)], [absolute("s0", 3)], **unsure)
    lists = gives("make_list", elem_shape=values(const("int32", 2)))
    yield cond("lists", [lists], [lists])
    yield cond("shapes", [absolute(2, 3)], [absolute(2, 4)])
    yield cond("ranks", [absolute(2, 3)], [absolute(2)])
    yield cond("dtypes", [absolute(2)], [tensor("fp16", 2)])
    yield cond("scalar-and-vector", [absolute()], [absolute(1)])
    yield cond("int-predicate", [absolute(2)], [absolute(2)], pred=tensor("int32"))
    yield cond("missing", [absolute(2)], [absolute(2)], pred=None)
    yield cond("one-element-predicate", [absolute(2)], [absolute(2)], pred=tensor("bool", 1))
    yield cond("open-predicate", [absolute(2)], [absolute(2)], pred=tensor("bool", "s0"))
    vector = {"pred": tensor("bool", 2), "because": UNCHECKED, "instead": REFUSED}
    yield cond("vector-predicate", [absolute(2)], [absolute(2)], **vector)
    yield cond("fewer", [absolute(2), absolute(2)], [absolute(2)], because=UNCHECKED, instead=REFUSED)


UNSURE = "coremltools believes the first block, but the second may be what runs"


def _while_loop() -> Iterator[Instance]:
    counting = gives("less", x=ref("i"), y=const("int32", 10))
    counted = gives("add", x=ref("i"), y=const("int32", 1))

    def loop(
        label: str, variable: Operand, declared: Operand, given: list[Operand], test: Operand = counting, **more: Any
    ) -> Instance:
        taken = {"i": tensor("int32"), "x": declared}
        blocks = [block([test], taken), block([counted, *given], taken)]
        bound = {"loop_vars": values(const("int32", 0), variable)}
        return instance("while_loop", more.pop("opset", IOS15), label, inputs=bound, blocks=blocks, **more)

    x, one = ref("x"), const("fp32", 1.0)
    more = gives("add", x=x, y=one)
    yield loop("fixed", tensor("fp32", 2, 3), tensor("fp32", 2, 3), [more])
    yield loop("fixed-open-declaration", tensor("fp32", 2, 3), tensor("fp32", "?", "?"), [more], opset=IOS17)
    yield loop("open", tensor("fp32", "s0", 3), tensor("fp32", "?", 3), [more])
    yield loop("invariant", tensor("fp32", "s0", 3), tensor("fp32", "?", 3), [x], opset=IOS18)
    yield loop("invariant-value", const("int32", [2, 3]), tensor("int32", 2), [x])
    yield loop("scalar", tensor("fp32"), tensor("fp32"), [more])
    yield loop("constant", const("fp32", 3.0), tensor("fp32"), [more])
    reshaped = gives("reshape", x=tensor("fp32", 6), shape=x)
    yield loop("by-invariant", const("int32", [2, 3]), tensor("int32", 2), [gives("add", x=x, y=const("int32", 0))])
    yield loop("inner-shape", const("int32", [2, 3]), tensor("int32", 2), [gives("shape", x=reshaped)])
    twice = gives("concat", values=values(x, x), axis=const("int32", 0))
    yield loop("grows", tensor("fp32", 2, 3), tensor("fp32", "?", 3), [twice])
    yield loop("grows-open", tensor("fp32", "s0", 3), tensor("fp32", "?", 3), [twice])
    yield loop("turns", tensor("fp32", "s0", 3), tensor("fp32", "?", "?"), [gives("transpose", x=x, perm=PERMUTED)])
    longest = gives("less", x=gives("list_length", ls=LIST), y=const("int32", 10))
    yield loop("test-of-list", tensor("fp32", 2), tensor("fp32", 2), [more], longest)

    expanded = gives("expand_dims", x=x, axes=const("int32", [0]))
    yield loop("rank", tensor("fp32", 2, 3), tensor("fp32", 2, 3), [expanded])
    half = gives("cast", x=x, dtype=const("string", "fp16"))
    yield loop("dtype", tensor("fp32", 2, 3), tensor("fp32", 2, 3), [half])
    yield loop("scalar-becomes-vector", tensor("fp32"), tensor("fp32"), [gives("add", x=x, y=const("fp32", [1.0]))])
    mismatched = gives("add", x=x, y=const("fp32", [1.0, 2.0]))
    yield loop("bad-body", tensor("fp32", 2, 3), tensor("fp32", 2, 3), [mismatched])
    yield loop("int-test", tensor("fp32", 2), tensor("fp32", 2), [more], counted, because=UNCHECKED, instead=REFUSED)
    element = gives("less", x=ref("i"), y=const("int32", [10]))
    yield loop("one-element-test", tensor("fp32", 2), tensor("fp32", 2), [more], element)
    elements = gives("less", x=ref("i"), y=const("int32", [10, 11]))
    unchecked = {"because": UNCHECKED, "instead": REFUSED}
    yield loop("vector-test", tensor("fp32", 2), tensor("fp32", 2), [more], elements, **unchecked)
    yield loop("fewer", tensor("fp32", 2), tensor("fp32", 2), [], because=UNCHECKED, instead=REFUSED)
    declared = "the builder does without declared types, with which files hold the blocks"
    yield loop(
        "declared-rank", tensor("fp32", 2, 3), tensor("fp32", 2), [more], because=declared, instead=REFUSED
    )
    yield loop(
        "declared-extent", tensor("fp32", 2, 3), tensor("fp32", 2, 4), [more], because=declared, instead=REFUSED
    )


PERMUTED = const("int32", [1, 0])
LIST = gives("make_list", init_length=const("int32", 4), elem_shape=values(const("int32", 2)))


def _loops_over_lists() -> Iterator[Instance]:
    counting = gives("less", x=ref("i"), y=const("int32", 10))
    counted = gives("add", x=ref("i"), y=const("int32", 1))

    def loop(label: str, variable: Operand, declared: Operand, given: Operand, test: Operand = counting) -> Instance:
        taken = {"i": tensor("int32"), "list": declared}
        blocks = [block([test], taken), block([counted, given], taken)]
        bound = {"loop_vars": values(const("int32", 0), variable)}
        return instance("while_loop", IOS15, label, inputs=bound, blocks=blocks)

    element = const("fp32", [1.0, 2.0])
    written = gives("list_write", ls=ref("list"), index=ref("i"), value=element)
    yield loop("list", LIST, list_of("fp32", 2), written)
    yield loop("list-fixed", _make(2, fixed=True), list_of("fp32", 2), written)
    yield loop("list-open", _make("a"), list_of("fp32", "?"), written)
    yield loop("list-kept", LIST, list_of("fp32", 2), ref("list"))
    wrong = gives("list_write", ls=ref("list"), index=ref("i"), value=const("fp32", [1.0, 2.0, 3.0]))
    yield loop("list-of-others", LIST, list_of("fp32", 2), wrong)


def _make(*shape: int | str, dtype: str = "fp32", length: int = 4, fixed: bool = False) -> Operand:
    extents = [const("string" if isinstance(extent, str) else "int32", extent) for extent in shape]
    return gives(
        "make_list",
        init_length=const("int32", length),
        dynamic_length=const("bool", not fixed),
        elem_shape=values(*extents),
        dtype=const("string", dtype),
    )


def _make_list() -> Iterator[Instance]:
    def make(label: str, *shape: Any, opset: str = IOS15, **more: Any) -> Instance:
        extents = [
            extent if isinstance(extent, dict) else const("string" if isinstance(extent, str) else "int32", extent)
            for extent in shape
        ]
        bound = {"elem_shape": values(*extents), **more.pop("bound", {})}
        return instance("make_list", opset, label, inputs=bound, **more)

    fixed = {"dynamic_length": const("bool", False)}
    yield make("vector", 3)
    yield make("plane", 3, 4, opset=IOS17)
    yield make("rank4", 1, 2, 3, 4, opset=IOS18)
    yield make("open", 3, "extent")
    yield make("open-twice", "extent", "extent")
    yield make("fixed", 3, init_length=const("int32", 7), **fixed)
    yield make("fixed-default", 3, **fixed)
    yield make("fixed-computed", 3, init_length=tensor("int32"), **fixed)
    yield make("computed", 3, init_length=tensor("int32"))
    for dtype in ("bool", "fp16", "fp32", "int32"):
        yield make(f"dtype-{dtype}", 3, bound={"dtype": const("string", dtype)})
    yield make("rank5", 1, 2, 3, 4, 5)
    yield make("computed-extent", tensor("int32"))
    yield make("no-dtype", 3, bound={"dtype": const("string", "float32")})
    yield make("computed-dynamic", 3, dynamic_length=tensor("bool"))
    yield make("float-length", 3, init_length=const("fp32", 2.0))
    narrow = {"bound": {"dtype": const("string", "int8")}, "because": UNCHECKED, "instead": REFUSED}
    yield make("dtype-int8", 3, **narrow)
    yield make("negative", -3, because=UNCHECKED, instead=REFUSED)
    yield make("negative-length", 3, init_length=const("int32", -1), **fixed, because=UNCHECKED, instead=REFUSED)


def _reading_lists() -> Iterator[Instance]:
    lists = {
        "vector": _make(3),
        "plane": _make(3, 4, dtype="fp16"),
        "ints": _make(5, dtype="int32", fixed=True),
        "written": gives("list_write", ls=_make(2), index=const("int32", 0), value=const("fp32", [1.0, 2.0])),
        "written-fixed": gives(
            "list_write", ls=_make(2, fixed=True), index=const("int32", 0), value=const("fp32", [1.0, 2.0])
        ),
    }
    for label, made in lists.items():
        yield instance("list_length", IOS15, label, ls=made)
        yield instance("list_read", IOS15, label, ls=made, index=tensor("int32"))
        yield instance("list_gather", IOS15, label, ls=made, indices=tensor("int32", 2))
        yield instance("list_gather", IOS17, f"{label}-open", ls=made, indices=tensor("int32", "s0"))
    yield instance("list_length", IOS17, "open", ls=_make("a"))
    yield instance("list_read", IOS17, "open", ls=_make("a", 2), index=const("int32", 1))
    yield instance("list_gather", IOS18, "open", ls=_make("a", 2), indices=const("int32", [0, 1]))
    for operation, index in (("list_length", None), ("list_read", "index"), ("list_gather", "indices")):
        bound = {index: tensor("int32", 2)} if index else {}
        yield instance(operation, IOS15, "tensor", ls=tensor("fp32", 2, 3), **bound)
        yield instance(operation, IOS15, "missing", **bound)
        if index:
            yield instance(operation, IOS15, "no-index", ls=_make(3))
            yield instance(operation, IOS15, "float-index", ls=_make(3), **{index: tensor("fp32", 2)})
    yield instance("list_gather", IOS15, "scalar", ls=_make(3), indices=tensor("int32"))
    flat = {"indices": tensor("int32", 2, 2), "because": UNCHECKED, "instead": REFUSED}
    yield instance("list_gather", IOS15, "rank2", ls=_make(3), **flat)


def _writing_lists() -> Iterator[Instance]:
    def write(label: str, made: Operand | None, value: Operand | None, **more: Any) -> Iterator[Instance]:
        yield instance("list_write", IOS15, label, ls=made, index=tensor("int32"), value=value, **more)
        if value is not None and "dtype" in value:
            several = {**value, "shape": [5, *value["shape"]]}
            yield instance(
                "list_scatter", IOS15, label, ls=made, indices=tensor("int32", 5), value=several, **more
            )

    yield from write("vector", _make(3), tensor("fp32", 3))
    yield from write("plane", _make(3, 4, dtype="fp16"), tensor("fp16", 3, 4))
    yield from write("rank4", _make(1, 2, 3, 4, dtype="int32"), tensor("int32", 1, 2, 3, 4))
    yield from write("fixed", _make(3, fixed=True, dtype="bool"), tensor("bool", 3))
    yield from write("open", _make("a", 4), tensor("fp32", 3, 4))
    yield from write("open-open", _make("a", 4), tensor("fp32", "s0", 4))
    yield from write("extent", _make(3), tensor("fp32", 4))
    yield from write("open-value", _make(3), tensor("fp32", "s0"))
    yield from write("rank", _make(3), tensor("fp32", 3, 1))
    yield from write("dtype", _make(3), tensor("fp16", 3))
    yield from write("int8", _make(3), tensor("int8", 3))
    yield from write("no-list", tensor("fp32", 2, 3), tensor("fp32", 3))
    yield from write("missing", _make(3), None)
    of_three = {"ls": _make(3), "indices": tensor("int32", 4)}
    yield instance("list_scatter", IOS15, "count", **of_three, value=tensor("fp32", 5, 3))
    yield instance("list_scatter", IOS15, "scalars", **of_three, value=tensor("fp32"))
    opened = {"ls": _make(3), "indices": tensor("int32", "s0"), "value": tensor("fp32", "s0", 3)}
    yield instance("list_scatter", IOS17, "open-count", **opened)


def _select() -> Iterator[Instance]:
    def select(label: str, condition: Operand, a: Operand | None, b: Operand | None, **more: Any) -> Instance:
        return instance("select", more.pop("opset", IOS15), label, cond=condition, a=a, b=b, **more)

    for dtype in ("fp16", "fp32", "int32", "bool"):
        yield select(f"rank2-{dtype}", tensor("bool", 2, 3), tensor(dtype, 2, 3), tensor(dtype, 2, 3))
        yield select(f"scalar-{dtype}", tensor("bool"), tensor(dtype, 3), tensor(dtype, 2, 1), opset=IOS17)
    yield select("scalars", tensor("bool"), tensor("fp32"), tensor("fp32"))
    yield select("open", tensor("bool", "s0", 3), tensor("fp32", "s0", 3), tensor("fp32"))
    yield select("open-differ", tensor("bool"), tensor("fp32", "s0", 3), tensor("fp32", "s1", 3), opset=IOS18)
    yield select("known", const("bool", [True, False]), const("int32", [1, 2]), const("int32", [3, 4]))
    yield select("known-scalar", const("bool", False), const("int32", 1), const("int32", 3))
    floats = const("fp32", [[1.5], [2.5]]), const("fp32", [3.0, 4.0])
    yield select("known-broadcast", const("bool", [[True, False], [False, True]]), *floats)
    yield select("shapes", tensor("bool"), tensor("fp32", 3), tensor("fp32", 4))
    yield select("mixed", tensor("bool"), tensor("fp32", 3), tensor("fp16", 3))
    yield select("int8", tensor("bool"), tensor("int8", 3), tensor("int8", 3))
    yield select("int-condition", tensor("int32", 3), tensor("fp32", 3), tensor("fp32", 3))
    yield select("missing", tensor("bool", 3), tensor("fp32", 3), None)
    ignored = "coremltools does not broadcast to the shape of `cond`"
    scalars = tensor("fp32"), tensor("fp32")
    yield select(
        "condition-larger", tensor("bool", 2, 3), *scalars, because=ignored, instead=outputs(of("fp32", 2, 3))
    )
    vectors = tensor("fp32", 3), tensor("fp32", 3)
    yield select("condition-differs", tensor("bool", 4), *vectors, because=ignored, instead=REFUSED)


def _states() -> Iterator[Instance]:
    for dtype in ("fp16", "fp32"):
        for shape in ((3,), (2, 3), (1, 2, 3, 4)):
            held = state(dtype, *shape)
            yield instance("read_state", IOS18, f"rank{len(shape)}-{dtype}", input=held)
            yield instance("write_state", IOS18, f"rank{len(shape)}-{dtype}", input=held, data=tensor(dtype, *shape))
    held = state("fp16", 2, 3)
    yield instance("read_state", IOS18, "tensor", input=tensor("fp16", 2, 3))
    yield instance("read_state", IOS17, "before", input=held)
    yield instance("read_state", IOS18, "missing")
    for label, data in {
        "extent": tensor("fp16", 2, 4),
        "rank": tensor("fp16", 6),
        "dtype": tensor("fp32", 2, 3),
        "open": tensor("fp16", "s0", 3),
    }.items():
        yield instance("write_state", IOS18, label, input=held, data=data)
    yield instance("write_state", IOS18, "tensor", input=tensor("fp16", 2, 3), data=tensor("fp16", 2, 3))
    yield instance("select", IOS16, "state", cond=tensor("bool"), a=held, b=held)
