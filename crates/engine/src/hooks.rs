use std::time::{Duration, Instant};

use crate::value::Value;

/// Who is shown the operation, the name and the value of everything that is computed.
pub type Observer<'h> = &'h mut dyn FnMut(&str, &str, &Value);

/// What looks on while a program runs.
#[derive(Default)]
pub struct Hooks<'h> {
    /// Called with the operation, the name and the value of everything that is computed, in order. The
    /// program runs operation by operation then, so that every value comes about as the program has it.
    pub observe: Option<Observer<'h>>,
    /// Collects how long each step takes.
    pub profile: Option<&'h mut Vec<Span>>,
}

/// One step of a run.
#[derive(Clone, Debug)]
pub struct Span {
    /// What was done: an operation, or several that became one step.
    pub label: String,
    /// The first value that came about.
    pub value: String,
    /// When it began.
    pub start: Instant,
    /// How long it took.
    pub elapsed: Duration,
    /// Floating-point operations, a multiply-add counted as two; 0 where nobody counts them.
    pub operations: u64,
    /// Bytes read and written; 0 where nobody counts them.
    pub bytes: u64,
    /// Whether the time holds that of other steps: of a branch or a loop.
    pub nested: bool,
}
