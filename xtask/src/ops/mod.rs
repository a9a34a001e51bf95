//! `cargo xtask ops`: generates the op table from coremltools' registry, and its documentation.
//!
//! `oracle/dumps/registry.py` dumps the registry, and `render` writes it as Rust code, which is committed. The
//! documentation of the table and its dump for tests are generated from the compiled table.

mod docs;
mod dump;
mod methods;
mod registry;
mod render;

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::workspace::{describe, root};

const TABLE: &str = "crates/mil/src/ops";
const DOCS: &str = "docs/ops.md";

/// Which files to generate from the table of operations.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  cargo xtask ops && cargo xtask ops --docs\n  cargo xtask ops --check\n  cargo xtask ops \
                  --json | less"
)]
pub(crate) struct Arguments {
    /// Write nothing; fail if a generated file, including the documentation, differs from the generated
    /// contents
    #[arg(long)]
    check: bool,
    /// Write docs/ops.md from the compiled table, instead of the table itself
    #[arg(long, conflicts_with = "check")]
    docs: bool,
    /// Write the methods of crates/graph from the compiled table, instead of the table itself
    #[arg(long, conflicts_with_all = ["check", "docs"])]
    methods: bool,
    /// Print the compiled table to standard output, instead of writing the table
    #[arg(long, conflicts_with_all = ["check", "docs", "methods"])]
    json: bool,
}

/// Runs the requested actions.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let root = root();
    if arguments.json {
        return serde_json::to_writer_pretty(io::stdout().lock(), &dump::table())
            .map_err(|error| format!("cannot print the table: {error}"));
    }
    if arguments.docs {
        return write(&root.join(DOCS), &docs::table());
    }
    if arguments.methods {
        let code = format(&root, &methods::code())
            .map_err(|error| format!("formatting {}: {error}", methods::FILE))?;
        return write(&root.join(methods::FILE), &code);
    }
    let registry = registry::read(&root)?;
    println!("coremltools {} has {} operations", registry.coremltools, registry.operations.len());
    let mut operations = registry.operations;
    operations.extend(registry::beyond());
    let mut wanted = BTreeMap::new();
    for (path, code) in render::files(&operations)? {
        let code = format(&root, &code).map_err(|error| format!("formatting {path}: {error}"))?;
        wanted.insert(root.join(TABLE).join(path), code);
    }
    let mut stale = Vec::new();
    for (path, code) in &wanted {
        if !is(path, code) {
            stale.push(path.clone());
        }
    }
    let mut left_over = Vec::new();
    for path in rust_files(&root.join(TABLE).join("table"))? {
        if !wanted.contains_key(&path) {
            left_over.push(path);
        }
    }
    if arguments.check {
        stale.append(&mut left_over);
        if !is(&root.join(DOCS), &docs::table()) {
            stale.push(root.join(DOCS));
        }
        return if stale.is_empty() {
            Ok(())
        } else {
            Err(format!(
                "out of date: {}; run `cargo xtask ops && cargo xtask ops --docs`",
                names(&root, &stale)
            ))
        };
    }
    for path in &stale {
        write(path, &wanted[path])?;
    }
    for path in &left_over {
        fs::remove_file(path).map_err(|error| describe("remove", path, &error))?;
    }
    if stale.is_empty() && left_over.is_empty() {
        println!("the table is up to date");
    } else {
        stale.append(&mut left_over);
        println!(
            "changed: {}; now run `cargo xtask ops --docs && cargo xtask ops --methods`",
            names(&root, &stale)
        );
    }
    Ok(())
}

fn names(root: &Path, paths: &[PathBuf]) -> String {
    let name = |path: &PathBuf| path.strip_prefix(root).unwrap_or(path).display().to_string();
    paths.iter().map(name).collect::<Vec<_>>().join(", ")
}

fn is(path: &Path, wanted: &str) -> bool {
    fs::read(path).is_ok_and(|found| found == wanted.as_bytes())
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| describe("write", path, &error))
}

fn rust_files(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let listing = |error| describe("list", folder, &error);
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(listing)? {
        let path = entry.map_err(listing)?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Formats code like `cargo fmt`.
fn format(root: &Path, code: &str) -> Result<String, String> {
    let running = |error: io::Error| format!("cannot run `rustfmt`: {error}");
    let mut rustfmt = Command::new("rustfmt")
        .args(["--edition", "2024", "--emit", "stdout"])
        .current_dir(root)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(running)?;
    // rustfmt reads all of its input before it writes; dropping the pipe ends the input.
    if let Some(mut input) = rustfmt.stdin.take() {
        input.write_all(code.as_bytes()).map_err(running)?;
    }
    let output = rustfmt.wait_with_output().map_err(running)?;
    if !output.status.success() {
        return Err(format!("`rustfmt` failed ({})", output.status));
    }
    String::from_utf8(output.stdout)
        .map_err(|error| format!("the output of `rustfmt` is not text: {error}"))
}
