//! A small model split into several models for the Neural Engine: they generate the same tokens as the whole model, and `check`
//! reports no problems.

use std::fs;
use std::path::{Path, PathBuf};

use coremill_graph::{Device, Precision, Session};
use coremill_llm::{
    BuildOptions, Bundle, Cache, Destination, ErrorKind, GenerateOptions, Generator, LanguageModel,
    Layout, Weights,
};
use coremill_verify::check;

mod support;

use support::{LAYERS, deep, tiny};

const CONTEXT: usize = 32;

fn options() -> BuildOptions {
    BuildOptions::default().context(CONTEXT).prefill(4)
}

fn save(model: &LanguageModel, folder: &Path, options: &BuildOptions) -> Vec<PathBuf> {
    let destination = Destination::of(folder, Some(Layout::Chunks)).expect("a destination");
    let companions = model.companions().expect("files");
    let saved = model.save(&destination, &companions, options, false, &mut |_| {});
    saved.expect("written").files
}

#[test]
fn chunks_match_logits_and_tokens_of_whole_model() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let model = deep(&scratch.path().join("model"));
    let tokenizer = model.tokenizer().expect("a tokenizer");
    let whole = options().precision(Precision::Fp32);
    let whole = model.compile(Device::Host, 1, &whole).expect("compiles");
    let mut whole = Generator::new(whole).expect("loads");
    let text = [3, 5, 4, 9, 7, 6, 11, 3, 8];
    let expected: Vec<_> =
        (1..text.len()).map(|length| logits(&mut whole, &text[..length])).collect();
    for count in 1..=LAYERS {
        let folder = scratch.path().join(format!("chunks_{count}"));
        let cache = if count == 2 { Cache::Io } else { Cache::State };
        let files = save(&model, &folder, &options().chunks(count).cache(cache));
        assert!(files.iter().all(|file| file.exists()));
        let bundle = Bundle::open(&folder).expect("opens");
        let mut chunks =
            bundle.generator(Device::Host, 1, &BuildOptions::default()).expect("loads");
        assert_eq!((chunks.context(), chunks.vocabulary()), (CONTEXT, whole.vocabulary()));
        for (length, expected) in (1..text.len()).zip(&expected) {
            let found = logits(&mut chunks, &text[..length]);
            let max_error =
                found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(max_error < 2e-2, "{count} chunks, {length} tokens: maximum error {max_error}");
        }
        // Single tokens after a reset must give the same logits as blocks of tokens.
        chunks.reset();
        let mut last = Vec::new();
        for id in &text[..text.len() - 1] {
            last = chunks.read(&[*id]).expect("runs");
        }
        let pairs = last.iter().zip(&expected[text.len() - 2]);
        let max_error = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(max_error < 2e-2, "{count} chunks, single tokens: maximum error {max_error}");
        let generate = |generator: &mut Generator| {
            generator.reset();
            let options = GenerateOptions::default();
            let generation = generator.generate(&tokenizer, &text[..6], &options, &mut |_| true);
            generation.expect("runs").tokens
        };
        assert_eq!(generate(&mut chunks), generate(&mut whole));
    }
    let differences = expected[0].iter().zip(&expected[7]).map(|(a, b)| (a - b).abs());
    assert!(
        differences.fold(0.0, f32::max) > 0.1,
        "logits of different texts must differ, or the comparisons above prove nothing"
    );
}

fn logits(generator: &mut Generator, text: &[u32]) -> Vec<f32> {
    generator.reset();
    generator.read(text).expect("runs")
}

#[test]
fn chunks_pass_neural_engine_checks() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let model = deep(&scratch.path().join("model"));
    for weights in [Weights::Exact, Weights::Int8] {
        let folder = scratch.path().join(format!("{weights:?}"));
        for path in save(&model, &folder, &options().chunks(2).weights(weights)) {
            if path.extension().is_none_or(|extension| extension != "mlpackage") {
                continue;
            }
            let mut executable = Session::new(Device::Host).open(&path).expect("opens");
            let report = check(executable.model().expect("a model"));
            let mut codes: Vec<_> =
                report.diagnostics.iter().map(|found| found.code.name()).collect();
            let is_table = path.ends_with("embeddings.mlpackage");
            // The Neural Engine cannot gather rows, so the embedding table is a separate model with this diagnostic.
            codes.retain(|code| !(is_table && *code == "runtime-index"));
            assert!(codes.is_empty(), "{}: {codes:?}", path.display());
        }
    }
}

/// Layers share one state, and heads of 8 elements are padded to 32.
#[test]
fn coremill_and_executorch_layouts_use_one_aligned_state() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let model = deep(&scratch.path().join("model"));
    for layout in [Layout::Coremill, Layout::ExecuTorch] {
        let options = options().context(20).layout(layout);
        let mut executable = model.compile(Device::Host, 1, &options).expect("compiles");
        let function = executable.functions().expect("functions")[0].clone();
        let states = executable.states(&function).expect("states");
        let shapes: Vec<_> = states.iter().map(|state| state.default_shape()).collect();
        assert_eq!(shapes, [Some(vec![2 * LAYERS, 1, 20, 32])]);
        let report = check(executable.model().expect("a model"));
        let codes: Vec<_> = report.diagnostics.iter().map(|found| found.code.name()).collect();
        for code in ["many-states", "state-alignment"] {
            assert!(!codes.contains(&code), "{layout:?}: {report}");
        }
    }
}

#[test]
fn rejects_invalid_options_and_corrupt_coremill_json() {
    let model = LanguageModel::open(tiny()).expect("opens");
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let refusal = |options: BuildOptions| {
        let destination = Destination::of(scratch.path(), Some(Layout::Chunks)).expect("sound");
        let saved = model.save(&destination, &[], &options, false, &mut |_| {});
        let error = saved.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Argument);
        error.to_string()
    };
    assert!(refusal(options().context(16)).contains("a multiple of 32"));
    assert!(refusal(options().chunks(2)).contains("from 1 to 1, the number of layers, got 2"));
    assert!(refusal(options().weights(Weights::Int4)).contains("block-wise weight scales"));
    save(&model, scratch.path(), &options());
    assert!(refusal(options().prefill(1)).contains("another model"));
    let list = scratch.path().join("coremill.json");
    let text = fs::read_to_string(&list).expect("a list");
    for (from, to) in [
        ("\"head.mlpackage\"", "\"../head.mlpackage\""),
        ("\"context\": 32", "\"context\": 64"),
        ("\"width\": 16", "\"width\": 99999999999"),
        ("\"amplitude\": 1.0", "\"amplitude\": null"),
    ] {
        fs::write(&list, text.replace(from, to)).expect("written");
        let bundle = Bundle::open(scratch.path()).expect("opens");
        let error = bundle.generator(Device::Host, 1, &BuildOptions::default());
        assert_eq!(error.err().map(|error| error.kind()), Some(ErrorKind::Format), "{to}");
    }
}
