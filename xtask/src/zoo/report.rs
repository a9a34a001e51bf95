//! The table, its totals, and the same data as JSON.

use std::process::ExitStatus;

use serde::Serialize;
use serde_json::json;

use super::{Arguments, Export, Row};

/// Version of the JSON.
const VERSION: u32 = 1;
/// Maximum length of a reason in a line of the table.
const ROOM: usize = 96;

pub(super) const HEADER: &str =
    "model                          family                 ms   ops  peer    error  outcome";

/// Formats the line of a program.
pub(super) fn line(row: &Row) -> String {
    let number = |value: Option<u64>| value.map_or_else(|| "-".to_owned(), |one| one.to_string());
    let error = row.error.map_or_else(|| "-".to_owned(), |error| format!("{error:.1e}"));
    let peer = match (&row.peer_failed, row.peer_operations) {
        (Some(_), _) => "fails".to_owned(),
        (None, operations) => number(operations),
    };
    let outcome = match (&row.refused, row.faults.first(), &row.excuse) {
        (Some(reason), _, _) => format!("refused: {reason}"),
        (None, Some(fault), _) => format!("FAULT: {fault}"),
        (None, None, _) if more(row) => match &row.longer {
            Some(reason) => format!("ok, although longer: {reason}"),
            None => "more operations than the peer".to_owned(),
        },
        (None, None, Some(excuse)) => format!("ok: {excuse}"),
        (None, None, None) => "ok".to_owned(),
    };
    let outcome: String = outcome.chars().take(ROOM).collect();
    format!(
        "{:<30} {:<17} {:>7.1} {:>5} {:>5} {error:>8}  {outcome}",
        row.model,
        row.family,
        row.milliseconds,
        number(row.operations),
        peer
    )
}

/// Whether the package has more operations than coremltools' package.
fn more(row: &Row) -> bool {
    matches!((row.operations, row.peer_operations), (Some(ours), Some(theirs)) if ours > theirs)
}

/// Totals over all programs.
#[derive(Serialize)]
pub(super) struct Totals {
    programs: usize,
    pub(super) converted: usize,
    /// Number of packages that coremltools rejects, that compute different results, or that have unnecessary
    /// operations.
    pub(super) faulty: usize,
    peer_asked: usize,
    peer_converted: usize,
    /// Number of programs that both convert.
    compared: usize,
    /// Number of these with more operations than coremltools, with and without a known reason.
    more_operations: usize,
    /// Number of these with more operations for no known reason.
    needless_operations: usize,
    /// Number of packages with a larger permitted error.
    excused: usize,
    operations: u64,
    peer_operations: u64,
    /// Median of coremltools' time divided by coremill's time, with one run of each on different days.
    speedup: Option<f64>,
}

impl Totals {
    pub(super) fn of(rows: &[Row]) -> Totals {
        let count = |holds: &dyn Fn(&Row) -> bool| rows.iter().filter(|row| holds(row)).count();
        let both: Vec<(u64, u64)> =
            rows.iter().filter_map(|row| Some((row.operations?, row.peer_operations?))).collect();
        let mut ratios: Vec<f64> = rows
            .iter()
            .filter(|row| row.refused.is_none())
            .filter_map(|row| Some(row.peer_seconds? * 1e3 / row.milliseconds))
            .collect();
        ratios.sort_by(f64::total_cmp);
        Totals {
            programs: rows.len(),
            converted: count(&|row| row.refused.is_none()),
            faulty: count(&|row| !row.faults.is_empty()),
            peer_asked: count(&|row| row.peer_failed.is_some() || row.peer_seconds.is_some()),
            peer_converted: count(&|row| row.peer_seconds.is_some()),
            compared: both.len(),
            more_operations: count(&more),
            needless_operations: count(&|row| more(row) && row.longer.is_none()),
            excused: count(&|row| row.faults.is_empty() && row.excuse.is_some()),
            operations: both.iter().map(|(ours, _)| ours).sum(),
            peer_operations: both.iter().map(|(_, theirs)| theirs).sum(),
            speedup: ratios.get(ratios.len() / 2).copied(),
        }
    }
}

/// Prints the lists below the table, and the totals.
pub(super) fn print_end(rows: &[Row], totals: &Totals, impossible: &[Export]) {
    let list = |title: &str, lines: Vec<String>| {
        if !lines.is_empty() {
            println!("\n{title}:");
            lines.iter().for_each(|line| println!("  {line}"));
        }
    };
    let refusals =
        rows.iter().filter_map(|row| Some(format!("{}: {}", row.model, row.refused.as_ref()?)));
    list("refused", refusals.collect());
    let faults = rows.iter().filter(|row| !row.faults.is_empty());
    list("faulty", faults.map(|row| format!("{}: {}", row.model, row.faults.join("; "))).collect());
    let excused = rows.iter().filter(|row| row.faults.is_empty()).filter_map(|row| {
        Some(format!("{}: {:.1e}; {}", row.model, row.error?, row.excuse.as_ref()?))
    });
    list("less accurate than others, for a known reason", excused.collect());
    let longer = rows.iter().filter(|row| more(row)).filter_map(|row| {
        let reason = row.longer.as_deref().unwrap_or("unknown reason");
        let (ours, theirs) = (row.operations?, row.peer_operations?);
        Some(format!("{}: {ours} against {theirs}; {reason}", row.model))
    });
    list("more operations than coremltools", longer.collect());
    let unexported = impossible
        .iter()
        .filter_map(|export| Some(format!("{}: {}", export.name, export.failed.as_ref()?)));
    list("not exported by torch", unexported.collect());
    println!(
        "\n{} of {} converted, {} faulty; coremltools converts {} of {}",
        totals.converted, totals.programs, totals.faulty, totals.peer_converted, totals.peer_asked
    );
    if totals.compared > 0 {
        println!(
            "operations where both convert ({} programs): {} against {}; more than the peer's in {}, \
             in {} of them for unknown reasons",
            totals.compared,
            totals.operations,
            totals.peer_operations,
            totals.more_operations,
            totals.needless_operations
        );
    }
    if let Some(speedup) = totals.speedup {
        println!(
            "coremltools takes {speedup:.0} times as long (median; not measured side by side)"
        );
    }
}

/// Formats everything as JSON.
pub(super) fn json(
    arguments: &Arguments,
    rows: &[Row],
    totals: &Totals,
    impossible: &[Export],
) -> Result<String, String> {
    let unexported: Vec<_> = impossible
        .iter()
        .map(|export| json!({ "model": export.name, "family": export.family, "reason": export.failed }))
        .collect();
    let report = json!({
        "version": VERSION,
        "target": arguments.target,
        "precision": arguments.precision,
        "models": rows,
        "not_exported": unexported,
        "totals": totals,
    });
    serde_json::to_string_pretty(&report).map_err(|error| error.to_string())
}

/// Summarizes a failure: each distinct error once, without the final count.
pub(super) fn reason(text: &str, status: ExitStatus) -> String {
    let mut errors: Vec<&str> = Vec::new();
    for line in text.lines().filter(|line| line.starts_with("error")) {
        let said = line.split_once(": ").map_or(line, |(_, said)| said);
        if !errors.contains(&said) {
            errors.push(said);
        }
    }
    match (errors.as_slice(), text.lines().find(|line| !line.trim().is_empty())) {
        ([], Some(line)) => format!("{status}: {line}"),
        ([], None) => format!("{status}, without output"),
        ([only], _) => (*only).to_owned(),
        ([reasons @ .., _], _) => reasons.join("; "),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn row(operations: Option<u64>, peer: Option<u64>, refused: Option<&str>) -> Row {
        Row {
            model: "net".to_owned(),
            family: "vision".to_owned(),
            notes: String::new(),
            refused: refused.map(str::to_owned),
            milliseconds: 2.0,
            operations,
            error: None,
            excuse: None,
            faults: Vec::new(),
            peer_operations: peer,
            longer: None,
            peer_seconds: peer.map(|_| 1.0),
            peer_failed: None,
        }
    }

    #[test]
    fn totals_compare_models_both_converted() {
        let rows = [
            row(Some(10), Some(12), None),
            row(Some(9), Some(8), None),
            row(Some(5), None, None),
            row(None, Some(4), Some("no")),
        ];
        let totals = Totals::of(&rows);
        assert_eq!((totals.programs, totals.converted), (4, 3));
        assert_eq!(
            (totals.compared, totals.more_operations, totals.needless_operations),
            (2, 1, 1)
        );
        assert_eq!((totals.operations, totals.peer_operations), (19, 20));
        assert_eq!(totals.speedup, Some(500.0));
    }

    #[test]
    fn lines_show_reasons_for_exceptions() {
        let mut longer = row(Some(9), Some(8), None);
        assert!(line(&longer).ends_with("more operations than the peer"));
        longer.longer = Some("it is safer".to_owned());
        assert!(line(&longer).ends_with("ok, although longer: it is safer"));
        let totals = Totals::of(&[longer]);
        assert_eq!((totals.more_operations, totals.needless_operations), (1, 0));
        let mut rough = row(Some(8), Some(8), None);
        rough.excuse = Some("so is torch".to_owned());
        assert!(line(&rough).ends_with("ok: so is torch"));
        rough.faults.push("wrong".to_owned());
        assert!(line(&rough).ends_with("FAULT: wrong"));
    }

    #[test]
    fn reason_summarizes_error_output() -> Result<(), std::io::Error> {
        let status = Command::new("false").status()?;
        let text = "error: `aten.x`: no lowering (2 calls)\n --> m.py:1\n\nerror: m.pt2: 2 calls cannot be lowered\n";
        assert_eq!(reason(text, status), "`aten.x`: no lowering (2 calls)");
        assert_eq!(reason("error: m.pt2: it is cut short\n", status), "m.pt2: it is cut short");
        assert!(reason("thread panicked\n", status).ends_with("thread panicked"));
        assert!(reason("", status).contains("without output"));
        Ok(())
    }
}
