//! Runs the checks of the fuzz targets on the seeds in the repository, including every input that ever failed one.

#[path = "../../../fuzz/src/executorch.rs"]
mod executorch;
#[path = "../../../fuzz/src/seeds.rs"]
mod seeds;

#[test]
fn program_seeds_round_trip_without_panic() {
    seeds::run(env!("CARGO_MANIFEST_DIR"), "pte", executorch::program);
}

#[test]
fn payload_seeds_round_trip_without_panic() {
    seeds::run(env!("CARGO_MANIFEST_DIR"), "payload", executorch::payload);
}

#[test]
fn external_data_seeds_round_trip_without_panic() {
    seeds::run(env!("CARGO_MANIFEST_DIR"), "ptd", executorch::external);
}
