//! Type-checks the crates of apps for macOS. The check `link` builds the same crates for iOS.

use std::path::Path;

use super::toolchain::{self, Cross, MACOS};
use crate::workspace::execute;

/// The checked crates with their features. The C interface depends on all of our Apple code. The façade is checked
/// with the features of an app that only opens and runs models.
const CHECKS: [(&str, &[&str]); 2] = [
    ("coremill-capi", &["--no-default-features", "--features", "coreml"]),
    ("coremill", &["--no-default-features"]),
];

/// Checks each crate. One target suffices: each needs its own standard library and dependencies.
pub(super) fn run(root: &Path) -> Result<(), String> {
    for (name, features) in CHECKS {
        let Cross { mut command, .. } = toolchain::cross(root, "check", MACOS)?;
        command.args(["--package", name]).args(features);
        execute(&mut command, &format!("type-checking `{name}` for {MACOS}"))?;
        println!("ok      {name} for {MACOS}");
    }
    Ok(())
}
