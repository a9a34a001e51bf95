"""Compression that `coremltools.optimize.torch` noted in a trained model: buffers named `_COREML_/weight/lut` for instance."""

from __future__ import annotations

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_PREFIX = "_COREML_/"
_PRUNING, _PALETTIZATION, _QUANTIZATION = 1, 2, 3
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


def compressed(model: Any, source: Any, infos: dict) -> Any:
    """The converted model with pruned and palettized weights as noted.

    The compressor finds zeros and tables in the trained weights. Weights that this would change stay as they are.
    """
    import coremill

    state = source.state_dict() if callable(source.state_dict) else source.state_dict
    for parameter, info in infos.items():
        if parameter not in state:
            continue
        rule = _rule(info, state[parameter].detach())
        if rule is None:
            continue
        name = parameter.replace(".", "_")
        rule.update(name=name, min_elements=1)
        made, report = coremill.compress(model, rules=[rule])
        weights = [weight for weight in report["weights"] if weight["name"] == name and weight["form"] is not None]
        if weights and all(weight["snr"] is None for weight in weights):
            model = made
    return model


def _rule(info: CompressionInfo, weight: Any) -> dict | None:
    """The rule of compression without loss; `None` if there is none for the notes."""
    kinds = set(info.compression_type)
    if _QUANTIZATION in kinds or info.palettization_scale is not None:
        return None
    rule: dict = {}
    if _PRUNING in kinds:
        zeros = int((weight == 0).sum())
        rule["prune"] = repr(max(zeros - 0.5, 0.0) / weight.numel())
    if _PALETTIZATION in kinds:
        shape = list(info.lut.shape)
        shape += [1] * (weight.dim() + 2 - len(shape))
        groups, entries, vector = shape[: weight.dim()], shape[-2], shape[-1]
        if vector > 1 or any(count > 1 for count in groups[1:]):
            return None
        bits = next((bits for bits in (1, 2, 3, 4, 6, 8) if 2**bits >= entries), None)
        if bits is None:
            return None
        rule.update(palettize=bits, algorithm="unique")
        if groups[0] > 1:
            rule["group"] = weight.shape[0] // groups[0]
    return rule
