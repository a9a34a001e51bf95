//! Type-checks the crates of apps for Apple's targets.

use std::path::Path;

use super::toolchain::{self, Cross, IOS, MACOS};
use crate::workspace::execute;

/// The checked crates with their features, and the targets. The C interface depends on all of our Apple code;
/// linking builds it for iOS as well. The façade is checked with the features of an app that only opens and runs models.
const CHECKS: [(&str, &[&str], &[&str]); 2] = [
    ("coremill-capi", &["--no-default-features", "--features", "coreml"], &[MACOS]),
    ("coremill", &["--no-default-features"], &[IOS]),
];

/// Checks each crate for each of its targets.
pub(super) fn run(root: &Path) -> Result<(), String> {
    for (name, features, targets) in CHECKS {
        for target in targets {
            let Cross { mut command, .. } = toolchain::cross(root, "check", target)?;
            command.args(["--package", name]).args(features);
            execute(&mut command, &format!("type-checking `{name}` for {target}"))?;
            println!("ok      {name} for {target}");
        }
    }
    Ok(())
}
