//! Whole rendered reports.
//!
//! Each `.mil` file of `tests/diagnostics` is a program; what the verifier says about it stands beside it
//! in a `.txt` file. A program that can be described is checked as a model. `BLESS=1` writes the `.txt`
//! files anew.

use std::fs;
use std::path::Path;

use coremill_mil::model::describe;
use coremill_mil::verify::{RenderOptions, check, check_program};

use crate::cases::parsed;

#[test]
fn reports_read_as_they_did() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/diagnostics");
    let mut paths: Vec<_> = fs::read_dir(&folder)
        .expect("a folder of the repository")
        .map(|entry| entry.expect("entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "mil"))
        .collect();
    paths.sort();
    assert!(paths.len() >= 10, "found only {} programs", paths.len());
    let bless = std::env::var_os("BLESS").is_some();
    let mut failures = Vec::new();
    for path in paths {
        let program = parsed(&fs::read_to_string(&path).expect("UTF-8"));
        let report = match describe(program.clone()) {
            Ok(model) => check(&model),
            Err(_) => check_program(&program),
        };
        let name = path.file_name().expect("name").to_string_lossy().into_owned();
        let options = RenderOptions { name: name.clone(), ..RenderOptions::default() };
        let found = report.render(&program, &options);
        let expected = path.with_extension("txt");
        if bless {
            fs::write(&expected, &found).expect("write");
        } else if fs::read_to_string(&expected).ok().as_deref() != Some(&*found) {
            failures.push(format!("== {name}: found\n{found}"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn colours_are_only_used_on_request() {
    let program = parsed(&crate::cases::main("ios17", "tensor<fp32, [4]> x", "", "x"));
    let report = check_program(&program);
    let plain = report.render(&program, &RenderOptions::default());
    assert!(plain.contains("error[passed-through]") && !plain.contains('\x1b'), "{plain}");
    let options = RenderOptions { color: true, ..RenderOptions::default() };
    assert!(report.render(&program, &options).contains("\x1b[1;31merror[passed-through]\x1b[0m"));
}
