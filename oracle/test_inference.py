"""The files of the inference judge are what coremltools says today."""

import pytest

from oracle.inference import FAMILIES
from oracle.inference.files import DIRECTORY, path_of, text_of


@pytest.mark.parametrize("family", FAMILIES)
def test_file_is_fresh(family: str) -> None:
    assert path_of(family).read_text() == text_of(family), f"run `python -m oracle.inference {family}`"


def test_every_file_has_a_family() -> None:
    assert sorted(path.stem for path in DIRECTORY.glob("*.json")) == sorted(FAMILIES)
