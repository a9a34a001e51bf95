"""`convert`, `lower` and `quantize` with their options spelled out."""

from __future__ import annotations

import os

from coremill import _native
from coremill._verify import BOUND, agrees_with_torch, torch_example

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, Literal, Union

    from coremill._reports import Quantization

    Path = Union[str, "os.PathLike[str]"]
    Names = Union[str, Sequence[str], None]
    Shape = Sequence[int]
    Constant = Union[bool, int, float, str]
    Samples = Union[Path, Sequence[Union[Path, Mapping[str, Any]]]]


def convert(
    program: Any,
    *,
    target: Any = None,
    precision: Literal["fp16", "fp32", "auto"] = "fp16",
    samples: Samples = (),
    fp32_ops: Names = None,
    fp32_modules: Names = None,
    fp32_values: Names = None,
    shapes: dict[str, Shape | Sequence[Shape]] | None = None,
    states: Literal["keep", "io"] = "keep",
    input_names: Names = None,
    output_names: Names = None,
    images: dict[str, Any] | None = None,
    types: dict[str, str] | None = None,
    labels: Any = None,
    scores: str | None = None,
    label_name: str | None = None,
    descriptions: dict[str, str] | None = None,
    decompose_sdpa: bool = False,
    skip_passes: Names = None,
    quantization: str | dict[str, Any] | None = None,
    author: str | None = None,
    license: str | None = None,
    description: str | None = None,
    model_version: str | None = None,
    metadata: dict[str, str] | None = None,
    verify: bool | float = False,
    numerics: Literal["rounded", "ane", "coreml-cpu", "fast"] = "rounded",
    **unknown: Any,
) -> _native.Model:
    """Converts a PyTorch program to a Core ML model.

    Args:
        program: a `torch.export.ExportedProgram`, the path of a `.pt2` archive, or a dictionary of these by the name of a
            function: they become the functions of one model, which share weights; the first is the default.
        target: the oldest release that must run the model, `"ios18"` or `coremltools.target.iOS18`; the oldest that can if left out.
        precision: `"fp16"`, `"fp32"`, or `"auto"`: fp16 except for the fewest operations that samples show to need fp32.
        samples: for `precision="auto"`: dictionaries of arrays by input, `.npz` files, or folders; the example inputs if left out.
        fp32_ops: MIL operations that compute in fp32 all the same: `["softmax", "reduce_mean"]`.
        fp32_modules: modules, by path, that compute in fp32 all the same: `"encoder.layers.0"`.
        fp32_values: values whose operations compute in fp32 all the same, by the names that `compare(..., per_op=True)` shows.
        shapes: the shapes that an input may have: `{"x": [[1, 3, 224, 224], [1, 3, 448, 448]]}`.
        states: `"keep"`: buffers that the program writes to become states, from iOS 18 on; `"io"`: inputs and outputs.
        input_names: names for the inputs, in the program's order.
        output_names: names for the outputs, in the program's order.
        images: inputs and outputs that are images: `{"x": {"layout": "rgb", "scale": 1 / 255, "bias": [-1, -1, -1]}}`.
        types: the element types of inputs and outputs: `fp16`, `fp32`, `int32` or `int8`.
        labels: class labels, or a file with one a line: the model becomes a classifier.
        scores: the output with the scores of a classifier; the last one of floats if left out.
        label_name: name of the output with the label; `classLabel` if left out.
        descriptions: texts for people, by input or output.
        decompose_sdpa: write attention out where Core ML has an operation for it.
        skip_passes: passes to leave out, by name.
        quantization: weights as integers: the fields of coremltools' `OpLinearQuantizerConfig`, `{"dtype": "int8"}`.
        author: the author in the metadata.
        license: the license in the metadata.
        description: the description in the metadata.
        model_version: the version in the metadata.
        metadata: notes in the metadata, by key.
        verify: `True`, or the largest error in parts of an output's largest element: run the model on the program's example inputs
            and compare it with torch; or with the program in fp32, for a path and for programs with buffers or random numbers.
        numerics: the arithmetic in which `verify` and `precision="auto"` run fp16 operations: `"rounded"` to fp16, `"ane"` as on
            the Neural Engine, `"coreml-cpu"` as Core ML computes on the CPU.

    Raises:
        ConversionError: calls cannot be lowered; `refused` lists them.
        VerificationError: the results of `verify` or of `precision="auto"` are too far off.
        OptionError: an option is invalid, or unknown.
    """
    edits = unknown.pop("edits", None)
    if edits is None and any(part is not None for part in (images, types, labels, descriptions)):
        import json

        from coremill._edit import interface_edits

        edits = json.dumps(interface_edits(images, types, labels, scores, label_name, descriptions))

    def converted(paths: Sequence[str], verify: bool | float) -> _native.Model:
        return _native.convert(
            program,
            edits=edits,
            target=target,
            precision=precision,
            samples=paths,
            fp32_ops=fp32_ops,
            fp32_modules=fp32_modules,
            fp32_values=fp32_values,
            shapes=shapes,
            states=states,
            input_names=input_names,
            output_names=output_names,
            decompose_sdpa=decompose_sdpa,
            skip_passes=skip_passes,
            quantization=quantization,
            author=author,
            license=license,
            description=description,
            model_version=model_version,
            metadata=metadata,
            verify=verify,
            numerics=numerics,
            **unknown,
        )

    # A comparison with torch finds errors that the model and its fp32 version share.
    is_bound = isinstance(verify, (bool, int, float)) and verify > 0
    example = torch_example(program) if is_bound and quantization is None and edits is None else None
    with _Files(samples) as paths:
        if example is None:
            return converted(paths, verify)
        model = converted(paths, False)
        bound = BOUND if verify is True else float(verify)
        return model if agrees_with_torch(model, example, bound, numerics) else converted(paths, verify)


def lower(
    programs: Any,
    *,
    target: Any = None,
    precision: Literal["fp16", "fp32", "auto"] = "fp16",
    samples: Samples = (),
    fp32_ops: Names = None,
    fp32_modules: Names = None,
    fp32_values: Names = None,
    shapes: dict[str, Shape | Sequence[Shape]] | None = None,
    decompose_sdpa: bool = False,
    skip_passes: Names = None,
    quantization: str | dict[str, Any] | None = None,
    skip_ops: Names = None,
    full_graph: bool = False,
    portable: bool = False,
    take_over_constant_data: bool = True,
    take_over_mutable_buffer: bool = True,
    debug_info: bool = True,
    weight_sharing: Literal["positional", "disabled"] | None = None,
    constant_methods: dict[str, Constant] | None = None,
    compiled: bool = False,
    compile_specs: Any = None,
    **unknown: Any,
) -> _native.Program:
    """Lowers a PyTorch program to an ExecuTorch program with Core ML delegates.

    Args:
        programs: a `torch.export.ExportedProgram`, the path of a `.pt2` archive, or a dictionary of these by the name of a method.
        target: the oldest release that must run the models, `"ios18"` for instance; the oldest that can if left out.
        precision: `"fp16"`, `"fp32"`, or `"auto"`: fp16 except for the fewest operations that samples show to need fp32.
        samples: for `precision="auto"`: dictionaries of arrays by input, `.npz` files, or folders; the example inputs if left out.
        fp32_ops: MIL operations that compute in fp32 all the same.
        fp32_modules: modules, by path, that compute in fp32 all the same.
        fp32_values: values whose operations compute in fp32 all the same, by name.
        shapes: the shapes that an input may have; only with `full_graph`.
        decompose_sdpa: write attention out where Core ML has an operation for it.
        skip_passes: passes to leave out, by name.
        quantization: weights as integers: the fields of coremltools' `OpLinearQuantizerConfig`.
        skip_ops: operators that stay outside Core ML: `"aten.mm.default"`.
        full_graph: refuse programs of which Core ML cannot run all.
        portable: delegate nothing: ExecuTorch's portable kernels run the program.
        take_over_constant_data: weights become part of the models; otherwise they are inputs.
        take_over_mutable_buffer: buffers that the program writes to become states, from iOS 18 on.
        debug_info: include the source call of each operation, for profilers.
        weight_sharing: `"positional"`: methods share weights; `"disabled"`: each has its own.
        constant_methods: methods that return a constant, by name.
        compiled: write compiled models instead of packages.
        compile_specs: compile specs of ExecuTorch's Core ML backend, which replace the options they are for.

    Raises:
        ConversionError: calls have neither a Core ML operation nor a kernel; `refused` lists them.
        OptionError: an option is invalid, or unknown.
    """
    with _Files(samples) as paths:
        return _native.lower(
            programs,
            target=target,
            precision=precision,
            samples=paths,
            fp32_ops=fp32_ops,
            fp32_modules=fp32_modules,
            fp32_values=fp32_values,
            shapes=shapes,
            decompose_sdpa=decompose_sdpa,
            skip_passes=skip_passes,
            quantization=quantization,
            skip_ops=skip_ops,
            full_graph=full_graph,
            portable=portable,
            take_over_constant_data=take_over_constant_data,
            take_over_mutable_buffer=take_over_mutable_buffer,
            debug_info=debug_info,
            weight_sharing=weight_sharing,
            constant_methods=constant_methods,
            compiled=compiled,
            compile_specs=compile_specs,
            **unknown,
        )


def quantize(
    program: Any,
    recipe: str,
    samples: Any = (),
    *,
    output: Literal["model", "program"] = "model",
    observer: Literal["min-max", "moving-average", "percentile", "entropy", "mse"] | None = None,
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    group_size: int | None = None,
    bits: int | None = None,
    block: tuple[int, int] | None = None,
    keep: Names = None,
    keep_ops: Names = None,
    min_elements: int | None = None,
    rules: Path | Sequence[dict[str, Any]] | None = None,
    keep_worst: int | None = None,
    effort: int | None = None,
    **options: Any,
) -> tuple[Any, Quantization]:
    """Quantizes a program after training. Returns the model or ExecuTorch program, and a report of the error of each layer.

    Args:
        program: a `torch.export.ExportedProgram`, or the path of a `.pt2` archive.
        recipe: `"fp32"`, `"fp16"`, `"int8-static"`, `"int8-weight-only"`, `"int4-per-group"`, `"int4-per-channel"`,
            `"int8-per-channel"`, `"int8-per-group"`, or `"codebook"`.
        samples: inputs, each a dictionary of arrays by name, arrays in the order of the inputs, the array of the only input, or a
            path: a `.npz` file, or a folder of such files or of images.
        output: `"model"` for a Core ML model, `"program"` for an ExecuTorch program.
        observer: the method that chooses the ranges of activations.
        mean: subtracted from the pixels of images, which are 0 to 1: a number, or one for each channel.
        std: divides the pixels of images: a number, or one for each channel.
        group_size: the number of weights that share a scale, in recipes per group.
        bits: the number of bits of a codebook's indices.
        block: rows and columns that share a codebook, -1 for all.
        keep: names of layers to leave unquantized.
        keep_ops: MIL operations to leave unquantized.
        min_elements: the smallest weight to quantize, in elements.
        rules: recipes for some of the layers: a TOML file, or dictionaries of the same words.
        keep_worst: the number of layers with the largest error to leave unquantized.
        effort: 0 to 2; higher values search longer for good roundings.
        options: further options of `convert`, or of `lower` with `output="program"`.

    Raises:
        ConversionError: calls cannot be lowered; `refused` lists them.
        OptionError: an option or a sample is invalid.
    """
    import json

    from coremill._reports import Quantization

    made, report = _native.quantize(
        program,
        recipe,
        samples,
        output=output,
        observer=observer,
        mean=mean,
        std=std,
        group_size=group_size,
        bits=bits,
        block=block,
        keep=keep,
        keep_ops=keep_ops,
        min_elements=min_elements,
        rules=rules,
        keep_worst=keep_worst,
        effort=effort,
        **options,
    )
    return made, Quantization(json.loads(report))


class _Files:
    """Samples as files: arrays are written to files that are removed afterwards."""

    def __init__(self, samples: Any) -> None:
        self._samples = samples
        self._folder: Any = None

    def __enter__(self) -> Any:
        samples = self._samples
        if isinstance(samples, dict):
            from coremill._errors import OptionError

            raise OptionError("`samples` is one sample; expected a list of them", hint="pass `samples=[sample]`")
        if samples is None or isinstance(samples, (str, os.PathLike)):
            return samples
        try:
            samples = list(samples)
        except TypeError:
            return samples
        return [self._written(sample, at) if isinstance(sample, dict) else sample for at, sample in enumerate(samples)]

    def __exit__(self, *_: object) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def _written(self, sample: dict, at: int) -> str:
        import tempfile

        import numpy

        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="coremill-samples-")
        path = os.path.join(self._folder.name, f"{at:06}.npz")
        try:
            arrays = {name: _array(value) for name, value in sample.items()}
            numpy.savez(path, allow_pickle=False, **arrays)
        except (TypeError, ValueError) as failure:
            from coremill._errors import OptionError

            raise OptionError(f"sample {at} must map input names to arrays: {failure}") from None
        return path


def _array(value: Any) -> Any:
    import numpy

    return numpy.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
