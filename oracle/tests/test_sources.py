"""The Python sources in `oracle` pass the linter, and all sources pass the spelling check."""

import subprocess
import sys
from pathlib import Path

from oracle.dumps import prose
from oracle.support.cargo import ROOT


def lint(*paths: object) -> str:
    line = [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format", "concise"]
    line += ["--config", str(ROOT / "oracle/ruff.toml"), *map(str, paths)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout if done.returncode else ""


def test_python_sources_pass_linter() -> None:
    assert lint(ROOT / "oracle") == ""


def misspelled(*paths: object) -> str:
    """The words that the spelling check rejects."""
    line = [str(Path(sys.executable).parent / "typos"), "--format", "brief", "--config", str(ROOT / "_typos.toml")]
    done = subprocess.run([*line, *map(str, paths)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 2), done.stderr
    return done.stdout


def test_words_are_spelled_correctly() -> None:
    assert misspelled() == ""


def test_spelling_check_detects_typo(tmp_path: Path) -> None:
    planted = tmp_path / "planted.md"
    planted.write_text("Reci" "eves the weights.\n")
    assert "Receives" in misspelled(planted)


def test_linter_detects_planted_errors(tmp_path: Path) -> None:
    planted = tmp_path / "planted.py"
    planted.write_text("import os\n\n\ndef pairs(a, b):\n    return list(zip(a, b))\n")
    found = lint(planted)
    assert "F401" in found and "B905" in found


def test_readme_lists_every_module() -> None:
    readme = (ROOT / "oracle/README.md").read_text()
    roles = ("bench", "checkers", "corpora", "dumps", "support")
    files = {path.name for role in roles for path in (ROOT / "oracle" / role).glob("*.py") if path.name != "__init__.py"}
    folders = {f"{path.parent.name}/" for path in (ROOT / "oracle").glob("*/__init__.py")}
    assert sorted(name for name in files | folders if f"`{name}`" not in readme) == []


def test_prose_has_few_cryptic_lines() -> None:
    """No crate or page has more cryptic lines than `prose.BOUND`; `python -m oracle.dumps.prose PREFIX` prints them."""
    assert {place: share for place, share in prose.shares().items() if share > prose.BOUND} == {}


def test_prose_check_detects_cryptic_sentence() -> None:
    assert prose.PATTERN.search("What the caller is told about those that are refused.")
    assert prose.PATTERN.search("Returns the reason of a refusal.") is None
