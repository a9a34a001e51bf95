"""Writes the small `.pt2` graphs that the compiler's own tests lower without torch.

    python -m oracle.corpora.small_graphs

selects a few cases of each family of `oracle.aten`, exports them with the pinned torch, and writes them to
`crates/compiler/tests/graphs`, without sample inputs and Python stack traces. Each has a file with the expected MIL text,
which `BLESS=1 cargo test -p coremill-compiler --test graphs` writes.
"""

import json
import sys
import tempfile
import zipfile
from pathlib import Path

from oracle.aten import FAMILIES
from oracle.aten.case import Case
from oracle.aten.make import family_cases, make

#: Number of graphs per family.
SHARE = 7
#: Maximum size of an archive in the repository.
MOST_BYTES = 24 << 10
FOLDER = Path(__file__).resolve().parents[2] / "crates/compiler/tests/graphs"
#: A fixed time for every entry, so that equal graphs are equal files.
STAMP = (1980, 1, 1, 0, 0, 0)


def chosen(family: str) -> list[Case]:
    """Cases of different operators first, distributed over the family."""
    operators: dict[str, Case] = {}
    rest = []
    for case in family_cases(family):
        if case.target in operators or "*" in case.impossible:
            rest.append(case)
        else:
            operators[case.target] = case
    possible = [case for case in rest if "*" not in case.impossible]
    first = spread(list(operators.values()), SHARE)
    return first + spread(possible, SHARE - len(first))


def spread(cases: list[Case], count: int) -> list[Case]:
    if len(cases) <= count:
        return cases
    return [cases[index * len(cases) // count] for index in range(count)]


def untraced(value: object) -> object:
    """Removes stack traces from JSON: they contain paths of this machine."""
    if isinstance(value, dict):
        return {key: "" if key == "stack_trace" else untraced(one) for key, one in value.items()}
    if isinstance(value, list):
        return [untraced(one) for one in value]
    return value


def copy(source: Path, target: Path) -> None:
    """Copies the archive without the parts that lowering ignores."""
    with zipfile.ZipFile(source) as archive, zipfile.ZipFile(target, "w") as small:
        for name in archive.namelist():
            if "/sample_inputs/" in name:
                continue
            content = archive.read(name)
            if name.endswith(".json"):
                content = json.dumps(untraced(json.loads(content)), separators=(",", ":")).encode()
            small.writestr(zipfile.ZipInfo(name, STAMP), content)


def main() -> int:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for old in FOLDER.glob("*.pt2"):
        old.unlink()
    total = 0
    for family in FAMILIES:
        cases = chosen(family)
        with tempfile.TemporaryDirectory() as temporary:
            errors = make(cases, Path(temporary))
            for name, error in errors.items():
                print(f"{family}: {name}: {error}", file=sys.stderr)
            for archive in sorted(Path(temporary).glob("*.pt2")):
                target = FOLDER / f"{family}-{archive.name}"
                copy(archive, target)
                if target.stat().st_size > MOST_BYTES:
                    print(f"{target.name} has {target.stat().st_size} bytes; skipped", file=sys.stderr)
                    target.unlink()
                else:
                    total += target.stat().st_size
    count = len(list(FOLDER.glob("*.pt2")))
    print(f"{count} graphs, {total} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
