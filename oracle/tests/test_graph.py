"""Models built in Rust with `coremill::graph`, compared with torch, coremltools and gguf."""

import json
import re

import gguf
import numpy
import pytest
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file

from oracle.checkers.programs import loads_in_coremltools, milproto, read
from oracle.corpora.graph_cases import cases
from oracle.support.cargo import run_example
from oracle.support.distance import Mismatch, distance, strain
from oracle.support.sampling import every

# Step of the sample of cases per precision.
SAMPLED = every(3)

# Maximum difference, relative to the largest expected number or 1.
TOLERANCE = {"fp32": 2e-4, "fp16": 3e-2}

# coremltools loads packages slowly, so it checks only every n-th package.
READ = every(10)


def test_graph_modules_match_torch(tmp_path):
    described, expected = [], {}
    for number, case in enumerate(cases()):
        for precision in ("fp32", "fp16"):
            if (number + (precision == "fp16")) % SAMPLED:
                continue
            name = f"{number}_{case.module}_{precision}"
            tensors = {f"input.{key}": value.float() for key, value in case.inputs.items()} | case.params
            save_file({key: value.contiguous().clone() for key, value in tensors.items()}, tmp_path / f"{name}.safetensors")
            described.append({"name": name, "module": case.module, "config": case.config, "precision": precision})
            expected[name] = (precision, case)
    (tmp_path / "cases.json").write_text(json.dumps(described))
    run_example("modules", tmp_path)

    failures = []
    for at, (name, (precision, case)) in enumerate(expected.items()):
        result = json.loads((tmp_path / f"{name}.json").read_text())
        if "error" in result:
            failures.append(f"{name} {case.config}: {result['error']}")
            continue
        if at % READ == 0:
            failures += [f"{name}: {error}" for error in loads_in_coremltools(tmp_path / f"{name}.mlpackage")]
        assert len(result["outputs"]) == len(case.expected), name
        for found, wanted in zip(result["outputs"], case.expected, strict=False):
            # Larger magnitudes occur only in masks.
            wanted = wanted.double().numpy().clip(-3e4, 3e4)
            found = numpy.array(found["elements"], numpy.float64).reshape(found["shape"])
            scale = max(1.0, abs(numpy.where(wanted <= -3e4, 0, wanted)).max())
            try:
                error = strain(found, wanted, relative=0.0, absolute=scale)
            except Mismatch as mismatch:
                failures.append(f"{name} {case.config}: {mismatch}")
                continue
            if not error <= TOLERANCE[precision]:
                failures.append(f"{name} {case.config}: differs by {error:.2e}")
    assert not failures, f"{len(failures)} of {len(expected)} fail:\n" + "\n".join(failures)
    print(f"{len(expected)} cases")


# Offsets of the fp16 numbers in a block of random bytes, by scheme.
HALVES = {
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0],
    "TQ1_0": [52], "TQ2_0": [64],
}

SCHEMES = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", *HALVES, "Q8_K", "MXFP4"]

# Schemes that stay compressed because Core ML's constants represent them exactly, by the precision of the program.
# TQ1_0 needs 2 bits instead of 1.6.
EXACT = {
    "fp16": {"F16", "Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "TQ2_0", "MXFP4"},
    "fp32": set(SCHEMES) - {"BF16", "TQ1_0"},
}


# Maximum size of the package relative to the GGUF file, for schemes where it exceeds 1.03.
LARGER = {"MXFP4": 1.07}


def blocks(scheme, shape, generator):
    """Random weights in a scheme, as bytes, and their decoded values."""
    kind = getattr(gguf.GGMLQuantizationType, scheme)
    per_block, size = gguf.GGML_QUANT_SIZES[kind]
    if scheme == "Q8_K":
        # The package `gguf` cannot quantize to this scheme. A block has a scale, 256 codes, and unused sums.
        scales = generator.standard_normal((*shape[:-1], shape[-1] // 256, 1)).astype(numpy.float32)
        codes = generator.integers(-128, 128, (*scales.shape[:-1], 256), dtype=numpy.int8)
        sums = numpy.zeros((*scales.shape[:-1], 16), numpy.int16)
        data = numpy.concatenate([part.view(numpy.uint8) for part in (scales, codes, sums)], -1)
        return kind, data.reshape(*shape[:-1], -1), (scales * codes.astype(numpy.float32)).reshape(shape)
    if scheme in HALVES:
        data = generator.integers(0, 256, (*shape[:-1], shape[-1] // per_block, size), dtype=numpy.uint8)
        for at in HALVES[scheme]:
            scales = generator.standard_normal(data.shape[:-1]).astype(numpy.float16)
            data[..., at : at + 2] = scales[..., None].view(numpy.uint8)
        data = data.reshape(*shape[:-1], -1)
    else:
        data = gguf.quants.quantize(generator.standard_normal(shape).astype(numpy.float32), kind)
    return kind, data, gguf.quants.dequantize(data, kind).astype(numpy.float32).reshape(shape)


def materialized(value):
    """The value of a constant as coremltools decompresses it; coremltools ignores offsets that are computed."""
    if value.val is not None:
        return value.val
    op = value.op
    if op.op_type == "constexpr_blockwise_shift_scale":
        parts = (op.data, op.scale, op.offset)
        return type(op).decompress(*(None if part is None else materialized(part) for part in parts))
    return op.materialized_val_inference()


def stored(path):
    """The weights of a package as coremltools reads them, and their size in bytes."""
    package = read(path)
    program = milproto.load(package.model, package.model.specificationVersion, str(package.folder / "weights"))
    (product,) = program.functions["main"].find_ops(op_type="mul")
    (weights,) = [value for value in (product.x, product.y) if value.op is not None and "const" in value.op.op_type]
    return materialized(weights), (package.folder / "weights/weight.bin").stat().st_size


def test_gguf_weights_are_bit_exact(tmp_path):
    generator = numpy.random.default_rng(3)
    writer = gguf.GGUFWriter(tmp_path / "weights.gguf", "llama")
    expected, sizes = {}, {}
    shapes = dict.fromkeys(SCHEMES, (256, 1024))
    shapes |= {f"experts.{scheme}": (3, 8, 256) for scheme in ("Q4_0", "Q5_0", "Q5_1", "Q4_K", "Q6_K", "MXFP4")}
    for name, shape in shapes.items():
        kind, data, wanted = blocks(name.split(".")[-1], shape, generator)
        writer.add_tensor(name, data, raw_dtype=kind)
        expected[name], sizes[name] = wanted, data.nbytes
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    run_example("weights", tmp_path / "weights.gguf", tmp_path)

    def bits(array):
        return array.view(numpy.uint16 if array.dtype == numpy.float16 else numpy.uint32)

    for name, wanted in expected.items():
        scheme = name.split(".")[-1]
        for run in ("f32", "run.f32"):
            found = numpy.fromfile(tmp_path / f"{name}.{run}", numpy.float32).reshape(wanted.shape)
            assert (bits(found) == bits(wanted)).all(), f"{name}.{run}"
        for precision, dtype in (("fp32", numpy.float32), ("fp16", numpy.float16)):
            path = tmp_path / f"{name}.{precision}.mlpackage"
            assert loads_in_coremltools(path) == [], path.name
            found, size = stored(path)
            assert found.dtype == dtype and (bits(found) == bits(wanted.astype(dtype))).all(), path.name
            limit = sizes[name] * LARGER.get(scheme, 1.03) if scheme in EXACT[precision] else wanted.size * dtype().itemsize * 1.01
            ratio = size / sizes[name]
            if "experts" not in name:
                print(f"{path.name}: {ratio:.3f} times the size in GGUF")
                assert size <= limit, f"{path.name} has {ratio:.3f} times the size in GGUF"
        if scheme in EXACT["fp16"] or scheme in ("F32", "BF16"):
            continue
        path = tmp_path / f"{name}.rounded.mlpackage"
        assert loads_in_coremltools(path) == [], path.name
        found, size = stored(path)
        # Groups have at least 16 weights. An offset may be larger than the weights of its group, and is rounded, too.
        magnitude = abs(wanted).reshape(-1, 16).max(1, keepdims=True) if scheme in ("Q3_K", "Q6_K", "Q8_K") else abs(wanted).max()
        error = abs(found.astype(numpy.float32) - wanted).reshape(-1, 16) / numpy.maximum(magnitude, 1e-3)
        assert error.max() < 2e-3, f"{path.name} differs by {error.max():.1e}"
        assert "experts" in name or scheme == "TQ1_0" or size < sizes[name] * 1.03, f"{path.name} has {size} bytes"


def permuted(weight, heads):
    """Rows of queries and keys in llama.cpp's order, with interleaved pairs."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(weight.shape)


GGUF_NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}


def test_llama_example_logits_match_transformers(tmp_path):
    torch.manual_seed(5)
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=128, max_position_embeddings=64, tie_word_embeddings=False,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(tmp_path)
    tokens = [3, 17, 99, 4, 120, 8, 55]
    # The state in the Rust example is fp16, as in Core ML.
    for weights, tolerance in (("model.safetensors", 2e-3), ("F16.gguf", 2e-3), ("Q8_0.gguf", 2e-3)):
        reference = model
        if weights.endswith(".gguf"):
            kind = getattr(gguf.GGMLQuantizationType, weights.split(".")[0])
            reference = transformers.LlamaForCausalLM(config).eval()
            writer, state = gguf.GGUFWriter(tmp_path / weights, "llama"), {}
            for name, value in model.state_dict().items():
                array = value.numpy()
                heads = {"q_proj": 4, "k_proj": 2}.get(name.split(".")[-2])
                stored = permuted(array, heads) if heads else array
                top = {"model.embed_tokens.weight": "token_embd", "model.norm.weight": "output_norm", "lm_head.weight": "output"}
                if name in top:
                    target = top[name]
                else:
                    _, _, layer, *rest, _ = name.split(".")
                    target = f"blk.{layer}.{GGUF_NAMES['.'.join(rest)]}"
                if array.ndim == 2:
                    data = gguf.quants.quantize(stored, kind)
                    writer.add_tensor(f"{target}.weight", data, raw_dtype=kind)
                    back = gguf.quants.dequantize(data, kind).astype(numpy.float32)
                    if heads:
                        back = back.reshape(heads, array.shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(array.shape)
                    state[name] = torch.from_numpy(back.copy())
                else:
                    writer.add_tensor(f"{target}.weight", stored)
                    state[name] = value
            for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
                step()
            reference.load_state_dict(state)
        with torch.no_grad():
            expected = reference(torch.tensor([tokens])).logits[0].numpy()
        printed = run_example("llama", tmp_path / weights, *tokens)
        found = numpy.array([[float(x) for x in line.split()] for line in printed.splitlines()])
        error = distance(found, expected)
        assert error < tolerance, f"{weights}: differs by {error:.1e}"


# llama.cpp's names of a layer's parts.
LAYER_NAMES = {
    "input_layernorm": "attn_norm", "norm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp", "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp", "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mixer.in_proj": "ssm_in", "linear_attn.in_proj_qkvz": "ssm_in", "linear_attn.in_proj_ba": "ssm_ba",
    "mixer.x_proj": "ssm_x", "mixer.dt_proj": "ssm_dt",
}
TOP_NAMES = {
    "model.embed_tokens": "token_embd", "backbone.embeddings": "token_embd", "model.norm": "output_norm",
    "backbone.norm_f": "output_norm", "lm_head": "output",
}


def gguf_name(name):
    plain, ending = name.rsplit(".", 1)
    if ending not in ("weight", "bias"):
        plain, ending = name, None
    if plain in TOP_NAMES:
        return f"{TOP_NAMES[plain]}.{ending}"
    _, _, layer, part = plain.split(".", 3)
    mixer = part.split(".")[-1]
    single = {"A_log": "ssm_a", "D": "ssm_d", "dt_bias": "ssm_dt.bias", "conv1d": "ssm_conv1d", "out_proj": "ssm_out", "norm": "ssm_norm"}
    target = single[mixer] if part.startswith(("mixer.", "linear_attn.")) and mixer in single else LAYER_NAMES[part]
    return f"blk.{layer}.{target}" + (f".{ending}" if ending else "")


def written_as_gguf(model, path, scheme):
    """Writes the weights of a model in a scheme. Returns the decoded weights."""
    kind = getattr(gguf.GGMLQuantizationType, scheme)
    writer, state, experts = gguf.GGUFWriter(path, "llama"), {}, {}
    stored = {}
    with safe_open(path.parent / "model.safetensors", "pt") as file:
        for name in file.keys():
            stored[name] = file.get_tensor(name).numpy()
    for name, array in stored.items():
        expert = re.fullmatch(r"(.*\.mlp\.experts)\.(\d+)\.(\w+)_proj\.weight", name)
        quantized = array
        is_matrix = array.ndim == 2 and array.shape[1] % 32 == 0 and "A_log" not in name
        if is_matrix:
            data = gguf.quants.quantize(array, kind)
            quantized = gguf.quants.dequantize(data, kind).astype(numpy.float32)
        state[name] = torch.from_numpy(quantized.copy())
        if expert:
            layer = expert[1].split(".")[2]
            experts.setdefault(f"blk.{layer}.ffn_{expert[3]}_exps.weight", []).append(data)
        elif is_matrix:
            writer.add_tensor(gguf_name(name), data, raw_dtype=kind)
        else:
            writer.add_tensor(gguf_name(name), -numpy.exp(array) if name.endswith("A_log") else array)
    for name, data in experts.items():
        writer.add_tensor(name, numpy.stack(data), raw_dtype=kind)
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    return state


SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 96, "tie_word_embeddings": False}
ATTENTION = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
DECODERS = {
    "qwen2_moe": lambda: transformers.Qwen2MoeForCausalLM(transformers.Qwen2MoeConfig(
        **SMALL, **ATTENTION, intermediate_size=96, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=32,
        shared_expert_intermediate_size=64, norm_topk_prob=True,
    )),
    "mamba": lambda: transformers.MambaForCausalLM(transformers.MambaConfig(
        **SMALL, state_size=8, conv_kernel=4, expand=2, time_step_rank=4, use_cache=False,
    )),
    "qwen3_next": lambda: transformers.Qwen3NextForCausalLM(transformers.Qwen3NextConfig(
        **SMALL, **ATTENTION, intermediate_size=96, head_dim=16, num_experts=0, mlp_only_layers=[0, 1],
        layer_types=["linear_attention"] * 2, linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=16,
        linear_value_head_dim=8, linear_conv_kernel_dim=4,
    )),
}

# Maximum difference of logits from transformers' relative to the largest: the host keeps states in fp32.
STATE_DRIFT = 1e-4

# Error of quantizing these random models, relative to the largest logit.
COST = {"F16": 5e-3, "Q8_0": 0.12, "Q4_0": 1.0}


@pytest.mark.parametrize("kind", DECODERS)
def test_decoder_example_logits_match_transformers(kind, tmp_path):
    torch.manual_seed(5)
    model = DECODERS[kind]().eval()
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1 and "A_log" not in name:
            torch.nn.init.normal_(parameter, std=0.12)
    model.save_pretrained(tmp_path)
    tokens = [3, 17, 90, 4, 52, 8, 55, 31, 9, 77]

    def logits(of):
        with torch.no_grad():
            return of(torch.tensor([tokens]), use_cache=False).logits[0].numpy()

    plain = logits(model)
    for weights in ("model.safetensors", "F16.gguf", "Q8_0.gguf", "Q4_0.gguf"):
        expected = plain
        if weights.endswith(".gguf"):
            scheme = weights.split(".")[0]
            state = written_as_gguf(model, tmp_path / weights, scheme)
            save_file(state, tmp_path / "quantized.safetensors", metadata={"format": "pt"})
            directory = tmp_path / scheme
            directory.mkdir()
            (directory / "config.json").write_text((tmp_path / "config.json").read_text())
            (tmp_path / "quantized.safetensors").rename(directory / "model.safetensors")
            expected = logits(type(model).from_pretrained(directory).eval())
            cost = distance(expected, plain)
            print(f"{kind} in {scheme}: quantization costs {cost:.1e}")
            assert cost < COST[scheme], f"{scheme} costs {cost:.1e}"
        printed = run_example("decoders", tmp_path / "config.json", tmp_path / weights, *tokens)
        found = numpy.array([[float(x) for x in line.split()] for line in printed.splitlines()])
        assert found.shape == expected.shape
        drift = distance(found, expected)
        print(f"{kind} from {weights}: {drift:.1e} from transformers")
        assert drift < STATE_DRIFT, f"{weights}: differs by {drift:.1e}"
