//! A thread pool that divides the work of a kernel.
//!
//! Kernels take from ten microseconds to some milliseconds and follow each other closely, so idle workers
//! spin for a while before they sleep. Each thread starts with its own range of adjacent tasks, which is the
//! same part of every job, so that the results of one kernel are in its cache for the next. A thread that has
//! finished its range steals tasks from the ends of the other ranges, one at a time. A worker that the
//! operating system suspends therefore delays only its current task.

use std::any::Any;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time that an idle worker spins before it sleeps.
const SPIN: Duration = Duration::from_micros(60);

/// Number of checks for work between two checks of the clock.
const LOOKS: usize = 64;

/// Threads that run the tasks of one kernel at a time.
///
/// Dropping the pool stops the threads.
pub struct Pool {
    shared: Arc<PoolState>,
    workers: Vec<JoinHandle<()>>,
}

struct PoolState {
    /// Number of the newest job. Workers wait for it to change.
    newest: AtomicU32,
    /// The tasks that no thread has taken yet: one range for each thread, the caller's first. A task is taken
    /// by compare-and-swap. While a thread holds a task, the job is not finished and `job` does not change.
    untaken: Box<[WorkQueue]>,
    /// Number of unfinished tasks of the job.
    undone: AtomicUsize,
    job: UnsafeCell<Option<Job>>,
    /// Held by the thread whose job is running.
    busy: AtomicBool,
    sleepers: AtomicUsize,
    stop: AtomicBool,
    gate: Mutex<()>,
    wake: Condvar,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// A range of tasks: the job's number in the upper half; the first task and the end in the lower half. It has
/// a cache line of its own, because its owner reads it often.
#[repr(align(128))]
struct WorkQueue(AtomicU64);

/// Maximum number of tasks in a range.
const MAX_TASKS: usize = u16::MAX as usize;

impl WorkQueue {
    fn new() -> WorkQueue {
        WorkQueue(AtomicU64::new(0))
    }

    fn put(&self, job: u32, tasks: Range<usize>) {
        debug_assert!(tasks.end <= MAX_TASKS);
        let tasks = (tasks.start as u64) << 16 | tasks.end as u64;
        self.0.store(u64::from(job) << 32 | tasks, Ordering::Release);
    }

    /// Takes the first or the last task.
    fn take(&self, first: bool) -> Option<usize> {
        let mut seen = self.0.load(Ordering::Acquire);
        loop {
            let (start, end) = (seen >> 16 & 0xffff, seen & 0xffff);
            if start >= end {
                return None;
            }
            let left = if first { seen + (1 << 16) } else { seen - 1 };
            match self.0.compare_exchange_weak(seen, left, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(if first { start } else { end - 1 } as usize),
                Err(now) => seen = now,
            }
        }
    }
}

/// Maximum number of threads, more than any machine has processors. The stacks of many more threads would
/// exhaust the address space.
pub const MAX_THREADS: usize = 1024;

#[derive(Clone, Copy)]
struct Job {
    body: *const (dyn Fn(usize) + Sync),
}

// SAFETY: `job` is written only by the thread that holds `busy`, while no task is unfinished. It is read only
// by threads that hold a task, which prevents writes. The release store of a range and the acquiring
// compare-and-swap order the accesses. The body is `Sync`.
#[expect(unsafe_code, reason = "workers share a job under the documented protocol")]
unsafe impl Sync for PoolState {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "workers share a job under the documented protocol")]
unsafe impl Send for PoolState {}

impl Pool {
    /// Returns a pool of `threads` threads including the calling one, at least 1 and at most [`MAX_THREADS`].
    pub fn new(threads: usize) -> Pool {
        let threads = threads.min(MAX_THREADS);
        let shared = Arc::new(PoolState {
            newest: AtomicU32::new(0),
            untaken: (0..threads.max(1)).map(|_| WorkQueue::new()).collect(),
            undone: AtomicUsize::new(0),
            job: UnsafeCell::new(None),
            busy: AtomicBool::new(false),
            sleepers: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            gate: Mutex::new(()),
            wake: Condvar::new(),
            panic: Mutex::new(None),
        });
        let workers = (1..threads)
            .map_while(|index| {
                let shared = Arc::clone(&shared);
                let builder = std::thread::Builder::new().name(format!("coremill-{index}"));
                builder.spawn(move || shared.work(index)).ok()
            })
            .collect();
        Pool { shared, workers }
    }

    /// Number of threads, including the calling one.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `body(0)` to `body(tasks - 1)`, each once, in any order, on all threads. Adjacent tasks mostly
    /// run on the same thread.
    ///
    /// If another thread's job is running, the calling thread runs all tasks itself. A panic in the body is
    /// propagated to the caller after all tasks have finished.
    pub fn run(&self, tasks: usize, body: impl Fn(usize) + Sync) {
        if tasks <= 1 || self.workers.is_empty() {
            return (0..tasks).for_each(body);
        }
        if tasks > MAX_TASKS {
            let step = tasks.div_ceil(MAX_TASKS);
            return self.share(tasks.div_ceil(step), &|part| {
                (part * step..((part + 1) * step).min(tasks)).for_each(&body);
            });
        }
        self.share(tasks, &body);
    }

    /// [`run`](Self::run) for at most [`MAX_TASKS`] tasks.
    fn share(&self, tasks: usize, body: &(dyn Fn(usize) + Sync)) {
        let shared = &*self.shared;
        if shared.busy.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err()
        {
            return (0..tasks).for_each(body);
        }
        // SAFETY: only the lifetime changes. `finish` below returns when all tasks are finished, after which
        // no thread accesses the body.
        #[expect(
            unsafe_code,
            reason = "workers outlive the borrow, but stop using it before it ends"
        )]
        let body = unsafe {
            std::mem::transmute::<
                *const (dyn Fn(usize) + Sync),
                *const (dyn Fn(usize) + Sync + 'static),
            >(body)
        };
        // SAFETY: this thread holds `busy`, and all tasks of the previous job are finished.
        #[expect(unsafe_code, reason = "workers share a job under the documented protocol")]
        unsafe {
            *shared.job.get() = Some(Job { body });
        }
        shared.undone.store(tasks, Ordering::Relaxed);
        let number = shared.newest.load(Ordering::Relaxed).wrapping_add(1);
        let threads = self.threads();
        for (index, untaken) in shared.untaken[..threads].iter().enumerate() {
            untaken.put(number, index * tasks / threads..(index + 1) * tasks / threads);
        }
        shared.newest.store(number, Ordering::SeqCst);
        if shared.sleepers.load(Ordering::SeqCst) > 0 {
            let _gate = shared.gate.lock().unwrap_or_else(PoisonError::into_inner);
            shared.wake.notify_all();
        }
        shared.work_off(0);
        shared.finish();
        let panic = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        shared.busy.store(false, Ordering::Release);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    /// Runs the body over ranges that cover `0..length`, several for each thread. Each range has at least
    /// `grain` elements, unless `length` is smaller.
    pub fn run_ranges(
        &self,
        length: usize,
        grain: usize,
        body: impl Fn(std::ops::Range<usize>) + Sync,
    ) {
        let threads = self.threads();
        let most = if threads == 1 { 1 } else { threads * 4 };
        let ranges = (length / grain.max(1)).clamp(1, most);
        // Threads get equal parts.
        let ranges = if ranges > threads { ranges / threads * threads } else { ranges };
        self.run(ranges.min(length), |task| {
            body(task * length / ranges..(task + 1) * length / ranges);
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        {
            let _gate = self.shared.gate.lock().unwrap_or_else(PoisonError::into_inner);
            self.shared.wake.notify_all();
        }
        for worker in self.workers.drain(..) {
            // Workers catch panics of bodies, so a worker cannot have panicked.
            let _ = worker.join();
        }
    }
}

impl PoolState {
    /// Main loop of a worker, until the pool is dropped.
    fn work(&self, index: usize) {
        let mut seen = 0;
        loop {
            if !self.spin(seen) {
                let mut gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
                self.sleepers.fetch_add(1, Ordering::SeqCst);
                while !self.is_newer(seen) && !self.stop.load(Ordering::SeqCst) {
                    gate = self.wake.wait(gate).unwrap_or_else(PoisonError::into_inner);
                }
                self.sleepers.fetch_sub(1, Ordering::SeqCst);
            }
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            // A job that starts while tasks of this job are taken is treated as the newer one.
            seen = self.newest.load(Ordering::SeqCst);
            self.work_off(index);
        }
    }

    /// Waits a short time for a newer job; returns whether there is one.
    fn spin(&self, seen: u32) -> bool {
        let start = Instant::now();
        loop {
            for _ in 0..LOOKS {
                if self.is_newer(seen) {
                    return true;
                }
                std::hint::spin_loop();
            }
            if self.stop.load(Ordering::Relaxed) || start.elapsed() > SPIN {
                return false;
            }
        }
    }

    fn is_newer(&self, seen: u32) -> bool {
        self.newest.load(Ordering::SeqCst) != seen
    }

    /// Runs the tasks of the own range, then steals tasks from other ranges. Subtracts finished tasks from `undone` once
    /// for each range, because all threads write to it.
    fn work_off(&self, own: usize) {
        let count = self.untaken.len();
        for at in 0..count {
            let range = &self.untaken[(own + at) % count];
            let mut done = 0;
            while let Some(task) = range.take(at == 0) {
                self.run_task(task);
                done += 1;
            }
            if done > 0 {
                self.undone.fetch_sub(done, Ordering::AcqRel);
            }
        }
    }

    /// Runs a task that this thread has taken.
    fn run_task(&self, task: usize) {
        // SAFETY: this thread holds an unfinished task of the job, so `job` is not written.
        #[expect(unsafe_code, reason = "workers share a job under the documented protocol")]
        let job = unsafe { *self.job.get() };
        if let Some(job) = job {
            // SAFETY: the thread that owns the body waits until this task is finished.
            #[expect(unsafe_code, reason = "workers share a job under the documented protocol")]
            let body = unsafe { &*job.body };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| body(task))) {
                *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
            }
        }
    }

    /// Waits for the tasks that other threads have taken.
    fn finish(&self) {
        let mut looks = 0;
        while self.undone.load(Ordering::Acquire) > 0 {
            looks += 1;
            // The worker with the last task may have been suspended by the operating system, and continues
            // only when a processor is free.
            if looks > 4096 { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once() {
        let pool = Pool::new(4);
        for tasks in [0, 1, 2, 3, 17, 100, if cfg!(miri) { 1 } else { 70_000 }] {
            let counts: Vec<_> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
            pool.run(tasks, |task| {
                counts[task].fetch_add(1, Ordering::Relaxed);
            });
            assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1), "{tasks}");
        }
    }

    #[test]
    fn sleeping_workers_wake_for_new_jobs() {
        let pool = Pool::new(3);
        let total = AtomicUsize::new(0);
        for round in 0..if cfg!(miri) { 5 } else { 2000 } {
            if round % 500 == 0 {
                std::thread::sleep(SPIN * 20);
            }
            pool.run(round % 7, |task| {
                total.fetch_add(task + 1, Ordering::Relaxed);
            });
        }
        let expected: usize = (0..if cfg!(miri) { 5 } else { 2000 })
            .map(|round| (1..=round % 7).sum::<usize>())
            .sum();
        assert_eq!(total.load(Ordering::Relaxed), expected);
    }

    #[test]
    fn task_panic_reaches_caller_and_pool_survives() {
        let pool = Pool::new(2);
        let caught = catch_unwind(AssertUnwindSafe(|| {
            pool.run(8, |task| assert!(task != 5, "task five"));
        }));
        assert!(caught.is_err());
        let total = AtomicUsize::new(0);
        pool.run(8, |_| {
            total.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(total.load(Ordering::Relaxed), 8);
    }

    #[test]
    fn concurrent_callers_all_get_their_results() {
        let pool = Pool::new(2);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..if cfg!(miri) { 3 } else { 300 } {
                        let total = AtomicUsize::new(0);
                        pool.run(9, |task| {
                            total.fetch_add(task, Ordering::Relaxed);
                        });
                        assert_eq!(total.load(Ordering::Relaxed), 36);
                    }
                });
            }
        });
    }

    #[test]
    fn run_ranges_covers_length_without_overlap() {
        for (threads, length, grain) in [(1, 10, 1), (2, 1000, 64), (3, 5, 100), (2, 0, 1)] {
            let seen: Vec<_> = (0..length).map(|_| AtomicUsize::new(0)).collect();
            Pool::new(threads).run_ranges(length, grain, |range| {
                for at in range {
                    seen[at].fetch_add(1, Ordering::Relaxed);
                }
            });
            assert!(seen.iter().all(|count| count.load(Ordering::Relaxed) == 1));
        }
    }
}
