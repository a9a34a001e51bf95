"""The test files, how each of them runs, and the samples of CI."""

from dataclasses import dataclass


@dataclass(frozen=True)
class File:
    """A test file of coremltools, or a folder of them."""

    name: str
    #: Its module in the wheel.
    module: str
    #: `dropin` or `engine`.
    mode: str = "dropin"
    #: CI runs one case in this many; 0 for none.
    ci_step: int = 0

    def holds(self, case: str) -> bool:
        """Whether a case, named by its path below coremltools, is of this file."""
        return case.startswith(self.module.removeprefix("coremltools.").replace(".", "/"))


_TORCH = "coremltools.converters.mil.frontend.torch.test"
_TEST = "coremltools.test"

FILES = [
    File("mil/ops/tests", "coremltools.converters.mil.mil.ops.tests", "engine", 700),
    File("test_torch_ops", f"{_TORCH}.test_torch_ops", ci_step=1000),
    File("test_torch_conversion_api", f"{_TORCH}.test_torch_conversion_api", ci_step=16),
    File("test_torch_export_conversion_api", f"{_TORCH}.test_torch_export_conversion_api", ci_step=8),
    File("test_torch_stateful_model", f"{_TORCH}.test_torch_stateful_model", ci_step=6),
    File("test_torch_quantization_ops", f"{_TORCH}.test_torch_quantization_ops", ci_step=150),
    File("test_api_examples", f"{_TEST}.api.test_api_examples", ci_step=4),
    File("test_inputs_outputs_shape", "coremltools.converters.mil.test_inputs_outputs_shape", ci_step=4),
    File("test_post_training_quantization", f"{_TEST}.optimize.coreml.test_post_training_quantization", ci_step=60),
    File("test_optimize_api", f"{_TEST}.optimize.api.test_optimize_api", ci_step=4),
    File("test_compression", f"{_TEST}.ml_program.test_compression", ci_step=3),
    File("ml_program/test_utils", f"{_TEST}.ml_program.test_utils", ci_step=6),
    File("modelpackage", f"{_TEST}.modelpackage", "engine", 12),
    File("blob", f"{_TEST}.blob", "engine", 4),
]
