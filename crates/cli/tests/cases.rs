//! Regression tests for inputs that once caused panics, aborts or excessive memory use, and for
//! ordinary inputs. Each file in `tests/cases` has a row with the expected result, and all share a
//! memory limit.
//!
//! The archives are stored compressed to keep the repository small. The tests expand them to the
//! form that torch writes.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use coremill_tensor::Buffer;
use coremill_zip::{Archive, Writer};

/// Case, command (`{}` is the case, `OUT` the output), exit code, and a part of the message.
type Row = (&'static str, &'static str, i32, &'static str);

/// Maximum mapped memory of a process in KB.
#[cfg(target_os = "linux")]
const MAX_MEMORY: u64 = 1500 << 10;

const FORGED: &[Row] = &[
    ("adapt.pt2", "convert {} -o OUT.mlpackage", 1, "requires a constant of 3599940000 elements"),
    ("stft.pt2", "convert {} -o OUT.mlpackage", 1, "requires a constant of 900060000 elements"),
    ("linspace.pt2", "convert {} -o OUT.mlpackage", 1, "has a dimension of size 4294967296"),
    ("attn_4.mil", "run {} --random 1", 1, "does not hold the 128 elements"),
    ("attn_9.mil", "run {} --random 1", 1, "does not hold the 128 elements"),
    ("grow.mil", "run {} --random 1 --max-memory 100M", 1, "--max-memory"),
    (
        "z_conv.mlpackage",
        "run {} --random 1 --threads 100000",
        1,
        "expected a number from 0 to 1024",
    ),
];

/// The command for the other forged files, which are programs and archives with some bytes changed at
/// random. All must be rejected.
fn mutated_command(name: &str) -> Option<&'static str> {
    let (kind, _) = name.split_once("-RC").or_else(|| name.split_once("-RSS"))?;
    match kind {
        "pt2-convert" | "pt2r-convert" => Some("convert {} -o OUT.mlpackage"),
        "pt2-lower" | "pt2r-lower" => Some("lower {} -o OUT.pte"),
        "out-run" | "pte-run" => Some("run {} --random 1"),
        _ => None,
    }
}

const ORDINARY: &[Row] = &[
    ("attn.pt2", "compare {} {} --per-op", 0, "scaled_dot_product_attention"),
    ("int4_linear.pt2", "convert {} --target ios18 -o OUT.mlpackage --verify", 0, "147 KB"),
    ("int4_linear.pt2", "convert {} --target ios16 -o OUT.mlpackage", 1, "--target ios18"),
    ("codebook_linear.pt2", "convert {} -o OUT.mlpackage --verify", 0, "agrees"),
    ("ao_doc.pt2", "lower {} -o OUT.pte --partition-report --verify", 0, "iOS18"),
    ("llama.pt2", "lower {} -o OUT.pte --verify", 0, "agrees"),
    ("llama.pt2", "compare {} {} --random 1", 0, "outputs"),
    ("dict.pt2", "convert {} -o OUT.mlpackage --verify", 0, "logits"),
    ("overflow.pt2", "convert {} -o OUT.mlpackage --verify", 1, "--fp32-modules"),
    ("overflow.pt2", "compare {} {} --per-op --precision fast,faithful", 0, "per op"),
    ("bf16.pt2", "convert {} -o OUT.mlpackage --verify", 0, "agrees"),
    ("svd.pt2", "lower {} -o OUT.pte --json", 1, "\"operator\": \"aten.linalg_svdvals.default\""),
    ("istft_frames_dyn_dyn.pt2", "convert {} -o OUT.mlpackage --verify", 0, "agrees"),
    ("vocos_dyn.pt2", "convert {} -o OUT.mlpackage --verify", 0, "agrees"),
    ("fnet_dyn.pt2", "lower {} -o OUT.pte --verify", 0, "nothing outside"),
    ("guided_blur.pt2", "convert {} -o OUT.mlpackage --verify", 0, "agrees"),
    ("clahe.pt2", "convert {} -o OUT.mlpackage --verify", 0, "agrees"),
    ("siglip2_naflex.pt2", "convert {} -o OUT.mlpackage --verify", 0, "agrees"),
    ("ms_deform_attn.pt2", "convert {} -o OUT.mlpackage", 1, "`l` has 6 axes"),
    ("ms_deform_attn.pt2", "lower {} -o OUT.pte --verify", 0, "agrees"),
    ("kornia_warp.pt2", "convert {} -o OUT.mlpackage --verify", 0, "agrees"),
    ("unweighted.mil", "check {}", 1, "weight-missing"),
    ("unweighted.mil", "text {}", 0, "constexpr_sparse_to_dense"),
    ("unweighted.mil", "run {} --random 1", 1, "weight-missing"),
    ("unweighted.mil", "run {} --random 1 --fill-weights random", 0, "[2, 4]"),
];

fn cases() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases")
}

/// Places a case in a directory, in the form that torch writes.
fn place(name: &str, directory: &Path) {
    let (from, to) = (cases().join(name), directory.join(name));
    if from.is_dir() {
        copy(&from, &to);
    } else if name.ends_with(".pt2") {
        let compressed =
            Archive::open(Buffer::from(fs::read(&from).expect("a case"))).expect("zip");
        let mut writer = Writer::new(File::create(&to).expect("a file"));
        for entry in compressed.names() {
            let bytes = compressed.read(entry, 1 << 26).expect("an entry");
            writer.add(entry, &[bytes.as_bytes()]).expect("written");
        }
        writer.finish().expect("written");
    } else {
        fs::copy(&from, &to).expect("a copy");
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a directory");
    for entry in fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        match entry.file_type().expect("a type").is_dir() {
            true => copy(&entry.path(), &target),
            false => drop(fs::copy(entry.path(), target).expect("a copy")),
        }
    }
}

/// Writes the weight file of the MIL texts: three fp16 arrays.
fn place_weights(directory: &Path) {
    const ARRAYS: [(usize, usize); 3] = [(64, 1600), (1728, 1536), (3328, 1600)];
    let mut bytes = vec![0; 3328 + 64 + 1600];
    bytes[0] = 3;
    bytes[4] = 2;
    for (at, length) in ARRAYS {
        bytes[at..at + 4].copy_from_slice(&0xdead_beef_u32.to_le_bytes());
        bytes[at + 4] = 1;
        bytes[at + 8..at + 16].copy_from_slice(&(length as u64).to_le_bytes());
        bytes[at + 16..at + 24].copy_from_slice(&(at as u64 + 64).to_le_bytes());
        for index in 0..length / 2 {
            let half = 0x2c00 | (index * 37 % 1024) as u16 | ((index % 3) as u16 & 1) << 15;
            let place = at + 64 + 2 * index;
            bytes[place..place + 2].copy_from_slice(&half.to_le_bytes());
        }
    }
    fs::create_dir_all(directory.join("weights")).expect("a directory");
    fs::write(directory.join("weights/weight.bin"), bytes).expect("a file");
}

fn run(command: &str, name: &str, directory: &Path) -> Output {
    let words = command.replace("{}", name).replace("OUT", "out");
    let binary = env!("CARGO_BIN_EXE_coremill");
    #[cfg(target_os = "linux")]
    let mut process = {
        let mut shell = Command::new("sh");
        let limited = format!("ulimit -v {MAX_MEMORY} && exec \"$@\"");
        shell.args(["-c", &limited, "sh", binary]);
        shell
    };
    #[cfg(not(target_os = "linux"))]
    let mut process = Command::new(binary);
    process.args(words.split_whitespace()).current_dir(directory);
    process.env("NO_COLOR", "1").output().expect("the command starts")
}

fn check_rows(rows: &[Row]) {
    let directory = tempfile::tempdir().expect("a directory");
    place_weights(directory.path());
    let mut failures = Vec::new();
    for (name, command, code, expected) in rows {
        place(name, directory.path());
        let output = run(command, name, directory.path());
        let text = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        if output.status.code() != Some(*code) || !text.contains(expected) {
            failures.push(format!("`{command}` of {name} ended with {}:\n{text}", output.status));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn rejects_forged_inputs() {
    check_rows(FORGED);
}

#[test]
fn rejects_randomly_mutated_inputs() {
    let names = fs::read_dir(cases()).expect("the cases").map(|entry| {
        let name = entry.expect("an entry").file_name();
        &*name.to_string_lossy().into_owned().leak()
    });
    let rows: Vec<Row> =
        names.filter_map(|name| Some((name, mutated_command(name)?, 1, "error: "))).collect();
    assert!(rows.len() >= 30, "only {} mutated cases", rows.len());
    check_rows(&rows);
}

#[test]
fn ordinary_inputs_give_expected_exit_and_output() {
    check_rows(ORDINARY);
}

/// The file is sparse: its length must not determine disk or memory use.
#[test]
fn rejects_oversized_mil_text_without_reading_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = File::create(directory.path().join("long.mil")).expect("a file");
    (&file).write_all(b"program(1.3)\n").expect("a beginning");
    file.set_len(200 << 30).expect("a sparse file");
    for command in ["check {}", "run {} --random 1"] {
        let output = run(command, "long.mil", directory.path());
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1), "`{command}` ended with {}", output.status);
        assert!(text.contains("long.mil is longer than 1073741824 bytes"), "{text}");
    }
}

/// Inputs requested for a report must not be ignored silently.
#[cfg(target_os = "linux")]
#[test]
fn report_fails_on_non_array_inputs() {
    let directory = tempfile::tempdir().expect("a directory");
    place("int4_linear.pt2", directory.path());
    let output = run("report {} -i /dev/zero -o page.html", "int4_linear.pt2", directory.path());
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && text.contains("/dev/zero"), "{text}");
    assert!(!directory.path().join("page.html").exists());
}

#[test]
fn every_case_file_has_table_row() {
    for entry in fs::read_dir(cases()).expect("the cases") {
        let name = entry.expect("an entry").file_name().to_string_lossy().into_owned();
        let mut rows = FORGED.iter().chain(ORDINARY);
        let is_known = rows.any(|row| row.0 == name) || mutated_command(&name).is_some();
        assert!(is_known, "no row for {name}");
    }
}
