//! `cargo xtask release --dry-run`: builds and tests all artifacts of a release without publishing them.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use crate::oracle;
use crate::workspace::{binary, cargo, describe, execute, root, target_directory};

/// Maximum size of a package on crates.io.
const MAX_PACKAGE_BYTES: u64 = 10 << 20;

/// The sections of a version in the changelog.
const SECTIONS: [&str; 3] = ["### Added", "### Changed", "### Fixed"];

/// Arguments of the command.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Publish nothing; required, because a person publishes
    #[arg(long, required = true)]
    dry_run: bool,
    /// Package a working tree with uncommitted changes
    #[arg(long)]
    allow_dirty: bool,
    /// Compile each crate from its package, which takes as long as a clean build
    #[arg(long)]
    verify: bool,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    description: Option<String>,
    /// Registries to which a crate may be published: an empty list for none, absent for all.
    publish: Option<Vec<String>>,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
    path: Option<PathBuf>,
}

/// Builds and tests all artifacts; the error states which one failed.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    debug_assert!(arguments.dry_run);
    let root = root();
    let output = target_directory(&root).join("release-dry-run");
    if output.exists() {
        fs::remove_dir_all(&output).map_err(|error| describe("remove", &output, &error))?;
    }
    fs::create_dir_all(&output).map_err(|error| describe("make", &output, &error))?;

    let crates = published(&root)?;
    let version = &crates.first().ok_or("no crates are published")?.version;
    let path = root.join("CHANGELOG.md");
    let changelog = fs::read_to_string(&path).map_err(|error| describe("read", &path, &error))?;
    let heading = check_changelog(&changelog, version)?;
    println!("changelog  {heading}");

    let mut artifacts = package(&root, &crates, arguments)?;
    artifacts.push(build_wheel(&root, &output)?);
    artifacts.push(build_archive(&root, &output, version)?);
    println!("\n{:>10}  artifact", "bytes");
    for artifact in &artifacts {
        println!("{:>10}  {}", size(artifact)?, artifact.display());
    }
    Ok(())
}

/// The published crates, each after its dependencies.
fn published(root: &Path) -> Result<Vec<Package>, String> {
    let mut command = cargo(root);
    let printed = command.args(["metadata", "--no-deps", "--format-version", "1"]).output();
    let printed = printed.map_err(|error| format!("cannot run `cargo metadata`: {error}"))?;
    let metadata: Metadata = serde_json::from_slice(&printed.stdout)
        .map_err(|error| format!("`cargo metadata` printed no metadata: {error}"))?;
    let is_public = |package: &Package| package.publish.as_ref().is_none_or(|to| !to.is_empty());
    in_order(metadata.packages.into_iter().filter(is_public).collect())
}

/// Sorts crates so that each follows its dependencies.
fn in_order(mut waiting: Vec<Package>) -> Result<Vec<Package>, String> {
    let mut sorted: Vec<Package> = Vec::new();
    while !waiting.is_empty() {
        // A development dependency without a version is not part of the package.
        let needs = |package: &Package, other: &Package| {
            package.dependencies.iter().any(|dependency| {
                dependency.path.is_some()
                    && dependency.kind.as_deref() != Some("dev")
                    && dependency.name == other.name
            })
        };
        let ready = (0..waiting.len())
            .find(|&index| !waiting.iter().any(|other| needs(&waiting[index], other)));
        let Some(index) = ready else {
            let names: Vec<_> = waiting.iter().map(|package| &*package.name).collect();
            return Err(format!("these crates depend on one another: {}", names.join(", ")));
        };
        sorted.push(waiting.remove(index));
    }
    Ok(sorted)
}

/// Checks that the changelog has entries for a version; returns their heading.
fn check_changelog<'a>(changelog: &'a str, version: &str) -> Result<&'a str, String> {
    let mut lines = changelog.lines().skip_while(|line| !line.starts_with("## "));
    let heading = lines.next().ok_or("CHANGELOG.md has no versions")?;
    if heading != "## Unreleased" && !heading.starts_with(&format!("## {version} — ")) {
        return Err(format!(
            "CHANGELOG.md begins with `{heading}`; expected `## Unreleased` or `## {version} — DATE`"
        ));
    }
    let body: Vec<_> = lines.take_while(|line| !line.starts_with("## ")).collect();
    if let Some(other) =
        body.iter().find(|line| line.starts_with("### ") && !SECTIONS.contains(line))
    {
        return Err(format!(
            "CHANGELOG.md has the section `{other}`; expected {}",
            SECTIONS.join(", ")
        ));
    }
    if !body.iter().any(|line| line.starts_with("- ")) {
        return Err(format!("CHANGELOG.md has no entry under `{heading}`"));
    }
    Ok(heading)
}

/// Packages all crates as `cargo publish` would upload them.
fn package(root: &Path, crates: &[Package], arguments: &Arguments) -> Result<Vec<PathBuf>, String> {
    let mut command = cargo(root);
    command.args(["package", "--quiet"]);
    for package in crates {
        if package.description.is_none() {
            return Err(format!("`{}` has no description", package.name));
        }
        command.args(["--package", &package.name]);
    }
    if !arguments.verify {
        command.arg("--no-verify");
    }
    if arguments.allow_dirty {
        command.arg("--allow-dirty");
    }
    execute(&mut command, "packaging the crates")?;
    let folder = target_directory(root).join("package");
    let mut files = Vec::new();
    for package in crates {
        let file = folder.join(format!("{}-{}.crate", package.name, package.version));
        let bytes = size(&file)?;
        if bytes > MAX_PACKAGE_BYTES {
            return Err(format!(
                "`{}` has {bytes} bytes; crates.io accepts {MAX_PACKAGE_BYTES}",
                file.display()
            ));
        }
        files.push(file);
    }
    Ok(files)
}

/// Builds the wheel, installs it into a new environment, and runs the example there.
fn build_wheel(root: &Path, output: &Path) -> Result<PathBuf, String> {
    let base = oracle::interpreter(root)?;
    let wheels = output.join("wheels");
    let environment = output.join("venv");
    execute(
        Command::new(base).args(["-m", "venv"]).arg(&environment),
        "making a Python environment",
    )?;
    let (folder, name) = if cfg!(windows) { ("Scripts", "python.exe") } else { ("bin", "python") };
    let python = environment.join(folder).join(name);
    let pip = |arguments: &[&str]| {
        let mut command = Command::new(&python);
        command.args(["-m", "pip", "--quiet", "--disable-pip-version-check"]).args(arguments);
        command
    };
    let mut build = pip(&["wheel", "--no-deps", "--wheel-dir"]);
    build.arg(&wheels).arg(root.join("python")).current_dir(output);
    build.env("CARGO_TARGET_DIR", target_directory(root));
    execute(&mut build, "building the wheel")?;
    let entries = fs::read_dir(&wheels).map_err(|error| describe("read", &wheels, &error))?;
    let built: Vec<_> = entries.filter_map(Result::ok).map(|entry| entry.path()).collect();
    let [wheel] = built.as_slice() else {
        return Err(format!("expected 1 wheel, but {} were built", built.len()));
    };
    execute(pip(&["install", "numpy"]).arg(wheel), "installing the wheel")?;
    let mut example = Command::new(&python);
    // Isolated mode, because the package's sources are next to the example.
    example
        .arg("-I")
        .arg(root.join("python/smoke.py"))
        .current_dir(output)
        .env_remove("PYTHONPATH");
    execute(&mut example, "the example of the wheel")?;
    Ok(wheel.clone())
}

/// Builds the archive of the command, and converts the example with the command from the archive.
fn build_archive(root: &Path, output: &Path, version: &str) -> Result<PathBuf, String> {
    let mut build = cargo(root);
    build.args(["build", "--release", "--quiet", "--package", "coremill-cli"]);
    execute(&mut build, "building the command")?;
    let name = format!("coremill-{version}-{}-{}", env::consts::ARCH, env::consts::OS);
    let folder = output.join(&name);
    fs::create_dir_all(folder.join("man")).map_err(|error| describe("make", &folder, &error))?;
    let executable = binary(root);
    let file_name = executable.file_name().unwrap_or_default().to_owned();
    let documents = ["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"];
    let sources = documents.iter().map(|name| root.join(name)).chain([executable.clone()]);
    for source in sources {
        let to = folder.join(source.file_name().unwrap_or_default());
        fs::copy(&source, &to).map_err(|error| describe("copy", &source, &error))?;
    }
    let mut manual = Command::new(&executable);
    execute(manual.args(["man", "--output"]).arg(folder.join("man")), "writing the manual pages")?;
    let archive = output.join(format!("{name}.tar.gz"));
    let mut pack = Command::new("tar");
    pack.current_dir(output).arg("-czf").arg(&archive).arg(&name);
    execute(&mut pack, "packing the archive")?;

    let unpacked = output.join("unpacked");
    fs::create_dir_all(&unpacked).map_err(|error| describe("make", &unpacked, &error))?;
    let mut unpack = Command::new("tar");
    execute(unpack.current_dir(&unpacked).arg("-xzf").arg(&archive), "unpacking the archive")?;
    let mut example = Command::new(unpacked.join(&name).join(file_name));
    example.arg("convert").arg(root.join("examples/digits.pt2"));
    example.args(["--verify", "--output"]).arg(unpacked.join("Digits.mlpackage"));
    execute(&mut example, "the example of the archive")?;
    Ok(archive)
}

fn size(path: &Path) -> Result<u64, String> {
    let metadata = fs::metadata(path).map_err(|error| describe("read", path, &error))?;
    Ok(metadata.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, dependencies: &[(&str, Option<&str>)]) -> Package {
        let dependencies = dependencies.iter().map(|&(name, kind)| Dependency {
            name: name.to_owned(),
            kind: kind.map(str::to_owned),
            path: Some(PathBuf::new()),
        });
        Package {
            name: name.to_owned(),
            version: "1.0.0".to_owned(),
            description: None,
            publish: None,
            dependencies: dependencies.collect(),
        }
    }

    #[test]
    fn sorts_crates_after_their_dependencies() {
        let top = package("top", &[("middle", None), ("bottom", None)]);
        let middle = package("middle", &[("bottom", Some("build"))]);
        let bottom = package("bottom", &[("top", Some("dev"))]);
        let sorted = in_order(vec![top, middle, bottom]).expect("no cycle");
        let names: Vec<_> = sorted.iter().map(|package| &*package.name).collect();
        assert_eq!(names, ["bottom", "middle", "top"]);
    }

    #[test]
    fn reports_crate_dependency_cycles() {
        let crates = vec![package("a", &[("b", None)]), package("b", &[("a", None)])];
        let error = in_order(crates).err();
        assert_eq!(error.as_deref(), Some("these crates depend on one another: a, b"));
    }

    #[test]
    fn checks_changelog_entries_for_version() {
        let with = |heading: &str, body: &str| {
            format!("# Changelog\n\n{heading}\n\n{body}\n\n## 0.9.0\n- x\n")
        };
        let entry = "### Added\n\n- A command.";
        for heading in ["## Unreleased", "## 1.0.0 — 2026-12-01"] {
            assert_eq!(check_changelog(&with(heading, entry), "1.0.0"), Ok(heading));
        }
        for (heading, body) in [
            ("## 1.1.0 — 2026-12-01", entry),
            ("## Unreleased", ""),
            ("## Unreleased", "### News\n\n- A command."),
        ] {
            assert!(check_changelog(&with(heading, body), "1.0.0").is_err(), "{heading} {body}");
        }
    }
}
