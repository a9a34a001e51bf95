use std::io;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use coremill_llm::{ChatTemplate, GenerationSettings, Tokenizer};

use crate::api::ApiError;
use crate::http::Limits;
use crate::queue::{Event, Job, Queue, Task};
use crate::stream::is_closed;

/// Time between looks at a client that waits for text.
const POLL: Duration = Duration::from_millis(100);

/// Times that a client may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// Until the first byte of a request.
    pub(crate) idle: Duration,
    /// From there until the end of the headers.
    pub(crate) head: Duration,
    /// From there until the end of the body.
    pub(crate) body: Duration,
    /// To accept a response, or a part of a stream.
    pub(crate) write: Duration,
}

/// State that connections share.
pub(crate) struct Service {
    pub(crate) name: String,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) template: Option<ChatTemplate>,
    pub(crate) settings: GenerationSettings,
    pub(crate) context: usize,
    pub(crate) vocabulary: usize,
    /// Elements of an embedding, if the model is an embedding model.
    pub(crate) width: Option<usize>,
    pub(crate) queue: Queue,
    pub(crate) limits: Limits,
    pub(crate) times: Times,
    pub(crate) is_stopping: AtomicBool,
    /// Seconds since 1970 at which the server started.
    pub(crate) created: u64,
    /// Number of requests so far.
    pub(crate) count: AtomicU64,
    /// Held while a request is parsed and tokenized, so that many large requests do not take memory at the same time.
    pub(crate) preparing: Mutex<()>,
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// Answer to a request.
pub(crate) enum Answer {
    /// A body of JSON.
    Json(u16, String),
    Error(ApiError, Vec<(&'static str, String)>),
    /// The stream is written. It may have ended with the connection.
    Written {
        keep_alive: bool,
    },
    /// The client is gone.
    Gone,
}

impl From<ApiError> for Answer {
    fn from(error: ApiError) -> Answer {
        Answer::Error(error, Vec::new())
    }
}

impl From<io::Error> for Answer {
    fn from(_: io::Error) -> Answer {
        Answer::Gone
    }
}

/// Cancels a job when its connection has ended.
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Events of a job, for a client. The job is cancelled with them.
pub(crate) struct Events<'s> {
    events: Receiver<Event>,
    pub(crate) stream: &'s TcpStream,
    pub(crate) service: &'s Service,
    _cancel: CancelOnDrop,
}

impl<'s> Events<'s> {
    /// Puts a job into the queue, or refuses it if the queue is full.
    pub(crate) fn of_job(
        stream: &'s TcpStream,
        service: &'s Service,
        task: Task,
        cancel: Arc<AtomicBool>,
    ) -> Result<Events<'s>, Answer> {
        let (sender, events) = mpsc::channel();
        let job = Job { task, cancel: cancel.clone(), events: sender };
        match service.queue.push(job) {
            Ok(()) => Ok(Events { events, stream, service, _cancel: CancelOnDrop(cancel) }),
            Err(seconds) => {
                let error = ApiError::new(429, "too many requests are waiting; try again later");
                Err(Answer::Error(error, vec![("Retry-After", seconds.to_string())]))
            }
        }
    }

    /// Waits for the next event as long as the client does.
    pub(crate) fn next(&self) -> Result<Event, Answer> {
        loop {
            match self.events.recv_timeout(POLL) {
                Ok(Event::Failed(message)) => return Err(ApiError::new(500, message).into()),
                Ok(Event::Cancelled) => {
                    return Err(ApiError::new(503, "the server is stopping").into());
                }
                Ok(event) => return Ok(event),
                Err(_) if self.service.is_stopping.load(Ordering::Relaxed) => {
                    return Err(ApiError::new(503, "the server is stopping").into());
                }
                Err(RecvTimeoutError::Timeout) if is_closed(self.stream) => {
                    return Err(Answer::Gone);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(ApiError::new(500, "the request was dropped").into());
                }
            }
        }
    }
}
