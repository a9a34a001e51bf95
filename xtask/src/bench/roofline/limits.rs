//! Limits of the machine: arithmetic and bandwidth.

use std::fs;
use std::hint::black_box;
use std::time::Instant;

use coremill_kernels::{Arena, Pool};
use coremill_simd::Isa;
use coremill_simd::peak::{float_operations, integer_operations};
use coremill_simd::vector::{Kernel, Vector, dispatch};
use serde::Serialize;

use crate::bench::measure::round_trip_ns;

/// Size of the array that is read from memory, larger than the caches of most processors.
const MEMORY_BYTES: usize = 256 << 20;

/// Size of the array that each thread reads from its cache: larger than the first-level cache, and smaller than
/// the second-level cache.
const CACHE_BYTES: usize = 256 << 10;

/// Size of the last-level cache if the system does not report it.
const LAST_CACHE_BYTES: u64 = 32 << 20;

/// Number of measurements; the fastest one counts.
const REPETITIONS: usize = 12;

/// Measured limits for a number of threads.
#[derive(Clone, Copy, Serialize)]
pub(super) struct Limits {
    pub(super) threads: usize,
    /// Fused multiply-adds on registers, two operations each.
    pub(super) gflop_per_second: f64,
    /// Multiply-adds of 8-bit integers on registers, two operations each.
    pub(super) integer_gop_per_second: f64,
    /// Reads from memory.
    pub(super) memory_gb_per_second: f64,
    /// Reads from the second-level cache.
    pub(super) cache_gb_per_second: f64,
    /// From one processor to another and back.
    pub(super) round_trip_ns: Option<f64>,
}

impl Limits {
    /// Billions of operations per second.
    pub(super) fn rate(&self, integer: bool) -> f64 {
        if integer { self.integer_gop_per_second } else { self.gflop_per_second }
    }
}

/// Memory and threads of the measurements.
pub(super) struct Probe {
    isa: Isa,
    pool: Pool,
    memory: Arena,
    best: Option<Limits>,
}

impl Probe {
    pub(super) fn new(isa: Isa, threads: usize) -> Result<Probe, String> {
        let mut memory = Arena::reserve(MEMORY_BYTES / 4)
            .ok_or_else(|| format!("cannot allocate {MEMORY_BYTES} bytes"))?;
        memory.as_mut_slice().fill(1.0);
        Ok(Probe { isa, pool: Pool::new(threads), memory, best: None })
    }

    /// Measures for about 0.3 seconds. Other processes only lower the rates, so the highest rates of all
    /// measurements count.
    pub(super) fn measure(&mut self) -> Limits {
        const ROUNDS: usize = 1 << 17;
        let threads = self.pool.threads();
        let rate = |operations: fn(Isa, usize) -> usize| {
            let count = threads * operations(self.isa, ROUNDS);
            let seconds = self.shortest(threads, |_| {
                black_box(operations(self.isa, ROUNDS));
            });
            count as f64 / seconds / 1e9
        };
        let parts = 16 * threads;
        let all = self.memory.as_slice();
        let memory = self.shortest(parts, |part| {
            let part = &all[part * all.len() / parts..(part + 1) * all.len() / parts];
            black_box(dispatch(self.isa, Read { elements: part }));
        });
        const PASSES: usize = 64;
        let count = CACHE_BYTES / 4;
        let cache = self.shortest(threads, |thread| {
            for _ in 0..PASSES {
                let part = black_box(&all[thread * count..(thread + 1) * count]);
                black_box(dispatch(self.isa, Read { elements: part }));
            }
        });
        let found = Limits {
            threads,
            gflop_per_second: rate(float_operations),
            integer_gop_per_second: rate(integer_operations),
            memory_gb_per_second: size_of_val(all) as f64 / memory / 1e9,
            cache_gb_per_second: (CACHE_BYTES * PASSES * threads) as f64 / cache / 1e9,
            round_trip_ns: round_trip_ns(threads),
        };
        let best = self.best.map_or(found, |best| Limits {
            threads,
            gflop_per_second: best.gflop_per_second.max(found.gflop_per_second),
            integer_gop_per_second: best.integer_gop_per_second.max(found.integer_gop_per_second),
            memory_gb_per_second: best.memory_gb_per_second.max(found.memory_gb_per_second),
            cache_gb_per_second: best.cache_gb_per_second.max(found.cache_gb_per_second),
            // It describes the model that is measured next.
            round_trip_ns: found.round_trip_ns,
        });
        self.best = Some(best);
        best
    }

    /// Seconds of the shortest run of `tasks` tasks on all threads.
    fn shortest(&self, tasks: usize, body: impl Fn(usize) + Sync) -> f64 {
        let times = (0..REPETITIONS).map(|_| {
            let start = Instant::now();
            self.pool.run(tasks, &body);
            start.elapsed().as_secs_f64()
        });
        times.fold(f64::INFINITY, f64::min)
    }
}

/// Size in bytes of the last-level cache.
pub(super) fn last_cache_bytes() -> u64 {
    let size = |index: usize| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size");
        let kilobytes: u64 =
            fs::read_to_string(path).ok()?.trim().strip_suffix('K')?.parse().ok()?;
        Some(kilobytes << 10)
    };
    (0..8).filter_map(size).max().unwrap_or(LAST_CACHE_BYTES)
}

/// Name of the processor, or its architecture.
pub(super) fn processor() -> String {
    let listed = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = listed.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or(std::env::consts::ARCH, |(_, name)| name.trim()).to_owned()
}

/// Reads all elements; their exclusive disjunction keeps the compiler from omitting it.
struct Read<'a> {
    elements: &'a [f32],
}

impl Kernel for Read<'_> {
    type Output = u32;

    #[inline(always)]
    fn run<V: Vector>(self) -> u32 {
        let mut bits = 0;
        for element in self.elements {
            bits ^= element.to_bits();
        }
        bits
    }
}
