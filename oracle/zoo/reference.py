"""Outputs of eager torch for each package: the reference for every runtime of packages.

They are stored next to `NAME.mlpackage` in `NAME.reference.npz`, or in `NAME.FUNCTION.reference.npz` for each of
several functions. The calls 0, 1, ... have the arrays `CALL/inputs/INPUT` and `CALL/outputs/OUTPUT`. If the package
has a state, the calls follow one another on it; otherwise they are independent, and have different shapes if the
package allows that. torch computes in fp32 with the package's weights: compressed weights are decompressed by
coremltools and loaded into the module.

References that could not tell right from wrong are refused: outputs that are not finite, that hardly vary, or that
are nearly the same for different inputs.
"""

from pathlib import Path
from typing import Any

import coremltools as ct
import numpy
import torch
from torch import nn
from torch.fx.experimental.optimization import fuse

from oracle.support.distance import distance

from .entry import Call, Source, varied
from .weights import BATCH_NORMS

#: Minimum variation of outputs within themselves and between calls, relative to their largest magnitude: well above
#: the tolerance of fp16 programs, 1e-2.
LEAST_SPREAD = 0.03
LEAST_DIFFERENCE = 0.05
#: Smaller weights are never compressed; see `steps`.
COMPRESSIBLE = 512

KINDS = {
    "FLOAT16": numpy.float16,
    "FLOAT32": numpy.float32,
    "INT32": numpy.int32,
    "INT8": numpy.int8,
}


def like(example: torch.Tensor) -> torch.Tensor:
    """A random tensor of the same type: integers from the same range, floats unrestricted."""
    if example.is_floating_point():
        return varied(*example.shape)
    low, high = int(example.min()), int(example.max())
    return torch.randint(low, high + 1, example.shape, dtype=example.dtype)


def calls_of(source: Source) -> list[Call]:
    """The calls of an entry, or two calls similar to its example."""
    if source.calls is not None:
        return source.calls()
    given = source.arguments.get("inputs", [None] * len(source.example))
    pairs = list(zip(source.example, given, strict=True))
    return [
        tuple(pixels(one, brightness) if isinstance(kind, ct.ImageType) else like(one) for one, kind in pairs)
        for brightness in (50, 200)
    ]


def pixels(example: torch.Tensor, brightness: float) -> torch.Tensor:
    """An image of 8-bit integers."""
    return (varied(*example.shape) * 30 + brightness).clamp(0, 255).round()


class Reference:
    """The module before its conversion, and the calls."""

    def __init__(self, source: Source, calls: list[Call]) -> None:
        self.module = source.module
        self.calls = calls
        # Tracing runs a module and changes its states.
        self.initial = {name: tensor.clone() for name, tensor in source.module.state_dict().items()}
        config = source.arguments.get("classifier_config")
        self.labels = config.class_labels if config else None
        self.preprocess = [scaling(one) for one in source.arguments.get("inputs", [])]

    def write(self, model: ct.models.MLModel, path: Path, function: str) -> None:
        """Computes the outputs of a function with the package's weights, and writes all calls."""
        found = model.get_spec().mlProgram.functions[function]
        (block,) = found.block_specializations.values()
        kinds = {one.name: KINDS[data_type(one)] for one in found.inputs if is_tensor(one)}
        for name, tensor in self.module.state_dict().items():
            tensor.copy_(self.initial[name])
        outputs = list(block.outputs)
        if self.labels:
            # A classifier's package returns the most likely class, then the probability of each label.
            label, scores = outputs
            outputs = [label, f"{scores}.labels", f"{scores}.scores"]
        arrays: dict[str, numpy.ndarray] = {}
        results: list[list[numpy.ndarray]] = []
        with torch.no_grad():
            if weights := compressed_weights(model, function):
                # coremltools folds batch norms into the convolutions before it compresses them.
                self.module = folded(self.module)
                load_weights(self.module, weights)
            for index, call in enumerate(self.calls):
                stored = [one.numpy().astype(kind) for one, kind in zip(call, kinds.values(), strict=True)]
                arrays |= {f"{index}/inputs/{name}": one for name, one in zip(kinds, stored, strict=True)}
                results.append(self.run(call, stored))
                named = zip(outputs, results[-1], strict=True)
                arrays |= {f"{index}/outputs/{name}": one for name, one in named}
        refuse_dull(outputs, results)
        numpy.savez(path, **arrays)

    def run(self, call: Call, stored: list[numpy.ndarray]) -> list[numpy.ndarray]:
        """Runs one call, with inputs rounded to the package's precision."""
        given = [torch.from_numpy(one).to(was.dtype) for one, was in zip(stored, call, strict=True)]
        for position, (scale, bias) in enumerate(self.preprocess):
            if given[position].is_floating_point():
                given[position] = given[position] * scale + bias
        found = self.module(*given)
        found = [one.clone().numpy() for one in (found if isinstance(found, tuple) else (found,))]
        if self.labels:
            (scores,) = found
            found = [numpy.array(self.labels[scores.argmax()]), numpy.array(self.labels), scores.flatten()]
        return found


def scaling(given: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The scale and bias that a package applies to an image input."""
    if not isinstance(given, ct.ImageType):
        return torch.tensor(1), torch.tensor(0)
    bias = torch.tensor(given.bias, dtype=torch.float32)
    return torch.tensor(given.scale), bias.reshape(-1, 1, 1)


def is_tensor(one: Any) -> bool:
    """Whether it is an input and not a state."""
    return one.type.WhichOneof("type") == "tensorType"


def data_type(one: Any) -> str:
    """The name of an input's type."""
    return ct.proto.MIL_pb2.DataType.Name(one.type.tensorType.dataType)


def compressed_weights(model: ct.models.MLModel, function: str) -> dict[str, torch.Tensor]:
    """The compressed weights of a package as coremltools decompresses them, by name."""
    import coremltools.optimize.coreml as compress

    (block,) = model.get_spec().mlProgram.functions[function].block_specializations.values()
    names = {operation.outputs[0].name for operation in block.operations if operation.type.startswith("constexpr_")}
    if not names:
        return {}
    used = {
        argument.name
        for operation in block.operations
        if not operation.type.startswith("constexpr_")
        for bound in operation.inputs.values()
        for argument in bound.arguments
    }
    found = compress.get_weights_metadata(compress.decompress_weights(model), weight_threshold=COMPRESSIBLE)
    return {name: torch.from_numpy(numpy.asarray(found[name].val, numpy.float32)) for name in sorted(names & used)}


def load_weights(module: nn.Module, weights: dict[str, torch.Tensor]) -> None:
    """Replaces the module's weights with the package's approximations of them.

    Conversion changes names, so each weight is matched with the most similar parameter of its shape.
    """
    tensors = dict(module.named_parameters()) | dict(module.named_buffers())
    # Equal tensors, such as tables of every layer, are one weight in the package.
    taken: dict[str, str] = {}
    values: dict[str, torch.Tensor] = {}
    for weight, value in weights.items():
        likeness = {
            name: similarity(tensor, value) for name, tensor in tensors.items() if sizes(tensor) == sizes(value)
        }
        best = max(likeness, key=likeness.__getitem__, default="")
        if likeness.get(best, 0.0) < 0.5 or best in taken:
            raise ValueError(
                f"no tensor of the module is like the weight `{weight}` of the package, of shape {tuple(value.shape)};"
                f" the nearest is `{best}`, which stands for `{taken.get(best)}`"
            )
        equal = [name for name in likeness if torch.equal(tensors[name], tensors[best])]
        taken |= dict.fromkeys(equal, weight)
        values |= dict.fromkeys(equal, value)
    for name, value in values.items():
        tensors[name].copy_(value.reshape(tensors[name].shape))


def folded(module: nn.Module) -> nn.Module:
    """The module with its batch norms folded into the preceding convolutions."""
    if any(isinstance(part, BATCH_NORMS) for part in module.modules()):
        return fuse(module.eval())
    return module


def sizes(tensor: torch.Tensor) -> list[int]:
    """The shape without dimensions of size 1, which the conversion adds and removes."""
    return [size for size in tensor.shape if size > 1]


def similarity(left: torch.Tensor, right: torch.Tensor) -> float:
    """The cosine similarity of two tensors."""
    return torch.nn.functional.cosine_similarity(left.flatten(), right.flatten(), dim=0).item()


def refuse_dull(names: list[str], results: list[list[numpy.ndarray]]) -> None:
    """Raises an error unless every output is finite and varies, and the outputs together vary between calls."""
    for position, name in enumerate(names):
        outputs = [result[position] for result in results]
        for one in outputs:
            if one.dtype.kind == "U":
                continue
            if not numpy.isfinite(one).all():
                raise ValueError(f"the output `{name}` is not finite")
            spread = float(one.std()) / max(float(numpy.abs(one).max()), 1e-30)
            if one.size > 1 and not spread > LEAST_SPREAD:
                raise ValueError(f"the output `{name}` hardly varies: {spread:.4f} of its largest magnitude")
    first = results[0]
    if not all(difference(first, second) > LEAST_DIFFERENCE for second in results[1:]):
        found = [f"{difference(first, second):.4f}" for second in results[1:]]
        raise ValueError(f"the outputs hardly depend on the inputs: {', '.join(found)}")
    if len(results) < 2:
        raise ValueError("one call cannot show that the outputs depend on the inputs")


def difference(left: list[numpy.ndarray], right: list[numpy.ndarray]) -> float:
    """The distance between the outputs of two calls; 1 if their shapes differ.

    Integer outputs count only if there are no others: a label is often the same.
    """
    pairs = list(zip(left, right, strict=True))
    if any(one.shape != other.shape for one, other in pairs):
        return 1.0
    pairs = [pair for pair in pairs if pair[0].dtype.kind == "f"] or pairs
    return min(distance(one.astype(float), other.astype(float), 1e-30) for one, other in pairs)
