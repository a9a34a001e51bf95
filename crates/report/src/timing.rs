//! Duration of operations.

use std::time::Duration;

use coremill_runtime::{Span, self_times};

use crate::Report;
use crate::data::{SpanRow, Timing};

impl Report {
    /// Adds the profile of a run of a function or method, whose model was added before. `place`
    /// describes the device.
    pub fn add_timing(&mut self, spans: &[Span], function: &str, place: impl Into<String>) {
        let first = spans.iter().map(|span| span.start).min();
        let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
        let own = self_times(spans);
        let mut timing = Timing { where_: place.into(), ..Timing::default() };
        for (span, own) in spans.iter().zip(own) {
            let since = first.map_or(Duration::ZERO, |first| span.start - first);
            timing.total += milliseconds(own);
            timing.spans.push(SpanRow {
                label: span.label.clone(),
                value: span.value.clone(),
                start: milliseconds(since),
                own: milliseconds(own),
                elapsed: milliseconds(span.elapsed),
                place: self.find(&span.value, Some(function)),
            });
        }
        self.data.timing = Some(timing);
    }
}
