//! Profiles of runs.

use std::time::{Duration, Instant};

/// A step of a run: an operator, a delegate, or fused operations of a model.
#[derive(Clone, Debug)]
pub struct Span {
    /// The operator, backend or operations.
    pub label: String,
    /// The first computed value.
    pub value: String,
    /// The start time.
    pub start: Instant,
    /// The duration.
    pub elapsed: Duration,
    /// Floating-point operations, a multiply-add counted as two; 0 if unknown.
    pub operations: u64,
    /// Bytes read and written; 0 if unknown.
    pub bytes: u64,
    /// Whether the time includes the times of preceding steps, because this step is a delegate, a branch or a
    /// loop.
    pub nested: bool,
}

/// Duration of each step without its nested steps. A step follows its nested steps.
pub fn self_times(spans: &[Span]) -> Vec<Duration> {
    let mut own = Vec::with_capacity(spans.len());
    // Steps that are not nested in another step so far.
    let mut open: Vec<&Span> = Vec::new();
    for span in spans {
        let mut within = Duration::ZERO;
        while span.nested
            && let Some(inner) = open.pop_if(|inner| inner.start >= span.start)
        {
            within += inner.elapsed;
        }
        own.push(span.elapsed.saturating_sub(within));
        open.push(span);
    }
    own
}
