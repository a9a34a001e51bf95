"""A pytest plugin that lets ExecuTorch's own tests of the Core ML backend execute the lowered programs.

Otherwise they do so on macOS only, because only there ExecuTorch's runtime has a Core ML delegate. This plugin
registers coremill's.
"""

import importlib
import sys
from pathlib import PurePath
from typing import Any, List

_TESTS = ("executorch", "backends", "apple", "coreml", "test")


def _is_theirs(item: Any) -> bool:
    """Whether a test is one of ExecuTorch's. Its folder is not a package, so modules do not bear its name."""
    module = getattr(item, "module", None)
    return module is not None and PurePath(module.__file__).parts[-6:-1] == _TESTS


def pytest_configure(config: Any) -> None:
    """Before anything is collected: modules copy the answer when they are imported."""
    if sys.platform == "darwin":
        return
    try:
        utils = importlib.import_module(".".join((*_TESTS, "test_coreml_utils")))
    except ImportError:
        return
    utils.IS_VALID_TEST_RUNTIME = True


def pytest_collection_modifyitems(items: List[Any]) -> None:
    """Some modules have an answer of their own."""
    if sys.platform == "darwin":
        return
    for module in {item.module for item in items if _is_theirs(item)}:
        if hasattr(module, "_TEST_RUNTIME"):
            from executorch.runtime import Runtime

            module._TEST_RUNTIME = True
            module.Runtime = Runtime


def pytest_runtest_setup(item: Any) -> None:
    """Some tests compare 4-bit weights with the original ones, and fail for one seed in four, also in torch."""
    if _is_theirs(item):
        import torch

        torch.manual_seed(0)
