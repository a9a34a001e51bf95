//! The Python package for the oracle tests: the native module and the sources, in `target/python`.

use std::fs;
use std::path::{Path, PathBuf};

use crate::workspace::{describe, target_directory};

/// Copies the built native module and the sources; returns the folder for Python's module search path.
pub(crate) fn package(root: &Path) -> Result<PathBuf, String> {
    let folder = target_directory(root).join("python");
    let package = folder.join("coremill");
    if package.exists() {
        fs::remove_dir_all(&package).map_err(|error| describe("remove", &package, &error))?;
    }
    copy(&root.join("python/coremill"), &package)?;
    let (built, name) = if cfg!(windows) {
        ("_native.dll", "_native.pyd")
    } else if cfg!(target_os = "macos") {
        ("lib_native.dylib", "_native.abi3.so")
    } else {
        ("lib_native.so", "_native.abi3.so")
    };
    let built = target_directory(root).join("release").join(built);
    fs::copy(&built, package.join(name)).map_err(|error| describe("copy", &built, &error))?;
    Ok(folder)
}

/// Copies a folder of sources.
fn copy(from: &Path, to: &Path) -> Result<(), String> {
    fs::create_dir_all(to).map_err(|error| describe("make", to, &error))?;
    let entries = fs::read_dir(from).map_err(|error| describe("read", from, &error))?;
    for entry in entries {
        let path = entry.map_err(|error| describe("read", from, &error))?.path();
        let Some(name) = path.file_name().filter(|name| *name != "__pycache__") else { continue };
        if path.is_dir() {
            copy(&path, &to.join(name))?;
        } else {
            fs::copy(&path, to.join(name)).map_err(|error| describe("copy", &path, &error))?;
        }
    }
    Ok(())
}
