//! A reader that runs while a package is replaced sees one version of the package, never parts of two.

#[path = "support/layers.rs"]
mod layers;

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use coremill_mil::model::{Metadata, Model};
use coremill_mlpackage::{compiled, package};
use coremill_tensor::Buffer;
use coremill_verify as verify;

const WIDTH: u64 = 64;

/// A version of the model: its number is in the description and in every byte of the weights.
fn model(generation: u8) -> Model {
    let weights = (0..3).map(|_| vec![generation; (WIDTH * WIDTH * 2) as usize]);
    let mut model = layers::model(WIDTH, weights.map(Buffer::from));
    model.description.metadata =
        Some(Metadata { version: generation.to_string(), ..Metadata::default() });
    model
}

/// The version of a model, after checking that all parts agree.
fn generation(model: &Model) -> u8 {
    let stated = model.description.metadata.as_ref().map(|metadata| metadata.version.as_str());
    let stated: u8 = stated.and_then(|version| version.parse().ok()).expect("a version");
    let mut weights = 0;
    for (_, op) in model.program.functions.iter().flat_map(|function| function.all_ops()) {
        let constant = op.attributes.get("val").and_then(|constant| constant.elements());
        let Some(bytes) = constant.filter(|bytes| bytes.len() as u64 == WIDTH * WIDTH * 2) else {
            continue;
        };
        assert!(
            bytes.as_bytes().iter().all(|&byte| byte == stated),
            "the weights are those of another version"
        );
        weights += 1;
    }
    assert_eq!(weights, 3, "not all weights were checked");
    stated
}

/// Reads the package while another thread alternately writes two versions. Checks that every
/// read returns a complete version, and that both versions are read.
#[expect(clippy::print_stdout, reason = "the test prints its counts")]
fn read_while_writing(
    target: &Path,
    write: impl Fn(&Path, &Model) + Sync,
    read: impl Fn(&Path) -> Model + Sync,
) {
    let models = [model(1), model(2)];
    write(target, &models[0]);
    let done = AtomicBool::new(false);
    let seconds = std::env::var("COREMILL_SECONDS").ok().and_then(|text| text.parse().ok());
    let time = Duration::from_secs(seconds.unwrap_or(1));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                models.iter().for_each(|model| write(target, model));
            }
        });
        let start = Instant::now();
        let (mut seen, mut reads) = (HashSet::new(), 0);
        while start.elapsed() < time || seen.len() < 2 {
            assert!(
                start.elapsed() < time + Duration::from_secs(60),
                "only the versions {seen:?} were read"
            );
            seen.insert(generation(&read(target)));
            reads += 1;
        }
        done.store(true, Ordering::Relaxed);
        println!("{reads} reads during writes");
    });
}

#[test]
fn package_reads_are_atomic_during_replacement() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let target = directory.path().join("model.mlpackage");
    read_while_writing(&target, layers::write, |path| {
        package::read(path).expect("a complete package")
    });
}

#[test]
fn compiled_model_reads_are_atomic_during_replacement() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let target = directory.path().join("model.mlmodelc");
    let write = |path: &Path, model: &Model| {
        let verified = verify::verify(model).expect("sound");
        compiled::write(path, &verified, &compiled::WriteOptions::default()).expect("written");
    };
    read_while_writing(&target, write, |path| compiled::read(path).expect("a complete model"));
}
