use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use coremill::quantity;
use coremill_cache::{DamagedEntry, EntryInfo, Error, Key, Options, Store};
use serde::Serialize;

use crate::output::{self, Cell, FAINT, Failure, STRONG, Table};

/// Number of digits of a key in tables.
const SHOWN_DIGITS: usize = 12;

/// Manage the cache of compiled models
///
/// Apps and commands share this cache, so that each model is compiled once. Entries in use are
/// never removed. A removed entry is compiled again on demand.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  coremill cache list\n  coremill cache prune --to 2GB\n  coremill cache verify --dir \
                        ~/Library/Caches/MyApp/coremill"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
    /// Directory of the cache [default: `COREMILL_CACHE`, or `coremill` in the system's cache
    /// directory]
    #[arg(long, global = true, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Print the result as JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(clap::Subcommand)]
enum Action {
    /// List the entries, most recently used first
    List,
    /// Print the total size of the entries
    Size,
    /// Verify every byte of every entry, and remove damaged entries
    Verify,
    /// Remove the least recently used entries, and files left by killed processes
    Prune {
        /// Maximum size to keep, such as 500MB, 2GB or 1.5GiB
        #[arg(long, value_name = "SIZE", value_parser = quantity::parse_bytes)]
        to: u64,
    },
    /// Remove all entries and values
    Purge,
}

/// Result of an action. The JSON form is stable: for the same `format_version`, fields are only
/// added.
#[derive(Serialize)]
struct Report {
    format_version: u32,
    directory: String,
    bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    entries: Option<Vec<EntryOf>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sound: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    damaged: Option<Vec<DamagedOf>>,
}

#[derive(Serialize)]
struct EntryOf {
    key: String,
    kind: String,
    label: String,
    bytes: u64,
    created: u64,
    used: u64,
    uses: u64,
    path: String,
}

#[derive(Serialize)]
struct DamagedOf {
    key: String,
    reason: String,
    removed: bool,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let root = args.dir.clone().or_else(Store::default_root).ok_or_else(|| {
        Failure::user("this system has no directory for caches")
            .hint(Some("pass --dir, or set COREMILL_CACHE"))
    })?;
    let directory = root.display().to_string();
    let mut report = Report {
        format_version: 1,
        directory,
        bytes: 0,
        entries: None,
        sound: None,
        damaged: None,
    };
    if !root.exists() {
        if args.dir.is_some() {
            let message = format!("{}: no such directory", report.directory);
            return Err(Failure::user(message));
        }
        // The cache does not exist yet; do not create it.
        return finish(args, &report, "");
    }
    // The limit only matters when entries are added.
    let options = Options { limit: u64::MAX, ..Options::default() };
    let store = Store::open(root, &options).map_err(|error| failure(&error))?;
    let mut text = String::new();
    match &args.action {
        Action::List => {
            let entries = store.list().map_err(|error| failure(&error))?;
            text = table(&entries);
            report.entries = Some(entries.iter().map(entry).collect());
        }
        Action::Size => {}
        Action::Verify => {
            let verified = store.verify().map_err(|error| failure(&error))?;
            text = format!("{} sound, {} damaged\n", verified.sound, verified.damaged.len());
            for DamagedEntry { key, reason, removed } in &verified.damaged {
                let fate = if *removed { "removed" } else { "in use, replaced at its next use" };
                text += &format!("{}  {reason}; {fate}\n", short(key));
            }
            report.sound = Some(verified.sound);
            let damaged = verified.damaged.into_iter().map(|damaged| {
                let DamagedEntry { key, reason, removed } = damaged;
                DamagedOf { key: key.to_string(), reason, removed }
            });
            report.damaged = Some(damaged.collect());
        }
        Action::Prune { to } => drop(store.prune(*to).map_err(|error| failure(&error))?),
        Action::Purge => drop(store.purge().map_err(|error| failure(&error))?),
    }
    report.bytes = store.size().map_err(|error| failure(&error))?;
    match args.action {
        Action::List | Action::Verify => {}
        Action::Size => text = format!("{}  {}\n", quantity::bytes(report.bytes), report.directory),
        Action::Prune { .. } | Action::Purge => {
            text = format!("{} left in {}\n", quantity::bytes(report.bytes), report.directory);
        }
    }
    finish(args, &report, &text)
}

fn finish(args: &Args, report: &Report, text: &str) -> Result<(), Failure> {
    if args.json { output::print_json(report) } else { output::say(text) }
}

fn table(entries: &[EntryInfo]) -> String {
    let mut table = Table::new(0);
    for entry in entries {
        table.row([
            Cell::text(short(&entry.key)).style(FAINT),
            Cell::text(&entry.kind).secondary(),
            Cell::number(quantity::bytes(entry.bytes)),
            Cell::number(format!("{}×", entry.uses)).minor(),
            Cell::text(ago(entry.used)),
            Cell::name(&entry.label).style(STRONG),
        ]);
    }
    table.render()
}

fn short(key: &Key) -> String {
    key.to_string()[..SHOWN_DIGITS].to_owned()
}

/// Formats the time since a point in time, in milliseconds since 1970.
fn ago(time: u64) -> String {
    let time = SystemTime::UNIX_EPOCH + Duration::from_millis(time);
    let seconds = SystemTime::now().duration_since(time).map_or(0, |since| since.as_secs());
    let (count, unit) = match seconds {
        0..60 => return "now".to_owned(),
        60..3600 => (seconds / 60, "min"),
        3600..86400 => (seconds / 3600, "h"),
        _ => (seconds / 86400, "d"),
    };
    format!("{count} {unit} ago")
}

fn entry(listed: &EntryInfo) -> EntryOf {
    EntryOf {
        key: listed.key.to_string(),
        kind: listed.kind.clone(),
        label: listed.label.clone(),
        bytes: listed.bytes,
        created: listed.created,
        used: listed.used,
        uses: listed.uses,
        path: listed.path.display().to_string(),
    }
}

fn failure(error: &Error) -> Failure {
    Failure::user(error).hint(error.hint())
}
