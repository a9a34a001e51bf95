//! Runs the checks of the fuzz targets on the seeds in the repository, including every input that ever failed one.

#[path = "../../../fuzz/src/executorch.rs"]
mod executorch;
#[path = "../../../fuzz/src/seeds.rs"]
mod seeds;

#[test]
fn programs() {
    seeds::run(env!("CARGO_MANIFEST_DIR"), "pte", executorch::program);
}

#[test]
fn payloads() {
    seeds::run(env!("CARGO_MANIFEST_DIR"), "payload", executorch::payload);
}

#[test]
fn external_data() {
    seeds::run(env!("CARGO_MANIFEST_DIR"), "ptd", executorch::external);
}
