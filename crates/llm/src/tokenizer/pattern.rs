//! Regular expressions and texts that are found in texts.

use fancy_regex::Regex;

use crate::error::{Error, ErrorKind, Result};

/// A pattern with its source.
#[derive(Clone, Debug)]
pub(super) struct Pattern {
    pub(super) source: String,
    /// The source is a regular expression rather than a text.
    pub(super) is_regex: bool,
    regex: Regex,
}

impl Pattern {
    pub(super) fn regex(source: &str) -> Result<Pattern> {
        Pattern::new(source, source, true)
    }

    pub(super) fn text(source: &str) -> Result<Pattern> {
        Pattern::new(source, &fancy_regex::escape(source), false)
    }

    fn new(source: &str, regex: &str, is_regex: bool) -> Result<Pattern> {
        let regex = Regex::new(regex).map_err(|error| {
            let message =
                format!("the pattern `{source}` of the tokenizer is not supported: {error}");
            Error::of_kind(ErrorKind::Unsupported, message).with_source(error)
        })?;
        Ok(Pattern { source: source.to_owned(), is_regex, regex })
    }

    /// The text with a content in the place of all matches.
    pub(super) fn replaced(&self, text: &str, content: &str) -> Result<String> {
        let mut replaced = String::with_capacity(text.len());
        let mut at = 0;
        for (start, end) in self.matches(text)? {
            replaced.push_str(&text[at..start]);
            replaced.push_str(content);
            at = end;
        }
        replaced.push_str(&text[at..]);
        Ok(replaced)
    }

    /// The places of all matches.
    pub(super) fn matches(&self, text: &str) -> Result<Vec<(usize, usize)>> {
        let found: std::result::Result<Vec<_>, _> = self
            .regex
            .find_iter(text)
            .map(|found| found.map(|found| (found.start(), found.end())))
            .collect();
        found.map_err(|error| {
            let message = format!("a tokenizer pattern takes too long to match: {error}");
            Error::of_kind(ErrorKind::Argument, message).with_source(error)
        })
    }
}
