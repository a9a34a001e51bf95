"""Runs packages on Core ML, on the CPU only, and compares the outputs with those of coremill's engine.

    python -m oracle.checkers.device COREMILL [--engine-alone] PACKAGE...

It needs a Mac, because coremltools predicts only there. With `--engine-alone`, only the engine runs the packages. Every
function is run; functions with states run three steps. Inputs are random; outputs must agree within 1e-3 of their largest
element, or 2e-2 if anything in the program is fp16.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import coremltools
import numpy
from coremltools.proto import FeatureTypes_pb2

STEPS = 3
TYPES = FeatureTypes_pb2.ArrayFeatureType
DTYPES = {
    TYPES.FLOAT32: numpy.float32,
    TYPES.FLOAT16: numpy.float16,
    TYPES.DOUBLE: numpy.float64,
    TYPES.INT32: numpy.int32,
    TYPES.INT8: numpy.int8,
}


def functions_of(spec):
    """The description of each function; a single function has no name."""
    description = spec.description
    return {function.name: function for function in description.functions} or {None: description}


def random_inputs(function, random):
    """Arrays for all inputs, or `None` if some inputs are not arrays."""
    arrays = {}
    for feature in function.input:
        if feature.type.WhichOneof("Type") != "multiArrayType":
            return None
        kind = feature.type.multiArrayType
        dtype = DTYPES[kind.dataType]
        shape = tuple(kind.shape)
        if numpy.issubdtype(dtype, numpy.integer):
            arrays[feature.name] = random.integers(0, 2, shape, dtype=dtype)
        else:
            arrays[feature.name] = random.uniform(-1, 1, shape).astype(dtype)
    return arrays


def by_core_ml(package, name, steps, has_states):
    """Core ML's outputs of the last step."""
    units = coremltools.ComputeUnit.CPU_ONLY
    model = coremltools.models.MLModel(str(package), compute_units=units, function_name=name)
    state = model.make_state() if has_states else None
    outputs = {}
    for inputs in steps:
        outputs = model.predict(inputs, state) if state else model.predict(inputs)
    return outputs


def by_engine(coremill, package, name, steps):
    """The engine's outputs of the last step."""
    with tempfile.TemporaryDirectory() as folder:
        command = [coremill, "run", str(package), "--precision", "faithful"]
        if name is not None:
            command += ["--function", name]
        for index, inputs in enumerate(steps):
            path = Path(folder) / f"{index}.npz"
            numpy.savez(path, **inputs)
            command += ["--inputs", str(path)]
        path = Path(folder) / "outputs.npz"
        subprocess.run([*command, "--output", str(path)], check=True, stdout=subprocess.DEVNULL)
        with numpy.load(path) as outputs:
            return dict(outputs)


def difference(expected, found, bound):
    """The failure of an output, or `None`."""
    expected, found = numpy.asarray(expected), numpy.asarray(found)
    if expected.shape != found.shape:
        return f"expected shape {expected.shape}, found {found.shape}"
    expected, found = expected.astype(numpy.float64), found.astype(numpy.float64)
    if not numpy.array_equal(numpy.isfinite(expected), numpy.isfinite(found)):
        return "different elements are finite"
    finite = numpy.isfinite(expected)
    largest = max(numpy.abs(expected[finite]).max(initial=0), 1e-6)
    apart = numpy.abs(expected[finite] - found[finite]).max(initial=0) / largest
    return f"the difference is {apart:.2e} of the largest element" if apart > bound else None


def judge(coremill, package, alone):
    """The failure of a package, "" if there is none, or `None` if it cannot be compared."""
    text = subprocess.run([coremill, "text", str(package)], check=True, capture_output=True, text=True)
    bound = 2e-2 if "<fp16" in text.stdout else 1e-3
    random = numpy.random.default_rng(42)
    for name, function in functions_of(coremltools.utils.load_spec(str(package))).items():
        steps = [random_inputs(function, random) for _ in range(STEPS if function.state else 1)]
        if None in steps:
            return None
        found = by_engine(coremill, package, name, steps)
        expected = found if alone else by_core_ml(package, name, steps, bool(function.state))
        for output, value in expected.items():
            if isinstance(value, dict):
                return None
            problem = difference(value, found[output], bound)
            if problem:
                return f"output `{output}` of {name or 'the function'}: {problem}"
    return ""


def main(coremill, *packages):
    """Checks packages. Returns the number of failures."""
    wrong, alone = 0, "--engine-alone" in packages
    packages = [package for package in packages if package != "--engine-alone"]
    for package in map(Path, packages):
        try:
            problem = judge(coremill, package, alone)
        except Exception as error:  # Core ML's errors have no specific type.
            problem = str(error)
        wrong += bool(problem)
        print({None: "skipped", "": "ok"}.get(problem, "FAILED"), package.stem, problem or "", sep="\t")
    return wrong


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]) > 0)
