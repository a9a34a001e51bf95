//! Benchmarks for users of `rlx-coreml` and of sessions, in the programs of `benches/rlx`. It is a separate
//! workspace, because cargo must fetch `rlx-coreml` and needs minutes to build it.

use crate::workspace::{cargo, execute, root, target_directory};

/// Builds and writes a transformer with `rlx-coreml` and with coremill in one run; the error states which
/// limit was missed.
pub(super) fn run() -> Result<(), String> {
    program("rlx", "building and writing a transformer, compared with rlx-coreml")
}

/// Measures the overhead of sessions; the error states which limit was missed.
pub(super) fn session() -> Result<(), String> {
    program("session", "measuring sessions")
}

fn program(name: &str, what: &str) -> Result<(), String> {
    let root = root();
    let mut command = cargo(&root);
    command.args(["run", "--release", "--bin", name]);
    command.arg("--manifest-path").arg(root.join("benches/rlx/Cargo.toml"));
    command.arg("--target-dir").arg(target_directory(&root).join("benches"));
    execute(&mut command, what)
}
