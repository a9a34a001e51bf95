//! Type-checks what apps ship for Apple's targets.

use std::path::Path;

use super::toolchain::{self, Cross, IOS, MACOS};
use crate::workspace::execute;

/// What is checked: crates with their features, and the targets. The C interface has all of our Apple code below it, the
/// façade what an app has of it that opens and runs models.
const CHECKS: [(&str, &[&str], &[&str]); 2] = [
    ("coremill-capi", &["--no-default-features", "--features", "coreml"], &[MACOS, IOS]),
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
