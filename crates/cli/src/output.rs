//! How the command talks: colour, failures, and standard output that may be closed early.

mod table;
mod terminal;

pub(crate) use table::{Cell, Table};
pub(crate) use terminal::{excerpt_width, width};

use terminal::fitted;

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
            tell(&format!("{}: {message}\n", paint(ERROR, "error")));
        }
        tell(&std::mem::take(&mut self.detail));
        if let Some(hint) = self.hint.take() {
            tell(&format!("{}: {hint}\n", paint(GOOD, "hint")));
        }
    }

    /// Tells the user, and gives the exit code.
    pub(crate) fn report(mut self) -> ExitCode {
        self.tell();
        ExitCode::from(self.code)
    }
}

/// How libraries name an option, which each caller writes in a way of its own: the option `target=ios18`.
const OPTION: &str = "the option `";

/// The text with the options that libraries name as the flags of this command: `--target ios18`.
fn with_flags(text: &str) -> String {
    let mut parts = text.split(OPTION);
    let mut written = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (option, rest) = part.split_once('`').unwrap_or((part, ""));
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        let gap = if value.is_empty() { "" } else { " " };
        written += &format!("`--{}{gap}{value}`{rest}", name.replace('_', "-"));
    }
    written
}

/// Writes prose and tables to standard error.
pub(crate) fn tell(text: &str) {
    // Where this cannot be written, there is nowhere to say so.
    let _ = anstream::stderr().lock().write_all(fitted(&with_flags(text)).as_bytes());
}

/// Writes prose and tables to standard output.
pub(crate) fn say(text: &str) -> Result<(), Failure> {
    print(&fitted(&with_flags(text)))
}

/// Writes data to standard output, as it is. A reader that closed it early, as `head` does, has had enough: that is
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
    print(&(with_flags(&text) + "\n"))
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

#[cfg(test)]
mod tests {
    use super::with_flags;

    #[test]
    fn options_that_libraries_name_become_flags() {
        let hint = "pass the option `target=ios18`, or leave the option `max_memory` out";
        assert_eq!(with_flags(hint), "pass `--target ios18`, or leave `--max-memory` out");
        let image = "pass the option `image=NAME=FILE`";
        assert_eq!(with_flags(image), "pass `--image NAME=FILE`");
        assert_eq!(with_flags("say which `target` is meant"), "say which `target` is meant");
    }
}
