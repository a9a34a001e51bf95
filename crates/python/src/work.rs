//! Work on a separate thread, without Python's lock. Meanwhile the waiting thread handles Ctrl-C
//! and shows progress.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use coremill_io::cancel;
use pyo3::prelude::*;

use crate::error::Failure;

/// Polling interval of the waiting thread.
const TICK: Duration = Duration::from_millis(40);

/// Time before progress is shown.
const PATIENCE: Duration = Duration::from_millis(500);

/// Stack size of the thread. Programs may contain deeply nested graphs.
const STACK_BYTES: usize = 64 << 20;

/// Description of the current step.
#[derive(Clone, Default)]
pub(crate) struct Stage(Arc<Mutex<String>>);

impl Stage {
    pub(crate) fn set(&self, text: impl Into<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = text.into();
    }

    fn get(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Runs work on a separate thread. Returns its result, or raises its exception.
///
/// Ctrl-C cancels the work without waiting for it. The work stops at its next operation, and
/// partially written files are removed.
pub(crate) fn run<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce(&Stage) -> Result<T, Failure> + Send + 'static,
) -> PyResult<T> {
    let token = cancel::CancellationToken::default();
    let stage = Stage::default();
    let (sender, mut receiver) = channel();
    let spawned =
        thread::Builder::new().name("coremill".to_owned()).stack_size(STACK_BYTES).spawn({
            let (token, stage) = (token.clone(), stage.clone());
            move || {
                let outcome = token.during(|| guarded(|| work(&stage)));
                // After Ctrl-C there is no receiver.
                let _ = sender.send(outcome);
            }
        });
    if let Err(error) = spawned {
        let message = format!("cannot start a thread: {error}");
        return Err(crate::error::new(py, message, None));
    }
    let start = Instant::now();
    let mut progress: Option<Bound<'_, PyAny>> = None;
    let outcome = loop {
        let receiver = &mut receiver;
        match py.detach(move || receiver.recv_timeout(TICK)) {
            Ok(outcome) => break outcome,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                break Err(Failure::Panic("the worker thread ended unexpectedly".to_owned()));
            }
        }
        if let Err(interrupt) = py.check_signals() {
            token.cancel();
            finish(progress.as_ref());
            return Err(interrupt);
        }
        if start.elapsed() >= PATIENCE {
            // A failure to show progress must not end the work.
            let shown = match &progress {
                Some(progress) => Ok(progress.clone()),
                None => py.import("coremill._progress").and_then(|it| it.call_method0("start")),
            };
            if let Ok(shown) = shown {
                let seconds = start.elapsed().as_secs_f64();
                let _ = shown.call_method1("update", (stage.get(), seconds));
                progress = Some(shown);
            }
        }
    };
    finish(progress.as_ref());
    outcome.map_err(|failure| failure.into_error(py))
}

fn finish(progress: Option<&Bound<'_, PyAny>>) {
    if let Some(progress) = progress {
        let _ = progress.call_method0("finish");
    }
}

/// Converts a panic to a failure.
fn guarded<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|payload| {
        if cancel::is_cancellation(&*payload) {
            return Err(Failure::Interrupted);
        }
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
        Err(Failure::Panic(text.unwrap_or("a panic without a message").to_owned()))
    })
}

/// Runs work that needs Python's lock, and converts a panic to an exception.
pub(crate) fn held<T>(py: Python<'_>, work: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    let outcome = catch_unwind(AssertUnwindSafe(work));
    outcome.unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
        Err(crate::error::internal(py, text.unwrap_or("a panic without a message")))
    })
}
