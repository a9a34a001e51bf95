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
