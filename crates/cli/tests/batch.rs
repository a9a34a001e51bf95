//! Tests that `run --batch` runs each file independently, in several sessions, with results in the order of the files.

#[path = "support/scratch.rs"]
mod scratch;

use std::fs;
use std::process::{Command, Output};

use coremill_session::{Array, arrays};
use coremill_tensor::DType;
use serde_json::Value;

use scratch::Scratch;

const COUNT: usize = 40;

/// A model with a state that inputs must not share, and with work that takes longer for some inputs.
const MODEL: &str = "program(1.3) {
    func main<ios18>(tensor<fp16, [2]> x, tensor<int32, [1]> count, state<tensor<fp16, [2]>> total) {
        tensor<fp16, [2]> before = read_state(input = total);
        tensor<fp16, [2]> after = add(x = before, y = x);
        write_state(input = total, data = after);
        tensor<fp16, [2]> again = read_state(input = total);
        tensor<int32, [1]> reps = add(x = count, y = tensor<int32, [1]>([1]));
        tensor<fp16, [?]> y = tile(x = again, reps = reps);
    } -> (y);
}";

fn run(scratch: &Scratch, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_coremill"));
    command.args(arguments).current_dir(scratch.path()).output().expect("the command starts")
}

fn stderr_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Writes the model and its inputs. Every seventh input takes much longer than the others.
fn place() -> Scratch {
    let scratch = Scratch::new();
    fs::write(scratch.path().join("total.mil"), MODEL).expect("a file");
    fs::create_dir(scratch.path().join("in")).expect("a directory");
    for at in 0..COUNT {
        let long = if at % 7 == 0 { 200_000 } else { 0 };
        let x = Array::floats(DType::Fp16, [2], vec![at as f32, 0.5]);
        let count = Array::ints(DType::Int32, [1], vec![long]);
        let inputs = [("x".to_owned(), x), ("count".to_owned(), count)];
        arrays::write_npz(scratch.path().join(format!("in/{at:02}.npz")), &inputs).expect("a file");
    }
    fs::write(scratch.path().join("in/notes.txt"), "no inputs").expect("a file");
    scratch
}

#[test]
fn batch_runs_each_file_with_fresh_state() {
    let scratch = place();
    for threads in ["1", "2", "5"] {
        let batch = [
            "run",
            "total.mil",
            "--batch",
            "-i",
            "in",
            "-o",
            "out",
            "--threads",
            threads,
            "--json",
        ];
        let output = run(&scratch, &batch);
        assert!(output.status.success(), "{}", stderr_of(&output));
        let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(report["batch"]["sessions"].to_string(), threads);
        for at in 0..COUNT {
            assert_eq!(report["batch"]["inputs"][at], format!("in/{at:02}.npz"));
            assert_eq!(report["outputs"][at][0]["max"].as_f64(), Some((at as f64).max(0.5)));
            let found = arrays::read_npz(scratch.path().join(format!("out/{at:02}.npz")));
            let found = found.expect("outputs");
            let copies = if at % 7 == 0 { 200_001 } else { 1 };
            let expected = [at as f32, 0.5].repeat(copies);
            assert_eq!(found.len(), 1);
            assert_eq!(found[0].1.as_floats(), Some(&*expected), "{at} with {threads} threads");
        }
        fs::remove_dir_all(scratch.path().join("out")).expect("outputs");
    }
}

#[test]
fn batch_error_names_first_invalid_file() {
    let scratch = place();
    let invalid = [("z".to_owned(), Array::floats(DType::Fp32, [1], vec![1.0]))];
    for at in [5, 6, 30] {
        let path = scratch.path().join(format!("in/{at:02}.npz"));
        arrays::write_npz(path, &invalid).expect("a file");
    }
    let output = run(&scratch, &["run", "total.mil", "--batch", "-i", "in", "--threads", "3"]);
    assert_eq!(output.status.code(), Some(1));
    let message = stderr_of(&output);
    assert!(message.contains("in/05.npz"), "{message}");
    assert!(output.stdout.is_empty());
}

#[test]
fn batch_rejects_conflicting_or_unusable_paths() {
    let scratch = place();
    fs::create_dir(scratch.path().join("empty")).expect("a directory");
    for (arguments, expected) in [
        (&["-i", "in/03.npz", "-i", "in", "-o", "out"][..], "would be written twice"),
        (&["-i", "in", "-o", "in"], "is an input, and would be overwritten"),
        (&["-i", "empty", "-o", "out"], "empty: contains no `.npz` file"),
        (&["-i", "-", "-o", "out"], "`-` is standard input"),
        (&["-i", "in", "-o", "-"], "cannot hold a directory"),
    ] {
        let output = run(&scratch, &[&["run", "total.mil", "--batch"], arguments].concat());
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(stderr_of(&output).contains(expected), "{arguments:?}: {}", stderr_of(&output));
        assert!(!scratch.path().join("out").exists(), "{arguments:?}");
    }
}
