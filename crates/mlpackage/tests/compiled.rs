//! Compares compiled models with the output of Apple's compiler for the same input; see `compiled/NOTICE.md`.

use std::path::{Path, PathBuf};

use coremill_mil::model::{self, Model};
use coremill_mil::text::{self, NoWeights, PrintOptions};
use coremill_mlpackage::compiled::{self, ErrorKind, WriteOptions};
use coremill_mlpackage::package;
use coremill_mlpackage::package::weights::WeightFiles;
use coremill_tensor::Buffer;
use coremill_verify::verify;
use serde_json::{Value, json};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compiled")
}

/// All files with this name below a folder.
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
fn apple_mil_text_round_trips_exactly() {
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

/// A model file and the model compiled from it by Apple's compiler.
struct Pair {
    name: String,
    /// Contains the model file, with its weights next to it.
    input: tempfile::TempDir,
    expected: PathBuf,
    /// Whether the model is a stage of a pipeline.
    is_stage: bool,
}

impl Pair {
    fn model_file(&self) -> PathBuf {
        self.input.path().join("input.mlmodel")
    }
}

/// All pairs whose input is an ML Program: those of the folder, and the stages of its pipelines.
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

/// The models of a pipeline; empty if the model is not a pipeline.
fn stages(model: &[u8]) -> Vec<&[u8]> {
    let pipeline = fields(model).into_iter().find(|(number, _)| *number == 202);
    let models = pipeline.map(|(_, pipeline)| fields(pipeline)).unwrap_or_default();
    models.into_iter().filter(|(number, _)| *number == 1).map(|(_, model)| model).collect()
}

/// The length-delimited fields of a message, as number and contents.
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

/// Removes the empty metadata field from the end of the description.
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
fn compiled_models_match_apple_compiler() {
    let pairs = pairs();
    assert_eq!(pairs.len(), 8 + 15, "8 models and the 15 stages of 8 pipelines");
    let mut same_model_files = 0;
    for pair in pairs {
        let model = package::read(&pair.model_file()).expect("a model");
        let output = tempfile::tempdir().expect("temporary directory");
        let ours = output.path().join("input.mlmodelc");
        let options = WriteOptions { name: Some("input".to_owned()), ..WriteOptions::default() };
        compile(&ours, &model, &options).expect("written");

        let mut text = without_build_info(&read(ours.join("model.mil")));
        let expected = without_build_info(&read(pair.expected.join("model.mil")));
        if pair.name == "flexible-enumerated" {
            // Apple's compiler names each set of shapes by a 32-bit hash of unknown origin.
            for (key, hash) in
                [("00000000", "543d0f94"), ("00000001", "697b758f"), ("00000002", "9e38c1a4")]
            {
                assert_eq!(text.matches(key).count(), 1, "{key} in {text}");
                text = text.replace(key, hash);
            }
        }
        assert_eq!(text, expected, "{}", pair.name);
        let mut container = read(ours.join("coremldata.bin"));
        let mut analytics = read(ours.join("analytics/coremldata.bin"));
        if pair.is_stage {
            // For a stage, Apple's compiler writes no metadata field and only the first table.
            drop_metadata_field(&mut container);
            analytics.truncate(0x6c);
        }
        assert_eq!(container, read(pair.expected.join("coremldata.bin")), "{}", pair.name);
        let mut expected = read(pair.expected.join("analytics/coremldata.bin"));
        let layout = package::weights::Layout::plan(&model.program).expect("a layout");
        let encoded = package::to_bytes(&model, &layout).expect("encoded");
        if encoded == read(pair.model_file()) {
            same_model_files += 1;
        } else if !pair.is_stage {
            // The hash of the model file differs, because this crate encodes maps in sorted order.
            let hash = 0xa9..0xa9 + 44;
            assert!(
                analytics[hash.clone()].ends_with(b"=") && expected[hash.clone()].ends_with(b"=")
            );
            analytics.drain(hash.clone());
            expected.drain(hash);
        }
        assert_eq!(analytics, expected, "{}", pair.name);
        if !pair.is_stage {
            let parse = |folder: &Path| -> Value {
                serde_json::from_slice(&read(folder.join("metadata.json"))).expect("JSON")
            };
            let (ours, expected) = (parse(&ours), parse(&pair.expected));
            assert_eq!(ours, expected, "metadata.json of {}", pair.name);
        }
        let weights = pair.expected.join("weights/weights.bin");
        if weights.exists() {
            assert_eq!(read(ours.join("weights/weights.bin")), read(weights));
        }

        let again = compiled::read(&ours).expect("readable");
        assert_eq!(again.program, model.program, "{}", pair.name);
        assert_eq!(again.specification_version, model.specification_version);
        let expected = compiled::read(&pair.expected).expect("readable");
        let mut program = expected.program.clone();
        program.attributes.remove("buildInfo");
        assert_eq!(program, model.program, "{}", pair.name);
        if !pair.is_stage {
            assert_eq!(expected.description, again.description, "{}", pair.name);
        }
    }
    assert_eq!(same_model_files, 7, "number of model files that encode to the same bytes");
}

/// Verifies and writes a model.
fn compile(path: &Path, model: &Model, options: &WriteOptions) -> Result<(), compiled::Error> {
    let verified = verify(model).unwrap_or_else(|report| panic!("{report}"));
    compiled::write(path, &verified, options)
}

/// A model parsed from text, whose weights are in files with one record each.
fn from_text(text: &str) -> Model {
    let record = |dtype: u32, bytes: &[u8]| {
        let mut file = vec![0; 128];
        file[0..4].copy_from_slice(&1u32.to_le_bytes());
        file[4..8].copy_from_slice(&2u32.to_le_bytes());
        file[64..68].copy_from_slice(&0xdead_beefu32.to_le_bytes());
        file[68..72].copy_from_slice(&dtype.to_le_bytes());
        file[72..80].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        file[80..88].copy_from_slice(&128u64.to_le_bytes());
        file.extend_from_slice(bytes);
        Buffer::from(file)
    };
    let weights = WeightFiles::in_memory([
        ("weights/weight.bin".to_owned(), record(8, &[0x21, 0x43])),
        ("weights/more/scales.bin".to_owned(), record(1, &[0, 0x3c, 0, 0x40])),
    ]);
    let program = text::parse(text, &weights);
    let program = program.unwrap_or_else(|error| panic!("{}", error.render("text")));
    model::describe(program).expect("a description")
}

const STATEFUL: &str = r#"program(1.3)
[buildInfo = dict<string, string>({{"coremltools-version", "9.0"}})]
{
    func main<ios18>(tensor<fp16, [2, 2]> x, state<tensor<fp16, [2, 2]>> cache) {
            tensor<fp16, [2, 2]> w = constexpr_blockwise_shift_scale(data = tensor<int4, [2, 2]>(BLOBFILE(path = string("@model_path/weights/weight.bin"), offset = uint64(64))), scale = tensor<fp16, [2, 1]>(BLOBFILE(path = string("@model_path/weights/more/scales.bin"), offset = uint64(64))))[name = string("w")];
            tensor<fp16, [2, 2]> old = read_state(input = cache)[name = string("old")];
            tensor<fp16, [2, 2]> sum = add(x = old, y = w)[name = string("sum")];
            write_state(data = sum, input = cache)[name = string("store")];
            tensor<fp16, [2, 2]> y = mul(x = sum, y = x)[name = string("y")];
        } -> (y);
    func other<ios18>(tensor<fp32, [1]> a) {
            tensor<fp32, [1]> b = relu(x = a)[name = string("b")];
        } -> (b);
}
"#;

#[test]
fn round_trips_states_functions_and_weight_files() {
    let mut model = from_text(STATEFUL);
    let metadata = model.description.metadata.get_or_insert_default();
    metadata.author = "A. N. Other".to_owned();
    metadata.set_user_defined("note", "kept");
    let directory = tempfile::tempdir().expect("temporary directory");
    let path = directory.path().join("cached-2.mlmodelc");
    compile(&path, &model, &WriteOptions::default()).expect("written");
    assert_eq!(compiled::read(&path).expect("readable"), model);

    let text = String::from_utf8(read(path.join("model.mil"))).expect("UTF-8");
    // Parameters are sorted by name.
    let sorted = "(state<tensor<fp16, [2, 2]>> cache, tensor<fp16, [2, 2]> x)";
    let text = text.replace(sorted, "(tensor<fp16, [2, 2]> x, state<tensor<fp16, [2, 2]>> cache)");
    let added = format!(
        "{{{{\"coremlc-component-MIL\", \"coremill\"}}, {{\"coremlc-version\", \"{}\"}}, {{",
        env!("CARGO_PKG_VERSION")
    );
    assert_eq!(text.replace(&added, "{{"), STATEFUL.trim_end());
    assert_eq!(read(path.join("weights/more/scales.bin"))[128..], [0, 0x3c, 0, 0x40]);
    assert_eq!(read(path.join("weights/weight.bin"))[128..], [0x21, 0x43]);

    let metadata: Value = serde_json::from_slice(&read(path.join("metadata.json"))).expect("JSON");
    let metadata = &metadata[0];
    assert_eq!(metadata["author"], "A. N. Other");
    assert_eq!(metadata["userDefinedMetadata"]["note"], "kept");
    assert_eq!(metadata["generatedClassName"], "cached_2");
    assert_eq!(metadata["computePrecision"], "Float16");
    assert_eq!(metadata["storagePrecision"], "Mixed (Float16, Int4)");
    assert_eq!(metadata["defaultFunctionName"], "main");
    assert_eq!(metadata["functions"][1]["name"], "other");
    assert_eq!(metadata["functions"][1]["inputSchema"][0]["shape"], "[1]");
    let state = json!({
        "isOptional": "0",
        "dataType": "Float16",
        "shape": "[2, 2]",
        "formattedType": "State (Float16 2 × 2)",
        "type": "State",
        "shortDescription": "",
        "name": "cache",
    });
    assert_eq!(metadata["stateSchema"], json!([state]));
}

#[test]
fn rejects_unwritable_models_and_foreign_targets() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let path = directory.path().join("model.mlmodelc");
    let write = |model: &Model| {
        let error = compile(&path, model, &WriteOptions::default()).expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Unwritable);
        assert!(!path.exists());
        error.to_string()
    };
    let text = STATEFUL.replace("[name = string(\"b\")]", "[`odd.note` = string(\"b\")]");
    assert_eq!(
        write(&from_text(&text)),
        "functions[other]: the attribute name `odd.note` is not an identifier in MIL text"
    );
    let text = STATEFUL.replace(" x, ", " `state`, ").replace("y = x)", "y = `state`)");
    let model = from_text(&text);
    let report = verify(&model).expect_err("a reserved word");
    assert!(report.to_string().contains("`state` is not a valid value name"), "{report}");

    // A directory that is not a compiled model must not be replaced.
    let model = from_text(STATEFUL);
    std::fs::create_dir(&path).expect("create");
    std::fs::write(path.join("precious"), "data").expect("write");
    let error = compile(&path, &model, &WriteOptions::default()).expect_err("refused");
    assert!(error.to_string().ends_with("already exists and is not a compiled model"), "{error}");
    assert!(path.join("precious").exists());
}

#[test]
fn rejects_incomplete_and_corrupt_compiled_models() {
    let error = compiled::read(&folder()).expect_err("not a compiled model");
    assert_eq!(error.kind(), ErrorKind::NotAModel);
    let model = from_text(STATEFUL);
    let directory = tempfile::tempdir().expect("temporary directory");
    let path = directory.path().join("model.mlmodelc");
    compile(&path, &model, &WriteOptions::default()).expect("written");
    std::fs::remove_file(path.join("weights/weight.bin")).expect("remove");
    let error = compiled::read(&path).expect_err("weights are missing");
    assert_eq!(error.kind(), ErrorKind::Weights);
    assert!(compiled::read_without_weights(&path).is_ok());
    std::fs::write(path.join("model.mil"), "program(1.3)\n{\n    oops").expect("write");
    let error = compiled::read(&path).expect_err("invalid MIL text");
    assert_eq!(
        error.to_string(),
        "model.mil, byte 19: line 3, column 5: expected `func` or `}`, found `oops`"
    );
    std::fs::write(path.join("coremldata.bin"), [0xf6, 1, 0, 0, 9]).expect("write");
    let error = compiled::read(&path).expect_err("truncated");
    assert_eq!(error.kind(), ErrorKind::ModelFile);
}
