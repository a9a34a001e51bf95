//! What must hold for the repository as a whole.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the root").to_owned()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every file that git knows, but for those in folders of data.
fn sources(extension: &str) -> Vec<PathBuf> {
    let listed = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output()
        .expect("git runs");
    let listed = String::from_utf8(listed.stdout).expect("paths are UTF-8");
    let paths = listed.lines().map(|line| root().join(line));
    paths.filter(|path| path.extension().is_some_and(|found| found == extension)).collect()
}

/// The names in backquotes in a cell.
fn names(cell: &str) -> BTreeSet<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn crates_depend_on_what_the_architecture_says() {
    let architecture = read(&root().join("ARCHITECTURE.md"));
    let rows =
        architecture.lines().skip_while(|line| !line.starts_with("| crate | holds | may use"));
    let rows = rows.skip(2).take_while(|line| line.starts_with('|'));
    let mut allowed = BTreeMap::new();
    for row in rows {
        let cells: Vec<_> = row.split('|').collect();
        let name = names(cells[1]).into_iter().next().expect("a row names its crate");
        allowed.insert(name, (cells[3].trim() != "anything").then(|| names(cells[3])));
    }

    let metadata = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    let metadata: serde_json::Value =
        serde_json::from_slice(&metadata.stdout).expect("cargo prints JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    let ours: BTreeSet<_> =
        packages.iter().filter_map(|package| package["name"].as_str()).collect();
    assert_eq!(
        ours,
        allowed.keys().map(String::as_str).collect(),
        "the table of crates in ARCHITECTURE.md lists just the crates of the workspace"
    );
    for package in packages {
        let name = package["name"].as_str().expect("a name");
        let Some(allowed) = &allowed[name] else { continue };
        let dependencies = package["dependencies"].as_array().expect("dependencies");
        for dependency in dependencies {
            let other = dependency["name"].as_str().expect("a name");
            let shipped = dependency["kind"].is_null();
            assert!(
                !shipped || !ours.contains(other) || allowed.contains(other),
                "`{name}` depends on `{other}`, which ARCHITECTURE.md does not allow"
            );
        }
    }
}

#[test]
fn every_dependency_has_its_reason() {
    let architecture = read(&root().join("ARCHITECTURE.md"));
    let manifest = read(&root().join("Cargo.toml"));
    let dependencies =
        manifest.lines().skip_while(|line| *line != "[workspace.dependencies]").skip(1);
    let dependencies = dependencies.take_while(|line| !line.starts_with('['));
    for line in dependencies.filter(|line| !line.is_empty() && !line.contains("path = ")) {
        let name = line.split('=').next().expect("a name").trim();
        assert!(
            architecture.contains(&format!("`{name}`")),
            "ARCHITECTURE.md does not say why `{name}` is there"
        );
    }
}

#[test]
fn tests_are_not_ignored_and_files_have_a_seam() {
    for path in sources("rs") {
        let text = read(&path);
        let ignored = concat!("#[", "ignore");
        assert!(!text.contains(ignored), "{}: no test is ignored", path.display());
        let generated = text.starts_with("//! Generated");
        let lines = text.lines().count();
        assert!(
            generated || lines <= 900,
            "{} has {lines} lines; look for the seam",
            path.display()
        );
    }
}

#[test]
fn links_in_the_docs_lead_somewhere() {
    // `cargo xtask docs` makes some of the pages that the summary lists; a test beside it follows those links.
    for path in sources("md").into_iter().filter(|path| !path.ends_with("docs/SUMMARY.md")) {
        let text = read(&path);
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = link.split('#').next().unwrap_or_default();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            let folder = path.parent().expect("a file lies in a folder");
            assert!(folder.join(target).exists(), "{}: `{link}` leads nowhere", path.display());
        }
    }
}

/// Phrases that read as translated, each with what a native engineer writes.
const PHRASES: &[(&str, &str)] = &[
    ("inside o\u{66} ", "inside"),
    ("outside o\u{66} ", "outside"),
    ("is none o\u{66} a", "is out of range for, is not a"),
    ("known when the program runs o\u{6e}ly", "unknown at compile time"),
    ("is n\u{6f} tensor", "is not a tensor"),
    ("is n\u{6f} number", "is not a number"),
    ("told all at o\u{6e}ce", "reported together"),
    ("which one it i\u{73}, ", "the format is detected from"),
    ("for wh\u{6f} comes", "migrating from"),
];

#[test]
fn prose_is_plain() {
    let mut found = Vec::new();
    for extension in ["rs", "md", "py", "pyi", "h", "cpp"] {
        for path in sources(extension) {
            let text = read(&path);
            for (line, content) in text.lines().enumerate() {
                let odd = PHRASES.iter().filter(|(phrase, _)| content.contains(phrase));
                found.extend(odd.map(|(phrase, better)| {
                    format!("{}:{}: `{phrase}`; write `{better}`", path.display(), line + 1)
                }));
            }
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// Where `unsafe` may stand.
const UNSAFE: &[&str] =
    &["crates/tensor/", "crates/coreml/", "crates/capi/", "crates/python/", "standin/", "fuzz/"];

#[test]
fn unsafe_code_is_where_it_may_be_and_says_why() {
    let (block, implementation) = (concat!("unsafe", " {"), concat!("unsafe", " impl"));
    for path in sources("rs") {
        let text = read(&path);
        let lines: Vec<_> = text.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            if !code.contains(block) && !code.trim_start().starts_with(implementation) {
                continue;
            }
            let place = path.strip_prefix(root()).unwrap_or(&path).to_string_lossy().into_owned();
            assert!(
                UNSAFE.iter().any(|allowed| place.starts_with(allowed)),
                "{place}:{}: `unsafe` does not belong here",
                at + 1
            );
            let around = &lines[at.saturating_sub(12)..lines.len().min(at + 3)];
            assert!(
                around.iter().any(|line| line.contains("SAFETY:")),
                "{place}:{}: `unsafe` without a `SAFETY:` comment",
                at + 1
            );
        }
    }
}
