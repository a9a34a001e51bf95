//! Verification of written models: divergence from the source, and losses of weights.

use std::fs;
use std::path::{Path, PathBuf};

use coremill_graph::{Device, Numerics, Session};
use coremill_llm::{
    BuildOptions, Destination, LanguageModel, Layout, SavedModel, Score, VerifyOptions, Weights,
};
use coremill_verify::check;
use half::f16;
use serde_json::json;

const WIDTH: usize = 64;
const VOCABULARY: usize = 48;

/// The folder of a model, and its random weights as rows of `WIDTH` elements.
struct Source {
    folder: PathBuf,
    weights: Vec<(String, Vec<f32>)>,
}

/// Writes a model of one layer. `seed` determines its weights.
fn source(folder: &Path, seed: u32) -> Source {
    fs::create_dir_all(folder).expect("a folder");
    let config = json!({
        "model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": WIDTH,
        "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 64, "tie_word_embeddings": true,
    });
    fs::write(folder.join("config.json"), config.to_string()).expect("written");
    let layer = |part: &str| format!("model.layers.0.{part}.weight");
    let parts = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"];
    let parts = parts.into_iter().chain(["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]);
    let matrices = parts.map(|part| (layer(part), vec![WIDTH, WIDTH]));
    let vectors = ["input_layernorm", "post_attention_layernorm"].map(layer);
    let vectors = vectors.into_iter().chain(["model.norm.weight".to_owned()]);
    let vectors = vectors.map(|name| (name, vec![WIDTH]));
    let table = ("model.embed_tokens.weight".to_owned(), vec![VOCABULARY, WIDTH]);
    let (mut header, mut data, mut random) = (json!({}), Vec::new(), seed);
    let mut weights = Vec::new();
    for (name, shape) in matrices.chain(vectors).chain([table]) {
        let start = data.len();
        let elements = (0..shape.iter().product()).map(|_| {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f16::from_f32(random as f32 / u32::MAX as f32 - 0.5).to_f32()
        });
        let elements: Vec<f32> = elements.collect();
        data.extend(elements.iter().flat_map(|element| element.to_le_bytes()));
        header[&name] =
            json!({ "dtype": "F32", "shape": shape, "data_offsets": [start, data.len()] });
        weights.push((name, elements));
    }
    let header = header.to_string().into_bytes();
    let parts = [&(header.len() as u64).to_le_bytes()[..], &header, &data];
    fs::write(folder.join("model.safetensors"), parts.concat()).expect("written");
    Source { folder: folder.to_owned(), weights }
}

fn ids() -> Vec<u32> {
    (0..40).map(|index| index * 17 % VOCABULARY as u32).collect()
}

fn options(weights: Weights) -> BuildOptions {
    BuildOptions::default().context(32).prefill(8).weights(weights)
}

fn verified(model: &LanguageModel, destination: &Destination) -> Score {
    let verify = VerifyOptions::default();
    model.verify(destination.path(), &ids(), verify, &mut |_| {}).expect("runs")
}

#[test]
fn verify_matches_source_and_detects_another_model() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let model = LanguageModel::open(source(&scratch.path().join("a"), 1).folder).expect("opens");
    let other = LanguageModel::open(source(&scratch.path().join("b"), 2).folder).expect("opens");
    let layouts = [Layout::Coremill, Layout::Chunks, Layout::ExecuTorch, Layout::SwiftTransformers];
    for (index, layout) in layouts.into_iter().enumerate() {
        let output = scratch.path().join(format!("out{index}"));
        let destination = Destination::of(&output, Some(layout)).expect("a destination");
        let options = options(Weights::Exact);
        let saved = model.save(&destination, &[], &options, false, &mut |_| {}).expect("written");
        assert!(saved.losses.is_empty());
        let compared = verified(&model, &destination).comparison.expect("a reference");
        assert!(compared.divergence < 1e-5, "{layout:?}: {compared:?}");
        let different = verified(&other, &destination).comparison.expect("a reference");
        assert!(
            different.divergence > 0.1 && different.agreement < 0.9,
            "{layout:?}: {different:?}"
        );
    }
    let weights = scratch.path().join("a");
    let error = model.verify(&weights, &ids(), VerifyOptions::default(), &mut |_| {});
    assert!(error.expect_err("refused").to_string().ends_with("is not a converted model"));
}

/// Signal-to-noise ratio in decibels of rows that are quantized to 8-bit integers. The scale of a row comes from its largest
/// magnitude.
fn decibels_of_int8(rows: &[f32]) -> f64 {
    let (mut signal, mut noise) = (0.0, 0.0);
    for row in rows.chunks(WIDTH) {
        let most = row.iter().fold(0f32, |most, x| most.max(x.abs()));
        let scale = f16::from_f32(most / 127.0).to_f32();
        for &x in row {
            let found = (x / scale).round() * scale;
            signal += f64::from(x).powi(2);
            noise += f64::from(x - found).powi(2);
        }
    }
    10.0 * (signal / noise).log10()
}

#[test]
fn reports_int8_signal_to_noise_of_every_matrix() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let source = source(&scratch.path().join("a"), 3);
    let model = LanguageModel::open(&source.folder).expect("opens");
    for layout in [Layout::Coremill, Layout::Chunks] {
        let output = scratch.path().join(format!("{layout:?}"));
        let destination = Destination::of(&output, Some(layout)).expect("a destination");
        let options = options(Weights::Int8);
        let saved = model.save(&destination, &[], &options, false, &mut |_| {}).expect("written");
        for (name, rows) in source.weights.iter().filter(|(_, rows)| rows.len() > WIDTH) {
            let loss = saved.losses.iter().find(|loss| loss.tensor == *name);
            let loss = loss.unwrap_or_else(|| panic!("{name} is not in {:?}", saved.losses));
            let expected = decibels_of_int8(rows);
            assert!((loss.decibels - expected).abs() < 0.5, "{name}: {loss:?}, {expected}");
            assert_eq!(loss.scheme, "32-bit elements");
        }
        let compared = verified(&model, &destination).comparison.expect("a reference");
        assert!((1e-7..0.05).contains(&compared.divergence), "{compared:?}");
    }
}

/// Asserts that `check` reports nothing about a package, except that the embeddings gather rows: they are a separate model,
/// because the Neural Engine cannot gather.
fn assert_accepted(path: &Path) {
    if path.extension().is_none_or(|extension| extension != "mlpackage") {
        return;
    }
    let mut executable = Session::new(Device::Host).open(path).expect("opens");
    let report = check(executable.model().expect("a model"));
    let mut codes: Vec<_> = report.diagnostics.iter().map(|found| found.code.name()).collect();
    codes.retain(|code| !(path.ends_with("embeddings.mlpackage") && *code == "runtime-index"));
    assert!(codes.is_empty(), "{}: {codes:?}", path.display());
}

/// Checks upper bounds on the KL divergence from fp32, with the numerics of the Neural Engine, for each encoding of weights. The
/// divergence must grow from one encoding to the next.
#[test]
fn ane_numerics_stay_within_divergence_bounds() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let model = LanguageModel::open(source(&scratch.path().join("a"), 5).folder).expect("opens");
    let encodings =
        [(Weights::Fp16, 1e-4), (Weights::Int8, 1e-3), (Weights::Lut6, 1e-2), (Weights::Lut4, 0.1)];
    for layout in [Layout::Chunks, Layout::Anemll] {
        let mut previous = 0.0;
        for (weights, limit) in encodings {
            let output = scratch.path().join(format!("{layout:?}{weights:?}"));
            let destination = Destination::of(&output, Some(layout)).expect("a destination");
            let saved = model.save(&destination, &[], &options(weights), false, &mut |_| {});
            // Losses are reported for all encodings except fp16.
            let SavedModel { files, losses, .. } = saved.expect("written");
            if layout == Layout::Chunks {
                files.iter().for_each(|path| assert_accepted(path));
            }
            assert_eq!(losses.is_empty(), weights == Weights::Fp16, "{losses:?}");
            let mut verify = VerifyOptions::default();
            verify.numerics = Numerics::Ane;
            let score = model.verify(destination.path(), &ids(), verify, &mut |_| {});
            let compared = score.expect("runs").comparison.expect("a reference");
            assert!(
                compared.divergence > previous && compared.divergence < limit,
                "{layout:?}, {weights:?}: {compared:?}, previous {previous}"
            );
            previous = compared.divergence;
        }
    }
}
