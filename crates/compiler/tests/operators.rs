//! Calls of every torch operator with valid, invalid and absurd arguments: each is lowered or refused quickly, in little
//! memory. The fuzz target `operators` generates more calls.

#[path = "../../../fuzz/src/draw.rs"]
mod draw;
#[path = "../../../fuzz/src/operators.rs"]
mod operators;

use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use coremill_pt2::Schema;
use draw::Draw;

/// Every n-th operator is called once, unless `COREMILL_CALLS` sets a number of calls per operator and `COREMILL_SECONDS`
/// a duration.
const SAMPLED: usize = 6;
/// Maximum number of attempts to reach an operator.
const TRIES: u64 = 64;
/// Whether a lowering panicked, even if the panic was converted to an error.
static PANICKED: AtomicBool = AtomicBool::new(false);
/// Time limit, far above the duration of any call.
const TIME_LIMIT: Duration = Duration::from_secs(180);

/// Maximum peak memory of the process in kB. A constant that a lowering creates has at most 256 MB.
const MEMORY_LIMIT: u64 = 1 << 20;

/// Fails if the process has ever used more memory than the limit.
fn assert_memory_within_limit() {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return };
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak = peak.and_then(|peak| peak.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    let peak = peak.expect("the peak memory of the process");
    assert!(peak < MEMORY_LIMIT, "peak memory is {peak} kB; the limit is {MEMORY_LIMIT} kB");
}

/// Result of `operators::call`; `None` if the call panics.
fn called(schema: &Schema, draw: &mut Draw<'_>) -> Option<Option<usize>> {
    static HOOKED: Once = Once::new();
    HOOKED.call_once(|| {
        let report = take_hook();
        set_hook(Box::new(move |panic| {
            PANICKED.store(true, Ordering::Relaxed);
            report(panic);
        }));
    });
    let outcome = catch_unwind(AssertUnwindSafe(|| operators::call(schema, draw)));
    let panicked = PANICKED.swap(false, Ordering::Relaxed);
    outcome.ok().filter(|_| !panicked)
}

/// The seeds include all inputs for which the fuzz target once failed.
#[test]
fn fuzz_seeds_do_not_panic() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/operators");
    let all = operators::operators();
    let mut count = 0;
    for entry in std::fs::read_dir(folder).expect("the seeds") {
        let path = entry.expect("an entry").path();
        let data = std::fs::read(&path).expect("a seed");
        let mut draw = Draw::new(&data, data.len() as u64);
        let schema = &all[operators::chosen(&mut draw, all.len())];
        let outcome = called(schema, &mut draw);
        assert!(outcome.is_some(), "{}: `{}` panics", path.display(), schema.name);
        count += 1;
    }
    assert!(count > 10, "{count} seeds");
    assert_memory_within_limit();
}

/// Each operator with a schema has a call that reaches its lowering, or is refused because it writes to its arguments.
#[test]
fn generated_calls_reach_every_operator_lowering() {
    let unreached = |(index, schema): (usize, &Schema)| {
        let mut reason = String::new();
        let reached = (0..TRIES).any(|call| {
            let seed = ((index as u64) << 20 | call).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let reached = operators::reach(schema, &mut Draw::new(&[], seed));
            reached.map_err(|error| reason = error.to_string()).is_ok()
        });
        (!reached).then(|| format!("{}: {reason}", schema.name))
    };
    let unreached: Vec<_> =
        operators::operators().iter().enumerate().filter_map(unreached).collect();
    assert!(
        unreached.is_empty(),
        "{} operators are not reached:\n{}",
        unreached.len(),
        unreached.join("\n")
    );
}

#[test]
fn random_operator_calls_do_not_panic_or_hang() {
    let setting = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (calls, seed) = (setting("COREMILL_CALLS"), setting("COREMILL_SEED").unwrap_or(0));
    let seconds = setting("COREMILL_SECONDS");
    let only = std::env::var("COREMILL_OPERATOR").unwrap_or_default();
    let begun = Instant::now();
    let is_over = || seconds.is_some_and(|seconds| begun.elapsed().as_secs() >= seconds);
    let rounds = if seconds.is_some() { u64::MAX } else { calls.unwrap_or(1) };
    let all = operators::operators();
    let chosen = |(index, schema): &(usize, &Schema)| {
        let calls_all = calls.is_some() || seconds.is_some();
        schema.name.contains(&only) && (calls_all || index % SAMPLED == 0)
    };
    let chosen: Vec<_> = all.iter().enumerate().filter(chosen).collect();
    let (mut reached, mut read, mut lowered, mut broken) =
        (vec![false; all.len()], 0, 0, Vec::new());
    for call in (0..rounds).take_while(|_| !is_over()) {
        for (index, schema) in &chosen {
            if is_over() {
                break;
            }
            let seed =
                (seed << 40 | (*index as u64) << 20 | call).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let start = Instant::now();
            match called(schema, &mut Draw::new(&[], seed)) {
                Some(outcome) => {
                    reached[*index] |= outcome.is_some();
                    read += usize::from(outcome.is_some());
                    lowered += usize::from(outcome.is_some_and(|ways| ways > 0));
                }
                None => broken.push(format!("{} panics (call {call})", schema.name)),
            }
            if start.elapsed() > TIME_LIMIT {
                broken.push(format!("{} takes {:?} (call {call})", schema.name, start.elapsed()));
            }
        }
    }
    let count = reached.iter().filter(|reached| **reached).count();
    println!("{read} calls of {count} of {} operators were read, {lowered} lowered", all.len());
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    assert_memory_within_limit();
    // The test is useful only if enough calls reach the lowering.
    assert!(!only.is_empty() || read > 400 && lowered > 50, "{read} were read, {lowered} lowered");
}
