"""Converts the exported programs with coremltools and ExecuTorch, as the baseline for ours.

    python -m oracle.zoo.peer EXPORTS [--peer executorch] [--only NAME ...] [--jobs N] [--keep DIR]

`EXPORTS` is the folder that `python -m oracle.zoo.exports` wrote. Each program is decomposed as coremltools requires
(`run_decompositions({})`) and converted for iOS18 with the defaults, in a separate process, which may crash or hang.
The results are written to `oracle/zoo/peer.json`: the number of operations that are not constants, their number by type,
and the processor time of `coremltools.convert` alone in seconds; or the first line of the error. The lowerings of
`oracle.zoo.shims` are installed, so that coremltools does not fail because of numpy's version or of two simple
operations.

With `--peer executorch`, ExecuTorch's Core ML partitioner lowers the programs for iOS18 with its defaults, and
`oracle/zoo/peer_pte.json` holds the number of delegates, the kernels outside them and the size.

`--keep` also writes the packages.
"""
