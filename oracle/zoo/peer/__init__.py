"""What coremltools and ExecuTorch make of the exported programs: the bar for ours.

    python -m oracle.zoo.peer EXPORTS [--peer executorch] [--only NAME ...] [--jobs N] [--keep DIR]

`EXPORTS` is what `python -m oracle.zoo.exports` wrote. Each program is decomposed as coremltools asks for
(`run_decompositions({})`) and converted for iOS18 with the defaults, in a process that may crash or hang without harm.
`oracle/zoo/peer.json` is rewritten with the results: the number of operations that are no constants and how many there
are of each, and the processor's
seconds in `coremltools.convert` alone; or the first line of the error. The lowerings of
`oracle.zoo.shims` are there for it, so that it fails neither by the version of numpy nor by two operations that take a
few lines.

With `--peer executorch` it is its Core ML partitioner that lowers them, for iOS18 and else with its defaults; then
`oracle/zoo/peer_pte.json` holds the number of delegates, the kernels that were left outside them and the size.

`--keep` also writes the packages, so that others can run them.
"""
