//! Snapshots of rendered reports.
//!
//! Each `.mil` file of `tests/diagnostics` is a program, and the `.txt` file next to it is the expected
//! report. Reports show the program as printed; for the files in `as-written` they show the lines of the
//! file. A program that can be described is checked as a model. `BLESS=1` updates the `.txt` files.

use std::fs;
use std::path::Path;

use coremill_mil::model::describe;
use coremill_mil::text::{self, Listing};
use coremill_verify::{RenderOptions, check, check_program};

use crate::cases::{Zeros, parsed};

#[test]
fn reports_match_snapshots() {
    assert!(compare("tests/diagnostics", false) >= 10, "programs are missing");
}

#[test]
fn reports_with_source_lines_match_snapshots() {
    assert!(compare("tests/diagnostics/as-written", true) >= 1, "programs are missing");
}

/// Compares the reports of a folder; returns their number.
fn compare(folder: &str, as_written: bool) -> usize {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut paths: Vec<_> = fs::read_dir(&folder)
        .expect("a folder of the repository")
        .map(|entry| entry.expect("entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "mil"))
        .collect();
    paths.sort();
    let bless = std::env::var_os("BLESS").is_some();
    let mut failures = Vec::new();
    for path in &paths {
        let source = fs::read_to_string(path).expect("UTF-8");
        let (program, spans) = text::parse_with_spans(&source, &Zeros)
            .unwrap_or_else(|error| panic!("{}", error.render(&path.display().to_string())));
        let report = match describe(program.clone()) {
            Ok(model) => check(&model),
            Err(_) => check_program(&program),
        };
        let name = path.file_name().expect("name").to_string_lossy().into_owned();
        let options = RenderOptions { name: name.clone(), ..RenderOptions::default() };
        let found = if as_written {
            report.render_in(&Listing { text: source, spans }, &options)
        } else {
            report.render(&program, &options)
        };
        let expected = path.with_extension("txt");
        if bless {
            fs::write(&expected, &found).expect("write");
        } else if fs::read_to_string(&expected).ok().as_deref() != Some(&*found) {
            failures.push(format!("== {name}: found\n{found}"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    paths.len()
}

/// The source has CRLF line breaks, tabs that would shift the mark, and control characters.
#[test]
fn control_characters_do_not_reach_terminal() {
    let source = "program(1.3) {\r\nfunc main<ios17>(tensor<fp16, [4]> x) {\r\n\
        \ttensor<fp16, [4]>\ty = relu(\r\n\tx = \tx, \ty\t= // \x1b[2J\r\n x);\r\n} -> (y); }";
    let (program, spans) = text::parse_with_spans(source, &Zeros).expect("a program");
    let listing = Listing { text: source.to_owned(), spans };
    let shown = check_program(&program).render_in(&listing, &RenderOptions::default());
    let expected = [
        " --> program:4:11",
        "  |",
        "4 | x =  x,  y = //  [2J",
        "  |          ^^^",
        "hint: its parameters are `x`",
    ];
    assert!(shown.contains(&expected.join("\n")), "{shown}");
}

/// If the spans belong to another text, the report shows no source lines.
#[test]
fn mismatched_spans_show_no_source_lines() {
    let program = parsed(&crate::cases::main("ios17", "tensor<fp32, [4]> x", "", "x"));
    let (_, spans) = text::parse_with_spans(
        &crate::cases::main("ios17", "tensor<fp32, [4]> x", "", "x"),
        &Zeros,
    )
    .expect("a program");
    let listing = Listing { text: "program(1.3)".to_owned(), spans };
    let shown = check_program(&program).render_in(&listing, &RenderOptions::default());
    assert!(shown.contains("error[passed-through]") && !shown.contains("-->"), "{shown}");
}

#[test]
fn reports_are_colored_only_on_request() {
    let program = parsed(&crate::cases::main("ios17", "tensor<fp32, [4]> x", "", "x"));
    let report = check_program(&program);
    let plain = report.render(&program, &RenderOptions::default());
    assert!(plain.contains("error[passed-through]") && !plain.contains('\x1b'), "{plain}");
    let options = RenderOptions { color: true, ..RenderOptions::default() };
    assert!(report.render(&program, &options).contains("\x1b[1;31merror[passed-through]\x1b[0m"));
}

/// The source has hundreds of errors in one line and a statement of megabytes. Rendering the report takes at most ten
/// times as long as parsing and checking.
#[test]
fn renders_many_errors_in_long_line_quickly() {
    let attributes: String = (0..500).map(|index| format!("a{index} = bool(true), ")).collect();
    let values = vec!["1"; 1 << 20].join(",");
    let ops: String =
        (0..500).map(|index| format!("tensor<fp16, [5]> y{index} = relu(x = x); ")).collect();
    let source = format!(
        "program(1.3) {{ func main<ios17>(tensor<fp16, [4]> x) {{ tensor<fp16, [{}]> big = \
         const()[{attributes}val = tensor<fp16, [{}]>([{values}])]; {ops} }} -> (y0); }}",
        1 << 20,
        1 << 20
    );
    let start = std::time::Instant::now();
    let (program, spans) = text::parse_with_spans(&source, &Zeros).expect("a program");
    let report = check_program(&program);
    let read = start.elapsed();
    let listing = Listing { text: source, spans };
    let start = std::time::Instant::now();
    let shown = report.render_in(&listing, &RenderOptions::default());
    let rendered = start.elapsed();
    assert!(shown.matches("[unknown-attribute]").count() >= 490, "{}", report.summary());
    assert_eq!(shown.matches("[type-mismatch]").count(), 500);
    assert!(shown.contains("--> program:1:") && shown.len() < 1 << 20);
    assert!(rendered < read * 10, "reading took {read:?}, the report {rendered:?}");
}
