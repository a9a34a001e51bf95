//! Runs compiled pipelines with the engine, and fills missing weights of MIL text.

use std::path::{Path, PathBuf};

use coremill::Report;
use coremill_engine::{Array, Engine, LoadOptions, Numerics, Outputs};
use coremill_tensor::DType;
use half::f16;

fn pipeline(name: &str) -> PathBuf {
    let folder = format!("../mlpackage/tests/compiled/pipeline-{name}/input.mlmodelc");
    Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)
}

/// Runs a model on an input, rounding each result to its type.
fn run(path: &Path, input: &str, shape: &[usize], values: &[f32]) -> Outputs {
    let model = coremill::open(path).expect("readable");
    let verified = coremill::verify(&model).unwrap_or_else(|report| panic!("{report}"));
    let options = LoadOptions { numerics: Numerics::Rounded, ..LoadOptions::default() };
    let engine = Engine::load(&verified, &options).expect("loaded");
    let mut session = engine.session(engine.default_function()).expect("a session");
    let array = Array::floats(DType::Fp32, shape.to_vec(), values.to_vec());
    session.run(&[(input, array)]).expect("it runs")
}

fn floats(outputs: &Outputs, name: &str) -> Vec<f32> {
    let value = outputs.get(name).and_then(|value| value.as_array()).expect("an array");
    value.as_floats().expect("floats").to_vec()
}

fn rounded(value: f32) -> f32 {
    f16::from_f32(value).to_f32()
}

#[test]
fn pipeline_stages_round_intermediates_to_fp16() {
    let inputs = [1.0003, -1.0003, 1.0007, -1.0007];
    let outputs = run(&pipeline("cast"), "input", &[4], &inputs);
    assert_eq!(floats(&outputs, "result"), inputs.map(rounded));

    // Both stages have a weight file of the same name.
    let weights = [0.25, -0.25, 0.5, -0.5];
    let outputs = run(&pipeline("weighted"), "input", &[4], &inputs);
    let expected: Vec<f32> = inputs.iter().zip(weights).map(|(x, w)| rounded(x + w)).collect();
    assert_eq!(floats(&outputs, "rounded"), expected);
    let expected: Vec<f32> = expected.iter().zip(weights).map(|(x, w)| x + w).collect();
    assert_eq!(floats(&outputs, "result"), expected);
}

#[test]
fn pipeline_stages_pass_dynamic_shapes_and_masks() {
    let values: Vec<f32> = (0..7).map(|at| at as f32 / 3.0 - 1.0).collect();
    for length in [1, 3, 7] {
        let outputs = run(&pipeline("dynamic-boundary"), "input", &[length], &values[..length]);
        let expected: Vec<f32> = values[..length].iter().copied().map(rounded).collect();
        assert_eq!(floats(&outputs, "result"), expected);
    }
    // A mask of bytes or integers selects the rounded elements where the input is positive.
    for name in ["masked", "masked-int32"] {
        let inputs = [1.0003, -1.0003, 1.0007, -1.0007];
        let outputs = run(&pipeline(name), "input", &[4], &inputs);
        let expected = inputs.map(|x| if x > 0.0 { rounded(x) } else { x });
        assert_eq!(floats(&outputs, "result"), expected, "{name}");
    }
}

#[test]
fn pipelines_round_trip_through_save() {
    let path = pipeline("weighted");
    let stages = coremill::open_pipeline(&path).expect("readable").expect("a pipeline");
    let names: Vec<&str> = stages.stages.iter().map(|stage| stage.name.as_str()).collect();
    assert_eq!(names, ["stage0", "stage1"]);
    let directory = tempfile::tempdir().expect("temporary directory");
    for extension in ["mlpackage", "mlmodelc"] {
        let path = directory.path().join(format!("weighted.{extension}"));
        coremill::save_pipeline(&path, &stages, &Default::default()).expect("written");
        let reread = coremill::open_pipeline(&path).expect("readable").expect("a pipeline");
        assert_eq!(reread.stages.len(), 2);
        let outputs = run(&path, "input", &[4], &[1.0, 2.0, 3.0, 4.0]);
        assert_eq!(floats(&outputs, "result"), [1.5, 1.5, 4.0, 3.0]);
    }
}

const WEIGHTED: &str = r#"program(1.3)
{
    func main<ios17>(tensor<fp32, [2, 3]> x) {
            tensor<fp32, [4, 3]> w = const()[val = tensor<fp32, [4, 3]>(BLOBFILE(path = string("@model_path/weights/weight.bin"), offset = uint64(64)))];
            tensor<fp32, [2, 4]> y = linear(weight = w, x = x);
        } -> (y);
}"#;

#[test]
fn missing_weights_are_reported_and_filled() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let path = directory.path().join("model.mil");
    std::fs::write(&path, WEIGHTED).expect("written");
    let mut model = coremill::open(&path).expect("readable");
    let codes = |report: &Report| -> Vec<&str> {
        report.diagnostics.iter().map(|diagnostic| diagnostic.code.name()).collect()
    };
    assert!(codes(&coremill::check(&model)).contains(&"weight-missing"));
    let mut other = model.clone();
    assert_eq!(coremill::fill_weights(&mut model, 7), 1);
    assert!(coremill::check(&model).is_sound());
    assert_eq!(coremill::fill_weights(&mut model, 7), 0, "all weights are filled already");
    assert_eq!(coremill::fill_weights(&mut other, 7), 1);
    assert_eq!(other.program, model.program, "the same seed gives the same weights");

    // A damaged weight file is rejected.
    std::fs::create_dir(directory.path().join("weights")).expect("made");
    std::fs::write(directory.path().join("weights/weight.bin"), b"no weights").expect("written");
    assert!(coremill::open(&path).is_err());
}
