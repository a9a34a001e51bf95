//! A small model saved as an ANEMLL bundle: it has the same interface as bundles of ANEMLL's converter, and generates the same
//! tokens as the default layout.

use std::fs;
use std::path::{Path, PathBuf};

use coremill_graph::{Device, Executable, Precision, Session};
use coremill_llm::{
    BuildOptions, Bundle, Destination, ErrorKind, GenerateOptions, Generator, LanguageModel,
    Layout, VerifyOptions, Weights,
};
use coremill_mil::model::{FeatureDescription, FeatureType, ShapeFlexibility};

mod support;

use support::{LAYERS, deep, tiny};

const CONTEXT: usize = 32;
const BLOCK: usize = 4;
const TEXT: [u32; 9] = [3, 5, 4, 9, 7, 6, 11, 3, 8];

/// Interface of the models that `llama_converter.py` and `combine_models.py` of version 0.3.4 write for three layers with a hidden
/// state of 16 elements, one KV head of 8 elements, 32 positions and blocks of 4 tokens. coremltools replaces the dots of
/// the state name `model.model.kv_cache_0`.
const INTERFACE: [(&str, &[&str]); 4] = [
    (
        "llama_embeddings.mlmodelc",
        &["main", "input input_ids Int32 [1, 1] or [1, 4]", "output hidden_states Float16"],
    ),
    ("llama_FFN_PF_chunk_01of02.mlmodelc", &CHUNK),
    ("llama_FFN_PF_chunk_02of02.mlmodelc", &LAST_CHUNK),
    (
        "llama_lm_head.mlmodelc",
        &[
            "main",
            "input hidden_states Float16 [1, 1, 16]",
            "output logits1 Float16 [1, 1, 4]",
            "output logits2 Float16 [1, 1, 4]",
            "output logits3 Float16 [1, 1, 4]",
            "output logits4 Float16 [1, 1, 4]",
            "output logits5 Float16 [1, 1, 4]",
            "output logits6 Float16 [1, 1, 4]",
            "output logits7 Float16 [1, 1, 4]",
            "output logits8 Float16 [1, 1, 4]",
        ],
    ),
];

const CHUNK: [&str; 14] = [
    "infer",
    "input hidden_states Float16 [1, 1, 16]",
    "input position_ids Int32 [1]",
    "input causal_mask Float16 [1, 1, 1, 32]",
    "input current_pos Int32 [1]",
    "output output_hidden_states Float16 [1, 1, 16]",
    "state model_model_kv_cache_0 Float16 [6, 1, 32, 8]",
    "prefill",
    "input hidden_states Float16 [1, 4, 16]",
    "input position_ids Int32 [4]",
    "input causal_mask Float16 [1, 1, 4, 32]",
    "input current_pos Int32 [1]",
    "output output_hidden_states Float16 [1, 4, 16]",
    "state model_model_kv_cache_0 Float16 [6, 1, 32, 8]",
];

/// The last chunk returns the first hidden state of a block.
const LAST_CHUNK: [&str; 14] = {
    let mut lines = CHUNK;
    lines[12] = "output output_hidden_states Float16 [1, 1, 16]";
    lines
};

/// The values that ANEMLL's programs read in `meta.yaml`.
const PARAMETERS: &str = "  parameters:
    context_length: 32
    batch_size: 4
    lut_embeddings: none
    lut_ffn: none
    lut_lmhead: none
    num_chunks: 2
    model_prefix: llama
    embeddings: llama_embeddings.mlmodelc
    lm_head: llama_lm_head.mlmodelc
    ffn: llama_FFN_PF.mlmodelc
    split_lm_head: 8
";

fn options() -> BuildOptions {
    BuildOptions::default().context(CONTEXT).prefill(BLOCK).chunks(2)
}

fn save(model: &LanguageModel, folder: &Path, options: &BuildOptions) -> Vec<PathBuf> {
    let destination = Destination::of(folder, Some(Layout::Anemll)).expect("a destination");
    let companions = model.companions().expect("files");
    let saved = model.save(&destination, &companions, options, false, &mut |_| {});
    saved.expect("written").files
}

/// Describes a feature in one line: its kind, name, data type and shape.
fn line(kind: &str, feature: &FeatureDescription) -> String {
    let (FeatureType::MultiArray(array) | FeatureType::State(array)) = &feature.ty else {
        panic!("not an array: {feature:?}")
    };
    let shape = |shape: &[i64]| format!("{shape:?}");
    let shape = match &array.flexibility {
        ShapeFlexibility::Enumerated(shapes) => {
            assert_eq!(array.shape, shapes[0], "the default shape must be the first one");
            format!(" {}", shapes.iter().map(|it| shape(it)).collect::<Vec<_>>().join(" or "))
        }
        ShapeFlexibility::Ranged(ranges) => panic!("unexpected ranges of shapes: {ranges:?}"),
        ShapeFlexibility::Fixed if array.shape.is_empty() => String::new(),
        ShapeFlexibility::Fixed => format!(" {}", shape(&array.shape)),
    };
    format!("{kind} {} {:?}{shape}", feature.name, array.data_type)
}

fn interface(executable: &mut Executable) -> Vec<String> {
    let model = executable.model().expect("a model");
    let mut lines = Vec::new();
    for signature in model.signatures() {
        lines.push(signature.name.to_owned());
        lines.extend(signature.inputs.iter().map(|feature| line("input", feature)));
        lines.extend(signature.outputs.iter().map(|feature| line("output", feature)));
        lines.extend(signature.states.iter().map(|feature| line("state", feature)));
    }
    lines
}

#[test]
fn bundle_interface_matches_anemll_converter() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let model = deep(&scratch.path().join("model"));
    assert_eq!(LAYERS, 3);
    let folder = scratch.path().join("bundle");
    let files = save(&model, &folder, &options());
    let names: Vec<_> = files.iter().filter_map(|file| file.file_name()?.to_str()).collect();
    let models = INTERFACE.map(|(name, _)| name);
    assert_eq!(names[..4], models);
    assert_eq!(names[4..7], ["meta.yaml", "config.json", "tokenizer.json"]);
    for (name, expected) in INTERFACE {
        let mut executable = Session::new(Device::Host).open(folder.join(name)).expect("opens");
        assert_eq!(interface(&mut executable), expected, "{name}");
        let model = executable.model().expect("a model");
        let is_chunk = name.contains("chunk");
        let default = if is_chunk { "infer" } else { "main" };
        assert_eq!(model.default_function_name(), default);
        let metadata = model.description.metadata.as_ref().expect("metadata");
        let found = |key: &str| metadata.user_defined(&format!("com.anemll.{key}"));
        assert_eq!(found("context_length"), Some("32"));
        assert!(found("info").is_some());
        assert_eq!(found("num_chunks"), is_chunk.then_some("2"));
        assert_eq!(found("batch_size"), is_chunk.then_some("4"));
        let number = name.contains("_01of").then_some("1").or(is_chunk.then_some("2"));
        assert_eq!(found("chunk_no"), number);
    }
    let meta = fs::read_to_string(folder.join("meta.yaml")).expect("a description");
    assert!(
        meta.starts_with("model_info:\n  name: anemll-llama-ctx32\n  version: 0.3.4\n"),
        "{meta}"
    );
    assert!(meta.ends_with(PARAMETERS), "{meta}");
}

fn generated(generator: &mut Generator, model: &LanguageModel, prompt: &[u32]) -> Vec<u32> {
    let tokenizer = model.tokenizer().expect("a tokenizer");
    let mut options = GenerateOptions::default();
    options.reuse_prefix = true;
    let generation = generator.generate(&tokenizer, prompt, &options, &mut |_| true);
    generation.expect("runs").tokens
}

#[test]
fn bundle_generates_same_tokens_as_default_layout() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let model = deep(&scratch.path().join("model"));
    let reference =
        BuildOptions::default().context(CONTEXT).prefill(BLOCK).precision(Precision::Fp32);
    let reference = model.compile(Device::Host, 1, &reference).expect("compiles");
    let mut reference = Generator::new(reference).expect("loads");
    for (chunks, block) in [(1, 8), (2, BLOCK), (3, 2)] {
        let folder = scratch.path().join(format!("bundle_{chunks}"));
        save(&model, &folder, &options().chunks(chunks).prefill(block));
        let bundle = Bundle::open(&folder).expect("opens");
        let generator = bundle.generator(Device::Host, 1, &BuildOptions::default());
        let mut generator = generator.expect("loads");
        assert_eq!(
            (generator.context(), generator.vocabulary()),
            (CONTEXT, reference.vocabulary())
        );
        for length in 1..=TEXT.len() {
            generator.reset();
            reference.reset();
            let [found, expected] = [&mut generator, &mut reference]
                .map(|generator| generator.read(&TEXT[..length]).expect("runs"));
            let pairs = found.iter().zip(&expected);
            let max_error = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(
                max_error < 2e-2,
                "{chunks} chunks, {length} tokens: maximum error {max_error}"
            );
        }
        for prompt in [&TEXT[..1], &TEXT[..6], &TEXT[..4], &TEXT[2..]] {
            let found = generated(&mut generator, &model, prompt);
            assert_eq!(found, generated(&mut reference, &model, prompt));
        }
        let ids: Vec<u32> = TEXT.iter().cycle().take(40).copied().collect();
        let score = model.verify(&folder, &ids, VerifyOptions::default(), &mut |_| {});
        let compared = score.expect("runs").comparison.expect("a reference");
        assert!(compared.divergence < 1e-4, "{compared:?}");
    }
}

/// ANEMLL's own converter adds the bits of palettized weights to file names (`_lut6`), and older bundles list no paths in
/// `meta.yaml`.
#[test]
fn loads_bundle_with_lut_suffixed_file_names() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let model = deep(&scratch.path().join("model"));
    let folder = scratch.path().join("bundle");
    save(&model, &folder, &options());
    let rename = |from: &str, to: &str| fs::rename(folder.join(from), folder.join(to));
    for chunk in 1..=2 {
        let [from, to] =
            ["", "_lut6"].map(|lut| format!("llama_FFN_PF{lut}_chunk_0{chunk}of02.mlmodelc"));
        rename(&from, &to).expect("renamed");
    }
    rename("llama_lm_head.mlmodelc", "llama_lm_head_lut6.mlmodelc").expect("renamed");
    let path = folder.join("meta.yaml");
    let meta = fs::read_to_string(&path).expect("a description");
    let (head, _) = meta.split_once("    embeddings:").expect("paths");
    let older =
        head.replace("lut_ffn: none", "lut_ffn: 6").replace("lut_lmhead: none", "lut_lmhead: 6");
    fs::write(&path, older).expect("written");
    let bundle = Bundle::open(&folder).expect("opens");
    let mut generator = bundle.generator(Device::Host, 1, &BuildOptions::default()).expect("loads");
    assert_eq!(generator.read(&TEXT).expect("runs").len(), generator.vocabulary());
}

#[test]
fn rejects_invalid_options_and_corrupt_meta_yaml() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let model = LanguageModel::open(tiny()).expect("opens");
    let refusal = |options: BuildOptions| {
        let destination = Destination::of(scratch.path(), Some(Layout::Anemll)).expect("sound");
        let saved = model.save(&destination, &[], &options, false, &mut |_| {});
        let error = saved.expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Argument);
        error.to_string()
    };
    let options = || options().chunks(1);
    assert!(refusal(options().prefill(5)).contains("a multiple of the 5 tokens"));
    assert!(refusal(options().prefill(1)).contains("at least 2"));
    assert!(refusal(options().chunks(2)).contains("from 1 to 1, the number of layers, got 2"));
    assert!(refusal(options().weights(Weights::Int4)).contains("block-wise weight scales"));
    save(&model, scratch.path(), &options());
    assert!(refusal(options().prefill(8)).contains("another model"));
    let path = scratch.path().join("meta.yaml");
    let text = fs::read_to_string(&path).expect("a description");
    for (from, to) in [
        ("llama_lm_head.mlmodelc", "../head.mlmodelc"),
        ("context_length: 32", "context_length: 64"),
        ("batch_size: 4", "batch_size: 8"),
        ("batch_size: 4", "batch_size: -1"),
        ("num_chunks: 1", "num_chunks: 99999"),
        ("num_chunks: 1", "num_chunks: 2"),
        ("  parameters:", "  others:"),
    ] {
        fs::write(&path, text.replace(from, to)).expect("written");
        let bundle = Bundle::open(scratch.path()).expect("opens");
        let error = bundle.generator(Device::Host, 1, &BuildOptions::default());
        assert_eq!(error.err().map(|error| error.kind()), Some(ErrorKind::Format), "{to}");
    }
}
