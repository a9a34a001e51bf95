//! A killed writer leaves a complete package, either the old or the new one.
//!
//! The test runs itself as a child process: if it is called with paths, it alternately writes two packages in
//! an endless loop, until it is killed at a random time.

#[path = "support/files.rs"]
mod files;
#[path = "support/layers.rs"]
mod layers;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use coremill_mil::model::{Metadata, Model};
use coremill_mlpackage::package;
use coremill_tensor::Buffer;

use self::files::files;
use self::layers::write;

/// Number of times the writer is killed.
const ROUNDS: u64 = 60;

/// Maximum number, if the writer was not yet killed at the relevant times.
const MAX_ROUNDS: u64 = 5 * ROUNDS;

/// Maximum time in microseconds before the writer is killed.
const LONGEST: u64 = 40_000;

/// A model of some megabytes, so that writing takes some time.
fn model(version: u8) -> Model {
    const WIDTH: u64 = 1024;
    let weights = (0..3).map(|layer| vec![version + layer; (WIDTH * WIDTH * 2) as usize]);
    let mut model = layers::model(WIDTH, weights.map(Buffer::from));
    model.description.metadata =
        Some(Metadata { version: version.to_string(), ..Metadata::default() });
    model
}

/// The hash of every file below a directory.
fn content(root: &Path) -> BTreeMap<String, blake3::Hash> {
    files(root, |bytes| blake3::hash(&bytes))
}

fn write_without_end(target: &Path, sources: [&Path; 2]) -> ! {
    let models = sources.map(|path| package::read(path).expect("sound"));
    loop {
        models.iter().for_each(|model| write(target, model));
    }
}

fn main() {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    if let [marker, target, one, other] = arguments.as_slice()
        && marker == Path::new("--write-without-end")
    {
        write_without_end(target, [one, other]);
    }

    let directory = tempfile::tempdir().expect("temporary directory");
    let place = directory.path().join("place");
    fs::create_dir(&place).expect("a directory");
    let target = place.join("a.mlpackage");
    let sources = [1, 101].map(|version| {
        let path = directory.path().join(format!("{version}.mlpackage"));
        write(&path, &model(version));
        path
    });
    write(&target, &model(1));
    let whole = [content(&sources[0]), content(&sources[1])];
    assert_ne!(whole[0], whole[1]);

    let mut seen = [0, 0];
    let mut interrupted = 0;
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    for round in 0..MAX_ROUNDS {
        // On a busy machine the child needs more time.
        let longest = LONGEST << (round / ROUNDS);
        if round >= ROUNDS && interrupted > 0 && seen.iter().all(|&count| count > 0) {
            break;
        }
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .arg("--write-without-end")
            .arg(&target)
            .args(&sources)
            .stderr(Stdio::null())
            .spawn()
            .expect("a child");
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        // The child needs some time before it starts writing.
        std::thread::sleep(Duration::from_micros(10_000 + random % longest));
        child.kill().expect("killed");
        let status = child.wait().expect("a status");
        let killed = cfg!(not(unix)) || status.code().is_none();
        assert!(killed, "round {round}: the writer failed by itself");

        let found = content(&target);
        let which = whole.iter().position(|whole| *whole == found);
        let which = which.unwrap_or_else(|| panic!("round {round}: found {found:?}"));
        seen[which] += 1;
        package::read(&target).expect("sound");
        interrupted += usize::from(fs::read_dir(&place).expect("a directory").count() > 1);
    }
    // Otherwise the child was never killed while writing, and the test would prove nothing.
    assert!(interrupted > 0 && seen.iter().all(|&count| count > 0), "{interrupted} {seen:?}");

    write(&target, &model(1));
    assert_eq!(content(&target), whole[0]);
    assert_eq!(fs::read_dir(&place).expect("a directory").count(), 1, "something was left");
}
