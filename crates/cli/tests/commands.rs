//! Runs the commands of each file in `tests/cmd` and compares their output.
//!
//! A file contains commands after `$ `, each followed by its output: standard output, standard
//! error, and `[exit CODE]` unless the code is 0. The commands run in a scratch directory per file,
//! with `examples` of the repository, `files` of these tests, and `packages` of `coremill-mil`.
//! Lines before the first command and lines that start with `#` are comments. `BLESS=1` rewrites
//! the files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.ancestors().nth(2).expect("the crate lies in crates/cli").to_owned()
}

/// Copies a directory, so that commands cannot change the original.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("create a directory");
    for entry in fs::read_dir(from).expect("list a directory") {
        let entry = entry.expect("read an entry");
        let target = to.join(entry.file_name());
        if entry.file_type().expect("a file type").is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("copy a file");
        }
    }
}

fn run(line: &str, directory: &Path) -> String {
    let mut words = line.split_whitespace();
    assert_eq!(words.next(), Some("coremill"), "every command must start with `coremill`: {line}");
    let output = Command::new(env!("CARGO_BIN_EXE_coremill"))
        .args(words)
        .current_dir(directory)
        .env_remove("NO_COLOR")
        .output()
        .expect("the command starts");
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text += &String::from_utf8_lossy(&output.stderr);
    text = text.split_inclusive('\n').map(without_time).collect();
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    match output.status.code() {
        Some(0) => {}
        Some(code) => text += &format!("[exit {code}]\n"),
        None => text += "[killed]\n",
    }
    text
}

/// Replaces the duration in a line by `…`.
fn without_time(line: &str) -> String {
    for (start, end) in [("  time ", " s"), ("      \"seconds\":", "")] {
        if line.starts_with(start)
            && let Some(digit) = line.find(|c: char| c.is_ascii_digit())
        {
            return format!(
                "{}…{end}{}\n",
                &line[..digit],
                if line.ends_with(",\n") { "," } else { "" }
            );
        }
    }
    line.to_owned()
}

fn replay(script: &str, directory: &Path) -> String {
    let mut replayed = String::new();
    let mut before_first = true;
    for line in script.lines() {
        if let Some(command) = line.strip_prefix("$ ") {
            before_first = false;
            replayed += &format!("{line}\n{}", run(command, directory));
        } else if before_first || line.starts_with("# ") {
            replayed += &format!("{line}\n");
        }
    }
    replayed
}

#[test]
fn command_output_matches_recorded_transcripts() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cmd");
    let mut paths: Vec<_> = fs::read_dir(&folder)
        .expect("list the files")
        .map(|entry| entry.expect("read an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        .collect();
    paths.sort();
    assert!(!paths.is_empty(), "{} contains no `.txt` files", folder.display());
    let mut differing = Vec::new();
    for path in &paths {
        let directory = tempfile::tempdir().expect("a scratch directory");
        for (from, to) in [
            ("examples", "examples"),
            ("crates/cli/tests/files", "files"),
            ("crates/mlpackage/tests/packages", "packages"),
        ] {
            copy(&root().join(from), &directory.path().join(to));
        }
        let script = fs::read_to_string(path).expect("read the file");
        let replayed = replay(&script, directory.path());
        if replayed == script {
            continue;
        }
        if std::env::var_os("BLESS").is_some() {
            fs::write(path, replayed).expect("write the file");
        } else {
            differing.push(format!("{}\nprints now:\n{replayed}", path.display()));
        }
    }
    assert!(
        differing.is_empty(),
        "{}\n(run with BLESS=1 to update the files)",
        differing.join("\n\n")
    );
}
