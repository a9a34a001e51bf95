//! Several processes use one cache: some are killed, some need the same entries, and the order of use is
//! corrupted meanwhile.
//!
//! `COREMILL_CACHE_TEST_KILLS` and `COREMILL_CACHE_TEST_SECONDS` request longer tests than in CI;
//! `COREMILL_CACHE_TEST_SMALL_DISK` names a directory on a small file system, which is filled.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use coremill_cache::{ErrorKind, Key, Options, Store};

/// Environment variable that makes this binary run as a child process; its value is the task.
const ROLE: &str = "COREMILL_CACHE_TEST_ROLE";
const ROOT: &str = "COREMILL_CACHE_TEST_ROOT";
const SEED: &str = "COREMILL_CACHE_TEST_SEED";
const NUMBERS: &str = "COREMILL_CACHE_TEST_NUMBERS";

const LARGEST: u64 = 64 << 10;
const LIMIT: u64 = 8 * LARGEST;

/// A xorshift generator; the quality of the numbers does not matter here.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

fn key(number: u64) -> Key {
    Key::new([&number.to_le_bytes()])
}

/// The contents of the entry with a number.
fn content(number: u64) -> Vec<u8> {
    let length = 1 + number.wrapping_mul(7919) % LARGEST / 2;
    (0..length).map(|at| (number.wrapping_mul(31).wrapping_add(at)) as u8).collect()
}

fn make(number: u64) -> impl FnOnce(&Path) -> std::io::Result<()> {
    move |place| {
        fs::create_dir(place.join("weights"))?;
        fs::write(place.join("weights/weight.bin"), content(number))?;
        fs::write(place.join("model.mil"), content(number))
    }
}

/// Panics unless an entry has the contents for its number.
fn check(place: &Path, number: u64) {
    for name in ["weights/weight.bin", "model.mil"] {
        let found = fs::read(place.join(name));
        let found = found.unwrap_or_else(|error| panic!("{number}: `{name}`: {error}"));
        assert!(found == content(number), "{number}: `{name}` is wrong");
    }
}

fn open(root: &Path, limit: u64) -> Store {
    Store::open(root, &Options { limit, durable: false }).expect("opens")
}

/// Main function of child processes; does nothing without a role.
#[test]
fn runs_child_process_role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let root = std::env::var(ROOT).expect("a root");
    let seed: u64 = std::env::var(SEED).expect("a seed").parse().expect("a number");
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    match &*role {
        // Stores entries and reports each on standard output.
        "fill" => {
            let store = open(Path::new(&root), u64::MAX);
            for number in seed * 1000.. {
                drop(store.get_or_insert(&key(number), "test", "t", make(number)).expect("stored"));
                let mut out = std::io::stdout().lock();
                writeln!(out, "stored {number}")
                    .and_then(|()| out.flush())
                    .expect("report on stdout");
            }
        }
        // Requests entries that other processes request as well, and holds some.
        "share" => {
            let store = open(Path::new(&root), LIMIT);
            let mut held = Vec::new();
            loop {
                let number = random.below(40);
                match store.get_or_insert(&key(number), "test", "t", make(number)) {
                    Ok(entry) => {
                        check(entry.path(), number);
                        held.push((number, entry));
                    }
                    Err(error) if error.kind() == ErrorKind::Full => held.clear(),
                    Err(error) => panic!("{error}"),
                }
                if held.len() > 1 {
                    let (number, entry) = held.swap_remove(random.below(2) as usize);
                    // The entry was not removed meanwhile.
                    check(entry.path(), number);
                }
                let number = random.below(10);
                if let Some(value) = store.value(&key(number)) {
                    assert_eq!(value, content(number), "{number}: its value is wrong");
                }
                store.set_value(&key(number), &content(number)).expect("set");
            }
        }
        // Stores or uses entries in a cache that is too small for all.
        "use" => {
            let store = open(Path::new(&root), LIMIT);
            for number in std::env::var(NUMBERS).expect("numbers").split(',') {
                let number = number.parse().expect("a number");
                let entry = store.get_or_insert(&key(number), "test", "t", make(number));
                check(entry.expect("stored").path(), number);
            }
        }
        role => panic!("`{role}` is not a role"),
    }
}

fn spawn(role: &str, root: &Path, seed: u64) -> Child {
    Command::new(std::env::current_exe().expect("this binary"))
        .args(["runs_child_process_role", "--exact", "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env(ROOT, root)
        .env(SEED, seed.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts")
}

/// Kills a process and returns its output. The process must still be running.
fn kill(mut child: Child) -> Vec<String> {
    let ended = child.try_wait().expect("process status");
    child.kill().expect("killed");
    let output = child.wait_with_output().expect("ended");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(ended.is_none(), "the process ended before it was killed: {errors}");
    BufReader::new(&output.stdout[..]).lines().map_while(Result::ok).collect()
}

fn number_from_env(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).map_or(otherwise, |text| text.parse().expect("a number"))
}

/// Size of all entries in bytes, measured by the file system.
fn bytes_in(root: &Path) -> u64 {
    fn below(path: &Path) -> u64 {
        let Ok(entries) = fs::read_dir(path) else { return 0 };
        entries
            .flatten()
            .map(|entry| match entry.file_type() {
                Ok(kind) if kind.is_dir() => below(&entry.path()),
                _ => entry.metadata().map_or(0, |metadata| metadata.len()),
            })
            .sum()
    }
    let Ok(entries) = fs::read_dir(root.join("entries")) else { return 0 };
    entries.flatten().map(|entry| below(&entry.path().join("content"))).sum()
}

#[test]
fn store_survives_killed_writers() {
    let directory = tempfile::tempdir().expect("a scratch directory");
    let kills = number_from_env("COREMILL_CACHE_TEST_KILLS", 40);
    let mut random = Random(42);
    let mut reported = BTreeSet::new();
    let mut root = directory.path().join("0");
    for round in 0..kills {
        if round % 50 == 0 {
            root = directory.path().join(round.to_string());
            reported.clear();
        }
        let child = spawn("fill", &root, round + 1);
        std::thread::sleep(Duration::from_micros(random.below(60_000)));
        for line in kill(child) {
            // The output includes lines of the test harness, and the last line may be incomplete.
            let number =
                line.rsplit_once("stored ").and_then(|(_, number)| number.parse::<u64>().ok());
            reported.extend(number.filter(|number| number / 1000 == round + 1));
        }
        let store = open(&root, u64::MAX);
        for number in &reported {
            let entry = store.get(&key(*number)).expect("looked up");
            check(entry.unwrap_or_else(|| panic!("{number} is lost")).path(), *number);
        }
        let verified = store.verify().expect("verified");
        assert!(verified.damaged.is_empty(), "{:?}", verified.damaged);
        assert!(verified.sound >= reported.len());
        assert_eq!(
            store.size().expect("known"),
            bytes_in(&root),
            "the size must include all entries"
        );
        for left in ["staging", "trash"] {
            assert_eq!(fs::read_dir(root.join(left)).expect("read").count(), 0, "{left}");
        }
    }
}

#[test]
fn concurrent_processes_keep_store_within_limit() {
    let directory = tempfile::tempdir().expect("a scratch directory");
    let root = directory.path().join("store");
    let seconds = number_from_env("COREMILL_CACHE_TEST_SECONDS", 4);
    let processes = if seconds > 10 { 8 } else { 3 };
    let mut children: Vec<Child> =
        (0..processes).map(|seed| spawn("share", &root, seed + 1)).collect();
    let mut random = Random(7);
    let usage = |number| root.join("entries").join(key(number).to_string()).join("usage");
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut round = 0;
    let mut most = 0;
    while Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5 + random.below(20)));
        most = most.max(bytes_in(&root));
        round += 1;
        if round % 10 != 0 {
            continue;
        }
        // Corrupt the order of use, or kill a process and start another one.
        let record =
            if random.below(2) == 0 { root.join("clock") } else { usage(random.below(40)) };
        match random.below(4) {
            0 => drop(fs::remove_file(&record)),
            1 => {
                // Overwrite in place, so that processes with the file open see it.
                let file = File::options().write(true).open(&record);
                drop(file.and_then(|mut file| file.write_all(&[0x5a; 8192])));
            }
            2 => {
                let file = File::options().write(true).open(&record);
                drop(file.and_then(|file| file.set_len(random.below(60))));
            }
            _ => {
                kill(children.remove(0));
                children.push(spawn("share", &root, round + 100));
            }
        }
    }
    children.into_iter().for_each(|child| drop(kill(child)));
    assert!(most > LIMIT / 2, "at most {most} bytes were stored, too few to test the limit");
    assert!(most <= LIMIT + LARGEST + 2, "{most} bytes were kept; the limit is {LIMIT}");
    let store = open(&root, LIMIT);
    let verified = store.verify().expect("verified");
    assert!(verified.damaged.is_empty(), "{:?}", verified.damaged);
    assert_eq!(store.size().expect("known"), bytes_in(&root));
}

/// Simulates a full disk with the shell's limit on file sizes, unless `COREMILL_CACHE_TEST_SMALL_DISK` is set.
#[cfg(unix)]
#[test]
fn full_disk_fails_without_damaging_entries() {
    let directory = tempfile::tempdir().expect("a scratch directory");
    let small = std::env::var_os("COREMILL_CACHE_TEST_SMALL_DISK");
    let root = small.as_ref().map_or(directory.path(), Path::new).join("store");
    let store = open(&root, u64::MAX);
    drop(store.get_or_insert(&key(1), "test", "t", make(1)).expect("stored"));
    // 16 blocks of 512 or 1024 bytes, enough for some entries.
    let limit = if small.is_some() { ":" } else { "ulimit -f 16" };
    let output = Command::new("sh")
        .arg("-c")
        .arg(format!(
            "trap '' XFSZ; {limit}; exec \"$0\" runs_child_process_role --exact --nocapture"
        ))
        .arg(std::env::current_exe().expect("this binary"))
        .env(ROLE, "fill")
        .env(ROOT, &root)
        .env(SEED, "1")
        .output()
        .expect("runs");
    let stdout = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "the child must fail once the disk is full");
    assert!(
        errors.contains("stored: ") && errors.contains(": cannot "),
        "the child must fail with a cache error: {errors}"
    );
    let reported = stdout.lines().filter_map(|line| line.rsplit_once("stored ")?.1.parse().ok());
    let reported: Vec<u64> = reported.chain([1]).collect();
    println!("{} entries were stored before the disk was full", reported.len());
    for number in reported {
        let entry = store.get(&key(number)).expect("looked up");
        check(entry.unwrap_or_else(|| panic!("{number} is lost")).path(), number);
    }
    assert!(store.verify().expect("verified").damaged.is_empty());
    // A newly opened store can also free the space.
    drop(store);
    let store = open(&root, u64::MAX);
    // Processes started by other tests inherit locks until they execute their program.
    let until = Instant::now() + Duration::from_secs(60);
    while store.purge().expect("purged") > 0 {
        assert!(Instant::now() < until, "entries are still locked after a minute");
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(store.get_or_insert(&key(2), "test", "t", make(2)).expect("stored"));
}

/// C source of a library that shifts the clock of a process by a number of seconds.
#[cfg(target_os = "linux")]
const CLOCK: &str = r#"
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static long long shift(void) { return atoll(getenv("COREMILL_CACHE_TEST_CLOCK")); }
int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (clock == CLOCK_REALTIME) now->tv_sec += shift();
    return failed;
}
int gettimeofday(struct timeval *now, void *zone) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *kept) {
    struct timespec exact;
    clock_gettime(CLOCK_REALTIME, &exact);
    if (kept) *kept = exact.tv_sec;
    return exact.tv_sec;
}
"#;

#[cfg(target_os = "linux")]
#[test]
fn eviction_order_survives_backward_clock() {
    const YEARS: i64 = 10 * 365 * 24 * 3600;
    let directory = tempfile::tempdir().expect("a scratch directory");
    let (root, source) = (directory.path().join("store"), directory.path().join("clock.c"));
    let library = directory.path().join("clock.so");
    fs::write(&source, CLOCK).expect("written");
    let made =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
    assert!(made.expect("a C compiler is installed").success());
    let use_entries_at = |clock: i64, numbers: &[u64]| {
        let numbers: Vec<_> = numbers.iter().map(u64::to_string).collect();
        let output = Command::new(std::env::current_exe().expect("this binary"))
            .args(["runs_child_process_role", "--exact", "--nocapture"])
            .env(ROLE, "use")
            .env(ROOT, &root)
            .env(SEED, "1")
            .env(NUMBERS, numbers.join(","))
            .env("LD_PRELOAD", &library)
            .env("COREMILL_CACHE_TEST_CLOCK", clock.to_string())
            .output()
            .expect("runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    // Each process has an earlier clock than the previous one.
    use_entries_at(YEARS, &[0, 1, 2, 3, 4, 5, 6, 7]);
    let newest = || {
        let listed = open(&root, LIMIT).list().expect("listed");
        listed.iter().map(|entry| entry.created).max().unwrap_or(0)
    };
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .expect("a time after 1970");
    assert!(
        u128::from(newest()) > now.as_millis() + 1000 * YEARS as u128 / 2,
        "the clock was not shifted"
    );
    use_entries_at(0, &[1, 100, 101]);
    let last: Vec<u64> = [0].into_iter().chain(102..120).collect();
    use_entries_at(-YEARS, &last);
    let store = open(&root, LIMIT);
    let by_use = [2, 3, 4, 5, 6, 7, 1, 100, 101].into_iter().chain(last);
    let is_present = |number| store.get(&key(number)).expect("looked up").is_some();
    let present: Vec<bool> = by_use.map(is_present).collect();
    let first =
        present.iter().position(|is_present| *is_present).expect("all entries were evicted");
    assert!(first > 0, "no entry was evicted");
    assert!(
        present[first..].iter().all(|is_present| *is_present),
        "a newer entry was evicted before an older one: {present:?}"
    );
    assert!(store.verify().expect("verified").damaged.is_empty());
    assert!(bytes_in(&root) <= LIMIT + LARGEST + 2);
    // Without the file `clock`, the order of use falls back to the system clock; the cache still works.
    fs::remove_file(root.join("clock")).expect("removed");
    use_entries_at(-2 * YEARS, &[0, 200, 201, 202]);
    assert!(store.verify().expect("verified").damaged.is_empty());
}
