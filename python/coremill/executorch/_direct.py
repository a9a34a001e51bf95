"""Lowers exported programs directly, without ExecuTorch's passes, if all calls run on Core ML.

ExecuTorch's ``to_edge_transform_and_lower`` spends seconds on passes over graphs that a single delegate replaces.
:func:`attach` makes that function, and ``to_edge`` for the older flow, try :func:`lowered` first. A program that cannot
be lowered this way raises :class:`Unsuitable`, and takes ExecuTorch's own path after a line in the log.

A program is lowered directly if calls of each method run on Core ML. Calls that stay outside run on ExecuTorch's
portable kernels. Without such calls, the options for decompositions and kernels have no effect; with them, only the
defaults are lowered directly. The result computes the same as that of ExecuTorch's path.
"""

import importlib.metadata
import logging
import os
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import torch
from executorch.exir.capture._config import EdgeCompileConfig
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind, TensorArgument
from torch.fx import GraphModule, Node

from .. import _native
from .._writes import is_written
from .compiler.coreml_preprocess import check_shapes, pairs, warn_of_version
from .enums import target
from .logging import get_coreml_log_level

logger = logging.getLogger("executorch.backends.apple.coreml.direct")
logger.setLevel(get_coreml_log_level(default_level=logging.INFO))

#: Release of ExecuTorch whose graphs and files the direct path builds. Others differ in modules and fields.
_RELEASE = "1.5"

#: Takes ExecuTorch's own path always if it is ``slow``.
VARIABLE = "COREMILL_EXECUTORCH"

#: Inputs and outputs that both paths treat alike.
_INPUTS = (InputKind.USER_INPUT, InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
_OUTPUTS = (OutputKind.USER_OUTPUT, OutputKind.BUFFER_MUTATION)


#: Specification versions by release.
_VERSIONS = {name.lower(): int(member) for name, member in target.__members__.items()}


class Unsuitable(Exception):
    """The reason why a call takes ExecuTorch's own path."""


class Call(NamedTuple):
    """The arguments of a call of ``to_edge_transform_and_lower`` or ``to_edge``."""

    programs: Dict[str, ExportedProgram]
    constant_methods: Optional[Dict[str, Any]]
    #: ExecuTorch's function with the same arguments.
    standard: Callable[[], Any]
    #: The weights, with the versions that they had.
    versions: List[Tuple[str, torch.Tensor, Optional[int], Optional[int]]]
    config: Optional[EdgeCompileConfig] = None
    #: Whether weights or buffers stay outside the delegates.
    keeps_tensors: bool = False
    #: Whether calls run on portable kernels.
    has_kernels: bool = False

    def with_partitioners(self, partitioners: Dict[str, Any], has_kernels: bool) -> "Call":
        """Return the call as these partitioners lowered it."""
        takes_all = all(one.take_over_constant_data and one.take_over_mutable_buffer for one in partitioners.values())
        return self._replace(keeps_tensors=has_kernels or not takes_all, has_kernels=has_kernels)

    def build(self) -> Any:
        """Return what ExecuTorch's own path makes."""
        for name, tensor, *noted in self.versions:
            if list(_version(tensor)) != noted:
                raise RuntimeError(
                    f"`{name}` was written to after the program was lowered, but ExecuTorch's graph was requested\n"
                    f"hint: request it earlier, or set {VARIABLE}=slow"
                )
        return self.standard()


def call_of(
    programs: Any, constant_methods: Optional[Dict[str, Any]], standard: Callable[..., Any], **options: Any
) -> Call:
    """Note a call, and what may change before ExecuTorch's path is taken."""
    named = dict(programs) if isinstance(programs, dict) else {"forward": programs}
    for name, program in named.items():
        if type(program) is not ExportedProgram:
            raise Unsuitable(f"the program of `{name}` has type {type(program).__name__}")
    config = options.pop("compile_config", None)
    if config is not None:
        if type(config) is not EdgeCompileConfig:
            raise Unsuitable(f"`compile_config` has type {type(config).__name__}")
        # ExecuTorch writes into it.
        config = EdgeCompileConfig(
            **{
                name: list(value) if isinstance(value, list) else value
                for name, value in vars(config).items()
            }
        )
    constants = dict(constant_methods) if constant_methods else constant_methods

    def again() -> Any:
        return standard(dict(named), constant_methods=constants, compile_config=config, **options)

    versions = [
        (name, tensor, *_version(tensor))
        for program in named.values()
        for source in (program.state_dict, program.constants)
        for name, tensor in source.items()
        if isinstance(tensor, torch.Tensor)
    ]
    return Call(named, constants, again, versions, config)


def _version(tensor: torch.Tensor) -> Tuple[Optional[int], Optional[int]]:
    """The number of writes to a tensor, and its address; ``None`` if it has none."""
    try:
        version = tensor._version
    except RuntimeError:  # Tensors of inference count nothing.
        version = None
    try:
        return version, tensor.data_ptr()
    except RuntimeError:  # Classes of their own need not have an address.
        return version, None


def is_ours(partitioner: Any) -> bool:
    """Whether a partitioner is a ``CoreMLPartitioner``, and no class derived from it."""
    from .partition.coreml_partitioner import CoreMLPartitioner

    return type(partitioner) is CoreMLPartitioner


def names_ours(partitioner: Any) -> bool:
    """Whether one of the partitioners of a call is ours or derived from it, so that its path is worth a line in the log."""
    from .partition.coreml_partitioner import CoreMLPartitioner

    lists = partitioner.values() if isinstance(partitioner, dict) else [partitioner]
    flat = [one for item in lists for one in (item if isinstance(item, (list, tuple)) else [item])]
    return any(isinstance(one, CoreMLPartitioner) for one in flat)


def partitioners_of(partitioner: Any, call: Call) -> Dict[str, Any]:
    """Return the one partitioner of each method."""
    if not isinstance(partitioner, dict):
        partitioner = {name: partitioner for name in call.programs}
    found = {}
    for name in call.programs:
        of_method = partitioner.get(name) or []
        of_method = list(of_method) if isinstance(of_method, (list, tuple)) else [of_method]
        if len(of_method) != 1:
            raise Unsuitable(f"`{name}` has {len(of_method)} partitioners")
        if not is_ours(of_method[0]):
            raise Unsuitable(f"the partitioner of `{name}` has type {type(of_method[0]).__name__}")
        found[name] = of_method[0]
    if unknown := set(partitioner) - set(call.programs):
        raise Unsuitable(f"a partitioner is set for `{min(unknown)}`, which is not a method")
    return found


def refuse_if_slow() -> None:
    """Raises ``Unsuitable`` if the environment requests ExecuTorch's own path."""
    value = os.environ.get(VARIABLE, "")
    if value == "slow":
        raise Unsuitable(f"{VARIABLE}=slow")
    if value not in ("", "fast"):
        raise ValueError(f"found {VARIABLE}={value}; expected `slow` or `fast`")


def lowered(call: Call, partitioners: Dict[str, Any]) -> Tuple[bytes, bool]:
    """Lower the programs of a call to the file of an ExecuTorch program.

    Returns the file, and whether it calls portable kernels.
    """
    from .partition.coreml_partitioner import check_backend

    check_backend()
    constants = call.constant_methods or {}
    scalars = {name: value for name, value in constants.items() if type(value) in (bool, int, float, str)}
    others = {name: value for name, value in constants.items() if name not in scalars}
    if others:
        from ._constants import is_storable, with_constants

        for name, value in others.items():
            if not is_storable(value):
                raise Unsuitable(f"the constant method `{name}` returns a {type(value).__name__} that is not stored directly")
    methods = []
    for name, program in call.programs.items():
        partitioner = partitioners[name]
        skipped = list(partitioner.skip_ops_for_coreml_delegation or [])
        specs = partitioner.delegation_spec.compile_specs
        try:
            _check(name, program, partitioner.lower_full_graph)
            check_shapes(program, specs)
        except (AssertionError, ValueError) as error:
            raise Unsuitable(_line(error)) from error
        flags = (partitioner.take_over_mutable_buffer, partitioner.take_over_constant_data, partitioner.lower_full_graph)
        methods.append((name, program, pairs(specs), skipped, *map(bool, flags)))
    try:
        made = _native.edge_lower(methods, scalars)
        report = made.report
    except Exception as error:
        # ExecuTorch's path fails with the same error, in the form that its users expect.
        raise Unsuitable(_line(error)) from error
    for name, method in report.items():
        if not method["delegates"]:
            raise Unsuitable(f"no call of `{name}` runs on Core ML")
        _check_outside(name, method["outside"], partitioners[name].skip_ops_for_coreml_delegation or [])
    data = made.to_bytes()
    has_kernels = any(method["outside"] for method in report.values())
    if has_kernels:
        _check_kernels(call, data, report)
    if others:
        data = with_constants(data, others)
    for name, partitioner in partitioners.items():
        partitioner.announce()
        release = report[name]["delegates"][0]["target"]
        warn_of_version(f"of method {name}", _VERSIONS[release])
    return data, has_kernels


def _check_outside(name: str, outside: List[Any], skipped: List[str]) -> None:
    """Refuse calls outside Core ML that ExecuTorch may decompose or rename."""
    operators = {one.operator for one in outside}
    # An operator may occur only in the decomposition of another.
    if absent := sorted(set(skipped) - operators):
        raise Unsuitable(f"`{name}` does not call `{absent[0]}`, which `skip_ops_for_coreml_delegation` lists")
    for operator in sorted(operators):
        if not _is_core(operator):
            raise Unsuitable(f"`{operator}` of `{name}` stays outside Core ML, and is not a Core ATen operator")


def _is_core(operator: str) -> bool:
    """Whether an operator, such as ``aten.relu.default``, belongs to Core ATen."""
    found: Any = torch.ops
    for part in operator.split("."):
        found = getattr(found, part, None)
    return torch.Tag.core in getattr(found, "tags", ())


def _check_kernels(call: Call, data: bytes, report: Dict[str, Any]) -> None:
    """Refuse programs whose kernels differ from the calls that stay outside."""
    from executorch.exir._serialize._program import deserialize_pte_binary

    config = call.config or EdgeCompileConfig()
    if config._skip_dim_order or config.preserve_ops:
        raise Unsuitable("`compile_config` affects calls outside Core ML")
    for plan in deserialize_pte_binary(data).program.execution_plan:
        if plan.name not in report:
            continue
        calls = {one.operator.split(".")[1] for one in report[plan.name]["outside"]}
        kernels = {one.name.partition("::")[2] for one in plan.operators} - {"copy_"}
        if other := sorted(calls ^ kernels):
            raise Unsuitable(f"the call `{other[0]}` of `{plan.name}` has a different kernel outside Core ML")


def _line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def _check(name: str, program: ExportedProgram, is_whole: bool) -> None:
    """Refuse programs that the two paths may treat differently."""
    from .partition._division import is_unwanted

    signature = program.graph_signature
    if signature.backward_signature is not None:
        raise Unsuitable(f"`{name}` computes gradients")
    for spec in signature.input_specs:
        if spec.kind not in _INPUTS:
            raise Unsuitable(f"`{name}` has an input of kind {spec.kind.name}")
        if not isinstance(spec.arg, TensorArgument):
            raise Unsuitable(f"the input `{spec.arg.name}` of `{name}` is not a tensor")
    for spec in signature.output_specs:
        if spec.kind not in _OUTPUTS:
            raise Unsuitable(f"`{name}` has an output of kind {spec.kind.name}")
        if not isinstance(spec.arg, TensorArgument):
            raise Unsuitable(f"an output of `{name}` is not a tensor")
    for symbol, bounds in program.range_constraints.items():
        if not getattr(bounds.upper, "is_Integer", False):
            raise Unsuitable(f"the size `{symbol}` of `{name}` has no upper bound")
    inputs = set(signature.user_inputs)
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in inputs and is_written(node):
            raise Unsuitable(f"`{name}` writes to its input `{node.name}`, which ExecuTorch returns as well")
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, GraphModule) else ():
            if node.op == "call_function" and _is_random(node):
                raise Unsuitable(f"`{name}` calls {node.target}, which is random")
            if node.op == "call_function" and not is_whole and is_unwanted(node):
                raise Unsuitable(f"`{name}` calls {node.target} without a dimension")


def _is_random(node: Node) -> bool:
    """Whether the results of a call are random."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    # Dropout, and what contains it, may be turned off.
    for at, argument in enumerate(node.target._schema.arguments):
        if argument.name in ("train", "training", "dropout", "dropout_p"):
            value = node.args[at] if at < len(node.args) else node.kwargs.get(argument.name, argument.default_value)
            if not value:
                return False
    return True


def explain(reason: Unsuitable) -> None:
    """Logs the reason why a call takes ExecuTorch's own path."""
    logger.info(f"Lowering by ExecuTorch's own path: {reason}")


def attach() -> None:
    """Makes ExecuTorch's ``to_edge_transform_and_lower`` and ``to_edge`` try :func:`lowered` first.

    ExecuTorch wraps both in a decorator that keeps the function in a variable. That variable is replaced, so that
    names imported earlier and later refer to the same function. Without such a wrapper, the names in ExecuTorch's
    modules are replaced.

    Other releases of ExecuTorch keep their functions.
    """
    release = importlib.metadata.version("executorch")
    if not release.startswith(f"{_RELEASE}."):
        explain(Unsuitable(f"ExecuTorch {release} is installed, but programs are lowered directly only for {_RELEASE}"))
        return
    from ._managers import to_edge, to_edge_transform_and_lower

    for ours in (to_edge, to_edge_transform_and_lower):
        _replace(ours.__name__, ours)


def _replace(name: str, ours: Callable[..., Any]) -> None:
    import executorch.exir as exir
    from executorch.exir import program

    public = getattr(exir, name)
    cells = dict(zip(public.__code__.co_freevars, public.__closure__ or ()))
    standard = cells["func"].cell_contents if set(cells) == {"func"} else public

    def replaced(*args: Any, **kwargs: Any) -> Any:
        return ours(standard, *args, **kwargs)

    replaced.__name__, replaced.__doc__, replaced.__wrapped__ = name, standard.__doc__, standard  # type: ignore[attr-defined]
    if standard is not public:
        cells["func"].cell_contents = replaced
        return
    for module in (exir, program, program._program):
        if getattr(module, name) is public:
            setattr(module, name, replaced)
