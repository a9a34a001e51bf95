//! Chat templates: messages to the text that a model was trained on.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::panic::resume_unwind;
use std::path::Path;
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use coremill_graph::MetadataValue;
use minijinja::value::{Kwargs, Value as Rendered};
use minijinja::{Environment, ErrorKind as TemplateErrorKind};
use serde_json::{Value, json};

use crate::error::{Error, ErrorKind, Result, fail};
use crate::python_text;
use crate::source::{read_json, read_text};

/// Steps that a template may take. Published templates take up to 160 for a message, and a few of them count messages again for
/// each one.
const FUEL: u64 = if cfg!(target_pointer_width = "64") { 1_000_000 } else { 50_000 };

/// Bytes of the stack on which templates are rendered, most of which is never touched. A step nests a value by at most one level.
/// minijinja compares, prints and drops values recursively, with up to 600 bytes a level.
const STACK: usize = FUEL as usize * 1024;

/// Most bytes of a template. minijinja parses long expressions recursively, with up to 400 bytes a character, and in quadratic time.
const MAX_TEMPLATE: usize = 1 << 17;

/// Most bytes of a rendered text.
const MAX_TEXT: usize = 1 << 26;

/// The name under which the only template is held.
const NAME: &str = "chat";

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// `system`, `user` or `assistant`.
    pub role: String,
    /// The text.
    pub content: String,
}

impl Message {
    /// A message of a role.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Message {
        Message { role: role.into(), content: content.into() }
    }
}

/// A template in Jinja's language.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    source: String,
    /// The texts of special tokens, which templates use.
    tokens: BTreeMap<&'static str, String>,
}

/// Names of special tokens in templates.
const TOKENS: [&str; 4] = ["bos_token", "eos_token", "unk_token", "pad_token"];

impl ChatTemplate {
    /// A template with the texts of the tokens that begin and end a text.
    pub fn new(source: impl Into<String>, bos: &str, eos: &str) -> Result<ChatTemplate> {
        let tokens = BTreeMap::from([("bos_token", bos.to_owned()), ("eos_token", eos.to_owned())]);
        ChatTemplate::with_tokens(source.into(), tokens)
    }

    fn with_tokens(source: String, tokens: BTreeMap<&'static str, String>) -> Result<ChatTemplate> {
        if source.len() > MAX_TEMPLATE {
            let length = source.len();
            fail!(Format, "a chat template must have at most {MAX_TEMPLATE} bytes, got {length}");
        }
        Ok(ChatTemplate { source, tokens })
    }

    /// Reads `chat_template.jinja`, or the template in `tokenizer_config.json`. `None` if the folder has none.
    pub fn open(folder: impl AsRef<Path>) -> Result<Option<ChatTemplate>> {
        let folder = folder.as_ref();
        let path = folder.join("tokenizer_config.json");
        let config = if path.is_file() { read_json(&path)? } else { Value::Null };
        let file = folder.join("chat_template.jinja");
        let source = match &config["chat_template"] {
            _ if file.is_file() => read_text(&file)?,
            Value::String(source) => source.clone(),
            Value::Array(templates) => {
                let named = templates.iter().find(|entry| entry["name"] == "default");
                match named.and_then(|entry| entry["template"].as_str()) {
                    Some(source) => source.to_owned(),
                    None => return Ok(None),
                }
            }
            _ => return Ok(None),
        };
        let mut tokens = BTreeMap::new();
        for name in TOKENS {
            let token = &config[name];
            if let Some(text) = token.as_str().or(token["content"].as_str()) {
                tokens.insert(name, text.to_owned());
            }
        }
        ChatTemplate::with_tokens(source, tokens).map(Some)
    }

    pub(crate) fn of_gguf(
        metadata: &BTreeMap<String, MetadataValue>,
    ) -> Result<Option<ChatTemplate>> {
        let template = metadata.get("tokenizer.chat_template").and_then(MetadataValue::as_str);
        let Some(source) = template else { return Ok(None) };
        let vocabulary = metadata.get("tokenizer.ggml.tokens").and_then(MetadataValue::as_array);
        let keys = ["bos_token_id", "eos_token_id", "unknown_token_id", "padding_token_id"];
        let mut tokens = BTreeMap::new();
        for (name, key) in TOKENS.into_iter().zip(keys) {
            let id = metadata.get(&format!("tokenizer.ggml.{key}")).and_then(MetadataValue::as_u64);
            let place = id.and_then(|id| usize::try_from(id).ok());
            let token = vocabulary.zip(place).and_then(|(all, place)| all.iter().nth(place));
            if let Some(text) = token.as_ref().and_then(MetadataValue::as_str) {
                tokens.insert(name, text.to_owned());
            }
        }
        ChatTemplate::with_tokens(source.to_owned(), tokens).map(Some)
    }

    /// The source of the template.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The settings of a `tokenizer_config.json` with this template.
    pub fn to_json(&self) -> Value {
        let mut json = json!({ "chat_template": self.source });
        for (name, token) in &self.tokens {
            json[*name] = json!(token);
        }
        json
    }

    /// The text of a conversation. `prompts` appends what precedes the assistant's answer.
    pub fn render(&self, messages: &[Message], prompts: bool) -> Result<String> {
        let messages: Vec<Value> = messages
            .iter()
            .map(|message| json!({ "role": message.role, "content": message.content }))
            .collect();
        self.render_with(&json!({ "messages": messages }), prompts)
    }

    /// The text of a conversation whose variables are given as JSON: `messages`, `tools` and others.
    pub fn render_with(&self, variables: &Value, prompts: bool) -> Result<String> {
        thread::scope(|scope| {
            let builder = thread::Builder::new().name("template".to_owned()).stack_size(STACK);
            match builder.spawn_scoped(scope, || self.render_here(variables, prompts)) {
                Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
                Err(error) => fail!(Run, "cannot start a thread for the chat template: {error}"),
            }
        })
    }

    /// Renders the template on this thread.
    fn render_here(&self, variables: &Value, prompts: bool) -> Result<String> {
        let failed = |error: minijinja::Error| {
            let message = format!("the chat template cannot be rendered: {}", cause(&error));
            Error::of_kind(ErrorKind::Format, message).with_source(error)
        };
        let mut environment = environment();
        let source = without_generation(&self.source);
        environment.add_template(NAME, &source).map_err(failed)?;
        // transformers always sets these.
        let mut all = json!({ "tools": null, "documents": null, "add_generation_prompt": prompts });
        for (name, token) in &self.tokens {
            all[*name] = json!(token);
        }
        for (name, value) in variables.as_object().into_iter().flatten() {
            all[name] = value.clone();
        }
        let template = environment.get_template(NAME).map_err(failed)?;
        let mut text = BoundedText::default();
        template.render_captured_to(Rendered::from_serialize(&all), &mut text).map_err(failed)?;
        match String::from_utf8(text.0) {
            Ok(text) => Ok(text),
            Err(error) => {
                fail!(Format, "the text rendered by the chat template is not UTF-8: {error}")
            }
        }
    }
}

/// A text of at most [`MAX_TEXT`] bytes.
#[derive(Default)]
struct BoundedText(Vec<u8>);

impl Write for BoundedText {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > MAX_TEXT - self.0.len() {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Replaces the statement `generation` of a template by a condition that always applies. transformers marks the assistant's
/// tokens with it; the text stays the same.
fn without_generation(source: &str) -> Cow<'_, str> {
    if !source.contains("generation") {
        return Cow::Borrowed(source);
    }
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some((before, after)) = rest.split_once("{%") {
        text.push_str(before);
        text.push_str("{%");
        rest = after;
        let Some((statement, _)) = after.split_once("%}") else { break };
        let name = statement.trim_start_matches(['-', '+']).trim_end_matches(['-', '+']).trim();
        let replacement = match name {
            "generation" => "if true",
            "endgeneration" => "endif",
            _ => continue,
        };
        text.push_str(&statement.replacen(name, replacement, 1));
        rest = &after[statement.len()..];
    }
    text.push_str(rest);
    Cow::Owned(text)
}

/// The message of a template's author, or the reason of a failure.
fn cause(error: &minijinja::Error) -> String {
    match (error.kind(), error.detail()) {
        (TemplateErrorKind::OutOfFuel, _) => format!("it takes more than {FUEL} steps"),
        (TemplateErrorKind::WriteFailure, _) => format!("its text has more than {MAX_TEXT} bytes"),
        (_, Some(detail)) => detail.to_owned(),
        _ => error.to_string(),
    }
}

/// Jinja as transformers sets it up.
fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_fuel(Some(FUEL));
    environment.set_trim_blocks(true);
    environment.set_lstrip_blocks(true);
    environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_function(
        "raise_exception",
        |message: String| -> std::result::Result<String, _> {
            Err(minijinja::Error::new(TemplateErrorKind::InvalidOperation, message))
        },
    );
    environment.add_function("strftime_now", |format: String| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        format_time(&format, now)
    });
    environment.add_test("iterable", python_text::is_iterable);
    environment.add_test("sequence", python_text::is_sequence);
    environment.add_filter("tojson", to_json);
    environment.add_filter("string", python_text::text);
    environment.set_formatter(python_text::write);
    environment
}

/// JSON as Python writes it: a space after separators, no escapes of letters.
fn to_json(value: Rendered, options: Kwargs) -> std::result::Result<Rendered, minijinja::Error> {
    let indent: Option<usize> = options.get("indent")?;
    for ignored in ["ensure_ascii", "sort_keys", "separators"] {
        let _: Option<Rendered> = options.get(ignored)?;
    }
    options.assert_all_used()?;
    python_text::check_extent(&value)?;
    let json = serde_json::to_value(&value).map_err(|error| {
        minijinja::Error::new(TemplateErrorKind::BadSerialization, error.to_string())
    })?;
    let mut text = String::new();
    write_json(&json, indent.map(|indent| indent.min(16)), 0, &mut text);
    Ok(Rendered::from(text))
}

fn write_json(value: &Value, indent: Option<usize>, depth: usize, text: &mut String) {
    let line = |text: &mut String, depth: usize| {
        if let Some(indent) = indent {
            text.push('\n');
            text.extend(std::iter::repeat_n(' ', indent * depth));
        }
    };
    let separator = if indent.is_some() { "," } else { ", " };
    match value {
        Value::Array(values) if !values.is_empty() => {
            text.push('[');
            for (index, value) in values.iter().enumerate() {
                text.push_str(if index > 0 { separator } else { "" });
                line(text, depth + 1);
                write_json(value, indent, depth + 1, text);
            }
            line(text, depth);
            text.push(']');
        }
        Value::Object(values) if !values.is_empty() => {
            text.push('{');
            for (index, (key, value)) in values.iter().enumerate() {
                text.push_str(if index > 0 { separator } else { "" });
                line(text, depth + 1);
                text.push_str(&Value::from(key.as_str()).to_string());
                text.push_str(": ");
                write_json(value, indent, depth + 1, text);
            }
            line(text, depth);
            text.push('}');
        }
        plain => text.push_str(&plain.to_string()),
    }
}

/// A time in UTC after a format of C's `strftime`, as far as templates use it.
fn format_time(format: &str, seconds: u64) -> String {
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    let (days, rest) = ((seconds / 86400) as i64, seconds % 86400);
    // Days since the first of March of year 0, in cycles of 400 years.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    let name = MONTHS[(month as usize - 1).min(11)];
    let mut text = String::new();
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            text.push(character);
            continue;
        }
        match characters.next() {
            Some('Y') => text += &year.to_string(),
            Some('m') => text += &format!("{month:02}"),
            Some('d') => text += &format!("{day:02}"),
            Some('B') => text += name,
            Some('b') => text += &name[..3],
            Some('H') => text += &format!("{:02}", rest / 3600),
            Some('M') => text += &format!("{:02}", rest / 60 % 60),
            Some('S') => text += &format!("{:02}", rest % 60),
            Some(other) => text.push(other),
            None => text.push('%'),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHATML: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'].strip() + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

    #[test]
    fn renders_messages_with_chatml_template() {
        let template = ChatTemplate::new(CHATML, "<s>", "</s>").expect("short");
        let messages = [Message::new("user", " Hello ")];
        let text = template.render(&messages, true).expect("sound");
        assert_eq!(text, "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n");
    }

    #[test]
    fn limits_template_steps_and_reports_raise_exception() {
        let endless =
            "{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}";
        let error = ChatTemplate::new(endless, "", "").and_then(|it| it.render(&[], false));
        assert!(error.expect_err("refused").to_string().contains("steps"));
        let refused = ChatTemplate::new("{{ raise_exception('no tools') }}", "", "");
        let error = refused.and_then(|it| it.render(&[], false)).expect_err("refused");
        assert!(error.to_string().contains("no tools"), "{error}");
    }

    #[test]
    #[cfg(target_pointer_width = "64")]
    fn hostile_templates_overflow_neither_stack_nor_memory() {
        let rendered = |source: &str| {
            let template = ChatTemplate::new(source, "", "").expect("short");
            template.render(&[], false).map_err(|error| error.to_string())
        };
        // A list nested as deeply as the step limit permits: sorting, printing and dropping it must not overflow the stack.
        let brackets = |count: usize| format!("{}x.a{}", "[".repeat(count), "]".repeat(count));
        let nested = |end: &str| {
            let each = format!("{{% set x.a = {} %}}", brackets(60));
            let loops = format!("{{% for i in range(14000) %}}{each}{{% endfor %}}");
            format!("{{% set x = namespace(a=[]) %}}{loops}{end}")
        };
        let depth = 60 * 14_000;
        assert_eq!(rendered(&nested("done")).as_deref(), Ok("done"));
        assert_eq!(rendered(&nested("{{ ([x.a, x.a] | sort | length) }}")).as_deref(), Ok("2"));
        let printed = rendered(&nested("{{ [x.a] | join | length }}"));
        assert_eq!(printed, Ok((2 * depth + 2).to_string()));
        let deep = rendered(&nested("{{ x.a | tojson }}")).expect_err("refused");
        assert!(deep.contains("nested"), "{deep}");
        // Each list contains the previous one twice, so the printed value would have 2^60 items.
        let doubled = "{% set x = namespace(a=[]) %}{% for i in range(60) %}{% set x.a = [x.a, x.a] %}{% endfor %}";
        for end in ["{{ x.a }}", "{{ x.a | string }}", "{{ x.a | tojson }}"] {
            let wide = rendered(&format!("{doubled}{end}")).expect_err("refused");
            assert!(wide.contains("items"), "{wide}");
        }
        let long = "{% set a = 'a' * 10000 %}{% for i in range(10000) %}{{ a }}{% endfor %}";
        let long = rendered(long).expect_err("refused");
        assert!(long.contains("bytes"), "{long}");
        // A long expression parses to a deep syntax tree. Only the absence of a stack overflow is checked.
        for (operator, operand) in [("+", "1"), ("~", "a"), (" or ", "a"), ("-", "1"), ("|e", "")] {
            let count = MAX_TEMPLATE / 8 / (operator.len() + operand.len());
            let _ =
                rendered(&format!("{{{{ a{} }}}}", format!("{operator}{operand}").repeat(count)));
        }
        let _ = rendered(&format!("{{{{ {}1 }}}}", "-".repeat(MAX_TEMPLATE - 10)));
        assert!(ChatTemplate::new("a".repeat(MAX_TEMPLATE + 1), "", "").is_err());
    }

    #[test]
    fn tojson_filter_matches_python_json_dumps() {
        let template =
            ChatTemplate::new("{{ tools | tojson }}|{{ tools | tojson(indent=2) }}", "", "");
        let variables = json!({ "tools": { "b": [1, "\u{e9}<"], "a": null } });
        let text = template.and_then(|it| it.render_with(&variables, false)).expect("sound");
        let expected = "{\"b\": [1, \"\u{e9}<\"], \"a\": null}|{\n  \"b\": [\n    1,\n    \"\u{e9}<\"\n  ],\n  \"a\": null\n}";
        assert_eq!(text, expected);
    }

    #[test]
    fn prints_values_in_python_syntax() {
        let rendered = |source: &str| {
            let variables = json!({ "a": { "b": [true, null, 1.5, "it's", "\"'\n\u{7}"] } });
            let template = ChatTemplate::new(source, "", "");
            template.and_then(|it| it.render_with(&variables, false)).expect("sound")
        };
        let expected = "{'b': [True, None, 1.5, \"it's\", '\"\\'\\n\\x07']}";
        assert_eq!(rendered("{{ a }}"), expected);
        assert_eq!(rendered("{{ true }} {{ none }} {{ 'x' }} {{ absent }}"), "True None x ");
        assert_eq!(rendered("{{ a.b | string | length }} {{ 'x' | string }}"), "38 x");
        assert_eq!(rendered("{{ tools is none }}{{ documents is none }}"), "TrueTrue");
        assert_eq!(rendered("{{ 'a<' | tojson | e }}"), "&quot;a&lt;&quot;");
        // Lists are printed up to a depth of 64.
        let nested = "{% set x = namespace(a=[]) %}{% for i in range(999) %}{% set x.a = [x.a] %}{% endfor %}{{ x.a }}";
        assert_eq!(rendered(nested), format!("{}...{}", "[".repeat(64), "]".repeat(64)));
    }

    #[test]
    fn iterable_sequence_and_mapping_tests_match_jinja() {
        let values = ["tools", "absent", "'ab'", "[1]", "{'a': 1}", "3", "true"];
        let tests = ["iterable", "sequence", "mapping"];
        let expected = ["000", "110", "110", "110", "111", "000", "000"];
        for (value, expected) in values.into_iter().zip(expected) {
            let results = tests.map(|test| format!("{{{{ ({value} is {test}) | int }}}}"));
            let template = ChatTemplate::new(results.concat(), "", "");
            let text = template.and_then(|it| it.render(&[], false)).expect("sound");
            assert_eq!(text, expected, "{value}");
        }
    }

    #[test]
    fn generation_block_does_not_change_output() {
        let source = "a{% generation %}\nb {%- generation -%} c{% endgeneration %} {%- endgeneration +%} d{% if true %}generation{% endif %}";
        let template = ChatTemplate::new(source, "", "");
        let text = template.and_then(|it| it.render(&[], false)).expect("sound");
        assert_eq!(text, "ab".to_owned() + "c d" + "generation");
    }

    #[test]
    fn formats_time_with_strftime_codes() {
        assert_eq!(format_time("%d %b %Y, %H:%M:%S %%", 1_709_210_096), "29 Feb 2024, 12:34:56 %");
        assert_eq!(format_time("%d %B %Y", 0), "01 January 1970");
    }
}
