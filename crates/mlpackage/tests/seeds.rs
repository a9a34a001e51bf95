//! Runs the checks of the fuzz targets on the seeds in the repository, which include every input that failed.

#[path = "../../../fuzz/src/checks.rs"]
mod checks;

#[path = "../../../fuzz/src/seeds.rs"]
mod seeds;

fn run(target: &str, check: fn(&[u8])) {
    seeds::run(env!("CARGO_MANIFEST_DIR"), target, check);
}

#[test]
fn text() {
    run("text", checks::text);
}

#[test]
fn model() {
    run("model", checks::model);
}

#[test]
fn manifest() {
    run("manifest", checks::manifest);
}

#[test]
fn weights() {
    run("weights", checks::weights);
}

#[test]
fn compiled() {
    run("compiled", checks::compiled);
}
