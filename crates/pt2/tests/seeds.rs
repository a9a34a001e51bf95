//! Runs the check of the fuzz target on the seeds in the repository, which include every input that failed.

use std::fs;
use std::path::Path;

#[path = "../../../fuzz/src/archive.rs"]
mod archive;

#[path = "../../../fuzz/src/seeds.rs"]
mod seeds;

#[test]
fn archive_seeds_do_not_panic() {
    seeds::run(env!("CARGO_MANIFEST_DIR"), "pt2", |data| {
        archive::archive(data);
    });
}

#[test]
fn archive_seeds_are_valid_programs() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/pt2");
    for entry in fs::read_dir(folder).expect("the seeds") {
        let path = entry.expect("an entry").path();
        let prepared = archive::archive(&fs::read(&path).expect("a seed"));
        // Inputs found by fuzzing are named after the failure, and may be invalid programs.
        let found =
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("found-"));
        assert!(prepared || found, "{} is refused", path.display());
    }
}
