//! Profile of a run.

use std::collections::HashMap;
use std::time::Duration;

use coremill_tensor::{Span, self_times};
use serde::Serialize;
use serde_json::json;

use crate::output::{Cell, FAINT, Failure, OutputPath, STRONG, Table, paint};

/// Width of the longest possible bar.
const BAR_WIDTH: usize = 24;

/// Duration of one kind of operation in one run.
#[derive(Serialize)]
pub(super) struct Row {
    label: String,
    calls: usize,
    milliseconds: f64,
    /// Share of the total duration.
    share: f64,
    /// Billions of floating-point operations per second, `None` if not counted.
    gflops: Option<f64>,
    /// Billions of bytes read and written per second.
    gigabytes_per_second: Option<f64>,
}

/// Totals for each kind of operation, slowest first.
pub(super) fn summarize(runs: &[Vec<Span>]) -> Vec<Row> {
    #[derive(Default)]
    struct Sum {
        calls: usize,
        time: Duration,
        operations: u64,
        bytes: u64,
    }
    let mut sums: HashMap<&str, Sum> = HashMap::new();
    for spans in runs {
        for (span, own) in spans.iter().zip(self_times(spans)) {
            let sum = sums.entry(&span.label).or_default();
            sum.calls += 1;
            sum.time += own;
            sum.operations += span.operations;
            sum.bytes += span.bytes;
        }
    }
    let total: Duration = sums.values().map(|sum| sum.time).sum();
    let runs = runs.len().max(1);
    let rate = |count: u64, time: Duration| {
        (count > 0 && !time.is_zero()).then(|| count as f64 / time.as_secs_f64() / 1e9)
    };
    let rows = sums.into_iter().map(|(label, sum)| Row {
        label: label.to_owned(),
        calls: sum.calls / runs,
        milliseconds: sum.time.as_secs_f64() * 1e3 / runs as f64,
        share: sum.time.as_secs_f64() / total.as_secs_f64().max(f64::MIN_POSITIVE),
        gflops: rate(sum.operations, sum.time),
        gigabytes_per_second: rate(sum.bytes, sum.time),
    });
    let mut rows: Vec<Row> = rows.collect();
    rows.sort_by(|x, y| y.share.total_cmp(&x.share).then_with(|| x.label.cmp(&y.label)));
    rows
}

/// The totals as a table.
pub(super) fn render(rows: &[Row]) -> String {
    let mut table = Table::new(2);
    let rate =
        |value: Option<f64>| Cell::number(value.map_or_else(String::new, |v| format!("{v:.1}")));
    let heads = ["", "calls", "ms", "share"].into_iter().enumerate();
    let heads = heads
        .map(|(index, title)| if index == 0 { Cell::text(title) } else { Cell::number(title) });
    let more = [Cell::text(""), Cell::number("GFLOP/s"), Cell::number("GB/s")];
    table.row(heads.chain(more).map(|cell| cell.style(FAINT)));
    for row in rows {
        table.row([
            Cell::name(&row.label).style(STRONG),
            Cell::number(row.calls).minor(),
            Cell::number(format!("{:.3}", row.milliseconds)),
            Cell::number(format!("{:.1} %", row.share * 100.0)),
            Cell::bar(row.share, BAR_WIDTH),
            rate(row.gflops).minor(),
            rate(row.gigabytes_per_second).minor(),
        ]);
    }
    let total: f64 = rows.iter().map(|row| row.milliseconds).sum();
    let calls: usize = rows.iter().map(|row| row.calls).sum();
    let note = paint(FAINT, format!("{calls} steps, {total:.3} ms a run"));
    format!("{}  {note}\n{}", paint(STRONG, "profile"), table.render())
}

/// Writes a profile in Chrome's trace format: complete events, in microseconds.
pub(super) fn write_trace(path: &OutputPath, spans: &[Span]) -> Result<(), Failure> {
    let first = spans.iter().map(|span| span.start).min();
    let events = spans.iter().map(|span| {
        let since = first.map_or(Duration::ZERO, |first| span.start - first);
        json!({
            "name": span.label,
            "cat": if span.nested { "block" } else { "operation" },
            "ph": "X",
            "ts": since.as_secs_f64() * 1e6,
            "dur": span.elapsed.as_secs_f64() * 1e6,
            "pid": 1,
            "tid": 1,
            "args": { "value": span.value, "operations": span.operations, "bytes": span.bytes },
        })
    });
    let trace = json!({ "traceEvents": events.collect::<Vec<_>>(), "displayTimeUnit": "ms" });
    let text = serde_json::to_string(&trace).map_err(Failure::internal)?;
    path.write(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn span(label: &str, base: Instant, start: u64, elapsed: u64, nested: bool) -> Span {
        Span {
            label: label.to_owned(),
            value: String::new(),
            start: base + Duration::from_millis(start),
            elapsed: Duration::from_millis(elapsed),
            operations: if nested { 0 } else { 2_000_000_000 },
            bytes: 0,
            nested,
        }
    }

    #[test]
    fn nested_span_time_is_not_double_counted() {
        let base = Instant::now();
        let spans = vec![
            span("add", base, 0, 10, false),
            span("mul", base, 20, 30, false),
            span("cond", base, 19, 32, true),
            span("mul", base, 60, 5, false),
            span("while_loop", base, 15, 60, true),
        ];
        let rows = summarize(&[spans]);
        let found: Vec<_> =
            rows.iter().map(|row| (&*row.label, row.calls, row.milliseconds.round())).collect();
        assert_eq!(
            found,
            [("mul", 2, 35.0), ("while_loop", 1, 23.0), ("add", 1, 10.0), ("cond", 1, 2.0)]
        );
        assert!((rows.iter().map(|row| row.share).sum::<f64>() - 1.0).abs() < 1e-9);
        assert_eq!(rows[2].gflops.map(f64::round), Some(200.0));
        assert_eq!(rows[1].gflops, None);
    }
}
