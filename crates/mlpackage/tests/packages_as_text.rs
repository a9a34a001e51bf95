//! Converts packages to MIL text and compiled models and back, and compares them with the output of
//! `mlmodelc-export`.
//!
//! The packages are in `tests/packages` and in the folders of the variable `COREMILL_PACKAGES`, separated as
//! in `PATH`; `cargo xtask zoo` creates hundreds.

use std::path::{Path, PathBuf};

use coremill_mil::ir::{OpId, Program, ValueId};
use coremill_mil::model::{Metadata, Model, shapes};
use coremill_mil::ops::OpKind;
use coremill_mil::text::{self, Dialect, NoWeights, PrintOptions};
use coremill_mlpackage::compiled::{self, WriteOptions};
use coremill_mlpackage::package;
use coremill_mlpackage::package::weights::WeightFiles;
use coremill_verify::verify;

fn packages() -> Vec<PathBuf> {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/packages");
    let others = std::env::var_os("COREMILL_PACKAGES").unwrap_or_default();
    let mut found = Vec::new();
    for folder in std::iter::once(golden).chain(std::env::split_paths(&others)) {
        for entry in std::fs::read_dir(folder).into_iter().flatten() {
            let path = entry.expect("entry").path();
            if path.extension().is_some_and(|extension| extension == "mlpackage") {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// The models of the packages, and the inputs of the compiled models.
fn models() -> Vec<(String, Model, PathBuf)> {
    let mut models = Vec::new();
    for path in packages() {
        let name = path.file_stem().expect("name").to_string_lossy().into_owned();
        match package::read(&path) {
            Ok(model) => {
                let file = path.join("Data/com.apple.CoreML/model.mlmodel");
                models.push((name, model, file));
            }
            // The zoo also contains models of other kinds, which are rejected.
            Err(error) if error.kind() == package::ErrorKind::OtherModel => {}
            Err(error) => panic!("{name}: {error}"),
        }
    }
    let compiled = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compiled");
    for entry in std::fs::read_dir(compiled).expect("folder") {
        let path = entry.expect("entry").path().join("input.mlmodel");
        let name = path.parent().and_then(Path::file_name).expect("name");
        let name = name.to_string_lossy().into_owned();
        // Pipelines have other tests.
        if path.exists() && !name.starts_with("pipeline") {
            let model = package::read(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
            models.push((name, model, path));
        }
    }
    assert!(models.len() >= 9);
    models
}

#[test]
fn programs_round_trip_through_mil_text() {
    for (name, model, file) in models() {
        let program = &model.program;
        for dialect in [Dialect::V1_0, Dialect::V1_3] {
            let options = PrintOptions { dialect, ..PrintOptions::default() };
            let printed = text::print(program, &options);
            let weights = WeightFiles::in_directory(file.parent().expect("folder"));
            let again = text::parse(&printed.text, &weights);
            let again = again.unwrap_or_else(|error| panic!("{}", error.render(&name)));
            assert_same(&name, &again, program);
        }
    }
}

#[test]
fn models_round_trip_through_compiled_form() {
    let mut refused = Vec::new();
    let models = models();
    let count = models.len();
    for (name, model, _) in models {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("model.mlmodelc");
        let verified = match verify(&model) {
            Ok(verified) => verified,
            Err(report) => {
                refused.push(format!("{name}: {report}"));
                continue;
            }
        };
        if let Err(error) = compiled::write(&path, &verified, &WriteOptions::default()) {
            assert_eq!(error.kind(), compiled::ErrorKind::Unwritable, "{name}: {error}");
            refused.push(format!("{name}: {error}"));
            continue;
        }
        let again = compiled::read(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_same(&name, &again.program, &model.program);
        let mut description = model.description.clone();
        // Compiled models cannot distinguish empty from missing metadata.
        description.metadata.take_if(|metadata| *metadata == Metadata::default());
        assert_eq!(again.description, description, "{name}");
        assert_eq!(again.specification_version, model.specification_version, "{name}");

        // Writing the result again produces identical bytes.
        let second = directory.path().join("second.mlmodelc");
        let options = WriteOptions { name: Some("model".to_owned()), ..WriteOptions::default() };
        let verified = verify(&again).expect("sound");
        compiled::write(&second, &verified, &options).expect("written");
        for file in ["model.mil", "coremldata.bin", "metadata.json"] {
            let read = |path: &Path| std::fs::read(path.join(file)).expect("file");
            assert_eq!(read(&path), read(&second), "{file} of {name}");
        }
    }
    assert!(refused.is_empty(), "{} of {count} were refused: {refused:#?}", refused.len());
}

#[test]
fn mil_text_matches_mlmodelc_export() {
    let (mut same, mut skipped) = (0, Vec::new());
    for (name, model, file) in models() {
        let bytes = std::fs::read(&file).expect("model file");
        let theirs = match mlmodelc_export::decode(&bytes) {
            Ok(program) => mlmodelc_export::emit_to_string(&program),
            // `mlmodelc-export` supports neither types narrower than a byte nor enumerated shapes.
            Err(error) => {
                skipped.push(format!("{name}: {error:?}"));
                continue;
            }
        };
        let mut program = shapes::attach(&model).expect("shapes");
        if let Some(reason) = drop_unexported(&mut program) {
            skipped.push(format!("{name}: {reason}"));
            continue;
        }
        let images = model.signatures().into_iter().flat_map(|signature| signature.inputs);
        if images.into_iter().any(|input| input.ty.image().is_some()) {
            // `mlmodelc-export` does not support images with several sizes.
            for function in &mut program.functions {
                function.attributes.remove(shapes::ATTRIBUTE);
            }
        }
        let ours = text::print(&program, &PrintOptions::default()).text;
        let mut program = text::parse(&theirs, &NoWeights);
        if let Ok(program) = &mut program {
            program.attributes.remove("buildInfo");
            // `mlmodelc-export` keeps the order of functions in the model file; ours are sorted by name.
            program.functions.sort_by(|left, right| left.name.cmp(&right.name));
        }
        let program = program.unwrap_or_else(|error| panic!("{}", error.render(&name)));
        let theirs = text::print(&program, &PrintOptions::default()).text;
        for (ours, theirs) in ours.lines().zip(theirs.lines()) {
            assert_eq!(ours, theirs, "{name}");
        }
        assert_eq!(ours.lines().count(), theirs.lines().count(), "{name}");
        same += 1;
    }
    assert!(same >= 8, "only {same} models were compared; skipped: {skipped:#?}");
}

/// Removes the attributes that `mlmodelc-export` does not write. If the outputs cannot be compared, returns the
/// reason.
fn drop_unexported(program: &mut Program) -> Option<&'static str> {
    program.attributes.remove("buildInfo");
    for function in &mut program.functions {
        let values = (0..function.value_count()).map(ValueId::from_index);
        let mut types = values.map(|id| &function.value(id).ty);
        if types.any(|ty| ty.as_tensor().is_none()) {
            return Some("`mlmodelc-export` writes states, lists and dictionaries as fp32");
        }
        for index in 0..function.op_count() {
            let op = function.op_mut(OpId::from_index(index));
            if op.kind() == Some(OpKind::Const) {
                // `mlmodelc-export` writes only the value of constants.
                op.attributes.remove("name");
            }
        }
    }
    None
}

fn assert_same(name: &str, again: &Program, program: &Program) {
    if again == program {
        return;
    }
    for (again, function) in again.functions.iter().zip(&program.functions) {
        for ((_, again_op), (_, op)) in again.all_ops().zip(function.all_ops()) {
            assert_eq!(again_op, op, "{name}");
        }
        assert_eq!(again, function, "{name}");
    }
    assert_eq!(again.attributes, program.attributes, "{name}");
    panic!("{name}: the programs differ");
}
