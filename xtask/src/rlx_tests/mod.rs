//! Runs the published tests of `rlx-coreml` against `coremill-rlx`.
//!
//! The tests are in the package of `rlx-coreml` that cargo fetched for `benches/rlx`. They are copied into a
//! generated package in `target`. The crates in `benches/rlx/names` map the imported names to our crate.
//! `rlx-coreml` itself also runs the tests that need no Core ML; on Apple's systems it runs all.

mod listed;
mod suite;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::workspace::{cargo, describe, root, target_directory};
use listed::{NOT_COMPILED, NOT_PASSED};
use suite::{Outcomes, Suite};

/// The workspace that pins the version of `rlx-coreml`.
const PINS: &str = "benches/rlx";

/// The peer.
const PEER: &str = "rlx-coreml";

/// Whether Core ML is available, which most of the tests need.
const HAS_CORE_ML: bool = cfg!(target_vendor = "apple");

/// A file with tests.
struct Source {
    name: String,
    /// The contents without attributes that exclude it on systems other than Apple's.
    text: String,
    needs_core_ml: bool,
}

impl Source {
    fn tests(&self) -> usize {
        self.text.lines().filter(|line| line.trim() == "#[test]").count()
    }

    /// The reason why it does not compile with our names.
    fn excluded(&self) -> Option<&'static str> {
        NOT_COMPILED.iter().find(|(name, _)| *name == self.name).map(|(_, reason)| *reason)
    }
}

/// Copies, builds and runs the tests, and prints a table; the error lists tests for which the lists are
/// wrong.
pub(crate) fn run() -> Result<(), String> {
    let root = root();
    let (version, sources) = peer(&root)?;
    let shim = |name: &str, directory: &str| {
        let path = root.join(PINS).join("names").join(directory);
        format!("{name} = {{ package = \"coremill-names-{directory}\", path = {path:?} }}")
    };
    let published = |name: &str, features: &str| {
        format!("{name} = {{ version = \"={version}\", features = [{features}] }}")
    };
    let suite = |name: &str, dependencies: Vec<String>| Suite {
        directory: target_directory(&root).join("rlx-tests").join(name),
        lock: root.join(PINS).join("Cargo.lock"),
        version: version.clone(),
        dependencies,
    };

    let files = sources.iter().filter(|source| source.excluded().is_none());
    let names = vec![shim(PEER, "coreml"), shim("rlx-runtime", "runtime")];
    let ours = suite("coremill", names).run(&root, &texts(files))?;

    let files = sources.iter().filter(|source| HAS_CORE_ML || !source.needs_core_ml);
    let mut own = vec![published(PEER, "\"training\"")];
    own.extend(HAS_CORE_ML.then(|| published("rlx-runtime", "\"coreml\", \"training\"")));
    let peers = suite("peer", own).run(&root, &texts(files))?;

    print(&sources, &ours, &peers);
    let faults = faults(&sources, &ours);
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n")) }
}

fn texts<'a>(sources: impl Iterator<Item = &'a Source>) -> Vec<(&'a str, &'a str)> {
    sources.map(|source| (source.name.as_str(), source.text.as_str())).collect()
}

/// The version of `rlx-coreml`, and its files with tests.
fn peer(root: &Path) -> Result<(String, Vec<Source>), String> {
    let mut command = cargo(root);
    command.args(["metadata", "--format-version", "1", "--manifest-path"]);
    command.arg(root.join(PINS).join("Cargo.toml"));
    let output = command.output().map_err(|error| format!("cannot run cargo: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("cargo metadata failed ({}):\n{said}", output.status));
    }
    let metadata: Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("the output of `cargo metadata` is not JSON: {error}"))?;
    let package = metadata["packages"]
        .as_array()
        .and_then(|packages| packages.iter().find(|package| package["name"] == PEER))
        .ok_or_else(|| format!("{PINS} does not depend on `{PEER}`"))?;
    let text = |key: &str| package[key].as_str().unwrap_or_default();
    let tests = Path::new(text("manifest_path")).with_file_name("tests");

    let mut sources = Vec::new();
    let entries = fs::read_dir(&tests).map_err(|error| describe("read", &tests, &error))?;
    for entry in entries {
        let path = entry.map_err(|error| describe("read", &tests, &error))?.path();
        if path.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        let text = fs::read_to_string(&path).map_err(|error| describe("read", &path, &error))?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        sources.push(source(name, &text));
    }
    sources.sort_by(|a, b| a.name.cmp(&b.name));
    Ok((text("version").to_owned(), sources))
}

fn source(name: String, text: &str) -> Source {
    let restricts = |line: &str| {
        line.starts_with("#![cfg(") && (line.contains("\"apple\"") || line.contains("\"macos\""))
    };
    let kept: Vec<&str> = text.lines().filter(|line| !restricts(line)).collect();
    let kept = kept.join("\n") + "\n";
    let needs_core_ml = kept.contains("rlx_runtime") || kept.contains("CoremlExecutable");
    Source { name, text: kept, needs_core_ml }
}

fn print(sources: &[Source], ours: &Outcomes, peers: &Outcomes) {
    println!("| test file | tests | compile | pass with ours | listed | pass with the peer |");
    println!("|---|---:|---:|---:|---:|---:|");
    let mut totals = [0; 4];
    for source in sources {
        let count = |outcomes: &Outcomes| {
            let tests = outcomes.get(&source.name)?;
            Some((tests.len(), tests.values().filter(|&&passed| passed).count()))
        };
        let (compile, pass) = count(ours).unwrap_or_default();
        let listed = NOT_PASSED.iter().filter(|(file, ..)| *file == source.name).count();
        let row = [source.tests(), compile, pass, listed];
        totals.iter_mut().zip(row).for_each(|(total, count)| *total += count);
        let peer = count(peers).map_or_else(
            || "needs Core ML".to_owned(),
            |(tests, pass)| {
                if pass == tests { pass.to_string() } else { format!("{pass} of {tests}") }
            },
        );
        let [tests, ..] = row;
        println!("| {} | {tests} | {compile} | {pass} | {listed} | {peer} |", source.name);
    }
    let [tests, compile, pass, listed] = totals;
    println!("| all | {tests} | {compile} | {pass} | {listed} | |");
    println!("\nfiles that do not compile with our names:");
    for (name, reason) in NOT_COMPILED {
        println!("- {name}: {reason}");
    }
    println!("\ntests that do not pass:");
    let mut reasons: Vec<(&str, Vec<String>)> = Vec::new();
    for (file, test, reason) in NOT_PASSED {
        let name = format!("{file}::{test}");
        match reasons.iter_mut().find(|(known, _)| known == reason) {
            Some((_, names)) => names.push(name),
            None => reasons.push((reason, vec![name])),
        }
    }
    for (reason, names) in reasons {
        println!("- {}: {reason}", names.join(", "));
    }
}

/// The errors in the lists.
fn faults(sources: &[Source], ours: &Outcomes) -> Vec<String> {
    let mut faults = Vec::new();
    for (name, _) in NOT_COMPILED {
        if !sources.iter().any(|source| source.name == *name) {
            faults.push(format!("{name} is listed, but the peer has no such file"));
        }
    }
    for source in sources.iter().filter(|source| source.excluded().is_none()) {
        if !ours.contains_key(&source.name) {
            faults.push(format!("{} does not compile with our names", source.name));
        }
    }
    let listed: BTreeMap<(&str, &str), &str> =
        NOT_PASSED.iter().map(|(file, test, reason)| ((*file, *test), *reason)).collect();
    for (file, tests) in ours {
        for (test, passed) in tests {
            match (passed, listed.contains_key(&(file.as_str(), test.as_str()))) {
                (false, false) => faults.push(format!("{file}::{test} fails")),
                (true, true) => {
                    faults.push(format!("{file}::{test} passes; remove it from the list"))
                }
                _ => {}
            }
        }
    }
    for (file, test) in listed.keys() {
        let runs = ours.get(*file).is_some_and(|tests| tests.contains_key(*test));
        if !runs {
            faults.push(format!("{file}::{test} is listed, but there is no such test"));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::source;

    #[test]
    fn strips_only_platform_restrictions() {
        let text = "#![cfg(all(target_vendor = \"apple\", not(target_os = \"watchos\")))]\n\
                    #![allow(clippy::all)]\nuse rlx_runtime::Session;\n#[test]\nfn a() {}\n";
        let found = source("a".to_owned(), text);
        assert!(found.text.starts_with("#![allow(clippy::all)]\nuse"), "{}", found.text);
        assert!(found.needs_core_ml);
        assert_eq!(found.tests(), 1);
    }
}
