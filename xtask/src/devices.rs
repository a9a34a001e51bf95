//! `cargo xtask devices`: the tables of docs/devices.md, from what `coremill-device` knows.

use std::fmt::Write as _;
use std::fs;

use coremill_device::{CHIPS, COSTS, Family, HAZARDS, LIMITS, OPERATIONS, SOURCES, SupportRow};

use crate::workspace::{describe, root};

const PAGE: &str = "docs/devices.md";
const BEGIN: &str = "<!-- tables -->\n";
const END: &str = "<!-- end of tables -->";

/// Arguments of the command.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Write nothing; fail if the page is out of date
    #[arg(long)]
    check: bool,
}

/// Writes or checks the tables.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let path = root().join(PAGE);
    let page = fs::read_to_string(&path).map_err(|error| describe("read", &path, &error))?;
    let wanted = with_tables(&page)?;
    if page == wanted {
        println!("{PAGE} is up to date");
        return Ok(());
    }
    if arguments.check {
        return Err(format!("{PAGE} is out of date; run `cargo xtask devices`"));
    }
    fs::write(&path, wanted).map_err(|error| describe("write", &path, &error))?;
    println!("changed: {PAGE}");
    Ok(())
}

/// The page with the tables as they should be.
fn with_tables(page: &str) -> Result<String, String> {
    let parts =
        page.split_once(BEGIN).and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    let (before, after) = parts.ok_or_else(|| format!("{PAGE} lacks the marks of its tables"))?;
    Ok(format!("{before}{BEGIN}\n{}\n{END}{after}", tables().trim_end()))
}

fn tables() -> String {
    let mut text = String::new();
    let mut table = |title: &str, columns: &[&str], rows: Vec<Vec<String>>| {
        let _ = writeln!(text, "## {title}\n\n| {} |", columns.join(" | "));
        let _ = writeln!(text, "|{}", "---|".repeat(columns.len()));
        for row in rows {
            let cells: Vec<_> = row.iter().map(|cell| cell.replace('|', "\\|")).collect();
            let _ = writeln!(text, "| {} |", cells.join(" | "));
        }
        text.push('\n');
    };
    let rows = SOURCES
        .iter()
        .map(|row| [row.name, row.about, row.access, row.date].map(str::to_owned).to_vec());
    table("Sources", &["source", "devices", "access", "date"], rows.collect());
    let chips = CHIPS.iter().map(|chip| {
        let devices = match (chip.family, chip.devices) {
            (Family::M, _) => "Macs and iPads".to_owned(),
            (Family::A, devices) => devices.join(", "),
        };
        vec![chip.name.to_owned(), devices]
    });
    table("Chips", &["chip", "devices, as accepted by `--device`"], chips.collect());
    let engines = |row: &SupportRow| {
        let since = row.support.neural_engine.map_or("none".to_owned(), |since| since.to_string());
        [if row.support.gpu { "yes" } else { "no" }.to_owned(), since]
    };
    let operations = OPERATIONS.iter().map(|row| {
        let names: Vec<_> = row.operations.iter().map(|name| format!("`{name}`")).collect();
        let [gpu, since] = engines(row);
        let texts = [row.advice, row.note, row.source.row().name].map(str::to_owned);
        [vec![names.join(" "), gpu, since], texts.to_vec()].concat()
    });
    table(
        "Operations that some engines do not run",
        &["operations", "GPU", "Neural Engine from", "instead", "note", "source"],
        operations.collect(),
    );
    let limits = LIMITS.iter().map(|row| {
        let most = row.most.to_string();
        vec![row.what.to_owned(), row.since.to_string(), most, row.source.row().name.to_owned()]
    });
    table("Limits of the Neural Engine", &["what", "from", "most", "source"], limits.collect());
    let hazards = HAZARDS.iter().map(|hazard| {
        let sources: Vec<_> = hazard.sources.iter().map(|source| source.row().name).collect();
        vec![
            format!("[`{}`](check.md)", hazard.code),
            hazard.engine_names(),
            hazard.chips(),
            hazard.releases.to_owned(),
            hazard.confidence.to_string(),
            sources.join("; "),
        ]
    });
    table(
        "Evidence for the warnings of `check`",
        &["warning", "engines", "chips", "releases", "confidence", "sources"],
        hazards.collect(),
    );
    let costs = COSTS.iter().map(|row| {
        let times = [row.neural_engine, row.cpu]
            .map(|cost| format!("{} + {} + {}", cost.fixed, cost.per_million, cost.per_megabyte));
        [vec![row.what.to_owned()], times.to_vec(), vec![row.published.to_owned()]].concat()
    });
    table(
        "Estimated times in µs: per operation + per million FLOP + per million bytes",
        &["operations", "Neural Engine", "CPU", "published for M4 (Neural Engine / CPU)"],
        costs.collect(),
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_page_is_up_to_date() {
        let page = fs::read_to_string(root().join(PAGE)).expect("the page is there");
        assert!(with_tables(&page) == Ok(page), "{PAGE} is out of date; run `cargo xtask devices`");
    }
}
