//! Builds the modules requested by `oracle/tests/test_graph.py`, writes each as a package, reads it again and runs
//! it.
//!
//! `modules DIRECTORY` reads `cases.json` in the directory, a list of cases with `name`, `module`, `config`
//! and `precision`. The inputs and parameters of a case are in `NAME.safetensors`, inputs as `input.X`.
//! Outputs are written to `NAME.json`.
#![expect(clippy::print_stderr, reason = "a command for people reports on standard error")]

use std::path::Path;

use coremill_graph::nn::*;
use coremill_graph::{
    Array, DType, Device, Error, Graph, Input, Params, Precision, Session, Tensor,
};
use coremill_mlpackage::package;
use serde_json::{Value, json};

struct Case<'a>(&'a Value);

impl Case<'_> {
    fn get(&self, key: &str) -> &Value {
        &self.0["config"][key]
    }

    fn size(&self, key: &str) -> usize {
        self.get(key).as_u64().unwrap_or_else(|| panic!("`{key}` is missing")) as usize
    }

    fn float(&self, key: &str) -> f32 {
        self.get(key).as_f64().unwrap_or_else(|| panic!("`{key}` is missing")) as f32
    }

    fn flag(&self, key: &str) -> bool {
        self.get(key).as_bool().unwrap_or(false)
    }

    fn sizes(&self, key: &str) -> Vec<usize> {
        let all = self.get(key).as_array().unwrap_or_else(|| panic!("`{key}` is missing"));
        all.iter().map(|size| size.as_u64().unwrap_or_default() as usize).collect()
    }
}

fn activation(name: &str) -> Activation {
    match name {
        "relu" => Activation::Relu,
        "relu6" => Activation::Relu6,
        "leaky_relu" => Activation::LeakyRelu(0.1),
        "elu" => Activation::Elu(0.7),
        "celu" => Activation::Celu(1.3),
        "selu" => Activation::Selu,
        "gelu" => Activation::Gelu,
        "gelu_tanh" => Activation::GeluTanh,
        "silu" => Activation::Silu,
        "sigmoid" => Activation::Sigmoid,
        "logsigmoid" => Activation::LogSigmoid,
        "hardsigmoid" => Activation::HardSigmoid,
        "hardswish" => Activation::HardSwish,
        "hardtanh" => Activation::HardTanh,
        "tanh" => Activation::Tanh,
        "mish" => Activation::Mish,
        "softplus" => Activation::Softplus,
        "softsign" => Activation::Softsign,
        "tanhshrink" => Activation::Tanhshrink,
        other => panic!("there is no activation `{other}`"),
    }
}

fn rope(case: &Case<'_>, rotated: usize) -> Rope {
    let mut rope = Rope::new(rotated, case.get("theta").as_f64().unwrap_or(10000.0));
    if case.flag("interleaved") {
        rope.style = RopeStyle::Interleaved;
    }
    let number = |key: &str| case.get(key).as_f64().unwrap_or(1.0);
    let (factor, original) = (number("factor"), number("original"));
    rope.scaling = match case.get("scaling").as_str().unwrap_or("none") {
        "linear" => RopeScaling::Linear { factor },
        "ntk" => RopeScaling::Ntk { factor },
        "yarn" => RopeScaling::Yarn { factor, original, beta_fast: 32.0, beta_slow: 1.0 },
        "llama3" => RopeScaling::Llama3 { factor, low: 1.0, high: 4.0, original },
        _ => RopeScaling::None,
    };
    rope
}

fn options<'g>(case: &Case<'_>, inputs: &[(String, Tensor<'g>)]) -> AttentionOptions<'g> {
    let find = |name: &str| inputs.iter().find(|(found, _)| found == name).map(|(_, x)| *x);
    let mut options = AttentionOptions::new();
    options.scale = case.get("scale").as_f64().map(|scale| scale as f32);
    options.causal = case.flag("causal");
    options.window = case.get("window").as_u64().map(|window| window as usize);
    options.bias = find("bias");
    options.soft_cap = case.get("soft_cap").as_f64().map(|cap| cap as f32);
    options.sinks = find("sinks");
    options
}

fn build<'g>(
    graph: &'g Graph,
    case: &Case<'_>,
    inputs: &[(String, Tensor<'g>)],
) -> Vec<Tensor<'g>> {
    let x = |name: &str| {
        let found = inputs.iter().find(|(found, _)| found == name);
        found.unwrap_or_else(|| panic!("there is no input `{name}`")).1
    };
    let module = case.0["module"].as_str().unwrap_or_default();
    let one = |tensor: Tensor<'g>| vec![tensor];
    let conv = || {
        let conv = Conv::new(case.size("outputs"), case.sizes("kernel"))
            .stride(case.sizes("stride"))
            .padding(case.sizes("padding"))
            .dilation(case.sizes("dilation"))
            .groups(case.size("groups"));
        if case.flag("bias") { conv } else { conv.without_bias() }
    };
    match module {
        "linear" => one(match case.flag("bias") {
            true => Linear::new(case.size("outputs")).apply("m", x("x")),
            false => Linear::new(case.size("outputs")).without_bias().apply("m", x("x")),
        }),
        "embedding" => {
            one(Embedding::new(case.size("rows"), case.size("width")).apply("m", x("x")))
        }
        "lora" => {
            let base = Linear::new(case.size("outputs"));
            one(Lora::new(base, case.size("rank"), case.float("alpha")).apply("m", x("x")))
        }
        "conv" => one(conv().apply("m", x("x"))),
        "conv_transpose" => {
            let layer = ConvTranspose::new(conv()).output_padding(case.sizes("output_padding"));
            one(layer.apply("m", x("x")))
        }
        "max_pool" => one(max_pool(
            x("x"),
            &case.sizes("kernel"),
            &case.sizes("stride"),
            &case.sizes("padding"),
        )),
        "avg_pool" => one(avg_pool(
            x("x"),
            &case.sizes("kernel"),
            &case.sizes("stride"),
            &case.sizes("padding"),
            case.flag("count_padding"),
        )),
        "adaptive_avg_pool" => one(adaptive_avg_pool(x("x"), &case.sizes("windows"))),
        "resize_nearest" => one(resize_nearest(x("x"), case.float("height"), case.float("width"))),
        "resize_bilinear" => {
            let (height, width) = (case.size("height"), case.size("width"));
            one(resize_bilinear(x("x"), height, width, case.flag("align_corners")))
        }
        "layer_norm" => one(LayerNorm::new(case.float("epsilon")).apply("m", x("x"))),
        "rms_norm" => {
            let norm = RmsNorm::new(case.float("epsilon"));
            let norm = if case.flag("one_more") { norm.one_more() } else { norm };
            one(norm.apply("m", x("x")))
        }
        "group_norm" => {
            one(GroupNorm::new(case.size("groups"), case.float("epsilon")).apply("m", x("x")))
        }
        "batch_norm" => one(BatchNorm::new(case.float("epsilon")).apply("m", x("x"))),
        "instance_norm" => {
            let norm = InstanceNorm::new(case.float("epsilon"));
            one(if case.flag("affine") { norm.affine() } else { norm }.apply("m", x("x")))
        }
        "layer_norm_2d" => one(LayerNorm2d::new(case.float("epsilon")).apply("m", x("x"))),
        "adaptive_norm" => {
            one(adaptive_norm(x("x"), x("scale"), x("shift"), case.float("epsilon")))
        }
        "activation" => {
            one(activation(case.get("kind").as_str().unwrap_or_default()).apply(x("x")))
        }
        "rope" => {
            let tables = rope(case, case.size("rotated")).tables(graph, x("x").extent(2));
            one(rotate(x("x"), tables))
        }
        "axial_rope" => {
            let (height, width) = (case.size("height"), case.size("width"));
            let tables = axial_tables(graph, x("x").last_extent(), 10000.0, height, width);
            one(rotate(x("x"), tables))
        }
        "attention" => one(attention(x("q"), x("k"), x("v"), &options(case, inputs))),
        "attention_layer" => {
            let mut layer =
                Attention::new(case.size("heads"), case.size("kv_heads"), case.size("head"));
            layer.qkv_bias = case.flag("bias");
            layer.out_bias = case.flag("bias");
            let tables = rope(case, case.size("head")).tables(graph, x("x").extent(1));
            one(layer.apply("m", x("x"), Some(tables), &options(case, inputs)))
        }
        "latent_attention" => {
            let (heads, plain, value) =
                (case.size("heads"), case.size("plain"), case.size("value"));
            let up = graph.param("up", [heads * (plain + value), case.size("rank")]);
            let given = options(case, inputs);
            one(latent_attention(x("q"), x("latent"), x("shared"), up, value, &given))
        }
        "experts" => {
            let mut experts =
                Experts::new(case.size("count"), case.size("visited"), case.size("width"));
            experts.normalized = case.flag("normalized");
            experts.shared = case.get("shared").as_u64().map(|width| width as usize);
            one(experts.apply("m", x("x")))
        }
        "selective_scan" => {
            let (y, last) = selective_scan(x("x"), x("delta"), x("a"), x("b"), x("c"), x("start"));
            vec![y, last]
        }
        "state_space_dual" => {
            let (y, last) =
                state_space_dual(x("x"), x("delta"), x("a"), x("b"), x("c"), x("start"));
            vec![y, last]
        }
        "gated_delta" => {
            let (y, last) = gated_delta(x("q"), x("k"), x("v"), x("gate"), x("beta"), x("start"));
            vec![y, last]
        }
        "wkv" => {
            let (y, last) = wkv(x("r"), x("k"), x("v"), x("decay"), x("bonus"), x("start"));
            vec![y, last]
        }
        "lstm" => {
            let layer = Lstm::new(case.size("hidden"));
            let layer = if case.flag("bidirectional") { layer.bidirectional() } else { layer };
            vec![layer.apply("m", x("x"), None).0]
        }
        "gru" => {
            let (y, last) = Gru::new(case.size("hidden")).apply("m", x("x"), None);
            vec![y, last.view([1, y.extent(1), case.size("hidden")])]
        }
        "top_k" => one(top_k_filter(x("x"), case.size("k"))),
        "top_p" => one(top_p_filter(x("x"), case.float("p"))),
        "greedy" => one(sample(x("x"), 0.0, None)),
        "fft" => {
            let (re, im) = fft(x("re"), Some(x("im")), case.flag("inverse"));
            vec![re, im]
        }
        "log_mel" => {
            let bands = LogMel::new(case.size("window"), case.size("hop"), case.size("bands"));
            one(bands.floor(1e-3).apply(x("x")))
        }
        other => panic!("there is no module `{other}`"),
    }
}

fn run(directory: &Path, case: &Case<'_>) -> Result<Value, Error> {
    let name = case.0["name"].as_str().unwrap_or_default();
    let mut params = Params::new();
    params.load(directory.join(format!("{name}.safetensors")))?;
    let graph = Graph::new();
    let mut inputs = Vec::new();
    let mut arrays = Vec::new();
    for (name, param) in params.iter() {
        let Some(name) = name.strip_prefix("input.") else { continue };
        let shape: Vec<usize> = param.shape().iter().map(|&extent| extent as usize).collect();
        let floats = param.to_floats()?;
        let whole = matches!(name, "ids" | "groups")
            || (name == "x" && case.0["module"].as_str() == Some("embedding"));
        let (dtype, array) = if whole {
            let ints = floats.iter().map(|&x| x as i32).collect();
            (DType::Int32, Array::ints(DType::Int32, shape.clone(), ints))
        } else {
            (DType::Fp32, Array::floats(DType::Fp32, shape.clone(), floats))
        };
        inputs.push((name.to_owned(), graph.input(name, dtype, shape)));
        arrays.push((name.to_owned(), array));
    }
    for (at, output) in build(&graph, case, &inputs).into_iter().enumerate() {
        graph.output(&format!("y{at}"), output);
    }
    let precision = match case.0["precision"].as_str() {
        Some("fp16") => Precision::Fp16,
        _ => Precision::Fp32,
    };
    let session = Session::new(Device::Host).precision(precision).threads(1);
    let mut model = session.compile(&graph)?;
    model.set_params(&params)?;
    let path = directory.join(format!("{name}.mlpackage"));
    model.save(&path)?;
    let read = package::read(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
    let given: Vec<(&str, &dyn Input)> =
        arrays.iter().map(|(name, array)| (name.as_str(), array as &dyn Input)).collect();
    let outputs = session.load(read)?.run(&given)?;
    let outputs = outputs.0.iter().map(|(name, value)| {
        let array = value.as_array().unwrap_or_else(|| panic!("`{name}` is not an array"));
        let elements: Vec<f64> = match (array.as_floats(), array.as_ints()) {
            (Some(floats), _) => floats.iter().map(|&x| f64::from(x)).collect(),
            (_, ints) => ints.unwrap_or_default().iter().map(|&x| f64::from(x)).collect(),
        };
        json!({ "shape": array.shape(), "elements": elements })
    });
    Ok(Value::Array(outputs.collect()))
}

fn main() {
    let directory = std::env::args().nth(1).expect("the directory of the cases");
    let directory = Path::new(&directory);
    let cases = std::fs::read(directory.join("cases.json")).expect("`cases.json` is there");
    let cases: Value = serde_json::from_slice(&cases).expect("`cases.json` is JSON");
    for case in cases.as_array().expect("a list of cases") {
        let name = case["name"].as_str().unwrap_or_default();
        let result = match run(directory, &Case(case)) {
            Ok(outputs) => json!({ "outputs": outputs }),
            Err(error) => {
                eprintln!("{name}: {error}");
                json!({ "error": error.to_string() })
            }
        };
        let file = directory.join(format!("{name}.json"));
        std::fs::write(&file, result.to_string()).expect("the result is written");
    }
}
