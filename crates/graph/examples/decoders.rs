//! Decoders with caches in states, built from transformers' `config.json` and weights, or from the same
//! weights in GGUF with llama.cpp's names.
//!
//! `decoders CONFIG WEIGHTS TOKEN…` prints the logits of each step. Supported are Qwen 2 with experts, Mamba,
//! and Qwen 3 Next without experts.
#![expect(clippy::print_stdout, reason = "an example prints its result")]

use coremill_graph::nn::*;
use coremill_graph::{DType, Device, Graph, Params, Precision, Session, Tensor};
use serde_json::Value;

const CONTEXT: usize = 64;

struct Config(Value);

impl Config {
    fn size(&self, key: &str) -> usize {
        self.0[key].as_u64().unwrap_or_else(|| panic!("config.json has no `{key}`")) as usize
    }

    fn float(&self, key: &str) -> f32 {
        self.0[key].as_f64().unwrap_or_else(|| panic!("config.json has no `{key}`")) as f32
    }
}

/// Converts names of llama.cpp to names of transformers.
fn renamed(name: &str, root: &str, attention: &str) -> Option<String> {
    let (plain, ending) = match name.rsplit_once('.')? {
        (plain, "weight") => (plain, ".weight"),
        (plain, "bias") => (plain, ".bias"),
        _ => (name, ""),
    };
    let name = match plain {
        "token_embd" if root == "backbone" => "backbone.embeddings".to_owned(),
        "token_embd" => "model.embed_tokens".to_owned(),
        "output_norm" if root == "backbone" => "backbone.norm_f".to_owned(),
        "output_norm" => "model.norm".to_owned(),
        "output" => "lm_head".to_owned(),
        other => {
            let (layer, part) = other.strip_prefix("blk.")?.split_once('.')?;
            let part = match part {
                "attn_norm" if root == "backbone" => "norm".to_owned(),
                "attn_norm" => "input_layernorm".to_owned(),
                "ffn_norm" | "post_attention_norm" => "post_attention_layernorm".to_owned(),
                "attn_q" => "self_attn.q_proj".to_owned(),
                "attn_k" => "self_attn.k_proj".to_owned(),
                "attn_v" => "self_attn.v_proj".to_owned(),
                "attn_output" => "self_attn.o_proj".to_owned(),
                "ffn_gate" => "mlp.gate_proj".to_owned(),
                "ffn_up" => "mlp.up_proj".to_owned(),
                "ffn_down" => "mlp.down_proj".to_owned(),
                "ffn_gate_inp" => "mlp.gate".to_owned(),
                "ffn_gate_exps" => {
                    return Some(format!("model.layers.{layer}.mlp.experts.gate_proj"));
                }
                "ffn_up_exps" => return Some(format!("model.layers.{layer}.mlp.experts.up_proj")),
                "ffn_down_exps" => {
                    return Some(format!("model.layers.{layer}.mlp.experts.down_proj"));
                }
                "ffn_gate_inp_shexp" => "mlp.shared_expert_gate".to_owned(),
                "ffn_gate_shexp" => "mlp.shared_expert.gate_proj".to_owned(),
                "ffn_up_shexp" => "mlp.shared_expert.up_proj".to_owned(),
                "ffn_down_shexp" => "mlp.shared_expert.down_proj".to_owned(),
                "ssm_in" if root == "backbone" => format!("{attention}.in_proj"),
                "ssm_in" => format!("{attention}.in_proj_qkvz"),
                "ssm_ba" => format!("{attention}.in_proj_ba"),
                "ssm_conv1d" => format!("{attention}.conv1d"),
                "ssm_x" => format!("{attention}.x_proj"),
                "ssm_dt" if root == "backbone" => format!("{attention}.dt_proj"),
                "ssm_dt" => return Some(format!("{root}.layers.{layer}.{attention}.dt_bias")),
                "ssm_a" => format!("{attention}.A"),
                "ssm_d" => format!("{attention}.D"),
                "ssm_norm" => format!("{attention}.norm"),
                "ssm_out" => format!("{attention}.out_proj"),
                _ => return None,
            };
            format!("{root}.layers.{layer}.{part}")
        }
    };
    Some(name + ending)
}

/// A norm that scales by `1 + weight`.
fn norm_around_one<'g>(name: &str, x: Tensor<'g>, epsilon: f32) -> Tensor<'g> {
    let weight = x.graph().param(&format!("{name}.weight"), [x.last_extent()]);
    let square = x.square().mean([-1], true) + epsilon;
    x * square.rsqrt(Default::default()) * (weight + 1.0)
}

fn feed_forward<'g>(name: &str, x: Tensor<'g>, inner: usize) -> Tensor<'g> {
    let part = |part: &str, outputs: usize, x: Tensor<'g>| {
        Linear::new(outputs).without_bias().apply(&format!("{name}.{part}"), x)
    };
    part(
        "down_proj",
        x.last_extent(),
        part("gate_proj", inner, x).silu() * part("up_proj", inner, x),
    )
}

fn decoder(config: &Config, kind: &str, decay: Decay) -> Graph {
    let graph = Graph::new();
    let token = graph.input("token", DType::Int32, [1, 1]);
    let (vocabulary, width) = (config.size("vocab_size"), config.size("hidden_size"));
    let layers = config.size("num_hidden_layers");
    let cached = |layer: usize| format!("layer_{layer}");
    let logits = |x| Linear::new(vocabulary).without_bias().apply("lm_head", x);
    let embed = |name: &str| Embedding::new(vocabulary, width).apply(name, token);
    let result = match kind {
        "mamba" => {
            let epsilon = config.float("layer_norm_epsilon");
            let (inner, state) = (config.size("intermediate_size"), config.size("state_size"));
            let mixer = Mamba::new(inner, state, config.size("time_step_rank"))
                .taps(config.size("conv_kernel"))
                .decay(decay);
            let mut x = embed("backbone.embeddings");
            for layer in 0..layers {
                let name = format!("backbone.layers.{layer}");
                let cache = mixer.cache(&graph, &cached(layer), 1);
                let normal = RmsNorm::new(epsilon).apply(&format!("{name}.norm"), x);
                x = x + mixer.apply(&format!("{name}.mixer"), normal, Some(cache));
            }
            RmsNorm::new(epsilon).apply("backbone.norm_f", x)
        }
        "qwen3_next" => {
            let epsilon = config.float("rms_norm_eps");
            let mixer = GatedDeltaNet::new(
                config.size("linear_num_key_heads"),
                config.size("linear_num_value_heads"),
                config.size("linear_key_head_dim"),
                config.size("linear_value_head_dim"),
            )
            .taps(config.size("linear_conv_kernel_dim"))
            .epsilon(epsilon)
            .decay(decay);
            let mut x = embed("model.embed_tokens");
            for layer in 0..layers {
                let name = |part: &str| format!("model.layers.{layer}.{part}");
                let cache = mixer.cache(&graph, &cached(layer), 1);
                let normal = norm_around_one(&name("input_layernorm"), x, epsilon);
                x = x + mixer.apply(&name("linear_attn"), normal, Some(cache));
                let normal = norm_around_one(&name("post_attention_layernorm"), x, epsilon);
                x = x + feed_forward(&name("mlp"), normal, config.size("intermediate_size"));
            }
            norm_around_one("model.norm", x, epsilon)
        }
        "qwen2_moe" => {
            let epsilon = config.float("rms_norm_eps");
            let (heads, kv_heads) =
                (config.size("num_attention_heads"), config.size("num_key_value_heads"));
            let head = width / heads;
            let position = graph.input("position", DType::Int32, [1]);
            let tables = Rope::new(head, 10000.0).tables(&graph, CONTEXT).at(position);
            let attention = Attention::new(heads, kv_heads, head).qkv_bias();
            let (count, visited) = (config.size("num_experts"), config.size("num_experts_per_tok"));
            let mut experts = Experts::new(count, visited, config.size("moe_intermediate_size"))
                .shared(config.size("shared_expert_intermediate_size"));
            experts.normalized = config.0["norm_topk_prob"].as_bool().unwrap_or(false);
            let mut x = embed("model.embed_tokens");
            for layer in 0..layers {
                let name = |part: &str| format!("model.layers.{layer}.{part}");
                let cache = KvCache::new(&graph, &cached(layer), [1, kv_heads, CONTEXT, head]);
                let normal = RmsNorm::new(epsilon).apply(&name("input_layernorm"), x);
                let options = AttentionOptions::default();
                x = x + attention.apply_cached(
                    &name("self_attn"),
                    normal,
                    Some(tables),
                    cache,
                    position,
                    &options,
                );
                let normal = RmsNorm::new(epsilon).apply(&name("post_attention_layernorm"), x);
                let mixed = experts.apply(&name("mlp"), normal.view([1, width]));
                x = x + mixed.view([1, 1, width]);
            }
            RmsNorm::new(epsilon).apply("model.norm", x)
        }
        other => panic!("no decoder is known for `{other}`"),
    };
    graph.output("logits", logits(result));
    graph
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (config, weights) =
        arguments.next().zip(arguments.next()).ok_or("CONFIG WEIGHTS TOKEN…")?;
    let config = Config(serde_json::from_slice(&std::fs::read(config)?)?);
    let kind = config.0["model_type"].as_str().ok_or("config.json has no `model_type`")?;
    let (root, attention) = match kind {
        "mamba" => ("backbone", "mixer"),
        _ => ("model", "linear_attn"),
    };
    let mut params = Params::new();
    let is_gguf = weights.ends_with(".gguf");
    if is_gguf {
        params.load_as(&weights, |name| renamed(name, root, attention))?;
    } else {
        params.load(&weights)?;
        if kind == "qwen2_moe" {
            for layer in 0..config.size("num_hidden_layers") {
                for part in ["gate_proj", "up_proj", "down_proj"] {
                    let name = format!("model.layers.{layer}.mlp.experts");
                    let parts: Vec<String> = (0..config.size("num_experts"))
                        .map(|expert| format!("{name}.{expert}.{part}.weight"))
                        .collect();
                    params.stack(format!("{name}.{part}"), &parts)?;
                }
            }
        }
    }
    let decay = if is_gguf { Decay::Rate } else { Decay::Logarithm };
    let graph = decoder(&config, kind, decay);
    let has_position = kind == "qwen2_moe";
    let mut model = Session::new(Device::Host).precision(Precision::Fp32).compile(&graph)?;
    // A file may contain more tensors than the graph declares, for instance single experts.
    let declared: Vec<String> = graph.params().into_iter().map(|(name, _)| name).collect();
    for name in declared {
        let param = params.get(&name).ok_or_else(|| format!("the file has no `{name}`"))?;
        model.set(&name, param.clone())?;
    }
    for (position, token) in arguments.enumerate() {
        let (token, position) = ([token.parse::<i32>()?], [position as i32]);
        let outputs = match has_position {
            true => model.run(&[("token", &token), ("position", &position)])?,
            false => model.run(&[("token", &token)])?,
        };
        let logits = outputs.floats("logits").unwrap_or_default();
        println!("{}", logits.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "));
    }
    Ok(())
}
