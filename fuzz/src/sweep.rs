//! Runs a check on consecutive random programs: a fixed number of them, or as many as `COREMILL_SECONDS` allow.
//! `COREMILL_FIRST` is the index of the first one, to repeat a failure.

use std::panic::catch_unwind;
use std::time::Instant;

use crate::compare;
use crate::draw::Draw;

/// The outcomes of the programs that pass; panics with the messages of all failures.
pub(crate) fn sweep<O>(count: u64, check: fn(&mut Draw<'_>) -> O) -> Vec<O> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let (first, seconds) = (number("COREMILL_FIRST").unwrap_or(0), number("COREMILL_SECONDS"));
    let start = Instant::now();
    let more = |made: u64| match seconds {
        Some(seconds) => start.elapsed().as_secs() < seconds,
        None => made < count,
    };
    let (mut outcomes, mut broken) = (Vec::new(), Vec::new());
    for program in (first..).take_while(|program| more(program - first)) {
        let seed = (program + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        match catch_unwind(|| check(&mut Draw::new(&[], seed))) {
            Ok(outcome) => outcomes.push(outcome),
            Err(cause) => broken.push(format!("program {program}: {}", compare::message(&*cause))),
        }
    }
    assert!(broken.is_empty(), "{} programs break:\n{}", broken.len(), broken.join("\n\n"));
    outcomes
}
