//! `cargo xtask check`: the checks to run before each commit. It needs no Python.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use crate::workspace::{cargo, execute, root};

/// Which commit to compare with.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  cargo xtask check\n  cargo xtask check --since main~3\n\nIt takes under 3 minutes once everything is \
                  built. `cargo xtask test --quick` runs all Rust tests, `cargo xtask test` the oracles too."
)]
pub(crate) struct Arguments {
    /// Run the unit tests of the crates that changed since this commit
    #[arg(long, value_name = "COMMIT", default_value = "HEAD")]
    since: String,
}

/// Runs the checks; the error states which one failed.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let root = root();
    step("format", cargo(&root).args(["fmt", "--all", "--check"]))?;
    step("lints", cargo(&root).args(["clippy", "--quiet", "--workspace", "--", "-D", "warnings"]))?;
    step("tidy", cargo(&root).args(["test", "--quiet", "--workspace", "--test", "tidy"]))?;
    let packages = changed_packages(&root, &arguments.since)?;
    if packages.is_empty() {
        println!("no crate changed since {}", arguments.since);
        return Ok(());
    }
    let mut tests = cargo(&root);
    // Name the whole workspace: a single package would be rebuilt with fewer features.
    tests.args(["test", "--quiet", "--workspace", "--lib", "--bins"]);
    for package in all_packages(&root)?.difference(&packages) {
        tests.args(["--exclude", package]);
    }
    let names: Vec<_> = packages.iter().map(String::as_str).collect();
    step(&format!("unit tests of {}", names.join(", ")), &mut tests)
}

fn step(name: &str, command: &mut Command) -> Result<(), String> {
    let start = Instant::now();
    execute(command, name)?;
    println!("{name}: passed in {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// Packages with files that differ from a commit, and new ones.
fn changed_packages(root: &Path, since: &str) -> Result<BTreeSet<String>, String> {
    let mut files = git(root, &["diff", "--name-only", since])?;
    files += &git(root, &["ls-files", "--others", "--exclude-standard"])?;
    let manifests = files.lines().filter_map(|file| {
        let mut folders = Path::new(file).ancestors().skip(1);
        folders.find(|folder| root.join(folder).join("src").is_dir())
    });
    let manifests: BTreeSet<_> = manifests.collect();
    let all = all_packages(root)?;
    let names = manifests.into_iter().filter_map(|folder| package_name(&root.join(folder)));
    Ok(names.filter(|name| all.contains(name)).collect())
}

fn all_packages(root: &Path) -> Result<BTreeSet<String>, String> {
    let metadata = cargo(root)
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .output()
        .map_err(|error| format!("cargo metadata: {error}"))?;
    let metadata: serde_json::Value = serde_json::from_slice(&metadata.stdout)
        .map_err(|error| format!("cargo metadata: {error}"))?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    Ok(packages.filter_map(|package| package["name"].as_str()).map(str::to_owned).collect())
}

fn package_name(folder: &Path) -> Option<String> {
    let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).ok()?;
    let line = manifest.lines().find(|line| line.starts_with("name = "))?;
    Some(line.split('"').nth(1)?.to_owned())
}

fn git(root: &Path, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new("git").current_dir(root).args(arguments).output();
    let output = output.map_err(|error| format!("cannot start `git`: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("`git {}` failed: {}", arguments.join(" "), said.trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_found_by_their_folders() {
        let root = root();
        assert_eq!(package_name(&root.join("crates/mil")).as_deref(), Some("coremill-mil"));
        let all = all_packages(&root).expect("cargo lists the packages");
        assert!(all.contains("coremill-mil") && all.contains("xtask"));
    }
}
