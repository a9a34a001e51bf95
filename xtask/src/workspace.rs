//! Paths of the workspace, and running of programs.

use std::env;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_path_buf).unwrap_or_default()
}

/// The cargo that runs this program, so that its toolchain is also used for the inner command.
pub(crate) fn cargo(root: &Path) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    command.current_dir(root);
    command
}

pub(crate) fn target_directory(root: &Path) -> PathBuf {
    env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| root.join("target"), |directory| root.join(directory))
}

pub(crate) fn binary(root: &Path) -> PathBuf {
    target_directory(root).join("release").join(format!("coremill{}", env::consts::EXE_SUFFIX))
}

pub(crate) fn execute(command: &mut Command, what: &str) -> Result<(), String> {
    let status = command.status().map_err(|error| {
        format!("{what}: cannot start `{}`: {error}", command.get_program().to_string_lossy())
    })?;
    if status.success() { Ok(()) } else { Err(format!("{what} failed ({status})")) }
}

pub(crate) fn describe(action: &str, path: &Path, error: &io::Error) -> String {
    format!("cannot {action} `{}`: {error}", path.display())
}
