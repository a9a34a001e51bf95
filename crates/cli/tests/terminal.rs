//! Files whose strings all contain terminal control sequences. The commands must print only text
//! and our own styles.

#[path = "support/scratch.rs"]
mod scratch;

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use coremill::SaveOptions;
use coremill_cache::{Key, Options, Store};
use coremill_engine::Array;
use coremill_io::is_printable;
use coremill_mil::model::{self, Metadata};
use coremill_mil::text::{self, NoWeights};
use coremill_tensor::{Buffer, DType};
use coremill_zip::{Archive, Writer};
use scratch::Scratch;

/// Sets a title, clears the screen, sets colors (also by a C1 control), reverses the text
/// direction, returns and backspaces.
const HOSTILE: &str = "\u{1b}]0;t\u{7}\u{1b}[2J\u{1b}[45m\u{9b}8m\u{202e}\r\u{8}\n";
/// The JSON form of [`HOSTILE`].
const HOSTILE_JSON: &str = "\\u001b]0;t\\u0007\\u001b[2J\\u001b[45m\\u009b8m\\u202e\\r\\b";
/// Length of a placeholder name, which is replaced by a name of equal length.
const MARKER_LENGTH: usize = 32;
/// The codes of our styles.
const STYLES: [&str; 8] = ["0", "1", "2", "31", "32", "33", "34", "36"];

/// A placeholder name.
fn marker(number: usize) -> String {
    format!("{:x<MARKER_LENGTH$}", format!("marker_{number:02}"))
}

fn replace(bytes: &mut [u8], from: &str, to: &str) -> usize {
    assert_eq!(from.len(), to.len());
    let mut count = 0;
    for at in 0..bytes.len().saturating_sub(from.len()) + 1 {
        if bytes[at..].starts_with(from.as_bytes()) {
            bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
            count += 1;
        }
    }
    count
}

/// Replaces the placeholders in a file, and other strings, by hostile ones.
fn corrupt(path: &Path, others: &[(&str, &str)]) {
    let mut bytes = fs::read(path).expect("a file");
    let mut count = 0;
    for number in 0..20 {
        let hostile = format!("{HOSTILE}{number:02}");
        let hostile = format!("{hostile}{}", "x".repeat(MARKER_LENGTH - hostile.len()));
        count += replace(&mut bytes, &marker(number), &hostile);
    }
    for (from, to) in others {
        count += replace(&mut bytes, from, to);
    }
    assert!(count > 0, "{} contains none of the placeholder names", path.display());
    fs::write(path, bytes).expect("written");
}

/// Models with hostile names, metadata and descriptions.
fn place_models(directory: &Path) {
    let names: Vec<String> = (0..20).map(marker).collect();
    let source = format!(
        "program(1.3) {{
            func main<ios18>(tensor<fp32, [2]> {0}, state<tensor<fp16, [2]>> {1}) {{
                tensor<fp16, [2]> {2} = read_state(input = {1});
                string {3} = const()[val = string(\"fp32\")];
                tensor<fp32, [2]> {4} = cast(dtype = {3}, x = {2});
                tensor<fp32, [2]> {5} = add(x = {0}, y = {4})[name = string(\"{6}\")];
                fp32 {7} = const()[val = fp32(0.5)];
                tensor<fp32, [2]> {8} = leaky_relu(alpha = {7}, x = {5});
            }} -> ({8});
        }}",
        names[0], names[1], names[2], names[3], names[4], names[5], names[6], names[7], names[8],
    );
    let program = text::parse(&source, &NoWeights).expect("it is MIL");
    let mut model = model::describe(program).expect("it is complete");
    let note = |number: usize| names[number].clone();
    model.description.metadata = Some(Metadata {
        short_description: note(9),
        version: note(10),
        author: note(11),
        license: note(12),
        user_defined: vec![(note(13), note(14))],
        ..Metadata::default()
    });
    model.description.inputs[0].short_description = note(15);
    let verified = coremill::verify(&model).expect("it is sound");
    for name in ["names.mlpackage", "kinds.mlpackage", "names.mlmodelc"] {
        coremill::save(directory.join(name), &verified, &SaveOptions::default()).expect("saved");
    }
    let file = "Data/com.apple.CoreML/model.mlmodel";
    corrupt(&directory.join("names.mlpackage").join(file), &[]);
    let kind = [("leaky_relu", "\u{1b}[2J\u{1b}[8mxx")];
    corrupt(&directory.join("kinds.mlpackage").join(file), &kind);
    corrupt(&directory.join("names.mlmodelc/model.mil"), &[]);
    fs::write(directory.join("names.mil"), source.replace("leaky_relu", HOSTILE)).expect("written");
}

/// A PyTorch program with hostile stack traces, modules and operators.
fn place_archive(directory: &Path) {
    let bytes = fs::read(directory.join("examples/digits.pt2")).expect("an example");
    let archive = Archive::open(Buffer::from(bytes)).expect("zip");
    let mut writer = Writer::new(File::create(directory.join("hostile.pt2")).expect("a file"));
    let mut count = 0;
    for entry in archive.names() {
        let mut bytes = archive.read(entry, 1 << 26).expect("an entry").as_bytes().to_vec();
        if entry.ends_with(".json") {
            let mut text = String::from_utf8(bytes).expect("UTF-8");
            for (from, to) in [
                ("\"stack_trace\": \"", format!("\"stack_trace\": \"{HOSTILE_JSON}")),
                ("torch.ops.aten.relu.default", format!("torch.ops.aten.re{HOSTILE_JSON}.default")),
            ] {
                count += text.matches(from).count();
                text = text.replace(from, &to);
            }
            bytes = text.into_bytes();
        }
        writer.add(entry, &[&bytes]).expect("written");
    }
    writer.finish().expect("written");
    assert!(count > 0, "the archive contains none of the strings to replace");
}

/// The first control character in a text that is neither a line break nor part of one of our styles.
fn first_control_character(text: &str) -> Option<char> {
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let style = rest.strip_prefix("\u{1b}[").and_then(|codes| {
            let end = codes.find('m')?;
            codes[..end].split(';').all(|code| STYLES.contains(&code)).then(|| &codes[end + 1..])
        });
        rest = match style {
            Some(rest) => rest,
            None if c == '\n' || is_printable(c) => &rest[c.len_utf8()..],
            None => return Some(c),
        };
    }
    None
}

#[test]
fn commands_never_print_hostile_terminal_escapes() {
    let scratch = Scratch::new();
    let directory = scratch.path();
    place_models(directory);
    place_archive(directory);
    fs::copy(directory.join("files/total.pte"), directory.join("hostile.pte")).expect("a copy");
    let method = [
        ("CoreMLBackend", "\u{1b}[2J\u{1b}[8m\u{202e}ok"),
        ("aten::relu", "\u{1b}[2J\u{1b}[8mxx"),
        ("forward", "\u{1b}[2J\u{9b}m"),
        ("model_type", "\u{1b}[2J\u{1b}[8mxx"),
    ];
    corrupt(&directory.join("hostile.pte"), &method);
    let array = Array::floats(DType::Fp32, [2], vec![1.0, f32::NAN]);
    let arrays = [(HOSTILE.to_owned(), array)];
    coremill::arrays::write_npz(directory.join("hostile.npz"), &arrays).expect("written");
    let cache = directory.join("cache");
    let store = Store::open(&cache, &Options::default()).expect("opens");
    drop(store.get_or_insert_bytes(&Key::new(["a"]), HOSTILE, HOSTILE, &[1]).expect("stored"));

    let of_models = [
        "check {}",
        "check {} --json",
        "inspect {} --top 0",
        "inspect {} --json",
        "run {} --random 1",
        "run {} --random 1 --json",
        "run {} --random 1 --profile --repeat 2",
        "run {} --inputs hostile.npz",
        "run {} --random 1 --state-in hostile.npz",
        "compare {} {} --random 1 --per-op",
        "compare {} {} --random 1 --per-op --json",
        "compare {} files/small.mil --random 1",
        "compare hostile.npz {} --random 1",
        "diff {} files/small.mil",
        "diff {} files/small.mil --json",
        "diff names.mlpackage {}",
        "report {} -o page.html",
        "pack {} -o packed.mlpackage",
        "compress {} -o small.mlpackage --linear int8 --min-elements 1",
        "plan {}",
        "extract {} -o out",
        "convert {} -o out.mlpackage",
    ];
    let models =
        ["names.mlpackage", "kinds.mlpackage", "names.mlmodelc", "names.mil", "hostile.pte"];
    let mut calls: Vec<String> =
        models.iter().flat_map(|model| of_models.map(|call| call.replace("{}", model))).collect();
    let others = [
        "convert hostile.pt2 -o out.mlpackage",
        "convert hostile.pt2 -o out.mlpackage --json",
        "lower hostile.pt2 -o out.pte --partition-report",
        "lower hostile.pt2 -o out.pte --portable",
        "lower hostile.pt2 -o out.pte --json",
        "quantize hostile.pt2 -o out.mlpackage --recipe int8-weight-only",
        "inspect hostile.pt2",
        "compare hostile.pt2 names.mlpackage",
        "compare hostile.npz hostile.npz",
        "compare hostile.npz hostile.npz --json",
        "cache list --dir cache",
        "cache list --dir cache --json",
    ];
    calls.extend(others.map(str::to_owned));
    let mut replaced = 0;
    for call in &calls {
        let mut command = Command::new(env!("CARGO_BIN_EXE_coremill"));
        command.args(["--color", "always"]).args(call.split(' ')).current_dir(directory);
        let output = command.output().expect("the command starts");
        let text = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code().is_some_and(|code| code < 2), "`{call}`: {text}");
        if let Some(c) = first_control_character(&text) {
            panic!(
                "`{call}` prints {c:?}:\n{}",
                text.escape_debug().to_string().replace("\\n", "\n")
            );
        }
        replaced += usize::from(text.contains('\u{fffd}') || text.contains("\\u001b"));
    }
    assert!(
        replaced > calls.len() / 3,
        "{replaced} of {} calls show a hostile string",
        calls.len()
    );
    for path in [HOSTILE, "\u{202e}.mlpackage"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_coremill"));
        let output = command.args(["inspect", path]).output().expect("the command starts");
        assert_eq!(first_control_character(&String::from_utf8_lossy(&output.stderr)), None);
    }
}
