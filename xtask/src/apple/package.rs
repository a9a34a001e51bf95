//! Builds an XCFramework of the C interface and a Swift package around it. It runs on macOS alone.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::workspace::{cargo, describe, execute, target_directory};

/// What there are libraries for: targets that one library holds together, and its name.
const LIBRARIES: [(&str, &[&str]); 3] = [
    ("ios", &["aarch64-apple-ios"]),
    ("ios-simulator", &["aarch64-apple-ios-sim", "x86_64-apple-ios"]),
    ("macos", &["aarch64-apple-darwin", "x86_64-apple-darwin"]),
];

const MANIFEST: &str = "// swift-tools-version:5.9
import PackageDescription

let package = Package(
    name: \"Coremill\",
    platforms: [.iOS(.v16), .macOS(.v13)],
    products: [.library(name: \"Coremill\", targets: [\"CoremillC\"])],
    targets: [.binaryTarget(name: \"CoremillC\", path: \"CoremillC.xcframework\")]
)
";

const MODULE: &str = "module CoremillC {\n    header \"coremill.h\"\n    link framework \"CoreML\"\n    link framework \"Foundation\"\n    link \"sqlite3\"\n    export *\n}\n";

/// Writes `target/apple/Coremill`, a Swift package.
pub(super) fn run(root: &Path) -> Result<(), String> {
    let folder = target_directory(root).join("apple");
    let package = folder.join("Coremill");
    if package.exists() {
        fs::remove_dir_all(&package).map_err(|error| describe("remove", &package, &error))?;
    }
    let headers = folder.join("headers");
    fs::create_dir_all(&headers).map_err(|error| describe("make", &headers, &error))?;
    fs::create_dir_all(&package).map_err(|error| describe("make", &package, &error))?;
    let header = root.join("crates/capi/include/coremill.h");
    fs::copy(&header, headers.join("coremill.h"))
        .map_err(|error| describe("copy", &header, &error))?;
    write(&headers.join("module.modulemap"), MODULE)?;

    let mut create = Command::new("xcodebuild");
    create.arg("-create-xcframework");
    for (name, targets) in LIBRARIES {
        let library = folder.join(name).join("libcoremill.a");
        fs::create_dir_all(folder.join(name))
            .map_err(|error| describe("make", &library, &error))?;
        let mut join = Command::new("lipo");
        join.arg("-create").arg("-output").arg(&library);
        for target in targets {
            execute(Command::new("rustup").args(["target", "add", target]), "adding a target")?;
            let mut build = cargo(root);
            build.args([
                "build",
                "--profile",
                "apple",
                "--package",
                "coremill-capi",
                "--target",
                target,
            ]);
            build.args(["--no-default-features", "--features", "coreml"]);
            execute(&mut build, &format!("building for {target}"))?;
            join.arg(target_directory(root).join(target).join("apple/libcoremill_capi.a"));
        }
        execute(&mut join, "joining libraries")?;
        let bytes = fs::metadata(&library).map_err(|error| describe("read", &library, &error))?;
        println!("{name}: {} bytes", bytes.len());
        create.arg("-library").arg(&library).arg("-headers").arg(&headers);
    }
    create.arg("-output").arg(package.join("CoremillC.xcframework"));
    execute(&mut create, "making the XCFramework")?;
    write(&package.join("Package.swift"), MANIFEST)?;
    println!("wrote {}", package.display());
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| describe("write", path, &error))
}
