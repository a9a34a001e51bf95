//! Tests that the command and the library use the same input names for files in every format.

use std::path::Path;
use std::process::{Command, Output};

use coremill::DType;
use coremill::engine::Array;
use coremill::graph::{Device, Session};
use coremill::session::{self, FileKind, RunOptions};

fn coremill(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_coremill"))
        .args(arguments)
        .output()
        .expect("the command starts")
}

/// The names in the table of inputs that a command prints for an unknown input.
fn printed_names(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stderr);
    let table = text.lines().skip_while(|line| *line != "inputs:").skip(1);
    let rows = table.take_while(|line| line.starts_with("  "));
    rows.filter_map(|row| row.split_whitespace().next()).map(str::to_owned).collect()
}

/// The input names according to `coremill::session`.
fn library_names(path: &Path) -> Vec<String> {
    let options = RunOptions::default();
    let kind = FileKind::detect(path).expect("a file");
    let executable = if kind == FileKind::ExecuTorchProgram {
        let program = coremill::executorch::open(path).expect("the file is read");
        session::load_program(program, &options).expect("the model is loaded")
    } else {
        let model = coremill::open(path).expect("the file is read");
        let verified = coremill::verify(&model).expect("it is sound");
        session::load(&verified, &options).expect("the model is loaded")
    };
    let session = executable.default_session().expect("a default function");
    session.inputs().iter().map(|spec| spec.name.clone()).collect()
}

/// The input names according to `graph::Session`.
fn graph_session_names(path: &Path) -> Vec<String> {
    let mut model = Session::new(Device::Host).open(path).expect("the model opens");
    let function = model.default_function().expect("a default function");
    let inputs = model.inputs(&function).expect("the inputs");
    inputs.into_iter().map(|input| input.name).collect()
}

#[test]
fn input_names_agree_across_cli_and_library() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let archive = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits.pt2");
    let model = coremill::convert(archive, &coremill::ConvertOptions::new()).expect("it converts");
    let verified = coremill::verify(&model.model).expect("it is sound");
    for name in ["digits.mlpackage", "digits.mlmodelc"] {
        coremill::save(path(name), &verified, &Default::default()).expect("it is saved");
    }
    for (name, skipped) in [("digits.pte", &[][..]), ("parts.pte", &["aten.conv2d.default"])] {
        let options = coremill::LowerOptions::new().skip_ops(skipped.iter().copied());
        let lowered = coremill::lower(archive, &options).expect("it lowers");
        lowered.save(path(name)).expect("it is written");
    }
    let other = path("other.npz");
    let array = Array::floats(DType::Fp32, [1], vec![0.0]);
    coremill::arrays::write_npz(&other, &[("no_such_input".to_owned(), array)]).expect("written");
    let other = other.to_str().expect("UTF-8");
    for name in ["digits.mlpackage", "digits.mlmodelc", "digits.pte", "parts.pte"] {
        let path = path(name);
        let text = path.to_str().expect("UTF-8");
        let expected = library_names(&path);
        assert!(!expected.is_empty());
        assert_eq!(graph_session_names(&path), expected, "{name}: graph::Session");
        assert_eq!(
            printed_names(&coremill(&["run", text, "--inputs", other])),
            expected,
            "{name}: run"
        );
        let compared = coremill(&["compare", text, text, "--inputs", other]);
        assert_eq!(printed_names(&compared), expected, "{name}: compare");
    }
}

#[cfg(not(target_vendor = "apple"))]
#[test]
fn rejects_core_ml_devices_on_other_platforms() {
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/files/small.mil");
    for command in
        [&["run", model, "--random", "1"][..], &["compare", model, model, "--random", "1"]]
    {
        for (device, name) in [
            ("cpu", "on the CPU"),
            ("gpu", "on the GPU"),
            ("ane", "on the Neural Engine"),
            ("all", "Core ML"),
        ] {
            let output = coremill(&[command, &["--device", device]].concat());
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(1), "{text}");
            assert!(text.contains(name) && text.contains("is not available"), "{text}");
            assert!(text.contains("Core ML is part of macOS and iOS"), "{text}");
        }
        let output = coremill(&[command, &["--device", "host"]].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
