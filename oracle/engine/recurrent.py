"""`lstm`, `gru` and `rnn`, compared with onnxruntime and torch.

Differences between the formats, according to coremltools' tests on devices:
- gates: `lstm` input, forget, output, cell; in torch input, forget, cell, output and in ONNX input, output,
  forget, cell; `gru` reset, output, update; in torch reset, update, new and in ONNX update, reset, hidden;
- one bias for input and hidden state, but for `gru` of iOS18, whose `bias` is that of the hidden state if `input_bias` is
  bound;
- `reverse` returns its results in the order of computation, the last step first; `bidirectional` in the order of
  the sequence;
- `clip` bounds the cell state, as in TensorFlow; ONNX clips the activations' inputs. The reference for these cases is
  torch step by step;
- `scaled_tanh` is `tanh`, `hard_sigmoid` is 0.2 x + 0.5: activations have the parameters of the operations' defaults.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import onnxruntime
import torch

from .language import IOS15, IOS17, IOS18, Case, case, const, draw

_ACTIVATIONS = {
    "tanh": ("Tanh", None, None),
    "scaled_tanh": ("ScaledTanh", 1.0, 1.0),
    "sigmoid": ("Sigmoid", None, None),
    "hard_sigmoid": ("HardSigmoid", 0.2, 0.5),
    "sigmoid_hard": ("HardSigmoid", 0.2, 0.5),
    "relu": ("Relu", None, None),
    "linear": ("Affine", 1.0, 0.0),
}
_NAMES = tuple(_ACTIVATIONS)

#: onnxruntime computes in fp32 and approximates activations.
_NEAR = {"rel": 1e-4, "abs": 1e-5}


def cases() -> Iterator[Case]:
    yield from _lstm()
    yield from _gru()
    yield from _rnn()


def _onnx(operation: str, arrays: dict[str, np.ndarray], activations: list[str], outputs: int, **attributes) -> list[np.ndarray]:
    """Runs onnxruntime, with both directions concatenated. Arrays have the names of the operation's inputs."""
    order = {
        "LSTM": ("X", "W", "R", "B", "", "initial_h", "initial_c", "P"),
        "GRU": ("X", "W", "R", "B", "", "initial_h"),
        "RNN": ("X", "W", "R", "B", "", "initial_h"),
    }[operation]
    names = [name if name in arrays else "" for name in order]
    directions = arrays["W"].shape[0]
    known = [_ACTIVATIONS[activation.lower()] for activation in activations] * directions
    # Parameters in order, of the activations that have them; omitted if none does.
    parameters = {
        f"activation_{kind}": values
        for kind, values in (
            ("alpha", [alpha for _, alpha, _ in known if alpha is not None]),
            ("beta", [beta for _, _, beta in known if beta is not None]),
        )
        if values
    }
    node = onnx.helper.make_node(
        operation, names, ["Y", "Y_h", "Y_c"][:outputs],
        hidden_size=arrays["R"].shape[2],
        direction="bidirectional" if directions == 2 else "forward",
        activations=[name for name, _, _ in known],
        **parameters,
        **attributes,
    )
    declare = onnx.helper.make_tensor_value_info
    given = [declare(name, onnx.TensorProto.FLOAT, array.shape) for name, array in arrays.items()]
    made = [declare(name, onnx.TensorProto.FLOAT, None) for name in node.output]
    graph = onnx.helper.make_graph([node], "judge", given, made)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    results = session.run(None, arrays)
    side_by_side = [np.concatenate(list(np.moveaxis(results[0], 1, 0)), axis=-1)]
    return side_by_side + [np.concatenate(list(state), axis=-1) for state in results[1:]]


def _gates(array: np.ndarray, order: str, of: str) -> np.ndarray:
    """Reorders the gates of a weight's rows."""
    parts = dict(zip(of, np.split(array, len(of)), strict=False))
    return np.concatenate([parts[gate] for gate in order])


def _sequence(x: np.ndarray, reverse: bool) -> np.ndarray:
    return np.ascontiguousarray(x[::-1]) if reverse else x


def _lstm() -> Iterator[Case]:
    def lstm(label, opset, sequence=3, batch=2, inputs=3, hidden=2, *, dtype="fp32", bias=True, peephole=False,
             direction=None, output_sequence=None, clip=None, scale=1.0, x=None, **activations):
        directions = 2 if direction == "bidirectional" else 1
        label_of = f"lstm-{sequence}-{batch}-{inputs}-{hidden}"
        x = draw(label_of, sequence, batch, inputs, dtype=dtype) if x is None else x
        x = (x * np.float32(scale)).astype(x.dtype)
        state = {name: draw(name, batch, directions * hidden, dtype=dtype) for name in ("initial_h", "initial_c")}
        weights = [
            {
                "weight_ih": draw(f"{label_of}-ih{at}", 4 * hidden, inputs, dtype=dtype, low=-1, high=1),
                "weight_hh": draw(f"{label_of}-hh{at}", 4 * hidden, hidden, dtype=dtype, low=-1, high=1),
            }
            | ({"bias": draw(f"{label_of}-b{at}", 4 * hidden, dtype=dtype)} if bias else {})
            | ({"peephole": draw(f"{label_of}-p{at}", 3 * hidden, dtype=dtype)} if peephole else {})
            for at in range(directions)
        ]
        bound = {"x": x} | state
        for suffix, of_direction in zip(("", "_back"), weights, strict=False):
            bound |= {f"{name}{suffix}": const(value) for name, value in of_direction.items()}
        stated = {"direction": direction, "output_sequence": output_sequence} | activations
        bound |= {name: const(value) for name, value in stated.items() if value is not None}
        if clip is not None:
            bound["clip"] = const(clip, dtype)
        named = [activations.get(name, default) for name, default in
                 (("recurrent_activation", "sigmoid"), ("cell_activation", "tanh"), ("activation", "tanh"))]
        read = _sequence(x, direction == "reverse").astype(np.float32)
        wide = {name: value.astype(np.float32) for name, value in state.items()}
        if clip is None:
            y, h, c = _lstm_of_onnx(read, wide, weights, named)
        else:
            y, h, c = _lstm_by_steps(read, wide, weights, named, clip)
        y = y if output_sequence else _last(y, hidden, directions)
        return case(label, "lstm", opset, bound, [y, h, c], dtypes=[dtype] * 3, **_NEAR)

    for opset, dtype in ((IOS15, "fp32"), (IOS17, "fp16"), (IOS17, "fp32"), (IOS18, "fp32")):
        for direction in (None, "reverse", "bidirectional"):
            for output_sequence in (None, True):
                name = f"{dtype}-{direction or 'default'}-{'every' if output_sequence else 'last'}"
                yield lstm(name, opset, dtype=dtype, direction=direction, output_sequence=output_sequence)
                if opset != IOS18:
                    more = {"dtype": dtype, "direction": direction, "output_sequence": output_sequence}
                    yield lstm(f"{name}-peephole", opset, peephole=True, **more)
                    yield lstm(f"{name}-clip", opset, peephole=True, clip=0.25, **more)
    for opset in (IOS15, IOS17):
        yield lstm("no-bias", opset, bias=False, output_sequence=True)
        yield lstm("no-bias-bidirectional", opset, bias=False, direction="bidirectional", output_sequence=False)
        yield lstm("one", opset, 1, 1, 1, 1, direction="forward")
        yield lstm("one-batch", opset, 6, 1, 2, 3, output_sequence=True)
        yield lstm("one-step", opset, 1, 3, 2, 3, direction="bidirectional", output_sequence=True)
        yield lstm("larger", opset, 5, 4, 7, 9, direction="reverse", output_sequence=True)
        for name in _NAMES:
            yield lstm(f"recurrent-{name}", opset, recurrent_activation=name, output_sequence=True)
            yield lstm(f"cell-{name}", opset, cell_activation=name, output_sequence=True)
            yield lstm(f"output-{name}", opset, activation=name, output_sequence=True)
    yield lstm("activation-in-any-case", IOS15, recurrent_activation="Sigmoid", cell_activation="TANH")
    yield lstm("clip-of-nothing", IOS15, clip=50.0, output_sequence=True)
    yield lstm("saturated", IOS15, scale=1000.0, output_sequence=True)
    poisoned = draw("poisoned", 3, 2, 3)
    poisoned[1, 0, 1] = np.nan
    yield lstm("nan", IOS15, x=poisoned, clip=1.0, output_sequence=True)


def _last(y: np.ndarray, hidden: int, directions: int) -> np.ndarray:
    """The last step of each direction; for the backward one this is the first of the sequence."""
    forward, back = y[-1:, :, :hidden], y[:1, :, hidden:]
    return np.concatenate([forward, back], axis=-1) if directions == 2 else y[-1:]


def _lstm_of_onnx(x, state, weights, activations):
    def stacked(name, order, of):
        return np.stack([_gates(weight[name].astype(np.float32), order, of) for weight in weights])

    directions = len(weights)
    arrays = {"X": x, "W": stacked("weight_ih", "iofz", "ifoz"), "R": stacked("weight_hh", "iofz", "ifoz")}
    if "bias" in weights[0]:
        bias = stacked("bias", "iofz", "ifoz")
        arrays["B"] = np.concatenate([bias, np.zeros_like(bias)], axis=1)
    arrays |= {name: np.stack(np.split(value, directions, axis=1)) for name, value in state.items()}
    if "peephole" in weights[0]:
        arrays["P"] = stacked("peephole", "iof", "ifo")
    return _onnx("LSTM", arrays, activations, 3)


def _lstm_by_steps(x, state, weights, activations, clip):
    apply = {
        "tanh": torch.tanh, "sigmoid": torch.sigmoid,
    }
    recurrent, cell, output = (apply[name] for name in activations)
    directions = len(weights)
    split = {name: np.split(value, directions, axis=1) for name, value in state.items()}
    sequences, last_h, last_c = [], [], []
    for at, weight in enumerate(weights):
        wide = {name: torch.from_numpy(value.astype(np.float64)) for name, value in weight.items()}
        h, c = (torch.from_numpy(split[name][at].astype(np.float64)) for name in ("initial_h", "initial_c"))
        made = []
        for step in torch.from_numpy(x.astype(np.float64)).flip(0) if at else torch.from_numpy(x.astype(np.float64)):
            i, f, o, z = (step @ wide["weight_ih"].T + h @ wide["weight_hh"].T + wide["bias"]).chunk(4, dim=1)
            peep = wide["peephole"].chunk(3) if "peephole" in wide else [torch.zeros(1)] * 3
            after = recurrent(f + peep[1] * c) * c + recurrent(i + peep[0] * c) * cell(z)
            c = after.clamp(-clip, clip)
            h = recurrent(o + peep[2] * c) * output(c)
            made.append(h)
        sequence = torch.stack(made)
        sequences.append((sequence.flip(0) if at else sequence).numpy())
        last_h.append(h.numpy())
        last_c.append(c.numpy())
    return tuple(np.concatenate(parts, axis=-1) for parts in (sequences, last_h, last_c))


def _gru() -> Iterator[Case]:
    def gru(label, opset, sequence=3, batch=2, inputs=3, hidden=2, *, dtype="fp32", bias=True, input_bias=False,
            direction=None, output_sequence=None, reset_after=None, scale=1.0, **activations):
        name_of = f"gru-{sequence}-{batch}-{inputs}-{hidden}"
        x = (draw(name_of, sequence, batch, inputs, dtype=dtype) * np.float32(scale)).astype(np.dtype(dtype.replace("fp", "float")))
        initial = draw("gru-h", batch, hidden, dtype=dtype)
        weights = {
            "weight_ih": draw(f"{name_of}-ih", 3 * hidden, inputs, dtype=dtype, low=-1, high=1),
            "weight_hh": draw(f"{name_of}-hh", 3 * hidden, hidden, dtype=dtype, low=-1, high=1),
        }
        biases = ({"bias": draw(f"{name_of}-b", 3 * hidden, dtype=dtype)} if bias else {}) | (
            {"input_bias": draw(f"{name_of}-ib", 3 * hidden, dtype=dtype)} if input_bias else {}
        )
        bound = {"x": x, "initial_h": initial} | {name: const(value) for name, value in (weights | biases).items()}
        stated = {"direction": direction, "output_sequence": output_sequence, "reset_after": reset_after} | activations
        bound |= {name: const(value) for name, value in stated.items() if value is not None}

        zrh = {name: _gates(value.astype(np.float32), "zro", "roz") for name, value in (weights | biases).items()}
        none = np.zeros(3 * hidden, np.float32)
        arrays = {
            "X": _sequence(x, direction == "reverse").astype(np.float32),
            "W": zrh["weight_ih"][None],
            "R": zrh["weight_hh"][None],
            "B": np.concatenate([zrh.get("input_bias", none), zrh.get("bias", none)])[None],
            "initial_h": initial.astype(np.float32)[None],
        }
        named = [activations.get("recurrent_activation", "sigmoid"), activations.get("activation", "tanh")]
        y, h = _onnx("GRU", arrays, named, 2, linear_before_reset=int(bool(reset_after)))
        return case(label, "gru", opset, bound, [y if output_sequence else y[-1:], h], dtypes=[dtype] * 2, **_NEAR)

    for opset, dtype in ((IOS15, "fp32"), (IOS17, "fp16"), (IOS17, "fp32"), (IOS18, "fp32"), (IOS18, "fp16")):
        for direction in (None, "forward", "reverse"):
            for output_sequence in (None, True):
                more = {"dtype": dtype, "direction": direction, "output_sequence": output_sequence}
                name = f"{dtype}-{direction or 'default'}-{'every' if output_sequence else 'last'}"
                yield gru(name, opset, **more)
                if opset == IOS18:
                    yield gru(f"{name}-reset-after", opset, reset_after=True, input_bias=True, **more)
    for opset in (IOS15, IOS17, IOS18):
        yield gru("no-bias", opset, bias=False, output_sequence=True)
        yield gru("one", opset, 1, 1, 1, 1)
        yield gru("larger", opset, 5, 4, 7, 9, direction="reverse", output_sequence=True)
        yield gru("saturated", opset, scale=1000.0, output_sequence=True)
        for name in _NAMES:
            yield gru(f"recurrent-{name}", opset, recurrent_activation=name, output_sequence=True)
            yield gru(f"output-{name}", opset, activation=name, output_sequence=True)
    yield gru("input-bias", IOS18, input_bias=True, output_sequence=True)
    yield gru("input-bias-alone", IOS18, bias=False, input_bias=True, output_sequence=True)
    yield gru("reset-after", IOS18, reset_after=True, output_sequence=True)
    yield gru("reset-before", IOS18, reset_after=False, input_bias=True, output_sequence=True)
    yield gru("reset-after-input-bias-alone", IOS18, reset_after=True, bias=False, input_bias=True, output_sequence=True)
    yield gru("reset-after-larger", IOS18, 4, 3, 6, 5, reset_after=True, input_bias=True, output_sequence=True)

    # torch's GRU, with its order of gates.
    module = torch.nn.GRU(3, 4)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(torch.from_numpy(draw(f"torch-{name}", *parameter.shape)))
        x, initial = draw("torch-x", 5, 2, 3), draw("torch-h", 2, 4)
        y, h = module(torch.from_numpy(x), torch.from_numpy(initial)[None])
    of_torch = {name: _gates(parameter.detach().numpy(), "rnz", "rzn") for name, parameter in module.named_parameters()}
    bound = {"x": x, "initial_h": initial, "weight_ih": const(of_torch["weight_ih_l0"]), "weight_hh": const(of_torch["weight_hh_l0"]),
             "input_bias": const(of_torch["bias_ih_l0"]), "bias": const(of_torch["bias_hh_l0"]), "reset_after": const(True),
             "output_sequence": const(True)}
    yield case("torch", "gru", IOS18, bound, [y.numpy(), h[0].numpy()], **_NEAR)


def _rnn() -> Iterator[Case]:
    def rnn(label, opset, sequence=3, batch=2, inputs=3, hidden=2, *, dtype="fp32", bias=True, direction=None,
            output_sequence=None, activation=None):
        name_of = f"rnn-{sequence}-{batch}-{inputs}-{hidden}"
        x, initial = draw(name_of, sequence, batch, inputs, dtype=dtype), draw("rnn-h", batch, hidden, dtype=dtype)
        weights = {
            "weight_ih": draw(f"{name_of}-ih", hidden, inputs, dtype=dtype, low=-1, high=1),
            "weight_hh": draw(f"{name_of}-hh", hidden, hidden, dtype=dtype, low=-1, high=1),
        } | ({"bias": draw(f"{name_of}-b", hidden, dtype=dtype)} if bias else {})
        bound = {"x": x, "initial_h": initial} | {name: const(value) for name, value in weights.items()}
        stated = {"direction": direction, "output_sequence": output_sequence, "activation": activation}
        bound |= {name: const(value) for name, value in stated.items() if value is not None}
        wide = {name: value.astype(np.float32) for name, value in weights.items()}
        none = np.zeros(hidden, np.float32)
        arrays = {
            "X": _sequence(x, direction == "reverse").astype(np.float32),
            "W": wide["weight_ih"][None],
            "R": wide["weight_hh"][None],
            "B": np.concatenate([wide.get("bias", none), none])[None],
            "initial_h": initial.astype(np.float32)[None],
        }
        y, h = _onnx("RNN", arrays, [activation or "tanh"], 2)
        return case(label, "rnn", opset, bound, [y if output_sequence else y[-1:], h], dtypes=[dtype] * 2, **_NEAR)

    for opset, dtype in ((IOS15, "fp32"), (IOS17, "fp16"), (IOS17, "fp32")):
        for direction in (None, "forward", "reverse"):
            for output_sequence in (None, True):
                name = f"{dtype}-{direction or 'default'}-{'every' if output_sequence else 'last'}"
                yield rnn(name, opset, dtype=dtype, direction=direction, output_sequence=output_sequence)
    for opset in (IOS15, IOS17):
        yield rnn("no-bias", opset, bias=False, output_sequence=True)
        yield rnn("one", opset, 1, 1, 1, 1)
        yield rnn("larger", opset, 5, 4, 7, 9, direction="reverse", output_sequence=True)
        for name in _NAMES:
            yield rnn(f"activation-{name}", opset, activation=name, output_sequence=True)
