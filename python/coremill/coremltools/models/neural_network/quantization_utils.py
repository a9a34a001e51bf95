"""Compression of neural networks, of which scripts use the clusters of a weight, and can import the rest."""

from __future__ import annotations

from ..._absent import absent_names
from ..._missing import unsupported

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: coremltools clusters weights with at least this many fp16 elements in one dimension, and returns a flat table for them.
_FLAT = 10_000


def _get_kmeans_lookup_table_and_weight(
    nbits: int, weight: Any, force_kmeans1d: bool = False, cluster_dim: int = 1, vector_axis: int | None = None
) -> tuple:
    """A table of `1 << nbits` values, and the index of each element of a weight."""
    if cluster_dim != 1:
        raise unsupported("`cluster_dim` other than 1", "`coremltools.optimize.coreml.palettize_weights`")
    import numpy

    from coremill import _native

    elements = numpy.asarray(weight).ravel()
    table = numpy.zeros(1 << nbits)
    centers = numpy.array(_native.kmeans(elements.astype("<f4").tobytes(), table.size))
    table[: centers.size] = centers
    indices = numpy.searchsorted((centers[1:] + centers[:-1]) / 2, elements)
    is_flat = force_kmeans1d or (elements.size >= _FLAT and elements.dtype == numpy.float16)
    return (table if is_flat else table[:, None]), indices


__getattr__ = absent_names(__name__)
