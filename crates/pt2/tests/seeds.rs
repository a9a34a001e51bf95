//! Runs the check of the fuzz target on the seeds in the repository, among them every input that ever broke it.

use std::fs;
use std::path::Path;

#[path = "../../../fuzz/src/archive.rs"]
mod archive;

#[path = "../../../fuzz/src/seeds.rs"]
mod seeds;

#[test]
fn archives() {
    seeds::run(env!("CARGO_MANIFEST_DIR"), "pt2", |data| {
        archive::archive(data);
    });
}

#[test]
fn seeds_are_programs() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/pt2");
    for entry in fs::read_dir(folder).expect("the seeds") {
        let path = entry.expect("an entry").path();
        let prepared = archive::archive(&fs::read(&path).expect("a seed"));
        // What was found by fuzzing is named after what it broke, and need not be a program.
        let found =
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("found-"));
        assert!(prepared || found, "{} is refused", path.display());
    }
}
