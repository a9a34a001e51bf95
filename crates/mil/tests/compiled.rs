//! Compiled models against what Apple's compiler made of the same input; see `compiled/NOTICE.md`.

use std::path::{Path, PathBuf};

use coremill_mil::text::{self, NoWeights, PrintOptions};

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
