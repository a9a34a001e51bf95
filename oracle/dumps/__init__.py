"""Generators of data and documentation from the references."""
