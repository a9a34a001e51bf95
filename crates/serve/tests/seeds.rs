//! Runs the check of the fuzz target on the seeds in the repository, including every input that ever failed it.

#[path = "../../../fuzz/src/http.rs"]
mod http;
#[path = "../../../fuzz/src/seeds.rs"]
mod seeds;

#[test]
fn requests() {
    seeds::run(env!("CARGO_MANIFEST_DIR"), "http", http::requests);
}
