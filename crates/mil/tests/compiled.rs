//! Compiled models against what Apple's compiler made of the same input; see `compiled/NOTICE.md`.

use std::path::{Path, PathBuf};

use coremill_mil::compiled::{self, WriteOptions};
use coremill_mil::package;
use coremill_mil::text::{self, NoWeights, PrintOptions};
use serde_json::Value;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compiled")
}

/// Every file of that name below a folder.
fn find(folder: &Path, name: &str, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("folder") {
        let path = entry.expect("entry").path();
        if path.is_dir() {
            find(&path, name, found);
        } else if path.ends_with(name) {
            found.push(path);
        }
    }
    found.sort();
}

#[test]
fn every_text_of_apples_is_parsed_and_printed_as_it_was() {
    let mut paths = Vec::new();
    find(&folder(), "model.mil", &mut paths);
    assert_eq!(paths.len(), 23);
    for path in paths {
        let text = std::fs::read_to_string(&path).expect("text");
        let program = text::parse(&text, &NoWeights);
        let program = program.unwrap_or_else(|e| panic!("{}", e.render(&path.to_string_lossy())));
        let printed = text::print(&program, &PrintOptions::default()).text;
        assert_eq!(printed, text, "{}", path.display());
    }
}

/// A model file, and the compiled model that Apple's compiler made of it.
struct Pair {
    name: String,
    /// Holds the model file, its weights beside it.
    input: tempfile::TempDir,
    expected: PathBuf,
    /// Whether the model is a part of a pipeline.
    is_stage: bool,
}

impl Pair {
    fn model_file(&self) -> PathBuf {
        self.input.path().join("input.mlmodel")
    }
}

/// Every pair whose input is an ML Program: those of the folder, and the parts of its pipelines.
fn pairs() -> Vec<Pair> {
    let mut pairs = Vec::new();
    let mut inputs = Vec::new();
    find(&folder(), "input.mlmodel", &mut inputs);
    for path in inputs {
        let directory = path.parent().expect("folder");
        let expected = directory.join("input.mlmodelc");
        if !expected.exists() {
            continue;
        }
        let name = directory.file_name().expect("name").to_string_lossy().into_owned();
        let bytes = std::fs::read(&path).expect("model");
        let stages = stages(&bytes);
        if stages.is_empty() {
            pairs.push(pair(&name, &bytes, &expected, false));
        }
        for (index, stage) in stages.into_iter().enumerate() {
            let expected = expected.join(format!("model{index}"));
            pairs.push(pair(&format!("{name}/model{index}"), stage, &expected, true));
        }
    }
    pairs
}

fn pair(name: &str, model: &[u8], expected: &Path, is_stage: bool) -> Pair {
    let input = tempfile::tempdir().expect("temporary directory");
    std::fs::write(input.path().join("input.mlmodel"), model).expect("write");
    if expected.join("weights").is_dir() {
        std::fs::create_dir(input.path().join("weights")).expect("create");
        for file in std::fs::read_dir(expected.join("weights")).expect("weights") {
            let file = file.expect("file");
            let to = input.path().join("weights").join(file.file_name());
            std::fs::copy(file.path(), to).expect("copy");
        }
    }
    Pair { name: name.to_owned(), input, expected: expected.to_owned(), is_stage }
}

/// The models of a pipeline; none if the model is none.
fn stages(model: &[u8]) -> Vec<&[u8]> {
    let pipeline = fields(model).into_iter().find(|(number, _)| *number == 202);
    let models = pipeline.map(|(_, pipeline)| fields(pipeline)).unwrap_or_default();
    models.into_iter().filter(|(number, _)| *number == 1).map(|(_, model)| model).collect()
}

/// The fields of a message that have a length, as number and content.
fn fields(mut bytes: &[u8]) -> Vec<(u64, &[u8])> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = bytes.split_first().expect("a byte");
            *bytes = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        value
    }
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        match tag & 7 {
            0 => {
                varint(&mut bytes);
            }
            2 => {
                let length = varint(&mut bytes) as usize;
                let (content, rest) = bytes.split_at(length);
                bytes = rest;
                found.push((tag >> 3, content));
            }
            other => panic!("wire type {other}"),
        }
    }
    found
}

fn read(path: PathBuf) -> Vec<u8> {
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Takes the empty metadata field from the end of the description.
fn drop_metadata_field(container: &mut Vec<u8>) {
    let trailer = container.len() - 16;
    assert_eq!(container.drain(trailer - 3..trailer).collect::<Vec<_>>(), [0xa2, 0x06, 0x00]);
    let length: [u8; 8] = container[0x4b..0x53].try_into().expect("eight bytes");
    let length = u64::from_le_bytes(length) - 3;
    container[0x4b..0x53].copy_from_slice(&length.to_le_bytes());
}

/// The text without its second line, `buildInfo`, which names the compiler and its version.
fn without_build_info(text: &[u8]) -> String {
    let text = std::str::from_utf8(text).expect("UTF-8");
    let mut lines: Vec<&str> = text.split('\n').collect();
    assert!(
        lines[1].starts_with("[buildInfo = dict<string, string>({{\"coremlc-component-MIL\", ")
    );
    lines.remove(1);
    lines.join("\n")
}

#[test]
fn compiled_models_equal_apples() {
    let pairs = pairs();
    assert_eq!(pairs.len(), 8 + 15, "8 models and the 15 parts of 8 pipelines");
    let mut same_model_files = 0;
    for pair in pairs {
        let model = package::read(&pair.model_file()).expect("a model");
        let output = tempfile::tempdir().expect("temporary directory");
        let ours = output.path().join("input.mlmodelc");
        compiled::write(&ours, &model, &WriteOptions::default()).expect("written");

        let mut text = without_build_info(&read(ours.join("model.mil")));
        let apples = without_build_info(&read(pair.expected.join("model.mil")));
        if pair.name == "flexible-enumerated" {
            // The names of the sets of shapes: 32 bits of a hash that could not be identified.
            for (key, apples) in
                [("00000000", "543d0f94"), ("00000001", "697b758f"), ("00000002", "9e38c1a4")]
            {
                assert_eq!(text.matches(key).count(), 1, "{key} in {text}");
                text = text.replace(key, apples);
            }
        }
        assert_eq!(text, apples, "{}", pair.name);
        let mut container = read(ours.join("coremldata.bin"));
        let mut analytics = read(ours.join("analytics/coremldata.bin"));
        if pair.is_stage {
            // Inside a pipeline Apple writes no metadata field, and the first table only.
            drop_metadata_field(&mut container);
            analytics.truncate(0x6c);
        }
        assert_eq!(container, read(pair.expected.join("coremldata.bin")), "{}", pair.name);
        let mut apples = read(pair.expected.join("analytics/coremldata.bin"));
        let layout = package::weights::Layout::plan(&model.program).expect("a layout");
        let encoded = package::to_bytes(&model, &layout).expect("encoded");
        if encoded == read(pair.model_file()) {
            same_model_files += 1;
        } else if !pair.is_stage {
            // The hash is one of the model file, which we write with its maps sorted.
            let hash = 0xa9..0xa9 + 44;
            assert!(
                analytics[hash.clone()].ends_with(b"=") && apples[hash.clone()].ends_with(b"=")
            );
            analytics.drain(hash.clone());
            apples.drain(hash);
        }
        assert_eq!(analytics, apples, "{}", pair.name);
        if !pair.is_stage {
            let parse = |folder: &Path| -> Value {
                serde_json::from_slice(&read(folder.join("metadata.json"))).expect("JSON")
            };
            let (mut ours, mut apples) = (parse(&ours), parse(&pair.expected));
            known_differences(&mut ours, &mut apples);
            assert_eq!(ours, apples, "metadata.json of {}", pair.name);
        }
        let weights = pair.expected.join("weights/weights.bin");
        if weights.exists() {
            assert_eq!(read(ours.join("weights/weights.bin")), read(weights));
        }

        let again = compiled::read(&ours).expect("readable");
        assert_eq!(again.program, model.program, "{}", pair.name);
        assert_eq!(again.specification_version, model.specification_version);
        let apples = compiled::read(&pair.expected).expect("readable");
        let mut program = apples.program.clone();
        program.attributes.remove("buildInfo");
        assert_eq!(program, model.program, "{}", pair.name);
        if !pair.is_stage {
            assert_eq!(apples.description, again.description, "{}", pair.name);
        }
    }
    assert_eq!(same_model_files, 7, "hashes could be compared");
}

/// Takes out what legitimately differs, and checks that it does no more than that.
fn known_differences(ours: &mut Value, apples: &mut Value) {
    for metadata in [&mut *ours, &mut *apples] {
        let metadata = metadata[0].as_object_mut().expect("an object");
        // Apple counts operations after its optimiser has run, and has versions of its own: one `relu`
        // is `Ios16.relu` in a function of iOS 17 and `Ios18.relu` in one of iOS 18.
        assert!(metadata.remove("mlProgramOperationTypeHistogram").is_some());
        for function in metadata
            .get_mut("functions")
            .and_then(Value::as_array_mut)
            .iter_mut()
            .flat_map(|all| all.iter_mut())
        {
            let function = function.as_object_mut().expect("an object");
            assert!(function.remove("mlProgramOperationTypeHistogram").is_some());
        }
    }
}
