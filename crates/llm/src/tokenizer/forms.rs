//! Normal forms of texts in BERT.

use std::borrow::Cow;

use serde_json::{Value, json};
use unicode_normalization::UnicodeNormalization;

use super::pattern::Pattern;
use crate::error::Result;

/// Normalization of texts in BERT.
#[derive(Clone, Debug)]
pub(super) struct BertForms {
    /// Control characters are left out, and all white space becomes spaces.
    pub(super) cleans: bool,
    /// Chinese characters are words of their own.
    pub(super) splits_chinese: bool,
    pub(super) strips_accents: bool,
    pub(super) lowercases: bool,
    /// Characters without a glyph.
    control: Pattern,
    accents: Pattern,
}

fn is_chinese(character: char) -> bool {
    matches!(
        character,
        '\u{3400}'..='\u{4dbf}'
            | '\u{4e00}'..='\u{9fff}'
            | '\u{f900}'..='\u{faff}'
            | '\u{20000}'..='\u{2a6df}'
            | '\u{2a700}'..='\u{2b81f}'
            | '\u{2b920}'..='\u{2ceaf}'
            | '\u{2f800}'..='\u{2fa1f}'
    )
}

impl BertForms {
    pub(super) fn new(
        cleans: bool,
        splits_chinese: bool,
        strips_accents: bool,
        lowercases: bool,
    ) -> Result<BertForms> {
        Ok(BertForms {
            cleans,
            splits_chinese,
            strips_accents,
            lowercases,
            // Tabs and line ends are white space.
            control: Pattern::regex(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\x{fffd}\p{Cf}\p{Co}]")?,
            accents: Pattern::regex(r"\p{Mn}")?,
        })
    }

    pub(super) fn apply<'t>(&self, mut text: Cow<'t, str>) -> Result<Cow<'t, str>> {
        if self.cleans {
            let kept = self.control.replaced(&text, "")?;
            text = kept.chars().map(|it| if it.is_whitespace() { ' ' } else { it }).collect();
        }
        if self.splits_chinese && text.chars().any(is_chinese) {
            let mut spaced = String::with_capacity(text.len() * 2);
            for character in text.chars() {
                match is_chinese(character) {
                    true => spaced.extend([' ', character, ' ']),
                    false => spaced.push(character),
                }
            }
            text = spaced.into();
        }
        if self.strips_accents && !text.is_ascii() {
            let decomposed: String = text.nfd().collect();
            text = self.accents.replaced(&decomposed, "")?.into();
        }
        if self.lowercases {
            text = lowercase(&text).into();
        }
        Ok(text)
    }

    pub(super) fn to_json(&self) -> Value {
        json!({
            "type": "BertNormalizer",
            "clean_text": self.cleans,
            "handle_chinese_chars": self.splits_chinese,
            "strip_accents": self.strips_accents,
            "lowercase": self.lowercases,
        })
    }
}

/// Converts each character to lower case without regard to its neighbors.
pub(super) fn lowercase(text: &str) -> String {
    text.chars().flat_map(char::to_lowercase).collect()
}
