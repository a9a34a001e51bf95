"""Cases of `coremill::graph::nn`, each with a torch module or a formula as reference."""

import itertools
import math

import torch
import torch.nn.functional as F
from torch import nn


class Case:
    """A layer's configuration, inputs and parameters, and the expected outputs."""

    def __init__(self, module, config, inputs, params, expected):
        self.module, self.config = module, config
        self.inputs, self.params, self.expected = inputs, params, expected


def named(module):
    """The parameters and buffers of a torch module by the names that the cases use."""
    return {f"m.{name}": value for name, value in module.state_dict().items() if value.dtype == torch.float32}


def randomized(module):
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)
    for name, buffer in module.named_buffers():
        if name.endswith("running_mean"):
            nn.init.normal_(buffer, std=0.3)
        if name.endswith("running_var"):
            nn.init.uniform_(buffer, 0.5, 2.0)
    return module.eval()


def of_module(name, config, module, x):
    randomized(module)
    return Case(name, config, {"x": x}, named(module), [module(x)])


def layers():
    for shape, outputs, bias in itertools.product([(2, 7), (1, 5, 12), (2, 3, 4, 6)], [1, 9], [True, False]):
        yield of_module("linear", {"outputs": outputs, "bias": bias}, nn.Linear(shape[-1], outputs, bias), torch.randn(shape))
    for rows, width, shape in [(11, 5, (4,)), (300, 8, (2, 6)), (5000, 3, (7,))]:
        table = randomized(nn.Embedding(rows, width))
        ids = torch.randint(rows, shape)
        yield Case("embedding", {"rows": rows, "width": width}, {"x": ids}, named(table), [table(ids)])
    for rank, alpha in [(1, 2.0), (4, 8.0), (3, 1.0)]:
        base, down, up = (randomized(m) for m in (nn.Linear(10, 6), nn.Linear(10, rank, False), nn.Linear(rank, 6, False)))
        x = torch.randn(3, 10)
        params = named(base) | {"m.lora_A.weight": down.weight, "m.lora_B.weight": up.weight}
        yield Case("lora", {"outputs": 6, "rank": rank, "alpha": alpha}, {"x": x}, params, [base(x) + up(down(x)) * alpha / rank])


def convolutions():
    modules = [None, nn.Conv1d, nn.Conv2d, nn.Conv3d]
    transposes = [None, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d]
    sizes = [None, (13,), (9, 11), (5, 6, 7)]
    for dims, stride, padding, dilation, groups in itertools.product([1, 2, 3], [1, 2], [0, 1], [1, 2], [1, 2]):
        kernel = [3, 2, 3][:dims]
        settings = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        bias = stride == 1
        config = {"outputs": 6, "kernel": kernel, "bias": bias, "groups": groups} | {
            key: [value] * dims for key, value in (("stride", stride), ("padding", padding), ("dilation", dilation))
        }
        x = torch.randn(2, 4, *sizes[dims])
        yield of_module("conv", config, modules[dims](4, 6, kernel, bias=bias, **settings), x)
        # Grouped and dilated 3-d transposed convolutions are excluded, since Core ML does not run them well.
        for output_padding in range(2 if stride == 2 else 1):
            layer = transposes[dims](4, 6, kernel, bias=bias, output_padding=output_padding, **settings)
            yield of_module("conv_transpose", config | {"output_padding": [output_padding] * dims}, layer, x)


def pools():
    for dims, kernel, stride, padding in itertools.product([1, 2, 3], [2, 3], [1, 2], [0, 1]):
        x = torch.randn(1, 3, *(7, 8, 9)[:dims])
        config = {key: [value] * dims for key, value in (("kernel", kernel), ("stride", stride), ("padding", padding))}
        yield Case("max_pool", config, {"x": x}, {}, [(F.max_pool1d, F.max_pool2d, F.max_pool3d)[dims - 1](x, kernel, stride, padding)])
        for counts in (True, False):
            pool = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)[dims - 1](kernel, stride, padding, count_include_pad=counts)
            yield Case("avg_pool", config | {"count_padding": counts}, {"x": x}, {}, [pool(x)])
    for windows in [(1, 1), (2, 3), (4, 6)]:
        x = torch.randn(2, 3, 8, 12)
        yield Case("adaptive_avg_pool", {"windows": windows}, {"x": x}, {}, [F.adaptive_avg_pool2d(x, windows)])
    for height, width in [(2, 2), (3, 1), (1, 4)]:
        x = torch.randn(1, 2, 4, 5)
        yield Case("resize_nearest", {"height": height, "width": width}, {"x": x}, {}, [F.interpolate(x, scale_factor=(height, width))])
    for size, align in itertools.product([(8, 10), (7, 3), (5, 13)], [True, False]):
        x = torch.randn(1, 2, 4, 5)
        config = {"height": size[0], "width": size[1], "align_corners": align}
        yield Case("resize_bilinear", config, {"x": x}, {}, [F.interpolate(x, size, mode="bilinear", align_corners=align)])


def norms():
    for shape, epsilon in itertools.product([(2, 8), (1, 5, 12), (2, 3, 4, 16)], [1e-5, 1e-3]):
        x = torch.randn(shape) * 2 + 0.5
        yield of_module("layer_norm", {"epsilon": epsilon}, nn.LayerNorm(shape[-1], epsilon), x)
        yield of_module("rms_norm", {"epsilon": epsilon}, nn.RMSNorm(shape[-1], epsilon), x)
        gemma = randomized(nn.RMSNorm(shape[-1], epsilon))
        plain = nn.RMSNorm(shape[-1], epsilon, elementwise_affine=False)
        yield Case("rms_norm", {"epsilon": epsilon, "one_more": True}, {"x": x}, named(gemma), [plain(x) * (1 + gemma.weight)])
        scale, shift = torch.randn(shape[-1]), torch.randn(shape[-1])
        expected = F.layer_norm(x, shape[-1:], eps=epsilon) * (1 + scale) + shift
        yield Case("adaptive_norm", {"epsilon": epsilon}, {"x": x, "scale": scale, "shift": shift}, {}, [expected])
    for spatial, groups in itertools.product([(9,), (4, 5), (3, 4, 2)], [1, 2, 6]):
        x = torch.randn(2, 6, *spatial) + 0.3
        yield of_module("group_norm", {"groups": groups, "epsilon": 1e-5}, nn.GroupNorm(groups, 6), x)
    for dims, spatial in enumerate([(9,), (4, 5), (3, 4, 2)]):
        x = torch.randn(2, 6, *spatial) + 0.3
        yield of_module("batch_norm", {"epsilon": 1e-5}, (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[dims](6), x)
        instance = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)[dims]
        for affine in (True, False):
            yield of_module("instance_norm", {"epsilon": 1e-5, "affine": affine}, instance(6, affine=affine), x)
    for shape in [(1, 4, 3, 5), (2, 8, 2, 2)]:
        x, norm = torch.randn(shape), randomized(nn.LayerNorm(shape[1], 1e-6))
        expected = norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        yield Case("layer_norm_2d", {"epsilon": 1e-6}, {"x": x}, named(norm), [expected])


def activations():
    functions = {
        "relu": F.relu, "relu6": F.relu6, "leaky_relu": lambda x: F.leaky_relu(x, 0.1), "elu": lambda x: F.elu(x, 0.7),
        "celu": lambda x: F.celu(x, 1.3), "selu": F.selu, "gelu": F.gelu,
        "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu, "sigmoid": torch.sigmoid,
        "logsigmoid": F.logsigmoid, "hardsigmoid": F.hardsigmoid, "hardswish": F.hardswish, "hardtanh": F.hardtanh,
        "tanh": torch.tanh, "mish": F.mish, "softplus": F.softplus, "softsign": F.softsign, "tanhshrink": F.tanhshrink,
    }
    for (kind, function), shape in itertools.product(functions.items(), [(17,), (2, 3, 4)]):
        x = torch.randn(shape) * 3
        yield Case("activation", {"kind": kind}, {"x": x}, {}, [function(x)])


def frequencies(rotated, scaling, factor, original, theta=10000.0, positions=0):
    """The frequencies of transformers' rotary embedding."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parameters = {"rope_theta": theta, "rope_type": scaling}
    if scaling == "linear":
        parameters |= {"factor": factor}
    if scaling == "yarn":
        parameters |= {"factor": factor, "original_max_position_embeddings": original}
    if scaling == "llama3":
        parameters |= {"factor": factor, "original_max_position_embeddings": original, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    config = LlamaConfig(
        hidden_size=rotated, num_attention_heads=1, head_dim=rotated, max_position_embeddings=original,
        rope_theta=theta, rope_scaling=None if scaling == "none" else parameters,
    )
    if scaling == "ntk":
        return 1.0 / (theta * factor ** (rotated / (rotated - 2))) ** (torch.arange(0, rotated, 2).float() / rotated), 1.0
    if scaling == "none":
        return 1.0 / theta ** (torch.arange(0, rotated, 2).float() / rotated), 1.0
    return ROPE_INIT_FUNCTIONS[scaling](config, "cpu")


def turned(x, cos, sin, interleaved):
    if interleaved:
        first, second = x[..., 0::2], x[..., 1::2]
        return torch.stack([first * cos - second * sin, second * cos + first * sin], -1).flatten(-2)
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def ropes():
    for scaling, interleaved, rotated, head in itertools.product(
        ["none", "linear", "ntk", "yarn", "llama3"], [False, True], [16, 8], [16]
    ):
        factor, original = 4.0, 64
        inverse, attention = frequencies(rotated, scaling, factor, original)
        x = torch.randn(2, 3, 20, head)
        angles = torch.arange(20).float()[:, None] * inverse
        cos, sin = angles.cos() * attention, angles.sin() * attention
        expected = torch.cat([turned(x[..., :rotated], cos, sin, interleaved), x[..., rotated:]], -1)
        config = {"rotated": rotated, "interleaved": interleaved, "scaling": scaling, "factor": factor, "original": original}
        yield Case("rope", config, {"x": x}, {}, [expected])
    for height, width, head in [(3, 4, 8), (2, 2, 16)]:
        x = torch.randn(1, 2, height * width, head)
        inverse = 1.0 / 10000.0 ** (torch.arange(0, head, 4)[: head // 4].float() / head)
        at = torch.arange(height * width)
        angles = torch.cat([(at % width)[:, None] * inverse, (at // width)[:, None] * inverse], -1)
        expected = torch.view_as_real(
            torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * torch.polar(torch.ones_like(angles), angles)
        ).flatten(-2)
        yield Case("axial_rope", {"height": height, "width": width}, {"x": x}, {}, [expected])


def attended(q, k, v, scale=None, causal=False, window=None, bias=None, soft_cap=None, sinks=None):
    repeat = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
    scores = q @ k.mT * (scale or q.shape[-1] ** -0.5)
    if soft_cap:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    if bias is not None:
        scores = scores + bias
    place = torch.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2]
    key = torch.arange(k.shape[2])[None]
    if causal or window:
        scores = scores.masked_fill(key > place, -math.inf)
    if window:
        scores = scores.masked_fill(key + window <= place, -math.inf)
    if sinks is None:
        return scores.softmax(-1) @ v
    sinks = sinks.reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
    return torch.cat([scores, sinks], -1).softmax(-1)[..., :-1] @ v


def attentions():
    settings = [
        {}, {"causal": True}, {"window": 3}, {"soft_cap": 2.0}, {"scale": 0.3}, {"bias": True}, {"sinks": True},
        {"causal": True, "soft_cap": 1.5, "sinks": True},
    ]
    for (heads, kv_heads), (queries, keys), setting in itertools.product([(4, 4), (6, 2), (4, 1)], [(7, 7), (2, 9)], settings):
        q = torch.randn(2, heads, queries, 8)
        k, v = torch.randn(2, kv_heads, keys, 8), torch.randn(2, kv_heads, keys, 8)
        inputs, given = {"q": q, "k": k, "v": v}, dict(setting)
        if setting.get("bias"):
            inputs["bias"] = given["bias"] = torch.randn(heads, queries, keys)
        if setting.get("sinks"):
            inputs["sinks"] = given["sinks"] = torch.randn(heads)
        config = {key: value for key, value in setting.items() if key not in ("bias", "sinks")}
        yield Case("attention", config, inputs, {}, [attended(q, k, v, **given)])
    for heads, kv_heads, bias in itertools.product([4], [4, 2, 1], [False, True]):
        width, head, length = 24, 8, 6
        projections = {
            "q_proj": nn.Linear(width, heads * head, bias), "k_proj": nn.Linear(width, kv_heads * head, bias),
            "v_proj": nn.Linear(width, kv_heads * head, bias), "o_proj": nn.Linear(heads * head, width, bias),
        }
        params = {}
        for name, projection in projections.items():
            params |= {f"m.{name}.{key}": value for key, value in randomized(projection).state_dict().items()}
        x = torch.randn(2, length, width)
        split = lambda name, count: projections[name](x).view(2, length, count, head).transpose(1, 2)
        angles = torch.arange(length).float()[:, None] * frequencies(head, "none", 1.0, 64)[0]
        q, k = (turned(split(n, c), angles.cos(), angles.sin(), False) for n, c in (("q_proj", heads), ("k_proj", kv_heads)))
        y = attended(q, k, split("v_proj", kv_heads), causal=True).transpose(1, 2).flatten(2)
        config = {"heads": heads, "kv_heads": kv_heads, "head": head, "bias": bias, "causal": True}
        yield Case("attention_layer", config, {"x": x}, params, [projections["o_proj"](y)])
    for heads, plain, rotated, value, rank in [(2, 6, 4, 5, 7), (4, 8, 8, 8, 16)]:
        q, latent = torch.randn(1, heads, 5, plain + rotated), torch.randn(1, 5, rank)
        shared, up = torch.randn(1, 1, 5, rotated), torch.randn(heads * (plain + value), rank) * 0.3
        both = (latent @ up.T).view(1, 5, heads, plain + value).transpose(1, 2)
        key = torch.cat([both[..., :plain], shared.expand(1, heads, 5, rotated)], -1)
        config = {"heads": heads, "plain": plain, "value": value, "rank": rank, "causal": True}
        inputs = {"q": q, "latent": latent, "shared": shared}
        yield Case("latent_attention", config, inputs, {"up": up}, [attended(q, key, both[..., plain:], causal=True)])


def experts():
    for count, visited, normalized, shared in itertools.product([4, 8], [1, 2], [True, False], [None, 10]):
        tokens, inputs, width = 5, 12, 7
        x = torch.randn(tokens, inputs)
        gate = torch.randn(count, inputs)
        w = {name: torch.randn(count, *shape) * 0.3 for name, shape in
             (("gate_proj", (width, inputs)), ("up_proj", (width, inputs)), ("down_proj", (inputs, width)))}
        weights, chosen = (x @ gate.T).softmax(-1).topk(visited)
        if normalized:
            weights = weights / weights.sum(-1, keepdim=True)
        y = torch.zeros_like(x)
        for token in range(tokens):
            for weight, at in zip(weights[token], chosen[token], strict=False):
                inner = F.silu(w["gate_proj"][at] @ x[token]) * (w["up_proj"][at] @ x[token])
                y[token] += weight * (w["down_proj"][at] @ inner)
        params = {"m.gate.weight": gate} | {f"m.experts.{name}": value for name, value in w.items()}
        if shared:
            g, u, d, s = (torch.randn(*shape) * 0.3 for shape in ((shared, inputs), (shared, inputs), (inputs, shared), (1, inputs)))
            y = y + torch.sigmoid(x @ s.T) * ((F.silu(x @ g.T) * (x @ u.T)) @ d.T)
            params |= {"m.shared_expert.gate_proj.weight": g, "m.shared_expert.up_proj.weight": u,
                       "m.shared_expert.down_proj.weight": d, "m.shared_expert_gate.weight": s}
        config = {"count": count, "visited": visited, "width": width, "normalized": normalized, "shared": shared}
        yield Case("experts", config, {"x": x}, params, [y])


def scans():
    for batch, length in itertools.product([1, 2], [1, 5, 8, 13]):
        x, delta = torch.randn(batch, length, 6), torch.rand(batch, length, 6)
        a, b, c = -torch.rand(6, 4), torch.randn(batch, length, 4), torch.randn(batch, length, 4)
        start = state = torch.randn(batch, 6, 4)
        y = []
        for t in range(length):
            state = state * torch.exp(delta[:, t, :, None] * a) + (delta[:, t] * x[:, t])[..., None] * b[:, t, None]
            y.append((state * c[:, t, None]).sum(-1))
        yield Case("selective_scan", {}, {"x": x, "delta": delta, "a": a, "b": b, "c": c, "start": start}, {}, [torch.stack(y, 1), state])

        x, delta, a = torch.randn(batch, length, 3, 5), torch.rand(batch, length, 3), -torch.rand(3)
        b, c = torch.randn(batch, length, 3, 4), torch.randn(batch, length, 3, 4)
        start = state = torch.randn(batch, 3, 5, 4)
        y = []
        for t in range(length):
            state = state * torch.exp(delta[:, t] * a)[..., None, None] + (delta[:, t, :, None] * x[:, t])[..., None] * b[:, t, :, None]
            y.append(torch.einsum("bhpn,bhn->bhp", state, c[:, t]))
        yield Case("state_space_dual", {}, {"x": x, "delta": delta, "a": a, "b": b, "c": c, "start": start}, {}, [torch.stack(y, 1), state])

        q, k, v = torch.randn(batch, length, 2, 4), F.normalize(torch.randn(batch, length, 2, 4), dim=-1), torch.randn(batch, length, 2, 3)
        gate, beta = -torch.rand(batch, length, 2), torch.rand(batch, length, 2)
        start = state = torch.randn(batch, 2, 4, 3)
        y = []
        for t in range(length):
            state = state * gate[:, t].exp()[..., None, None]
            held = torch.einsum("bhkv,bhk->bhv", state, k[:, t])
            state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], (v[:, t] - held) * beta[:, t, :, None])
            y.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
        yield Case("gated_delta", {}, {"q": q, "k": k, "v": v, "gate": gate, "beta": beta, "start": start}, {}, [torch.stack(y, 1), state])

        r, k, v = torch.randn(batch, length, 2, 4), torch.randn(batch, length, 2, 4), torch.randn(batch, length, 2, 3)
        decay, bonus = torch.rand(batch, length, 2, 4), torch.randn(2, 4)
        start = state = torch.randn(batch, 2, 4, 3)
        y = []
        for t in range(length):
            product = k[:, t, ..., None] * v[:, t, :, None]
            y.append(torch.einsum("bhkv,bhk->bhv", state + bonus[..., None] * product, r[:, t]))
            state = state * decay[:, t, ..., None] + product
        yield Case("wkv", {}, {"r": r, "k": k, "v": v, "decay": decay, "bonus": bonus, "start": start}, {}, [torch.stack(y, 1), state])


def recurrent():
    for length, batch, inputs, hidden in [(1, 1, 3, 4), (6, 2, 5, 7), (11, 1, 8, 8)]:
        x = torch.randn(length, batch, inputs)
        for both in (False, True):
            layer = randomized(nn.LSTM(inputs, hidden, bidirectional=both))
            yield Case("lstm", {"hidden": hidden, "bidirectional": both}, {"x": x}, named(layer), [layer(x)[0]])
        layer = randomized(nn.GRU(inputs, hidden))
        y, last = layer(x)
        yield Case("gru", {"hidden": hidden}, {"x": x}, named(layer), [y, last])


def samplings():
    never = -3e4
    for batch, size in [(1, 9), (3, 50)]:
        x = torch.randn(batch, size) * 3
        for k in (1, 4):
            least = x.topk(k).values[:, -1:]
            yield Case("top_k", {"k": k}, {"x": x}, {}, [x.masked_fill(x < least, never)])
        for p in (0.3, 0.9):
            ordered, index = x.sort(descending=True)
            likely = ordered.softmax(-1)
            dropped = likely.cumsum(-1) - likely >= p
            yield Case("top_p", {"p": p}, {"x": x}, {}, [x.masked_fill(dropped.scatter(1, index, dropped), never)])
        yield Case("greedy", {}, {"x": x}, {}, [x.argmax(-1)])


def spectra():
    for size, inverse in itertools.product([4, 15, 32], [False, True]):
        z = torch.randn(3, size, dtype=torch.complex64)
        y = (torch.fft.ifft if inverse else torch.fft.fft)(z)
        yield Case("fft", {"inverse": inverse}, {"re": z.real.contiguous(), "im": z.imag.contiguous()}, {}, [y.real, y.imag])
    for window, hop, bands in [(64, 16, 8), (128, 64, 20)]:
        x = torch.randn(2, 400)
        power = torch.stft(x, window, hop, window=torch.hann_window(window), center=False, return_complex=True).abs() ** 2
        bins, top = window // 2 + 1, 2595.0 * math.log10(1 + 8000 / 700)
        points = 700.0 * (10 ** (torch.linspace(0, top, bands + 2, dtype=torch.float64) / 2595.0) - 1)
        at = torch.linspace(0, 8000, bins, dtype=torch.float64)[:, None]
        rise, fall = (at - points[:-2]) / (points[1:-1] - points[:-2]), (points[2:] - at) / (points[2:] - points[1:-1])
        filters = torch.minimum(rise, fall).clamp(min=0).float()
        yield Case("log_mel", {"window": window, "hop": hop, "bands": bands}, {"x": x}, {}, [torch.log((filters.T @ power).clamp(min=1e-3))])


FAMILIES = [layers, convolutions, pools, norms, activations, ropes, attentions, experts, scans, recurrent, samplings, spectra]


def cases():
    """All cases, the same in each run."""
    for family in FAMILIES:
        torch.manual_seed(7)
        with torch.no_grad():
            yield from family()
