//! Checks the output with Apple's compiler. It needs macOS.
//!
//! Every golden package must compile, both the original and a copy written by coremill. The compiled model
//! must equal coremill's compiled model: the same `model.mil` except `buildInfo`, and the same
//! `coremldata.bin`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::workspace::{binary, cargo, execute, root};

/// Compiles every golden package; the error lists those with differences.
pub(crate) fn run() -> Result<(), String> {
    let root = root();
    let build = ["build", "--release", "--package", "coremill-cli"];
    execute(cargo(&root).args(build), "building the coremill command")?;
    let scratch = root.join("target/apple");
    if scratch.exists() {
        fs::remove_dir_all(&scratch).map_err(|error| format!("{}: {error}", scratch.display()))?;
    }
    let mut failures = Vec::new();
    let packages = golden_packages(&root)?;
    for package in &packages {
        match judge(package, &scratch, &binary(&root)) {
            Ok(()) => println!("ok      {}", package.display()),
            Err(why) => {
                println!("FAILED  {}: {why}", package.display());
                failures.push(package);
            }
        }
    }
    println!("{} passed, {} failed", packages.len() - failures.len(), failures.len());
    if failures.is_empty() { Ok(()) } else { Err("Apple's compiler disagrees".to_owned()) }
}

pub(super) fn golden_packages(root: &Path) -> Result<Vec<PathBuf>, String> {
    let mut packages = Vec::new();
    for folder in ["crates/mlpackage/tests/packages", "examples"] {
        let folder = root.join(folder);
        let entries =
            fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let paths = entries.filter_map(|entry| entry.ok().map(|entry| entry.path()));
        packages
            .extend(paths.filter(|path| path.extension().is_some_and(|ext| ext == "mlpackage")));
    }
    packages.sort();
    if packages.is_empty() { Err("no golden packages found".to_owned()) } else { Ok(packages) }
}

fn judge(package: &Path, scratch: &Path, coremill: &Path) -> Result<(), String> {
    let name =
        package.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let folder = scratch.join(&name);
    let theirs = compile(package, &folder.join("theirs"), &name)?;

    let ours = folder.join("ours").join(format!("{name}.mlmodelc"));
    let again = folder.join("again").join(format!("{name}.mlpackage"));
    for output in [&ours, &again] {
        fs::create_dir_all(output.parent().unwrap_or(scratch))
            .map_err(|error| error.to_string())?;
        let mut pack = Command::new(coremill);
        execute(pack.arg("pack").arg(package).arg("-o").arg(output), "coremill pack")?;
    }
    compile(&again, &folder.join("theirs-again"), &name)?;

    let text = |bundle: &Path| {
        let text =
            fs::read_to_string(bundle.join("model.mil")).map_err(|error| error.to_string())?;
        // The second line is `buildInfo`, which names the compiler.
        Ok::<_, String>(
            text.lines()
                .filter(|line| !line.starts_with("[buildInfo"))
                .map(str::to_owned)
                .collect::<Vec<_>>(),
        )
    };
    let (their_text, our_text) = (text(&theirs)?, text(&ours)?);
    if let Some(line) = their_text.iter().zip(&our_text).position(|(left, right)| left != right) {
        return Err(format!(
            "model.mil differs:\n  theirs {}\n  ours   {}",
            their_text[line], our_text[line]
        ));
    }
    if their_text.len() != our_text.len() {
        return Err(format!(
            "model.mil has {} lines, ours has {}",
            their_text.len(),
            our_text.len()
        ));
    }
    let data =
        |bundle: &Path| fs::read(bundle.join("coremldata.bin")).map_err(|error| error.to_string());
    if data(&theirs)? != data(&ours)? {
        return Err("coremldata.bin differs".to_owned());
    }
    Ok(())
}

fn compile(package: &Path, folder: &Path, name: &str) -> Result<PathBuf, String> {
    fs::create_dir_all(folder).map_err(|error| error.to_string())?;
    let mut compiler = Command::new("xcrun");
    compiler.args(["coremlcompiler", "compile"]).arg(package).arg(folder);
    execute(&mut compiler, "Apple's compiler")?;
    Ok(folder.join(format!("{name}.mlmodelc")))
}
