"""What `convert` takes, as exported programs."""

from __future__ import annotations

import contextlib
import os
import warnings
import weakref

from .._writes import is_written
from ._masks import with_constant_indices
from ._quantized import QuantizationError, without_quantized_tensors
from ._quantized_layers import with_integers
from ._recurrent import with_open_lengths
from ._sizes import traced_sizes, with_broadcast_writes, with_integer_sizes, with_known_sizes, with_scaled_sizes
from ._types import dtype_name

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Source:
    """An exported program, the names and the shapes of its inputs, and where it comes from."""

    def __init__(self, program: Any, dialect: str) -> None:
        """`program` is what `coremill.convert` takes."""
        self.program = program
        self.dialect = dialect
        self.input_names: list = []
        self.output_names: list = []
        self.shapes: dict = {}
        #: Enumerated shapes of images in the order of their sizes in the model, where it is another.
        self.image_shapes: dict = {}
        #: Bounds of the dimensions of arrays, by input.
        self.ranges: dict = {}
        #: Default shapes of inputs with open dimensions, by input; `None` where the exported program has them.
        self.defaults: dict = {}
        #: Inputs that are integers in the program and floats in Core ML.
        self.float_inputs: set = set()

    def rename_inputs(self, names: dict) -> None:
        """Gives inputs other names."""
        self.input_names = [names[name] for name in self.input_names]
        for known in (self.shapes, self.image_shapes, self.ranges, self.defaults):
            changed = {names.get(name, name): value for name, value in known.items()}
            known.clear()
            known.update(changed)
        self.float_inputs = {names[name] for name in self.float_inputs}


def is_exported(model: Any) -> bool:
    """Whether this is an exported program. torch is not imported to find out."""
    return any(kind.__name__ == "ExportedProgram" for kind in type(model).__mro__)


def source(model: Any, inputs: list | None, release: str | None = None) -> Source:
    """The exported program of an exported program, an archive, a module, or a traced or scripted module.

    Quantized layers become operators that the release has.
    """
    if isinstance(model, (str, os.PathLike)):
        path = os.fspath(model)
        if path.endswith(".pt2"):
            return _named(Source(path, "TorchExport::ATEN"), _names_of_archive(path), inputs)
        if not path.endswith((".pt", ".pth")):
            raise ValueError(
                f"{path} is not a torch model\nhint: pass a `.pt2` archive, or a traced module as `.pt` or `.pth`"
            )
        import torch

        model = torch.jit.load(path)
    if is_exported(model):
        dialect = getattr(model, "dialect", "ATEN")
        return _named(Source(model, f"TorchExport::{dialect}"), _user_inputs(model), inputs)
    import torch

    if isinstance(model, torch.jit.ScriptModule):
        if inputs is None:
            raise ValueError('Expected argument "inputs" for TorchScript models not provided')
        return _of_script(model, inputs, release)
    if isinstance(model, torch.nn.Module):
        if inputs is None:
            raise ValueError(
                'Expected argument "inputs" for a module not provided\n'
                "hint: pass `inputs=[ct.TensorType(shape=...)]`, or an exported program"
            )
        return _of_module(model, inputs)
    raise TypeError(
        "Model must either be a TorchScript object (or .pt or .pth file) or an ExportedProgram object (if using "
        f"torch.export based API), received: {type(model)}"
    )


def flat(inputs: Any) -> list:
    """Inputs without nesting."""
    found = []
    for one in inputs:
        if isinstance(one, (list, tuple)):
            found.extend(flat(one))
        elif hasattr(one, "can_be_output"):
            found.append(one)
        else:
            raise ValueError(f"Unknown type {type(one)} for flattening into InputType.")
    return found


def with_local_writes(program: Any, states: set) -> None:
    """Makes writes to inputs, constants and buffers that are not states end with the prediction, as in coremltools' traced modules."""
    import torch

    signature = program.graph_signature
    kept = {name for name, target in signature.inputs_to_buffers.items() if target in states}
    constants = signature.inputs_to_lifted_tensor_constants
    names = {*signature.inputs_to_buffers, *constants, *_user_inputs(program)} - kept
    graph = program.graph_module.graph
    first = next(node for node in graph.nodes if node.op != "placeholder")
    for node in list(graph.nodes):
        if node.op != "placeholder" or node.name not in names or not is_written(node):
            continue
        users = list(node.users)
        with graph.inserting_before(first):
            copied = graph.call_function(torch.ops.aten.clone.default, (node,))
        copied.meta = {"val": node.meta.get("val")}
        for user in users:
            user.replace_input_with(node, copied)
    program.graph_module.recompile()


def with_read_states(program: Any, states: set) -> None:
    """Makes the listed buffers states that the program only reads: the app writes to these. Each is its own new value."""
    from torch.export.graph_signature import OutputKind, OutputSpec, TensorArgument

    signature = program.graph_signature
    kept = {name for name in states if name not in signature.buffers_to_mutate.values()}
    names = {target: name for name, target in signature.inputs_to_buffers.items() if target in kept}
    graph = program.graph_module.graph
    nodes = {node.name: node for node in graph.nodes if node.op == "placeholder"}
    output = graph.output_node()
    for target, name in names.items():
        output.args = ((nodes[name], *output.args[0]),)
        signature.output_specs.insert(0, OutputSpec(OutputKind.BUFFER_MUTATION, TensorArgument(name), target))
    program.graph_module.recompile()


def _user_inputs(program: Any) -> list:
    return list(program.graph_signature.user_inputs)


def _names_of_archive(path: str) -> list:
    import coremill

    function = coremill.convert(path).inspect()["functions"][0]
    return [feature["name"] for feature in function["inputs"]]


def _named(made: Source, known: list, inputs: list | None) -> Source:
    """Names and enumerated shapes by position, as far as they are given."""
    known = [name for name in known if isinstance(name, str)]
    shapes = _known_shapes(made.program)
    if inputs is None and not any(shapes.get(name) == () or _is_open(shapes.get(name)) for name in known):
        return made
    given = flat(inputs or ())
    if len(given) > len(known):
        raise ValueError(f"the number of described inputs is {len(given)}, but the program has {len(known)}")
    by_name = {one.name: one for one in given if one.name}
    # Descriptions that name inputs of the program are for these; any others go by position.
    is_named = bool(by_name) and len(by_name) == len(given) and all(name in known for name in by_name)
    for at, name in enumerate(known):
        one = by_name.get(name) if is_named else (given[at] if at < len(given) else None)
        made.input_names.append(one.name if one is not None and one.name else _name_of_input(name, shapes))
        if one is not None:
            _check_shape(name, shapes.get(name), one)
            _note_shapes(made, made.input_names[-1], one, shapes.get(name))
        _note_ranges(made, made.input_names[-1], one, shapes.get(name))
    return made


def _name_of_input(name: str, shapes: dict) -> str:
    """coremltools' name of an input, which marks scalars: Core ML has no arrays without dimensions."""
    return f"{name}_wrapped_as_tensor_for_coreml" if shapes.get(name) == () else name


def _note_ranges(made: Source, name: str, one: Any, known: tuple | None) -> None:
    """Notes the bounds of open dimensions: those of `RangeDim`, or those of the exported program."""
    _check_open(name, one, known)
    if known is None or all(type(size) is int for size in known) or type(one).__name__ == "ImageType":
        return
    given = getattr(one, "shape", None)
    if given is not None and (not hasattr(given, "shape") or not given.has_symbolic):
        return
    made.defaults[name] = list(given.default) if given is not None else None
    ranges = []
    for at, size in enumerate(known):
        own = given.shape[at] if given is not None else None
        if type(size) is int:
            ranges.append([size, size])
        elif hasattr(own, "lower_bound"):
            ranges.append([own.lower_bound, own.upper_bound if own.upper_bound > 0 else None])
        elif own is not None:
            return
        else:
            bounds = getattr(made.program, "range_constraints", {}).get(getattr(size.node, "expr", None))
            if bounds is None:
                return
            ranges.append([_bound(bounds.lower), _bound(bounds.upper)])
    made.ranges[name] = ranges


def _check_open(name: str, one: Any, known: tuple | None) -> None:
    """Raises, or warns, if torch fixed a dimension that shall be open."""
    given = getattr(getattr(one, "shape", None), "shape", None)
    if known is None or given is None or len(given) != len(known):
        return
    for axis, (own, size) in enumerate(zip(given, known)):
        if not hasattr(own, "lower_bound") or own.lower_bound == own.upper_bound or type(size) is not int:
            continue
        text = (
            f"torch fixes dimension {axis} of `{name}` at {size}, because the module computes with this size as a number\n"
            "hint: compute it from `x.shape` in the module, or pass an exported program with `dynamic_shapes`"
        )
        if size != own.default:
            raise ValueError(text)
        import warnings

        warnings.warn(text, stacklevel=2)


def _bound(value: Any) -> int:
    """A bound as coremltools writes it: the largest 32-bit integer if unbounded."""
    limit = 2**31 - 1
    return limit if value > limit else max(int(value), 0)


def _known_shapes(program: Any) -> dict:
    """The shapes of the inputs of an exported program."""
    if isinstance(program, str):
        return {}
    nodes = [node for node in program.graph.nodes if node.op == "placeholder"]
    shapes = {node.name: node.meta["val"].shape for node in nodes if hasattr(node.meta.get("val"), "shape")}
    return {name: tuple(map(_size, shape)) for name, shape in shapes.items()}


def _size(size: Any) -> Any:
    """A size; a number if torch knows it."""
    known = size if type(size) is int else size.node.maybe_as_int()
    return size if known is None else known


def _check_shape(name: str, known: tuple | None, one: Any) -> None:
    """A shape of fixed sizes must be one that the exported program accepts."""
    if known is None or one.shape is None or not hasattr(one.shape, "shape") or one.shape.has_symbolic:
        return
    given = tuple(one.shape.default)
    fits = len(given) == len(known) and all(type(size) is not int or size == own for size, own in zip(known, given))
    if not fits:
        symbols = [f"is{at}" if type(size) is not int else str(size) for at, size in enumerate(known)]
        shape = ", ".join(symbols) + ("," if len(symbols) == 1 else "")
        raise ValueError(
            f"inconsistent shape between EXIR input {name} shape ({shape}) and user specified input {one.name} shape {given}"
        )


def _is_open(shape: tuple | None) -> bool:
    """Whether a shape has dimensions that are not fixed."""
    return shape is not None and any(type(size) is not int for size in shape)


def _note_shapes(made: Source, name: str, one: Any, known: tuple | None = None) -> None:
    if _is_open(known) and one.shape is not None and hasattr(one.shape, "shape") and not one.shape.has_symbolic:
        made.shapes[name] = [list(one.shape.default)]
    if type(one.shape).__name__ == "EnumeratedShapes":
        default = tuple(one.shape.default)
        shapes = [tuple(shape.default) for shape in one.shape.shapes]
        made.shapes[name] = [list(default), *(list(shape) for shape in shapes if shape != default)]
        # coremltools lists the default of an array first, and leaves sizes of images in their order.
        if type(one).__name__ == "ImageType" and default in shapes[1:]:
            made.image_shapes[name] = [list(shape) for shape in shapes]


def _example(one: Any, traced: list | None = None, dtype: Any = None) -> Any:
    """A tensor of the default shape, or of a larger one where a dimension of one would be taken for fixed.

    Open dimensions without a default have the size that the module was traced with, if known. `dtype` is the type if the input
    has floats in Core ML; fp32 if left out.
    """
    import torch

    if one.shape is None:
        raise ValueError(
            "'shape' must be provided in the 'inputs' argument for pytorch conversion\n"
            f"hint: pass `ct.TensorType(name={one.name!r}, shape=...)`"
        )
    if hasattr(one.shape, "shape") and not one.shape.shape:
        raise ValueError(f"Rank-0 (scalar) inputs are not supported, got input {one.name}\nhint: pass `shape=(1,)`")
    dtypes = {"fp16": torch.float32, "fp32": torch.float32, "int32": torch.int32, "int8": torch.int32, "bool": torch.bool}
    name = "fp32" if one.dtype is None else dtype_name(one.dtype)
    if type(one.shape).__name__ == "EnumeratedShapes":
        # torch takes a dimension of one for fixed.
        shapes = [one.shape.default, *(shape.default for shape in one.shape.shapes)]
        sizes = list(max(shapes, key=lambda shape: sum(size > 1 for size in shape)))
    else:
        known = traced if traced is not None and len(traced) == len(one.shape.shape) else [None] * len(one.shape.shape)
        sizes = [_example_size(size, own) for size, own in zip(one.shape.shape, known)]
    if name == "int32" and str(one.dtype).endswith("int64'>"):
        return torch.zeros(sizes, dtype=torch.int64)
    if name in ("int32", "int8", "bool"):
        return torch.zeros(sizes, dtype=dtypes[name])
    # A random number becomes an index of zero.
    return torch.rand(sizes).to(dtype or torch.float32)


def _traced_dtypes(module: Any, count: int) -> list:
    """The type of each input of a traced module; `None` if it is not known."""
    import torch

    values = list(module.graph.inputs())[1:]
    types = [getattr(value.type(), "dtype", lambda: None)() for value in values]
    if len(types) != count or not any(types):
        # A module from a file has no types of inputs.
        weights = {tensor.dtype for tensor in module.parameters() if tensor.is_floating_point()}
        types = [torch.float16 if weights == {torch.float16} else None] * count
    return types


#: Size of dimensions without a default in examples: large enough for indices in models, and no usual number of channels.
_OPEN_SIZE = 7


def _example_size(size: Any, traced: int | None) -> int:
    if not hasattr(size, "lower_bound"):
        return int(size)
    upper = size.upper_bound if size.upper_bound > 0 else max(size.default, 4)
    if traced is not None and size.default <= 1 < traced and size.lower_bound <= traced <= upper:
        return traced
    return size.default if size.default > 1 else max(size.lower_bound, min(upper, _OPEN_SIZE))


def _dynamic(given: list) -> list | None:
    """The dimensions of each input that are not fixed, as `torch.export` takes them."""
    import torch

    symbols: dict = {}
    all_dims = []
    for at, one in enumerate(given):
        dims: dict = {}
        if type(one.shape).__name__ == "EnumeratedShapes":
            shapes = [shape.default for shape in one.shape.shapes]
            for axis in range(len(shapes[0])):
                if len({shape[axis] for shape in shapes}) > 1:
                    dims[axis] = torch.export.Dim.DYNAMIC
        else:
            for axis, size in enumerate(one.shape.shape):
                if not hasattr(size, "lower_bound"):
                    continue
                if size.lower_bound == size.upper_bound:
                    continue
                key = str(size.symbol) if size.symbol is not None else f"d{at}_{axis}"
                upper = size.upper_bound if size.upper_bound > 0 else None
                if key not in symbols:
                    symbols[key] = torch.export.Dim(f"s_{len(symbols)}", min=size.lower_bound, max=upper)
                dims[axis] = symbols[key]
        all_dims.append(dims or None)
    return all_dims if any(all_dims) else None


def _export(module: Any, given: list, examples: tuple) -> Any:
    """Exports a module; dimensions that torch finds related are left to it."""
    import torch

    dims = _dynamic(given)
    try:
        return torch.export.export(module, examples, dynamic_shapes=None if dims is None else tuple(dims), strict=False)
    except torch._dynamo.exc.UserError:
        if dims is None:
            raise
        loose = [None if one is None else {axis: torch.export.Dim.AUTO for axis in one} for one in dims]
        return torch.export.export(module, examples, dynamic_shapes=tuple(loose), strict=False)


def _of_module(module: Any, inputs: list) -> Source:
    import torch

    given = flat(inputs)
    examples = tuple(_example(one) for one in given)
    was_training = module.training
    with torch.no_grad(), with_open_lengths():
        program = _export(module.eval(), given, examples)
    module.train(was_training)
    return _named(Source(program, "TorchExport::ATEN"), _user_inputs(program), inputs)


def _of_script(module: Any, inputs: list, release: str | None) -> Source:
    """A traced or scripted module, through torch's own converter."""
    given = flat(inputs)
    values = list(module.graph.inputs())[1:]
    sizes = [traced_sizes(value) for value in values]
    if len(sizes) != len(given):
        sizes = [None] * len(given)
    names = [value.debugName() for value in values]
    if len(names) != len(inputs):
        raise ValueError(
            f"Number of TorchScript inputs ({len(names)}) must match the user provided inputs ({len(inputs)})."
        )
    _check_dynamic_quantization(module)
    graph = _canonical(module)
    outputs = _names_of_outputs(graph)
    module.eval()
    program, indices = _exported_script(module, inputs, sizes, release)
    made = Source(program, "TorchScript")
    if len(outputs) == len(program.graph_signature.user_outputs):
        made.output_names = outputs
    known = _user_inputs(program)
    if len(known) == len(names):
        # The names in the traced graph are those of the module's arguments, or numbers.
        clean = [_identifier(value.debugName().split(".")[0]) for value in graph.inputs()][1:]
        made.input_names = [one.name or name for one, name in zip(given, clean)]
        shapes = _known_shapes(program)
        for one, name, own in zip(given, made.input_names, known):
            _note_shapes(made, name, one)
            _note_ranges(made, name, one, shapes.get(own))
    else:
        made = _named(made, known, inputs)
    made.float_inputs = {made.input_names[at] for at in indices}
    return made


def _exported_script(module: Any, inputs: list, sizes: list, release: str | None) -> tuple:
    """The exported program, and the positions of inputs that are integers in it and floats in Core ML.

    Scripts declare indices as floats, and coremltools casts them where they are used.
    """
    given = flat(inputs)
    traced = _traced_dtypes(module, len(given))
    floats = [dtype if dtype is not None and dtype.is_floating_point else None for dtype in traced]
    try:
        return _script_program(module, inputs, [_example(*one) for one in zip(given, sizes, floats)], release), []
    except QuantizationError:
        raise
    except Exception as failure:
        examples = [_example(*one) for one in zip(given, sizes, traced)]
        indices = [at for at, one in enumerate(examples) if _is_float(given[at]) and not one.dtype.is_floating_point]
        if indices:
            with contextlib.suppress(Exception):
                return _script_program(module, inputs, examples, release), indices
        raise RuntimeError(
            f"torch cannot convert the traced module to an exported program: {type(failure).__name__}: {_first_line(failure)}\n"
            "hint: pass the module itself through `torch.export.export(module, example_inputs)` instead of `torch.jit.trace`"
        ) from failure


def _is_float(one: Any) -> bool:
    """Whether an input is an array of floats in Core ML."""
    return one.dtype is None or dtype_name(one.dtype) in ("fp16", "fp32")


def _script_program(module: Any, inputs: list, examples: list, release: str | None) -> Any:
    """The exported program of a traced or scripted module for example inputs."""
    import torch
    from torch._export.converter import TS2EPConverter

    given = flat(inputs)
    nested = _nested(inputs, iter(examples))
    is_flat = not any(isinstance(one, tuple) for one in nested)

    class Converter(TS2EPConverter):
        """Exports with the dimensions that are asked for."""

        def convert(self) -> Any:
            if _dynamic(given) is None:
                with_integer_sizes(self.ts_graph)
                with_known_sizes(self.ts_graph, tuple(examples))
            with_scaled_sizes(self.ts_graph)
            with_broadcast_writes(self.ts_graph)
            with_constant_indices(self.ts_graph)
            known = (self.name_to_param, self.name_to_buffer)
            for name in without_quantized_tensors(self.ts_graph, {**known[0], **known[1]}):
                for tensors in known:
                    tensors.pop(name, None)
            with warnings.catch_warnings():
                # Weights of modules that the traced one does not use are no defect.
                warnings.filterwarnings("ignore", "Manually populate", UserWarning)
                program = super().convert()
            for name in [name for name, tensor in program.state_dict.items() if tensor.is_quantized]:
                del program.state_dict[name]
            return program

        def retrace_as_exported_program(self, gm: Any, name_to_constant: dict) -> Any:
            dims = _dynamic(given)
            shapes = tuple(dims) if dims is not None and is_flat else None
            try:
                program = _retraced(gm, nested, shapes)
            except torch._dynamo.exc.UserError:
                if shapes is None:
                    raise
                loose = [None if one is None else {axis: torch.export.Dim.AUTO for axis in one} for one in dims]
                program = _retraced(gm, nested, tuple(loose))
            program._constants.update({key: value for key, value in name_to_constant.items() if isinstance(value, torch.Tensor)})
            for key in name_to_constant:
                program.state_dict.pop(key, None)
            for spec in program.graph_signature.input_specs:
                if spec.kind.name == "BUFFER" and spec.target in name_to_constant:
                    spec.kind = type(spec.kind).CONSTANT_TENSOR
                    spec.persistent = None
            return program

    with torch.no_grad(), with_open_lengths(), with_integers(release):
        return Converter(module, nested, None).convert()


def _check_dynamic_quantization(module: Any) -> None:
    """Raises coremltools' error for layers that quantize their inputs when they run."""
    for node in module.inlined_graph.nodes():
        name = node.kind().rpartition("::")[2]
        if name.endswith("_dynamic") and node.kind().startswith("quantized::"):
            raise RuntimeError(
                f"PyTorch convert function for op '{name}' not implemented.\n"
                "Dynamic quantized models are not supported by Core ML.\n"
                "Please use static quantization or the APIs in coremltools.optimize to quantize/compress models."
            )


def output_names(made: Source) -> list:
    """Names for the outputs, which Core ML refuses if inputs have them; empty if those of the program stay."""
    signature = getattr(made.program, "graph_signature", None)
    inputs = set(made.input_names)
    found = list(made.output_names or ([] if signature is None else signature.user_outputs))
    if not all(isinstance(name, str) for name in found) or not inputs.intersection(found):
        return made.output_names
    apart: list = []
    for name in found:
        while name in inputs or name in apart:
            name += "_out"
        apart.append(name)
    return apart


#: Canonical graphs of converted modules, whose own graphs torch's converter changes.
_CANONICAL: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def _canonical(module: Any) -> Any:
    """torch's canonical graph, from which coremltools has the names of inputs and outputs."""
    import torch

    if module in _CANONICAL:
        return _CANONICAL[module]
    graph = module.forward.graph.copy()
    for name in ("inline", "inline_fork_wait", "dce", "canonicalize_graph_fuser_ops"):
        getattr(torch._C, f"_jit_pass_{name}")(graph)
    _CANONICAL[module] = torch._C._jit_pass_canonicalize(graph)
    return _CANONICAL[module]


def _names_of_outputs(graph: Any) -> list:
    """The names that coremltools gives to the outputs of a canonical graph. Empty if an output has none of its own."""
    values = list(graph.outputs())
    while any(value.node().kind() in ("prim::TupleConstruct", "prim::ListConstruct") for value in values):
        values = [
            inner
            for value in values
            for inner in (value.node().inputs() if value.node().kind().endswith("Construct") else [value])
        ]
    names = [_identifier(value.debugName().replace(".", "_")) for value in values]
    is_plain = all(value.isCompleteTensor() or str(value.type()) == "Tensor" for value in values)
    return names if is_plain and len(set(names)) == len(names) else []


def _identifier(name: str) -> str:
    """A name that Core ML takes: traced values may be numbered."""
    return name if name.isidentifier() else f"var_{name}"


def _retraced(graph: Any, examples: tuple, shapes: Any) -> Any:
    import torch

    return torch.export._trace._export(graph, examples, dynamic_shapes=shapes, strict=False, pre_dispatch=True)


def _nested(inputs: Any, examples: Any) -> tuple:
    """Examples in the nesting of the inputs."""
    return tuple(_nested(one, examples) if isinstance(one, (list, tuple)) else next(examples) for one in inputs)


def _first_line(failure: BaseException) -> str:
    lines = str(failure).strip().splitlines()
    return lines[0] if lines else "no message"
