"""All rows."""

import hashlib
from pathlib import Path

from . import control, image, layers, numbers, packages, pictures, several, shapes, sound, states, text, views, vision
from .entry import Row

MODULES = (vision, image, text, pictures, sound, several, layers, control, shapes, states, views, numbers, packages)
ROWS = [row for module in MODULES for row in module.ROWS]

HERE = Path(__file__).parent
#: Sources on which the rows of several modules depend.
SHARED = (
    HERE / "entry.py",
    HERE / "make.py",
    HERE / "hugging_face.py",
    HERE.parent / "weights.py",
    HERE.parent / "models.py",
    HERE.parent / "language.py",
    HERE.parent.parent / "requirements.txt",
)


def stamps() -> dict[str, str]:
    """The hash of each row's sources and of the package versions, by name."""
    shared = b"".join(path.read_bytes() for path in SHARED)
    found = {}
    for module in MODULES:
        digest = hashlib.sha256(shared + Path(module.__file__ or "").read_bytes()).hexdigest()
        found |= {row.name: digest for row in module.ROWS}
    return found


def everyday() -> list[Row]:
    """The rows that are converted with every change."""
    return [row for row in ROWS if row.everyday]
