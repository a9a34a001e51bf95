//! The command line declaration with grouped commands, since clap has a single list.

use clap::builder::StyledStr;
use clap::{Command, CommandFactory};

use crate::Arguments;
use crate::output;

/// Groups of commands, in the order of the help.
const GROUPS: [(&str, &[&str]); 6] = [
    ("Make a model", &["convert", "lower", "quantize", "compress"]),
    ("Inspect a model", &["inspect", "check", "diff", "report", "text"]),
    ("Run a model", &["run", "compare", "plan", "record"]),
    ("Language models", &["llm", "generate", "serve", "score", "tokenize", "embed", "transcribe"]),
    ("Edit, split and combine models", &["edit", "merge", "split", "bisect", "pack", "extract"]),
    ("Tools", &["cache", "ops", "completions", "man", "help"]),
];

/// End of the help.
pub(crate) const EXAMPLES: &str = "Examples:
  coremill convert model.pt2 -o Model.mlpackage --verify
  coremill run Model.mlpackage --random 1
  coremill report model.pt2 -o model.html

`coremill COMMAND --help` shows a command's options with examples, and
`coremill man COMMAND` its manual page.
The documentation is in docs/: start with docs/cli.md and docs/pytorch.md.";

/// Maximum width of the help, and default if the terminal's width is unknown.
const MAX_WIDTH: usize = 100;

/// The declaration of the command line.
pub(crate) fn command() -> Command {
    let mut command = Arguments::command();
    command.build();
    let groups = render_groups(&command, output::width().unwrap_or(MAX_WIDTH).min(MAX_WIDTH));
    let options = heading(&command, "Options");
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n{groups}\n{options}\n{{options}}{{after-help}}"
    );
    command.help_template(StyledStr::from(template)).after_help(EXAMPLES)
}

fn heading(command: &Command, title: &str) -> String {
    let style = command.get_styles().get_header();
    format!("{style}{title}:{style:#}")
}

/// The groups with a line per command, wrapped at `width`.
fn render_groups(command: &Command, width: usize) -> String {
    let names = GROUPS.iter().flat_map(|(_, names)| names.iter());
    let column = names.map(|name| name.len()).max().unwrap_or(0) + 4;
    let literal = *command.get_styles().get_literal();
    let mut text = String::new();
    for (title, names) in GROUPS {
        text += &format!("\n{}\n", heading(command, title));
        for name in names {
            let about = command.find_subcommand(name).and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            let gap = " ".repeat(column - 2 - name.len());
            let lines = wrap(&about, width.saturating_sub(column).max(20));
            let lines = lines.join(&format!("\n{}", " ".repeat(column)));
            text += &format!("  {literal}{name}{literal:#}{gap}{lines}\n");
        }
    }
    text
}

/// Wraps a text at words to lines of at most `width` characters.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_belongs_to_one_help_group() {
        let mut grouped: Vec<_> = GROUPS.iter().flat_map(|(_, names)| *names).copied().collect();
        grouped.sort_unstable();
        let mut command = Arguments::command();
        command.build();
        let mut declared: Vec<_> = command.get_subcommands().map(Command::get_name).collect();
        declared.sort_unstable();
        assert_eq!(grouped, declared);
    }

    #[test]
    fn help_lines_fit_terminal_width() {
        let mut command = Arguments::command();
        command.build();
        for width in [60, 80, 100] {
            let text = anstream::adapter::strip_str(&render_groups(&command, width)).to_string();
            let longest = text.lines().map(|line| line.chars().count()).max();
            assert!(
                longest.is_some_and(|longest| longest <= width && longest > width - 20),
                "{text}"
            );
        }
    }
}
