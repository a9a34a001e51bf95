//! Tests that `-` is standard output for every output option, and that no command creates a file of
//! that name.

#[path = "support/scratch.rs"]
mod scratch;

use std::process::{Command, Output};

use scratch::Scratch;

/// The rows of `outputs.txt`: option, call and expected result.
fn rows() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    let rows = include_str!("outputs.txt").lines().filter(|line| !line.starts_with('#'));
    rows.map(|row| {
        let mut columns = row.splitn(3, " | ");
        let mut column = || columns.next().expect("three columns");
        (column(), column(), column())
    })
}

fn run(scratch: &Scratch, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_coremill"));
    command.args(arguments).current_dir(scratch.path()).output().expect("the command starts")
}

#[test]
fn dash_writes_output_to_stdout() {
    let scratch = Scratch::new();
    for (option, call, expected) in rows() {
        let name = option.split_once(' ').expect("a command and an option").1;
        // Words after `--` are not options.
        let (options, rest) = call.split_once(" -- ").map_or((call, None), |(a, b)| (a, Some(b)));
        let rest = rest.into_iter().flat_map(|rest| ["--"].into_iter().chain(rest.split(' ')));
        let arguments: Vec<&str> = options.split(' ').chain([name, "-"]).chain(rest).collect();
        let output = run(&scratch, &arguments);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(!scratch.path().join("-").exists(), "`{call} {name} -` creates a file named `-`");
        if let (true, Some(_)) = (expected.starts_with("error: "), output.status.code()) {
            assert_eq!(output.status.code(), Some(1), "`{call} {name} -`: {stderr}");
            assert!(stderr.contains(expected), "`{call} {name} -`: {stderr}");
            assert!(
                output.stdout.is_empty(),
                "`{call} {name} -` fails, but writes to standard output"
            );
            continue;
        }
        assert!(output.status.success(), "`{call} {name} -`: {stderr}");
        let start = String::from_utf8_lossy(&output.stdout[..output.stdout.len().min(40)]);
        assert!(start.contains(expected), "`{call} {name} -` begins with {start:?}");
    }
}

/// Standard output receives the content of the file, and the report goes to standard error.
#[test]
fn stdout_holds_only_output_file_bytes() {
    let scratch = Scratch::new();
    for (call, option) in [
        ("run files/counter.mil --random 1", "--state-out"),
        ("run files/counter.mil --random 1 --json", "--state-out"),
        ("diff files/small.mil files/counter.mil", "--html"),
        ("lower examples/digits.pt2 --json", "--output"),
    ] {
        let arguments: Vec<&str> = call.split(' ').chain([option]).collect();
        let printed = run(&scratch, &[&arguments[..], &["-"]].concat()).stdout;
        assert!(run(&scratch, &[&arguments[..], &["file"]].concat()).status.success(), "{call}");
        let written = std::fs::read(scratch.path().join("file")).expect("it was written");
        assert!(printed == written, "`{call}`: {} and {} bytes", printed.len(), written.len());
    }
}

#[test]
fn rejects_two_outputs_to_stdout() {
    let scratch = Scratch::new();
    let call = ["run", "files/counter.mil", "--random", "1", "-o", "-", "--trace", "-"];
    let output = run(&scratch, &call);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("standard output cannot hold several files"), "{stderr}");
}

/// Output is appended to a redirected standard output: `-`, `/dev/stdout` and `/proc/self/fd/1`.
#[cfg(target_os = "linux")]
#[test]
fn appends_to_redirected_stdout() {
    let scratch = Scratch::new();
    for output in ["-", "/dev/stdout", "/proc/self/fd/1"] {
        let script = format!(
            "echo before > all; \"$0\" report files/small.mil -o {output} >> all; echo after >> all"
        );
        let binary = env!("CARGO_BIN_EXE_coremill");
        let mut shell = Command::new("sh");
        shell.args(["-c", &script, binary]).current_dir(scratch.path());
        assert!(shell.status().expect("a shell").success());
        let all = std::fs::read_to_string(scratch.path().join("all")).expect("a file");
        assert!(all.starts_with("before\n<!DOCTYPE html>") && all.ends_with("after\n"), "{output}");
    }
}

/// Files in shared memory are regular files and are replaced.
#[cfg(target_os = "linux")]
#[test]
fn replaces_output_files_in_shared_memory() {
    let memory = std::path::Path::new("/dev/shm");
    if !memory.is_dir() {
        return;
    }
    let (scratch, memory) = (Scratch::new(), tempfile::tempdir_in(memory).expect("a directory"));
    let through_proc = "/proc/self/cwd/out.npz".to_owned();
    for path in [memory.path().join("out.npz").display().to_string(), through_proc] {
        let mut sizes = Vec::new();
        for seed in ["1", "2"] {
            let call = ["run", "files/small.mil", "--random", seed, "-o", &path];
            assert!(run(&scratch, &call).status.success(), "{path}");
            let path = path.replace("/proc/self/cwd", &scratch.path().display().to_string());
            sizes.push(std::fs::metadata(path).expect("it was written").len());
        }
        assert_eq!(sizes[0], sizes[1], "{path}");
    }
}
