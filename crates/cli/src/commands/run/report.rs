//! Report of a run: text and JSON.

use std::time::Duration;

use coremill_engine::Numerics;
use coremill_simd::Isa;
use serde::Serialize;

use super::outputs::OutputSummary;
use super::{Args, Done, Times, outputs, profile};
use crate::commands::loaded::{DeviceArg, LoadedFunction};
use crate::output::{Cell, FAINT, Failure, STRONG, Table, paint};

/// Report of a run. The JSON form is stable: for the same `format_version`, fields are only added.
#[derive(Serialize)]
pub(super) struct Report {
    format_version: u32,
    model: String,
    function: String,
    device: DeviceArg,
    /// Deprecated name of `numerics`.
    precision: &'static str,
    numerics: &'static str,
    threads: usize,
    instructions: String,
    load_milliseconds: f64,
    first_run_milliseconds: f64,
    repeat: Option<Repeat>,
    /// Runs of `--batch`.
    #[serde(skip_serializing_if = "Option::is_none")]
    batch: Option<Batch>,
    /// Outputs of each step.
    outputs: Vec<Vec<OutputSummary>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    profile: Vec<profile::Row>,
}

/// Runs of independent inputs.
#[derive(Serialize)]
pub(super) struct Batch {
    /// The files in the order of the outputs.
    pub(super) inputs: Vec<String>,
    /// Number of sessions that ran at a time.
    pub(super) sessions: usize,
    pub(super) milliseconds: f64,
    pub(super) runs_per_second: f64,
}

/// Durations of repeated runs.
#[derive(Serialize)]
struct Repeat {
    runs: usize,
    min_milliseconds: f64,
    median_milliseconds: f64,
    p95_milliseconds: f64,
}

impl Report {
    pub(super) fn new(
        args: &Args,
        loaded: &LoadedFunction,
        Done { results, times, spans, .. }: &Done,
    ) -> Report {
        let profile = if args.profile { profile::summarize(spans) } else { Vec::new() };
        let outputs = results.iter().map(outputs::summarize).collect();
        Report { profile, ..Report::of(args, loaded, times, outputs) }
    }

    /// The report of a batch.
    pub(super) fn of_batch(
        args: &Args,
        loaded: &LoadedFunction,
        times: &Times,
        outputs: Vec<Vec<OutputSummary>>,
        batch: Batch,
    ) -> Report {
        Report { batch: Some(batch), ..Report::of(args, loaded, times, outputs) }
    }

    fn of(
        args: &Args,
        loaded: &LoadedFunction,
        times: &Times,
        outputs: Vec<Vec<OutputSummary>>,
    ) -> Report {
        Report {
            format_version: 1,
            model: args.model.display().to_string(),
            function: loaded.function.clone(),
            device: args.device,
            precision: match loaded.numerics {
                Numerics::Fast => "fast",
                // The older name of `rounded`; what came later has one name.
                Numerics::Rounded => "faithful",
                Numerics::Ane | Numerics::CoremlCpu => loaded.numerics.name(),
            },
            numerics: loaded.numerics.name(),
            threads: match args.threads {
                0 => std::thread::available_parallelism().map_or(1, usize::from),
                threads => threads,
            },
            instructions: Isa::detect().to_string(),
            load_milliseconds: milliseconds(times.load),
            first_run_milliseconds: milliseconds(times.first),
            repeat: repeat(&times.repeats),
            batch: None,
            outputs,
            profile: Vec::new(),
        }
    }

    pub(super) fn text(&self, args: &Args) -> Result<String, Failure> {
        if args.json {
            let text = serde_json::to_string_pretty(self).map_err(Failure::internal)?;
            return Ok(text + "\n");
        }
        let mut text = String::new();
        if args.output.is_none() {
            for (step, outputs) in self.outputs.iter().enumerate() {
                let title = match (&self.batch, self.outputs.len()) {
                    (Some(batch), _) => batch.inputs[step].clone(),
                    (None, 1) => "outputs".to_owned(),
                    (None, _) => format!("outputs of step {step}"),
                };
                text += &format!("{}\n{}", paint(STRONG, title), outputs::render(outputs));
            }
        }
        if let Some(batch) = &self.batch {
            text += &batch.text(&self.instructions, self.numerics);
        }
        if let Some(repeat) = &self.repeat {
            text += &self.times(repeat);
        }
        if args.profile {
            text += &profile::render(&self.profile);
        }
        Ok(text)
    }

    fn times(&self, repeat: &Repeat) -> String {
        let mut table = Table::new(2);
        let mut row = |name: &str, milliseconds: f64| {
            table.row([Cell::text(name), Cell::number(format!("{milliseconds:.3} ms"))]);
        };
        row("load", self.load_milliseconds);
        row("first run", self.first_run_milliseconds);
        row("min", repeat.min_milliseconds);
        row("median", repeat.median_milliseconds);
        row("p95", repeat.p95_milliseconds);
        let threads = if self.threads == 1 { "thread" } else { "threads" };
        let note = format!(
            "{} runs, {} {threads}, {}, {}",
            repeat.runs, self.threads, self.instructions, self.numerics
        );
        format!("{}  {}\n{}", paint(STRONG, "time"), paint(FAINT, note), table.render())
    }
}

impl Batch {
    fn text(&self, instructions: &str, numerics: &str) -> String {
        let (runs, sessions) = (self.inputs.len(), self.sessions);
        let runs = format!("{runs} run{}", if runs == 1 { "" } else { "s" });
        let sessions = format!("{sessions} session{}", if sessions == 1 { "" } else { "s" });
        let note = format!("{runs} in {sessions}, {instructions}, {numerics}");
        format!("{:.2} runs per second  {}\n", self.runs_per_second, paint(FAINT, note))
    }
}

fn repeat(times: &[Duration]) -> Option<Repeat> {
    let mut sorted = times.to_vec();
    sorted.sort();
    let min = *sorted.first()?;
    let middle = sorted.len() / 2;
    let median = match sorted.len() % 2 {
        0 => (sorted[middle - 1] + sorted[middle]) / 2,
        _ => sorted[middle],
    };
    // Nearest rank: the smallest duration that 95 % of the runs do not exceed.
    let p95 = sorted[(sorted.len() * 95).div_ceil(100) - 1];
    Some(Repeat {
        runs: sorted.len(),
        min_milliseconds: milliseconds(min),
        median_milliseconds: milliseconds(median),
        p95_milliseconds: milliseconds(p95),
    })
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeat_reports_min_median_and_p95() {
        let times: Vec<_> = (1..=20).rev().map(Duration::from_millis).collect();
        let repeat = repeat(&times).expect("20 runs");
        assert_eq!(repeat.min_milliseconds, 1.0);
        assert_eq!(repeat.median_milliseconds, 10.5);
        assert_eq!(repeat.p95_milliseconds, 19.0);
        assert!(super::repeat(&[]).is_none());
        let one = super::repeat(&times[..1]).expect("one run");
        assert_eq!((one.median_milliseconds, one.p95_milliseconds), (20.0, 20.0));
    }
}
