//! Runs a check on the seeds of a target, including every input that once failed, and on mutations of them.

use std::fs;
use std::path::Path;

/// `manifest` is the directory of the test's crate.
pub(crate) fn run(manifest: &str, target: &str, check: fn(&[u8])) {
    let folder = Path::new(manifest).join("../../fuzz/seeds").join(target);
    let entries =
        fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut count = 0;
    for entry in entries {
        let path = entry.expect("an entry").path();
        let bytes = fs::read(&path).expect("a seed");
        check(&bytes);
        // Truncated and corrupted seeds must be handled, too; small seeds are mutated at every position.
        let step = (bytes.len() / 64).max(1);
        for at in (0..bytes.len()).step_by(step) {
            check(&bytes[..at]);
            let mut wrong = bytes.clone();
            wrong[at] ^= 0x41;
            check(&wrong);
        }
        count += 1;
    }
    assert!(count >= 3, "{} has only {count} seeds; expected at least 3", folder.display());
}
