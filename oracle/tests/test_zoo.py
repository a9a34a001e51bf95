"""Tests of the zoo itself: its breadth and its reproducibility."""

import collections
import multiprocessing
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from coremltools.converters.mil.mil.ops.registry import SSAOpRegistry

from oracle.checkers.programs import differences, read, read_weights
from oracle.zoo.generate import run
from oracle.zoo.table import COMPRESSED, ENTRIES, INTERFACES, NETWORKS, WRITTEN


def test_entry_names_are_unique_file_names() -> None:
    names = [entry.name for entry in ENTRIES]
    assert len(set(names)) == len(names)
    assert all(name == name.lower() and "/" not in name for name in names)


def test_zoo_meets_minimum_size_and_targets() -> None:
    assert len({entry.name.split("-")[0] for entry in NETWORKS}) >= 40
    assert len(INTERFACES) >= 25
    assert len(COMPRESSED) >= 35
    assert len(WRITTEN) >= 35
    targets = collections.Counter(entry.target for entry in ENTRIES)
    assert set(targets) == {"iOS15", "iOS16", "iOS17", "iOS18", "iOS26"}
    assert {entry.precision for entry in ENTRIES} == {"fp16", "fp32"}


#: The features of an entry: operations that it must contain, and storage types, by MILBlob's codes. coremltools
#: silently skips a compression that it does not support.
FORMS: dict[str, tuple[set[str], set[int]]] = {
    "accumulator-ios18": ({"read_state", "write_state"}, set()),
    "cached_decoder-ios18": ({"read_state", "write_state", "slice_update", "scaled_dot_product_attention"}, {1}),
    "classifier_names-ios15": ({"classify"}, {1}),
    "control-ios15": ({"cond", "while_loop"}, set()),
    "lists-ios15": ({"make_list", "list_write", "list_scatter", "list_read", "list_gather", "list_length"}, set()),
    "mobilenet_v2-ios15": ({"conv"}, {2}),
    "compact-ios16-int8": ({"constexpr_affine_dequantize"}, {4}),
    "compact-ios16-uint8-tensor": ({"constexpr_affine_dequantize"}, {3}),
    "compact-ios16-lut1": ({"constexpr_lut_to_dense"}, {3}),
    "compact-ios16-sparse": ({"constexpr_sparse_to_dense"}, {3}),
    "compact-ios17-mixed": ({"constexpr_affine_dequantize", "constexpr_lut_to_dense"}, {3, 4}),
    "compact-ios18-int8": ({"constexpr_blockwise_shift_scale"}, {4}),
    "compact-ios18-int4": ({"constexpr_blockwise_shift_scale"}, {8}),
    "compact-ios18-uint4-linear": ({"constexpr_blockwise_shift_scale"}, {11}),
    "compact-ios18-lut1": ({"constexpr_lut_to_dense"}, {9}),
    "compact-ios18-lut2": ({"constexpr_lut_to_dense"}, {10}),
    "compact-ios18-lut3": ({"constexpr_lut_to_dense"}, {12}),
    "compact-ios18-lut4-grouped": ({"constexpr_lut_to_dense"}, {11}),
    "compact-ios18-lut4-vector": ({"constexpr_lut_to_dense"}, {11}),
    "compact-ios18-lut6-grouped": ({"constexpr_lut_to_dense"}, {13}),
    "compact-ios18-lut8": ({"constexpr_lut_to_dense"}, {3}),
    "compact-ios18-sparse": ({"constexpr_sparse_to_dense"}, {9}),
    "compact-ios18-sparse-int8": ({"constexpr_sparse_to_dense", "constexpr_sparse_blockwise_shift_scale"}, {4, 9}),
    "compact-ios18-sparse-int4": ({"constexpr_sparse_to_dense", "constexpr_sparse_blockwise_shift_scale"}, {8, 9}),
    "compact-ios18-sparse-lut4": ({"constexpr_sparse_to_dense", "constexpr_lut_to_sparse"}, {9, 11}),
    "compact-ios18-lut4-int8": ({"constexpr_lut_to_dense", "constexpr_blockwise_shift_scale"}, {4, 11}),
    "compact-ios18-int8-lut3": ({"constexpr_lut_to_dense", "constexpr_blockwise_shift_scale"}, {12}),
}


@pytest.mark.parametrize("package", FORMS, indirect=True)
def test_package_contains_expected_ops_and_dtypes(package: Path) -> None:
    wanted, kinds = FORMS[package.stem]
    found = read(package)
    assert wanted <= {operation.type for operation in operations(found.model)}
    assert kinds <= {read_weights(found.folder, one.fileName, one.offset).kind for one in references(found.model)}


@pytest.mark.parametrize("package", ["several_files-ios17"], indirect=True)
def test_package_uses_several_weight_files(package: Path) -> None:
    """The package has three files, each in use."""
    found = read(package)
    assert {one.fileName for one in references(found.model)} == {
        f"@model_path/weights/{path.name}" for path in (found.folder / "weights").iterdir()
    }
    assert len(list((found.folder / "weights").iterdir())) == 3


@pytest.mark.parametrize("package", ["adapters-ios18"], indirect=True)
def test_functions_share_weights(package: Path) -> None:
    """The trunk of the three functions is stored once."""
    found = read(package)
    assert sorted(found.model.mlProgram.functions) == ["first", "second", "third"]
    assert found.model.description.defaultFunctionName == "second"
    offsets = collections.Counter(one.offset for one in references(found.model))
    assert 3 in offsets.values()


def test_zoo_covers_every_registry_op(all_packages: list[Path]) -> None:
    """The zoo contains every op of the registry, except for one of an older format and an internal one."""
    used = {operation.type for package in all_packages for operation in operations(read(package).model)}
    assert set(SSAOpRegistry.core_ops) - used == {"_const_symbolic", "conv_quantized"}


def operations(model: Any) -> Iterator[Any]:
    """Every operation, including those in nested blocks."""
    blocks = [block for one in model.mlProgram.functions.values() for block in one.block_specializations.values()]
    while blocks:
        for operation in blocks.pop().operations:
            yield operation
            blocks += operation.blocks


def references(model: Any) -> Iterator[Any]:
    """Every reference to a weight file."""
    for operation in operations(model):
        bound = [one.value for argument in operation.inputs.values() for one in argument.arguments]
        for value in [*operation.attributes.values(), *bound]:
            if value.WhichOneof("value") == "blobFileValue":
                yield value.blobFileValue


@pytest.mark.parametrize("package", ["compact-ios18-lut4-grouped", "lstm-ios15"], indirect=True)
def test_generation_is_reproducible(package: Path, tmp_path: Path) -> None:
    """Everything except for the date depends only on the seed."""
    ((_, error, _),) = run([package.stem], tmp_path, 1)
    assert error is None
    found = differences(package, tmp_path / package.name)
    assert [one for one in found if "conversion_date" not in one] == []


def test_failed_entry_does_not_stop_generation(tmp_path: Path) -> None:
    """A failure is reported by name, and the next entry is still made."""
    (first, error, _), (second, second_error, _) = run(["nobody", "lstm-ios15"], tmp_path, 1)
    assert (first, second) == ("nobody", "lstm-ios15")
    assert error is not None and second_error is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lstm-ios15.mlpackage", "lstm-ios15.reference.npz"]


def test_reports_killed_worker_process(tmp_path: Path) -> None:
    """A crash in coremltools fails only its entry, not the run."""

    # Other tests of the session may have child processes.
    before = set(multiprocessing.active_children())

    def kill() -> None:
        while not (children := set(multiprocessing.active_children()) - before):
            time.sleep(0.01)
        for child in children:
            child.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    ((name, error, _),) = run(["lstm-ios15"], tmp_path, 1)
    killer.join()
    assert name == "lstm-ios15"
    assert error is not None and "died with exit code -9" in error
