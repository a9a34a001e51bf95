//! Runs the check of the fuzz target on the seeds in the repository, including every input that ever failed it.

#[path = "../../../fuzz/src/http.rs"]
mod http;
#[path = "../../../fuzz/src/seeds.rs"]
mod seeds;

#[test]
fn http_request_seeds_do_not_panic() {
    seeds::run(env!("CARGO_MANIFEST_DIR"), "http", http::requests);
}
