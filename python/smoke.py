"""Tries an installed wheel without torch: reads an archive, converts, predicts, lowers, saves, reads again.

    python -I python/smoke.py
"""

import sys
import tempfile
from pathlib import Path

import numpy

import coremill

ROOT = Path(__file__).parent.parent
ARCHIVE = ROOT / "examples" / "digits.pt2"


def main() -> None:
    """Do all of it, and print what was done."""
    assert Path(coremill.__file__).parent != ROOT / "python" / "coremill", "these are the sources, not the wheel"
    model = coremill.convert(ARCHIVE, verify=True)
    inputs = {
        feature["name"]: numpy.random.default_rng(0).random(feature["shape"], numpy.float32)
        for feature in model.inspect()["functions"][0]["inputs"]
    }
    results = model.predict(inputs)
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/Model.mlpackage")
        assert coremill.check(f"{folder}/Model.mlpackage").ok
        again = coremill.load(f"{folder}/Model.mlpackage").predict(inputs)
        assert all(numpy.array_equal(results[name], again[name]) for name in results)
        coremill.lower(ARCHIVE).save(f"{folder}/model.pte")
        given = coremill.load(f"{folder}/model.pte").method()(*inputs.values())
        assert numpy.allclose(given, next(iter(results.values())), rtol=1e-2, atol=1e-2)
    small, report = coremill.compress(model, palettize=4, min_elements=16)
    assert report["bytes_after"] < report["bytes_before"]
    try:
        coremill.convert(ARCHIVE, target="ios12")
    except coremill.OptionError as error:
        assert error.hint
    assert "torch" not in sys.modules
    print(f"coremill {coremill.__version__} works with Python {sys.version.split()[0]} on {sys.platform}")


if __name__ == "__main__":
    main()
