"""Runs every command that reads or writes packages on every package of the zoo."""

import filecmp
import json
from pathlib import Path
from typing import Any

from oracle.checkers.programs import differences, loads_in_coremltools, read
from oracle.conftest import Command


def test_coremltools_loads_zoo_package(package: Path) -> None:
    """coremltools loads the original package, which the other tests rely on."""
    assert loads_in_coremltools(package) == []


def test_check_accepts_coremltools_package(package: Path, coremill: Command) -> None:
    coremill("check", package)


def test_inspect_lists_functions_features_and_version(package: Path, coremill: Command) -> None:
    """The report lists the functions with their inputs, outputs and states, the default one, and the version."""
    report = json.loads(coremill("inspect", "--json", package))
    model = read(package).model
    assert report["specification_version"] == model.specificationVersion
    assert report["default_function"] == (model.description.defaultFunctionName or "main")
    assert {function["name"]: edges(function) for function in report["functions"]} == expected_edges(model)


def edges(function: dict[str, Any]) -> dict[str, list[str]]:
    """The names of the inputs, outputs and states in a reported function."""
    return {kind: [feature["name"] for feature in function[kind]] for kind in ("inputs", "outputs", "states")}


def expected_edges(model: Any) -> dict[str, dict[str, list[str]]]:
    """The same names from the package's description."""
    description = model.description
    parts = {function.name: function for function in description.functions} or {"main": description}
    return {
        name: {
            "inputs": [feature.name for feature in part.input],
            "outputs": [feature.name for feature in part.output],
            "states": [feature.name for feature in part.state],
        }
        for name, part in parts.items()
    }


def test_package_round_trip(package: Path, coremill: Command, tmp_path: Path) -> None:
    """A rewritten package is equal, including description and metadata, and coremltools loads it."""
    again = tmp_path / "again.mlpackage"
    coremill("pack", package, "-o", again)
    assert differences(package, again) == []
    assert loads_in_coremltools(again) == []


def test_pack_writes_same_bytes_for_any_path(package: Path, coremill: Command, tmp_path: Path) -> None:
    """Equal inputs yield equal files, byte for byte, whatever their path."""
    left, right = tmp_path / "left" / "one.mlpackage", tmp_path / "right" / "another.mlpackage"
    for out in (left, right):
        out.parent.mkdir()
        coremill("pack", package, "-o", out)
    assert files(left) == files(right)
    assert filecmp.cmpfiles(left, right, files(left), shallow=False)[1:] == ([], [])


def files(folder: Path) -> list[str]:
    """Relative paths of all files in a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_text_round_trip(package: Path, coremill: Command, tmp_path: Path) -> None:
    """Text preserves the program and its weights; the description may be regenerated."""
    text, again = tmp_path / "program" / "model.mil", tmp_path / "again.mlpackage"
    text.parent.mkdir()
    coremill("text", package, "-o", text)
    coremill("pack", text, "-o", again)
    assert differences(package, again, program_only=True) == []
    assert loads_in_coremltools(again) == []


def test_compiled_round_trip(package: Path, coremill: Command, tmp_path: Path) -> None:
    """A compiled model preserves the program, its weights, the description and the metadata."""
    compiled, again = tmp_path / "model.mlmodelc", tmp_path / "again.mlpackage"
    coremill("pack", package, "-o", compiled)
    coremill("pack", compiled, "-o", again)
    assert differences(package, again) == []
    assert loads_in_coremltools(again) == []
