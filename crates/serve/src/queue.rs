use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use coremill_llm::{
    ChatTemplate, GenerateOptions, Generation, GenerationSettings, Generator, Tokenizer,
};

/// A model with what belongs to it.
#[non_exhaustive]
pub struct Model {
    /// The name in responses.
    pub name: String,
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    /// The chat template; without one, requests for chat are refused.
    pub template: Option<ChatTemplate>,
    /// Tokens that end a text, and defaults of sampling.
    pub settings: GenerationSettings,
    /// The model.
    pub generator: Generator,
}

impl Model {
    /// A model without a chat template, and with default settings.
    pub fn new(name: impl Into<String>, tokenizer: Tokenizer, generator: Generator) -> Model {
        let settings = GenerationSettings::default();
        Model { name: name.into(), tokenizer, template: None, settings, generator }
    }
}

/// A text to generate.
pub(crate) struct Job {
    pub(crate) prompt: Vec<u32>,
    /// Their `cancel` is set, and is true once the client is gone.
    pub(crate) options: GenerateOptions,
    pub(crate) events: Sender<Event>,
}

impl Job {
    fn is_cancelled(&self) -> bool {
        self.options.cancel.as_ref().is_some_and(|cancel| cancel.load(Ordering::Relaxed))
    }
}

/// Progress of a job.
pub(crate) enum Event {
    /// More of the text.
    Text(String),
    Done(Generation),
    Failed(String),
}

/// Jobs that wait for the model.
#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    ready: Condvar,
    capacity: usize,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    /// Cancels the job that runs.
    running: Option<Arc<AtomicBool>>,
    is_closed: bool,
    /// Recent seconds of a job.
    seconds: f64,
}

impl Queue {
    pub(crate) fn new(capacity: usize) -> Queue {
        Queue { capacity, ..Queue::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a job. If the queue is full, returns the seconds after which to try again.
    pub(crate) fn push(&self, job: Job) -> Result<(), u64> {
        let mut state = self.state();
        // Clients that are gone hold no place.
        state.jobs.retain(|job| !job.is_cancelled());
        if state.is_closed || state.jobs.len() >= self.capacity {
            let seconds = state.seconds * (state.jobs.len() + 1) as f64;
            return Err((seconds.ceil() as u64).clamp(1, 60));
        }
        state.jobs.push_back(job);
        self.ready.notify_one();
        Ok(())
    }

    /// The next job; `None` once the queue is closed.
    fn pop(&self) -> Option<Job> {
        let mut state = self.state();
        loop {
            if state.is_closed {
                return None;
            }
            if let Some(job) = state.jobs.pop_front() {
                if job.is_cancelled() {
                    continue;
                }
                state.running = job.options.cancel.clone();
                return Some(job);
            }
            state = self.ready.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn finish(&self, start: Instant) {
        let mut state = self.state();
        state.running = None;
        state.seconds += (start.elapsed().as_secs_f64() - state.seconds) / 4.0;
    }

    /// Drops the waiting jobs, and cancels the running one.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        state.jobs.clear();
        if let Some(cancel) = &state.running {
            cancel.store(true, Ordering::Relaxed);
        }
        self.ready.notify_all();
    }

    /// Generates the texts of jobs until the queue is closed.
    pub(crate) fn work(&self, tokenizer: &Tokenizer, generator: &mut Generator) {
        while let Some(job) = self.pop() {
            let start = Instant::now();
            let Job { prompt, options, events } = job;
            let mut show = |text: &str| events.send(Event::Text(text.to_owned())).is_ok();
            let generated = catch_unwind(AssertUnwindSafe(|| {
                generator.generate(tokenizer, &prompt, &options, &mut show)
            }));
            let event = match generated {
                Ok(Ok(generation)) => Event::Done(generation),
                Ok(Err(error)) => Event::Failed(error.to_string()),
                Err(_) => {
                    generator.reset();
                    Event::Failed("the model failed".to_owned())
                }
            };
            // A client that is gone receives nothing.
            let _ = events.send(event);
            self.finish(start);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    fn job() -> (Job, Arc<AtomicBool>) {
        let cancel = Arc::new(AtomicBool::new(false));
        let mut options = GenerateOptions::default();
        options.cancel = Some(cancel.clone());
        (Job { prompt: vec![1], options, events: channel().0 }, cancel)
    }

    #[test]
    fn clients_that_are_gone_hold_no_place() {
        let queue = Queue::new(2);
        let [(first, gone), (second, _), (third, _), (fourth, _)] = [(); 4].map(|()| job());
        assert_eq!(queue.push(first), Ok(()));
        assert_eq!(queue.push(second), Ok(()));
        assert_eq!(queue.push(third), Err(1));
        gone.store(true, Ordering::Relaxed);
        assert_eq!(queue.push(fourth), Ok(()));
        assert!(queue.pop().is_some_and(|job| !job.is_cancelled()));
    }

    #[test]
    fn closed_queues_cancel_all() {
        let queue = Queue::new(2);
        let (running, cancel) = job();
        assert_eq!(queue.push(running), Ok(()));
        let running = queue.pop().expect("a job");
        assert_eq!(queue.push(job().0), Ok(()));
        queue.close();
        assert!(cancel.load(Ordering::Relaxed) && running.is_cancelled());
        assert!(queue.pop().is_none());
        assert_eq!(queue.push(job().0), Err(1));
    }

    #[test]
    fn the_time_to_wait_grows_with_the_queue() {
        let queue = Queue::new(1);
        queue.state().seconds = 2.5;
        assert_eq!(queue.push(job().0), Ok(()));
        assert_eq!(queue.push(job().0), Err(5));
        queue.state().seconds = 1e9;
        assert_eq!(queue.push(job().0), Err(60));
    }
}
