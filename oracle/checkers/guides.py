"""Runs the Python examples of coremltools' guides with the drop-in.

    python -m coremill.coremltools -m oracle.checkers.guides DIRECTORY [PAGE ...]

DIRECTORY has the pages: `docs-guides/source` of coremltools' repository. The examples of a page run in order in one namespace. What they
expect around them is made here: pictures, a model under the usual names, weights that would be downloaded (random ones), modules that the
guides only mention. Traced modules and exported programs that a page converts are compared with their predictions on random inputs. Prints
each example that fails; `KNOWN` explains those that fail elsewhere, too. The exit status is 0 if only these fail.
"""

import argparse
import ast
import contextlib
import io
import linecache
import os
import re
import sys
import tempfile
import textwrap
import types
import urllib.request
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coremltools as ct
import numpy
import torch
import torchvision
from PIL import Image

#: Pages about torch.
PAGES = [
    "classifiers", "convert-a-pytorch-segmentation-model", "convert-a-torchvision-model-from-pytorch", "convert-pytorch-workflow",
    "convert-to-ml-program", "flexible-inputs", "image-inputs", "load-and-convert-model", "model-exporting", "model-input-and-output-types",
    "model-scripting", "model-tracing", "multifunction-models", "opt-conversion", "opt-joint-compression", "opt-palettization-api",
    "opt-pruning-api", "opt-quantization-api", "opt-resnet", "opt-workflow", "stateful-models", "typed-execution",
]  # fmt: skip
#: Other languages, and tags that are no examples.
TAGS = re.compile(r"\{|shell|bash|swift|text|objective|json|xml|console|c\+\+")
#: Examples of other frameworks.
OTHERS = re.compile(r"import tensorflow|tf\.keras|import keras|from keras|keras_model|tf_model|\.pb\"|IPython|ANTIALIAS")
#: Parts of errors that are no errors of the drop-in.
KNOWN = {
    "is not defined": "the example continues one of another page, or is a sketch",
    "ellipsis": "the example is a sketch",
    "`inputs` must be of type list": "the example is a sketch",
    "No such file or directory": "the example opens a file of the reader",
    "no such file or directory": "the example opens a file of the reader",
    "ct.model.MLModel": "the guide means `ct.models`",
    "cannot import name 'LayerwiseCompressor'": "coremltools has the name elsewhere",
    "cannot import name 'MagnitudePrunerConfig'": "coremltools has the name elsewhere",
    "PRUNING_TYPE": "coremltools' pruning fails with this version of torch",
    "joint compression": "the examples prepare one model several times",
    "SKMPalettizer": "the guide passes an argument of another version",
    "TS2EPConverter failed": "torch cannot export scripted loops and branches",
    "coremltools.model`": "the guide means `ct.models`",
    "flexible_shape_utils": "for neural networks",
    'Expected argument "inputs"': "the example leaves out the inputs, which coremltools requires, too",
    'Provided key "image"': "the model of the guide is one of TensorFlow",
    "only integer scalar arrays": "Pillow does not take the palette of the guide",
    "has no attribute 'conv_2'": "the model of the guide has another layer",
    "Builder.program": "the builder of coremltools is not supported",
    "must have rank 4": "the model of the page returns an image, and the one made here does not",
    "Grayscale image input": "the model of the page has gray images, and the one made here has not",
}


class Network(torch.nn.Module):
    """The model that pages mean by `model` or `source_model`."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_1 = torch.nn.Conv2d(3, 8, 3, stride=4)
        self.linear_2 = torch.nn.Linear(8, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.linear_2(torch.relu(self.conv_1(x)).mean((2, 3))), -1)


class Response(io.BytesIO):
    """What a page downloads: labels, or a picture."""

    def __init__(self, url: Any, *_: Any) -> None:
        labels = "\n".join(["background", *(f"label {index}" for index in range(1000))]).encode()
        super().__init__(labels if "abel" in str(url) else Path("daisy.jpg").read_bytes())


def examples(page: str) -> Iterator[tuple[int, str]]:
    """The Python examples of a page, with their lines."""
    for found in re.finditer(r"^[ \t]*```+[ ]*([^\n`]*)\n(.*?)^[ \t]*```+[ \t]*$", page, re.S | re.M):
        code = textwrap.dedent(found[2])
        code = "\n".join(line for line in code.split("\n") if not line.strip().startswith(("!", "%")))
        if TAGS.search(found[1].lower()) or OTHERS.search(code):
            continue
        with contextlib.suppress(SyntaxError):
            if not all(isinstance(one, ast.Expr) and not isinstance(one.value, ast.Call) for one in ast.parse(code).body):
                yield page[: found.start()].count("\n") + 1, code


def without_downloads() -> None:
    """Replaces downloads by random weights, labels and pictures."""
    load = torch.nn.Module.load_state_dict
    torch.nn.Module.load_state_dict = lambda module, state, *rest, **options: state and load(module, state, *rest, **options)
    torch.hub.load_state_dict_from_url = torchvision.models._api.load_state_dict_from_url = lambda *_, **__: None
    torch.hub.load = lambda _, name, *__, **___: torchvision.models.get_model(name, weights=None, weights_backbone=None)
    urllib.request.urlopen = Response
    for name in ("model_utilities", "data_utils", "training_utilities"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["model_utilities"].get_torch_model = lambda *_: Network().eval()
    data = [(torch.rand(1, 3, 224, 224), torch.tensor([0]))]
    sys.modules["data_utils"].get_calibration_data = sys.modules["data_utils"].get_dataloader = lambda *_, **__: data
    sys.modules["training_utilities"].train_step = lambda *_, **__: None


def surroundings(page: str) -> dict[str, Any]:
    """Names and files that examples expect."""
    for name in ("daisy", "flower", "dog", "cat_dog", "sample", "palmtrees", "seats"):
        Image.fromarray(numpy.random.default_rng(0).integers(0, 255, (224, 224, 3), numpy.uint8)).save(f"{name}.jpg")
    module, example = Network().eval(), torch.rand(1, 3, 224, 224)
    program = torch.export.export(module, (example,))
    package = ct.convert(program, minimum_deployment_target=ct.target.iOS18)
    for name in ("model", "my_model", "MyModel"):
        package.save(f"{name}.mlpackage")
    names = {"source_model": program, "torch_model": program, "source_torch_model": program, "exported_program": program}
    names |= {"traced_model": torch.jit.trace(module, example), "coreml_model": package}
    # The page about conversion means the source by `mlmodel`.
    names["mlmodel"] = program if page == "opt-conversion" else package
    names |= {"example_input": example, "input": example, "class_labels": [f"label {index}" for index in range(1000)]}
    names |= {"uncompressed_model_path": "model.mlpackage", "sample_data": [{"x": example.numpy()}], "H": 224, "W": 224}
    uses_package = any(part in page for part in ("pruning", "quantization", "classifiers"))
    names |= {"model": package if uses_package else module, "ct": ct, "coremltools": ct, "np": numpy}
    names |= {"torch": torch, "nn": torch.nn, "F": torch.nn.functional, "torchvision": torchvision, "os": os, "__name__": "__main__"}
    names |= {f"{what}_torch_model": Network().eval() for what in ("uncompressed", "pruned", "palettized", "quantized")}
    return names


def compare(source: Any, converted: Any) -> bool:
    """Compares predictions on random inputs. Returns whether the model has only arrays of floats as inputs, and no states."""
    description = converted.get_spec().description
    if description.state or any(not one.type.HasField("multiArrayType") for one in [*description.input, *description.output]):
        return False
    shapes = [tuple(one.type.multiArrayType.shape) for one in description.input]
    if any(one.type.multiArrayType.dataType == ct.proto.FeatureTypes_pb2.ArrayFeatureType.INT32 for one in description.input):
        return False
    inputs = [torch.rand(shape) for shape in shapes]
    with torch.no_grad():
        loaded = torch.jit.load(source) if isinstance(source, str) else source
        module = loaded.module() if hasattr(loaded, "module") else loaded
        expected = module(*inputs)
    expected = list(expected.values()) if isinstance(expected, dict) else [expected] if torch.is_tensor(expected) else list(expected)
    found = converted.predict({one.name: value.numpy() for one, value in zip(description.input, inputs, strict=True)})
    for one, value in zip(description.output, expected, strict=True):
        given = torch.as_tensor(found[one.name]).double()
        value = value.double()
        assert (given - value).norm() <= 0.02 * value.norm(), f"`{one.name}` differs from torch"
    return True


def run(page: str, text: str) -> tuple[int, int, list[str]]:
    """Runs a page. Returns the numbers of examples and comparisons, and the failures."""
    names, count, compared, failures = surroundings(page), 0, 0, []
    converted: list[tuple[Any, Any]] = []
    convert = ct.convert

    def noted(source: Any, *rest: Any, **options: Any) -> Any:
        made = convert(source, *rest, **options)
        converted.append((source, made))
        return made

    ct.convert = noted
    for line, code in examples(text):
        count += 1
        if re.search(r"optimize\.torch|jit\.trace\(model", code) and isinstance(names.get("model"), ct.models.MLModel):
            # Pages about compression call the package and its source `model`.
            names["model"] = Network().eval()
        name = f"{page}.md:{line}"
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(code, name, "exec"), names)
                while converted:
                    compared += compare(*converted.pop())
        except Exception as error:
            failures.append(f"{name}: {type(error).__name__}: {error}")
    ct.convert = convert
    return count, compared, failures


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m oracle.checkers.guides", description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("pages", nargs="*", metavar="PAGE", help=", ".join(PAGES))
    arguments = parser.parse_args()
    directory = arguments.directory.resolve()
    warnings.simplefilter("ignore")
    without_downloads()
    wrong = 0
    for page in arguments.pages or PAGES:
        torch.manual_seed(0)
        with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
            count, compared, failures = run(page, (directory / f"{page}.md").read_text())
        print(f"{page}: {count - len(failures)} of {count} examples run, {compared} conversions agree with torch", flush=True)
        for failure in failures:
            reason = next((reason for part, reason in KNOWN.items() if part in failure), None)
            wrong += reason is None
            print(f"  {'known' if reason else 'FAIL '} {failure[:300]!r}" + (f" ({reason})" if reason else ""), flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
