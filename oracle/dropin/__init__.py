"""Tests of the Python drop-in for ExecuTorch's Core ML backend against ExecuTorch's own."""
