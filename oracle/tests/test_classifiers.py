"""Classifiers of torchvision and timm, traced and exported, predict torch's labels of pictures.

`python -m oracle.classifiers` runs all of them.
"""

from pathlib import Path

import pytest

from oracle.classifiers.check import check
from oracle.classifiers.models import FRONTENDS, ROWS
from oracle.support.sampling import ALL

pytest.importorskip("timm")
pytest.importorskip("torchvision")

#: One model of each library, each with another frontend.
SAMPLE = {"mobilenet_v3_small": ["traced"], "edgenext_xx_small": ["exported"]}


@pytest.mark.parametrize("row", [row for row in ROWS if ALL or row.name in SAMPLE], ids=lambda row: row.name)
def test_predicted_labels_match_torch(row, tmp_path: Path) -> None:
    """Checks predictions of the model in memory, from the package, compiled, and after edits."""
    found = check(row, list(FRONTENDS) if ALL else SAMPLE[row.name], tmp_path)
    assert not found.errors, "\n".join(found.errors)
    # Several pictures have a clear label, and not all the same one.
    assert found.clear >= 3
    assert len(found.labels) >= 2


def test_covers_twenty_torchvision_and_timm_models() -> None:
    """Each model is listed once, and both libraries are covered."""
    assert len({row.name for row in ROWS}) == len(ROWS) == 20
    assert {row.library for row in ROWS} == {"torchvision", "timm"}
