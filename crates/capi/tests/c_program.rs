//! The example in C is compiled against the header and the shared library, and run.
#![cfg(unix)]

mod common;

use std::path::Path;
use std::process::Command;

use common::*;

/// Compiles the example and returns the path of the program.
fn compile_example(folder: &Path) -> std::path::PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    // The library is in the same directory as this test.
    let test = std::env::current_exe().expect("the path of this test");
    let libraries = test.parent().expect("the directory of this test");
    let library =
        if cfg!(target_os = "macos") { "libcoremill_capi.dylib" } else { "libcoremill_capi.so" };
    let program = folder.join("run");
    let output = Command::new("cc")
        .args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-I"])
        .arg(root.join("include"))
        .arg(root.join("examples/run.c"))
        .arg(libraries.join(library))
        .arg(format!("-Wl,-rpath,{}", libraries.display()))
        .arg("-o")
        .arg(&program)
        .output()
        .expect("a C compiler is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

#[test]
fn c_example_compiles_and_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = compile_example(folder.path());
    for (model, arguments, expected) in [
        (TWO, &["other"][..], "input x: type 6, [2]\n"),
        (ROWS, &[], "output y: type 6, [1, 4]\n  first element 1\n1 operations\n"),
    ] {
        let package = package(folder.path(), model);
        let output = Command::new(&program)
            .arg(&package)
            .args(arguments)
            .output()
            .expect("the program starts");
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
        assert!(stdout.contains(expected), "{stdout}");
    }
    let failed = Command::new(&program).arg(folder.path()).output().expect("the program starts");
    let stderr = String::from_utf8_lossy(&failed.stderr);
    assert_eq!(failed.status.code(), Some(1));
    assert!(stderr.starts_with("error: load: ") && stderr.contains("neither"), "{stderr}");
}
