//! Tests `coremill cache` on a cache created by another process.

use std::path::Path;
use std::process::Command;

use coremill_cache::{Key, Options, Store};

/// Runs a command. Returns standard output, standard error and the exit code.
fn cache(root: &Path, arguments: &[&str]) -> (String, String, Option<i32>) {
    let output = Command::new(env!("CARGO_BIN_EXE_coremill"))
        .arg("cache")
        .args(arguments)
        .env("COREMILL_CACHE", root)
        .output()
        .expect("the command starts");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (text(output.stdout), text(output.stderr), output.status.code())
}

#[test]
fn cache_command_lists_verifies_and_prunes() {
    let directory = tempfile::tempdir().expect("a scratch directory");
    let root = directory.path().join("store");
    assert_eq!(cache(&root, &["list"]), (String::new(), String::new(), Some(0)));
    assert!(!root.exists(), "`cache list` must not create the cache directory");

    let store = Store::open(&root, &Options::default()).expect("opens");
    for (name, bytes) in [("first", 1500), ("second", 2500), ("third", 3500)] {
        let key = Key::new([name]);
        drop(store.get_or_insert_bytes(&key, "model", name, &vec![1; bytes]).expect("stored"));
    }
    let held = store.get(&Key::new(["first"])).expect("looked up").expect("found");
    let (listed, _, code) = cache(&root, &["list"]);
    let lines: Vec<Vec<&str>> =
        listed.lines().map(|line| line.split_whitespace().skip(1).collect()).collect();
    assert_eq!(code, Some(0));
    assert_eq!(
        lines,
        [
            ["model", "1.50", "KB", "2×", "now", "first"],
            ["model", "3.50", "KB", "1×", "now", "third"],
            ["model", "2.50", "KB", "1×", "now", "second"],
        ]
    );
    let (size, _, _) = cache(&root, &["size", "--json"]);
    let size: serde_json::Value = serde_json::from_str(&size).expect("JSON");
    assert_eq!((&size["bytes"], &size["format_version"]), (&7500.into(), &1.into()));

    let third = store.get(&Key::new(["third"])).expect("looked up").expect("found");
    std::fs::write(third.path().join("data"), vec![2; 3500]).expect("written");
    drop(third);
    let (verified, _, code) = cache(&root, &["verify"]);
    assert_eq!(code, Some(0));
    let mut lines = verified.lines();
    assert_eq!(lines.next(), Some("2 sound, 1 damaged"));
    let damaged = lines.next().expect("a line");
    assert!(damaged.ends_with("`data` differs from the written bytes; removed"), "{damaged}");

    let bytes_left = |line: &str| line.split(" left in ").next().map(str::to_owned);
    assert_eq!(bytes_left(&cache(&root, &["prune", "--to", "3KB"]).0).as_deref(), Some("1.50 KB"));
    assert_eq!(
        bytes_left(&cache(&root, &["purge"]).0).as_deref(),
        Some("1.50 KB"),
        "`purge` must keep an entry that is in use"
    );
    drop(held);
    assert_eq!(bytes_left(&cache(&root, &["purge"]).0).as_deref(), Some("0 B"));
}

#[test]
fn cache_command_rejects_non_cache_directories() {
    let directory = tempfile::tempdir().expect("a scratch directory");
    std::fs::write(directory.path().join("precious"), "precious").expect("written");
    let path = directory.path().to_str().expect("UTF-8");
    let (_, error, code) = cache(Path::new("unused"), &["purge", "--dir", path]);
    assert_eq!(code, Some(1));
    assert!(error.contains("is not a cache of coremill") && error.contains("hint: "), "{error}");
    assert!(directory.path().join("precious").exists());
    let (_, error, code) = cache(Path::new("unused"), &["list", "--dir", "/nowhere/at/all"]);
    assert_eq!((&*error, code), ("error: /nowhere/at/all: no such directory\n", Some(1)));
    let (_, error, code) = cache(Path::new("unused"), &["prune", "--to", "many"]);
    assert_eq!(code, Some(1));
    assert!(error.contains("`500MB`, `1.5GiB` or `800M`"), "{error}");
}
