//! Runs the examples, with their own data and with the example program in the repository.

use std::process::Command;

#[test]
fn examples_run() {
    for (name, said) in [
        ("open_and_run", "2.718"),
        ("cnn", ""),
        ("convert", ":"),
        ("quantize", "dB at the outputs"),
        ("compare", "dB"),
        ("llama", "GGUF"),
    ] {
        let arguments = ["run", "--quiet", "--package", "coremill", "--example", name];
        let done = Command::new(env!("CARGO")).args(arguments).output().expect("cargo runs");
        let printed = String::from_utf8_lossy(&done.stdout);
        let errors = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{name}:\n{errors}");
        assert!(printed.contains(said), "{name} printed:\n{printed}");
    }
}
