//! Checks of the repository as a whole.
//!
//! Each check is a function of a text; `planted.rs` tests that each check detects violations.

mod examples;
mod modules;
mod names;
mod planted;
mod rust;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the root").to_owned()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// All files with this extension that git tracks or would add.
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

/// The names in backquotes in a table cell.
fn names(cell: &str) -> BTreeSet<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn crate_dependencies_follow_architecture() {
    let architecture = read(&root().join("ARCHITECTURE.md"));
    assert!(architecture.len() <= 10 << 10, "ARCHITECTURE.md has more than 10 KB");
    let rows = architecture.lines().skip_while(|line| !line.starts_with("| crate | holds"));
    let rows = rows.skip(2).take_while(|line| line.starts_with('|'));
    let layers: Vec<String> =
        rows.flat_map(|row| names(row.split('|').nth(1).unwrap_or_default())).collect();

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
        layers.iter().map(String::as_str).collect(),
        "the table of crates in ARCHITECTURE.md must list exactly the crates of the workspace"
    );
    let layer = |name: &str| layers.iter().position(|other| other == name);
    for package in packages {
        let name = package["name"].as_str().expect("a name");
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            let other = dependency["name"].as_str().expect("a name");
            let shipped = dependency["kind"].is_null();
            assert!(
                !shipped || !ours.contains(other) || layer(other) < layer(name),
                "`{name}` depends on `{other}`, which is not above it in ARCHITECTURE.md"
            );
        }
    }
}

#[test]
fn every_dependency_is_documented() {
    let reasons = read(&root().join("docs/dependencies.md"));
    let manifest = read(&root().join("Cargo.toml"));
    for line in
        section(&manifest, "[workspace.dependencies]").filter(|line| !line.contains("path = "))
    {
        let name = line.split('=').next().expect("a name").trim();
        assert!(
            reasons.contains(&format!("`{name}`")),
            "docs/dependencies.md does not explain why `{name}` is needed"
        );
    }
}

#[test]
fn tests_are_not_ignored_and_files_are_short() {
    for path in sources("rs") {
        let text = read(&path);
        let ignored = concat!("#[", "ignore");
        assert!(!text.contains(ignored), "{}: tests must not be ignored", path.display());
        let generated = text.starts_with("//! Generated");
        let lines = text.lines().count();
        assert!(
            generated || lines <= 900,
            "{} has {lines} lines, more than 900; split it",
            path.display()
        );
    }
}

#[test]
fn doc_links_resolve() {
    // `cargo xtask docs` generates some of the pages in the summary; a test next to it follows those links.
    for path in sources("md").into_iter().filter(|path| !path.ends_with("docs/SUMMARY.md")) {
        let text = read(&path);
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = link.split('#').next().unwrap_or_default();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            let folder = path.parent().expect("a file lies in a folder");
            assert!(folder.join(target).exists(), "{}: broken link `{link}`", path.display());
        }
    }
}

#[test]
fn architecture_paths_exist() {
    let text = read(&root().join("ARCHITECTURE.md"));
    let is_path = |text: &&str| {
        text.contains('/') && text.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c))
    };
    let paths: Vec<_> = text.split('`').filter(is_path).collect();
    assert!(paths.len() > 20, "{paths:?}");
    for path in paths {
        let bases = ["", "crates", "integrations"];
        assert!(bases.iter().any(|base| root().join(base).join(path).exists()), "`{path}`");
    }
}

/// Phrases that sound like a literal translation, each with an idiomatic replacement.
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

/// Banned phrases in a text, with their lines.
fn odd_phrases(text: &str) -> Vec<String> {
    let lines = text.lines().enumerate();
    let found = lines.flat_map(|(at, line)| {
        let odd = PHRASES.iter().filter(|(phrase, _)| line.contains(phrase));
        odd.map(move |(phrase, better)| format!("{}: `{phrase}`; write `{better}`", at + 1))
    });
    found.collect()
}

/// Command-line flags in the strings of a library's source, with their lines.
fn flags(text: &str) -> Vec<String> {
    strings_with(text, |string| {
        let mut ends = string.match_indices("--").map(|(at, _)| string.split_at(at));
        ends.any(|(before, after)| {
            !before.ends_with(|c: char| c == '-' || c.is_alphanumeric())
                && after[2..].starts_with(|c: char| c.is_ascii_lowercase())
        })
    })
}

/// Commands in the strings of a library's source, with their lines: `coremill` followed by a word of `names`.
fn commands(text: &str, names: &[String]) -> Vec<String> {
    strings_with(text, |string| {
        let mut after = string.split("coremill ").skip(1);
        after.any(|rest| {
            let word = rest.split(|c: char| !c.is_ascii_lowercase()).next().unwrap_or_default();
            names.iter().any(|name| name == word)
        })
    })
}

/// Phrases that messages must not use, because they are hard to understand. Use "`x` must be at least 1, got 0" and
/// "unknown input `z`; the inputs are `x` and `y`" instead.
const ODD_MESSAGES: [&str; 6] = [
    "accepted is ",
    "accepted are ",
    " is accepted",
    " are accepted",
    "there is no ",
    "there are no ",
];

/// Strings of a library's source that contain one of [`ODD_MESSAGES`], each with its line.
fn odd_messages(text: &str) -> Vec<String> {
    strings_with(text, |string| ODD_MESSAGES.iter().any(|phrase| string.contains(phrase)))
}

/// Strings of a source outside its tests that meet a condition, with their lines.
fn strings_with(text: &str, meets: impl Fn(&str) -> bool) -> Vec<String> {
    let tokens = rust::tokens(text);
    let end = rust::tests_start(&tokens);
    let strings = tokens[..end].iter().filter(|token| token.is_string() && meets(&token.text));
    strings.map(|string| format!("{}: {}", string.line, string.text)).collect()
}

/// Folders of the published crates.
const CRATE_FOLDERS: [&str; 2] = ["crates", "integrations"];

fn is_crate(path: &str) -> bool {
    CRATE_FOLDERS.iter().any(|folder| path.starts_with(&format!("{folder}/")))
}

/// Names of the commands, which are the modules of `crates/cli/src/commands`.
fn command_names() -> Vec<String> {
    let entries = std::fs::read_dir(root().join("crates/cli/src/commands")).expect("a directory");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let names = paths.filter_map(|path| Some(path.file_stem()?.to_string_lossy().into_owned()));
    names.filter(|name| name != "mod").collect()
}

/// Folders in which `unsafe` is allowed.
const UNSAFE: &[&str] = &[
    "crates/io/",
    "crates/simd/",
    "crates/tensor/",
    "crates/kernels/",
    "crates/coreml/",
    "crates/capi/",
    "crates/python/",
    "standin/",
    "fuzz/",
];

/// `unsafe` in the source at `path` that is not allowed there or has no `SAFETY:` comment.
fn unsafe_violations(path: &str, text: &str) -> Vec<String> {
    let (block, implementation) = (concat!("unsafe", " {"), concat!("unsafe", " impl"));
    let lines: Vec<_> = text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        if !code.contains(block) && !code.trim_start().starts_with(implementation) {
            continue;
        }
        let around = &lines[at.saturating_sub(12)..lines.len().min(at + 3)];
        if !UNSAFE.iter().any(|allowed| path.starts_with(allowed)) {
            found.push(format!("{}: `unsafe` is not allowed in this folder", at + 1));
        } else if !around.iter().any(|line| line.contains("SAFETY:")) {
            found.push(format!("{}: `unsafe` without a `SAFETY:` comment", at + 1));
        }
    }
    found
}

/// Fails with all violations that `check` finds in the sources with these extensions.
fn assert_clean(extensions: &[&str], check: impl Fn(&str, &str) -> Vec<String>) {
    let mut found = Vec::new();
    for path in extensions.iter().flat_map(|extension| sources(extension)) {
        let relative = path.strip_prefix(root()).unwrap_or(&path).to_string_lossy().into_owned();
        let faults = check(&relative, &read(&path));
        found.extend(faults.iter().map(|fault| format!("{relative}:{fault}")));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn prose_has_no_banned_phrases() {
    assert_clean(&["rs", "md", "py", "pyi", "h", "cpp"], |_, text| odd_phrases(text));
}

#[test]
fn unsafe_code_is_confined_and_documented() {
    assert_clean(&["rs"], unsafe_violations);
}

/// Libraries refer to options (the option `target=ios18`) and steps; the command refers to its flags and
/// subcommands.
#[test]
fn libraries_mention_no_cli_flags_or_commands() {
    let names = command_names();
    assert!(names.iter().any(|name| name == "convert"), "{names:?}");
    assert_clean(&["rs"], |path, text| {
        let library = is_crate(path) && path.contains("/src/");
        match library && !path.starts_with("crates/cli/") {
            true => [flags(text), commands(text, &names)].concat(),
            false => Vec::new(),
        }
    });
}

/// The workspace `standin` has its own manifests for the crates that call Core ML. Without this test, only the tests for
/// Apple's systems would find a missing dependency.
#[test]
fn stand_ins_declare_dependencies_of_their_crates() {
    let mut missing = Vec::new();
    for name in ["capi", "coreml", "graph", "runtime", "session"] {
        let manifest = |folder: &str| read(&root().join(folder).join(name).join("Cargo.toml"));
        let (of_crate, of_standin) = (manifest("crates"), manifest("standin"));
        let declared = dependencies(&of_standin);
        let needed = dependencies(&of_crate);
        let absent = needed.into_iter().filter(|(dependency, is_optional)| {
            !is_optional && !declared.iter().any(|(other, _)| other == dependency)
        });
        missing.extend(absent.map(|(dependency, _)| format!("standin/{name}: {dependency}")));
    }
    assert!(missing.is_empty(), "{missing:?}");
    assert!(!dependencies(&read(&root().join("crates/graph/Cargo.toml"))).is_empty());
}

/// Workspaces outside the root have lock files, which builds from the root do not update.
#[test]
fn secondary_lock_files_list_current_dependencies() {
    let mut missing = Vec::new();
    let mut count = 0;
    for workspace in ["fuzz", "standin"] {
        let lock = read(&root().join(workspace).join("Cargo.lock"));
        for package in lock.split("[[package]]").skip(1) {
            let name = package.split('"').nth(1).unwrap_or_default();
            let Some(short) =
                name.strip_prefix("coremill").map(|rest| rest.trim_start_matches('-'))
            else {
                continue;
            };
            let folder = if short.is_empty() { "coremill" } else { short };
            // The stand-ins have crates of their own with these names.
            let bases = [root().join(workspace), root().join("crates")];
            let Some(base) = bases.iter().find(|base| base.join(folder).is_dir()) else { continue };
            let manifest = read(&base.join(folder).join("Cargo.toml"));
            for (dependency, is_optional) in dependencies(&manifest) {
                count += 1;
                // A dependency with several versions is listed with its version.
                let is_listed =
                    ['"', ' '].iter().any(|end| package.contains(&format!("\"{dependency}{end}")));
                if !is_optional && !is_listed {
                    missing.push(format!("{workspace}/Cargo.lock: {name}: {dependency}"));
                }
            }
        }
    }
    assert!(missing.is_empty(), "run `cargo check` in these workspaces:\n{}", missing.join("\n"));
    assert!(count > 100, "only {count} dependencies were found");
}

/// The dependencies that a manifest declares, and whether they are optional.
fn dependencies(manifest: &str) -> Vec<(&str, bool)> {
    let lines = section(manifest, "[dependencies]");
    let lines = lines.filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()));
    let named = lines.filter_map(|line| Some((line.split(['.', ' ', '=']).next()?, line)));
    named.map(|(name, line)| (name, line.contains("optional = true"))).collect()
}

/// The lines of a manifest's section.
fn section<'m>(manifest: &'m str, title: &str) -> impl Iterator<Item = &'m str> {
    let lines = manifest.lines().skip_while(move |line| *line != title).skip(1);
    lines.take_while(|line| !line.starts_with('[')).filter(|line| !line.is_empty())
}

#[test]
fn error_types_have_kind_hint_and_source() {
    let defines = |text: &str| {
        text.lines().any(|line| {
            ["pub struct Error ", "pub enum Error ", "pub struct Error(", "opaque_error! {"]
                .iter()
                .any(|start| line.starts_with(start))
        })
    };
    let by_macro = read(&root().join("crates/io/src/error/opaque.rs"));
    let mut count = 0;
    for path in sources("rs").into_iter().filter(|path| defines(&read(path))) {
        count += 1;
        let text = read(&path);
        let text = if text.contains("opaque_error! {") { &by_macro } else { &text };
        for accessor in ["pub fn kind(&self)", "pub fn hint(&self)", "fn source(&self)"] {
            assert!(text.contains(accessor), "{}: no `{accessor}`", path.display());
        }
    }
    assert!(count > 15, "{count} error types");
}

#[test]
fn error_messages_have_no_banned_phrases() {
    assert_clean(&["rs"], |path, text| {
        let shipped = is_crate(path) && path.contains("/src/");
        let is_test = path.ends_with("tests.rs") || path.contains("/tests/");
        if shipped && !is_test { odd_messages(text) } else { Vec::new() }
    });
}

#[test]
fn item_names_avoid_banned_words() {
    let planted = |path: &str| path.ends_with("tidy/planted.rs");
    assert_clean(&["rs"], |path, text| match planted(path) {
        true => vec![],
        false => names::odd_names(text),
    });
}

#[test]
fn test_names_state_tested_behavior() {
    assert_clean(&["rs", "py"], |_, text| names::odd_tests(text));
}

#[test]
fn modules_have_no_dependency_cycles() {
    let read = |path: &Path| std::fs::read_to_string(path).ok();
    let folders = CRATE_FOLDERS.map(|folder| root().join(folder));
    let crates = folders.iter().flat_map(|folder| std::fs::read_dir(folder).expect("a folder"));
    let crates = crates.map(|entry| entry.expect("a crate").path()).chain([root().join("xtask")]);
    let mut found = Vec::new();
    for folder in crates {
        let name = folder.strip_prefix(root()).unwrap_or(&folder).display().to_string();
        let roots = ["src/lib.rs", "src/main.rs"].map(|file| folder.join(file));
        let cycles = roots.iter().flat_map(|root| modules::cycles(root, &read));
        found.extend(cycles.map(|cycle| format!("{name}: {cycle}")));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// The fuzz targets in `fuzz/Cargo.toml`.
fn fuzz_targets(manifest: &str) -> BTreeSet<String> {
    let bins = manifest.split("[[bin]]").skip(1);
    let names = bins.filter_map(|bin| bin.split('"').nth(1));
    names.map(str::to_owned).collect()
}

/// The targets in the matrix of a workflow.
fn scheduled(workflow: &str) -> BTreeSet<String> {
    let list = workflow.split_once("target: [").and_then(|(_, rest)| rest.split_once(']'));
    let (list, _) = list.unwrap_or_default();
    list.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect()
}

#[test]
fn every_fuzz_target_is_scheduled_and_has_seeds() {
    let declared = fuzz_targets(&read(&root().join("fuzz/Cargo.toml")));
    assert!(declared.len() > 10);
    assert_eq!(scheduled(&read(&root().join(".github/workflows/fuzz.yml"))), declared);
    for target in declared {
        assert!(root().join("fuzz/seeds").join(&target).is_dir(), "`{target}` has no seeds");
    }
}

/// Crates whose documentation must have an example: the façade, and the crates that it re-exports as modules.
const WITH_EXAMPLE: [&str; 4] = ["coremill", "engine", "graph", "mil"];

/// Crates in which every public module must have an example.
const WITH_MODULE_EXAMPLES: [&str; 2] = ["coremill", "graph"];

#[test]
fn public_rust_api_has_examples() {
    let has_example = |path: &Path| {
        let file = path.display();
        assert!(
            examples::head_has_example(&read(path)),
            "{file}: the documentation at the start has no example"
        );
    };
    for name in WITH_EXAMPLE {
        let sources = root().join("crates").join(name).join("src");
        let library = sources.join("lib.rs");
        has_example(&library);
        if !WITH_MODULE_EXAMPLES.contains(&name) {
            continue;
        }
        for module in examples::public_modules(&read(&library)) {
            let file = sources.join(format!("{module}.rs"));
            has_example(&if file.exists() { file } else { sources.join(module).join("mod.rs") });
        }
    }
    // The façade's own items outside its modules.
    for file in ["error", "files", "programs"] {
        let path = root().join(format!("crates/coremill/src/{file}.rs"));
        let without = examples::items_without_example(&read(&path));
        assert!(without.is_empty(), "{}: no example of {}", path.display(), without.join(", "));
    }
}

#[test]
fn list_indexing_is_bounds_checked() {
    let folder = root().join("crates/compiler/src");
    let mut unchecked = Vec::new();
    for path in sources("rs") {
        let Ok(module) = path.strip_prefix(&folder) else { continue };
        if module.starts_with("decompose") || module.starts_with("lower/ops") {
            let lines = rust::unchecked_places(&read(&path)).into_iter();
            unchecked.extend(lines.map(|line| format!("{}:{line}", module.display())));
        }
    }
    assert!(
        unchecked.is_empty(),
        "unchecked indexing; use `bounds::At` instead:\n{}",
        unchecked.join("\n")
    );
}

/// Products in a text that are computed without `bounds::checked`, by line. Products of floats and of list
/// indices are exempt, and formulas of tensors are strings.
fn unchecked_products(text: &str) -> Vec<(usize, String)> {
    const OTHERS: [&str; 9] = [
        "checked(",
        ".get()",
        "f32",
        "f64",
        "2.0 * ",
        "2 * axis",
        "2 * spatial",
        "vec![0; 2 * ",
        "saturating_",
    ];
    let text = rust::without_strings(text);
    let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line));
    let code = lines.map(|(at, line)| (at, line.split("//").next().unwrap_or_default().trim()));
    let code = code.map(|(at, code)| (at, code.to_owned()));
    code.filter(|(_, code)| {
        let is_product = code.contains(" * ") || code.contains(".product()");
        is_product && !OTHERS.iter().any(|other| code.contains(other))
    })
    .collect()
}

/// Sizes come from untrusted archives, so unchecked products could wrap around or panic.
#[test]
fn size_products_are_overflow_checked() {
    const MODULES: [&str; 8] = [
        "decompose/ops/convolution.rs",
        "decompose/ops/pooling.rs",
        "decompose/ops/recurrent.rs",
        "decompose/ops/resize.rs",
        "decompose/ops/vision.rs",
        "lower/ops/convolution.rs",
        "lower/ops/pooling.rs",
        "lower/ops/shape/window.rs",
    ];
    let mut unchecked = Vec::new();
    for module in MODULES {
        let text = read(&root().join("crates/compiler/src").join(module));
        let found = unchecked_products(&text).into_iter();
        unchecked.extend(found.map(|(line, code)| format!("{module}:{line}: {code}")));
    }
    assert!(
        unchecked.is_empty(),
        "compute these with `bounds::checked`:\n{}",
        unchecked.join("\n")
    );
}
