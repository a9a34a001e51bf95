"""The installed references have the pinned versions, so that results do not depend on the environment."""

import importlib.metadata
import re

from oracle.zoo.generate import REQUIREMENTS

DATA = REQUIREMENTS.with_name("requirements-data.txt")


def pins() -> list[str]:
    """The lines of the requirements that name a package."""
    text = REQUIREMENTS.read_text() + DATA.read_text()
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    return [line for line in lines if line]


def test_requirements_pin_exact_unique_versions() -> None:
    """Every version is exact, without markers, and listed once."""
    assert [line for line in pins() if not re.fullmatch(r"[a-z0-9-]+==[0-9][0-9a-z.]*", line)] == []
    names = [line.partition("==")[0] for line in pins()]
    assert sorted(set(names)) == sorted(names)


def test_installed_versions_match_pins() -> None:
    """The pinned versions are installed. A local part such as `+cpu` names a build, not a version."""
    wrong = []
    for line in pins():
        name, _, wanted = line.partition("==")
        try:
            found = importlib.metadata.version(name).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            found = "nothing"
        if found != wanted:
            wrong.append(f"{name}: {found} instead of {wanted}")
    assert wrong == []
