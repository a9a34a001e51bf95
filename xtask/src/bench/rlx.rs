//! Building and writing a transformer with `rlx-coreml` and with coremill, in one run: the program in `benches/rlx`, which is
//! a workspace of its own, as cargo fetches the peer and takes minutes to build it.

use crate::workspace::{cargo, execute, root, target_directory};

/// Runs the program; the error says which bar was missed.
pub(super) fn run() -> Result<(), String> {
    let root = root();
    let mut command = cargo(&root);
    command
        .arg("run")
        .arg("--release")
        .arg("--manifest-path")
        .arg(root.join("benches/rlx/Cargo.toml"));
    command.arg("--target-dir").arg(target_directory(&root).join("benches"));
    execute(&mut command, "building and writing a transformer beside rlx-coreml")
}
