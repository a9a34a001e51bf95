//! Generation of text: tokens go into a model one block after another, and its logits decide on the next.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use coremill_graph::{Executable, Session};

use crate::error::{Error, ErrorKind, Result, fail};
use crate::readers::{self, Reader};
use crate::sample::{Sampler, Sampling};
use crate::tokenizer::Tokenizer;

/// A model that reads tokens, with its cache.
pub struct Generator {
    reader: Box<dyn Reader>,
    /// Tokens whose keys and values are in the cache.
    tokens: Vec<u32>,
}

/// Options of generating a text.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GenerateOptions {
    /// Most tokens.
    pub max_tokens: usize,
    /// Options of choosing tokens.
    pub sampling: Sampling,
    /// Texts that end the generation. They are no part of the result.
    pub stops: Vec<String>,
    /// Tokens that end the generation.
    pub end_tokens: Vec<u32>,
    /// Keep the cache of the tokens that the prompt has in common with the text that was read before, rather than append the
    /// prompt to that text.
    pub reuse_prefix: bool,
    /// Ends the generation once it is true, also between blocks of the prompt.
    pub cancel: Option<Arc<AtomicBool>>,
}

impl Default for GenerateOptions {
    fn default() -> GenerateOptions {
        GenerateOptions {
            max_tokens: 128,
            sampling: Sampling::default(),
            stops: Vec::new(),
            end_tokens: Vec::new(),
            reuse_prefix: false,
            cancel: None,
        }
    }
}

impl GenerateOptions {
    fn is_cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(|cancel| cancel.load(Ordering::Relaxed))
    }
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FinishReason {
    /// A token that ends texts, or a stop text.
    Stop,
    /// The most tokens, or a full cache.
    Length,
    /// The caller wanted no more.
    Cancelled,
}

impl FinishReason {
    /// The name that OpenAI's interface has for it.
    pub fn name(self) -> &'static str {
        match self {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Cancelled => "cancelled",
        }
    }
}

/// A generated text.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Generation {
    /// The text.
    pub text: String,
    /// Its tokens, without the token that ended it.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub reason: FinishReason,
    /// Number of tokens of the prompt.
    pub prompt_tokens: usize,
    /// Number of tokens of the prompt that were in the cache.
    pub reused_tokens: usize,
    /// Time for the prompt.
    pub prefill: Duration,
    /// Time for the tokens after it.
    pub decode: Duration,
}

impl Generator {
    /// Takes a model with the functions `decode` and, for blocks of tokens, `prefill` and `long_prefill`, or an ExecuTorch program with the
    /// methods of [`Layout`](crate::Layout).
    pub fn new(executable: Executable) -> Result<Generator> {
        Ok(Generator { reader: readers::open(executable)?, tokens: Vec::new() })
    }

    /// Loads the models of [`Layout::Chunks`](crate::Layout::Chunks) in a directory.
    pub(crate) fn of_chunks(directory: &Path, session: &Session) -> Result<Generator> {
        Ok(Generator { reader: readers::open_chunks(directory, session)?, tokens: Vec::new() })
    }

    /// Positions of the cache.
    pub fn context(&self) -> usize {
        self.reader.context()
    }

    /// Number of tokens in the cache.
    pub fn position(&self) -> usize {
        self.tokens.len()
    }

    /// Number of logits.
    pub fn vocabulary(&self) -> usize {
        self.reader.vocabulary()
    }

    /// Whether functions return the logits of all tokens.
    pub(crate) fn returns_all(&self) -> bool {
        self.reader.returns_all()
    }

    /// Forgets all tokens. What the cache holds is written over.
    pub fn reset(&mut self) {
        self.tokens.clear();
    }

    /// Keeps the longest common prefix of the cache and a text, so that the rest of the text can be read, and returns its length.
    /// The last token of the text is never kept, because the logits that follow it must be computed.
    pub fn keep_prefix(&mut self, text: &[u32]) -> usize {
        let common = self.tokens.iter().zip(text).take_while(|(known, id)| known == id).count();
        let kept = common.min(text.len().saturating_sub(1));
        // Recurrent layers can continue a text, but cannot return to its start.
        let returns = kept < self.tokens.len();
        self.tokens.truncate(if returns && self.reader.accumulates() { 0 } else { kept });
        self.tokens.len()
    }

    /// Compiles and plans the functions before the first tokens.
    pub fn prepare(&mut self) -> Result<()> {
        self.reader.prepare()
    }

    /// Reads tokens, and returns the logits that follow the last one.
    pub fn read(&mut self, ids: &[u32]) -> Result<Vec<f32>> {
        let mut last = Vec::new();
        self.read_while(ids, &mut |_, logits| {
            last.clear();
            last.extend_from_slice(logits);
            true
        })?;
        Ok(last)
    }

    /// Reads tokens, and calls a function with the index of a token and the logits after it: for each token if the model
    /// returns all logits, otherwise for the last token of each call.
    pub fn read_all(&mut self, ids: &[u32], each: &mut dyn FnMut(usize, &[f32])) -> Result<()> {
        self.read_while(ids, &mut |index, logits| {
            each(index, logits);
            true
        })
    }

    /// Reads tokens as [`Generator::read_all`], and ends after the block in which the function returns false.
    fn read_while(
        &mut self,
        ids: &[u32],
        each: &mut dyn FnMut(usize, &[f32]) -> bool,
    ) -> Result<()> {
        let (context, vocabulary) = (self.context(), self.vocabulary());
        let position = self.position();
        if ids.len() > context - position {
            let message =
                format!("{} tokens do not fit in the context of {context}", ids.len() + position);
            let hint = "set a longer context with the option `context`";
            return Err(Error::of_kind(ErrorKind::Argument, message).with_hint(hint));
        }
        if let Some(&id) = ids.iter().find(|&&id| id as usize >= vocabulary) {
            fail!(Argument, "token {id} is not below {vocabulary}, the size of the vocabulary");
        }
        let mut at = 0;
        while at < ids.len() {
            let position = self.tokens.len();
            let count = self.reader.count(ids.len() - at, position).max(1);
            let part = &ids[at..(at + count).min(ids.len())];
            let returns_all = self.reader.returns_all();
            let logits = self.reader.read(part, position)?;
            let rows = logits.chunks_exact(vocabulary);
            let goes_on = match returns_all {
                true => {
                    let rows = rows.take(part.len()).enumerate();
                    rows.fold(true, |goes_on, (row, logits)| each(at + row, logits) && goes_on)
                }
                false => rows.take(1).all(|logits| each(at + part.len() - 1, logits)),
            };
            self.tokens.extend_from_slice(part);
            at += part.len();
            if !goes_on {
                break;
            }
        }
        Ok(())
    }

    /// Reads a prompt, and returns the logits that follow it; `None` if the generation was cancelled meanwhile.
    fn read_prompt(
        &mut self,
        prompt: &[u32],
        options: &GenerateOptions,
    ) -> Result<Option<Vec<f32>>> {
        let mut last = Vec::new();
        self.read_while(prompt, &mut |index, logits| {
            if index + 1 == prompt.len() {
                last.extend_from_slice(logits);
            }
            !options.is_cancelled()
        })?;
        Ok((!options.is_cancelled()).then_some(last))
    }

    /// Continues a prompt. `show` is called with each part of the text once it is certain, and returns whether to go on.
    pub fn generate(
        &mut self,
        tokenizer: &Tokenizer,
        prompt: &[u32],
        options: &GenerateOptions,
        show: &mut dyn FnMut(&str) -> bool,
    ) -> Result<Generation> {
        if prompt.is_empty() {
            fail!(Argument, "the prompt has no tokens");
        }
        let start = Instant::now();
        let reused_tokens = if options.reuse_prefix { self.keep_prefix(prompt) } else { 0 };
        let mut logits = self.read_prompt(&prompt[reused_tokens..], options)?;
        let prefill = start.elapsed();
        let start = Instant::now();
        let mut sampler = Sampler::new(options.sampling);
        let mut text = prompt.to_vec();
        let mut stream = TextStream::new(&options.stops);
        let reason = loop {
            let Some(logits) = logits.as_mut().filter(|_| !options.is_cancelled()) else {
                break FinishReason::Cancelled;
            };
            if text.len() - prompt.len() >= options.max_tokens {
                break FinishReason::Length;
            }
            let Some(id) = sampler.choose(logits, &text) else {
                fail!(Run, "all logits that the model returned are NaN");
            };
            if options.end_tokens.contains(&id) {
                break FinishReason::Stop;
            }
            text.push(id);
            let more = if tokenizer.is_special(id) {
                Default::default()
            } else {
                tokenizer.token_bytes(id)
            };
            let (certain, stops) = stream.push(&more);
            if !certain.is_empty() && !show(&certain) {
                break FinishReason::Cancelled;
            }
            if stops {
                break FinishReason::Stop;
            }
            if self.position() >= self.context() || text.len() - prompt.len() >= options.max_tokens
            {
                break FinishReason::Length;
            }
            *logits = self.read(&[id])?;
        };
        let rest = stream.finish();
        if !rest.is_empty() {
            show(&rest);
        }
        Ok(Generation {
            text: stream.text,
            tokens: text.split_off(prompt.len()),
            reason,
            prompt_tokens: prompt.len(),
            reused_tokens,
            prefill,
            decode: start.elapsed(),
        })
    }
}

/// Bytes that become text as soon as characters are whole and no stop text can begin in them.
struct TextStream<'s> {
    stops: &'s [String],
    /// All that was given out.
    text: String,
    pending: Vec<u8>,
    stopped: bool,
}

impl<'s> TextStream<'s> {
    fn new(stops: &'s [String]) -> TextStream<'s> {
        TextStream { stops, text: String::new(), pending: Vec::new(), stopped: false }
    }

    /// The text that is certain now, and whether a stop text was found.
    fn push(&mut self, bytes: &[u8]) -> (String, bool) {
        self.pending.extend_from_slice(bytes);
        let valid = match std::str::from_utf8(&self.pending) {
            Ok(_) => self.pending.len(),
            // Bytes that no other can complete are replaced at once.
            Err(error) if error.error_len().is_some() => self.pending.len(),
            Err(error) => error.valid_up_to(),
        };
        let text = String::from_utf8_lossy(&self.pending[..valid]).into_owned();
        let found =
            self.stops.iter().filter(|stop| !stop.is_empty()).filter_map(|stop| text.find(&**stop));
        if let Some(end) = found.min() {
            self.pending.clear();
            self.stopped = true;
            self.text.push_str(&text[..end]);
            return (text[..end].to_owned(), true);
        }
        let held = self.stops.iter().map(|stop| overlap(&text, stop)).max().unwrap_or(0);
        let certain = text[..text.len() - held].to_owned();
        self.pending = [&text.as_bytes()[text.len() - held..], &self.pending[valid..]].concat();
        self.text.push_str(&certain);
        (certain, false)
    }

    /// The rest of the text, which was held back.
    fn finish(&mut self) -> String {
        if self.stopped {
            return String::new();
        }
        let rest = String::from_utf8_lossy(&std::mem::take(&mut self.pending)).into_owned();
        self.text.push_str(&rest);
        rest
    }
}

/// Bytes at the end of a text that another begins with.
fn overlap(text: &str, other: &str) -> usize {
    let longest = other.len().saturating_sub(1).min(text.len());
    (1..=longest)
        .rev()
        .find(|&length| {
            let start = text.len() - length;
            text.is_char_boundary(start) && other.starts_with(&text[start..])
        })
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stream_emits_only_whole_utf8_characters() {
        let mut stream = TextStream::new(&[]);
        let euro = "\u{20ac}".as_bytes();
        assert_eq!(stream.push(&euro[..1]).0, "");
        assert_eq!(stream.push(&euro[1..]).0, "\u{20ac}");
        assert_eq!(stream.push(&[0xff]).0, "\u{fffd}");
        assert_eq!(stream.push(&euro[..2]).0, "");
        assert_eq!(stream.finish(), "\u{fffd}");
        assert_eq!(stream.text, "\u{20ac}\u{fffd}\u{fffd}");
    }

    #[test]
    fn text_stream_withholds_partial_stop_sequences() {
        let stops = ["END".to_owned(), "\n\n".to_owned()];
        let mut stream = TextStream::new(&stops);
        assert_eq!(stream.push(b"one E"), ("one ".to_owned(), false));
        assert_eq!(stream.push(b"gg\n"), ("Egg".to_owned(), false));
        assert_eq!(stream.push(b"\nmore"), (String::new(), true));
        assert_eq!((stream.finish().as_str(), stream.text.as_str()), ("", "one Egg"));
    }
}
