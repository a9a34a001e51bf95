//! Runs the fuzz target `arrays` on the seeds in the repository.

#[path = "../../../fuzz/src/arrays.rs"]
mod arrays;
#[path = "../../../fuzz/src/seeds.rs"]
mod seeds;

#[test]
fn arrays_fuzz_seeds_do_not_panic() {
    seeds::run(env!("CARGO_MANIFEST_DIR"), "arrays", arrays::arrays);
}
