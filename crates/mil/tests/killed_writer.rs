//! A writer that is killed leaves the old package or the new one, whole.
//!
//! This test is its own child: called with paths it writes two packages over each other without end,
//! until it is killed at a moment that nobody chose.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use coremill_mil::ir::{Binding, Constant, Function, Op, Opset, Type};
use coremill_mil::model::{
    ArrayDataType, ArrayType, FeatureDescription, FeatureType, Metadata, Model,
};
use coremill_mil::ops::OpKind;
use coremill_mil::package::{self, WriteOptions};
use coremill_mil::verify::verify;
use coremill_tensor::DType;

/// How often the writer is killed.
const ROUNDS: u64 = 60;

/// How often if it was never killed at the moments that the test is about.
const MOST_ROUNDS: u64 = 5 * ROUNDS;

/// How long it may write, in microseconds.
const LONGEST: u64 = 40_000;

/// A model of some megabytes, so that writing it takes a while.
fn model(version: u8) -> Model {
    const WIDTH: u64 = 1024;
    let mut function = Function::new("main", Opset::Ios18);
    let body = function.body;
    let ty = Type::tensor(DType::Fp16, &[1, WIDTH]);
    let mut value = function.add_input(body, "x", ty.clone());
    for layer in 0..3 {
        let bytes = vec![version + layer; (WIDTH * WIDTH * 2) as usize];
        let weight = Constant::weight(DType::Fp16, &[WIDTH, WIDTH], bytes);
        let weight_ty = weight.ty.clone();
        let weight =
            function.add_op(body, Op::constant(weight), [(format!("w{layer}"), weight_ty)]);
        let weight = function.op(weight).outputs[0];
        let op = Op::new(OpKind::Linear)
            .with("x", Binding::Value(value))
            .with("weight", Binding::Value(weight));
        let op = function.add_op(body, op, [(format!("y{layer}"), ty.clone())]);
        value = function.op(op).outputs[0];
    }
    function.block_mut(body).outputs.push(value);

    let feature = |name: &str| {
        let array = ArrayType::fixed(ArrayDataType::Float16, &[1, WIDTH.cast_signed()]);
        FeatureDescription::new(name, FeatureType::MultiArray(array))
    };
    let mut model = Model { specification_version: 9, ..Model::default() };
    model.program.functions.push(function);
    model.description.inputs.push(feature("x"));
    model.description.outputs.push(feature("y2"));
    model.description.metadata =
        Some(Metadata { version: version.to_string(), ..Metadata::default() });
    model
}

fn write(path: &Path, model: &Model) {
    let verified = verify(model).unwrap_or_else(|report| panic!("{}", report.summary()));
    package::write(path, &verified, &WriteOptions::default()).expect("written");
}

/// Every file under a directory with the hash of its bytes.
fn content(root: &Path) -> BTreeMap<PathBuf, blake3::Hash> {
    let mut found = BTreeMap::new();
    let mut pending = vec![root.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                pending.push(path);
            } else {
                let hash = blake3::hash(&fs::read(&path).expect("a file"));
                found.insert(path.strip_prefix(root).expect("below").to_owned(), hash);
            }
        }
    }
    found
}

fn write_without_end(target: &Path, sources: [&Path; 2]) -> ! {
    let models = sources.map(|path| package::read(path).expect("sound"));
    loop {
        models.iter().for_each(|model| write(target, model));
    }
}

fn main() {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    if let [marker, target, one, other] = arguments.as_slice()
        && marker == Path::new("--write-without-end")
    {
        write_without_end(target, [one, other]);
    }

    let directory = tempfile::tempdir().expect("temporary directory");
    let place = directory.path().join("place");
    fs::create_dir(&place).expect("a directory");
    let target = place.join("a.mlpackage");
    let sources = [1, 101].map(|version| {
        let path = directory.path().join(format!("{version}.mlpackage"));
        write(&path, &model(version));
        path
    });
    write(&target, &model(1));
    let whole = [content(&sources[0]), content(&sources[1])];
    assert_ne!(whole[0], whole[1]);

    let mut seen = [0, 0];
    let mut interrupted = 0;
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    for round in 0..MOST_ROUNDS {
        // Where others keep the machine busy, the child takes longer to get anywhere.
        let longest = LONGEST << (round / ROUNDS);
        if round >= ROUNDS && interrupted > 0 && seen.iter().all(|&count| count > 0) {
            break;
        }
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .arg("--write-without-end")
            .arg(&target)
            .args(&sources)
            .stderr(Stdio::null())
            .spawn()
            .expect("a child");
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        // The child needs a moment to read before it begins to write.
        std::thread::sleep(Duration::from_micros(10_000 + random % longest));
        child.kill().expect("killed");
        let status = child.wait().expect("a status");
        let killed = cfg!(not(unix)) || status.code().is_none();
        assert!(killed, "round {round}: the writer failed by itself");

        let found = content(&target);
        let which = whole.iter().position(|whole| *whole == found);
        let which = which.unwrap_or_else(|| panic!("round {round}: found {found:?}"));
        seen[which] += 1;
        package::read(&target).expect("sound");
        interrupted += usize::from(fs::read_dir(&place).expect("a directory").count() > 1);
    }
    // Otherwise the child was never killed while it wrote, and nothing was shown.
    assert!(interrupted > 0 && seen.iter().all(|&count| count > 0), "{interrupted} {seen:?}");

    write(&target, &model(1));
    assert_eq!(content(&target), whole[0]);
    assert_eq!(fs::read_dir(&place).expect("a directory").count(), 1, "something was left");
}
