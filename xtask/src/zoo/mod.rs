//! `cargo xtask zoo`: converts every exported program, checks each package, and compares the results with
//! coremltools.
//!
//! `oracle/zoo/exports` creates the exports, `oracle/checkers/conversion.py` checks the packages, and the results of
//! coremltools are in `oracle/zoo/peer.json`. These are for fp16 and iOS 18; other targets and precisions are
//! not compared. `oracle/zoo/longer.json` contains the reasons why a few programs have more operations.

mod judge;
mod report;

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::oracle::interpreter;
use crate::workspace::{binary, cargo, describe, execute, root, target_directory};
use judge::{Judge, Verdict};

/// Environment variable with an existing `coremill` command; none is built then.
const BINARY_VARIABLE: &str = "COREMILL";

/// Which programs to convert, and the options.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  cargo xtask zoo\n  cargo xtask zoo --only resnet18 --only bert --precision fp32\n  cargo xtask zoo --target ios15 --json > zoo.json"
)]
pub(crate) struct Arguments {
    /// Directory of the exported programs; missing ones are exported
    #[arg(long, value_name = "DIR", default_value = "target/exports")]
    exports: PathBuf,
    /// Directory for the packages
    #[arg(long, value_name = "DIR", default_value = "target/converted")]
    packages: PathBuf,
    /// Convert only this program
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Convert only the programs of this family
    #[arg(long, value_name = "FAMILY")]
    family: Vec<String>,
    /// The release to convert for
    #[arg(long, default_value = "ios18", value_parser = ["ios15", "ios16", "ios17", "ios18", "ios26"])]
    target: String,
    /// Precision of the computation
    #[arg(long, default_value = "fp16", value_parser = ["fp16", "fp32"])]
    precision: String,
    /// Also convert the decomposed forms and those in the edge dialect
    #[arg(long)]
    dialects: bool,
    /// Only convert, without checking the packages
    #[arg(long)]
    convert_only: bool,
    /// Also convert the models of further packages: those in oracle/requirements-zoo.txt, which are installed
    /// into target/zoo-packages
    #[arg(long)]
    further: bool,
    /// Do not export missing programs
    #[arg(long)]
    no_export: bool,
    /// Print everything as JSON
    #[arg(long)]
    json: bool,
}

/// Description of a program by `python -m oracle.zoo.exports`.
#[derive(Deserialize)]
struct Export {
    name: String,
    family: String,
    #[serde(default)]
    notes: String,
    /// Reason why torch could not export it.
    failed: Option<String>,
    #[serde(default)]
    dialects: Vec<String>,
}

/// Result of coremltools for a program.
#[derive(Clone, Deserialize)]
struct Peer {
    operations: Option<u64>,
    seconds: Option<f64>,
    failed: Option<String>,
}

#[derive(Deserialize)]
struct Peers {
    models: BTreeMap<String, Peer>,
}

/// Result for one program.
#[derive(Serialize)]
struct Row {
    model: String,
    family: String,
    notes: String,
    /// Reason why the conversion failed; `None` if a package was written.
    refused: Option<String>,
    /// Time of `coremill convert`, including its start.
    milliseconds: f64,
    operations: Option<u64>,
    error: Option<f64>,
    /// Reason why the error may be larger than that of other packages.
    excuse: Option<String>,
    /// Faults of the package.
    faults: Vec<String>,
    /// Number of operations of coremltools' result for the same target and precision.
    peer_operations: Option<u64>,
    /// Reason why there may be more operations than that.
    longer: Option<String>,
    peer_seconds: Option<f64>,
    peer_failed: Option<String>,
}

/// Target and precision of coremltools' results.
const PEER_FORM: (&str, &str) = ("ios18", "fp16");

/// Installs, if necessary, the packages that are needed only for their models; returns their folder.
fn further_packages(root: &Path, python: &Path) -> Result<PathBuf, String> {
    let requirements = root.join("oracle/requirements-zoo.txt");
    let folder = target_directory(root).join("zoo-packages");
    let wanted =
        fs::read(&requirements).map_err(|error| describe("read", &requirements, &error))?;
    // The stamp is written last, so that an interrupted installation is repeated.
    let stamp = folder.join("requirements.stamp");
    if fs::read(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(folder);
    }
    let mut install = Command::new(python);
    install.args(["-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target"]);
    install.arg(&folder).arg("-r").arg(&requirements).stdout(std::io::stderr());
    execute(&mut install, "installing the packages of the zoo")?;
    fs::write(&stamp, &wanted).map_err(|error| describe("write", &stamp, &error))?;
    Ok(folder)
}

/// Converts and checks; the error describes the faults.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let root = root();
    let exports = root.join(&arguments.exports);
    let python = interpreter(&root)?;
    if !arguments.no_export {
        let mut make = Command::new(&python);
        make.current_dir(&root).args(["-m", "oracle.zoo.exports"]).arg(&exports).arg("--missing");
        if !arguments.only.is_empty() {
            make.arg("--only").args(&arguments.only);
        }
        if arguments.further {
            make.env("PYTHONPATH", further_packages(&root, &python)?);
        }
        // Print its output to the terminal, not into the JSON on standard output.
        make.stdout(std::io::stderr());
        execute(&mut make, "exporting the programs")?;
    }
    let coremill = command(&root)?;
    let (found, impossible) = listed(&exports, arguments)?;
    let Peers { models: peers } = known(&root, "peer.json")?;
    let longer: BTreeMap<String, String> = known(&root, "longer.json")?;
    let is_peers_form = (arguments.target.as_str(), arguments.precision.as_str()) == PEER_FORM;
    let packages = root
        .join(&arguments.packages)
        .join(format!("{}-{}", arguments.target, arguments.precision));
    fs::create_dir_all(&packages).map_err(|error| describe("create", &packages, &error))?;
    let mut judge = match arguments.convert_only {
        true => None,
        false => Some(Judge::start(&root, &python, &coremill, &exports)?),
    };
    if !arguments.json {
        println!("{}", report::HEADER);
    }
    let mut rows = Vec::new();
    for (export, model) in &found {
        let peer = peers.get(&export.name);
        let archive = exports.join(format!("{model}.pt2"));
        let package = packages.join(format!("{model}.mlpackage"));
        let (refused, milliseconds) = convert(&coremill, &archive, &package, arguments)?;
        let mut row = Row {
            model: model.clone(),
            family: export.family.clone(),
            notes: export.notes.clone(),
            refused,
            milliseconds,
            operations: None,
            error: None,
            excuse: None,
            faults: Vec::new(),
            peer_operations: peer.filter(|_| is_peers_form).and_then(|peer| peer.operations),
            longer: longer.get(model).cloned(),
            peer_seconds: peer.and_then(|peer| peer.seconds),
            peer_failed: peer.and_then(|peer| peer.failed.clone()),
        };
        if let (None, Some(judge)) = (&row.refused, &mut judge) {
            let Verdict { operations, error, excuse, faults } =
                judge.ask(model, &package, &arguments.precision)?;
            row.operations = Some(operations);
            row.error = error;
            row.excuse = excuse;
            row.faults = faults;
        }
        if !arguments.json {
            println!("{}", report::line(&row));
        }
        rows.push(row);
    }
    let totals = report::Totals::of(&rows);
    if arguments.json {
        println!("{}", report::json(arguments, &rows, &totals, &impossible)?);
    } else {
        report::print_end(&rows, &totals, &impossible);
    }
    match totals.faulty {
        0 => Ok(()),
        faulty => Err(format!("{faulty} of {} packages are faulty", totals.converted)),
    }
}

/// The command under test, built unless the variable is set.
fn command(root: &Path) -> Result<PathBuf, String> {
    if let Some(given) = env::var_os(BINARY_VARIABLE) {
        return Ok(PathBuf::from(given));
    }
    execute(
        cargo(root).args(["build", "--quiet", "--release", "--package", "coremill-cli"]),
        "building the coremill command",
    )?;
    Ok(binary(root))
}

/// The programs to convert, each with the name of its archive, and those that torch could not export.
fn listed(
    exports: &Path,
    arguments: &Arguments,
) -> Result<(Vec<(Export, String)>, Vec<Export>), String> {
    let entries = fs::read_dir(exports).map_err(|error| describe("read", exports, &error))?;
    let mut paths: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .collect();
    paths.sort();
    let (mut found, mut impossible) = (Vec::new(), Vec::new());
    for path in paths {
        let text = fs::read_to_string(&path).map_err(|error| describe("read", &path, &error))?;
        let export: Export = serde_json::from_str(&text).map_err(|error| {
            format!("`{}` does not describe an export: {error}", path.display())
        })?;
        let chosen = (arguments.only.is_empty() || arguments.only.contains(&export.name))
            && (arguments.family.is_empty() || arguments.family.contains(&export.family));
        if !chosen {
            continue;
        }
        if export.failed.is_some() {
            impossible.push(export);
            continue;
        }
        let mut names = vec![export.name.clone()];
        if arguments.dialects {
            names
                .extend(export.dialects.iter().map(|dialect| format!("{}.{dialect}", export.name)));
        }
        for name in names {
            let described = Export {
                name: export.name.clone(),
                family: export.family.clone(),
                notes: export.notes.clone(),
                failed: None,
                dialects: Vec::new(),
            };
            found.push((described, name));
        }
    }
    if found.is_empty() {
        return Err(format!("{} has none of the requested programs", exports.display()));
    }
    Ok((found, impossible))
}

/// The contents of a file of the zoo; it has no lines for programs without entries.
fn known<T: DeserializeOwned>(root: &Path, name: &str) -> Result<T, String> {
    let path = root.join("oracle/zoo").join(name);
    let text = fs::read_to_string(&path).map_err(|error| describe("read", &path, &error))?;
    serde_json::from_str(&text)
        .map_err(|error| format!("`{}` cannot be read: {error}", path.display()))
}

/// Runs the conversion; returns its time, and the reason if it failed.
fn convert(
    coremill: &Path,
    archive: &Path,
    package: &Path,
    arguments: &Arguments,
) -> Result<(Option<String>, f64), String> {
    if package.exists() {
        fs::remove_dir_all(package).map_err(|error| describe("remove", package, &error))?;
    }
    let mut convert = Command::new(coremill);
    convert.arg("convert").arg(archive).arg("-o").arg(package);
    convert.args(["--target", &arguments.target, "--precision", &arguments.precision]);
    // States are available since iOS 18; for older targets, buffers become inputs and outputs.
    if ["ios15", "ios16", "ios17"].contains(&arguments.target.as_str()) {
        convert.args(["--states", "io"]);
    }
    let started = Instant::now();
    let done = convert
        .output()
        .map_err(|error| format!("cannot start `{}`: {error}", coremill.display()))?;
    let took = started.elapsed().as_secs_f64() * 1e3;
    let refused = (!done.status.success())
        .then(|| report::reason(&String::from_utf8_lossy(&done.stderr), done.status));
    Ok((refused, took))
}
