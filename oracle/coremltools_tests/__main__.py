"""Runs coremltools' own tests on coremill, and prints the pass rate of each file.

    python -m oracle.coremltools_tests                         all cases of all files
    python -m oracle.coremltools_tests --step 20 blob          one case in 20 of a file
    python -m oracle.coremltools_tests --ci                    the sample of CI
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from oracle.coremltools_tests.docs import DOCS, written
from oracle.coremltools_tests.files import FILES, File

ROOT = Path(__file__).parent.parent.parent


def run(files: list[File], step: str, options: list[str], mode: str) -> tuple[list[dict[str, str]], int]:
    """Runs the cases of files of one mode in a process of their own; the results, and the exit code of pytest."""
    import coremltools

    with tempfile.TemporaryDirectory(prefix="coremltools-tests-") as folder:
        results = Path(folder) / "results.jsonl"
        results.touch()
        paths = [str(ROOT), *filter(None, sys.path)]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "COREMILL_CT_MODE": mode,
            "COREMILL_CT_STEP": step,
            "COREMILL_CT_RESULTS": str(results),
        }
        root = Path(coremltools.__file__).parent
        line = [
            sys.executable, "-m", "pytest", "-q", "--no-header", "-W", "ignore", "-c", os.devnull, f"--rootdir={root}",
            "-p", "no:cacheprovider", "-p", "oracle.coremltools_tests.plugin", *options, "--pyargs", *(file.module for file in files),
        ]
        code = subprocess.run(line, cwd=folder, env=environment, check=False, stdout=sys.stderr).returncode
        return [json.loads(one) for one in results.read_text().splitlines()], code


def row(name: str, results: list[dict[str, str]]) -> str:
    """The counts of a file. The rate is that of the cases which coremltools itself would run."""
    counts = Counter(result["result"] for result in results)
    correct, unsupported = counts["passed"] + counts["other operations"], counts["unsupported"]
    ran = correct + counts["failed"] + counts["wrong numbers"] + unsupported
    rate = f"{100 * correct / ran:.1f} %" if ran else "-"
    return f"{name:34} {ran:6} {correct:8} {counts['other operations']:17} {unsupported:12} {counts['failed']:7} {counts['wrong numbers']:14} {rate:>8}"


def main() -> None:
    """Runs the files on the command line, or all."""
    parser = argparse.ArgumentParser(prog="python -m oracle.coremltools_tests", description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", help="files, such as test_torch_ops; all if left out")
    parser.add_argument("--step", type=int, default=1, help="run one case in this many")
    parser.add_argument("--offset", type=int, default=0, help="begin with this case; useful with --step")
    parser.add_argument("--ci", action="store_true", help="run the sample of CI")
    parser.add_argument("--results", type=Path, help="write the result of each case to this file")
    parser.add_argument("--mode", choices=("dropin", "engine", "theirs"), help="instead of the file's own options")
    parser.add_argument("--pytest", default="", help="options for pytest, such as '-k name -x'")
    parser.add_argument("--docs", action="store_true", help="write the unsupported cases into docs/coremltools.md")
    arguments = parser.parse_args()
    if arguments.docs:
        DOCS.write_text(written(DOCS.read_text()))
        return
    unknown = set(arguments.files) - {file.name for file in FILES}
    if unknown:
        parser.error(f"unknown file {sorted(unknown)[0]}; the files are {', '.join(file.name for file in FILES)}")
    chosen = [file for file in FILES if not arguments.files or file.name in arguments.files]
    # Importing torch and coremltools takes most of the time of a small sample, so that its files share a process.
    groups = [[file for file in chosen if file.mode == mode] for mode in ("dropin", "engine")] if arguments.ci else [[file] for file in chosen]
    groups = list(filter(None, groups))
    step = "ci" if arguments.ci else f"{arguments.step}+{arguments.offset}"
    with ThreadPoolExecutor(len(groups) if arguments.ci else 1) as pool:
        runs = pool.map(lambda group: run(group, step, shlex.split(arguments.pytest), arguments.mode or group[0].mode), groups)
    results, has_failed = [], False
    for found, code in runs:
        # pytest returns 5 if no case was selected.
        has_failed |= code not in (0, 5)
        results += found
    if arguments.results is not None:
        arguments.results.write_text("".join(json.dumps(result) + "\n" for result in results))
    print(f"{'file':34} {'cases':>6} {'correct':>8} {'other operations':>17} {'unsupported':>12} {'failed':>7} {'wrong numbers':>14} {'rate':>8}")
    for file in chosen:
        print(row(file.name, [result for result in results if file.holds(result["case"])]))
    sys.exit(int(has_failed))


if __name__ == "__main__":
    main()
