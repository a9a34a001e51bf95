"""Compression of neural networks, which can be imported and not used."""

from __future__ import annotations

from ..._absent import absent_names

__getattr__ = absent_names(__name__)
