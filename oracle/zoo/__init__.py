"""A zoo of Core ML packages, made here by coremltools from seeded random weights.

The packages are inputs to coremill's readers, so they aim at breadth: every architecture family, deployment target,
compressed form, kind of input and output, and op family that coremltools can write on any operating system. Nothing is
downloaded.

    python -m oracle.zoo --list
    python -m oracle.zoo --out DIR [--only NAME ...] [--jobs N]

`table` has one row per package, `models` and `language` the networks, `written` the programs written op by op,
`interfaces` the small networks that show one kind of input, output or state each, `steps` what happens to a package
after conversion, `generate` the work itself.
"""
