"""Another name of `models.utils`, under which some of coremltools' guides import it."""

from __future__ import annotations

import sys

from .models import utils

sys.modules[__name__] = utils
