//! Models written by Apple's compiler and converter must be valid.
//!
//! The packages are in `tests/packages` and in the folders of the variable `COREMILL_PACKAGES`, separated as
//! in `PATH`; `cargo xtask zoo` creates hundreds. The compiled models and their sources are in
//! `tests/compiled`.

use std::path::{Path, PathBuf};

use coremill_mil::text;
use coremill_mlpackage::package::{self, ErrorKind};
use coremill_verify::{check, check_program};

use crate::cases::Zeros;

/// All accepted paths below a folder.
fn find(folder: PathBuf, accept: fn(&Path) -> bool) -> Vec<PathBuf> {
    let mut folders = vec![folder];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten() {
            let path = entry.expect("entry").path();
            if accept(&path) {
                found.push(path);
            } else if path.is_dir() {
                folders.push(path);
            }
        }
    }
    found.sort();
    found
}

fn tests(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../mlpackage/tests").join(folder)
}

#[test]
fn accepts_programs_of_apples_compiler() {
    let programs = find(tests("compiled"), |path| path.ends_with("model.mil"));
    assert!(programs.len() >= 20, "found only {} programs", programs.len());
    let mut failures = Vec::new();
    for path in programs {
        let source = std::fs::read_to_string(&path).expect("UTF-8");
        let program = text::parse(&source, &Zeros)
            .unwrap_or_else(|error| panic!("{}", error.render(&path.display().to_string())));
        let report = check_program(&program);
        if !report.is_sound() {
            failures.push(format!("{}:\n{report}", path.display()));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn accepts_models_of_apples_converter() {
    let is_package = |path: &Path| path.extension().is_some_and(|end| end == "mlpackage");
    let mut paths = find(tests("packages"), is_package);
    let others = std::env::var_os("COREMILL_PACKAGES").unwrap_or_default();
    for folder in std::env::split_paths(&others).filter(|folder| !folder.as_os_str().is_empty()) {
        let more = find(folder, is_package);
        assert!(!more.is_empty(), "a folder in `COREMILL_PACKAGES` contains no package");
        paths.extend(more);
    }
    // The weights of this model are next to the model file; its tests move them to the path that the file
    // contains.
    let elsewhere = Path::new("pipeline-weighted/input.mlmodel");
    let models = find(tests("compiled"), |path| path.ends_with("input.mlmodel"));
    paths.extend(models.into_iter().filter(|path| !path.ends_with(elsewhere)));
    let mut verified = 0;
    let mut failures = Vec::new();
    for path in paths {
        let model = match package::read(&path) {
            Ok(model) => model,
            // Pipelines are rejected with an error that names them.
            Err(error) if error.kind() == ErrorKind::OtherModel => continue,
            Err(error) => panic!("{}: {error}", path.display()),
        };
        let report = check(&model);
        if report.is_sound() {
            verified += 1;
        } else {
            failures.push(format!("{}:\n{report}", path.display()));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(verified >= 9, "found only {verified} models");
}
