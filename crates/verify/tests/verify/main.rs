//! Tests of the verifier: each rule reports a violating model and accepts a valid one, and messages match
//! their snapshots.

mod broken_text;
mod cases;
mod chips;
mod description;
mod golden;
mod hazards;
mod program;
mod snapshots;

use std::collections::BTreeSet;

use cases::Case;
use coremill_device::Hazard;
use coremill_verify::{CODES, Severity, verify};

fn all_cases() -> Vec<Case> {
    [program::cases(), description::cases(), hazards::cases(), chips::cases()].concat()
}

/// A rule that never reports, or that always reports, checks nothing.
#[test]
fn every_rule_has_failing_and_passing_case() {
    let mut covered = BTreeSet::new();
    let mut failures = Vec::new();
    for case in all_cases() {
        covered.insert(case.code.name());
        let broken = case.check(&case.broken);
        let found = broken.diagnostics.iter().find(|found| found.code == case.code);
        if found.is_none() {
            failures.push(format!("{} is not reported for the broken model:\n{broken}", case.code));
        }
        let is_error = case.code.row().severity == Severity::Error;
        if is_error && verify(&case.broken).is_ok() {
            failures.push(format!("{}: a broken model was verified", case.code));
        }
        let sound = case.check(&case.sound);
        if sound.diagnostics.iter().any(|found| found.code == case.code) || !sound.is_sound() {
            failures.push(format!(
                "{}: the sound model has errors, or this rule reports it:\n{sound}",
                case.code
            ));
        }
        // The violating model must have no other errors.
        let others = broken.diagnostics.iter().filter(|found| {
            found.severity() == Severity::Error
                && found.code != case.code
                && !case.also.contains(&found.code)
        });
        for other in others {
            failures.push(format!("{}: the broken model also has {other}", case.code));
        }
    }
    let missing: Vec<_> =
        CODES.iter().map(|row| row.name).filter(|name| !covered.contains(name)).collect();
    assert!(missing.is_empty(), "no case for {missing:?}");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// `docs/check.md` contains the table of rules.
#[test]
fn docs_list_every_rule() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/check.md");
    let page = std::fs::read_to_string(path).expect("docs/check.md");
    let (begin, end) = ("<!-- rules -->\n", "<!-- end of rules -->");
    let start = page.find(begin).expect("a start marker") + begin.len();
    let stop = page.find(end).expect("an end marker");
    let mut rows = String::from("\n");
    for (severity, title) in [(Severity::Error, "Errors"), (Severity::Warning, "Warnings")] {
        let is_warning = severity == Severity::Warning;
        let (evidence_title, line) = if is_warning { (" concerns |", "---|") } else { ("", "") };
        rows.push_str(&format!(
            "### {title}\n\n| code | what | why | remedy |{evidence_title}\n|---|---|---|---|{line}\n"
        ));
        for row in CODES.iter().filter(|row| row.severity == severity) {
            let remedy = row.remedy.unwrap_or("see the message and its hint");
            rows.push_str(&format!("| `{}` | {} | {} | {remedy} |", row.name, row.what, row.why));
            if is_warning {
                let affected = Hazard::of(row.name)
                    .map(|hazard| format!("{}, {}", hazard.engine_names(), hazard.chips()));
                rows.push_str(&format!(" {} |", affected.unwrap_or("every device".to_owned())));
            }
            rows.push('\n');
        }
        rows.push('\n');
    }
    if std::env::var_os("BLESS").is_some() {
        let page = format!("{}{rows}{}", &page[..start], &page[stop..]);
        std::fs::write(path, page).expect("write");
    } else {
        assert_eq!(&page[start..stop], rows, "run this test with BLESS=1");
    }
}
