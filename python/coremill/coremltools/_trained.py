"""Checks of the compression that `coremltools.optimize.torch` noted in a trained model.

The notes are buffers, named `_COREML_/weight/lut` for instance. The converter itself applies them.
"""

from __future__ import annotations

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PREFIX = "_COREML_/"
_PALETTIZATION, _QUANTIZATION = 2, 3
_NEWER = "Please set minimum_deployment_target to iOS18 or later."


class CompressionInfo:
    """The notes for a parameter."""

    __slots__ = (
        "compression_type",
        "lut",
        "palettization_scale",
        "quantization_n_bits",
        "quantization_scale",
        "vector_axis",
        "zero_point",
    )

    def __init__(self) -> None:
        """All notes are optional."""
        for name in self.__slots__:
            setattr(self, name, None)


def notes(model: Any) -> dict:
    """The notes of an exported program or a module by parameter. They are checked."""
    state = getattr(model, "state_dict", None)
    if state is None:
        return {}
    found: dict = {}
    for key, value in (state() if callable(state) else state).items():
        module, prefix, note = key.rpartition(_PREFIX)
        if not prefix or note == "metadata_version":
            continue
        parameter, name = note.rsplit("/", 1)
        setattr(found.setdefault(module + parameter, CompressionInfo()), name, value)
    for parameter, info in found.items():
        _check(parameter, info)
    return found


def _check(parameter: str, info: CompressionInfo) -> None:
    if info.compression_type is None:
        raise ValueError(
            "There are coreml compression related buffers registered in the torch model (with _COREML_ in the buffer's name) "
            f"for {parameter}, but the 'compression_type' is not set. Please set it to indicate the type of compression used "
            "on the weight."
        )
    info.compression_type = info.compression_type.tolist()
    if _PALETTIZATION in info.compression_type and info.lut is None:
        raise ValueError("Missing lut in compression info. Please register a buffer for lut.")
    if _QUANTIZATION in info.compression_type:
        for name in ("quantization_n_bits", "quantization_scale"):
            if getattr(info, name) is None:
                raise ValueError(f"{name} must be specified in quantization.")


def check_release(infos: dict, is_ios_18: bool) -> None:
    """Some compression needs iOS 18."""
    for info in infos.values():
        if is_ios_18:
            return
        if len(info.compression_type) > 1:
            raise ValueError(
                "The joint compression (more than one values in 'compression_type') is only supported in iOS18+. " + _NEWER
            )
        if info.palettization_scale is not None:
            raise ValueError(f"The palettization with per-channel-scale is only supported in iOS18+. {_NEWER}")
