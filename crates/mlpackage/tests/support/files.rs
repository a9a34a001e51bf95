//! Contents of directories.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// All files below a directory by relative path, with the result of `of` for their contents.
pub(crate) fn files<T>(root: &Path, of: impl Fn(Vec<u8>) -> T) -> BTreeMap<String, T> {
    let mut files = BTreeMap::new();
    let mut pending = vec![root.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                pending.push(path);
            } else {
                let name = path.strip_prefix(root).expect("below").to_string_lossy().into_owned();
                files.insert(name, of(fs::read(path).expect("a file")));
            }
        }
    }
    files
}
