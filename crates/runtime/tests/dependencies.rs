//! Dependencies shipped in an app: with Core ML only, the runtime and the C interface contain no compiler, engine or MIL.

use std::process::Command;

/// Dependencies of a crate for a target and features.
fn crates(package: &str, target: &str, features: &str) -> Vec<String> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--package", package, "--no-default-features"])
        .args(["--features", features, "--target", target])
        .args(["--edges", "normal", "--prefix", "none", "--format", "{p}"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let text = String::from_utf8(output.stdout).expect("names are text");
    text.lines().filter_map(|line| line.split(' ').next().map(str::to_owned)).collect()
}

#[test]
fn coreml_only_builds_exclude_compiler_and_engine() {
    const EXCLUDED: [&str; 4] =
        ["coremill-mil", "coremill-engine", "coremill-compiler", "coremill-pt2"];
    let targets = ["aarch64-apple-ios", "aarch64-apple-darwin"];
    let builds =
        targets.iter().flat_map(|target| [("coremill-runtime", target), ("coremill-capi", target)]);
    for (package, target) in builds {
        let crates = crates(package, target, "coreml");
        let has = |name: &str| crates.iter().any(|found| found == name);
        assert!(has("coremill-coreml") && has("objc2-core-ml"), "{crates:?}");
        for name in EXCLUDED {
            assert!(!has(name), "`{name}` would ship with `{package}` for {target}");
        }
    }
    // This build includes two of these crates, which tests the search itself.
    let crates = crates("coremill-runtime", "aarch64-apple-ios", "coreml,host");
    for name in &EXCLUDED[..2] {
        assert!(crates.iter().any(|found| found == name), "{crates:?}");
    }
}
