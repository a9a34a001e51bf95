//! The example in C is compiled against the header and the shared library, and run.
#![cfg(unix)]

mod common;

use std::path::Path;
use std::process::Command;

use common::*;

fn compiled(folder: &Path) -> std::path::PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    // The library is in the same directory as this test.
    let test = std::env::current_exe().expect("a test has a path");
    let libraries = test.parent().expect("it lies in a folder");
    let library =
        if cfg!(target_os = "macos") { "libcoremill_capi.dylib" } else { "libcoremill_capi.so" };
    let program = folder.join("run");
    let made = Command::new("cc")
        .args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-I"])
        .arg(root.join("include"))
        .arg(root.join("examples/run.c"))
        .arg(libraries.join(library))
        .arg(format!("-Wl,-rpath,{}", libraries.display()))
        .arg("-o")
        .arg(&program)
        .output()
        .expect("a C compiler is installed");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    program
}

#[test]
fn c_example_compiles_and_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = compiled(folder.path());
    for (model, arguments, expected) in [
        (TWO, &["other"][..], "input x: type 6, [2]\n"),
        (ROWS, &[], "output y: type 6, [1, 4]\n  first element 1\n1 operations\n"),
    ] {
        let package = package(folder.path(), model);
        let ran = Command::new(&program).arg(&package).args(arguments).output().expect("it starts");
        let said = String::from_utf8_lossy(&ran.stdout);
        assert!(ran.status.success(), "{said}{}", String::from_utf8_lossy(&ran.stderr));
        assert!(said.contains(expected), "{said}");
    }
    let wrong = Command::new(&program).arg(folder.path()).output().expect("it starts");
    let said = String::from_utf8_lossy(&wrong.stderr);
    assert_eq!(wrong.status.code(), Some(1));
    assert!(said.starts_with("error: load: ") && said.contains("neither"), "{said}");
}
