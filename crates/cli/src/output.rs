//! Output of the command: colors, failures, and handling of closed pipes.

mod path;
mod table;
mod terminal;

pub(crate) use path::OutputPath;
pub(crate) use table::{Cell, Table};
pub(crate) use terminal::{excerpt_width, width};

use terminal::fitted;

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use anstyle::{AnsiColor, Style};
use coremill::wording;
use coremill_io::{is_printable, printable};

/// Options of all commands.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// When to use color
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
    /// Applies the choice of color to all output.
    pub(crate) fn install(&self) {
        match self.color {
            // `anstream` respects `NO_COLOR`, `CLICOLOR` and whether the stream is a terminal.
            Color::Auto => {}
            Color::Always => anstream::ColorChoice::Always.write_global(),
            Color::Never => anstream::ColorChoice::Never.write_global(),
        }
    }
}

/// Bold: names that a reader looks for.
pub(crate) const STRONG: Style = Style::new().bold();
/// Dim: units, counts and other details.
pub(crate) const FAINT: Style = Style::new().dimmed();
/// Errors.
pub(crate) const ERROR: Style = AnsiColor::Red.on_default().bold();
/// Hints and good results.
pub(crate) const GOOD: Style = AnsiColor::Green.on_default().bold();
/// Bars of diagrams.
pub(crate) const BAR: Style = AnsiColor::Cyan.on_default();

/// Formats text in a style. Control characters are replaced.
pub(crate) fn paint(style: Style, text: impl Display) -> String {
    let text = text.to_string();
    let text = printable(&text);
    if text.is_empty() { String::new() } else { format!("{style}{text}{style:#}") }
}

/// Failure of a command.
pub(crate) struct Failure {
    code: u8,
    message: Option<String>,
    hint: Option<String>,
    detail: String,
}

impl Failure {
    /// Exit code for invalid input.
    pub(crate) const USER: u8 = 1;
    /// Exit code for a bug in coremill.
    pub(crate) const OURS: u8 = 2;

    /// The user's input is invalid.
    pub(crate) fn user(message: impl Display) -> Failure {
        Failure { message: Some(plain(message)), ..Failure::already_reported() }
    }

    /// A bug in coremill.
    pub(crate) fn internal(message: impl Display) -> Failure {
        Failure { code: Failure::OURS, ..Failure::user(message) }
    }

    /// The user's input is invalid, and the message is already printed.
    pub(crate) fn already_reported() -> Failure {
        Failure { code: Failure::USER, message: None, hint: None, detail: String::new() }
    }

    /// Adds a hint.
    pub(crate) fn hint(mut self, hint: Option<impl Display>) -> Failure {
        self.hint = hint.map(plain);
        self
    }

    /// Adds the path of a file.
    pub(crate) fn within(mut self, path: &std::path::Path) -> Failure {
        self.message = self.message.map(|message| format!("{}: {message}", path.display()));
        self
    }

    /// Adds details, such as a table.
    pub(crate) fn detail(mut self, detail: String) -> Failure {
        self.detail = detail;
        self
    }

    pub(crate) fn code(&self) -> u8 {
        self.code
    }

    /// The message, `None` if it is already printed.
    pub(crate) fn message(&self) -> Option<&str> {
        self.message.as_deref()
    }

    /// Replaces the message.
    pub(crate) fn instead(self, message: impl Display) -> Failure {
        Failure { code: self.code, ..Failure::user(message) }
    }

    /// Prints the message, detail and hint. They are not printed again.
    pub(crate) fn tell(&mut self) {
        if let Some(message) = self.message.take() {
            tell(&format!("{}: {message}\n", paint(ERROR, "error")));
        }
        tell(&std::mem::take(&mut self.detail));
        if let Some(hint) = self.hint.take() {
            tell(&format!("{}: {}\n", paint(GOOD, "hint"), with_commands(&hint)));
        }
    }

    /// Prints the failure and returns the exit code.
    pub(crate) fn report(mut self) -> ExitCode {
        self.tell();
        ExitCode::from(self.code)
    }
}

/// Converts an error of the library.
pub(crate) fn failure<E: Clone + Into<coremill::Error>>(error: &E) -> Failure {
    let error: coremill::Error = error.clone().into();
    match error.rendered() {
        Some(rendered) => {
            tell(&highlight(rendered));
            Failure::already_reported()
        }
        None => Failure::user(&error).hint(error.hint()),
    }
}

/// Steps that hints of libraries suggest, with the commands that perform them.
const STEPS: [(&str, &str); 12] = [
    ("convert it first", "convert it first: `coremill convert MODEL.pt2 -o MODEL.mlpackage`"),
    (
        "`torch.export.save`, then convert it",
        "`torch.export.save`, then convert it: `coremill convert MODEL.pt2 -o MODEL.mlpackage`",
    ),
    (
        "convert the language model first",
        "convert the language model first: `coremill llm MODEL -o DIRECTORY`; `coremill generate MODEL` runs the file itself",
    ),
    ("generate text with it", "generate text with it: `coremill generate MODEL -p TEXT`"),
    (
        "compute the embeddings of texts with it",
        "compute the embeddings of texts with it: `coremill embed MODEL -p TEXT`",
    ),
    ("transcribe audio with it", "transcribe audio with it: `coremill transcribe MODEL AUDIO.wav`"),
    ("as an input of a run:", "as an input of `coremill run`:"),
    (
        "run, check, inspect or compare it, or extract its models",
        "`coremill run`, `check`, `inspect` and `compare` accept it; `coremill extract` writes its models",
    ),
    ("pack it first", "pack it first: `coremill pack MODEL.mil -o MODEL.mlpackage`"),
    (
        "extract the models first",
        "extract the models first: `coremill extract MODEL.pte -o DIRECTORY`",
    ),
    ("prune the cache", "prune the cache: `coremill cache prune --to 1GB`"),
    (
        "operations have the names of MIL,",
        "`coremill ops` lists the operations; they have the names of MIL,",
    ),
];

/// Adds the commands to the steps in a hint.
fn with_commands(hint: &str) -> String {
    wording::with_steps(hint, &STEPS)
}

/// Rewrites options in a message as flags: `--target ios18`.
fn with_flags(text: &str) -> String {
    wording::with_options(text, |name, value| {
        let flag = format!("--{}", name.replace('_', "-"));
        value.map_or(flag.clone(), |value| format!("{flag} {value}"))
    })
}

/// Replaces control characters in a message.
fn plain(message: impl Display) -> String {
    printable(&message.to_string()).into_owned()
}

/// Codes of the styles of this command and of library reports.
const STYLE_CODES: [&str; 8] = ["0", "1", "2", "31", "32", "33", "34", "36"];

/// Removes all escape sequences except our styles, in case a string from a file was not sanitized.
fn only_styles(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let (taken, shown) = match style_length(rest) {
            Some(length) => (length, &rest[..length]),
            None if matches!(c, '\n' | '\t') || is_printable(c) => {
                (c.len_utf8(), &rest[..c.len_utf8()])
            }
            None => (c.len_utf8(), "\u{fffd}"),
        };
        kept += shown;
        rest = &rest[taken..];
    }
    kept
}

/// The length of one of our style sequences at the start of a text.
fn style_length(text: &str) -> Option<usize> {
    let codes = text.strip_prefix("\u{1b}[")?;
    let end = codes.find('m')?;
    let ours = codes[..end].split(';').all(|code| STYLE_CODES.contains(&code));
    ours.then_some("\u{1b}[".len() + end + "m".len())
}

/// Whether an option writes data to standard output.
static DATA_ON_STDOUT: AtomicBool = AtomicBool::new(false);

/// Redirects reports ([`say`], [`print_json`]) to standard error, since standard output is used for data.
pub(crate) fn keep_stdout_for_data() {
    DATA_ON_STDOUT.store(true, Ordering::Relaxed);
}

/// Prints text and tables to standard error.
pub(crate) fn tell(text: &str) {
    write_to_stderr(&fitted(&with_flags(&only_styles(text))));
}

fn write_to_stderr(text: &str) {
    // If a signal is pending, end here instead of reporting files that its handler removed.
    coremill_io::uninterrupted(|| ());
    // A failure to write to standard error cannot be reported.
    let _ = anstream::stderr().lock().write_all(text.as_bytes());
}

/// Prints text and tables to standard output.
pub(crate) fn say(text: &str) -> Result<(), Failure> {
    print_report(&fitted(&with_flags(&only_styles(text))))
}

/// Prints data to standard output, unmodified unless that is a terminal. A pipe closed early, as by
/// `head`, is not a failure.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    match io::stdout().is_terminal() {
        true => write_to_stdout(&printable(text)),
        false => print_bytes(text.as_bytes()),
    }
}

/// Writes binary data to standard output.
pub(crate) fn print_bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    closed_early(stdout.write_all(bytes).and_then(|()| stdout.flush()))
}

/// Prints a report to standard output, or to standard error if standard output is used for data.
fn print_report(text: &str) -> Result<(), Failure> {
    if DATA_ON_STDOUT.load(Ordering::Relaxed) {
        write_to_stderr(text);
        return Ok(());
    }
    write_to_stdout(text)
}

fn write_to_stdout(text: &str) -> Result<(), Failure> {
    let mut stdout = anstream::stdout().lock();
    closed_early(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()))
}

fn closed_early(written: io::Result<()>) -> Result<(), Failure> {
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::user(format_args!("cannot write to standard output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Prints a value as JSON.
pub(crate) fn print_json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(Failure::internal)?;
    print_report(&escaped(&(with_flags(&text) + "\n")))
}

/// Escapes control characters in JSON. They only occur in strings.
fn escaped(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        if c == '\n' || is_printable(c) {
            text.push(c);
        } else {
            let mut units = [0; 2];
            let units = c.encode_utf16(&mut units);
            text.extend(units.iter().map(|unit| format!("\\u{unit:04x}")));
        }
    }
    text
}

/// Colors the labels of a rendered error.
pub(crate) fn highlight(rendered: &str) -> String {
    let rendered = printable(rendered);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_foreign_terminal_escapes() {
        let ours = format!("{} {}\n\tx", paint(ERROR, "error"), paint(FAINT, "note"));
        assert_eq!(only_styles(&ours), ours);
        for (theirs, shown) in [
            ("\u{1b}[2J", "\u{fffd}[2J"),
            ("\u{1b}]0;title\u{7}", "\u{fffd}]0;title\u{fffd}"),
            ("\u{1b}[8m", "\u{fffd}[8m"),
            ("\u{1b}[1;45m", "\u{fffd}[1;45m"),
            ("\u{1b}[", "\u{fffd}["),
            ("a\rb\u{9b}c\u{202e}d", "a\u{fffd}b\u{fffd}c\u{fffd}d"),
        ] {
            assert_eq!(only_styles(theirs), shown);
            assert_eq!(only_styles(&paint(STRONG, theirs)), paint(STRONG, shown));
        }
    }

    #[test]
    fn json_escapes_control_characters() {
        let hostile = "a\u{1b}\u{7f}\u{9b}\u{202e}\u{e0041}\n";
        let json = escaped(&serde_json::to_string_pretty(&[hostile]).expect("JSON"));
        assert!(json.chars().all(|c| c == '\n' || is_printable(c)), "{json:?}");
        let back: Vec<String> = serde_json::from_str(&json).expect("JSON");
        assert_eq!(back, [hostile]);
    }

    #[test]
    fn rewrites_hint_steps_as_cli_commands() {
        let rewritten = [
            (
                "convert it first",
                "convert it first: `coremill convert MODEL.pt2 -o MODEL.mlpackage`",
            ),
            (
                "free some disk space, or prune the cache",
                "free some disk space, or prune the cache: `coremill cache prune --to 1GB`",
            ),
            (
                "operations have the names of MIL, `matmul` for instance",
                "`coremill ops` lists the operations; they have the names of MIL, `matmul` for instance",
            ),
            (
                "pass it as an input of a run: the option `inputs=FILE`",
                "pass it as an input of `coremill run`: the option `inputs=FILE`",
            ),
        ];
        for (hint, expected) in rewritten {
            assert_eq!(with_commands(hint), expected);
        }
        for hint in [
            "unpack it first",
            "convert it first, for example with `ffmpeg -i INPUT OUTPUT.wav`",
            "extract the models first with `coremill extract`",
        ] {
            assert_eq!(with_commands(hint), hint);
        }
    }

    #[test]
    fn rewrites_library_options_as_cli_flags() {
        let hint = "pass the option `target=ios18`, or leave the option `max_memory` out";
        assert_eq!(with_flags(hint), "pass `--target ios18`, or leave `--max-memory` out");
        let image = "pass the option `image=NAME=FILE`";
        assert_eq!(with_flags(image), "pass `--image NAME=FILE`");
        assert_eq!(with_flags("say which `target` is meant"), "say which `target` is meant");
    }
}
