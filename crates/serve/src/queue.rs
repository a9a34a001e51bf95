use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use coremill_llm::{
    ChatTemplate, Embedder, FinishReason, GenerateOptions, Generation, GenerationSettings,
    Generator, Tokenizer,
};

/// A model with what belongs to it.
#[non_exhaustive]
pub struct Model {
    /// The name in responses.
    pub name: String,
    /// The tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// The chat template; without one, requests for chat are refused.
    pub template: Option<ChatTemplate>,
    /// Tokens that end a text, and defaults of sampling.
    pub settings: GenerationSettings,
    /// The model on its device.
    pub runner: Runner,
}

/// A model on its device.
#[non_exhaustive]
pub enum Runner {
    /// It generates text.
    Generator(Generator),
    /// It turns texts into vectors.
    Embedder(Embedder),
}

impl Model {
    /// A model that generates text, without a chat template and with default settings.
    pub fn new(name: impl Into<String>, tokenizer: Tokenizer, generator: Generator) -> Model {
        Model::with_runner(name.into(), Arc::new(tokenizer), Runner::Generator(generator))
    }

    /// An embedding model.
    pub fn embedding(name: impl Into<String>, embedder: Embedder) -> Model {
        let tokenizer = embedder.shared_tokenizer();
        Model::with_runner(name.into(), tokenizer, Runner::Embedder(embedder))
    }

    fn with_runner(name: String, tokenizer: Arc<Tokenizer>, runner: Runner) -> Model {
        let settings = GenerationSettings::default();
        Model { name, tokenizer, template: None, settings, runner }
    }
}

impl Runner {
    /// Most tokens of a text.
    pub(crate) fn context(&self) -> usize {
        match self {
            Runner::Generator(generator) => generator.context(),
            Runner::Embedder(embedder) => embedder.context(),
        }
    }

    /// Number of tokens that texts consist of.
    pub(crate) fn vocabulary(&self) -> usize {
        match self {
            Runner::Generator(generator) => generator.vocabulary(),
            Runner::Embedder(embedder) => embedder.tokenizer().len(),
        }
    }

    /// Elements of an embedding; `None` for models that generate text.
    pub(crate) fn width(&self) -> Option<usize> {
        match self {
            Runner::Generator(_) => None,
            Runner::Embedder(embedder) => Some(embedder.width()),
        }
    }
}

/// Work for the model.
pub(crate) struct Job {
    pub(crate) task: Task,
    /// Is true once the client is gone.
    pub(crate) cancel: Arc<AtomicBool>,
    pub(crate) events: Sender<Event>,
}

pub(crate) enum Task {
    /// A text to generate. The options have the job's `cancel`.
    Generate { prompt: Vec<u32>, options: GenerateOptions },
    /// Texts to embed.
    Embed(Vec<Vec<u32>>),
}

impl Job {
    fn is_cancelled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }
}

/// Progress of a job.
pub(crate) enum Event {
    /// More of the text.
    Text(String),
    Done(Generation),
    Embedded(Vec<Vec<f32>>),
    Cancelled,
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
                state.running = Some(job.cancel.clone());
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

    /// Does the jobs until the queue is closed.
    pub(crate) fn work(&self, tokenizer: &Tokenizer, runner: &mut Runner) {
        while let Some(job) = self.pop() {
            let start = Instant::now();
            let done = catch_unwind(AssertUnwindSafe(|| runner.run(tokenizer, &job)));
            let event = match done {
                Ok(Ok(event)) => event,
                Ok(Err(error)) => Event::Failed(error.to_string()),
                Err(_) => {
                    if let Runner::Generator(generator) = runner {
                        generator.reset();
                    }
                    Event::Failed("the model failed".to_owned())
                }
            };
            // A client that is gone receives nothing.
            let _ = job.events.send(event);
            self.finish(start);
        }
    }
}

impl Runner {
    /// Does a job. Returns its last event.
    fn run(&mut self, tokenizer: &Tokenizer, job: &Job) -> coremill_llm::Result<Event> {
        match (self, &job.task) {
            (Runner::Generator(generator), Task::Generate { prompt, options }) => {
                let mut show = |text: &str| job.events.send(Event::Text(text.to_owned())).is_ok();
                let generation = generator.generate(tokenizer, prompt, options, &mut show)?;
                Ok(match generation.reason {
                    FinishReason::Cancelled => Event::Cancelled,
                    _ => Event::Done(generation),
                })
            }
            (Runner::Embedder(embedder), Task::Embed(texts)) => {
                let mut embeddings = Vec::with_capacity(texts.len());
                for ids in texts {
                    if job.is_cancelled() {
                        return Ok(Event::Cancelled);
                    }
                    embeddings.push(embedder.embed(ids)?);
                }
                Ok(Event::Embedded(embeddings))
            }
            // Connections refuse such requests.
            _ => Ok(Event::Failed("the model does not support this task".to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    fn job() -> (Job, Arc<AtomicBool>) {
        let cancel = Arc::new(AtomicBool::new(false));
        let task = Task::Embed(vec![vec![1]]);
        (Job { task, cancel: cancel.clone(), events: channel().0 }, cancel)
    }

    #[test]
    fn cancelled_jobs_free_their_queue_slot() {
        let queue = Queue::new(2);
        let [(first, cancel), (second, _), (third, _), (fourth, _)] = [(); 4].map(|()| job());
        assert_eq!(queue.push(first), Ok(()));
        assert_eq!(queue.push(second), Ok(()));
        assert_eq!(queue.push(third), Err(1));
        cancel.store(true, Ordering::Relaxed);
        assert_eq!(queue.push(fourth), Ok(()));
        assert!(queue.pop().is_some_and(|job| !job.is_cancelled()));
    }

    #[test]
    fn close_cancels_running_and_queued_jobs() {
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
    fn retry_after_scales_with_backlog_and_is_capped() {
        let queue = Queue::new(1);
        queue.state().seconds = 2.5;
        assert_eq!(queue.push(job().0), Ok(()));
        assert_eq!(queue.push(job().0), Err(5));
        queue.state().seconds = 1e9;
        assert_eq!(queue.push(job().0), Err(60));
    }
}
