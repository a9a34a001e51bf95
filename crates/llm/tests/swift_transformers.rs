//! A small model in the layout for swift-transformers: it has the interface that the library expects, and returns the logits of the
//! default layout for both kinds of masks that callers pass.

use std::fs;
use std::path::{Path, PathBuf};

use coremill_graph::{ArrayView, Device, Executable, Input, Precision, Session};
use coremill_llm::{
    BuildOptions, Bundle, Destination, ErrorKind, GenerateOptions, Generator, LanguageModel, Layout,
};
use coremill_mil::model::{FeatureDescription, FeatureType, Model, ShapeFlexibility};
use serde_json::Value;

const CONTEXT: usize = 24;
const TEXT: [u32; 9] = [3, 5, 4, 9, 7, 6, 11, 3, 8];

/// Interface that `Sources/Models/LanguageModel.swift` reads, and `Examples/Mistral7B/export.py` writes for a model with one layer,
/// one KV head of 8 elements, and 24 positions. The shape of the output is not declared.
const INTERFACE: [&str; 5] = [
    "input inputIds Int32 [1, 1..24]",
    "input causalMask Float16 [1, 1, 1..24, 1..24]",
    "output logits Float16",
    "state keyCache Float16 [1, 1, 1, 24, 8]",
    "state valueCache Float16 [1, 1, 1, 24, 8]",
];

fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../cli/tests/files/tiny")
}

fn options() -> BuildOptions {
    BuildOptions::default().context(CONTEXT).prefill(4)
}

/// The model in the default layout, in fp32.
fn reference(model: &LanguageModel) -> Generator {
    let options = options().precision(Precision::Fp32);
    Generator::new(model.compile(Device::Host, 1, &options).expect("compiles")).expect("loads")
}

fn swift(model: &LanguageModel) -> Executable {
    let options = options().layout(Layout::SwiftTransformers);
    model.compile(Device::Host, 1, &options).expect("compiles")
}

/// Describes a feature in one line: its kind, name, data type and shape.
fn line(kind: &str, feature: &FeatureDescription) -> String {
    let (FeatureType::MultiArray(array) | FeatureType::State(array)) = &feature.ty else {
        panic!("not an array: {feature:?}")
    };
    let shape: Vec<String> = match &array.flexibility {
        ShapeFlexibility::Ranged(ranges) => ranges
            .iter()
            .map(|range| match i64::try_from(range.lower) {
                Ok(lower) if lower == range.upper => lower.to_string(),
                _ => format!("{}..{}", range.lower, range.upper),
            })
            .collect(),
        _ => array.shape.iter().map(ToString::to_string).collect(),
    };
    let shape = if shape.is_empty() { String::new() } else { format!(" [{}]", shape.join(", ")) };
    format!("{kind} {} {:?}{shape}", feature.name, array.data_type)
}

fn interface(model: &Model) -> Vec<String> {
    let signatures = model.signatures();
    let [main] = &signatures[..] else { panic!("not one function") };
    let inputs = main.inputs.iter().map(|feature| line("input", feature));
    let outputs = main.outputs.iter().map(|feature| line("output", feature));
    let states = main.states.iter().map(|feature| line("state", feature));
    inputs.chain(outputs).chain(states).collect()
}

#[test]
fn interface_matches_swift_transformers() {
    let model = LanguageModel::open(tiny()).expect("opens");
    let mut executable = swift(&model);
    assert_eq!(interface(executable.model().expect("a model")), INTERFACE);
}

/// Calls the model as a runner does, with a mask of zeros of the given size.
fn call(model: &mut Executable, ids: &[u32], [rows, columns]: [usize; 2]) -> Vec<f32> {
    let tokens: Vec<i32> = ids.iter().map(|&id| id as i32).collect();
    let tokens = ArrayView { shape: &[1, ids.len()], elements: &tokens };
    let mask = vec![0.0f32; rows * columns];
    let mask = ArrayView { shape: &[1, 1, rows, columns], elements: &mask };
    let inputs: [(&str, &dyn Input); 2] = [("inputIds", &tokens), ("causalMask", &mask)];
    let outputs = model.run(&inputs).expect("runs");
    outputs.floats("logits").expect("logits").to_vec()
}

fn distance(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn row_and_square_masks_match_default_layout_logits() {
    let model = LanguageModel::open(tiny()).expect("opens");
    let mut reference = reference(&model);
    let vocabulary = reference.vocabulary();
    let expected: Vec<f32> =
        TEXT.iter().flat_map(|&id| reference.read(&[id]).expect("runs")).collect();
    assert!(distance(&expected[..vocabulary], &expected[vocabulary..][..vocabulary]) > 0.1);
    let mut executable = swift(&model);
    // `LanguageModelWithStatefulKVCache` passes one row of zeros, one element longer than the text. `generate.py` passes a row for
    // each token, as long as the text.
    for (extra_columns, is_square) in [(1, false), (0, true)] {
        for prompt in [1, 5, TEXT.len()] {
            executable.reset().expect("states of zeros");
            let rows = if is_square { prompt } else { 1 };
            let found = call(&mut executable, &TEXT[..prompt], [rows, prompt + extra_columns]);
            let max_error = distance(&found, &expected[..prompt * vocabulary]);
            assert!(
                max_error < 2e-2,
                "prompt of {prompt}, {extra_columns} extra columns: maximum error {max_error}"
            );
            for at in prompt..TEXT.len() {
                let found = call(&mut executable, &TEXT[at..=at], [1, at + 1 + extra_columns]);
                let max_error = distance(&found, &expected[at * vocabulary..][..vocabulary]);
                assert!(
                    max_error < 2e-2,
                    "token {at}, {extra_columns} extra columns: maximum error {max_error}"
                );
            }
        }
    }
}

/// Copies the model, and changes its configuration.
fn changed(folder: &Path, change: impl FnOnce(&mut Value)) -> LanguageModel {
    fs::create_dir_all(folder).expect("a folder");
    for entry in fs::read_dir(tiny()).expect("the model") {
        let entry = entry.expect("an entry");
        fs::copy(entry.path(), folder.join(entry.file_name())).expect("a copy");
    }
    let path = folder.join("config.json");
    let mut config = serde_json::from_slice(&fs::read(&path).expect("a file")).expect("JSON");
    change(&mut config);
    fs::write(path, config.to_string()).expect("written");
    LanguageModel::open(folder).expect("opens")
}

#[test]
fn package_generates_same_tokens_as_default_layout() {
    let scratch = tempfile::tempdir().expect("a scratch directory");
    let name = |name: &str| {
        let name = name.to_owned();
        move |config: &mut Value| config["_name_or_path"] = name.into()
    };
    let model = changed(&scratch.path().join("named"), name("owner/tiny-1.0"));
    let tokenizer = model.tokenizer().expect("a tokenizer");
    let mut reference = reference(&model);
    for (output, model_name) in
        [("directory", "directory/model.mlpackage"), ("m.mlmodelc", "m.mlmodelc")]
    {
        let output = scratch.path().join(output);
        let destination = Destination::of(&output, Some(Layout::SwiftTransformers));
        let destination = destination.expect("a destination");
        assert_eq!(destination.model, scratch.path().join(model_name));
        let companions = model.companions().expect("files");
        let saved = model.save(&destination, &companions, &options(), false, &mut |_| {});
        assert!(saved.expect("written").files.iter().all(|file| file.exists()));
        let mut executable = Session::new(Device::Host).open(&destination.model).expect("opens");
        let written = executable.model().expect("a model");
        assert_eq!(interface(written), INTERFACE);
        let metadata = written.description.metadata.as_ref().expect("metadata");
        let found = metadata.user_defined("co.huggingface.exporters.name");
        assert_eq!(found, Some("owner/tiny-1.0"));

        let bundle = Bundle::open(&output).expect("opens");
        let generator = bundle.generator(Device::Host, 1, &BuildOptions::default());
        let mut generator = generator.expect("loads");
        assert_eq!(
            (generator.context(), generator.vocabulary()),
            (CONTEXT, reference.vocabulary())
        );
        let generate = |generator: &mut Generator, prompt: &[u32]| {
            let mut options = GenerateOptions::default();
            options.reuse_prefix = true;
            let generation = generator.generate(&tokenizer, prompt, &options, &mut |_| true);
            generation.expect("runs").tokens
        };
        for prompt in [&TEXT[..1], &TEXT[..6], &TEXT[..4], &TEXT[2..]] {
            assert_eq!(generate(&mut generator, prompt), generate(&mut reference, prompt));
        }
    }
    for path in ["/owner/tiny", "tiny", "../tiny", "owner/tiny/more", "a b/tiny"] {
        let model = changed(&scratch.path().join("path"), name(path));
        let output = scratch.path().join("unnamed.mlpackage");
        let destination = Destination::of(&output, Some(Layout::SwiftTransformers));
        let destination = destination.expect("a destination");
        model.save(&destination, &[], &options(), false, &mut |_| {}).expect("written");
        let mut executable = Session::new(Device::Host).open(&output).expect("opens");
        let metadata = executable.model().expect("a model").description.metadata.clone();
        let found = metadata.unwrap_or_default();
        assert_eq!(found.user_defined("co.huggingface.exporters.name"), None, "{path}");
    }
}

#[test]
fn rejects_context_below_three() {
    let model = LanguageModel::open(tiny()).expect("opens");
    let options = BuildOptions::default().context(2).prefill(1).layout(Layout::SwiftTransformers);
    let error = model.compile(Device::Host, 1, &options).err().expect("refused");
    assert_eq!(error.kind(), ErrorKind::Argument);
    assert_eq!(error.to_string(), "`context` must be at least 3 for swift-transformers, got 2");
}
