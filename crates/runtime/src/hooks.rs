use std::time::{Duration, Instant};

/// The operation with which [`Hooks::observe`] is shown what a model is given.
pub const INPUT: &str = "input";

/// What looks on while a method runs.
#[derive(Default)]
pub struct Hooks<'h> {
    /// Collects how long each instruction takes, and each operation within what was delegated.
    pub profile: Option<&'h mut Vec<Span>>,
    /// Called with the operation, the name and the value of everything that is computed in models, in order, and
    /// with their inputs before that, whose operation is [`INPUT`].
    #[cfg(feature = "host")]
    pub observe: Option<coremill_engine::Observer<'h>>,
}

/// One step of a run.
#[derive(Clone, Debug)]
pub struct Span {
    /// What was done: an operator, a backend, or operations of a model.
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
    /// Whether the time holds that of other steps, which come before it: of what was delegated, a branch or a loop.
    pub nested: bool,
}

#[cfg(feature = "host")]
impl From<coremill_engine::Span> for Span {
    fn from(span: coremill_engine::Span) -> Span {
        let coremill_engine::Span { label, value, start, elapsed, operations, bytes, nested } =
            span;
        Span { label, value, start, elapsed, operations, bytes, nested }
    }
}

/// How long each step took without the steps inside it. A step that holds others comes after them.
pub fn own_times(spans: &[Span]) -> Vec<Duration> {
    let mut own = Vec::with_capacity(spans.len());
    // Steps that no other step holds so far.
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
