"""Tests of the package comparison: it must notice every kind of change, and nothing else."""

import json
import shutil
import struct
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import coremltools as ct
import numpy
import pytest
from coremltools.converters.mil import Builder as mb

from oracle.checkers.programs import Model, differences, loads_in_coremltools, read, unknown


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small package with weights, immediate constants including NaN, and metadata."""

    @mb.program(input_specs=[mb.TensorSpec(shape=(2, 16))], opset_version=ct.target.iOS16)
    def program(x: Any) -> Any:
        weight = numpy.arange(16 * 16, dtype=numpy.float32).reshape(16, 16)
        rows = mb.linear(x=x, weight=weight, bias=numpy.ones(16, numpy.float32), name="rows")
        limits = numpy.array([numpy.nan, -0.0], numpy.float32).reshape(2, 1)
        return mb.softmax(x=mb.maximum(x=rows, y=limits, name="limited"), axis=-1, name="shares")

    model = ct.convert(
        program,
        minimum_deployment_target=ct.target.iOS16,
        compute_precision=ct.precision.FLOAT32,
        skip_model_load=True,
    )
    model.author = "somebody"
    model.user_defined_metadata["com.example.note"] = "kept"
    path = tmp_path_factory.mktemp("judge") / "original.mlpackage"
    model.save(str(path))
    return path


def model_file(package: Path) -> Path:
    return package / "Data" / "com.apple.CoreML" / "model.mlmodel"


def weight_file(package: Path) -> Path:
    return package / "Data" / "com.apple.CoreML" / "weights" / "weight.bin"


def changed(original: Path, folder: Path, change: Callable[[Any], None]) -> Path:
    """A copy of the package with a changed model."""
    copy = folder / "copy.mlpackage"
    shutil.copytree(original, copy)
    model = read(copy).model
    change(model)
    model_file(copy).write_bytes(model.SerializeToString())
    return copy


def operations(model: Any) -> Any:
    """The operations of the main function."""
    (block,) = model.mlProgram.functions["main"].block_specializations.values()
    return block.operations


def operation(model: Any, kind: str) -> Any:
    """The first operation of a type."""
    return next(operation for operation in operations(model) if operation.type == kind)


def constant(model: Any, kind: str) -> Any:
    """The tensor of the first immediate constant of a type."""
    for candidate in operations(model):
        tensor = candidate.attributes["val"].immediateValue.tensor if "val" in candidate.attributes else None
        if tensor is not None and tensor.WhichOneof("value") == kind:
            return tensor
    raise AssertionError(f"no constant of {kind}")


def change_integer(model: Any) -> None:
    constant(model, "ints").ints.values[0] = 0


def change_sign_of_zero(model: Any) -> None:
    constant(model, "floats").floats.values[1] = 0.0


def rename_operation(model: Any) -> None:
    name = operation(model, "softmax").attributes["name"]
    name.immediateValue.tensor.strings.values[0] = "shares_too"


def rename_value(model: Any) -> None:
    operation(model, "maximum").outputs[0].name = "unlimited"
    operation(model, "softmax").inputs["x"].arguments[0].name = "unlimited"


def drop_metadata(model: Any) -> None:
    del model.description.metadata.userDefined["com.example.note"]


def change_author(model: Any) -> None:
    model.description.metadata.author = "somebody else"


def change_shape(model: Any) -> None:
    model.description.input[0].type.multiArrayType.shape[0] = 3


def change_version(model: Any) -> None:
    model.specificationVersion += 1


def drop_operation(model: Any) -> None:
    del operations(model)[-1]


def swap_operations(model: Any) -> None:
    listed = operations(model)
    first, second = (type(listed[0]).FromString(one.SerializeToString()) for one in listed[:2])
    listed[0].CopyFrom(second)
    listed[1].CopyFrom(first)


def set_an_empty_message(model: Any) -> None:
    model.description.input[0].type.multiArrayType.shapeRange.SetInParent()


def add_unknown_field(model: Any) -> None:
    # Field 900 of type varint, which the schema lacks.
    operation(model, "linear").MergeFromString(bytes([0xA0, 0x38, 7]))


DAMAGES = [
    change_integer,
    change_sign_of_zero,
    rename_operation,
    rename_value,
    drop_metadata,
    change_author,
    change_shape,
    change_version,
    drop_operation,
    swap_operations,
    set_an_empty_message,
    add_unknown_field,
]
DESCRIPTION_DAMAGES = [drop_metadata, change_author, change_shape, change_version, set_an_empty_message]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_detects_model_change_in_both_directions(original: Path, tmp_path: Path, damage: Callable[[Any], None]) -> None:
    copy = changed(original, tmp_path, damage)
    assert differences(original, copy)
    assert differences(copy, original)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_program_only_ignores_description_changes(original: Path, tmp_path: Path, damage: Callable[[Any], None]) -> None:
    """With `program_only`, only descriptions may differ."""
    found = differences(original, changed(original, tmp_path, damage), program_only=True)
    assert bool(found) == (damage not in DESCRIPTION_DAMAGES)


def test_reports_unknown_protobuf_fields() -> None:
    """`add_unknown_field` adds the same bytes."""
    model = Model()
    model.MergeFromString(bytes([0xA0, 0x38, 7]))
    assert unknown(model) == [(900, 0, 7)]


@pytest.mark.parametrize("position", [0, 1023])
def test_detects_flipped_weight_bit(original: Path, tmp_path: Path, position: int) -> None:
    """A flipped bit in the first or last weight is noticed."""
    copy = changed(original, tmp_path, lambda model: None)
    content = bytearray(weight_file(copy).read_bytes())
    offset = weight_offset(read(copy).model)
    content[offset + 64 + position] ^= 1
    weight_file(copy).write_bytes(content)
    (difference,) = differences(original, copy)
    assert f"the weights differ from byte {position} on" in difference


def weight_offset(model: Any) -> int:
    """The offset of the large weight."""
    values = (operation.attributes["val"] for operation in operations(model) if "val" in operation.attributes)
    blobs = [value for value in values if value.WhichOneof("value") == "blobFileValue"]
    return next(
        value.blobFileValue.offset
        for value in blobs
        if [dimension.constant.size for dimension in value.type.tensorType.dimensions] == [16, 16]
    )


def test_detects_changed_weight_storage_type(original: Path, tmp_path: Path) -> None:
    """A changed element type of a weight's entry is noticed."""
    copy = changed(original, tmp_path, lambda model: None)
    content = bytearray(weight_file(copy).read_bytes())
    struct.pack_into("<I", content, weight_offset(read(copy).model) + 4, 14)
    weight_file(copy).write_bytes(content)
    (difference,) = differences(original, copy)
    assert "storage type and padding" in difference


def test_ignores_weight_file_name_and_offset(original: Path, tmp_path: Path) -> None:
    """Equal weights in another file and at another offset are equal."""

    def point(model: Any) -> None:
        for one in operations(model):
            value = one.attributes.get("val", None)
            if value is not None and value.WhichOneof("value") == "blobFileValue":
                value.blobFileValue.fileName = "@model_path/weights/other.bin"
                value.blobFileValue.offset += 128

    copy = changed(original, tmp_path, point)
    old = weight_file(copy).read_bytes()
    # Each entry contains the offset of its data, which changes, too.
    moved = bytearray(old[:64] + bytes(128) + old[64:])
    for offset in range(192, len(moved), 64):
        sentinel, start = struct.unpack_from("<I12xQ", moved, offset) if offset + 24 <= len(moved) else (0, 0)
        if sentinel == 0xDEADBEEF:
            struct.pack_into("<Q", moved, offset + 16, start + 128)
    weight_file(copy).rename(weight_file(copy).with_name("other.bin"))
    weight_file(copy).with_name("other.bin").write_bytes(moved)
    assert differences(original, copy) == []


def test_ignores_manifest_identifiers_and_map_order(original: Path, tmp_path: Path) -> None:
    copy = changed(original, tmp_path, lambda model: None)
    manifest = json.loads((copy / "Manifest.json").read_text())
    renamed = {identifier: str(uuid.UUID(int=i)) for i, identifier in enumerate(manifest["itemInfoEntries"])}
    manifest["itemInfoEntries"] = {renamed[key]: item for key, item in manifest["itemInfoEntries"].items()}
    manifest["rootModelIdentifier"] = renamed[manifest["rootModelIdentifier"]]
    (copy / "Manifest.json").write_text(json.dumps(manifest))
    model_file(copy).write_bytes(read(copy).model.SerializeToString(deterministic=True))
    assert differences(original, copy) == []


def wrong_output_type(model: Any) -> None:
    operation(model, "linear").outputs[0].type.tensorType.dimensions[0].constant.size = 5


def undefined_operand(model: Any) -> None:
    operation(model, "softmax").inputs["x"].arguments[0].name = "nobody"


def unknown_operation(model: Any) -> None:
    operation(model, "softmax").type = "softmaxx"


def too_new(model: Any) -> None:
    # Attention needs iOS18, and this program targets iOS16.
    operation(model, "softmax").type = "scaled_dot_product_attention"


@pytest.mark.parametrize("damage", [wrong_output_type, undefined_operand, unknown_operation, too_new])
def test_coremltools_rejects_invalid_program(original: Path, tmp_path: Path, damage: Callable[[Any], None]) -> None:
    """coremltools refuses wrong types and names."""
    assert loads_in_coremltools(changed(original, tmp_path, damage))


def test_coremltools_rejects_missing_weights(original: Path, tmp_path: Path) -> None:
    copy = changed(original, tmp_path, lambda model: None)
    weight_file(copy).unlink()
    assert loads_in_coremltools(copy)


def test_coremltools_accepts_unchanged_package(original: Path, tmp_path: Path) -> None:
    assert loads_in_coremltools(changed(original, tmp_path, lambda model: None)) == []
