//! Programs that Apple's compiler wrote are sound.

use std::path::{Path, PathBuf};

use coremill_mil::text;
use coremill_mil::verify::check_program;

use crate::cases::Zeros;

#[test]
fn what_apples_compiler_wrote_is_sound() {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compiled")];
    let mut programs: Vec<PathBuf> = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder of the repository") {
            let path = entry.expect("entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.file_name().is_some_and(|name| name == "model.mil") {
                programs.push(path);
            }
        }
    }
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
