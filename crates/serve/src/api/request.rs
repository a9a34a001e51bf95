use coremill_llm::{GenerateOptions, GenerationSettings, Message, Sampling};

use super::fields::{Fields, List, MessageFields, Scalar};
use super::response::ApiError;

/// Most texts of the field `stop`.
const MAX_STOPS: usize = 16;

/// Most bytes of a text that ends the generation.
const MAX_STOP: usize = 256;

/// Most messages of a conversation.
const MAX_MESSAGES: usize = 4096;

/// Default of `max_tokens` for completions.
const USUAL_COMPLETION: usize = 16;

type Result<T> = std::result::Result<T, ApiError>;

/// Text to continue.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Prompt {
    /// Messages for the chat template.
    Messages(Vec<Message>),
    /// A text.
    Text(String),
    /// Token ids.
    Tokens(Vec<u32>),
}

/// A request for a text.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Request {
    /// Text to continue.
    pub prompt: Prompt,
    /// Most tokens; `None` if only the context limits them.
    pub max_tokens: Option<usize>,
    /// Options of choosing tokens.
    pub sampling: Sampling,
    /// Texts that end the generation.
    pub stops: Vec<String>,
    /// Send each part of the text when it is generated.
    pub stream: bool,
    /// End the stream with the numbers of tokens.
    pub include_usage: bool,
}

impl Request {
    /// Reads a request for `/v1/chat/completions` or `/v1/completions`. `seed` is for requests without one.
    pub fn parse(
        body: &[u8],
        is_chat: bool,
        settings: &GenerationSettings,
        seed: u64,
    ) -> Result<Request> {
        let fields: Fields = serde_json::from_slice(body).map_err(|error| {
            ApiError::invalid(None, format!("the body is not a valid request: {error}"))
        })?;
        refuse_unsupported(&fields)?;
        let prompt = match is_chat {
            true => Prompt::Messages(messages(&fields.messages)?),
            false => prompt(fields.prompt)?,
        };
        let most = match fields.max_completion_tokens {
            Scalar::Null => count("max_tokens", &fields.max_tokens)?,
            _ => count("max_completion_tokens", &fields.max_completion_tokens)?,
        };
        if most == Some(0) {
            return Err(ApiError::invalid(Some("max_tokens"), "`max_tokens` must be at least 1"));
        }
        let mut sampling = Sampling::default();
        let temperature = number("temperature", &fields.temperature, 0.0, 2.0)?;
        sampling.temperature = temperature.or(settings.temperature).unwrap_or(0.0);
        let top_p = number("top_p", &fields.top_p, 0.0, 1.0)?;
        sampling.top_p = top_p.or(settings.top_p).unwrap_or(1.0);
        sampling.top_k = count("top_k", &fields.top_k)?.or(settings.top_k).unwrap_or(0);
        sampling.min_p = number("min_p", &fields.min_p, 0.0, 1.0)?.unwrap_or(0.0);
        let penalty = number("repeat_penalty", &fields.repeat_penalty, 0.01, 10.0)?;
        sampling.repetition_penalty = penalty.or(settings.repetition_penalty).unwrap_or(1.0);
        sampling.seed = match &fields.seed {
            Scalar::Null => seed,
            // Any integer selects a sequence.
            Scalar::Int(seed) => *seed as u64,
            other => return Err(wrong("seed", "an integer", other)),
        };
        let options = fields.stream_options.unwrap_or_default();
        Ok(Request {
            prompt,
            max_tokens: most.or((!is_chat).then_some(USUAL_COMPLETION)),
            sampling,
            stops: stops(fields.stop)?,
            stream: flag("stream", &fields.stream)?,
            include_usage: flag("stream_options.include_usage", &options.include_usage)?,
        })
    }

    /// Options of generating the text after a number of tokens.
    pub fn options(
        &self,
        prompt: usize,
        context: usize,
        end_tokens: &[u32],
    ) -> Result<GenerateOptions> {
        if prompt == 0 {
            return Err(ApiError::invalid(None, "the prompt has no tokens"));
        }
        if prompt > context {
            let message =
                format!("the prompt has {prompt} tokens, but the context has only {context}");
            let mut error = ApiError::invalid(None, message);
            error.code = Some("context_length_exceeded");
            return Err(error);
        }
        let mut options = GenerateOptions::default();
        options.max_tokens = self.max_tokens.unwrap_or(context);
        options.sampling = self.sampling;
        options.stops = self.stops.clone();
        options.end_tokens = end_tokens.to_vec();
        options.reuse_prefix = true;
        Ok(options)
    }
}

pub(super) fn wrong(field: &str, expected: &str, found: &Scalar) -> ApiError {
    ApiError::invalid(Some(field), format!("`{field}` must be {expected}, got {found}"))
}

fn number(field: &str, value: &Scalar, least: f64, most: f64) -> Result<Option<f32>> {
    let number = match value {
        Scalar::Null => return Ok(None),
        Scalar::Int(number) => *number as f64,
        Scalar::Float(number) => *number,
        _ => f64::NAN,
    };
    match (least..=most).contains(&number) {
        true => Ok(Some(number as f32)),
        false => Err(wrong(field, &format!("a number from {least} to {most}"), value)),
    }
}

pub(super) fn count(field: &str, value: &Scalar) -> Result<Option<usize>> {
    let number = match value {
        Scalar::Null => return Ok(None),
        Scalar::Int(number) => usize::try_from(*number).ok(),
        _ => None,
    };
    number.map(Some).ok_or_else(|| wrong(field, "a non-negative integer", value))
}

fn flag(field: &str, value: &Scalar) -> Result<bool> {
    match value {
        Scalar::Null => Ok(false),
        Scalar::Bool(flag) => Ok(*flag),
        other => Err(wrong(field, "true or false", other)),
    }
}

fn stops(field: List<Scalar>) -> Result<Vec<String>> {
    let values = match field {
        List::One(Scalar::Null) => return Ok(Vec::new()),
        List::One(value) => vec![value],
        List::Many(values) => values,
    };
    if values.len() > MAX_STOPS {
        let message = format!("`stop` must have at most {MAX_STOPS} strings, got {}", values.len());
        return Err(ApiError::invalid(Some("stop"), message));
    }
    let text = |value: Scalar| match value {
        Scalar::Text(text) if !text.is_empty() && text.len() <= MAX_STOP => Ok(text),
        other => Err(wrong("stop", &format!("strings of 1 to {MAX_STOP} bytes"), &other)),
    };
    values.into_iter().map(text).collect()
}

fn prompt(field: List<Scalar>) -> Result<Prompt> {
    let expected = "a string or an array of token ids";
    let mut values = match field {
        List::One(Scalar::Text(text)) => return Ok(Prompt::Text(text)),
        List::One(other) => return Err(wrong("prompt", expected, &other)),
        List::Many(values) => values,
    };
    if matches!(values[..], [Scalar::Text(_)])
        && let Some(Scalar::Text(text)) = values.pop()
    {
        return Ok(Prompt::Text(text));
    }
    let id = |value: &Scalar| match value {
        Scalar::Int(id) => u32::try_from(*id).map_err(|_| wrong("prompt", expected, value)),
        Scalar::Text(_) => Err(ApiError::invalid(
            Some("prompt"),
            "`prompt` must be a single string; several prompts in one request are not supported",
        )),
        other => Err(wrong("prompt", expected, other)),
    };
    values.iter().map(id).collect::<Result<_>>().map(Prompt::Tokens)
}

fn messages(field: &List<MessageFields>) -> Result<Vec<Message>> {
    let fields = match field {
        List::Many(fields) if !fields.is_empty() && fields.len() <= MAX_MESSAGES => fields,
        List::Many(fields) => {
            let count = fields.len();
            let message =
                format!("`messages` must have from 1 to {MAX_MESSAGES} messages, got {count}");
            return Err(ApiError::invalid(Some("messages"), message));
        }
        List::One(other) => return Err(wrong("messages", "an array of messages", other)),
    };
    let mut messages = Vec::with_capacity(fields.len());
    for (index, MessageFields { role, content }) in fields.iter().enumerate() {
        let name = |part: &str| format!("messages[{index}].{part}");
        let role = match role {
            // The newer name of the same role.
            Scalar::Text(role) if role == "developer" => "system",
            Scalar::Text(role) if !role.is_empty() => role,
            other => return Err(wrong(&name("role"), "`system`, `user` or `assistant`", other)),
        };
        let mut text = String::new();
        match content {
            List::One(Scalar::Text(whole)) => text += whole,
            List::One(Scalar::Null) if role == "assistant" => {}
            List::One(other) => return Err(wrong(&name("content"), "a string", other)),
            List::Many(parts) => {
                for part in parts {
                    match (&part.kind, &part.text) {
                        (Scalar::Text(kind), Scalar::Text(more)) if kind == "text" => text += more,
                        (kind, _) => {
                            let field = name("content");
                            return Err(wrong(&field, "a string or parts of type `text`", kind));
                        }
                    }
                }
            }
        }
        messages.push(Message::new(role, text));
    }
    Ok(messages)
}

/// Refuses fields that would change the result if they were supported.
fn refuse_unsupported(fields: &Fields) -> Result<()> {
    let is_one = |value: &Scalar| matches!(value, Scalar::Null | Scalar::Int(1));
    let is_off = |value: &Scalar| match value {
        Scalar::Null | Scalar::Bool(false) | Scalar::Int(0) | Scalar::Array(true) => true,
        Scalar::Float(number) => *number == 0.0,
        Scalar::Text(text) => text.is_empty(),
        _ => false,
    };
    let is_plain = fields
        .response_format
        .0
        .as_ref()
        .is_none_or(|format| matches!(&format.kind, Scalar::Text(kind) if kind == "text"));
    let supported = [
        ("n", is_one(&fields.n)),
        ("best_of", is_one(&fields.best_of)),
        ("frequency_penalty", is_off(&fields.frequency_penalty)),
        ("presence_penalty", is_off(&fields.presence_penalty)),
        ("echo", is_off(&fields.echo)),
        ("logprobs", is_off(&fields.logprobs)),
        ("top_logprobs", is_off(&fields.top_logprobs)),
        ("suffix", is_off(&fields.suffix)),
        ("tools", is_off(&fields.tools)),
        ("functions", is_off(&fields.functions)),
        ("logit_bias", fields.logit_bias.0.as_ref().is_none_or(|bias| bias.is_empty())),
        ("response_format", is_plain),
    ];
    match supported.into_iter().find(|(_, is_supported)| !is_supported) {
        Some((field, _)) => {
            let mut error = ApiError::invalid(
                Some(field),
                format!("`{field}` is not supported with this value; leave it out"),
            );
            error.code = Some("unsupported_value");
            Err(error)
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(body: &str, is_chat: bool) -> Result<Request> {
        Request::parse(body.as_bytes(), is_chat, &GenerationSettings::default(), 7)
    }

    fn error(body: &str, is_chat: bool) -> (Option<String>, String) {
        let error = parse(body, is_chat).expect_err("refused");
        assert_eq!(error.status, 400);
        (error.param, error.message)
    }

    #[test]
    fn parses_chat_requests() {
        let body = r#"{"model": "any", "messages": [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": null, "tool_calls": [{}]}],
            "max_tokens": 5, "max_completion_tokens": 9, "temperature": 1, "top_p": 0.5, "seed": -1,
            "stop": "END", "stream": true, "stream_options": {"include_usage": true},
            "n": 1, "tools": [], "logit_bias": {}, "response_format": {"type": "text"}, "user": {"x": [1]}}"#;
        let request = parse(body, true).expect("sound");
        let messages = [("system", "Be brief."), ("user", "ab"), ("assistant", "")];
        let messages = messages.map(|(role, text)| Message::new(role, text)).to_vec();
        assert_eq!(request.prompt, Prompt::Messages(messages));
        assert_eq!(request.max_tokens, Some(9));
        let Sampling { temperature, top_p, seed, .. } = request.sampling;
        assert_eq!((temperature, top_p, seed), (1.0, 0.5, u64::MAX));
        assert_eq!(request.stops, ["END"]);
        assert!(request.stream && request.include_usage);
    }

    #[test]
    fn parses_completion_requests() {
        let request = parse(r#"{"prompt": "a", "stop": ["b", "c"]}"#, false).expect("sound");
        assert_eq!((request.prompt, request.max_tokens), (Prompt::Text("a".to_owned()), Some(16)));
        assert_eq!((request.stops.len(), request.sampling.seed), (2, 7));
        let ids = parse(r#"{"prompt": [1, 2]}"#, false).expect("sound").prompt;
        assert_eq!(ids, Prompt::Tokens(vec![1, 2]));
        let one = parse(r#"{"prompt": ["a"]}"#, false).expect("sound").prompt;
        assert_eq!(one, Prompt::Text("a".to_owned()));
    }

    #[test]
    fn sampling_defaults_come_from_model_settings() {
        let mut settings = GenerationSettings::default();
        (settings.temperature, settings.top_k) = (Some(0.6), Some(20));
        let body = br#"{"prompt": "a", "top_k": 3}"#;
        let sampling = Request::parse(body, false, &settings, 0).expect("sound").sampling;
        assert_eq!((sampling.temperature, sampling.top_k), (0.6, 3));
    }

    #[test]
    fn error_param_names_invalid_field() {
        let cases = [
            (r#"{"temperature": "hot"}"#, "temperature", "a number from 0 to 2, got \"hot\""),
            (r#"{"temperature": 2.5}"#, "temperature", "got 2.5"),
            (r#"{"max_tokens": -1}"#, "max_tokens", "a non-negative integer, got -1"),
            (r#"{"max_tokens": 0}"#, "max_tokens", "at least 1"),
            (r#"{"stream": 1}"#, "stream", "true or false, got 1"),
            (r#"{"stop": ["a", ""]}"#, "stop", "strings of 1 to 256 bytes, got \"\""),
            (r#"{"seed": 0.5}"#, "seed", "an integer, got 0.5"),
            (r#"{"n": 2}"#, "n", "not supported"),
            (r#"{"logit_bias": {"5": 1}}"#, "logit_bias", "not supported"),
            (r#"{"tools": [{}]}"#, "tools", "not supported"),
            (r#"{"response_format": {"type": "json_object"}}"#, "response_format", "not supported"),
        ];
        for (body, field, part) in cases {
            let body = body.replacen('{', r#"{"prompt": "a", "#, 1);
            let (param, message) = error(&body, false);
            assert_eq!(param.as_deref(), Some(field), "{body}");
            assert!(message.contains(part), "{message}");
        }
        let (param, message) = error(r#"{"messages": [{"role": "user", "content": 3}]}"#, true);
        assert_eq!(param.as_deref(), Some("messages[0].content"));
        assert_eq!(message, "`messages[0].content` must be a string, got 3");
        let image = r#"{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}"#;
        assert!(error(image, true).1.ends_with("got \"image_url\""));
        assert!(error("{}", true).1.contains("an array of messages, got null"));
        assert!(error("{}", false).1.contains("`prompt`"));
        assert!(error("[", true).1.contains("line 1"));
        assert!(error(r#"{"prompt": ["a", "b"]}"#, false).1.contains("several"));
    }

    #[test]
    fn rejects_empty_prompts_and_prompts_over_context() {
        let request = parse(r#"{"prompt": "a"}"#, false).expect("sound");
        assert_eq!(request.options(4, 4, &[2]).expect("fits").max_tokens, 16);
        let error = request.options(5, 4, &[]).expect_err("too long");
        assert_eq!(error.code, Some("context_length_exceeded"));
        assert!(request.options(0, 4, &[]).is_err());
    }
}
