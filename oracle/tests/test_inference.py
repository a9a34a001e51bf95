"""The committed files of type inference equal coremltools' current results."""

import re

import pytest

from oracle.inference import FAMILIES
from oracle.inference.files import DIRECTORY, path_of, text_of


@pytest.mark.parametrize("family", FAMILIES)
def test_committed_types_match_coremltools(family: str) -> None:
    found, expected = _without_messages(path_of(family).read_text()), _without_messages(text_of(family))
    # Compared line by line for a readable difference.
    for line, now in zip(found.splitlines(), expected.splitlines(), strict=False):
        assert line == now, f"run `python -m oracle.inference {family}`"
    assert found == expected, f"run `python -m oracle.inference {family}`"


def test_inference_files_match_families() -> None:
    assert sorted(path.stem for path in DIRECTORY.glob("*.json")) == sorted(FAMILIES)


def _without_messages(text: str) -> str:
    """Removes coremltools' error messages, whose wording depends on the version of Python."""
    return re.sub(r'"refused":"(?:[^"\\]|\\.)*"', '"refused":true', text)
