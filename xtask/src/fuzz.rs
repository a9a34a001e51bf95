//! `cargo xtask fuzz`: runs a fuzz target for a limited time, with any toolchain.
//!
//! It needs `cargo-fuzz`. The seeds in `fuzz/seeds` also run as an ordinary test, as regression tests for
//! crashes.

use std::path::PathBuf;
use std::process::Command;

use crate::workspace::{execute, root};

/// The target and its limits.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  cargo xtask fuzz text --seconds 900")]
pub(crate) struct Arguments {
    /// Name of the target in `fuzz/Cargo.toml`
    target: String,
    /// Time limit in seconds
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Maximum memory of the target, in MB
    #[arg(long, default_value_t = 1024)]
    memory: u64,
    /// Maximum time for one input in seconds; use more on a busy machine
    #[arg(long, default_value_t = 10)]
    timeout: u64,
}

/// Fuzzes; the error states that a failure was found.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    let root = root();
    let seeds = PathBuf::from("fuzz/seeds").join(&arguments.target);
    if !root.join(&seeds).is_dir() {
        return Err(format!(
            "unknown fuzz target `{}`: {} is missing",
            arguments.target,
            seeds.display()
        ));
    }
    let corpus = PathBuf::from("fuzz/corpus").join(&arguments.target);
    std::fs::create_dir_all(root.join(&corpus))
        .map_err(|error| format!("cannot create {}: {error}", corpus.display()))?;
    let mut fuzz = Command::new("cargo");
    // The sanitizers need a nightly toolchain. The readers are safe code, so fuzzing searches for panics,
    // hangs and excessive allocations, for which no sanitizer is needed.
    fuzz.current_dir(&root).args(["fuzz", "run", "--sanitizer", "none", &arguments.target]);
    fuzz.arg(&corpus).arg(&seeds).arg("--");
    fuzz.arg(format!("-max_total_time={}", arguments.seconds));
    fuzz.arg(format!("-rss_limit_mb={}", arguments.memory));
    fuzz.arg(format!("-malloc_limit_mb={}", arguments.memory / 2));
    fuzz.arg(format!("-timeout={}", arguments.timeout));
    fuzz.args(["-print_final_stats=1", "-max_len=65536"]);
    execute(&mut fuzz, "fuzzing (is `cargo-fuzz` installed? `cargo install cargo-fuzz`)")
}
