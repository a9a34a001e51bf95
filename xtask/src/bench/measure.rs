//! Times, memory and files of measured runs.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use coremill::arrays::read_npz;
use coremill_engine::Array;
use coremill_mil::model::Model;
use coremill_mlpackage::package::{self, WriteOptions};
use coremill_verify::verify;

use crate::workspace::execute;

pub(super) fn write(path: &Path, model: &Model, options: &WriteOptions) -> Result<(), String> {
    let verified = verify(model).map_err(|report| report.summary())?;
    package::write(path, &verified, options).map_err(|error| error.to_string())
}

/// Peak memory of this process in MB, if the system reports it.
pub(super) fn peak_memory() -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024.0 / 1e6)
}

/// Runs a command whose target does not exist yet; returns its time in milliseconds and its output.
pub(super) fn timed(command: &mut Command, target: &Path) -> Result<(f64, String), String> {
    if target.exists() {
        fs::remove_dir_all(target).map_err(|error| error.to_string())?;
    }
    // Pending writes of the previous run must not slow down this one.
    #[cfg(unix)]
    execute(&mut Command::new("sync"), "sync")?;
    let start = Instant::now();
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let time: Duration = start.elapsed();
    if !output.status.success() {
        return Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stdout)));
    }
    Ok((time.as_secs_f64() * 1e3, String::from_utf8_lossy(&output.stdout).into_owned()))
}

/// Nanoseconds of a message from one thread to another and back, the least of several measurements. Virtual machines
/// move between processors that share a cache, at about 50 ns, and processors that do not, at 200 ns and more. Models
/// with small layers take up to half as long again on distant processors.
///
/// `None` for one thread, or on a machine with one processor.
pub(super) fn round_trip_ns(threads: usize) -> Option<f64> {
    const TRIPS: u32 = 100_000;
    let processors = thread::available_parallelism().map_or(1, usize::from);
    if threads.min(processors) == 1 {
        return None;
    }
    let measure = || {
        let message = AtomicU32::new(0);
        let wait = |value| {
            while message.load(Ordering::Acquire) != value {
                std::hint::spin_loop();
            }
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                for trip in 0..TRIPS {
                    wait(2 * trip + 1);
                    message.store(2 * trip + 2, Ordering::Release);
                }
            });
            let start = Instant::now();
            for trip in 0..TRIPS {
                message.store(2 * trip + 1, Ordering::Release);
                wait(2 * trip + 2);
            }
            start.elapsed().as_secs_f64() * 1e9 / f64::from(TRIPS)
        })
    };
    (0..5).map(|_| measure()).min_by(f64::total_cmp)
}

pub(super) fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// CPU time of this process, if the system reports it.
#[cfg(unix)]
pub(super) fn own_time() -> Option<Duration> {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Some(Duration::new(time.tv_sec.try_into().ok()?, time.tv_nsec.try_into().ok()?))
}

#[cfg(not(unix))]
pub(super) fn own_time() -> Option<Duration> {
    None
}

pub(super) fn arrays(
    directory: &Path,
    name: &str,
    kind: &str,
) -> Result<Vec<(String, Array)>, String> {
    read_npz(directory.join(format!("{name}.{kind}.npz"))).map_err(|error| error.to_string())
}
