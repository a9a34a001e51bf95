use std::io::{self, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use coremill_llm::{ChatTemplate, FinishReason, Generation, GenerationSettings, Tokenizer};
use serde_json::{Value, json};

use crate::api::{ApiError, Prompt, Reply, Request, Usage, model_list, model_object};
use crate::http::{CONTINUE, EventStream, Head, Limits, RequestError, RequestReader, Response};
use crate::queue::{Event, Job, Queue};
use crate::stream::{TimedStream, is_closed, linger};

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
    pub(crate) tokenizer: Tokenizer,
    pub(crate) template: Option<ChatTemplate>,
    pub(crate) settings: GenerationSettings,
    pub(crate) context: usize,
    pub(crate) vocabulary: usize,
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
enum Answer {
    Json(u16, Value),
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

/// Answers the requests of a client until one of them ends the connection.
pub(crate) fn answer_all(stream: &TcpStream, service: &Service) {
    let times = service.times;
    let timed = TimedStream::new(stream, times.idle);
    let mut reader = RequestReader::new(timed, service.limits);
    loop {
        reader.source_mut().allow(times.idle);
        // A client that sends nothing needs no answer.
        if !reader.wait().unwrap_or(false) {
            return;
        }
        let request = read(&mut reader, stream, service);
        let (answer, keep_alive) = match request {
            Ok((head, body)) => (answer(stream, service, &head, &body), head.keep_alive),
            Err(RequestError::Closed) => return,
            Err(RequestError::TimedOut) => {
                (ApiError::new(408, "the request took too long").into(), false)
            }
            Err(RequestError::Refused(status, message)) => {
                (ApiError::new(status, message).into(), false)
            }
        };
        let (status, body, headers) = match answer {
            Answer::Json(status, body) => (status, body, Vec::new()),
            Answer::Error(error, headers) => (error.status, error.to_json(), headers),
            Answer::Written { keep_alive: true } if keep_alive => continue,
            Answer::Written { .. } => return linger(stream),
            Answer::Gone => return,
        };
        let body = body.to_string();
        let keep_alive = keep_alive && !service.is_stopping.load(Ordering::Relaxed);
        let response = Response { status, body: &body, headers: &headers, keep_alive };
        let written = TimedStream::new(stream, times.write).write_all(&response.to_bytes());
        match written {
            Ok(()) if keep_alive => {}
            Ok(()) => return linger(stream),
            Err(_) => return,
        }
    }
}

fn read(
    reader: &mut RequestReader<TimedStream<'_>>,
    stream: &TcpStream,
    service: &Service,
) -> Result<(Head, Vec<u8>), RequestError> {
    reader.source_mut().allow(service.times.head);
    let head = reader.head()?;
    check_host(&head)?;
    if head.expects_continue {
        TimedStream::new(stream, service.times.write).write_all(CONTINUE)?;
    }
    reader.source_mut().allow(service.times.body);
    let body = reader.body(&head)?;
    Ok((head, body))
}

/// Refuses names of other hosts: a web page whose name resolves to this machine must not use the server.
fn check_host(head: &Head) -> Result<(), RequestError> {
    match head.host.as_deref() {
        None | Some("localhost" | "127.0.0.1" | "[::1]") => Ok(()),
        Some(_) => {
            let message = "the host must be `localhost`, `127.0.0.1` or `[::1]`";
            Err(RequestError::Refused(403, message.to_owned()))
        }
    }
}

fn answer(stream: &TcpStream, service: &Service, head: &Head, body: &[u8]) -> Answer {
    let Service { name, created, .. } = service;
    let path = head.path.as_str();
    let (allowed, is_chat) = match path {
        "/v1/chat/completions" => ("POST", true),
        "/v1/completions" => ("POST", false),
        _ => ("GET", false),
    };
    let model = path.strip_prefix("/v1/models/");
    let is_known = allowed == "POST" || matches!(path, "/health" | "/v1/models") || model.is_some();
    if !is_known {
        let message = format!(
            "no resource `{path}`; expected `/v1/chat/completions`, `/v1/completions`, `/v1/models` or `/health`"
        );
        return ApiError::new(404, message).into();
    }
    if head.method != allowed {
        let message = format!("`{path}` needs the method {allowed}, got {}", head.method);
        return Answer::Error(ApiError::new(405, message), vec![("Allow", allowed.to_owned())]);
    }
    match (path, model) {
        ("/health", _) => Answer::Json(200, json!({ "status": "ok" })),
        ("/v1/models", _) => Answer::Json(200, model_list(name, *created)),
        (_, Some(model)) if model == name => Answer::Json(200, model_object(name, *created)),
        (_, Some(model)) => {
            let mut error = ApiError::new(404, format!("no model `{model}`; expected `{name}`"));
            error.code = Some("model_not_found");
            error.into()
        }
        // Web pages can send other types to any address without asking first.
        _ if head.content_type.as_deref() != Some("application/json") => {
            ApiError::new(415, "the header `content-type` must be `application/json`").into()
        }
        _ => text(stream, service, head, body, is_chat).unwrap_or_else(|answer| answer),
    }
}

/// Cancels a job when its connection has ended.
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn text(
    stream: &TcpStream,
    service: &Service,
    head: &Head,
    body: &[u8],
    is_chat: bool,
) -> Result<Answer, Answer> {
    let count = service.count.fetch_add(1, Ordering::Relaxed);
    let (request, ids) = prepare(service, body, is_chat, count)?;
    let mut options = request.options(ids.len(), service.context, &service.settings.eos)?;
    let cancel = Arc::new(AtomicBool::new(false));
    options.cancel = Some(cancel.clone());
    let _cancel = CancelOnDrop(cancel);
    let (sender, events) = mpsc::channel();
    if let Err(seconds) = service.queue.push(Job { prompt: ids, options, events: sender }) {
        let error = ApiError::new(429, "too many requests are waiting; try again later");
        return Err(Answer::Error(error, vec![("Retry-After", seconds.to_string())]));
    }
    let kind = if is_chat { "chatcmpl" } else { "cmpl" };
    let reply = Reply {
        id: format!("{kind}-{:x}-{count}", service.created),
        created: now(),
        model: service.name.clone(),
        is_chat,
    };
    let events = Events { events, stream, service };
    match request.stream {
        true => events.send_all(head, &reply, request.include_usage),
        false => events.collect(&reply),
    }
}

/// The request and the tokens of its prompt.
fn prepare(
    service: &Service,
    body: &[u8],
    is_chat: bool,
    count: u64,
) -> Result<(Request, Vec<u32>), ApiError> {
    let _preparing = service.preparing.lock().unwrap_or_else(PoisonError::into_inner);
    let seed = service.created.wrapping_mul(1 << 20).wrapping_add(count);
    let request = Request::parse(body, is_chat, &service.settings, seed)?;
    let failed = |error: coremill_llm::Error| ApiError::invalid(None, error.to_string());
    let ids = match &request.prompt {
        Prompt::Messages(messages) => {
            let Some(template) = &service.template else {
                let message = "the model has no chat template; use `/v1/completions`";
                return Err(ApiError::invalid(Some("messages"), message));
            };
            let text = template.render(messages, true).map_err(failed)?;
            // Templates write the tokens at the start of a text themselves.
            service.tokenizer.encode(&text, false).map_err(failed)?
        }
        Prompt::Text(text) => service.tokenizer.encode(text, true).map_err(failed)?,
        Prompt::Tokens(ids) => {
            if let Some(id) = ids.iter().find(|&&id| id as usize >= service.vocabulary) {
                let vocabulary = service.vocabulary;
                let message = format!("token {id} of `prompt` is not below {vocabulary}");
                return Err(ApiError::invalid(Some("prompt"), message));
            }
            ids.clone()
        }
    };
    Ok((request, ids))
}

/// Events of a job, for a client.
struct Events<'s> {
    events: Receiver<Event>,
    stream: &'s TcpStream,
    service: &'s Service,
}

fn usage(generation: &Generation) -> Usage {
    Usage {
        prompt: generation.prompt_tokens,
        cached: generation.reused_tokens,
        completion: generation.tokens.len(),
    }
}

impl Events<'_> {
    /// Waits for the next event as long as the client does.
    fn next(&self) -> Result<Event, Answer> {
        loop {
            match self.events.recv_timeout(POLL) {
                Ok(Event::Failed(message)) => return Err(ApiError::new(500, message).into()),
                Ok(Event::Done(generation)) if generation.reason == FinishReason::Cancelled => {
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

    /// The whole text.
    fn collect(&self, reply: &Reply) -> Result<Answer, Answer> {
        loop {
            if let Event::Done(generation) = self.next()? {
                let reason = generation.reason.name();
                let body = reply.whole(&generation.text, reason, usage(&generation));
                return Ok(Answer::Json(200, body));
            }
        }
    }

    /// The text in parts.
    fn send_all(&self, head: &Head, reply: &Reply, include_usage: bool) -> Result<Answer, Answer> {
        let time = self.service.times.write;
        // An error before the first part has a status of its own.
        let mut event = Ok(self.next()?);
        let out = TimedStream::new(self.stream, time);
        let keep_alive = head.keep_alive && head.accepts_chunks;
        let mut out = EventStream::start(out, head.accepts_chunks, keep_alive)?;
        if let Some(first) = reply.first_part() {
            out.send(&first.to_string())?;
        }
        loop {
            out.target_mut().allow(time);
            match event {
                Ok(Event::Text(text)) => out.send(&reply.part(&text).to_string())?,
                Ok(Event::Done(generation)) => {
                    out.send(&reply.last_part(generation.reason.name()).to_string())?;
                    if include_usage {
                        out.send(&reply.usage_part(usage(&generation)).to_string())?;
                    }
                    break;
                }
                Err(Answer::Error(error, _)) => {
                    out.send(&error.to_json().to_string())?;
                    break;
                }
                _ => return Ok(Answer::Gone),
            }
            event = self.next();
        }
        out.send("[DONE]")?;
        out.finish()?;
        Ok(Answer::Written { keep_alive })
    }
}
