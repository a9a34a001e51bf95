"""The pytest plug-in: what the tests run on, which of them run, and what becomes of them.

`COREMILL_CT_MODE` is `dropin`, `engine`, or `theirs` for coremltools itself without predictions. `COREMILL_CT_STEP` is K for
a sample of every Kth case, or `ci` for the sample of CI. `COREMILL_CT_RESULTS` is the file of the results: a line of JSON for each case.
"""

import json
import logging
import os
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

from oracle.coremltools_tests.files import FILES

MODE = os.environ.get("COREMILL_CT_MODE", "dropin")
STEP = os.environ.get("COREMILL_CT_STEP", "1")
RESULTS = os.environ.get("COREMILL_CT_RESULTS")
UNSUPPORTED = json.loads((Path(__file__).parent / "unsupported.json").read_text())


def pytest_configure(config: pytest.Config) -> None:
    """Replaces coremltools before its tests are imported: they copy what they find."""
    logging.disable(logging.WARNING)
    os.environ.setdefault("PYMIL_TEST_TARGETS", "mlprogram")
    os.environ.setdefault("TORCH_FRONTENDS", "TORCHSCRIPT,TORCHEXPORT")
    if "EXECUTORCH" not in os.environ["TORCH_FRONTENDS"]:
        # Takes seconds to import.
        sys.modules["executorch"] = None
    from oracle.coremltools_tests import engine

    engine.stub("peft", ["LoraConfig", "get_peft_model"], lambda name: ModuleNotFoundError(f"peft.{name} is not installed"))
    if MODE == "theirs":
        return
    engine.pretend()
    if MODE == "dropin":
        from oracle.coremltools_tests import dropin

        dropin.replace()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out neural networks and the cases that are not in the sample."""
    kept = [item for item in items if "neuralnetwork" not in item.name]
    sample = []
    for file in FILES:
        cases = [item for item in kept if file.holds(item.nodeid)]
        sample += cases[:: file.ci_step if STEP == "ci" else int(STEP)]
    dropped = set(items) - set(sample)
    if dropped:
        config.hook.pytest_deselected(items=list(dropped))
        items[:] = sample


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Makes random inputs and weights the same in every run."""
    import torch

    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)
    _differences().clear()


def _differences() -> list[str]:
    """Operations that differ from those of coremltools in the present case."""
    if MODE != "dropin":
        return []
    from oracle.coremltools_tests.dropin import Operations

    return Operations.differences


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Iterator[None]:
    """Records what became of a case. One that is listed as unsupported does not fail the run."""
    outcome = yield
    report = outcome.get_result()
    if report.when != "call" and report.outcome == "passed":
        return
    text = str(call.excinfo.value) if call.excinfo is not None else ""
    kind = call.excinfo.type.__name__ if call.excinfo is not None else ""
    result, reason = report.outcome, ""
    if report.failed:
        entry = listed(item.nodeid, f"{kind}: {text}")
        if entry is not None:
            result, reason = entry.get("outcome", "unsupported"), entry["reason"]
            report.outcome, report.wasxfail = "skipped", reason
    elif report.passed and _differences():
        result, text = "other operations", _differences()[0]
    if RESULTS is not None:
        line = {"case": item.nodeid, "result": result, "reason": reason, "error": f"{kind}: {text}"[:2000].removeprefix(": ")}
        with Path(RESULTS).open("a") as file:
            file.write(json.dumps(line) + "\n")


def listed(case: str, error: str) -> Any:
    """The entry of `unsupported.json` for a failure: both patterns must be found.

    Other numbers than expected are a failure, unless the entry is for these.
    """
    is_number = "Not equal to tolerance" in error
    for entry in UNSUPPORTED:
        if is_number == entry.get("numbers", False) and re.search(entry.get("case", ""), case) and re.search(entry.get("error", ""), error):
            return entry
    return None
