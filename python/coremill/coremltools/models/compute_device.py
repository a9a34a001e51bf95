"""Devices: the CPU, on which coremill's engine computes, and those of forecasts."""

from __future__ import annotations

# `typing` takes long to import.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class MLComputeDevice:
    """A device that computes predictions."""

    @classmethod
    def get_all_compute_devices(cls) -> list:
        """The devices that predictions can use."""
        return [MLCPUComputeDevice()]

    def __repr__(self) -> str:
        """As in coremltools: scripts look for the name of the class in it."""
        return f"<coremltools.models.compute_device.{type(self).__name__} object>"


class MLCPUComputeDevice(MLComputeDevice):
    """The CPU."""


class MLGPUComputeDevice(MLComputeDevice):
    """A GPU. No prediction of this package uses one."""


class MLNeuralEngineComputeDevice(MLComputeDevice):
    """The Neural Engine. No prediction of this package uses it."""

    @property
    def total_core_count(self) -> int:
        """The number of its cores, which only Core ML knows."""
        raise unsupported_count()


def unsupported_count() -> Any:
    """The error of questions about other devices."""
    from .._missing import unsupported

    return unsupported("`total_core_count`", "`coremill plan` records the compute plan on a Mac")
