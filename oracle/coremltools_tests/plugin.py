"""The pytest plug-in: what the tests run on, which of them run, and what becomes of them.

`COREMILL_CT_MODE` is `dropin`, `engine`, or `theirs` for coremltools itself without predictions. `COREMILL_CT_STEP` is K+N for
every Kth case from case N, or `ci` for the sample of CI. `COREMILL_CT_RESULTS` is the file of the results: a line of JSON for each case.
"""

import json
import logging
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest

from oracle.coremltools_tests.files import FILES
from oracle.coremltools_tests.unsupported import LIST, entries, is_of_numbers, listed

MODE = os.environ.get("COREMILL_CT_MODE", "dropin")
STEP = os.environ.get("COREMILL_CT_STEP", "1")
RESULTS = os.environ.get("COREMILL_CT_RESULTS")
UNSUPPORTED = entries(LIST.read_text())


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
        step, _, offset = (str(file.ci_step) if STEP == "ci" else STEP).partition("+")
        sample += cases[int(offset or 0) :: int(step)]
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
        error = f"{kind}: {text}"
        entry = listed(UNSUPPORTED, item.nodeid, error)
        if entry is None:
            result = "wrong numbers" if is_of_numbers(error) else "failed"
        else:
            result, reason = entry.get("outcome", "unsupported"), entry["reason"]
            report.outcome, report.wasxfail = "skipped", reason
    elif report.passed and _differences():
        result, text = "other operations", _differences()[0]
    if RESULTS is not None:
        line = {"case": item.nodeid, "result": result, "reason": reason, "error": f"{kind}: {text}"[:2000].removeprefix(": ")}
        with Path(RESULTS).open("a") as file:
            file.write(json.dumps(line) + "\n")

