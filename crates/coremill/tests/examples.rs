//! Runs the examples, with their own data and with the example program in the repository.

use std::path::Path;
use std::process::Command;

#[test]
fn examples_run() {
    // A build of this package alone would select fewer features of shared dependencies, and compile them again.
    let build = ["build", "--quiet", "--workspace", "--examples"];
    let status = Command::new(env!("CARGO")).args(build).status().expect("cargo runs");
    assert!(status.success(), "building the examples failed ({status})");
    let this = std::env::current_exe().expect("the path of this test");
    let examples = this.ancestors().nth(2).map(|folder| folder.join("examples"));
    let examples = examples.as_deref().unwrap_or(Path::new("."));
    for (name, expected) in [
        ("open_and_run", "2.718"),
        ("cnn", " operations"),
        ("convert", ": Some(["),
        ("quantize", "dB at the outputs"),
        ("compare", "dB"),
        ("llama", "GGUF"),
    ] {
        let done = Command::new(examples.join(name)).output().expect("the example runs");
        let printed = String::from_utf8_lossy(&done.stdout);
        let errors = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{name}:\n{errors}");
        assert!(printed.contains(expected), "{name} printed:\n{printed}");
    }
}
