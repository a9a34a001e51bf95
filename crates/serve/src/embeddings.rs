use std::net::TcpStream;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, PoisonError};

use crate::api::{ApiError, Embeddings, EmbeddingsRequest, Input};
use crate::queue::{Event, Task};
use crate::service::{Answer, Events, Service};

/// Answers a request for embeddings of a number of elements.
pub(crate) fn embed(
    stream: &TcpStream,
    service: &Service,
    body: &[u8],
    width: usize,
) -> Result<Answer, Answer> {
    let (encoding, texts) = {
        let _preparing = service.preparing.lock().unwrap_or_else(PoisonError::into_inner);
        let request = EmbeddingsRequest::parse(body, width)?;
        let texts =
            request.inputs.iter().enumerate().map(|(index, text)| ids(service, index, text));
        (request.encoding, texts.collect::<Result<Vec<_>, _>>()?)
    };
    let tokens = texts.iter().map(Vec::len).sum();
    let cancel = Arc::new(AtomicBool::new(false));
    let events = Events::of_job(stream, service, Task::Embed(texts), cancel)?;
    match events.next()? {
        Event::Embedded(values) => {
            let body = Embeddings { model: &service.name, values: &values, tokens, encoding };
            Ok(Answer::Json(200, body.to_json()?))
        }
        _ => Err(ApiError::new(500, "the model returned no embeddings").into()),
    }
}

/// The tokens of a text. Texts that are too long are refused, as by OpenAI.
fn ids(service: &Service, index: usize, input: &Input) -> Result<Vec<u32>, ApiError> {
    let invalid = |message: String| ApiError::invalid(Some("input"), message);
    let ids = match input {
        Input::Text(text) => {
            let ids = service.tokenizer.encode(text, true);
            ids.map_err(|error| invalid(error.to_string()))?
        }
        Input::Tokens(ids) => ids.clone(),
    };
    let (context, vocabulary) = (service.context, service.vocabulary);
    if let Some(id) = ids.iter().find(|&&id| id as usize >= vocabulary) {
        return Err(invalid(format!(
            "token {id} of `input[{index}]` is not below {vocabulary}, the size of the vocabulary"
        )));
    }
    if ids.is_empty() {
        return Err(invalid(format!("`input[{index}]` has no tokens")));
    }
    if ids.len() > context {
        let count = ids.len();
        let message =
            format!("`input[{index}]` has {count} tokens; the maximum for this model is {context}");
        let mut error = invalid(message);
        error.code = Some("context_length_exceeded");
        return Err(error);
    }
    Ok(ids)
}
