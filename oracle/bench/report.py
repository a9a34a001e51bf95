"""Measures the cost of the HTML report: `coremill lower` of every exported program, with and without `--html`.

    python -m oracle.bench.report EXPORTS --coremill PATH [--only NAME ...] [--rounds N]

Prints a row per program, and exits with 1 if the report at least doubles the CPU time of a command. Both variants run
alternately, under the same load, and the minimum of several rounds counts. A millisecond is allowed for the start of a
process.
"""

import argparse
import resource
import subprocess
import tempfile
from pathlib import Path

MOST = 2.0
FORGIVEN = 0.001


def seconds(line: list[str | Path]) -> float | None:
    """CPU time of the command, if it succeeds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(line, capture_output=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        return None
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("exports", type=Path)
    parser.add_argument("--coremill", type=Path, required=True)
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    archives = [path for path in sorted(arguments.exports.glob("*.pt2")) if not arguments.only or path.stem in arguments.only]
    ratios, refused = {}, []
    for path in archives:
        with tempfile.TemporaryDirectory() as folder:
            program, page = Path(folder, "model.pte"), Path(folder, "page.html")
            alone = [arguments.coremill, "lower", path, "-o", program]
            rounds = [(seconds(alone), seconds([*alone, "--html", page])) for _ in range(arguments.rounds)]
            if any(time is None for pair in rounds for time in pair):
                refused.append(path.stem)
                continue
            plain, paged = (min(times) for times in zip(*rounds, strict=True))
            ratios[path.stem] = max(paged - FORGIVEN, plain) / plain
            size = page.stat().st_size / 1e6
        print(f"{path.stem:40} {plain * 1e3:8.1f} ms {paged * 1e3:8.1f} ms  {ratios[path.stem]:5.2f} x  {size:5.2f} MB")
    worse = [name for name, ratio in ratios.items() if ratio >= MOST]
    print(f"{len(ratios)} programs; the largest ratio is {max(ratios.values(), default=0):.2f} x, {len(worse)} exceed {MOST:.0f} x")
    if refused:
        print(f"not lowered: {', '.join(refused)}")
    return 1 if worse or not ratios else 0


if __name__ == "__main__":
    raise SystemExit(main())
