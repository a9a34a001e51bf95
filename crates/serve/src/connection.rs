use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};

use coremill_llm::Generation;
use serde_json::json;

use crate::api::{ApiError, Prompt, Reply, Request, Usage, model_list, model_object};
use crate::embeddings::embed;
use crate::http::{CONTINUE, EventStream, Head, RequestError, RequestReader, Response};
use crate::queue::{Event, Task};
use crate::service::{Answer, Events, Service, now};
use crate::stream::{TimedStream, linger};

/// Paths of requests for the model.
const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const EMBEDDINGS: &str = "/v1/embeddings";

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
            Answer::Error(error, headers) => (error.status, error.to_json().to_string(), headers),
            Answer::Written { keep_alive: true } if keep_alive => continue,
            Answer::Written { .. } => return linger(stream),
            Answer::Gone => return,
        };
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
    let allowed = match path {
        CHAT | COMPLETIONS | EMBEDDINGS => "POST",
        _ => "GET",
    };
    let model = path.strip_prefix("/v1/models/");
    let is_known = allowed == "POST" || matches!(path, "/health" | "/v1/models") || model.is_some();
    if !is_known {
        let message = format!(
            "no resource `{path}`; expected `{CHAT}`, `{COMPLETIONS}`, `{EMBEDDINGS}`, `/v1/models` or `/health`"
        );
        return ApiError::new(404, message).into();
    }
    if head.method != allowed {
        let message = format!("`{path}` requires the method {allowed}, got {}", head.method);
        return Answer::Error(ApiError::new(405, message), vec![("Allow", allowed.to_owned())]);
    }
    match (path, model) {
        ("/health", _) => Answer::Json(200, json!({ "status": "ok" }).to_string()),
        ("/v1/models", _) => Answer::Json(200, model_list(name, *created).to_string()),
        (_, Some(model)) if model == name => {
            Answer::Json(200, model_object(name, *created).to_string())
        }
        (_, Some(model)) => {
            let mut error = ApiError::new(404, format!("no model `{model}`; expected `{name}`"));
            error.code = Some("model_not_found");
            error.into()
        }
        // Web pages can send other types to any address without asking first.
        _ if head.content_type.as_deref() != Some("application/json") => {
            ApiError::new(415, "the header `content-type` must be `application/json`").into()
        }
        _ => {
            let answered = match (path, service.width) {
                (EMBEDDINGS, Some(width)) => embed(stream, service, body, width),
                (EMBEDDINGS, None) => Err(other_kind(&format!(
                    "`{name}` generates text and does not compute embeddings; use `{CHAT}` or `{COMPLETIONS}`"
                ))),
                (_, Some(_)) => Err(other_kind(&format!(
                    "`{name}` is an embedding model, which does not generate text; use `{EMBEDDINGS}`"
                ))),
                (_, None) => text(stream, service, head, body, path == CHAT),
            };
            answered.unwrap_or_else(|answer| answer)
        }
    }
}

/// Refusal of a request for another kind of model.
fn other_kind(message: &str) -> Answer {
    ApiError::invalid(Some("model"), message).into()
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
    let task = Task::Generate { prompt: ids, options };
    let events = Events::of_job(stream, service, task, cancel)?;
    let kind = if is_chat { "chatcmpl" } else { "cmpl" };
    let reply = Reply {
        id: format!("{kind}-{:x}-{count}", service.created),
        created: now(),
        model: service.name.clone(),
        is_chat,
    };
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
                let message = format!(
                    "token {id} of `prompt` is not below {vocabulary}, the size of the vocabulary"
                );
                return Err(ApiError::invalid(Some("prompt"), message));
            }
            ids.clone()
        }
    };
    Ok((request, ids))
}

fn usage(generation: &Generation) -> Usage {
    Usage {
        prompt: generation.prompt_tokens,
        cached: generation.reused_tokens,
        completion: generation.tokens.len(),
    }
}

impl Events<'_> {
    /// The whole text.
    fn collect(&self, reply: &Reply) -> Result<Answer, Answer> {
        loop {
            if let Event::Done(generation) = self.next()? {
                let reason = generation.reason.name();
                let body = reply.whole(&generation.text, reason, usage(&generation));
                return Ok(Answer::Json(200, body.to_string()));
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
