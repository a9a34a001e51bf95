"""Readers and writers of weight files, under coremltools' names. Scripts read weights of packages with them, on any system."""

from __future__ import annotations

import os
import struct

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

#: By name in the methods: numpy's type, the code in files, and the bits of an element if these are fewer than numpy's.
_TYPES = {
    "fp16": ("<u2", 1, None),
    "float": ("<f4", 2, None),
    "uint8": ("u1", 3, None),
    "int8": ("i1", 4, None),
    "int16": ("<i2", 6, None),
    "uint16": ("<u2", 7, None),
    "int4": ("i1", 8, 4),
    "uint1": ("u1", 9, 1),
    "uint2": ("u1", 10, 2),
    "uint4": ("u1", 11, 4),
    "uint3": ("u1", 12, 3),
    "uint6": ("u1", 13, 6),
    "int32": ("<i4", 14, None),
    "uint32": ("<u4", 15, None),
}
_ALIGNMENT = 64
_HEADER = struct.Struct("<II56x")
#: Sentinel, code of the type, bytes, offset of the elements, and bits at the end of the last byte that are no element.
_METADATA = struct.Struct("<IIQQQ32x")
_SENTINEL = 0xDEADBEEF
_VERSION = 2


class _BlobStorageReader:
    """Reads weights at the offsets that a program has for them. fp16 comes as `uint16` with the same bits, as in coremltools."""

    def __init__(self, file_name: str) -> None:
        """The file is opened for each weight."""
        self._path = os.fspath(file_name)

    def _read(self, kind: str, offset: int) -> Any:
        import numpy

        dtype, code, bits = _TYPES[kind]
        with open(self._path, "rb") as file:
            file.seek(offset)
            metadata = file.read(_METADATA.size)
            if len(metadata) < _METADATA.size:
                raise ValueError(f"{self._path}: index out of bounds: there is no weight at offset {offset}")
            sentinel, found, size, start, padding = _METADATA.unpack(metadata)
            if sentinel != _SENTINEL:
                raise RuntimeError(f"{self._path}: Invalid sentinel in blob_metadata at offset {offset}.")
            if found != code:
                raise RuntimeError(f"{self._path}: Metadata data type does not match requested type: {found} instead of {code}.")
            if start + size > os.fstat(file.fileno()).st_size:
                raise ValueError(f"{self._path}: index out of bounds: the weight at offset {offset} exceeds the file")
            file.seek(start)
            data = file.read(size)
        if bits is None:
            return numpy.frombuffer(data, dtype).copy()
        rows = numpy.unpackbits(numpy.frombuffer(data, "u1"), count=size * 8 - padding, bitorder="little").reshape(-1, bits)
        values = (rows << numpy.arange(bits, dtype="u1")).sum(1, dtype="u1")
        if dtype == "i1":
            sign = 1 << (bits - 1)
            return ((values ^ sign).astype("i1") - sign).astype("i1")
        return values


class _BlobStorageWriter:
    """Appends weights to a file. Each method returns the offset for a program."""

    def __init__(self, file_name: str, truncate_file: bool = True) -> None:
        """Replaces the file if `truncate_file`."""
        self._path = os.fspath(file_name)
        if truncate_file or not os.path.exists(self._path):
            with open(self._path, "wb") as file:
                file.write(_HEADER.pack(0, _VERSION))

    def _write(self, kind: str, values: Any) -> int:
        import numpy

        dtype, code, bits = _TYPES[kind]
        elements = numpy.asarray(values).ravel()
        padding = 0
        if bits is not None:
            low, high = (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if dtype == "i1" else (0, (1 << bits) - 1)
            for value in elements[(elements < low) | (elements > high)][:1]:
                raise ValueError(f"Value {int(value)} is outside allowed subbyte datatype range [{low}, {high}].")
            rows = numpy.unpackbits(elements.astype(dtype).view("u1")[:, None], axis=1, bitorder="little")[:, :bits]
            packed = numpy.packbits(rows, bitorder="little")
            padding = packed.size * 8 - elements.size * bits
            data = packed.tobytes()
        else:
            data = elements.astype(dtype).tobytes()
        with open(self._path, "r+b") as file:
            count, _ = _HEADER.unpack(file.read(_HEADER.size))
            end = file.seek(0, os.SEEK_END)
            offset = -(-end // _ALIGNMENT) * _ALIGNMENT
            file.write(bytes(offset - end))
            start = offset + _METADATA.size
            file.write(_METADATA.pack(_SENTINEL, code, len(data), start, padding) + data)
            file.seek(0)
            file.write(_HEADER.pack(count + 1, _VERSION))
        return offset


def _reader(kind: str) -> Callable[[_BlobStorageReader, int], Any]:
    def read(self: _BlobStorageReader, offset: int) -> Any:
        return self._read(kind, offset)

    read.__doc__ = f"The {kind} elements at an offset."
    return read


def _writer(kind: str) -> Callable[[_BlobStorageWriter, Any], int]:
    def write(self: _BlobStorageWriter, values: Any) -> int:
        return self._write(kind, values)

    write.__doc__ = f"Appends {kind} elements."
    return write


for _kind in _TYPES:
    setattr(_BlobStorageReader, f"read_{_kind}_data", _reader(_kind))
    setattr(_BlobStorageWriter, f"write_{_kind}_data", _writer(_kind))
