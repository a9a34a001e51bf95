//! Tests that the command and the library use the same input names for files in every format.

use std::path::Path;
use std::process::{Command, Output};

use coremill::DType;
use coremill::engine::Array;
use coremill::graph::{Device, Session};
use coremill::session::{self, FileKind, RunOptions};

fn coremill(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_coremill")).args(arguments).output().expect("it starts")
}

/// The names in the table of inputs that a command prints for an unknown input.
fn listed(output: &Output) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stderr);
    let table = text.lines().skip_while(|line| *line != "inputs:").skip(1);
    let rows = table.take_while(|line| line.starts_with("  "));
    rows.filter_map(|row| row.split_whitespace().next()).map(str::to_owned).collect()
}

/// The library's names of a file's inputs.
fn opened(path: &Path) -> Vec<String> {
    let options = RunOptions::default();
    let kind = FileKind::detect(path).expect("it is there");
    let executable = if kind == FileKind::ExecuTorchProgram {
        let program = coremill::executorch::open(path).expect("it is read");
        session::load_program(program, &options).expect("it is loaded")
    } else {
        let model = coremill::open(path).expect("it is read");
        let verified = coremill::verify(&model).expect("it is sound");
        session::load(&verified, &options).expect("it is loaded")
    };
    let session = executable.default_session().expect("there is a function");
    session.inputs().iter().map(|spec| spec.name.clone()).collect()
}

/// The input names in sessions of graphs.
fn of_graph(path: &Path) -> Vec<String> {
    let mut model = Session::new(Device::Host).open(path).expect("it opens");
    let function = model.default_function().expect("there is one");
    let inputs = model.inputs(&function).expect("they are known");
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
        let expected = opened(&path);
        assert!(!expected.is_empty());
        assert_eq!(of_graph(&path), expected, "{name}: graph::Session");
        assert_eq!(listed(&coremill(&["run", text, "--inputs", other])), expected, "{name}: run");
        let compared = coremill(&["compare", text, text, "--inputs", other]);
        assert_eq!(listed(&compared), expected, "{name}: compare");
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
