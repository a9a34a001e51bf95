//! Every file of `tests/text` is a test.
//!
//! A file contains MIL text, valid or not. The expected result follows at the end in comments, under a line
//! `// prints` (the printed program) or `// fails` (the rendered error). A file with neither must be printed
//! unchanged, except for comments at its beginning. A program must be unchanged after it is printed and
//! parsed, in both dialects. `BLESS=1 cargo test --test text` updates the expected results.

use std::fmt::Write as _;
use std::path::Path;

use coremill_mil::text::{self, Dialect, NoWeights, PrintOptions};

const PRINTS: &str = "// prints\n";
const FAILS: &str = "// fails\n";

#[test]
fn text_files_print_or_fail_as_expected() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/text");
    let mut paths: Vec<_> = std::fs::read_dir(folder)
        .expect("tests/text")
        .map(|entry| entry.expect("entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "mil"))
        .collect();
    paths.sort();
    assert!(paths.len() >= 20, "only {} files were found", paths.len());
    let bless = std::env::var_os("BLESS").is_some();
    let mut failures = String::new();
    for path in paths {
        let name = path.file_name().expect("name").to_string_lossy().into_owned();
        let file = std::fs::read_to_string(&path).expect("UTF-8");
        let source = [PRINTS, FAILS].iter().fold(file.as_str(), |source, marker| {
            source.find(&format!("\n{marker}")).map_or(source, |at| &source[..at + 1])
        });
        let expected = format!("{source}{}", outcome(&name, source));
        if expected != file {
            if bless {
                std::fs::write(&path, &expected).expect("write");
            } else {
                let _ = write!(failures, "\n== {name}: expected\n{file}\n== found\n{expected}");
            }
        }
    }
    assert!(failures.is_empty(), "{failures}");
}

/// The expected result at the end of a file.
fn outcome(name: &str, source: &str) -> String {
    let program = match text::parse(source, &NoWeights) {
        Ok(program) => program,
        Err(error) => return format!("{FAILS}{}", commented(&error.render(name))),
    };
    for dialect in [Dialect::V1_0, Dialect::V1_3] {
        let options = PrintOptions { dialect, ..PrintOptions::default() };
        let printed = text::print(&program, &options);
        let again = text::parse_with_spans(&printed.text, &NoWeights);
        let (again, spans) = again.unwrap_or_else(|error| panic!("{}", error.render(name)));
        assert_eq!(again, program, "{name} in {dialect:?}");
        assert_eq!(spans, printed.spans, "{name} in {dialect:?}");

        let mut streamed = Vec::new();
        text::write(&mut streamed, &program, &options).expect("write to memory");
        assert_eq!(String::from_utf8(streamed).expect("UTF-8"), printed.text);
        for span in &printed.spans.ops {
            let op = program.functions[span.function].op(span.op);
            let shown = &printed.text[span.range.clone()];
            assert!(shown.contains(op.type_name()), "{name}: {shown} is not a {}", op.type_name());
            assert!(!shown.contains('\n') && !shown.ends_with(';'), "{name}: {shown}");
        }
        let ops: usize = program.functions.iter().map(|function| function.all_ops().count()).sum();
        assert_eq!(printed.spans.ops.len(), ops, "{name}");
    }
    let dialect = if source.contains("program(1.0)") { Dialect::V1_0 } else { Dialect::V1_3 };
    let options = PrintOptions { dialect, ..PrintOptions::default() };
    let printed = text::print(&program, &options).text;
    let is_comment = |line: &&str| line.starts_with("//");
    let original: Vec<_> = source.trim_end().lines().skip_while(is_comment).collect();
    if printed == original.join("\n") {
        return String::new();
    }
    format!("{PRINTS}{}", commented(&printed))
}

fn commented(text: &str) -> String {
    text.lines().fold(String::new(), |mut shown, line| {
        let _ = writeln!(shown, "{}", format!("// {line}").trim_end());
        shown
    })
}

#[test]
fn rejects_hostile_texts_within_time_limit() {
    let parse = |text: &str| text::parse(text, &NoWeights).expect_err("no program");
    let value = |open: &str| {
        let mut text = String::from("program(1.3)[a = tensor<fp32, [1]>(");
        text.push_str(&open.repeat(10_000_000 / open.len()));
        text
    };
    let start = std::time::Instant::now();
    for open in
        ["[", "(", "{", "[[", "-", "-inf", "nan(", "1", "\"", "`", "//", "tensor<fp32, [1]>("]
    {
        parse(&value(open));
    }
    for open in ["list<", "tuple<", "dict<", "state<", "tuple<tuple<"] {
        let error = parse(&format!("program(1.3)[a = {}", open.repeat(1_000_000)));
        assert_eq!(error.message(), "nested deeper than 64 levels", "{open}");
    }
    let blocks = "x(a = fp32(1))() { ".repeat(1_000_000);
    let error = parse(&format!("program(1.3){{func f<ios15>() {{ {blocks}"));
    assert_eq!(error.message(), "nested deeper than 64 levels");
    let many = "x();".repeat((1 << 20) + 1);
    let error = parse(&format!("program(1.3){{func f<ios15>() {{ {many}"));
    assert_eq!(error.message(), "the program has more than 1048576 operations");
    // The error is near the end of one long line.
    let mut long = String::from("program(1.3)[a = tensor<int32, [4000000]>([1");
    long.push_str(&", 1".repeat(3_999_998));
    let error = parse(&format!("{long}])]"));
    assert_eq!(error.message(), "dimension 0 has size 4000000, but 3999999 elements are written");
    assert!(parse(&long).render("long").len() < 1000);
    assert!(start.elapsed().as_secs() < 60, "took {:?}", start.elapsed());
}

#[test]
fn truncated_and_mutated_programs_do_not_panic() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/text");
    for name in ["blocks.mil", "literals.mil", "names.mil", "containers.mil", "compressed.mil"] {
        let text = std::fs::read_to_string(folder.join(name)).expect("file");
        for end in (0..text.len()).filter(|&end| text.is_char_boundary(end)) {
            let _ = text::parse(&text[..end], &NoWeights);
        }
        let mut bytes = text.into_bytes();
        // A prime step keeps the test short but visits all kinds of positions.
        for at in (0..bytes.len()).step_by(7) {
            for replacement in *b"([{<)]}>,;=?`\"\\-1a \n" {
                let original = std::mem::replace(&mut bytes[at], replacement);
                if let Ok(changed) = std::str::from_utf8(&bytes)
                    && let Ok(program) = text::parse(changed, &NoWeights)
                {
                    let printed = text::print(&program, &PrintOptions::default()).text;
                    let again = text::parse(&printed, &NoWeights);
                    assert_eq!(again.as_ref(), Ok(&program), "{name} at {at}");
                }
                bytes[at] = original;
            }
        }
    }
}

#[test]
fn spans_match_unformatted_source_text() {
    let source = "// func f\nprogram(1.3) {\n func // named\n  main<ios17>(bool b,\n\ttensor<fp16, [2]> x)\n {\n\
        tensor<fp16, [2]>\n y // =\n = cond(pred=b)\n [name = string(\"y\")]\n\
        () { fp16 one=const ( ) [ val = fp16 ( 1 ) ] // first\n ; tensor<fp16, [2]> t = add(x=x, y=one); } -> (t)\n\
        () { } -> (x)\n ; } -> (y);\n func other<ios18>() [a = bool(true)] { custom(); } -> (); }";
    let (program, spans) = text::parse_with_spans(source, &NoWeights).expect("a program");
    let shown = |range: &std::ops::Range<usize>| &source[range.clone()];
    let functions: Vec<_> = spans.functions.iter().map(shown).collect();
    assert_eq!(
        functions,
        [
            "func // named\n  main<ios17>(bool b,\n\ttensor<fp16, [2]> x)",
            "func other<ios18>() [a = bool(true)]"
        ]
    );
    let ops: Vec<_> = spans
        .ops
        .iter()
        .map(|span| {
            let op = program.functions[span.function].op(span.op);
            (span.function, op.type_name(), shown(&span.range))
        })
        .collect();
    assert_eq!(
        ops,
        [
            (0, "cond", "tensor<fp16, [2]>\n y // =\n = cond(pred=b)\n [name = string(\"y\")]"),
            (0, "const", "fp16 one=const ( ) [ val = fp16 ( 1 ) ]"),
            (0, "add", "tensor<fp16, [2]> t = add(x=x, y=one)"),
            (1, "custom", "custom()"),
        ]
    );
    let first = spans.op(0, spans.ops[0].op).expect("the span of `cond`");
    assert_eq!(first, &spans.ops[0]);
}
