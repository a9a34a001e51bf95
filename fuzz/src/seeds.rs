//! Runs a check on the seeds of a target, among them every input that ever broke it, and on what is near.

use std::fs;
use std::path::Path;

/// `manifest` is the directory of the crate whose test this is.
pub(crate) fn run(manifest: &str, target: &str, check: fn(&[u8])) {
    let folder = Path::new(manifest).join("../../fuzz/seeds").join(target);
    let entries =
        fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut count = 0;
    for entry in entries {
        let path = entry.expect("an entry").path();
        let bytes = fs::read(&path).expect("a seed");
        check(&bytes);
        // What is cut short or has a byte wrong must be as harmless; small seeds are tried everywhere.
        let step = (bytes.len() / 64).max(1);
        for at in (0..bytes.len()).step_by(step) {
            check(&bytes[..at]);
            let mut wrong = bytes.clone();
            wrong[at] ^= 0x41;
            check(&wrong);
        }
        count += 1;
    }
    assert!(count >= 3, "{} holds {count} seeds", folder.display());
}
