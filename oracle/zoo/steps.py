"""Processing of packages after conversion: compression in every form, and metadata.

All steps map an `MLModel` to another. The operations that a compression writes depend on the target: older ones with
operands as attributes up to iOS17, newer ones from iOS18 on.
"""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import coremltools as ct
import coremltools.optimize.coreml as compress
from coremltools.libmilstoragepython import _BlobStorageReader, _BlobStorageWriter

Step = Callable[[ct.models.MLModel], ct.models.MLModel]


def configured(options: Any, only: tuple[str, ...] = ()) -> compress.OptimizationConfig:
    """The same options for every weight, or for the weights of some operation types."""
    if only:
        return compress.OptimizationConfig(op_type_configs=dict.fromkeys(only, options))
    return compress.OptimizationConfig(global_config=options)


def quantize(joint: bool = False, only: tuple[str, ...] = (), **options: Any) -> Step:
    """Linear quantization; `joint` also compresses weights that are compressed already."""
    config = configured(compress.OpLinearQuantizerConfig(weight_threshold=512, **options), only)
    return lambda model: compress.linear_quantize_weights(model, config, joint_compression=joint)


def palettize(joint: bool = False, only: tuple[str, ...] = (), **options: Any) -> Step:
    """Palettization; `joint` also compresses weights that are compressed already."""
    config = configured(compress.OpPalettizerConfig(weight_threshold=512, **options), only)
    return lambda model: compress.palettize_weights(model, config, joint_compression=joint)


def prune(joint: bool = False, **options: Any) -> Step:
    """Pruning by magnitude."""
    config = configured(compress.OpMagnitudePrunerConfig(weight_threshold=512, **options))
    return lambda model: compress.prune_weights(model, config, joint_compression=joint)


def prune_below(threshold: float) -> Step:
    """Pruning by a threshold."""
    options = compress.OpThresholdPrunerConfig(
        threshold=threshold, minimum_sparsity_percentile=0.1, weight_threshold=512
    )
    return lambda model: compress.prune_weights(model, configured(options))


def mixed(model: ct.models.MLModel) -> ct.models.MLModel:
    """Convolutions quantized, linear layers palettized."""
    convolutions = compress.OptimizationConfig(
        op_type_configs={"conv": compress.OpLinearQuantizerConfig(weight_threshold=512)}
    )
    linears = compress.OptimizationConfig(
        op_type_configs={"linear": compress.OpPalettizerConfig(nbits=4, weight_threshold=512)}
    )
    return compress.palettize_weights(compress.linear_quantize_weights(model, convolutions), linears)


def describe(model: ct.models.MLModel) -> ct.models.MLModel:
    """Adds all kinds of metadata."""
    model.author = "A. N. Author"
    model.license = "MIT OR Apache-2.0"
    model.version = "1.2.3-β"
    model.short_description = 'Says "what" it sees.\nIn two lines.'
    model.user_defined_metadata["com.example.note"] = "kept as it is, ünïcode included"
    model.user_defined_metadata["com.example.empty"] = ""
    spec = model.get_spec()
    for feature in [*spec.description.input, *spec.description.output]:
        feature.shortDescription = f"about {feature.name}"
    return ct.models.MLModel(spec, weights_dir=model.weights_dir, skip_model_load=True)


def half_edges(model: ct.models.MLModel) -> ct.models.MLModel:
    """Changes inputs and outputs from fp32 to fp16."""
    return ct.models.utils.change_input_output_tensor_type(
        model,
        from_type=ct.proto.FeatureTypes_pb2.ArrayFeatureType.FLOAT32,
        to_type=ct.proto.FeatureTypes_pb2.ArrayFeatureType.FLOAT16,
        function_names=["main"],
        input_names=["*"],
        output_names=["*"],
    )


def rename(model: ct.models.MLModel) -> ct.models.MLModel:
    """Renames a feature."""
    spec = model.get_spec()
    ct.utils.rename_feature(spec, spec.description.input[0].name, "picture", rename_outputs=False)
    return ct.models.MLModel(spec, weights_dir=model.weights_dir, skip_model_load=True)


def split_weights(model: ct.models.MLModel) -> ct.models.MLModel:
    """Splits the weights into three files, which the format allows, although coremltools never does. fp16 only."""
    spec = model.get_spec()
    reader = _BlobStorageReader(str(Path(model.weights_dir) / "weight.bin"))
    with tempfile.TemporaryDirectory() as folder:
        names = ["weight.bin", "second.bin", "third.bin"]
        writers = [_BlobStorageWriter(str(Path(folder) / name)) for name in names]
        for position, reference in enumerate(file_references(spec)):
            content = reader.read_fp16_data(reference.offset)
            reference.fileName = f"@model_path/weights/{names[position % 3]}"
            reference.offset = writers[position % 3].write_fp16_data(content)
        # A file is complete only after its writer is deleted.
        writers.clear()
        return ct.models.MLModel(spec, weights_dir=folder, skip_model_load=True)


def file_references(spec: Any) -> Iterator[Any]:
    """Every constant of the main function that is stored in a weight file."""
    (block,) = spec.mlProgram.functions["main"].block_specializations.values()
    for operation in block.operations:
        value = operation.attributes.get("val", None)
        if value is not None and value.WhichOneof("value") == "blobFileValue":
            yield value.blobFileValue
