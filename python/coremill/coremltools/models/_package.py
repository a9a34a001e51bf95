"""Packages of specifications, and folders that are removed at exit."""

from __future__ import annotations

import json
import os
import shutil

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_folders: list = []


def temporary() -> str:
    """A folder that is removed at exit."""
    import atexit
    import tempfile

    if not _folders:
        atexit.register(_remove)
    _folders.append(tempfile.mkdtemp(prefix="coremill-ct-"))
    return _folders[-1]


def _remove() -> None:
    for folder in _folders:
        shutil.rmtree(folder, ignore_errors=True)


#: Fields of the specification that hold the stages of pipelines.
_PIPELINES = (200, 201, 202)


def model_file(path: str) -> str:
    """The file with the specification: that of a package, or the path itself."""
    if not os.path.isdir(path):
        return path
    with open(os.path.join(path, "Manifest.json"), encoding="utf-8") as file:
        manifest = json.load(file)
    item = manifest["itemInfoEntries"][manifest["rootModelIdentifier"]]
    return os.path.join(path, "Data", *item["path"].split("/"))


def is_pipeline(path: str) -> bool:
    """Whether a package or a model file holds a pipeline. Only the tags of the message are read, without protobuf."""
    try:
        with open(model_file(path), "rb") as file:
            return any(field in _PIPELINES for field in _fields(file))
    except (OSError, ValueError, LookupError):
        return False


def _fields(file: Any) -> Any:
    """The numbers of the fields of a message."""
    while (tag := _varint(file)) is not None:
        yield tag >> 3
        if tag & 7 == 0:
            _varint(file)
        elif tag & 7 in (1, 5):
            file.seek(8 if tag & 7 == 1 else 4, os.SEEK_CUR)
        elif tag & 7 == 2:
            file.seek(_varint(file) or 0, os.SEEK_CUR)
        else:
            return


def _varint(file: Any) -> int | None:
    """An integer of variable length; `None` at the end of the file."""
    value = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)
        if not byte:
            return None
        value |= (byte[0] & 127) << shift
        if byte[0] < 128:
            return value
    raise ValueError("an integer of more than ten bytes")


def write_package(spec: Any, path: str, weights_dir: str | None) -> None:
    """Writes a specification and its weights as a package."""
    data = os.path.join(path, "Data", "com.apple.CoreML")
    if os.path.exists(path):
        shutil.rmtree(path)
    os.makedirs(data)
    with open(os.path.join(data, "model.mlmodel"), "wb") as file:
        file.write(spec.SerializeToString())
    entries = {"model.mlmodel": "CoreML Model Specification"}
    if weights_dir is not None and os.path.isdir(weights_dir) and os.path.basename(weights_dir) == "weights":
        shutil.copytree(weights_dir, os.path.join(data, "weights"))
        entries["weights"] = "CoreML Model Weights"
    keys = {name: f"00000000-0000-4000-8000-{at:012d}" for at, name in enumerate(entries)}
    manifest = {
        "fileFormatVersion": "1.0.0",
        "itemInfoEntries": {
            keys[name]: {
                "author": "com.apple.CoreML",
                "description": description,
                "name": name,
                "path": f"com.apple.CoreML/{name}",
            }
            for name, description in entries.items()
        },
        "rootModelIdentifier": keys["model.mlmodel"],
    }
    with open(os.path.join(path, "Manifest.json"), "w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=2)


def package_of_spec(spec: Any, weights_dir: str | None) -> str:
    """A package of a specification, in a folder that is removed at exit."""
    path = os.path.join(temporary(), "Model.mlpackage")
    write_package(spec, path, weights_dir)
    return path
