//! Runs the fuzz target `arrays` on the seeds in the repository.

#[path = "../../../fuzz/src/arrays.rs"]
mod arrays;
#[path = "../../../fuzz/src/seeds.rs"]
mod seeds;

#[test]
fn arrays() {
    seeds::run(env!("CARGO_MANIFEST_DIR"), "arrays", arrays::arrays);
}
