//! ExecuTorch's compile specs: its keys, values and defaults.

use std::collections::BTreeMap;

use coremill_compress::linear;
use coremill_delegate::ModelType;
use coremill_io::unknown_name;
use coremill_mil::ir::Opset;
use serde::Deserialize;

use crate::error::{LoweringError, Result, refuse};
use crate::options::{LowerOptions, Precision, WeightSharing};

pub use coremill_pte::program::CompileSpec;

/// A compile spec key.
pub struct SpecKey {
    /// Name of the key in ExecuTorch's Core ML backend.
    pub name: &'static str,
    /// Supported values, as documentation text.
    pub values: &'static str,
    /// Effect, as documentation text.
    pub meaning: &'static str,
}

const fn key(name: &'static str, values: &'static str, meaning: &'static str) -> SpecKey {
    SpecKey { name, values, meaning }
}

/// Supported keys, listed in `docs/executorch.md`.
pub const KEYS: [SpecKey; 8] = [
    key(
        "compute_units",
        "`all`, `cpu_only`, `cpu_and_gpu`, `cpu_and_ne`",
        "the devices that Core ML may use; read on the device",
    ),
    key(
        "min_deployment_target",
        "`iOS15` to `iOS26`, or coremltools' numbers 6 to 10",
        "the oldest release that must run the models; by default the oldest that has all their operations",
    ),
    key(
        "model_compute_precision",
        "`float16`, `float32`",
        "the precision in which floats are computed; `float16` by default",
    ),
    key(
        "model_type",
        "`model`, `compiled_model`",
        "whether packages or compiled models are stored; packages by default",
    ),
    key(
        "op_linear_quantizer_config",
        "JSON of coremltools' `OpLinearQuantizerConfig`",
        "how weights are quantized to integers",
    ),
    key("pass_pipeline", "JSON of coremltools' pipeline", "which passes are skipped"),
    key(
        "enumerated_shapes",
        "JSON of ExecuTorch's shapes",
        "the shapes that inputs may have; needs the full graph to be lowered",
    ),
    key(
        "multimethod_weight_sharing_strategy",
        "`positional`, `disabled`",
        "whether methods share one model, part by part",
    ),
];

/// Value of the spec for enumerated shapes of one symbolic shape: the shape, then the allowed shapes and the input
/// names.
#[derive(Deserialize)]
struct EnumeratedShapes(serde::de::IgnoredAny, (Vec<Vec<u64>>, Vec<String>));

impl LowerOptions {
    /// Applies compile specs, and stores them in the program, as the device reads the compute units.
    pub fn apply_specs(&mut self, specs: &[CompileSpec]) -> Result<()> {
        for spec in specs {
            self.apply_spec(spec).map_err(|refusal| LoweringError {
                reason: format!("compile spec `{}`: {}", spec.key, refusal.reason),
                ..refusal
            })?;
        }
        self.compile_specs.extend(specs.iter().cloned());
        Ok(())
    }

    fn apply_spec(&mut self, spec: &CompileSpec) -> Result<()> {
        let Ok(value) = std::str::from_utf8(&spec.value) else {
            refuse!("the value is not a string")
        };
        match spec.key.as_str() {
            "compute_units" => {
                let units = ["all", "cpu_only", "cpu_and_gpu", "cpu_and_ne"];
                chosen(value, &units.map(|name| (name, ())))?;
            }
            "min_deployment_target" => self.options.target = target(value)?,
            "model_compute_precision" => {
                let all = [("float16", Precision::Fp16), ("float32", Precision::Fp32)];
                self.options.precision = chosen(value, &all)?;
            }
            "model_type" => {
                let all =
                    [("model", ModelType::Model), ("compiled_model", ModelType::CompiledModel)];
                self.model_type = chosen(value, &all)?;
            }
            "multimethod_weight_sharing_strategy" => {
                let all = [
                    ("positional", WeightSharing::Positional),
                    ("disabled", WeightSharing::Disabled),
                ];
                self.weight_sharing = Some(chosen(value, &all)?);
            }
            "enumerated_shapes" => {
                if !self.full_graph {
                    return Err(LoweringError::new(
                        "enumerated shapes apply to the inputs of the whole program",
                    )
                    .hint("require the full graph to be lowered"));
                }
                self.options.shapes = enumerated(value)?;
            }
            "pass_pipeline" => self.options.skipped_passes = without_passes(value)?,
            "op_linear_quantizer_config" => {
                let config = linear::Config::from_json(value);
                let config =
                    config.map_err(|error| LoweringError::of(error.to_string(), error.hint()))?;
                self.options.quantization = Some(config);
            }
            other => {
                refuse!("{}", unknown_name("key", other, KEYS.iter().map(|key| key.name)))
            }
        }
        Ok(())
    }
}

/// Looks up an enumeration value by name.
fn chosen<T: Copy>(value: &str, all: &[(&str, T)]) -> Result<T> {
    if let Some((_, found)) = all.iter().find(|(name, _)| *name == value) {
        return Ok(*found);
    }
    let names: Vec<_> = all.iter().map(|(name, _)| format!("`{name}`")).collect();
    let (last, others) =
        names.split_last().ok_or_else(|| LoweringError::new("has no valid values"))?;
    refuse!("found `{value}`; expected {} or {last}", others.join(", "))
}

/// Parses a release name or coremltools' number.
fn target(value: &str) -> Result<Option<Opset>> {
    Ok(match value {
        "" => None,
        // ML Programs need iOS 15; older targets would be raised silently.
        "4" | "5" => {
            refuse!("found {value}, which is iOS 13 or 14; ML Programs need iOS 15 (6)")
        }
        "6" => Some(Opset::Ios15),
        "7" => Some(Opset::Ios16),
        "8" => Some(Opset::Ios17),
        "9" => Some(Opset::Ios18),
        "10" => Some(Opset::Ios26),
        // Python's spelling, such as `AvailableTarget.iOS17` or `ct.target.iOS17`.
        other => match Opset::from_release(other.rsplit('.').next().unwrap_or(other)) {
            Some(opset) => Some(opset),
            None => {
                refuse!(
                    "found `{other}`; expected `iOS15` to `iOS26`, or 6 (iOS 15) to 10 (iOS 26)"
                )
            }
        },
    })
}

fn enumerated(value: &str) -> Result<BTreeMap<String, Vec<Vec<u64>>>> {
    let entries: Vec<EnumeratedShapes> = match serde_json::from_str(value) {
        Ok(entries) => entries,
        Err(error) => refuse!("cannot parse the enumerated shapes: {error}"),
    };
    let mut shapes = BTreeMap::new();
    for EnumeratedShapes(_, (all, names)) in entries {
        if all.len() < 2 {
            refuse!("{} shapes are given for {}; expected at least 2", all.len(), names.join(", "));
        }
        for name in names {
            shapes.insert(crate::identifier(&name), all.clone());
        }
    }
    Ok(shapes)
}

/// Our passes, each with the equivalent passes of coremltools. If all are disabled, the program keeps the form of
/// its lowered calls.
const PASSES: [(&str, &[&str]); 6] = [
    ("noop_elimination", &["common::cast_optimization", "common::noop_elimination"]),
    (
        "common_subexpression_elimination",
        &["common::const_deduplication", "common::remove_redundant_ops"],
    ),
    (
        "fuse_affine",
        &["common::fuse_conv_batchnorm", "common::fuse_conv_scale", "common::fuse_conv_bias"],
    ),
    ("fuse_activations", &["common::fuse_gelu_exact", "common::fuse_gelu_tanh_approximation"]),
    ("fuse_norms", &["common::fuse_layernorm_or_instancenorm"]),
    ("fuse_padding", &["common::fuse_pad_conv"]),
];

/// Our passes that no pass of the list is equivalent to.
fn without_passes(value: &str) -> Result<Vec<String>> {
    let names: Vec<String> = match serde_json::from_str(value) {
        Ok(names) => names,
        Err(error) => refuse!("the value is not a list of names: {error}"),
    };
    let is_left_out = |theirs: &[&str]| !theirs.iter().any(|pass| names.iter().any(|n| n == pass));
    let skipped = PASSES.iter().filter(|(_, theirs)| is_left_out(theirs));
    Ok(skipped.map(|(ours, _)| (*ours).to_owned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `docs/executorch.md` contains the generated table of keys.
    #[test]
    fn docs_list_every_key() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/executorch.md");
        let page = std::fs::read_to_string(path).expect("docs/executorch.md");
        let (begin, end) = ("<!-- compile specs -->\n", "\n<!-- end of compile specs -->");
        let start = page.find(begin).expect("a start marker") + begin.len();
        let stop = page.find(end).expect("an end marker");
        let mut rows = String::from("| key | values | meaning |\n|---|---|---|\n");
        for SpecKey { name, values, meaning } in &KEYS {
            rows += &format!("| `{name}` | {values} | {meaning} |\n");
        }
        if std::env::var_os("BLESS").is_some() {
            let page = format!("{}{rows}{}", &page[..start], &page[stop..]);
            std::fs::write(path, page).expect("write");
        } else {
            assert_eq!(&page[start..stop], rows, "run this test with BLESS=1");
        }
    }

    fn applied(specs: &[(&str, &str)], full_graph: bool) -> Result<LowerOptions> {
        let spec = |&(key, value): &(&str, &str)| CompileSpec {
            key: key.to_owned(),
            value: value.as_bytes().to_vec(),
        };
        let specs: Vec<_> = specs.iter().map(spec).collect();
        let mut options = LowerOptions { full_graph, ..LowerOptions::default() };
        options.apply_specs(&specs)?;
        assert_eq!(options.compile_specs, specs);
        Ok(options)
    }

    #[test]
    fn parses_executorch_compile_specs() {
        let options = applied(
            &[
                ("compute_units", "cpu_and_ne"),
                ("min_deployment_target", "8"),
                ("model_compute_precision", "float32"),
                ("model_type", "compiled_model"),
                ("multimethod_weight_sharing_strategy", "disabled"),
            ],
            false,
        );
        let options = options.expect("valid specs of ExecuTorch");
        assert_eq!(options.options.target, Some(Opset::Ios17));
        assert_eq!(options.options.precision, Precision::Fp32);
        assert_eq!(options.model_type, ModelType::CompiledModel);
        assert_eq!(options.weight_sharing, Some(WeightSharing::Disabled));
        let unset =
            applied(&[("min_deployment_target", "")], false).expect("an empty target is valid");
        assert_eq!(unset.options.target, None);
    }

    #[test]
    fn parses_enumerated_shapes_per_input() {
        let text = r#"[[{"shape":[{"key_name":"s77","low":2,"high":4},{"key_name":"s27","low":5,"high":null},10]},
            [[[1,5,10],[4,6,10]],["x","y"]]],[{"shape":[{"key_name":"s17","low":3,"high":5},11]},[[[3,11],[5,11]],["z"]]]]"#;
        let options =
            applied(&[("enumerated_shapes", text)], true).expect("valid specs of ExecuTorch");
        let shapes: Vec<_> = options.options.shapes.iter().collect();
        assert_eq!(shapes.len(), 3);
        assert_eq!(shapes[1], (&"y".to_owned(), &vec![vec![1, 5, 10], vec![4, 6, 10]]));
        assert_eq!(shapes[2], (&"z".to_owned(), &vec![vec![3, 11], vec![5, 11]]));
        let refusal = applied(&[("enumerated_shapes", text)], false)
            .expect_err("enumerated shapes need the full graph");
        assert_eq!(refusal.hint.as_deref(), Some("require the full graph to be lowered"));
    }

    #[test]
    fn parses_coremltools_quantizer_config() {
        use linear::{Config, Granularity, Integer, Mode};
        let quantization = |text| {
            let options = applied(&[("op_linear_quantizer_config", text)], false);
            options.expect("valid specs of ExecuTorch").options.quantization
        };
        assert_eq!(quantization("{}"), Some(Config::default()));
        let found = quantization(
            r#"{"mode": "LINEAR", "dtype": "uint4", "granularity": "per_block", "weight_threshold": 10}"#,
        );
        let wanted = Config {
            mode: Mode::Linear,
            dtype: Integer::UInt4,
            granularity: Granularity::Block(32),
            weight_threshold: 10,
        };
        assert_eq!(found, Some(wanted));
        let found = quantization(r#"{"granularity": "per_block", "block_size": [1, 0]}"#);
        assert_eq!(found.map(|found| found.granularity), Some(Granularity::Blocks(vec![1, 0])));
        assert_eq!(quantization(r#"{"block_size": 8}"#), Some(Config::default()));
    }

    #[test]
    fn pass_pipeline_skips_unlisted_passes() {
        let list = r#"["common::cast_optimization", "common::fuse_pad_conv"]"#;
        let options = applied(&[("pass_pipeline", list)], false).expect("a list of names");
        let skipped = options.options.skipped_passes;
        assert!(skipped.iter().any(|pass| pass == "fuse_norms"));
        assert!(!skipped.iter().any(|pass| pass == "noop_elimination" || pass == "fuse_padding"));
        let passes = coremill_passes::PASSES;
        let exists = |name: &str| passes.iter().any(|pass| pass.name == name);
        assert!(PASSES.iter().all(|(ours, _)| exists(ours)));
    }

    #[test]
    fn rejects_invalid_specs_and_lists_valid_values() {
        const QUANTIZER: &str = "op_linear_quantizer_config";
        let cases = [
            ("compute_units", "gpu", "found `gpu`; expected `all`"),
            ("min_deployment_target", "5", "found 5, which is iOS 13 or 14"),
            ("min_deployment_target", "iOS14", "expected `iOS15` to `iOS26`, or 6 (iOS 15)"),
            ("model_compute_precision", "int8", "expected `float16` or `float32`"),
            ("model_type", "mlmodel", "expected `model` or `compiled_model`"),
            ("pass_pipeline", "[", "is not a list of names"),
            ("enumerated_shapes", "{}", "cannot parse the enumerated shapes"),
            (QUANTIZER, "[]", "is not a JSON object"),
            (QUANTIZER, r#"{"nbits": 8}"#, "unknown key `nbits`; the keys are `mode`"),
            (
                QUANTIZER,
                r#"{"mode": "log"}"#,
                "`mode` must be `linear_symmetric` or `linear`, got `log`",
            ),
            (
                QUANTIZER,
                r#"{"dtype": "int2"}"#,
                "`dtype` must be `int8`, `uint8`, `int4` or `uint4`, got `int2`",
            ),
            (QUANTIZER, r#"{"granularity": 3}"#, "`granularity` must be a string"),
            (QUANTIZER, r#"{"block_size": [1, -2]}"#, "got `[1,-2]`"),
            (QUANTIZER, r#"{"weight_threshold": null}"#, "got `null`"),
            ("compute_unit", "all", "did you mean `compute_units`?"),
        ];
        for (key, value, expected) in cases {
            let refusal = applied(&[(key, value)], true).expect_err("the spec is invalid");
            assert!(refusal.reason.contains(expected), "{}", refusal.reason);
        }
    }
}
