//! Tests that a signal ends the command promptly at any time, and that no temporary files are left.
#![cfg(unix)]

#[path = "support/scratch.rs"]
mod scratch;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use scratch::Scratch;

const ROUNDS: u64 = 200;

/// Maximum time until a process exits after a signal, on a busy machine.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Number of rows of a weight, large enough that writing it takes a moment.
const ROWS: usize = 4096;

fn start(scratch: &Scratch, arguments: &str) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_coremill"));
    let command = command.args(arguments.split(' ')).current_dir(scratch.path());
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the command starts")
}

fn wait(child: &mut Child) -> ExitStatus {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("a child") {
            return status;
        }
        assert!(start.elapsed() < EXIT_TIMEOUT, "the process did not exit within {EXIT_TIMEOUT:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Creates a program with a weight of several megabytes.
fn place_large(directory: &Path) {
    fs::create_dir_all(directory.join("large/weights")).expect("a directory");
    let text = format!(
        "program(1.3) {{
            func main<ios18>(tensor<fp16, [1, 1024]> x) {{
                tensor<fp16, [{ROWS}, 1024]> w = const()[val = tensor<fp16, [{ROWS}, 1024]>(BLOBFILE(path = string(\"@model_path/weights/weight.bin\"), offset = uint64(64)))];
                tensor<fp16, [1, {ROWS}]> y = linear(x = x, weight = w);
            }} -> (y);
        }}"
    );
    fs::write(directory.join("large/model.mil"), text).expect("a file");
    let length = 2 * ROWS * 1024;
    let mut bytes = vec![0; 128 + length];
    bytes[0] = 1;
    bytes[4] = 2;
    bytes[64..68].copy_from_slice(&0xdead_beef_u32.to_le_bytes());
    bytes[68] = 1;
    bytes[72..80].copy_from_slice(&(length as u64).to_le_bytes());
    bytes[80..88].copy_from_slice(&128_u64.to_le_bytes());
    for (index, byte) in bytes[128..].iter_mut().enumerate() {
        *byte = (index % 50) as u8;
    }
    fs::write(directory.join("large/weights/weight.bin"), bytes).expect("a file");
}

fn names(directory: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(directory).expect("a directory");
    entries
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect()
}

#[test]
fn interrupted_commands_leave_no_temporary_files() {
    const CALLS: [(&str, &str); 7] = [
        ("pack large/model.mil -o out/a.mlpackage", "a.mlpackage"),
        ("pack large/model.mil -o out/a.mlmodelc", "a.mlmodelc"),
        ("text large/model.mil -o out/a.mil", "a.mil"),
        ("lower examples/digits.pt2 -o out/a.pte", "a.pte"),
        ("run files/counter.mil --random 1 -o out/a.npz", "a.npz"),
        ("run files/counter.mil --batch -i files/one.npz -o out", "one.npz"),
        ("report files/small.mil -o out/a.html", "a.html"),
    ];
    let scratch = Scratch::new();
    place_large(scratch.path());
    let out = scratch.path().join("out");
    fs::create_dir(&out).expect("a directory");
    // Duration of each call without signals, measured twice so that the second replaces a file.
    let times = CALLS.map(|(call, output)| {
        let took = [(); 2].map(|()| {
            let start_of_call = Instant::now();
            let status = start(&scratch, call).wait().expect("a child");
            assert!(status.success() && out.join(output).exists(), "{call}");
            start_of_call.elapsed()
        });
        took[1]
    });
    let mut expected: BTreeSet<String> =
        CALLS.iter().map(|(_, output)| (*output).to_owned()).collect();
    expected.insert("weights".to_owned());
    let mut interrupted = 0;
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    for round in 0..ROUNDS {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let index = (round % CALLS.len() as u64) as usize;
        let (call, output) = CALLS[index];
        // Remove the output in every other round.
        if random >> 40 & 1 == 1 {
            let path = out.join(output);
            let _ = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        }
        let mut child = start(&scratch, call);
        let share = (random >> 41) as f64 / (1_u64 << 23) as f64;
        std::thread::sleep(times[index].mul_f64(share * 1.1));
        let (name, number) = if random >> 39 & 1 == 1 { ("INT", 2) } else { ("TERM", 15) };
        let mut kill = Command::new("kill");
        kill.args(["-s", name, &child.id().to_string()]).stderr(Stdio::null());
        let killed = kill.status().expect("a signal");
        let status = wait(&mut child);
        match status.signal() {
            Some(signal) => {
                assert_eq!(signal, number, "{call}");
                interrupted += 1;
            }
            // The command ended before the signal.
            None => assert!(status.success(), "{call}: {status}, {killed}"),
        }
        let found = names(&out);
        assert!(found.is_subset(&expected), "`{call}`, SIG{name} at {share:.3}: {found:?}");
    }
    assert!(
        interrupted > ROUNDS / 4,
        "only {interrupted} of {ROUNDS} signals arrived before the command exited"
    );
    // The remaining outputs are valid, old or new.
    for (_, output) in CALLS.iter().take(3) {
        if out.join(output).exists() {
            let status = start(&scratch, &format!("check out/{output}")).wait().expect("a child");
            assert!(status.success(), "{output}");
        }
    }
}

/// A command that starts with SIGHUP ignored, as under `nohup`, must keep ignoring it.
#[test]
fn ignored_sighup_stays_ignored() {
    let scratch = Scratch::new();
    let script = "trap '' HUP; exec \"$0\" check -";
    let mut child = Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_coremill")])
        .current_dir(scratch.path())
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("a shell");
    std::thread::sleep(Duration::from_millis(200));
    let id = child.id().to_string();
    let signal = |name: &str| Command::new("kill").args(["-s", name, &id]).status().expect("sent");
    assert!(signal("HUP").success());
    std::thread::sleep(Duration::from_millis(200));
    assert!(
        child.try_wait().expect("a child").is_none(),
        "SIGHUP ended the process although it was ignored"
    );
    assert!(signal("TERM").success());
    assert_eq!(wait(&mut child).signal(), Some(15));
}
