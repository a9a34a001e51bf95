"""The Python of the oracles passes the linter, and all sources pass the spelling check."""

import subprocess
import sys
from pathlib import Path

from oracle.conftest import ROOT


def lint(*paths: object) -> str:
    line = [sys.executable, "-m", "ruff", "check", "--no-cache", "--output-format", "concise"]
    line += ["--config", str(ROOT / "oracle/ruff.toml"), *map(str, paths)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout if done.returncode else ""


def test_sources_are_clean() -> None:
    assert lint(ROOT / "oracle") == ""


def misspelled(*paths: object) -> str:
    """The words that the spelling check rejects."""
    line = [str(Path(sys.executable).parent / "typos"), "--format", "brief", "--config", str(ROOT / "_typos.toml")]
    done = subprocess.run([*line, *map(str, paths)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 2), done.stderr
    return done.stdout


def test_words_are_spelled_correctly() -> None:
    assert misspelled() == ""


def test_a_misspelled_word_is_found(tmp_path: Path) -> None:
    planted = tmp_path / "planted.md"
    planted.write_text("Reci" "eves the weights.\n")
    assert "Receives" in misspelled(planted)


def test_faults_are_found(tmp_path: Path) -> None:
    planted = tmp_path / "planted.py"
    planted.write_text("import os\n\n\ndef pairs(a, b):\n    return list(zip(a, b))\n")
    found = lint(planted)
    assert "F401" in found and "B905" in found


def test_the_readme_names_every_module() -> None:
    readme = (ROOT / "oracle/README.md").read_text()
    files = {path.name for path in (ROOT / "oracle").glob("*.py") if not path.name.startswith(("test_", "__"))}
    folders = {f"{path.parent.name}/" for path in (ROOT / "oracle").glob("*/__init__.py")}
    assert sorted(name for name in files | folders if f"`{name}`" not in readme) == []
