//! Normalization of texts, and their division into pieces.

use std::borrow::Cow;

use unicode_normalization::UnicodeNormalization;

use super::bytes::{MARK, to_characters};
use super::charsmap::Charsmap;
use super::forms::{BertForms, lowercase};
use super::pattern::Pattern;
use crate::error::Result;

/// The pattern of GPT-2.
pub(super) const GPT2: &str =
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// Pattern of white space.
pub(super) const WHITE_SPACE: &str = r"\s+";

/// Pattern of punctuation, and of other signs in ASCII.
pub(super) const PUNCTUATION: &str = r"[!-/:-@\[-`{-~\p{P}]";

/// A change of the text before it is split.
#[derive(Clone, Debug)]
pub(super) enum Normalizer {
    /// A normal form of Unicode.
    Form(UnicodeForm),
    Lowercase,
    Bert(BertForms),
    /// White space at the start, at the end.
    Strip([bool; 2]),
    Prepend(String),
    Replace(Pattern, String),
    /// SentencePiece's table of replacements.
    Charsmap(Charsmap),
    /// Spaces become marks, and a text gets one more at its start.
    Metaspace {
        prepends: Prepends,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnicodeForm {
    Nfc,
    Nfd,
    Nfkc,
    Nfkd,
}

/// Which texts get a mark at their start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prepends {
    Always,
    First,
    Never,
}

impl Prepends {
    fn applies(self, is_first: bool) -> bool {
        match self {
            Prepends::Always => true,
            Prepends::First => is_first,
            Prepends::Never => false,
        }
    }
}

/// A division of pieces into smaller ones.
#[derive(Clone, Debug)]
pub(super) enum Splitter {
    Pattern {
        pattern: Pattern,
        behavior: Behavior,
        invert: bool,
    },
    /// Bytes become characters, after a space is put before the text if `adds_space`.
    ByteLevel {
        adds_space: bool,
        pattern: Option<Pattern>,
    },
    Metaspace {
        prepends: Prepends,
        splits: bool,
    },
}

/// Treatment of the matches of a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Behavior {
    Removed,
    Isolated,
    MergedWithPrevious,
    MergedWithNext,
    Contiguous,
}

impl Normalizer {
    pub(super) fn apply<'t>(&self, text: Cow<'t, str>, is_first: bool) -> Result<Cow<'t, str>> {
        Ok(match self {
            Normalizer::Form(_) if text.is_ascii() => text,
            Normalizer::Form(UnicodeForm::Nfc) => text.nfc().collect::<String>().into(),
            Normalizer::Form(UnicodeForm::Nfd) => text.nfd().collect::<String>().into(),
            Normalizer::Form(UnicodeForm::Nfkc) => text.nfkc().collect::<String>().into(),
            Normalizer::Form(UnicodeForm::Nfkd) => text.nfkd().collect::<String>().into(),
            Normalizer::Lowercase => lowercase(&text).into(),
            Normalizer::Bert(forms) => forms.apply(text)?,
            Normalizer::Strip([start, end]) => {
                let trimmed = if *start { text.trim_start() } else { &text };
                let trimmed = if *end { trimmed.trim_end() } else { trimmed };
                trimmed.to_owned().into()
            }
            Normalizer::Prepend(_) if text.is_empty() => text,
            Normalizer::Prepend(prefix) => format!("{prefix}{text}").into(),
            Normalizer::Replace(pattern, content) => pattern.replaced(&text, content)?.into(),
            Normalizer::Charsmap(charsmap) => charsmap.apply(&text).into(),
            Normalizer::Metaspace { .. } if text.is_empty() => text,
            Normalizer::Metaspace { prepends } => {
                let marks = text.replace(' ', "\u{2581}");
                if prepends.applies(is_first) {
                    format!("{MARK}{marks}").into()
                } else {
                    marks.into()
                }
            }
        })
    }
}

/// A text with marks in the place of spaces.
fn marked(text: &str, prepends: Prepends, is_first: bool) -> String {
    let text = text.replace(' ', "\u{2581}");
    if prepends.applies(is_first) && !text.starts_with(MARK) && !text.is_empty() {
        format!("{MARK}{text}")
    } else {
        text
    }
}

/// A part of a piece.
fn part<'t>(piece: &Cow<'t, str>, start: usize, end: usize) -> Cow<'t, str> {
    match piece {
        Cow::Borrowed(text) => Cow::Borrowed(&text[start..end]),
        Cow::Owned(text) => Cow::Owned(text[start..end].to_owned()),
    }
}

impl Splitter {
    /// Appends the parts of a piece.
    pub(super) fn apply<'t>(
        &self,
        piece: Cow<'t, str>,
        is_first: bool,
        parts: &mut Vec<Cow<'t, str>>,
    ) -> Result<()> {
        match self {
            Splitter::Pattern { pattern, behavior, invert } => {
                let ranges = divide(&piece, pattern, *behavior, *invert)?;
                parts.extend(ranges.into_iter().map(|(start, end)| part(&piece, start, end)));
            }
            Splitter::ByteLevel { adds_space, pattern } => {
                let piece = match *adds_space && !piece.starts_with(' ') {
                    true => Cow::Owned(format!(" {piece}")),
                    false => piece,
                };
                let ranges = match pattern {
                    Some(pattern) => divide(&piece, pattern, Behavior::Isolated, false)?,
                    None => vec![(0, piece.len())],
                };
                parts.extend(
                    ranges.into_iter().map(|(start, end)| to_characters(&piece[start..end]).into()),
                );
            }
            Splitter::Metaspace { prepends, splits } => {
                let text = marked(&piece, *prepends, is_first);
                if !splits {
                    parts.push(text.into());
                    return Ok(());
                }
                let mut start = 0;
                for (at, _) in text.match_indices(MARK).filter(|(at, _)| *at > 0) {
                    parts.push(text[start..at].to_owned().into());
                    start = at;
                }
                parts.push(text[start..].to_owned().into());
            }
        }
        Ok(())
    }
}

/// The ranges of a text's parts, in order.
fn divide(
    text: &str,
    pattern: &Pattern,
    behavior: Behavior,
    invert: bool,
) -> Result<Vec<(usize, usize)>> {
    let mut marks: Vec<(usize, usize, bool)> = Vec::new();
    let mut at = 0;
    for (start, end) in pattern.matches(text)? {
        if start > at {
            marks.push((at, start, invert));
        }
        if end > start {
            marks.push((start, end, !invert));
        }
        at = end;
    }
    if at < text.len() {
        marks.push((at, text.len(), invert));
    }
    let mut ranges: Vec<(usize, usize)> = Vec::with_capacity(marks.len());
    let mut before = None;
    for (start, end, matches) in marks {
        let joins = match behavior {
            Behavior::Removed if matches => {
                before = Some(matches);
                continue;
            }
            Behavior::Removed | Behavior::Isolated => false,
            Behavior::MergedWithPrevious => matches && before == Some(false),
            Behavior::MergedWithNext => !matches && before == Some(true),
            Behavior::Contiguous => before == Some(matches),
        };
        match ranges.last_mut() {
            Some(last) if joins => last.1 = end,
            _ => ranges.push((start, end)),
        }
        before = Some(matches);
    }
    Ok(ranges)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(text: &str, behavior: Behavior, invert: bool) -> Vec<String> {
        let pattern = Pattern::regex(r"\d").expect("sound");
        let ranges = divide(text, &pattern, behavior, invert).expect("short");
        ranges.into_iter().map(|(start, end)| text[start..end].to_owned()).collect()
    }

    #[test]
    fn applies_each_split_behavior_to_matches() {
        assert_eq!(parts("ab12c", Behavior::Isolated, false), ["ab", "1", "2", "c"]);
        assert_eq!(parts("ab12c", Behavior::Removed, false), ["ab", "c"]);
        assert_eq!(parts("ab12c", Behavior::Removed, true), ["1", "2"]);
        assert_eq!(parts("ab12c", Behavior::MergedWithPrevious, false), ["ab1", "2", "c"]);
        assert_eq!(parts("ab12c", Behavior::MergedWithNext, false), ["ab", "1", "2c"]);
        assert_eq!(parts("ab12c", Behavior::Contiguous, false), ["ab", "12", "c"]);
    }
}
