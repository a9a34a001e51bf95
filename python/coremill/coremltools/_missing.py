"""Errors for parts of coremltools that this package does not have, each with the nearest alternative."""

from __future__ import annotations

_GRAPH = "describe the model in torch, or in Rust with `coremill::graph`, and convert it"
_SCOPE = "this package converts torch models to ML Programs only"

#: The nearest alternative by name, or by the end of a dotted name.
ALTERNATIVES = {
    "Builder": _GRAPH,
    "mil": _GRAPH,
    "mb": _GRAPH,
    "Program": _GRAPH,
    "milproto": "`coremill.Model` opens packages, and `coremill edit`, `split` and `merge` change them",
    "passes": "coremill optimizes programs with its own passes; `ct.PassPipeline` can skip some of them",
    "neural_network": "convert the torch model to an ML Program",
    "tree_ensemble": _SCOPE,
    "nearest_neighbors": _SCOPE,
    "feature_vectorizer": _SCOPE,
    "array_feature_extractor": _SCOPE,
    "sklearn": _SCOPE,
    "xgboost": _SCOPE,
    "libsvm": _SCOPE,
    "tensorflow": _SCOPE,
    "torch": "install coremltools, whose `optimize.torch` trains models for this package",
    "quantization_utils": "`coremltools.optimize.coreml`",
    "MLModelInspector": "`coremill.compare(one, two, per_op=True)`",
    "MLModelComparator": "`coremill.compare(one, two, per_op=True)`",
    "MLModelValidator": "`coremill.check(model)`",
    "MLModelBenchmarker": "`coremill run --repeat N --profile`",
    "debugging_utils": "`coremill.compare(one, two, per_op=True)`",
    "validation_utils": "`coremill.check(model)`",
    "perf_utils": "`coremill run --repeat N --profile`",
    "quantize_weights": "`coremltools.optimize.coreml.linear_quantize_weights`",
    "NeuralNetworkBuilder": _GRAPH,
}


def alternative(name: str) -> str:
    """The nearest alternative to a dotted name."""
    parts = name.split(".")
    for part in reversed(parts):
        if part in ALTERNATIVES:
            return ALTERNATIVES[part]
    return "docs/coremltools.md lists what is supported"


def unsupported_name(module: str, name: str, hint: str | None = None) -> AttributeError:
    """The error of a name that a module of coremltools has and this package has not."""
    hint = hint or alternative(f"{module}.{name}")
    return AttributeError(f"`{module}.{name}` is not part of coremill.coremltools\nhint: {hint}")


def unsupported(what: str, hint: str | None = None) -> NotImplementedError:
    """The error of a call that is not supported."""
    return NotImplementedError(f"{what} is not supported by coremill.coremltools\nhint: {hint or alternative(what)}")
