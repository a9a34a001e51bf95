"""Registers our engine as `CoreMLBackend` with ExecuTorch's own runtime in this process, as its users do."""

import importlib.util
import os
from pathlib import Path
from typing import Any

from oracle.support.cargo import ROOT, TARGET, build


def library() -> Path:
    """The C interface, built if necessary."""
    return build("--lib") / "libcoremill_capi.so"


def module() -> Any:
    """The Python package's module for the registration, which needs no other module."""
    path = ROOT / "python" / "coremill" / "executorch" / "runtime.py"
    spec = importlib.util.spec_from_file_location("coremill_executorch_runtime", path)
    assert spec and spec.loader
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


_registered: list[Any] = []


def register() -> None:
    """Registers the engine; later calls do nothing."""
    if not _registered:
        if "COREMILL_LIBRARY" not in os.environ:
            os.environ["COREMILL_LIBRARY"] = str(library())
        os.environ.setdefault("XDG_CACHE_HOME", str(TARGET / "stock"))
        _registered.append(module())
        assert _registered[0].register_runtime()
