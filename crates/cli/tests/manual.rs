//! Tests that each command has a manual page with the options and examples of its help.

use std::collections::BTreeSet;
use std::process::Command;

fn coremill(arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_coremill"));
    let output = command.args(arguments).output().expect("the command starts");
    assert!(output.status.success(), "{arguments:?}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// The commands in the help.
fn listed_commands() -> BTreeSet<String> {
    let help = coremill(&["--help"]);
    let lines = help.lines().skip_while(|line| !line.starts_with("Usage:"));
    let lines = lines.take_while(|line| *line != "Options:");
    let names = lines.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    names.filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

#[test]
fn every_command_has_man_page() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("man1");
    coremill(&["man", "-o", path.to_str().expect("UTF-8")]);
    let commands = listed_commands();
    assert!(commands.len() > 15 && commands.contains("convert"), "{commands:?}");
    for command in commands.iter().filter(|command| *command != "help") {
        let page = std::fs::read_to_string(path.join(format!("coremill-{command}.1")));
        let page = page.unwrap_or_else(|error| panic!("the page of `{command}`: {error}"));
        assert!(page.contains(&format!(".TH coremill-{command} 1")), "{command}: {page}");
        assert_eq!(page, coremill(&["man", command]), "{command}");
        let help = coremill(&[command, "--help"]);
        let examples = help.lines().filter(|line| line.starts_with("  coremill "));
        for example in examples {
            let example = example.trim().split("   #").next().unwrap_or_default();
            let example = example.replace('-', "\\-").replace('\'', "\\*(Aq");
            assert!(
                page.contains(&example),
                "the page of `{command}` lacks the example {example:?}"
            );
        }
    }
    let page = std::fs::read_to_string(path.join("coremill.1")).expect("the page of `coremill`");
    assert_eq!(page, coremill(&["man"]));
    assert!(path.join("coremill-cache-list.1").exists(), "subcommands of `cache` must have pages");
}

#[test]
fn man_suggests_command_for_misspelled_name() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_coremill"));
    let output = command.args(["man", "convrt"]).output().expect("the command starts");
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr.contains("unknown command `convrt`") && stderr.contains("`convert`"),
        "{stderr}"
    );
}
