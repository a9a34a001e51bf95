"""The native part of the package."""

import os
from typing import Any, Literal, Optional, Sequence, TypedDict, Union, final

from typing_extensions import Unpack

from coremill._reports import Division, Report

__all__ = [
    "__version__",
    "Model",
    "Session",
    "Program",
    "Method",
    "convert",
    "lower",
    "load",
    "figures",
    "per_op",
    "compress",
    "quantize",
    "Preprocessed",
    "edge_partition",
    "edge_refused",
    "edge_preprocess",
    "edge_preprocess_multimethod",
]

_Path = Union[str, "os.PathLike[str]"]
_Shape = Sequence[int]
_Constant = Union[bool, int, float, str]

class _ProgramOptions(TypedDict, total=False):
    target: Any
    precision: Optional[str]
    fp32_ops: Union[str, Sequence[str], None]
    fp32_modules: Union[str, Sequence[str], None]
    decompose_sdpa: Optional[bool]
    skip_passes: Union[str, Sequence[str], None]
    shapes: Optional[dict[str, Union[_Shape, Sequence[_Shape]]]]
    quantization: Union[str, dict[str, Any], None]

class _ConvertOptions(_ProgramOptions, total=False):
    states: Optional[Literal["keep", "io"]]
    input_names: Union[str, Sequence[str], None]
    output_names: Union[str, Sequence[str], None]
    author: Optional[str]
    license: Optional[str]
    description: Optional[str]
    model_version: Optional[str]
    metadata: Optional[dict[str, str]]
    verify: Union[bool, float, None]

class _LowerOptions(_ProgramOptions, total=False):
    skip_ops: Union[str, Sequence[str], None]
    full_graph: Optional[bool]
    portable: Optional[bool]
    take_over_constant_data: Optional[bool]
    take_over_mutable_buffer: Optional[bool]
    debug_info: Optional[bool]
    weight_sharing: Optional[Literal["positional", "disabled"]]
    constant_methods: Optional[dict[str, _Constant]]
    compiled: Optional[bool]
    compile_specs: Any

class _QuantizeOptions(_ConvertOptions, _LowerOptions, total=False):
    output: Optional[Literal["model", "program"]]
    rules: Union[_Path, Sequence[dict[str, Any]], None]
    observer: Optional[Literal["min-max", "moving-average", "percentile", "entropy", "mse"]]
    mean: Union[float, Sequence[float], None]
    std: Union[float, Sequence[float], None]
    group_size: Optional[int]
    bits: Optional[int]
    block: Optional[tuple[int, int]]
    keep: Union[str, Sequence[str], None]
    keep_ops: Union[str, Sequence[str], None]
    min_elements: Optional[int]
    keep_worst: Optional[int]
    effort: Optional[int]

__version__: str

def convert(program: Any, **options: Unpack[_ConvertOptions]) -> Model: ...
def lower(programs: Any, **options: Unpack[_LowerOptions]) -> Program: ...
def load(path: _Path) -> Union[Model, Program]: ...
def compress(
    model: Union[Model, Program],
    rules: str,
    target: Optional[str],
    decompress: bool,
    *,
    size: Optional[str] = None,
    snr: Optional[float] = None,
) -> tuple[Union[Model, Program], str]: ...
def quantize(
    program: Any, recipe: str, samples: Any, **options: Unpack[_QuantizeOptions]
) -> tuple[Union[Model, Program], str]: ...
def per_op(
    reference: Union[Model, Program],
    other: Union[Model, Program],
    inputs: dict[str, Any],
    precisions: tuple[str, str],
    threshold: float,
) -> str: ...
def figures(reference: Any, other: Any, bound: float) -> tuple[str, bool]: ...

_Specs = Sequence[tuple[str, bytes]]
_RefusedCall = tuple[str, str, str, Optional[str], Optional[str], str]

def edge_partition(
    program: Any,
    specs: _Specs,
    outside: Sequence[str],
    *,
    take_over_mutable_buffer: bool,
    take_over_constant_data: bool,
    lower_full_graph: bool,
) -> tuple[list[list[str]], list[str], list[_RefusedCall], list[str]]: ...
def edge_refused(
    program: Any,
    specs: _Specs,
    *,
    take_over_mutable_buffer: bool,
    take_over_constant_data: bool,
    lower_full_graph: bool,
) -> tuple[list[_RefusedCall], list[str]]: ...
def edge_preprocess(program: Any, specs: _Specs) -> Preprocessed: ...
def edge_preprocess_multimethod(
    parts: Sequence[tuple[str, Any, _Specs]], at: int
) -> Preprocessed: ...

@final
class Model:
    @property
    def target(self) -> Optional[str]: ...
    @property
    def states(self) -> dict[str, Any]: ...
    def save(self, path: _Path, *, sync: bool = False) -> None: ...
    def predict(self, inputs: Optional[dict[str, Any]] = None, **named: Any) -> dict[str, Any]: ...
    def set_state(self, name: str, value: Any) -> None: ...
    def reset(self) -> None: ...
    def session(
        self, function: Optional[str] = None, *, precision: str = "fast", threads: int = 0
    ) -> Session: ...
    def inspect(self) -> Report: ...
    def check(self) -> Report: ...
    def _repr_html_(self) -> str: ...
    def _summary(self) -> str: ...
    def _check(self) -> tuple[str, str]: ...
    def _text(self) -> str: ...

@final
class Session:
    @property
    def states(self) -> dict[str, Any]: ...
    def predict(self, inputs: Optional[dict[str, Any]] = None, **named: Any) -> dict[str, Any]: ...
    def set_state(self, name: str, value: Any) -> None: ...
    def reset(self) -> None: ...

@final
class Program:
    @property
    def methods(self) -> list[str]: ...
    @property
    def models(self) -> dict[str, Model]: ...
    @property
    def report(self) -> Division: ...
    def save(self, path: _Path, *, sync: bool = False) -> None: ...
    def method(
        self,
        name: Optional[str] = None,
        *,
        threads: int = 0,
        faithful: bool = False,
        data: Sequence[_Path] = ...,
    ) -> Method: ...
    def extract(self, directory: _Path, *, sync: bool = False) -> list[Any]: ...
    def inspect(self) -> Report: ...
    def check(self) -> Report: ...
    def _repr_html_(self) -> str: ...
    def _summary(self) -> str: ...

@final
class Method:
    @property
    def name(self) -> str: ...
    @property
    def inputs(self) -> list[str]: ...
    @property
    def states(self) -> dict[str, Any]: ...
    def __call__(self, *inputs: Any, **named: Any) -> Any: ...
    def set_state(self, name: str, value: Any) -> None: ...
    def reset(self) -> None: ...

@final
class Preprocessed:
    @property
    def data(self) -> bytes: ...
    @property
    def identifier(self) -> str: ...
    @property
    def specification_version(self) -> int: ...
    @property
    def debug_handle_map(self) -> Optional[dict[str, Sequence[int]]]: ...
    @property
    def key(self) -> str: ...
    @property
    def references(self) -> dict[str, bytes]: ...
