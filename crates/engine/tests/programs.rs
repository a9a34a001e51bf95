//! Programs that nobody in their right mind would run: they run or end in an error, and as planned they give
//! what they give operation by operation. The fuzz target `execute` runs more of them, and so does
//! `COREMILL_SECONDS`: as many as that time allows.

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

use std::panic::catch_unwind;
use std::time::Instant;

use draw::Draw;
use execute::Outcome;

/// How many programs are made.
const PROGRAMS: u64 = 1500;

#[test]
fn seeds() {
    seeds::run(env!("CARGO_MANIFEST_DIR"), "execute", |data| {
        execute::execute(data);
    });
}

#[test]
fn no_program_panics_and_plans_change_no_result() {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let seconds = number("COREMILL_SECONDS");
    let start = Instant::now();
    let more = |made: u64| match seconds {
        Some(seconds) => start.elapsed().as_secs() < seconds,
        None => made < PROGRAMS,
    };
    let first = number("COREMILL_FIRST").unwrap_or_default();
    let (mut ran, mut compared, mut broken) = (0, 0, Vec::new());
    for seed in (first..).take_while(|seed| more(seed - first)) {
        let seed = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        match catch_unwind(|| execute::drawn(&mut Draw::new(&[], seed))) {
            Ok(Outcome::Refused | Outcome::Failed) => {}
            Ok(Outcome::Ran) => ran += 1,
            Ok(Outcome::Compared) => compared += 1,
            Err(cause) => broken.push(format!("seed {seed}: {}", compare::message(&*cause))),
        }
    }
    assert!(broken.is_empty(), "{} programs break:\n{}", broken.len(), broken.join("\n\n"));
    println!("{ran} ran, {compared} more were compared");
    // Programs that are refused at once would show nothing.
    assert!(ran > 300 && compared > 100, "{ran} ran, {compared} more were compared");
}
