//! How the command talks: colour, failures, and standard output that may be closed early.

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use anstyle::{AnsiColor, Style};

/// Options that every command has.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// When to use colour
    #[arg(long, global = true, value_enum, default_value_t = Color::Auto, value_name = "WHEN")]
    color: Color,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Color {
    Auto,
    Always,
    Never,
}

impl Options {
    /// Makes the choice of colour hold for everything that is printed.
    pub(crate) fn install(&self) {
        match self.color {
            // `anstream` honours `NO_COLOR`, `CLICOLOR` and whether the stream is a terminal.
            Color::Auto => {}
            Color::Always => anstream::ColorChoice::Always.write_global(),
            Color::Never => anstream::ColorChoice::Never.write_global(),
        }
    }
}

/// Bold: names that a reader looks for.
pub(crate) const STRONG: Style = Style::new().bold();
/// Dim: units, counts, what can be skipped.
pub(crate) const FAINT: Style = Style::new().dimmed();
/// Errors.
pub(crate) const ERROR: Style = AnsiColor::Red.on_default().bold();
/// Hints, and what is well.
pub(crate) const GOOD: Style = AnsiColor::Green.on_default().bold();
/// Bars of diagrams.
pub(crate) const BAR: Style = AnsiColor::Cyan.on_default();

/// Text in a style.
pub(crate) fn paint(style: Style, text: impl Display) -> String {
    let text = text.to_string();
    if text.is_empty() { text } else { format!("{style}{text}{style:#}") }
}

/// Why a command ends without having done its work.
pub(crate) struct Failure {
    code: u8,
    message: Option<String>,
    hint: Option<String>,
    detail: String,
}

impl Failure {
    /// The exit code when what the user gave is at fault.
    pub(crate) const USER: u8 = 1;
    /// The exit code when coremill is at fault.
    pub(crate) const OURS: u8 = 2;

    /// What the user gave is at fault.
    pub(crate) fn user(message: impl Display) -> Failure {
        Failure {
            code: Failure::USER,
            message: Some(message.to_string()),
            hint: None,
            detail: String::new(),
        }
    }

    /// Coremill is at fault.
    pub(crate) fn ours(message: impl Display) -> Failure {
        Failure {
            code: Failure::OURS,
            message: Some(message.to_string()),
            hint: None,
            detail: String::new(),
        }
    }

    /// What the user gave is at fault, and they were told already.
    pub(crate) fn told() -> Failure {
        Failure { code: Failure::USER, message: None, hint: None, detail: String::new() }
    }

    /// The same with a remedy.
    pub(crate) fn hint(mut self, hint: Option<impl Display>) -> Failure {
        self.hint = hint.map(|hint| hint.to_string());
        self
    }

    /// The same with what the user may want to look at, lines of a table for instance.
    pub(crate) fn detail(mut self, detail: String) -> Failure {
        self.detail = detail;
        self
    }

    /// The exit code.
    pub(crate) fn code(&self) -> u8 {
        self.code
    }

    /// What the user is told, if they were not told already.
    pub(crate) fn message(&self) -> Option<&str> {
        self.message.as_deref()
    }

    /// A failure of the same kind with another message.
    pub(crate) fn instead(self, message: impl Display) -> Failure {
        let message = Some(message.to_string());
        Failure { code: self.code, message, hint: None, detail: String::new() }
    }

    /// Tells the user now; nothing is left to tell then.
    pub(crate) fn tell(&mut self) {
        if let Some(message) = self.message.take() {
            anstream::eprintln!("{}: {message}", paint(ERROR, "error"));
        }
        anstream::eprint!("{}", std::mem::take(&mut self.detail));
        if let Some(hint) = self.hint.take() {
            anstream::eprintln!("{}: {hint}", paint(GOOD, "hint"));
        }
    }

    /// Tells the user, and gives the exit code.
    pub(crate) fn report(mut self) -> ExitCode {
        self.tell();
        ExitCode::from(self.code)
    }
}

/// Writes to standard output. A reader that closed it early, as `head` does, has had enough: that is
/// no failure.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = anstream::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::user(format_args!("cannot write to standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Prints a value as JSON.
pub(crate) fn print_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(Failure::ours)?;
    print(&(text + "\n"))
}

/// The text of an error with its labels coloured.
pub(crate) fn highlight(rendered: &str) -> String {
    let mut lines = String::new();
    for line in rendered.lines() {
        let labelled = [("error", ERROR), ("hint", GOOD)].into_iter().find_map(|(label, style)| {
            let rest = line.strip_prefix(label).filter(|rest| rest.starts_with(':'))?;
            Some(format!("{}{rest}\n", paint(style, label)))
        });
        lines += &labelled.unwrap_or_else(|| format!("{line}\n"));
    }
    lines
}

/// How many columns the terminal has.
pub(crate) fn width() -> usize {
    terminal_size::terminal_size().map_or(120, |(width, _)| usize::from(width.0).max(40))
}

/// A table with aligned columns. Numbers are set flush right.
pub(crate) struct Table {
    rows: Vec<Vec<Cell>>,
    indent: usize,
}

/// A cell of a [`Table`].
pub(crate) struct Cell {
    text: String,
    style: Style,
    right: bool,
}

impl Table {
    /// An empty table whose lines start with that many spaces.
    pub(crate) fn new(indent: usize) -> Table {
        Table { rows: Vec::new(), indent }
    }

    /// Adds a row.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// The lines.
    pub(crate) fn render(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.text.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut lines = String::new();
        for row in &self.rows {
            let mut line = " ".repeat(self.indent);
            for (column, cell) in row.iter().enumerate() {
                let padding = " ".repeat(widths[column] - cell.text.chars().count());
                let text = paint(cell.style, &cell.text);
                let last = column + 1 == row.len();
                line += &match (cell.right, last) {
                    (true, _) => format!("{padding}{text}"),
                    (false, true) => text,
                    (false, false) => format!("{text}{padding}"),
                };
                if !last {
                    line += "  ";
                }
            }
            lines += line.trim_end_matches(' ');
            lines += "\n";
        }
        lines
    }
}

impl Cell {
    /// Text, flush left.
    pub(crate) fn text(text: impl Display) -> Cell {
        Cell { text: text.to_string(), style: Style::new(), right: false }
    }

    /// A number, flush right.
    pub(crate) fn number(text: impl Display) -> Cell {
        Cell { text: text.to_string(), style: Style::new(), right: true }
    }

    /// The same in a style.
    pub(crate) fn style(mut self, style: Style) -> Cell {
        self.style = style;
        self
    }
}

/// A bar that fills `share` of `width` characters.
pub(crate) fn bar(share: f64, width: usize) -> String {
    let eighths = (share.clamp(0.0, 1.0) * (width * 8) as f64).round() as usize;
    let partial = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"][eighths % 8];
    format!("{}{partial}", "█".repeat(eighths / 8))
}

/// A number of bytes for people.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KB", "MB", "GB", "TB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{count} B")
    } else {
        format!("{} {}", three_digits(value), UNITS[unit])
    }
}

/// A count for people.
pub(crate) fn count(count: u64) -> String {
    match count {
        0..10_000 => count.to_string(),
        10_000..999_500 => format!("{} k", three_digits(count as f64 / 1e3)),
        999_500..999_500_000 => format!("{} M", three_digits(count as f64 / 1e6)),
        _ => format!("{} G", three_digits(count as f64 / 1e9)),
    }
}

fn three_digits(value: f64) -> String {
    match value {
        value if value < 9.995 => format!("{value:.2}"),
        value if value < 99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_have_three_digits() {
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(1_000), "1.00 KB");
        assert_eq!(bytes(999_499), "999 KB");
        assert_eq!(bytes(999_500), "1.00 MB");
        assert_eq!(bytes(25_557_032), "25.6 MB");
        assert_eq!(count(9_999), "9999");
        assert_eq!(count(25_557_032), "25.6 M");
        assert_eq!(count(7_000_000_000), "7.00 G");
    }

    #[test]
    fn bars_are_in_eighths() {
        assert_eq!(bar(1.0, 2), "██");
        assert_eq!(bar(0.5, 2), "█");
        assert_eq!(bar(0.0625, 2), "▏");
        assert_eq!(bar(7.0, 1), "█");
    }

    #[test]
    fn tables_align() {
        let mut table = Table::new(1);
        table.row([Cell::text("a"), Cell::number("1")]);
        table.row([Cell::text("bcd"), Cell::number("20")]);
        assert_eq!(
            anstream::adapter::strip_str(&table.render()).to_string(),
            " a     1\n bcd  20\n"
        );
    }
}
