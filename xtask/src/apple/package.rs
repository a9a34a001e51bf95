//! Builds an XCFramework of the C interface and a Swift package for it, and runs a Swift program that uses
//! the package. It needs macOS.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::workspace::{cargo, describe, execute, target_directory};

/// The libraries: the name of each, and the targets that it contains.
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
    products: [.library(name: \"Coremill\", targets: [\"Coremill\", \"CoremillC\"])],
    targets: [
        .target(name: \"Coremill\", dependencies: [\"CoremillC\"]),
        .binaryTarget(name: \"CoremillC\", path: \"CoremillC.xcframework\"),
    ]
)
";

/// Directory of the Swift sources in the package.
const SOURCES: &str = "Sources/Coremill";

/// Manifest of a package with the Swift program.
const USER: &str = "// swift-tools-version:5.9
import PackageDescription

let package = Package(
    name: \"Run\",
    platforms: [.macOS(.v13)],
    dependencies: [.package(path: \"../Coremill\")],
    targets: [.executableTarget(name: \"Run\", dependencies: [\"Coremill\"])]
)
";

const MODULE: &str = "module CoremillC {\n    header \"coremill.h\"\n    link framework \"CoreML\"\n    link framework \"Foundation\"\n    export *\n}\n";

/// Writes the Swift package `target/apple/Coremill`.
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
            build.args(["rustc", "--profile", "apple", "--package", "coremill-capi"]);
            build.args(["--lib", "--crate-type", "staticlib", "--target", target]);
            build.args(["--no-default-features", "--features", "coreml"]);
            // As in the manifest.
            build.env("IPHONEOS_DEPLOYMENT_TARGET", "16.0");
            build.env("MACOSX_DEPLOYMENT_TARGET", "13.0");
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
    copy_sources(&root.join("crates/capi/swift/Sources/Coremill"), &package.join(SOURCES))?;
    println!("wrote {}", package.display());
    run_user(root, &folder)
}

/// Copies the Swift sources of the package.
fn copy_sources(from: &Path, to: &Path) -> Result<(), String> {
    fs::create_dir_all(to).map_err(|error| describe("make", to, &error))?;
    let entries = fs::read_dir(from).map_err(|error| describe("list", from, &error))?;
    for entry in entries {
        let path = entry.map_err(|error| describe("list", from, &error))?.path();
        let Some(name) = path.file_name() else { continue };
        fs::copy(&path, to.join(name)).map_err(|error| describe("copy", &path, &error))?;
    }
    Ok(())
}

/// Builds the Swift program with the package, and runs a golden package with it on Core ML.
fn run_user(root: &Path, folder: &Path) -> Result<(), String> {
    let user = folder.join("Run");
    let sources = user.join("Sources/Run");
    fs::create_dir_all(&sources).map_err(|error| describe("make", &sources, &error))?;
    let main = root.join("crates/capi/examples/main.swift");
    fs::copy(&main, sources.join("main.swift")).map_err(|error| describe("copy", &main, &error))?;
    write(&user.join("Package.swift"), USER)?;
    let mut run = Command::new("swift");
    run.arg("run").arg("--package-path").arg(&user).arg("Run");
    run.arg(root.join("crates/mlpackage/tests/packages/convolutions-ios15.mlpackage"));
    execute(&mut run, "a Swift program on the XCFramework")
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| describe("write", path, &error))
}
