//! `cargo xtask apple-models`: compares models of Apple's compiler and of products with coremill's output.
//!
//! The models are in a folder on the command line, because their licenses keep them out of the repository.
//! Each compiled model and each package is opened, checked, run on random inputs and compiled; each text is
//! parsed and printed. If the analytics of a compiled model contain the hash of one of the packages, coremill
//! compiles this package for the comparison. It recompiles the other compiled models themselves.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use coremill::{Model, SaveOptions};
use coremill_engine::{Array, Engine, FeatureSpec, LoadOptions, Session};
use coremill_mil::text::{self, Dialect, NoWeights, PrintOptions};
use coremill_tensor::DType;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// Selection of models.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// A folder with `.mlmodelc` and `.mlpackage` directories and `.mil` files anywhere below it
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// List the differing keys of `metadata.json` with both values
    #[arg(long)]
    verbose: bool,
}

/// Prints a table, and the failures.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let mut found = ModelFiles::default();
    found.look(&arguments.folder)?;
    let scratch = std::env::temp_dir().join(format!("apple-models-{}", std::process::id()));
    fs::create_dir_all(&scratch).map_err(|error| format!("{}: {error}", scratch.display()))?;
    let measured = measure(&found, &scratch, arguments.verbose);
    fs::remove_dir_all(&scratch).map_err(|error| format!("{}: {error}", scratch.display()))?;
    match measured? {
        0 => Ok(()),
        failures => Err(format!("{failures} failed")),
    }
}

#[derive(Default)]
struct ModelFiles {
    compiled: Vec<PathBuf>,
    packages: Vec<PathBuf>,
    texts: Vec<PathBuf>,
}

impl ModelFiles {
    fn look(&mut self, folder: &Path) -> Result<(), String> {
        let failed = |error| format!("{}: {error}", folder.display());
        let entries = fs::read_dir(folder).map_err(failed)?;
        let paths: Result<Vec<PathBuf>, _> =
            entries.map(|entry| entry.map(|entry| entry.path())).collect();
        let mut paths = paths.map_err(failed)?;
        paths.sort();
        for path in paths {
            if path.join("coremldata.bin").is_file() {
                self.compiled.push(path);
            } else if path.join("Manifest.json").is_file() {
                self.packages.push(path);
            } else if path.is_dir() {
                self.look(&path)?;
            } else if path.extension().is_some_and(|extension| extension == "mil") {
                self.texts.push(path);
            }
        }
        Ok(())
    }
}

/// Counts of one row of the table, in the order of their first occurrence, and failures.
#[derive(Default)]
struct Row {
    counts: Vec<(&'static str, usize)>,
    failures: Vec<String>,
}

impl Row {
    /// Counts a success; returns `false` for a failure.
    fn count<T>(
        &mut self,
        what: &'static str,
        path: &Path,
        result: Result<T, String>,
    ) -> Option<T> {
        if self.counts.iter().all(|(known, _)| *known != what) {
            self.counts.push((what, 0));
        }
        match result {
            Ok(value) => {
                self.counts
                    .iter_mut()
                    .filter(|(known, _)| *known == what)
                    .for_each(|(_, n)| *n += 1);
                Some(value)
            }
            Err(error) => {
                self.failures.push(format!("{}: not {what}: {error}", path.display()));
                None
            }
        }
    }

    fn print(&self, title: &str, total: usize) {
        let counts: Vec<String> =
            self.counts.iter().map(|(what, count)| format!("{count} {what}")).collect();
        println!("{title:<18}{total:>4}: {}", counts.join(", "));
        for failure in &self.failures {
            println!("  {failure}");
        }
    }
}

/// Examines all files; returns the number of failures.
fn measure(found: &ModelFiles, scratch: &Path, verbose: bool) -> Result<usize, String> {
    let mut failures = 0;
    for (title, paths) in [("compiled models", &found.compiled), ("packages", &found.packages)] {
        let mut row = Row::default();
        for path in paths {
            model(&mut row, path, scratch);
        }
        row.print(title, paths.len());
        failures += row.failures.len();
    }
    let is_analytics = |path: &&PathBuf| {
        fs::read_to_string(path).is_ok_and(|text| text.contains("tensor_buffer<"))
    };
    let (analytics, texts): (Vec<_>, Vec<_>) = found.texts.iter().partition(is_analytics);
    for (title, paths) in [("texts", &texts), ("analytics", &analytics)] {
        let mut row = Row::default();
        for path in paths {
            text_of(&mut row, path, title == "texts");
        }
        row.print(title, paths.len());
        failures += row.failures.len();
    }

    let hashes: BTreeMap<String, &PathBuf> =
        found.packages.iter().filter_map(|path| Some((hash_of(path)?, path))).collect();
    let (mut pairs, mut alone) = (CompiledComparison::default(), CompiledComparison::default());
    for path in &found.compiled {
        match stated_hash(path).and_then(|hash| hashes.get(&hash)) {
            Some(package) => pairs.compare(package, path, scratch)?,
            None => alone.compare(path, path, scratch)?,
        }
    }
    for (title, compared) in [("of packages", &pairs), ("of themselves", &alone)] {
        compared.row.print(title, compared.total);
        for (key, values) in &compared.keys {
            println!("  metadata.json: `{key}` differs in {}", values.len());
            for (path, ours, apples) in values.iter().filter(|_| verbose) {
                println!("    {}: {ours}, Apple's: {apples}", path.display());
            }
        }
    }
    Ok(failures + pairs.row.failures.len() + alone.row.failures.len())
}

fn model(row: &mut Row, path: &Path, scratch: &Path) {
    let opened = coremill::open(path).map_err(|error| error.to_string());
    let Some(model) = row.count("open", path, opened) else { return };
    let report = coremill::check(&model);
    let sound = if report.is_sound() { Ok(()) } else { Err(report.to_string()) };
    row.count("check", path, sound);
    row.count("run", path, run_once(&model));
    for (what, extension) in [("pack as compiled", "mlmodelc"), ("pack as package", "mlpackage")] {
        let output = scratch.join(format!("packed.{extension}"));
        let packed = pack(&model, &output).and_then(|()| {
            let again = coremill::open(&output).map_err(|error| error.to_string())?;
            let same = again.program == model.program && again.description == model.description;
            if same { Ok(()) } else { Err("the model that is read back differs".to_owned()) }
        });
        row.count(what, path, packed);
    }
}

fn pack(model: &Model, output: &Path) -> Result<(), String> {
    let verified = coremill::verify(model).map_err(|report| report.to_string())?;
    let saved = coremill::save(output, &verified, &SaveOptions::default());
    saved.map_err(|error| error.to_string())
}

/// Runs a model on random inputs; each output must have elements.
fn run_once(model: &Model) -> Result<(), String> {
    let verified = coremill::verify(model).map_err(|report| report.to_string())?;
    let engine = Engine::load(&verified, &LoadOptions::default()).map_err(|e| e.to_string())?;
    let function = engine.default_function().to_owned();
    let mut session: Session = engine.session(&function).map_err(|error| error.to_string())?;
    let ports = session.inputs().to_vec();
    let inputs: Result<Vec<(&str, Array)>, String> =
        ports.iter().map(|port| Ok((port.name.as_str(), random(port)?))).collect();
    let outputs = session.run(&inputs?).map_err(|error| error.to_string())?;
    if outputs.0.is_empty() { Err("it has no outputs".to_owned()) } else { Ok(()) }
}

/// Random floats in −1 to 1; zeros for integers, which may be indices.
fn random(port: &FeatureSpec) -> Result<Array, String> {
    let shape = port.default_shape().ok_or_else(|| format!("`{}` has no shape", port.name))?;
    let dtype = port.ty.as_tensor().map(|tensor| tensor.dtype);
    let count = shape.iter().product();
    Ok(match dtype {
        Some(dtype) if dtype.is_float() => {
            let mut state = 1u32;
            let mut next = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / (1 << 23) as f32 - 1.0
            };
            Array::floats(DType::Fp32, shape, (0..count).map(|_| next()).collect())
        }
        _ => Array::ints(DType::Int32, shape, vec![0; count]),
    })
}

/// Parses and prints a text. With `as_it_was`, the printed text must be identical in its own dialect.
fn text_of(row: &mut Row, path: &Path, as_it_was: bool) {
    let read = fs::read_to_string(path).map_err(|error| error.to_string());
    let Some(text) = row.count("read", path, read) else { return };
    let parsed = text::parse(&text, &NoWeights).map_err(|error| error.to_string());
    let Some(program) = row.count("parse", path, parsed) else { return };
    let options = PrintOptions { dialect: dialect_of(&text), ..PrintOptions::default() };
    let printed = text::print(&program, &options).text;
    let again = text::parse(&printed, &NoWeights).map_err(|error| error.to_string());
    let same = again.and_then(|again| {
        let second = text::print(&again, &options).text;
        if second == printed && again == program { Ok(()) } else { Err("it changes".to_owned()) }
    });
    row.count("print identically twice", path, same);
    if as_it_was {
        let same = printed == text.trim_end();
        let same = if same { Ok(()) } else { Err(first_difference(&printed, &text)) };
        row.count("print unchanged", path, same);
    }
}

fn dialect_of(text: &str) -> Dialect {
    if text.starts_with("program(1.0)") { Dialect::V1_0 } else { Dialect::V1_3 }
}

/// The hash of a package's model file, as stored in analytics.
fn hash_of(package: &Path) -> Option<String> {
    let bytes = fs::read(package.join("Data/com.apple.CoreML/model.mlmodel")).ok()?;
    Some(base64(&Sha256::digest(bytes)))
}

/// The hash in a compiled model: a string after its name and length.
fn stated_hash(compiled: &Path) -> Option<String> {
    let bytes = fs::read(compiled.join("analytics/coremldata.bin")).ok()?;
    let name = b"modelHash";
    let at = bytes.windows(name.len()).position(|found| found == name)? + name.len() + 8;
    String::from_utf8(bytes.get(at..at + 44)?.to_vec()).ok()
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let bits =
            (0..3).fold(0u32, |bits, at| bits << 8 | u32::from(*group.get(at).unwrap_or(&0)));
        for digit in 0..4 {
            let index = (bits >> (18 - 6 * digit) & 63) as usize;
            text.push(if digit > group.len() { '=' } else { char::from(DIGITS[index]) });
        }
    }
    text
}

/// Comparison of coremill's compiled models with Apple's.
#[derive(Default)]
struct CompiledComparison {
    row: Row,
    total: usize,
    /// Keys of `metadata.json` with different values: the model, coremill's value and Apple's value.
    keys: BTreeMap<String, Vec<(PathBuf, Value, Value)>>,
}

impl CompiledComparison {
    fn compare(&mut self, source: &Path, apples: &Path, scratch: &Path) -> Result<(), String> {
        self.total += 1;
        let stem = apples.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let ours = scratch.join(format!("{stem}.mlmodelc"));
        let model = coremill::open(source).map_err(|error| error.to_string());
        let packed = model.and_then(|model| pack(&model, &ours));
        if self.row.count("compiled", apples, packed).is_none() {
            return Ok(());
        }
        let read = |folder: &Path, name: &str| {
            let path = folder.join(name);
            fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))
        };
        let both = |name: &str| Ok::<_, String>((read(&ours, name)?, read(apples, name)?));
        let (left, right) = both("model.mil")?;
        let (left, right) = (String::from_utf8_lossy(&left), String::from_utf8_lossy(&right));
        if dialect_of(&left) == dialect_of(&right) {
            self.row.count("in one dialect", apples, Ok(()));
        }
        // Compilers before 3520 write the older dialect.
        let program = text::parse(&left, &NoWeights).map_err(|error| error.to_string())?;
        let options = PrintOptions { dialect: dialect_of(&right), ..PrintOptions::default() };
        let (left, right) =
            (without_build_info(&text::print(&program, &options).text), without_build_info(&right));
        let same = |same: bool| if same { Ok(()) } else { Err("it differs".to_owned()) };
        let equal = if left == right { Ok(()) } else { Err(first_difference(&left, &right)) };
        self.row.count("programs identical except for buildInfo", apples, equal);
        let (left, right) = both("coremldata.bin")?;
        // Compilers before 3520 write 5 instead of the version, and user-defined metadata is in the order of
        // a hash table.
        let content = |path: &Path| {
            let model = coremill::open(path).map_err(|error| error.to_string())?;
            Ok::<_, String>((model.description, model.specification_version))
        };
        let equal = left.len() == right.len() && content(&ours)? == content(apples)?;
        self.row.count("coremldata.bin with the same content", apples, same(equal));
        let (left, right) = both("analytics/coremldata.bin")?;
        let blank = |bytes: &[u8]| -> Vec<u8> {
            let hash = bytes.windows(9).position(|found| found == b"modelHash").unwrap_or(0);
            bytes
                .iter()
                .enumerate()
                .filter(|(at, _)| !(hash..hash + 61).contains(at))
                .map(|(_, byte)| *byte)
                .collect()
        };
        let equal = blank(&left) == blank(&right);
        self.row.count("analytics with identical names", apples, same(equal));
        if left == right {
            self.row.count("hashes identical", apples, Ok(()));
        }
        let (left, right) = both("metadata.json")?;
        let parse = |bytes: &[u8]| -> Result<Value, String> {
            let all: Value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
            Ok(all[0].clone())
        };
        let (left, right) = (parse(&left)?, parse(&right)?);
        self.row.count("metadata.json with the same values", apples, same(left == right));
        let keys =
            [&left, &right].into_iter().filter_map(Value::as_object).flat_map(|all| all.keys());
        let keys: std::collections::BTreeSet<&String> = keys.collect();
        for key in keys.into_iter().filter(|key| left[key.as_str()] != right[key.as_str()]) {
            let values = (apples.to_owned(), left[key].clone(), right[key].clone());
            self.keys.entry(key.clone()).or_default().push(values);
        }
        Ok(())
    }
}

fn without_build_info(text: &str) -> String {
    text.lines().filter(|line| !line.starts_with("[buildInfo")).collect::<Vec<_>>().join("\n")
}

/// The first line that differs, from both texts.
fn first_difference(ours: &str, apples: &str) -> String {
    let mut lines = ours.lines().zip(apples.lines()).enumerate();
    let shown = |line: &str| line.chars().take(200).collect::<String>();
    match lines.find(|(_, (ours, apples))| ours != apples) {
        Some((at, (ours, apples))) => {
            format!("line {}: {}\n    Apple's: {}", at + 1, shown(ours), shown(apples))
        }
        None => "its length differs".to_owned(),
    }
}
