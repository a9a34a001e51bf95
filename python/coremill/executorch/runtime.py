"""Lets the installed ExecuTorch runtime execute programs for Core ML where there is no Core ML.

    from coremill.executorch.runtime import register_runtime
    from executorch.runtime import Runtime

    register_runtime()
    Runtime.get().load_program("model.pte").load_method("forward").execute([...])

ExecuTorch's C++ interface differs from release to release, so the backend is compiled once against the headers of the
installed package; it takes seconds, and the result is kept in the user's cache directory.
"""

import ctypes
import hashlib
import importlib.metadata
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ["build_runtime", "register_runtime"]

#: Environment variable with the library of coremill's C interface, instead of the one in this package.
LIBRARY = "COREMILL_LIBRARY"

#: What is loaded stays: ExecuTorch has no way to let go of a backend.
_loaded: list[ctypes.CDLL] = []


def _library() -> Path:
    """The library that holds the C interface."""
    named = os.environ.get(LIBRARY)
    if named:
        return Path(named)
    native = importlib.util.find_spec("coremill._native")
    if native is not None and native.origin is not None:
        return Path(native.origin)
    raise RuntimeError(
        "coremill's extension module is not installed\n"
        f"hint: install the package `coremill`, or set {LIBRARY} to the path of libcoremill_capi"
    )


def _open() -> ctypes.CDLL:
    """The C interface. Its symbols become visible to the backend, which is linked to none."""
    path = _library()
    try:
        library = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        library.coremill_version.restype = ctypes.c_char_p
    except (OSError, AttributeError) as error:
        raise RuntimeError(f"{path} does not contain coremill's C interface: {error}") from error
    return library


def _text(library: ctypes.CDLL, function: str) -> bytes:
    getter = getattr(library, function)
    getter.restype = ctypes.c_char_p
    return getter()


def _executorch() -> Path:
    """The installed package."""
    spec = importlib.util.find_spec("executorch")
    places = list(spec.submodule_search_locations or []) if spec else []
    for place in map(Path, places):
        if (place / "include" / "executorch" / "runtime" / "backend" / "interface.h").exists():
            return place
    if not places:
        raise RuntimeError("ExecuTorch is not installed\nhint: pip install executorch")
    raise RuntimeError(f"the ExecuTorch in {places[0]} has no C++ headers\nhint: install it from PyPI, 1.5 or newer")


def _cache() -> Path:
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    # Not within `coremill`, which is the store of compiled models and holds nothing else.
    return base / "coremill-executorch"


def _flags(package: Path) -> list[str]:
    libraries = package / "lib"
    flags = ["-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-DC10_USING_CUSTOM_GENERATED_MACROS"]
    flags += ["-DET_EVENT_TRACER_ENABLED", f"-I{package / 'include'}"]
    flags += [f"-I{package / 'include/executorch/runtime/core/portable_type/c10'}"]
    flags += [f"-L{libraries}", f"-Wl,-rpath,{libraries}"]
    if sys.platform == "darwin":
        flags.append("-Wl,-undefined,dynamic_lookup")
    return flags


def build_runtime(folder: str | os.PathLike[str] | None = None) -> Path:
    """Compiles the backend for the installed ExecuTorch, unless this was done before. Returns its path.

    ``folder`` is the folder of the results, by default the user's cache directory. The compiler is the value of the
    environment variable ``CXX``, or ``c++``.
    """
    library, package = _open(), _executorch()
    source, header = _text(library, "coremill_delegate_source"), _text(library, "coremill_delegate_header")
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    flags = _flags(package)
    version = importlib.metadata.version("executorch")
    key = hashlib.sha256(repr((source, header, compiler, flags, version)).encode()).hexdigest()[:32]
    suffix = "dylib" if sys.platform == "darwin" else "so"
    target = Path(folder or _cache()) / f"coremill_delegate-{version}-{key}.{suffix}"
    if target.exists():
        return target
    if shutil.which(compiler[0]) is None:
        raise RuntimeError(
            f"the C++ compiler `{compiler[0]}`, which builds the backend for ExecuTorch {version}, is not installed\n"
            "hint: install one (apt install g++), or name it in the environment variable CXX"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as temporary:
        made = Path(temporary) / target.name
        (Path(temporary) / "coremill.h").write_bytes(header)
        (Path(temporary) / "coremill_delegate.cpp").write_bytes(source)
        command = [*compiler, str(Path(temporary) / "coremill_delegate.cpp"), *flags, "-lexecutorch", "-o", str(made)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(
                f"the backend cannot be built for ExecuTorch {version}:\n{shlex.join(command)}\n{done.stderr.strip()}"
            )
        # Another process may have done the same meanwhile; both are equal.
        os.replace(made, target)
    return target


def register_runtime() -> bool:
    """Registers coremill's engine as ``CoreMLBackend`` with the ExecuTorch runtime of this process.

    Programs that are loaded later run their Core ML parts there. Returns whether the engine was registered: not if
    Core ML's own backend has the name, as in ExecuTorch for macOS. A second call does nothing.
    """
    if not _loaded:
        library = _open()
        _loaded.extend([library, ctypes.CDLL(str(build_runtime()))])
    registration = _loaded[1].coremill_delegate_registration()
    if registration not in (1, 2):
        raise RuntimeError("ExecuTorch rejected the backend\nhint: it accepts at most 16 backends; load fewer backends")
    return registration == 1
