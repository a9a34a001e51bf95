//! Properties of all bytes that are read as parts of language models. The fuzz targets and the test of the seeds share them.

use std::path::Path;

use coremill_graph::{Gguf, MetadataValue};
use coremill_llm::{BuildOptions, ChatTemplate, EmbeddingModel, LanguageModel, Tokenizer};
use serde_json::{Value, json};

/// Largest context of a model whose graph is built.
const CONTEXT: usize = 16;

/// A GGUF file is opened or refused. The metadata of an opened file can be read, and a model of it becomes a graph or is refused.
pub(crate) fn gguf(data: &[u8]) {
    let thread = format!("{:?}", std::thread::current().id()).replace(['(', ')'], "");
    let path = std::env::temp_dir().join(format!("coremill-{}-{thread}.gguf", std::process::id()));
    std::fs::write(&path, data).expect("a temporary file");
    read_gguf(&path);
    std::fs::remove_file(&path).expect("it was written");
}

fn read_gguf(path: &Path) {
    let Ok(file) = Gguf::open(path) else { return };
    for value in file.metadata.values() {
        if let Some(values) = value.as_array() {
            assert_eq!(values.iter().count(), values.len());
        }
        let _ = (value.as_u64(), value.as_f64(), value.as_bool());
    }
    for (name, param) in file.tensors() {
        let count: u64 = param.shape().iter().product();
        if count <= 1 << 16
            && let Ok(floats) = param.to_floats()
        {
            assert_eq!(floats.len() as u64, count, "{name}");
        }
    }
    let architecture = file.metadata.get("general.architecture").and_then(MetadataValue::as_str);
    let is_encoder = architecture.is_some_and(|name| name.contains("bert"));
    if let Ok(tokenizer) = Tokenizer::of_gguf(&file.metadata) {
        encode(&tokenizer, "The cat, 1,234 x\u{301}\u{4e2d}\u{1f600}\n\n  end");
    }
    if is_encoder {
        let _ = EmbeddingModel::open(path).is_ok();
        return;
    }
    let Ok(model) = LanguageModel::open(path) else { return };
    let _ = (model.chat_template().is_ok(), model.generation_settings().is_ok());
    let context = CONTEXT.min(model.config().max_context);
    let _ = model.graphs(&BuildOptions::default().context(context).prefill(1)).is_ok();
}

/// A vocabulary is read or refused: `tokenizer.json`, a model of SentencePiece or a file of tiktoken. A zero byte separates it from a
/// text. The written `tokenizer.json` is read; what came from such a file encodes the text equally. SentencePiece also joins
/// characters that are no tokens, which merges cannot express.
pub(crate) fn tokenizer(data: &[u8]) {
    let end = data.iter().rposition(|&byte| byte == 0).unwrap_or(data.len());
    let (vocabulary, text) = (&data[..end], data.get(end + 1..).unwrap_or_default());
    let text = String::from_utf8_lossy(text);
    let read = match vocabulary.first() {
        Some(b'{') => match serde_json::from_slice(vocabulary) {
            Ok(json) => Tokenizer::of_json(&json),
            Err(_) => return,
        },
        _ => Tokenizer::of_bytes(vocabulary, &Value::Null),
    };
    let Ok(tokenizer) = read else { return };
    let (again, ids) = encode(&tokenizer, &text);
    if vocabulary.first() == Some(&b'{') {
        assert_eq!(again.encode(&text, true).ok(), ids, "{text:?}");
    }
}

/// Encodes and decodes a text. Returns the tokenizer after it was written and read, and the ids.
fn encode(tokenizer: &Tokenizer, text: &str) -> (Tokenizer, Option<Vec<u32>>) {
    let again = Tokenizer::of_json(&tokenizer.to_json()).expect("what was written is read");
    let Ok(ids) = tokenizer.encode(text, true) else { return (again, None) };
    for &id in &ids {
        let _ = (tokenizer.token(id), tokenizer.token_bytes(id), tokenizer.is_special(id));
    }
    let _ = tokenizer.decode(&ids, true);
    (again, Some(ids))
}

/// A template is rendered or refused, for messages that templates meet. A zero byte separates it from a message.
pub(crate) fn template(data: &[u8]) {
    let end = data.iter().position(|&byte| byte == 0).unwrap_or(data.len());
    let message = String::from_utf8_lossy(data.get(end + 1..).unwrap_or_default());
    let Ok(source) = std::str::from_utf8(&data[..end]) else { return };
    let Ok(template) = ChatTemplate::new(source, "<s>", "</s>") else { return };
    let call = json!({ "type": "function", "function": { "name": "f", "arguments": { "x": 1 } } });
    let messages = json!([
        { "role": "system", "content": "Be brief." },
        { "role": "user", "content": message },
        { "role": "assistant", "content": null, "tool_calls": [call] },
        { "role": "tool", "content": "2" },
        { "role": "user", "content": [{ "type": "text", "text": message }] },
    ]);
    let variables = json!({ "messages": messages, "tools": [call["function"]] });
    for prompts in [true, false] {
        if let Err(error) = template.render_with(&variables, prompts) {
            assert!(!error.to_string().is_empty());
        }
    }
}
