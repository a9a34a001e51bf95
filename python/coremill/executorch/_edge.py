"""Converts exported programs to ExecuTorch's edge dialect call by call, for programs that call operators of the caller's.

ExecuTorch decomposes and traces a program several times on its way to the edge dialect. A delegate takes the calls as they
are, so only calls outside Core ML matter. If these are the caller's own operators, such as the graph breaks of ExecuTorch's
static Llama, no decomposition applies to them, and each call of the exported program becomes one of the edge program.
ExecuTorch's own partitioning follows, so the result is a complete ``EdgeProgramManager``, whose graphs can be changed.
"""

import operator
from copy import copy
from typing import Any, Callable, Dict, List, Optional

import torch
from executorch.exir import EdgeCompileConfig
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.dialects.edge._ops import EdgeOpOverload
from executorch.exir.passes.debug_handle_generator_pass import DebugHandleGeneratorPass
from executorch.exir.passes.remove_graph_asserts_pass import RemoveNonCoreAtenOpGraphAssertsPass
from executorch.exir.passes.remove_unused_parameters_pass import remove_unused_parameters_pass
from executorch.exir.passes.replace_aten_with_edge_pass import aten_to_edge, should_lower_to_edge
from executorch.exir.program import EdgeProgramManager
from executorch.exir.verification.verifier import EXIREdgeDialectVerifier
from torch._subclasses import FakeTensor
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind, InputSpec, OutputKind, TensorArgument
from torch.fx import Graph, GraphModule, Node
from torch.fx.traceback import NodeSource, NodeSourceAction
from torch.utils import _pytree as pytree

from ._direct import Call, Unsuitable

#: Namespaces whose operators ExecuTorch decomposes, renames or fuses.
_STANDARD = frozenset(("aten", "prim", "prims", "quantized_decomposed", "torchao", "dim_order_ops", "export"))


def edge_manager(call: Call, partitioners: Dict[str, Any]) -> EdgeProgramManager:
    """Return the manager that ExecuTorch's path makes, without its decompositions."""
    for name, program in call.programs.items():
        _check(name, program)
    # ExecuTorch's config after partitioning is the same.
    config = EdgeCompileConfig(_check_ir_validity=False)
    programs = {name: _edge_program(name, program, config) for name, program in call.programs.items()}
    made = EdgeProgramManager(programs, call.constant_methods, config).to_backend(partitioners)
    for name in made.methods:
        _check_outside(name, made.exported_program(name))
    return made


def _check(name: str, program: ExportedProgram) -> None:
    """Refuse programs whose calls change in the edge dialect."""
    if program.range_constraints:
        raise Unsuitable(f"`{name}` has dynamic sizes")
    if any(spec.kind != OutputKind.USER_OUTPUT for spec in program.graph_signature.output_specs):
        raise Unsuitable(f"`{name}` writes to its buffers")
    has_own = False
    for node in program.graph.nodes:
        if node.op == "get_attr":
            raise Unsuitable(f"`{name}` contains the graph `{node.target}`")
        if node.op != "call_function" or node.target is operator.getitem:
            continue
        if not isinstance(node.target, torch._ops.OpOverload):
            raise Unsuitable(f"`{name}` calls {node.target}")
        # ExecuTorch replaces such calls by ones that return what they write.
        if node.target._schema.is_mutable:
            raise Unsuitable(f"`{name}` calls {node.target}, which writes to its operand")
        has_own = has_own or _is_own(node.target)
    if not has_own:
        raise Unsuitable(f"`{name}` calls no custom operator")


def _is_own(target: torch._ops.OpOverload) -> bool:
    """Whether an operator is the caller's and has no decomposition."""
    return (
        target.namespace not in _STANDARD
        and not target._schema.is_mutable
        and not torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), "CompositeImplicitAutograd")
        and target not in torch._decomp.decomposition_table
    )


def _edge_program(name: str, program: ExportedProgram, config: EdgeCompileConfig) -> ExportedProgram:
    """Return a copy of a program whose calls are those of the edge dialect. Tensors are shared."""
    program = remove_unused_parameters_pass(_unwrapped(name, program))
    module = RemoveNonCoreAtenOpGraphAssertsPass()(program.graph_module).graph_module
    for node in module.graph.nodes:
        if node.op == "call_function" and should_lower_to_edge(node.target):
            node.target = aten_to_edge(node.target)
    DebugHandleGeneratorPass()(module)
    module.recompile()
    verifier = EXIREdgeDialectVerifier(edge_compile_config=config, class_only=True)
    return _with_graph(program, module, program.graph_signature, program.state_dict, program.constants, verifier)


def _with_graph(
    program: ExportedProgram,
    module: GraphModule,
    signature: ExportGraphSignature,
    state: Dict[str, Any],
    constants: Dict[str, Any],
    verifier: Any,
) -> ExportedProgram:
    return ExportedProgram(
        root=module,
        graph=module.graph,
        graph_signature=signature,
        state_dict=state,
        range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph,
        example_inputs=program.example_inputs,
        constants=constants,
        verifiers=[verifier],
    )


def _is_access(node: Node) -> bool:
    """Whether a call reads a part of a tensor of a class such as torchao's."""
    return node.op == "call_function" and node.target is torch.ops.export.access_subclass_inner_tensor.default


def _unwrapped(name: str, program: ExportedProgram) -> ExportedProgram:
    """Return a copy of a program in which the parts of wrapped weights are inputs of their own, as functionalization
    makes them."""
    signature = program.graph_signature
    sources = {spec.arg.name: spec for spec in signature.input_specs}
    tensors = {**program.state_dict, **program.constants}
    #: By node: the input that the part belongs to, the name of the part, and the part itself.
    parts: Dict[Node, Any] = {}
    inputs: List[InputSpec] = []
    state: Dict[str, Any] = {}
    constants: Dict[str, Any] = {}
    graph, copies = Graph(), {}

    def add(node: Node, spec: InputSpec, tensor: Optional[torch.Tensor]) -> None:
        copies[node] = copied = graph.placeholder(spec.arg.name)
        copied.meta = copy(node.meta)
        inputs.append(spec)
        if tensor is not None:
            is_state = spec.kind == InputKind.PARAMETER or (spec.kind == InputKind.BUFFER and spec.persistent)
            (state if is_state else constants)[spec.target] = tensor

    nodes = list(program.graph.nodes)
    for node in nodes:
        if node.op == "placeholder":
            spec = sources[node.name]
            tensor = None if spec.kind == InputKind.USER_INPUT else tensors[spec.target]
            if node.users and all(_is_access(user) for user in node.users):
                parts[node] = (spec, spec.target, tensor)
            elif spec.kind != InputKind.USER_INPUT:
                add(node, InputSpec(spec.kind, TensorArgument(node.name), spec.target, spec.persistent), tensor)
        elif _is_access(node):
            given, attribute = node.args
            if given not in parts or parts[given][2] is None:
                raise Unsuitable(f"`{name}` accesses attributes of `{given}` in an unsupported way")
            spec, target, tensor = parts[given]
            inner = getattr(tensor, attribute)
            if spec.kind == InputKind.PARAMETER:
                inner = torch.nn.Parameter(inner, requires_grad=False)
            target = f"{target}.{attribute}"
            parts[node] = (spec, target, inner)
            is_leaf = [not _is_access(user) for user in node.users]
            if any(is_leaf) and not all(is_leaf):
                raise Unsuitable(f"`{name}` accesses attributes of `{given}` in an unsupported way")
            if all(is_leaf):
                add(node, InputSpec(spec.kind, TensorArgument(node.name), target, spec.persistent), inner)
    for node in nodes:
        if node.op == "placeholder" and sources[node.name].kind == InputKind.USER_INPUT:
            if node in parts:
                raise Unsuitable(f"`{name}` accesses attributes of its input `{node.name}`")
            add(node, sources[node.name], None)
    for node in nodes:
        if node.op != "placeholder" and node not in parts:
            copies[node] = copied = graph.node_copy(node, lambda given: copies[given])
            copied.meta = copy(node.meta)
            if node.op == "call_function":
                # Debug handles are numbered by origin.
                source = NodeSource(node, "edge", [NodeSourceAction.CREATE])
                copied.meta["from_node"] = [*node.meta.get("from_node", []), source]
    module = GraphModule(torch.nn.Module(), graph)
    made = ExportGraphSignature(inputs, signature.output_specs)
    return _with_graph(program, module, made, state, constants, program.verifier)


def _check_outside(name: str, program: ExportedProgram) -> None:
    """Refuse calls outside Core ML that ExecuTorch's passes may change."""
    nodes: List[Node] = [node for node in program.graph.nodes if node.op == "call_function"]
    for node in nodes:
        target = node.target
        if target in (executorch_call_delegate, operator.getitem):
            continue
        if not isinstance(target, EdgeOpOverload) or not _is_own(target._op):
            raise Unsuitable(f"`{target}` of `{name}` stays outside Core ML")
    if all(node.target is not executorch_call_delegate for node in nodes):
        raise Unsuitable(f"no call of `{name}` runs on Core ML")
    for node in program.graph.nodes:
        if node.op == "get_attr" and hasattr(module := getattr(program.graph_module, node.target), "original_module"):
            module._original_exported_program = _DelegateProgram.of(module.original_module)


class _DelegateProgram(ExportedProgram):
    """The program of a delegate, whose results are not computed while ExecuTorch's passes trace the calls around it."""

    @classmethod
    def of(cls, program: ExportedProgram) -> "_DelegateProgram":
        made = cls.__new__(cls)
        made.__dict__.update(vars(program))
        return made

    def module(self, *args: Any, **kwargs: Any) -> Any:
        if torch._guards.detect_fake_mode() is None:
            return super().module(*args, **kwargs)
        return self._traced(lambda: super(_DelegateProgram, self).module(*args, **kwargs))

    def _traced(self, computed: Callable[[], Any]) -> Callable[..., Any]:
        values = [given.meta["val"] for given in self.graph.output_node().args[0]]

        def results(*inputs: Any) -> Any:
            leaves = pytree.tree_leaves(inputs)
            if not all(isinstance(leaf, FakeTensor) for leaf in leaves):
                return computed()(*inputs)
            return [
                torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device) for value in values
            ]

        return results
