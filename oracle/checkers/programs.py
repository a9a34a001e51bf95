"""Compares Core ML packages, and checks that coremltools loads a package.

The comparison reads the packages independently, including unknown fields, so that it cannot share a mistake with the
code under test. Protobuf maps are unordered; everything else is exact. Weights are compared by content, in whatever
file and offset they are stored.
"""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import coremltools as ct
from coremltools.converters.mil.frontend.milproto import load as milproto
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

Model = ct.proto.Model_pb2.Model

SENTINEL = 0xDEADBEEF
#: Maximum number of reported differences; one wrong weight file causes thousands.
MOST = 20


class Package(NamedTuple):
    """A package on disk: its model, and the folder that paths of weight files are relative to."""

    model: Message
    folder: Path


class Weights(NamedTuple):
    """One entry of a weight file."""

    kind: int
    padding_bits: int
    content: bytes


def read(path: Path) -> Package:
    """The package at `path`, found through its manifest."""
    manifest = json.loads((path / "Manifest.json").read_text())
    root = manifest["itemInfoEntries"][manifest["rootModelIdentifier"]]
    file = path / "Data" / root["path"]
    model = Model()
    model.ParseFromString(file.read_bytes())
    return Package(model, file.parent)


def read_weights(folder: Path, name: str, offset: int) -> Weights:
    """Reads the entry of a weight file. The format is version 2 of MILBlob's storage."""
    file = folder / name.removeprefix("@model_path/")
    with file.open("rb") as stream:
        _, version = struct.unpack("<II", stream.read(8))
        assert version == 2, f"{file}: the storage has version {version}, not 2"
        stream.seek(offset)
        sentinel, kind, size, start, padding = struct.unpack("<IIQQQ", stream.read(32))
        assert sentinel == SENTINEL, f"{file}: there is no entry at {offset}"
        assert offset % 64 == 0 and start == offset + 64, f"{file}: the entry at {offset} starts at {start}"
        stream.seek(start)
        content = stream.read(size)
        assert len(content) == size, f"{file}: the entry at {offset} is truncated"
    return Weights(kind, padding, content)


def differences(left: Path, right: Path, program_only: bool = False) -> list[str]:
    """The first differences of the packages; empty if they are equal.

    With `program_only`, descriptions and metadata are ignored.
    """
    first, second = read(left), read(right)
    if program_only:
        found = compare(first.model.mlProgram, second.model.mlProgram, first.folder, second.folder, "mlProgram")
    else:
        found = compare(first.model, second.model, first.folder, second.folder, "model")
    return [difference for difference, _ in zip(found, range(MOST), strict=False)]


def compare(left: Message, right: Message, left_folder: Path, right_folder: Path, where: str) -> Iterator[str]:
    """The differences between two messages of one type."""
    kind = left.DESCRIPTOR.full_name.rsplit(".", 1)[-1]
    if kind == "BlobFileValue":
        yield from compare_weights(left, right, left_folder, right_folder, where)
        return
    for field in left.DESCRIPTOR.fields:
        place = f"{where}.{field.name}"
        if field.is_repeated:
            yield from compare_many(field, left, right, left_folder, right_folder, place)
        elif field.has_presence and left.HasField(field.name) != right.HasField(field.name):
            yield f"{place}: only the {'first' if left.HasField(field.name) else 'second'} has it"
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            if left.HasField(field.name):
                ours, theirs = getattr(left, field.name), getattr(right, field.name)
                yield from compare(ours, theirs, left_folder, right_folder, place)
        else:
            yield from compare_plain(field, getattr(left, field.name), getattr(right, field.name), place)
    if unknown(left) != unknown(right):
        yield f"{where}: unknown fields {unknown(left)} != {unknown(right)}"


def compare_weights(left: Message, right: Message, left_folder: Path, right_folder: Path, where: str) -> Iterator[str]:
    """Compares weights by content."""
    ours = read_weights(left_folder, left.fileName, left.offset)
    theirs = read_weights(right_folder, right.fileName, right.offset)
    if ours[:2] != theirs[:2]:
        yield f"{where}: storage type and padding {ours[:2]} != {theirs[:2]}"
    elif len(ours.content) != len(theirs.content):
        yield f"{where}: {len(ours.content)} bytes != {len(theirs.content)} bytes"
    elif ours.content != theirs.content:
        first = next(i for i, (a, b) in enumerate(zip(ours.content, theirs.content, strict=True)) if a != b)
        yield f"{where}: the weights differ from byte {first} on"


def compare_many(
    field: FieldDescriptor, left: Message, right: Message, left_folder: Path, right_folder: Path, where: str
) -> Iterator[str]:
    """Compares maps by key, other repeated fields in order."""
    ours, theirs = getattr(left, field.name), getattr(right, field.name)
    nested = field.type == FieldDescriptor.TYPE_MESSAGE
    if nested and field.message_type.GetOptions().map_entry:
        value = field.message_type.fields_by_name["value"]
        for key in sorted(set(ours) ^ set(theirs)):
            yield f"{where}[{key!r}]: only the {'first' if key in ours else 'second'} has it"
        pairs = [(f"{where}[{key!r}]", value, ours[key], theirs[key]) for key in sorted(set(ours) & set(theirs))]
    else:
        if len(ours) != len(theirs):
            yield f"{where}: {len(ours)} != {len(theirs)} elements"
        if not nested and exact(field, ours) == exact(field, theirs):
            return
        pairs = [(f"{where}[{i}]", field, a, b) for i, (a, b) in enumerate(zip(ours, theirs, strict=False))]
    for place, kind, a, b in pairs:
        if kind.type == FieldDescriptor.TYPE_MESSAGE:
            yield from compare(a, b, left_folder, right_folder, place)
        else:
            yield from compare_plain(kind, a, b, place)


def compare_plain(field: FieldDescriptor, left: Any, right: Any, where: str) -> Iterator[str]:
    """Compares numbers, strings and bytes; floats by their bits, since NaN is not equal to itself."""
    if exact(field, [left]) != exact(field, [right]):
        yield f"{where}: {left!r} != {right!r}"


def exact(field: FieldDescriptor, values: Any) -> Any:
    """A representation that is equal only for equal values."""
    if field.type == FieldDescriptor.TYPE_FLOAT:
        return struct.pack(f"<{len(values)}f", *values)
    if field.type == FieldDescriptor.TYPE_DOUBLE:
        return struct.pack(f"<{len(values)}d", *values)
    return list(values)


def unknown(message: Message) -> list[tuple[int, int, Any]]:
    """The fields of a message that its schema lacks."""

    def plain(data: Any) -> Any:
        return (
            [(f.field_number, f.wire_type, plain(f.data)) for f in data] if isinstance(data, UnknownFieldSet) else data
        )

    return plain(UnknownFieldSet(message))


def loads_in_coremltools(path: Path) -> list[str]:
    """The errors of coremltools' reader, which infers every type again and compares it."""
    errors = []
    try:
        ct.models.MLModel(str(path), skip_model_load=True)
    except Exception as error:  # Every exception is a result here.
        errors.append(f"MLModel: {type(error).__name__}: {error}")
    try:
        package = read(path)
        version = package.model.specificationVersion
        loaded = milproto.load(package.model, version, str(package.folder / "weights"))
        loaded.validate()
    except Exception as error:  # As above.
        errors.append(f"milproto: {where(error)}{type(error).__name__}: {error}")
    return errors


def where(error: Exception) -> str:
    """The operation that the reader was processing, which its errors do not name."""
    trace, operation = error.__traceback__, None
    while trace is not None:
        operation = trace.tb_frame.f_locals.get("op_spec", operation)
        trace = trace.tb_next
    if operation is None or not operation.outputs:
        return ""
    return f"{operation.type} `{operation.outputs[0].name}`: "
