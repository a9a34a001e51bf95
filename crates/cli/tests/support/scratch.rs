//! A scratch directory with the repository's examples and the files of these tests.

use std::fs;
use std::path::Path;

pub(crate) struct Scratch(tempfile::TempDir);

impl Scratch {
    pub(crate) fn new() -> Scratch {
        let directory = tempfile::tempdir().expect("a scratch directory");
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
        copy(&manifest.join("tests/files"), &directory.path().join("files"));
        copy(&manifest.join("../../examples"), &directory.path().join("examples"));
        Scratch(directory)
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

pub(crate) fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("create a directory");
    for entry in fs::read_dir(from).expect("list a directory") {
        let entry = entry.expect("read an entry");
        let target = to.join(entry.file_name());
        match entry.file_type().expect("a file type").is_dir() {
            true => copy(&entry.path(), &target),
            false => drop(fs::copy(entry.path(), target).expect("copy a file")),
        }
    }
}
