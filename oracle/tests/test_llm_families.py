"""Language models with experts, learned positions, parallel blocks and recurrent layers, compared with transformers."""

import collections
import re

import gguf
import numpy
import torch
import transformers
from safetensors.numpy import load_file

from oracle.tests.test_llm import BLOCK, COMMON, TOKENS, differences, permuted

EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 24, "tie_word_embeddings": False}
GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "n_inner": 80}
LAYER_NORM = {"layer_norm_eps": 1e-5, "head_dim": 16}
MAMBA = {"state_size": 8, "layer_norm_epsilon": 1e-5, "expand": 2, "intermediate_size": 128}
MAMBA2 = MAMBA | {"num_heads": 8, "head_dim": 16}

DELTA = EXPERTS | {
    "num_experts": 5,
    "shared_expert_intermediate_size": 40,
    "head_dim": 32,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "num_hidden_layers": 3,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "partial_rotary_factor": 0.25,
}

# The settings of each family, in addition to the common ones.
FAMILIES = {
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "tie_word_embeddings": False},
    "qwen2_moe": EXPERTS | {"num_experts": 9, "shared_expert_intermediate_size": 40, "norm_topk_prob": False},
    "qwen2_moe_mixed": EXPERTS | {"num_experts": 4, "mlp_only_layers": [0], "norm_topk_prob": True},
    "qwen3_moe": EXPERTS | {"num_experts": 5, "norm_topk_prob": True, "head_dim": 24},
    "qwen3_next": DELTA | {"linear_num_key_heads": 2, "linear_num_value_heads": 4},
    "qwen3_next_mixed": DELTA | {"mlp_only_layers": [0], "linear_num_key_heads": 3, "linear_num_value_heads": 3},
    "olmoe": EXPERTS | {"num_experts": 4, "norm_topk_prob": False},
    "gpt2": GPT2,
    "cohere": LAYER_NORM | {"logit_scale": 0.3},
    "cohere_norms": LAYER_NORM | {"logit_scale": 0.3, "use_qk_norm": True},
    "cohere2": LAYER_NORM | {"logit_scale": 0.3, "sliding_window": 5, "num_hidden_layers": 4},
    "lfm2": {"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"], "norm_eps": 1e-5},
    "lfm2_biased": {"num_hidden_layers": 2, "layer_types": ["full_attention", "conv"], "conv_bias": True, "conv_L_cache": 4},
    "mamba": MAMBA | {"time_step_rank": 5},
    "mamba_biased": MAMBA | {"use_bias": True, "use_conv_bias": False, "conv_kernel": 3},
    "mamba2": MAMBA2 | {"n_groups": 2, "tie_word_embeddings": False},
    "mamba2_limited": MAMBA2 | {"n_groups": 1, "time_step_limit": [0.01, 0.2], "use_bias": True},
}

# The architecture in GGUF files, and llama.cpp's metadata in addition to the common settings.
ARCHITECTURES = {
    "mixtral": ("llama", {"expert_count": 4, "expert_used_count": 2}),
    "qwen2_moe": ("qwen2moe", {"expert_count": 9, "expert_used_count": 2}),
    "qwen3_moe": ("qwen3moe", {"expert_count": 5, "expert_used_count": 2}),
    "qwen3_next": (
        "qwen3next",
        {"expert_count": 5, "expert_used_count": 2, "ssm.group_count": 2, "rope.dimension_count": 8},
    ),
    "olmoe": ("olmoe", {"expert_count": 4, "expert_used_count": 2}),
    "gpt2": ("gpt2", {}),
    "cohere": ("command-r", {"logit_scale": 0.3}),
    "cohere_norms": ("command-r", {"logit_scale": 0.3}),
    "cohere2": ("cohere2", {"logit_scale": 0.3, "attention.sliding_window": 5}),
    "lfm2": ("lfm2", {"shortconv.l_cache": 3}),
    "mamba": ("mamba", {"ssm.time_step_rank": 5}),
    "mamba2": ("mamba2", {"ssm.group_count": 2, "ssm.time_step_rank": 8}),
}

# Endings of the names of tensors that GPT-2 stores transposed.
TRANSPOSED = re.compile(r"\.(c_attn|c_proj|c_fc)\.weight$")
EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(\w+)\.weight$")
EXPERT_PARTS = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}


def model_of(name):
    common = {} if name == "gpt2" else COMMON
    kind = re.sub("_(mixed|norms|biased|limited)$", "", name)
    config = transformers.AutoConfig.for_model(kind, **({"vocab_size": 96} | common | FAMILIES[name]))
    torch.manual_seed(sum(name.encode()))
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval().float()
    with torch.no_grad():
        for parameter in model.parameters():
            # Norms too, so that no weight is 0 or 1.
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def stacked(tensors):
    """The tensors with the experts of each layer stacked, as llama.cpp's converter stores them."""
    experts, others = collections.defaultdict(dict), {}
    for name, array in tensors.items():
        if found := EXPERT.match(name):
            prefix, index, part = found.groups()
            prefix = prefix.replace("block_sparse_moe", "mlp")
            experts[f"{prefix}.{EXPERT_PARTS.get(part, part)}.weight"][int(index)] = array
        else:
            others[name] = array
    for name, parts in experts.items():
        others[name] = numpy.stack([parts[index] for index in range(len(parts))])
    return others


def gguf_tensors(name, config, tensors):
    """Names, without the ending `.weight` if GGUF files omit it, and arrays as llama.cpp's converter stores them."""
    for tensor, array in stacked(tensors).items():
        stem, _, ending = tensor.rpartition(".")
        ending = f".{ending}"
        if name == "mixtral" and "q_proj" in tensor:
            array = permuted(array, config.num_attention_heads)
        if name == "mixtral" and "k_proj" in tensor:
            array = permuted(array, config.num_key_value_heads)
        if TRANSPOSED.search(tensor) and name == "gpt2":
            array = array.T
        if ("conv" in tensor and array.ndim == 3) or "shared_expert_gate" in tensor:
            array = array.squeeze()
        if tensor.endswith(("A_log", ".D")):
            stem, ending = tensor, ""
            array = -numpy.exp(array) if tensor.endswith("A_log") else array
            array = array[:, None] if array.ndim == 1 and name == "mamba2" else array
        if tensor.endswith("dt_bias"):
            stem, ending = tensor.replace("dt_bias", "dt_proj"), ".bias"
        if tensor.endswith("mixer.norm.weight"):
            array = array.reshape(config.n_groups, -1)
        if name == "qwen3_next" and "norm" in tensor and "linear_attn" not in tensor:
            array = array + 1
        yield stem, ending, numpy.ascontiguousarray(array)


def with_separate_gate(config, tensors):
    """The tensors of gated delta nets as later versions of llama.cpp's converter store them: gates are a separate tensor."""
    keys, head = config.linear_num_key_heads, config.linear_key_head_dim
    values = config.linear_num_value_heads // keys * config.linear_value_head_dim
    for name, array in tensors.items():
        if "in_proj_qkvz" not in name:
            yield name, array
            continue
        parts = numpy.split(array.reshape(keys, -1, array.shape[1]), [head, 2 * head, 2 * head + values], axis=1)
        *qkv, gate = (part.reshape(-1, array.shape[1]) for part in parts)
        yield name.replace("qkvz", "qkv"), numpy.concatenate(qkv)
        yield name.replace("qkvz", "z"), gate


def write_gguf(path, name, config, tensors):
    architecture, extra = ARCHITECTURES[name]
    writer = gguf.GGUFWriter(path, architecture)
    layers = config.num_hidden_layers
    writer.add_block_count(layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_context_length(64)
    if "mamba" in name:
        writer.add_head_count(0)
    else:
        writer.add_head_count(config.num_attention_heads)
    if name == "lfm2":
        kinds = config.layer_types
        writer.add_head_count_kv([config.num_key_value_heads if "attention" in kind else 0 for kind in kinds])
    elif name != "gpt2" and "mamba" not in name:
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_key_length(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    if name == "gpt2" or "cohere" in name:
        writer.add_layer_norm_eps(1e-5)
    else:
        writer.add_layer_norm_rms_eps(1e-5)
    if hasattr(config, "rope_parameters"):
        writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    for key, value in extra.items():
        add = writer.add_uint32 if isinstance(value, int) else writer.add_float32
        add(f"{architecture}.{key}", value)
    kind = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == architecture)
    names = gguf.get_tensor_name_map(kind, layers)
    for stem, ending, array in gguf_tensors(name, config, tensors):
        found = names.get_name(stem)
        assert found, stem
        writer.add_tensor(f"{found}{ending}", array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# Tokens per block, if not `BLOCK`. In longer blocks, recurrent layers run loops, and all experts are read.
BLOCKS = {"mamba": 10, "mamba2": 10, "qwen2_moe": 4, "qwen3_next": 10}


def test_family_logits_match_transformers(tmp_path):
    cases, expected = [], {}
    for name in FAMILIES:
        model = model_of(name)
        folder = tmp_path / name
        model.save_pretrained(folder)
        forms = {"folder": folder}
        if name in ARCHITECTURES:
            forms["gguf"] = tmp_path / f"{name}.gguf"
            write_gguf(forms["gguf"], name, model.config, load_file(folder / "model.safetensors"))
        if name == "qwen3_next":
            forms["gguf_separate"] = tmp_path / f"{name}_separate.gguf"
            tensors = load_file(folder / "model.safetensors")
            write_gguf(forms["gguf_separate"], name, model.config, dict(with_separate_gate(model.config, tensors)))
        with torch.no_grad():
            logits = model(torch.tensor([TOKENS])).logits[0].double().numpy()
        block = BLOCKS.get(name, BLOCK)
        for form, path in forms.items():
            case = {"name": f"{name}_{form}", "model": str(path), "block": block, "tokens": TOKENS}
            cases.append(case)
            expected[case["name"]] = logits
        cases.append(case | {"name": f"{name}_last", "last": True})
        expected[f"{name}_last"] = logits[block - 2 :]
    failures = differences(tmp_path, cases, expected)
    assert not failures, "\n".join(failures)


def test_rejects_unsupported_families(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "rwkv"}')
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "rwkv6")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    cases = [{"name": "folder", "model": str(folder)}, {"name": "gguf", "model": str(tmp_path / "model.gguf")}]
    failures = differences(tmp_path, cases, {"folder": None, "gguf": None})
    for failure, name in zip(failures, ["rwkv", "rwkv6"], strict=True):
        assert f"model family `{name}` is not supported; expected llama, mistral, qwen2" in failure
        assert failure.endswith("lfm2, mamba, mamba2")
