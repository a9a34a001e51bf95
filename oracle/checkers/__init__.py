"""Modules that compare results with the references; the tests call them."""
