"""Compares the compiled op table with coremltools' live registry, row by row."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import pytest
from coremltools.converters.mil.mil import types
from coremltools.converters.mil.mil.input_type import TensorInputType
from coremltools.converters.mil.mil.ops.registry import SSAOpRegistry

from oracle.dumps import registry

ROOT = Path(__file__).parents[2]

#: Our names of the opsets. ML Programs start with iOS15, which includes the opsets of neural networks.
TAGS = {"iOS13": "ios15", "iOS14": "ios15", "iOS15": "ios15", "iOS16": "ios16", "iOS17": "ios17", "iOS18": "ios18"}

BUILDER = "is not part of the file format: coremltools uses it internally to pass the blocks of a loaded program to the operation"
ATTRIBUTE = "is the constant's value, which files store in an attribute, not in a parameter"

#: Every intended difference between the table and coremltools, with its reason.
DIFFERENCES = {
    ("_const_symbolic", "ios15", "val"): ATTRIBUTE,
    ("const", "ios15", "val"): ATTRIBUTE,
    ("cond", "ios15", "_existing_blocks"): BUILDER,
    ("while_loop", "ios15", "_existing_blocks"): BUILDER,
    ("constexpr_affine_dequantize", "", "family"): "kept its old family when iOS18 moved its siblings to `compression`",
    ("write_state", "", "operation"): "exists in files only; coremltools writes it for `coreml_update_state`",
}

Place = tuple[str, str, str]


def xtask(*arguments: str) -> str:
    """The standard output of `cargo xtask ops`."""
    line = [os.environ.get("CARGO", "cargo"), "xtask", "ops", *arguments]
    environment = os.environ | {"COREMILL_ORACLE_PYTHON": sys.executable}
    done = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.fail(f"{' '.join(line)}: exit code {done.returncode}\n{done.stdout}{done.stderr}", pytrace=False)
    return done.stdout


@pytest.fixture(scope="module")
def table() -> dict[str, Any]:
    """The compiled table: its operations by name."""
    dump = json.loads(xtask("--json"))
    assert dump["format"] == 1
    operations = {operation["name"]: operation for operation in dump["operations"]}
    assert len(operations) == len(dump["operations"])
    return operations


def value(default: Any, instance: registry.Instance) -> Any:
    """The value of our default for an instance."""

    def first_axis(name: str) -> int:
        return instance.types[name][1][0]

    match default:
        case None:
            return None
        case "all_axes":
            return list(range(len(instance.types["x"][1])))
        case "index_per_box":
            return list(range(first_axis("boxes")))
        case "zero_per_output":
            return [0.0] * first_axis("weight")
        case {"float_by_type": by_type}:
            return by_type[instance.types["x"][0]]
        case {"per_spatial_dim": {"value": element, "times": times}}:
            return [element] * (times * (len(instance.types["x"][1]) - 2))
        case {"bool": plain} | {"int": plain} | {"float": plain} | {"text": plain} | {"ints": plain}:
            return plain
    raise AssertionError(f"unknown kind of default: {default}")


def exact(theirs: Any) -> Any:
    """A default of coremltools as a builtin Python type. Floats are rounded to binary32, the largest type that they
    are stored in."""
    plain = registry.plain(theirs)
    return float(numpy.float32(plain)) if isinstance(plain, float) else plain


def default_agrees(default: Any, name: str, instances: list[registry.Instance]) -> bool:
    """Whether our default equals coremltools' for every instance."""
    for instance in instances:
        ours, theirs = value(default, instance), exact(instance.defaults.get(name))
        if type(ours) is not type(theirs) or ours != theirs:
            return False
    return True


def row_differences(place: tuple[str, str], row: dict[str, Any], operation: type) -> dict[Place, str]:
    """The differences between our row and coremltools' class."""
    found = {}
    instances = registry.instances_of(operation)
    ours = {parameter["name"]: parameter for parameter in row["parameters"]}
    theirs = operation.input_spec.input_types
    blocks = [name for name, accepted in theirs.items() if registry.KINDS[type(accepted)] == "block"]
    if [f"_{role}" for role in row["blocks"]] != [name.removesuffix("_fn") for name in blocks]:
        found[*place, "blocks"] = f"{row['blocks']}, not {blocks}"
    if [name for name in theirs if name in ours] != list(ours):
        found[*place, "order"] = f"{list(ours)}, not {list(theirs)}"
    for name, accepted in theirs.items():
        if name in blocks:
            continue
        if name not in ours:
            found[*place, name] = "is missing"
            continue
        parameter = ours[name]
        expected = {
            "name": name,
            "required": not accepted.optional,
            "constant": accepted.const,
            "accepts": registry.KINDS[type(accepted)],
        }
        if isinstance(accepted, TensorInputType):
            expected["variable"] = accepted.type_domain_id
            dtypes = registry.domain(operation, accepted)
            expected["dtypes"] = {types.builtin_to_string(dtype) for dtype in dtypes}
        actual = {key: set(field) if key == "dtypes" else field for key, field in parameter.items() if key != "default"}
        if actual != expected:
            found[*place, name] = f"{actual}, not {expected}"
        elif not default_agrees(parameter["default"], name, instances):
            found[*place, name] = f"default {parameter['default']}, not {instances[0].defaults.get(name)}"
    return found


def differences(table: dict[str, Any]) -> dict[Place, str]:
    """All differences between the table and the registry."""
    found = {}
    for name in table.keys() ^ SSAOpRegistry.core_ops.keys():
        found[name, "", "operation"] = "is not in coremltools' registry" if name in table else "is missing from our table"
    for name in table.keys() & SSAOpRegistry.core_ops.keys():
        classes = {TAGS[opset]: operation for opset, operation in registry.definitions(name)}
        rows = {row["opset"]: row for row in table[name]["rows"]}
        if list(rows) != list(classes):
            found[name, "", "opsets"] = f"{list(rows)}, not {list(classes)}"
        families = registry.family(list(classes.values())[-1])
        if table[name]["family"] != families:
            found[name, "", "family"] = f"{table[name]['family']}, not {families}"
        for tag in rows.keys() & classes.keys():
            found |= row_differences((name, tag), rows[tag], classes[tag])
    return found


def test_coremltools_registry_has_expected_size() -> None:
    assert len(SSAOpRegistry.core_ops) == 168
    assert sum(len(list(registry.definitions(name))) for name in SSAOpRegistry.core_ops) == 227


def test_table_size_matches_registry_plus_write_state(table: dict[str, Any]) -> None:
    assert len(table) == 168 + 1
    assert sum(len(operation["rows"]) for operation in table.values()) == 227 + 1


def test_rows_match_coremltools_except_known_differences(table: dict[str, Any]) -> None:
    found = differences(table)
    unexplained = {place: difference for place, difference in found.items() if place not in DIFFERENCES}
    assert unexplained == {}
    assert DIFFERENCES.keys() == found.keys(), "DIFFERENCES contains an entry that no longer differs; remove it"


def test_write_state_matches_coreml_update_state(table: dict[str, Any]) -> None:
    update = SSAOpRegistry.dialect_ops["coreml_update_state"]
    (row,) = table["write_state"]["rows"]
    assert row["opset"] == "ios18"
    state, data = row["parameters"]
    assert (state["name"], state["accepts"], state["required"]) == ("input", "state", True)
    assert (data["name"], data["accepts"], data["required"]) == ("data", "tensor", True)
    written = registry.domain(update, update.input_spec.input_types["value"])
    assert set(data["dtypes"]) == {types.builtin_to_string(dtype) for dtype in written}


@pytest.mark.parametrize(
    ("operation", "opset", "parameter", "field", "wrong"),
    [
        ("conv", "ios17", "weight", "variable", "T"),
        ("conv", "ios15", "bias", "constant", False),
        ("conv", "ios15", "pad", "default", {"per_spatial_dim": {"value": 0, "times": 1}}),
        ("topk", "ios16", "sort", "default", {"int": 1}),
        ("topk", "ios17", "x", "dtypes", ["fp16", "fp32"]),
        ("log", "ios15", "epsilon", "default", {"float_by_type": {"fp16": 0.0, "fp32": 1e-45}}),
        ("layer_norm", "ios17", "axes", "default", {"ints": [0, 1]}),
        ("instance_norm", "ios17", "epsilon", "default", {"float": 1e-5}),
        ("classify", "ios15", "classes", "accepts", "tensor"),
        ("lstm", "ios15", "bias", "required", True),
    ],
)
def test_detects_wrong_table_row(
    table: dict[str, Any], operation: str, opset: str, parameter: str, field: str, wrong: Any
) -> None:
    """The comparison notices wrong rows, including floats that are not exact in binary32."""
    (row,) = (row for row in table[operation]["rows"] if row["opset"] == opset)
    parameters = [entry | {field: wrong} if entry["name"] == parameter else entry for entry in row["parameters"]]
    assert parameters != row["parameters"]
    classes = {TAGS[opset]: definition for opset, definition in registry.definitions(operation)}
    found = row_differences((operation, opset), row | {"parameters": parameters}, classes[opset])
    assert set(found) == {(operation, opset, parameter)}


def test_committed_op_files_match_generator() -> None:
    xtask("--check")
