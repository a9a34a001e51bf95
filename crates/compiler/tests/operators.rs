//! Calls of every operator of torch's, with arguments that are right, wrong, and absurd: each is lowered or refused, and
//! none takes long. The fuzz target `operators` makes more of them.

#[path = "../../../fuzz/src/draw.rs"]
mod draw;
#[path = "../../../fuzz/src/operators.rs"]
mod operators;

use std::panic::catch_unwind;
use std::time::{Duration, Instant};

use draw::Draw;

/// Without `COREMILL_CALLS`, which says how many calls are made of each operator, one in so many operators is called once.
const SAMPLED: usize = 6;
/// Far more than any call takes.
const PATIENCE: Duration = Duration::from_secs(180);

#[test]
fn every_operator_is_lowered_or_refused() {
    let setting = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (calls, seed) = (setting("COREMILL_CALLS"), setting("COREMILL_SEED").unwrap_or(0));
    let only = std::env::var("COREMILL_OPERATOR").unwrap_or_default();
    let (mut read, mut lowered, mut broken) = (0, 0, Vec::new());
    for (index, schema) in operators::operators().iter().enumerate() {
        if !schema.name.contains(&only) || calls.is_none() && index % SAMPLED != 0 {
            continue;
        }
        for call in 0..calls.unwrap_or(1) {
            let seed =
                (seed << 40 | (index as u64) << 20 | call).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let start = Instant::now();
            match catch_unwind(|| operators::call(schema, &mut Draw::new(&[], seed))) {
                Ok(outcome) => {
                    read += usize::from(outcome.is_some());
                    lowered += usize::from(outcome.is_some_and(|ways| ways > 0));
                }
                Err(_) => broken.push(format!("{} panics (call {call})", schema.name)),
            }
            if start.elapsed() > PATIENCE {
                broken.push(format!("{} takes {:?} (call {call})", schema.name, start.elapsed()));
            }
        }
    }
    println!("{read} calls were read, {lowered} of them lowered");
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    // Calls that are refused at once would show nothing.
    assert!(!only.is_empty() || read > 400 && lowered > 50, "{read} were read, {lowered} lowered");
}
