//! Runs the checks of the fuzz targets on the seeds in the repository, which include every input that failed.

#[path = "../../../fuzz/src/checks.rs"]
mod checks;

#[path = "../../../fuzz/src/seeds.rs"]
mod seeds;

fn run(target: &str, check: fn(&[u8])) {
    seeds::run(env!("CARGO_MANIFEST_DIR"), target, check);
}

#[test]
fn mil_text_seeds_do_not_panic() {
    run("text", checks::text);
}

#[test]
fn model_file_seeds_do_not_panic() {
    run("model", checks::model);
}

#[test]
fn manifest_seeds_do_not_panic() {
    run("manifest", checks::manifest);
}

#[test]
fn weight_file_seeds_do_not_panic() {
    run("weights", checks::weights);
}

#[test]
fn compiled_model_seeds_do_not_panic() {
    run("compiled", checks::compiled);
}
