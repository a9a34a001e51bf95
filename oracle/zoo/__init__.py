"""A zoo of Core ML packages, created by coremltools from seeded random weights.

The packages are inputs of coremill's readers, so they aim at breadth: every architecture family, deployment target,
form of compression, kind of input and output, and op family that coremltools can write on any operating system.
Nothing is downloaded.

    python -m oracle.zoo --list
    python -m oracle.zoo --out DIR [--only NAME ...] [--jobs N]

`table` has one row per package. `models` and `language` contain the networks, `written` the programs written op by
op, `interfaces` small networks that each have one kind of input, output or state, `steps` the processing of packages
after conversion, and `generate` the driver.
"""
