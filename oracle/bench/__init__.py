"""Benchmarks, which `cargo xtask bench` runs."""
