//! Random programs, most of them absurd. Each must run or return an error, and its plan must
//! compute the same results as the single operations. The fuzz target `execute` runs more, and
//! `COREMILL_SECONDS` sets a time for this test.

#[path = "../../../fuzz/src/compare.rs"]
mod compare;
#[path = "../../../fuzz/src/draw.rs"]
mod draw;
#[path = "../../../fuzz/src/execute.rs"]
mod execute;
#[path = "../../../fuzz/src/flexible.rs"]
mod flexible;
#[path = "../../../fuzz/src/programs.rs"]
mod programs;
#[path = "../../../fuzz/src/seeds.rs"]
mod seeds;
#[path = "../../../fuzz/src/sweep.rs"]
mod sweep;

use execute::Outcome;

/// Number of programs.
const PROGRAMS: u64 = 1500;

#[test]
fn execute_fuzz_seeds_do_not_panic() {
    seeds::run(env!("CARGO_MANIFEST_DIR"), "execute", |data| {
        execute::execute(data);
    });
}

#[test]
fn random_programs_match_op_by_op_without_panic() {
    let outcomes = sweep::sweep(PROGRAMS, execute::drawn);
    let count = |wanted| outcomes.iter().filter(|&&outcome| outcome == wanted).count();
    let (ran, compared) = (count(Outcome::Ran), count(Outcome::Compared));
    println!("{ran} ran, {compared} more were compared");
    // The test is only meaningful if enough programs run.
    assert!(ran > 300 && compared > 100, "{ran} ran, {compared} more were compared");
}
