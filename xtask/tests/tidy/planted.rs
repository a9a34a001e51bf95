//! Tests that each check detects violations, and accepts valid text.

use std::collections::BTreeSet;
use std::path::Path;

use crate::names::{odd_names, odd_tests};
use crate::rust::unchecked_places;
use crate::{
    commands, examples, flags, fuzz_targets, modules, odd_messages, odd_phrases, scheduled,
    unchecked_products, unsafe_violations,
};

/// The cycles of a crate with these files.
fn cycles(files: &[(&str, &str)]) -> Vec<String> {
    let read = |path: &Path| {
        let file = files.iter().find(|(name, _)| Path::new(name) == path);
        file.map(|(_, text)| (*text).to_owned())
    };
    modules::cycles(Path::new("src/lib.rs"), &read).iter().map(ToString::to_string).collect()
}

#[test]
fn detects_module_cycles() {
    let files = [
        ("src/lib.rs", "mod left;\nmod right;\nmod shared;"),
        ("src/left.rs", "use crate::right::Right;\npub(crate) struct Left(Right);"),
        ("src/right.rs", "pub(crate) struct Right;\nfn of(x: &crate::left::Left) {}"),
        ("src/shared.rs", "pub(crate) struct Shared;"),
    ];
    let found = cycles(&files);
    assert_eq!(found.len(), 1);
    assert!(found[0].starts_with("modules of `crate` use each other:"), "{}", found[0]);
    assert!(found[0].contains("\n  left -> right: Right, crate::right::Right"), "{}", found[0]);
    assert!(found[0].contains("\n  right -> left: crate::left::Left"), "{}", found[0]);
}

#[test]
fn detects_cycles_through_reexports() {
    let files = [
        ("src/lib.rs", "mod a;\nmod b;\nmod c;\npub use a::Start;"),
        ("src/a.rs", "use super::b;\npub struct Start;\nfn go() { b::next() }"),
        ("src/b/mod.rs", "mod inner;\npub(crate) use self::inner::next;"),
        ("src/b/inner.rs", "pub(crate) fn next() { crate::c::last(\"{\") }"),
        ("src/c.rs", "use super::*;\npub(crate) fn last(text: &str) -> Start { Start }"),
    ];
    let found = cycles(&files);
    assert_eq!(found.len(), 1);
    for edge in ["a -> b: b::next", "b -> c: crate::c::last", "c -> a: Start"] {
        assert!(found[0].contains(edge), "{}", found[0]);
    }
}

#[test]
fn detects_cycles_through_macro_items() {
    // The name `Code` is in the macro's body in `literal`, and an argument of the macro in `argument`.
    let literal = "macro_rules! codes { ($($code:ident)*) => { pub enum Code { $($code,)* } fn of() { $($code::of();)* } }; }\n\
                   codes! { First Second }\nfn level(x: crate::low::Low) {}";
    let argument = "macro_rules! level { ($(#[$meta:meta])* $name:ident: $($level:ident)*) => { $(#[$meta])* pub enum $name { $($level,)* } }; }\n\
                    level!(Code: Least Most);\nfn level(x: crate::low::Low) {}";
    for high in [literal, argument] {
        let files = [
            ("src/lib.rs", "mod high;\nmod low;"),
            ("src/high.rs", high),
            (
                "src/low.rs",
                "pub struct Low;\nimpl Low { fn code(&self) -> crate::high::Code { todo() } }",
            ),
        ];
        let found = cycles(&files);
        assert_eq!(found.len(), 1, "{high}");
        assert!(found[0].contains("low -> high: crate::high::Code"), "{}", found[0]);
    }
}

#[test]
fn macro_items_belong_to_invoking_module() {
    let files = [
        ("src/lib.rs", "mod high;\nmod low;\nmod table;"),
        (
            "src/table.rs",
            "macro_rules! table { ($name:ident) => { pub const ROWS: usize = 1; pub struct $name; }; }\npub(crate) use table;",
        ),
        ("src/low.rs", "crate::table::table!(Low);\nfn other(x: crate::high::High) {}"),
        (
            "src/high.rs",
            "use crate::table::table;\ntable!(High);\nfn rows() -> usize { crate::low::ROWS }",
        ),
    ];
    let found = cycles(&files);
    assert_eq!(found.len(), 1);
    assert!(found[0].contains("high -> low: crate::low::ROWS"), "{}", found[0]);
    assert!(found[0].contains("low -> high: crate::high::High"), "{}", found[0]);
    assert!(!found[0].contains("table ->"), "{}", found[0]);
}

#[test]
fn cycle_check_ignores_children_tests_and_comments() {
    // A module and its children count as one; tests may use everything; comments and strings are not code.
    let files = [
        ("src/lib.rs", "mod high;\nmod low;"),
        (
            "src/high/mod.rs",
            "mod part;\npub(crate) struct Whole;\nfn all() { part::some(crate::low::Low) }",
        ),
        (
            "src/high/part.rs",
            "use super::Whole;\npub(super) fn some(low: crate::low::Low) -> Whole { Whole }",
        ),
        (
            "src/low.rs",
            "// crate::high::Whole\npub(crate) struct Low;\nconst TEXT: &str = \"crate::high::Whole\";\n\
             #[cfg(test)]\nmod tests { use crate::high::Whole; }",
        ),
    ];
    assert_eq!(cycles(&files), [""; 0]);
}

#[test]
fn detects_banned_phrases() {
    let text = format!("a line\nwhat lies inside {} a block\n", "of");
    assert_eq!(odd_phrases(&text).len(), 1);
    assert!(odd_phrases(&text)[0].starts_with("2: "));
    assert!(odd_phrases("what lies inside the block").is_empty());
}

#[test]
fn detects_cli_flags_in_libraries() {
    let hint = "fn hint() -> &'static str {\n    \"pass `--target ios18`\"\n}";
    assert_eq!(flags(hint), ["2: \"pass `--target ios18`\""]);
    assert_eq!(flags("const RAW: &str = r#\"see --json\"#;").len(), 1);
    let clean = "// as `--json` prints it\nconst A: &str = \"the option `target=ios18` -- or none\";\n\
                 const B: char = '\"'; const C: &str = \"a--b\";";
    assert_eq!(flags(clean), [""; 0]);
    assert_eq!(flags("#[cfg(test)]\nmod tests { const A: &str = \"--json\"; }"), [""; 0]);
}

#[test]
fn detects_cli_commands_in_libraries() {
    let names = ["cache".to_owned(), "convert".to_owned()];
    let hint = "const A: &str = \"remove entries with `coremill cache prune`\";";
    assert_eq!(commands(hint, &names).len(), 1);
    let clean = "const A: &str = \"convert it with coremill, or a coremill store key\"; // coremill convert\n\
                 #[cfg(test)]\nmod tests { const B: &str = \"coremill convert\"; }";
    assert_eq!(commands(clean, &names), [""; 0]);
}

#[test]
fn detects_banned_message_phrases() {
    assert_eq!(odd_messages("fail!(\"`x` is 0; accepted are 1 and more\")").len(), 1);
    assert_eq!(odd_messages("fail!(\"there is no input `z`; there are `x`\")").len(), 1);
    assert_eq!(odd_messages("fail!(\"`x` must be at least 1, got 0\") // accepted are"), [""; 0]);
}

#[test]
fn detects_undocumented_and_misplaced_unsafe() {
    let (keyword, comment) = ("unsafe", "// SAFETY: the length was checked.\n");
    let block = format!("{keyword} {{ read(pointer) }}");
    assert_eq!(unsafe_violations("crates/tensor/src/a.rs", &block).len(), 1);
    assert_eq!(unsafe_violations("crates/tensor/src/a.rs", &format!("{comment}{block}")), [""; 0]);
    assert_eq!(unsafe_violations("crates/mil/src/a.rs", &format!("{comment}{block}")).len(), 1);
}

#[test]
fn detects_unscheduled_fuzz_targets() {
    let manifest = "[[bin]]\nname = \"text\"\n\n[[bin]]\nname = \"model\"\npath = \"x\"";
    let both = BTreeSet::from(["model".to_owned(), "text".to_owned()]);
    assert_eq!(fuzz_targets(manifest), both);
    assert_eq!(scheduled("matrix:\n  target: [text, model]"), both);
    assert_ne!(scheduled("matrix:\n  target: [text]"), both);
}

#[test]
fn detects_unchecked_products() {
    let text = "let a = rows * columns;\nlet b = (checked(rows) * columns).get()?;\nlet c = 2 * axis; // x * y\n\
                let d: i64 = sizes.iter().product();\nlet e = scale as f64 * 2.0;\n\
                let f = \"x * \\\n y * z\";\nlet g = rows * 3;";
    let found = unchecked_products(text);
    assert_eq!(found.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [1, 4, 8]);
    assert_eq!(found[0].1, "let a = rows * columns;");
}

#[test]
fn detects_unchecked_indexing() {
    let text = "let a = shape[axis];\nlet b: [i32; 2] = [x.at(0)?, 1];\nlet c = &values[..];\nlet d = f(x)?[i + 1];\n\
                #[derive(Debug)]\nlet e = both[1];\nmap.remove(&key);\nlist.remove(at);\nlet g = &sizes[1..];\n\
                order.swap(0, 1);\nlet i = x.rank() - 2;\nlet j = rank - count;\nfn f(x: &mut [f32]) {}\n#[cfg(test)]\nmod tests {\nlet h = shape[axis];\n}";
    assert_eq!(unchecked_places(text), [1, 4, 8, 9, 10, 11]);
}

#[test]
fn detects_items_without_examples() {
    let text = "//! Things.\n//!\n//! ```\n//! ```\n\npub mod shown;\n#[doc(hidden)]\npub mod hidden;\nmod own;\n\n\
                /// As [`make`] says.\n#[derive(Clone)]\npub struct Linked;\n\n/// Alone.\npub enum Alone {}\n\n\
                /// ```\n/// ```\npub fn make() {}\n\n/// See [`make`].\npub fn other() {}\n";
    assert!(examples::head_has_example(text) && !examples::head_has_example("//! Things.\n"));
    assert_eq!(examples::public_modules(text), ["shown"]);
    assert_eq!(examples::items_without_example(text), ["Alone", "other"]);
}

#[test]
fn detects_participles_and_coined_names() {
    let text = "pub struct Sized;\npub(crate) enum Made<'a> {}\nstruct Verified;\nstruct MappedFile;\n    fn told() {}\n\
                mod fed;\n/// struct Held\npub trait Shaped {}\nlet made = Made;\nstruct Ladder(u8);\n";
    let lines: Vec<_> =
        odd_names(text).iter().map(|odd| odd.split(':').next().map(str::to_owned)).collect();
    let expected = ["1", "2", "5", "6", "8", "10"].map(|line| Some(line.to_owned()));
    assert_eq!(lines, expected);
}

#[test]
fn detects_vague_test_names() {
    let long = "x".repeat(61);
    let text = format!(
        "#[test]\nfn what_is_no_cycle() {{}}\n#[test]\n#[cfg(unix)]\nfn rejects_cycles() {{}}\nfn what() {{}}\n\
         #[test]\nfn {long}() {{}}\ndef test_names_are_told(x):\ndef test_the_row():\ndef test_rows_match():\n"
    );
    let found = odd_tests(&text);
    let lines: Vec<_> = found.iter().filter_map(|odd| odd.split(':').next()).collect();
    assert_eq!(lines, ["2", "8", "9", "10"], "{found:?}");
}
