use serde_json::{Value, json};

/// An error of a request.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ApiError {
    /// The status of the response.
    pub status: u16,
    /// Description of the error.
    pub message: String,
    /// The field at fault.
    pub param: Option<String>,
    /// The name of the error, if OpenAI's interface has one.
    pub code: Option<&'static str>,
}

impl ApiError {
    /// An error with a status.
    pub fn new(status: u16, message: impl Into<String>) -> ApiError {
        ApiError { status, message: message.into(), param: None, code: None }
    }

    /// An invalid request.
    pub fn invalid(param: Option<&str>, message: impl Into<String>) -> ApiError {
        ApiError { param: param.map(str::to_owned), ..ApiError::new(400, message) }
    }

    /// The body of the response.
    pub fn to_json(&self) -> Value {
        let kind = match self.status {
            429 => "rate_limit_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        };
        let ApiError { message, param, code, .. } = self;
        json!({ "error": { "message": message, "type": kind, "param": param, "code": code } })
    }
}

/// Numbers of tokens of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Tokens of the prompt that were in the cache.
    pub cached: usize,
    /// Generated tokens.
    pub completion: usize,
}

impl Usage {
    fn to_json(self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": { "cached_tokens": self.cached },
        })
    }
}

/// Responses to a request for a text.
#[derive(Clone, Debug)]
pub struct Reply {
    /// A name of the response.
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    /// The name of the model.
    pub model: String,
    /// Whether the response is a message.
    pub is_chat: bool,
}

impl Reply {
    /// The whole text.
    pub fn whole(&self, text: &str, reason: &str, usage: Usage) -> Value {
        let choice = match self.is_chat {
            true => json!({
                "index": 0,
                "message": { "role": "assistant", "content": text },
                "logprobs": null,
                "finish_reason": reason,
            }),
            false => {
                json!({ "index": 0, "text": text, "logprobs": null, "finish_reason": reason })
            }
        };
        let object = if self.is_chat { "chat.completion" } else { "text_completion" };
        let mut body = self.body(object, json!([choice]));
        body["usage"] = usage.to_json();
        body
    }

    /// The first part of a message, which has the role; `None` for completions.
    pub fn first_part(&self) -> Option<Value> {
        let delta = json!({ "role": "assistant", "content": "" });
        self.is_chat.then(|| self.delta(delta, None))
    }

    /// A part of the text.
    pub fn part(&self, text: &str) -> Value {
        match self.is_chat {
            true => self.delta(json!({ "content": text }), None),
            false => self.text_part(text, None),
        }
    }

    /// The last part, which has the reason of the end.
    pub fn last_part(&self, reason: &str) -> Value {
        match self.is_chat {
            true => self.delta(json!({}), Some(reason)),
            false => self.text_part("", Some(reason)),
        }
    }

    /// The numbers of tokens, after the last part.
    pub fn usage_part(&self, usage: Usage) -> Value {
        let mut body = self.body(self.part_object(), json!([]));
        body["usage"] = usage.to_json();
        body
    }

    fn part_object(&self) -> &'static str {
        if self.is_chat { "chat.completion.chunk" } else { "text_completion" }
    }

    fn delta(&self, delta: Value, reason: Option<&str>) -> Value {
        let choice =
            json!({ "index": 0, "delta": delta, "logprobs": null, "finish_reason": reason });
        self.body(self.part_object(), json!([choice]))
    }

    fn text_part(&self, text: &str, reason: Option<&str>) -> Value {
        let choice = json!({ "index": 0, "text": text, "logprobs": null, "finish_reason": reason });
        self.body(self.part_object(), json!([choice]))
    }

    fn body(&self, object: &str, choices: Value) -> Value {
        let Reply { id, created, model, .. } = self;
        json!({ "id": id, "object": object, "created": created, "model": model, "choices": choices })
    }
}

/// The description of a model.
pub fn model_object(name: &str, created: u64) -> Value {
    json!({ "id": name, "object": "model", "created": created, "owned_by": "coremill" })
}

/// The list of the only model.
pub fn model_list(name: &str, created: u64) -> Value {
    json!({ "object": "list", "data": [model_object(name, created)] })
}
