"""`select`, branches, loops, lists, states, constants and classifiers, compared with numpy and plain Python.

Each case implements its blocks in numpy.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .elementwise import single
from .language import IOS15, IOS16, IOS17, IOS18, OPSETS, Case, Program, Text, Typed, case, const, draw

#: The type of a growing list, and its elements.
PAIRS = "list<tensor<fp32, [2]>, ?>"


def cases() -> Iterator[Case]:
    yield from _select()
    yield from _const()
    yield from _classify()
    yield from _cond()
    yield from _while_loop()
    yield from _lists()
    yield from _states()


def _select() -> Iterator[Case]:
    shapes: dict[str, tuple[tuple[int, ...], ...]] = {
        "rank0": ((), (), ()),
        "rank1": ((5,), (5,), (5,)),
        "rank3": ((2, 3, 2), (2, 3, 2), (2, 3, 2)),
        "rank5": ((1, 2, 1, 2, 2), (1, 2, 1, 2, 2), (1, 2, 1, 2, 2)),
        "scalar-a": ((2, 3), (), (2, 3)),
        "scalar-b": ((2, 3), (2, 3), ()),
        "broadcast-cond": ((3, 1), (3, 4), (3, 4)),
        "broadcast-b": ((2, 3), (2, 3), (3,)),
        "all-differ": ((2, 1, 1), (3, 1), (4,)),
        "scalar-cond": ((), (2, 2), (2, 2)),
    }
    for at, (label, (cond, a, b)) in enumerate(shapes.items()):
        for dtype in ("fp32", "fp16", "int32", "bool"):
            if label not in ("rank3", "all-differ", "rank0") and dtype != ("fp32", "int32", "fp16", "bool")[at % 4]:
                continue
            condition = draw(f"select-{label}", *cond, dtype="bool")
            left = draw(f"select-{label}-a", *a, low=-5, high=5, dtype=dtype)
            right = draw(f"select-{label}-b", *b, low=-5, high=5, dtype=dtype)
            expected = np.where(condition, left, right).astype(left.dtype)
            inputs = {"cond": condition, "a": left, "b": right}
            yield case(f"{dtype}-{label}", "select", OPSETS[at % 4], inputs, [expected])
    inputs = {"cond": np.array([[True], [False]]), "a": np.zeros((2, 0), np.float32), "b": const(1.5)}
    yield case("empty", "select", IOS16, inputs, [np.zeros((2, 0), np.float32)])
    condition = np.array([True, False, True])
    inputs = {"cond": const(condition), "a": single([1, 2, 3]), "b": const(single([np.nan, np.inf, 0]))}
    yield case("const", "select", IOS15, inputs, [single([1, np.inf, 3])])
    inputs = {"cond": condition, "a": single([np.nan, 1, -np.inf]), "b": single([1, np.nan, 1])}
    yield case("specials", "select", IOS17, inputs, [single([np.nan, np.nan, -np.inf])])


def _const() -> Iterator[Case]:
    numbers: list[tuple[str, str, Any]] = [
        ("fp32", IOS15, single([[0.1, -1e-40, 3.4e38], [np.nan, np.inf, -0.0]])),
        ("fp16", IOS16, np.array([0.1, 6e-8, 65504, -np.inf], np.float16)),
        ("int32", IOS15, np.array([2**31 - 1, -(2**31), 0], np.int32)),
        ("bool", IOS15, np.array([[True], [False]])),
        ("int8", IOS17, np.array([-128, 127], np.int8)),
        ("uint8", IOS17, np.array([0, 255], np.uint8)),
        ("int16", IOS17, np.array([-32768, 32767], np.int16)),
        ("uint16", IOS18, np.array([0, 65535], np.uint16)),
    ]
    for dtype, opset, value in numbers:
        program = Program(opset)
        # A function needs at least one input.
        zero = program.input("zero", np.zeros(1, np.int32))
        stated = program.const(value)
        copied = program.op("identity", {"x": stated}, (dtype, value.shape))
        kept = program.op("identity", {"x": zero}, ("int32", (1,)))
        yield program.case("const", dtype, [copied, kept], [value, np.zeros(1, np.int32)])
    for label, value in (("rank0", single(2.5)), ("rank5", draw("const5", 1, 2, 1, 2, 2)), ("one", single([7]))):
        program = Program(IOS15)
        x = program.input("x", single([1.5]))
        total = program.op("add", {"x": x, "y": program.const(value)}, ("fp32", np.broadcast_shapes(value.shape, (1,))))
        yield program.case("const", label, [total], [value + single([1.5])])


def _classify() -> Iterator[Case]:
    def made(label: str, opset: str, scores: np.ndarray, classes: list[Any], best: int) -> Case:
        program = Program(opset)
        kind = "string" if isinstance(classes[0], str) else "int64"
        listed = ", ".join(f'"{name}"' if kind == "string" else str(name) for name in classes)
        stated = Text(f"list<{kind}, {len(classes)}>([{listed}])")
        # Computed, because an input would be passed through.
        x = program.input("x", scores)
        doubled = program.op("add", {"x": x, "y": x}, ("fp32", scores.shape))
        inputs = {"probabilities": doubled, "classes": stated}
        outputs = program.op("classify", inputs, kind, f"dict<{kind}, fp64>")
        label_of = np.asarray(classes[best]) if kind == "string" else Typed("int64", np.asarray(classes[best]))
        return program.case("classify", label, outputs, [label_of, (scores + scores).reshape(-1)])

    yield made("strings", IOS15, single([[0.1, 0.7, 0.2]]), ["cat", "dog", "bird"], 1)
    yield made("integers", IOS15, single([0.4, 0.1, 0.2, 0.3]), [10, 20, 30, -40], 0)
    yield made("last", IOS16, single([[0.1, 0.2, 0.7]]), ["a", "b", "c"], 2)
    yield made("ties", IOS17, single([[0.1, 0.4, 0.4, 0.1]]), ["a", "b", "c", "d"], 1)
    yield made("negative", IOS17, single([[-3, -1, -2]]), [0, 1, 2], 1)
    yield made("rank4", IOS18, single([0.5, 0.25, 1.5, 0]).reshape(1, 4, 1, 1), ["ä", "b c", "c", "d"], 2)
    yield made("one", IOS15, single([0.5]), ["only"], 0)
    yield made("infinite", IOS15, single([-np.inf, 1, np.inf]), [1, 2, 3], 2)


def _cond() -> Iterator[Case]:
    for at, taken in enumerate((True, False)):
        for opset in (IOS15, IOS18):
            program = Program(opset)
            x = program.input("x", draw("cond-x", 2, 3))
            flag = program.input("flag", np.array(taken))
            blocks = (
                "() { tensor<fp32, [2, 3]> more = add(x = x, y = fp32(1)); } -> (more)"
                " () { tensor<fp32, [2, 3]> twice = mul(x = x, y = fp32(2)); } -> (twice)"
            )
            result = program.op("cond", {"pred": flag}, ("fp32", (2, 3)), blocks=blocks)
            value = draw("cond-x", 2, 3)
            yield program.case("cond", f"choice{at}", [result], [value + 1 if taken else value * 2])

            program = Program(opset)
            flag = program.input("flag", np.array(taken))
            x = program.input("x", draw("cond-x", 3))
            y = program.op("exp", {"x": x}, ("fp32", (3,)))
            blocks = f"() {{ }} -> ({y.text}, x) () {{ tensor<fp32, [3]> n = sign(x = x); }} -> (n, {y.text})"
            results = program.op("cond", {"pred": flag}, ("fp32", (3,)), ("fp32", (3,)), blocks=blocks)
            value = draw("cond-x", 3)
            expected = [np.exp(value), value] if taken else [np.sign(value), np.exp(value)]
            both = [program.op("add", {"x": result, "y": const(0.0)}, ("fp32", (3,))) for result in results]
            yield program.case("cond", f"outer-values{at}", both, expected)

            # One branch inside another, with a computed condition.
            program = Program(opset)
            x = program.input("x", single([3, -4] if taken else [-3, 4]))
            total = program.op("reduce_sum", {"x": x, "axes": const([0]), "keep_dims": const(False)}, ("fp32", ()))
            positive = program.op("greater", {"x": total, "y": const(0.0)}, ("bool", ()))
            large = program.op("greater", {"x": total, "y": const(-2.0)}, ("bool", ()))
            inner = (
                f"() {{ tensor<fp32, [2]> a = cond(pred = {large.text})"
                " () { tensor<fp32, [2]> p = add(x = x, y = fp32(10)); } -> (p)"
                " () { tensor<fp32, [2]> q = add(x = x, y = fp32(20)); } -> (q); } -> (a)"
            )
            outer = "() { tensor<fp32, [2]> r = add(x = x, y = fp32(30)); } -> (r) " + inner
            result = program.op("cond", {"pred": positive}, ("fp32", (2,)), blocks=outer)
            yield program.case("cond", f"nested{at}", [result], [single([13, 6]) if taken else single([27, 34])])


def _while_loop() -> Iterator[Case]:
    for opset in (IOS15, IOS17):
        for turns in (0, 1, 5):
            # y = 2y + 1, repeated.
            program = Program(opset)
            count = program.input("count", np.array(turns, np.int32))
            x = program.input("x", single([[0.5, -1], [2, 0]]))
            start = program.op("sub", {"x": count, "y": count}, ("int32", ()))
            blocks = (
                f"(int32 i, tensor<fp32, [2, 2]> a) {{ bool go = less(x = i, y = {count.text}); }} -> (go)"
                " (int32 j, tensor<fp32, [2, 2]> b) { int32 next = add(x = j, y = int32(1));"
                " tensor<fp32, [2, 2]> d = mul(x = b, y = fp32(2));"
                " tensor<fp32, [2, 2]> e = add(x = d, y = fp32(1)); } -> (next, e)"
            )
            last, y = program.op("while_loop", {"loop_vars": [start, x]}, ("int32", ()), ("fp32", (2, 2)), blocks=blocks)
            expected = single([[0.5, -1], [2, 0]])
            for _ in range(turns):
                expected = 2 * expected + 1
            out = program.op("add", {"x": y, "y": const(0.0)}, ("fp32", (2, 2)))
            index = program.op("add", {"x": last, "y": const(0)}, ("int32", ()))
            yield program.case("while_loop", f"turns{turns}", [index, out], [np.int32(turns), expected])

        # A loop with a condition on values: halve while the sum is large.
        program = Program(opset)
        x = program.input("x", single([40, 100, 7]))
        program.input("limit", single([4]))
        blocks = (
            "(tensor<fp32, [3]> a) { tensor<fp32, [1]> s = reduce_sum(x = a, axes = tensor<int32, [1]>([0]), keep_dims"
            " = bool(true)); tensor<bool, [1]> l = greater(x = s, y = limit);"
            " bool go = squeeze(x = l, axes = tensor<int32, [1]>([0])); } -> (go)"
            " (tensor<fp32, [3]> b) { tensor<fp32, [3]> h = mul(x = b, y = fp32(0.5)); } -> (h)"
        )
        y = program.op("while_loop", {"loop_vars": [x]}, ("fp32", (3,)), blocks=blocks)
        halved = single([40, 100, 7])
        while halved.sum() > 4:
            halved = halved / 2
        out = program.op("add", {"x": y, "y": const(0.0)}, ("fp32", (3,)))
        yield program.case("while_loop", "until-small", [out], [halved])

        # Loop variables that swap, and a branch inside the loop.
        program = Program(opset)
        x, y = program.input("x", single([1, 2])), program.input("y", single([10, 20]))
        n = program.input("n", np.array(5, np.int32))
        blocks = (
            "(int32 i, tensor<fp32, [2]> a, tensor<fp32, [2]> b) { bool go = greater(x = i, y = int32(0)); } -> (go)"
            " (int32 j, tensor<fp32, [2]> c, tensor<fp32, [2]> d) { int32 less_one = sub(x = j, y = int32(1));"
            " int32 rest = mod(x = j, y = int32(2)); bool odd = equal(x = rest, y = int32(1));"
            " tensor<fp32, [2]> sum = cond(pred = odd)"
            " () { tensor<fp32, [2]> p = add(x = c, y = d); } -> (p)"
            " () { } -> (c); } -> (less_one, d, sum)"
        )
        gives = (("int32", ()), ("fp32", (2,)), ("fp32", (2,)))
        _, first, second = program.op("while_loop", {"loop_vars": [n, x, y]}, *gives, blocks=blocks)
        a, b = single([1, 2]), single([10, 20])
        for j in range(5, 0, -1):
            a, b = b, a + b if j % 2 else a
        outputs = [program.op("add", {"x": part, "y": const(0.0)}, ("fp32", (2,))) for part in (first, second)]
        yield program.case("while_loop", "swaps", outputs, [a, b])

        # Nested loops: 3 * 4 steps.
        program = Program(opset)
        x = program.input("x", single([1]))
        zero = program.input("zero", np.array(0, np.int32))
        inner = (
            "int32 k, tensor<fp32, [1]> f = while_loop(loop_vars = (zero_, e))"
            " (int32 l, tensor<fp32, [1]> g) { bool go2 = less(x = l, y = int32(4)); } -> (go2)"
            " (int32 m, tensor<fp32, [1]> h) { int32 m1 = add(x = m, y = int32(1));"
            " tensor<fp32, [1]> h1 = add(x = h, y = fp32(0.25)); } -> (m1, h1);"
        ).replace("zero_", zero.text)
        blocks = (
            "(int32 i, tensor<fp32, [1]> a) { bool go = less(x = i, y = int32(3)); } -> (go)"
            f" (int32 j, tensor<fp32, [1]> e) {{ int32 j1 = add(x = j, y = int32(1)); {inner} }} -> (j1, f)"
        )
        _, y = program.op("while_loop", {"loop_vars": [zero, x]}, ("int32", ()), ("fp32", (1,)), blocks=blocks)
        out = program.op("add", {"x": y, "y": const(0.0)}, ("fp32", (1,)))
        yield program.case("while_loop", "nested", [out], [single([4])])


def _lists() -> Iterator[Case]:
    def fresh(opset: str, length: int = 0, dynamic: bool = True) -> tuple[Program, Any]:
        program = Program(opset)
        inputs = {
            "init_length": const(length),
            "dynamic_length": const(dynamic),
            "elem_shape": [const(2)],
            "dtype": const("fp32"),
        }
        kind = PAIRS if dynamic else PAIRS.replace("?", str(length))
        return program, program.op("make_list", inputs, kind)

    parts = [single([1, 2]), single([3, 4]), single([5, 6])]
    for opset in (IOS15, IOS17):
        # Written out of order, so that the list grows; skipped elements are zeros.
        program, made = fresh(opset)
        for index, part in ((0, parts[0]), (2, parts[2]), (1, parts[1])):
            made = program.op("list_write", {"ls": made, "index": const(index), "value": program.input(f"x{index}", part)}, PAIRS)
        length = program.op("list_length", {"ls": made}, ("int32", ()))
        read = [program.op("list_read", {"ls": made, "index": const(index)}, ("fp32", (2,))) for index in (2, 0)]
        also = ("make_list", "list_length", "list_read")
        yield program.case("list_write", "grows", [length, *read], [np.int32(3), parts[2], parts[0]], also=also)

        program, made = fresh(opset)
        x = program.input("x", parts[1])
        made = program.op("list_write", {"ls": made, "index": const(2), "value": x}, PAIRS)
        length = program.op("list_length", {"ls": made}, ("int32", ()))
        hole = program.op("list_read", {"ls": made, "index": const(1)}, ("fp32", (2,)))
        yield program.case("list_length", "holes", [length, hole], [np.int32(3), single([0, 0])], also=["list_write", "list_read"])

        # An element is overwritten; the older list keeps its value.
        program, made = fresh(opset, 2, dynamic=False)
        kind = PAIRS.replace("?", "2")
        x, y = program.input("x", parts[0]), program.input("y", parts[1])
        older = program.op("list_write", {"ls": made, "index": const(1), "value": x}, kind)
        newer = program.op("list_write", {"ls": older, "index": const(1), "value": y}, kind)
        read = [program.op("list_read", {"ls": made, "index": const(1)}, ("fp32", (2,))) for made in (older, newer)]
        zeros = program.op("list_read", {"ls": newer, "index": const(0)}, ("fp32", (2,)))
        yield program.case("list_read", "overwritten", [*read, zeros], [parts[0], parts[1], single([0, 0])], also=["make_list"])

        rows = single([[1, 2], [3, 4], [5, 6]])
        program, made = fresh(opset, 3, dynamic=False)
        kind = PAIRS.replace("?", "3")
        x = program.input("x", rows)
        indices = program.input("indices", np.array([2, 0, 1], np.int32))
        made = program.op("list_scatter", {"ls": made, "indices": indices, "value": x}, kind)
        gathered = program.op("list_gather", {"ls": made, "indices": const([0, 1, 2])}, ("fp32", (3, 2)))
        yield program.case("list_scatter", "permuted", [gathered], [rows[[1, 2, 0]]], also=["list_gather"])

        program, made = fresh(opset)
        x = program.input("x", rows)
        made = program.op("list_scatter", {"ls": made, "indices": const([1, 3, 4]), "value": x}, PAIRS)
        length = program.op("list_length", {"ls": made}, ("int32", ()))
        gathered = program.op("list_gather", {"ls": made, "indices": const([4, 1, 1, 0])}, ("fp32", (4, 2)))
        expected = [np.int32(5), single([[5, 6], [1, 2], [1, 2], [0, 0]])]
        yield program.case("list_gather", "repeated", [length, gathered], expected, also=["list_scatter", "list_length"])

        # A loop that fills a list, as converters write recurrent networks.
        program, made = fresh(opset, 4)
        count = program.input("count", np.array(4, np.int32))
        x = program.input("x", parts[0])
        start = program.op("sub", {"x": count, "y": count}, ("int32", ()))
        blocks = (
            f"(int32 i, tensor<fp32, [2]> a, {PAIRS} b) {{ bool go = less(x = i, y = {count.text}); }} -> (go)"
            f" (int32 j, tensor<fp32, [2]> c, {PAIRS} d) {{ int32 next = add(x = j, y = int32(1));"
            " tensor<fp32, [2]> e = mul(x = c, y = fp32(2));"
            f" {PAIRS} f = list_write(ls = d, index = j, value = e); }} -> (next, e, f)"
        )
        gives = (("int32", ()), ("fp32", (2,)), PAIRS)
        _, _, filled = program.op("while_loop", {"loop_vars": [start, x, made]}, *gives, blocks=blocks)
        gathered = program.op("list_gather", {"ls": filled, "indices": const([0, 1, 2, 3])}, ("fp32", (4, 2)))
        expected = [np.outer([2, 4, 8, 16], parts[0])]
        yield program.case("while_loop", "fills-list", [gathered], expected, also=["make_list", "list_write", "list_gather"])

    # Other element types, and scalar elements.
    for dtype, opset in (("int32", IOS15), ("fp16", IOS16), ("bool", IOS17), ("fp32", IOS18)):
        program = Program(opset)
        value = draw(f"list-{dtype}", 2, 3, low=-5, high=5, dtype=dtype)
        kind = f"list<tensor<{dtype}, [2, 3]>, 2>"
        inputs = {"init_length": const(2), "dynamic_length": const(False), "elem_shape": [const(2), const(3)], "dtype": const(dtype)}
        made = program.op("make_list", inputs, kind)
        x = program.input("x", value)
        made = program.op("list_write", {"ls": made, "index": const(1), "value": x}, kind)
        both = program.op("list_gather", {"ls": made, "indices": const([1, 0])}, (dtype, (2, 2, 3)))
        expected = [np.stack([value, np.zeros_like(value)])]
        yield program.case("make_list", dtype, [both], expected, also=["list_write", "list_gather"])


def _states() -> Iterator[Case]:
    x = np.array([[1.5, -2, 0.25, 4]], np.float16)

    # A state that accumulates over runs.
    program = Program(IOS18)
    cache, added = program.state("cache", 1, 4), program.input("x", x)
    old = program.op("read_state", {"input": cache}, ("fp16", (1, 4)))
    total = program.op("add", {"x": old, "y": added}, ("fp16", (1, 4)))
    program.op("write_state", {"data": total, "input": cache})
    new = program.op("read_state", {"input": cache}, ("fp16", (1, 4)))
    again = [[x * 2], [x * 3]]
    yield program.case("write_state", "accumulates", [new], [x], also=["read_state"], again=again)

    # A value that was read before a write does not change.
    program = Program(IOS18)
    cache, added = program.state("cache", 1, 4), program.input("x", x)
    old = program.op("read_state", {"input": cache}, ("fp16", (1, 4)))
    program.op("write_state", {"data": added, "input": cache})
    copy = program.op("identity", {"x": old}, ("fp16", (1, 4)))
    yield program.case("read_state", "before-write", [copy], [np.zeros_like(x)], also=["write_state"], again=[[x], [x]])

    # Two states that swap.
    program = Program(IOS18)
    left, right = program.state("left", 2), program.state("right", 2)
    step = program.input("step", np.array([1, 10], np.float16))
    a = program.op("read_state", {"input": left}, ("fp16", (2,)))
    b = program.op("read_state", {"input": right}, ("fp16", (2,)))
    c = program.op("add", {"x": b, "y": step}, ("fp16", (2,)))
    program.op("write_state", {"data": c, "input": left})
    program.op("write_state", {"data": a, "input": right})
    d = program.op("read_state", {"input": right}, ("fp16", (2,)))
    e = program.op("add", {"x": c, "y": d}, ("fp16", (2,)))
    runs = [[np.array([k, 10 * k], np.float16)] for k in (1, 2, 3, 4)]
    yield program.case("read_state", "two", [e], runs[0], also=["write_state"], again=runs[1:])

    # A row of a cache is written in place, as decoders do.
    program = Program(IOS18)
    cache = program.state("cache", 3, 2)
    row, at = program.input("row", np.array([[7, 8]], np.float16)), program.input("at", np.array([1], np.int32))
    old = program.op("read_state", {"input": cache}, ("fp16", (3, 2)))
    zero = program.const(np.zeros(1, np.int32))
    begin = program.op("concat", {"values": [at, zero], "axis": const(0), "interleave": const(False)}, ("int32", (2,)))
    after = program.op("add", {"x": at, "y": const(1)}, ("int32", (1,)))
    end = program.op(
        "concat", {"values": [after, program.const(np.array([2], np.int32))], "axis": const(0), "interleave": const(False)}, ("int32", (2,))
    )
    updated = program.op("slice_update", {"x": old, "update": row, "begin": begin, "end": end}, ("fp16", (3, 2)))
    program.op("write_state", {"data": updated, "input": cache})
    held = program.op("read_state", {"input": cache}, ("fp16", (3, 2)))
    doubled = program.op("add", {"x": held, "y": held}, ("fp16", (3, 2)))
    expected = np.array([[0, 0], [14, 16], [0, 0]], np.float16)
    yield program.case("write_state", "cache-row", [doubled], [expected], also=["read_state", "slice_update"], again=[[expected]])

    # The state is fp16, whatever the precision of the computation.
    program = Program(IOS18)
    cache = program.state("cache", 2)
    grows = program.input("x", np.array([3000, 1], np.float16))
    old = program.op("read_state", {"input": cache}, ("fp16", (2,)))
    total = program.op("add", {"x": old, "y": grows}, ("fp16", (2,)))
    program.op("write_state", {"data": total, "input": cache})
    again = [np.array([3000 * k, k], np.float16) for k in range(2, 6)]
    yield program.case("write_state", "counts", [total], [np.array([3000, 1])], also=["read_state"], again=[[run] for run in again])
