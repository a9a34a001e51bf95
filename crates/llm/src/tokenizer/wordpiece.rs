//! WordPiece vocabularies: words are cut into the longest tokens from their start.

/// Beginning of tokens that continue a word.
pub(super) const CONTINUATION: &str = "##";

/// Most characters of a word that has tokens, in BERT's vocabularies.
pub(super) const MAX_CHARACTERS: usize = 100;

/// Settings of a vocabulary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WordPieces {
    /// Beginning of tokens that continue a word.
    pub(super) prefix: String,
    /// Words with more characters become the unknown token.
    pub(super) max_characters: usize,
}

impl WordPieces {
    /// The tokens of a word; `None` if the vocabulary lacks a part. `id` looks tokens up.
    pub(super) fn divide(&self, word: &str, id: impl Fn(&str) -> Option<u32>) -> Option<Vec<u32>> {
        if word.chars().count() > self.max_characters {
            return None;
        }
        let mut ids = Vec::new();
        let mut rest = word;
        let mut part = String::with_capacity(self.prefix.len() + word.len());
        while !rest.is_empty() {
            part.clear();
            if rest.len() < word.len() {
                part.push_str(&self.prefix);
            }
            let start = part.len();
            part.push_str(rest);
            let found = loop {
                match id(&part) {
                    Some(found) => break found,
                    None if part.pop().is_none() || part.len() <= start => return None,
                    None => {}
                }
            };
            ids.push(found);
            rest = &rest[part.len() - start..];
        }
        Some(ids)
    }
}

/// The text of tokens: words are separated by spaces. `cleans` removes spaces before punctuation and within contractions.
pub(super) fn decode<'t>(tokens: impl Iterator<Item = &'t str>, cleans: bool) -> String {
    let mut text = String::new();
    for (index, token) in tokens.enumerate() {
        let token = match token.strip_prefix(CONTINUATION) {
            _ if index == 0 => token.to_owned(),
            Some(rest) => rest.to_owned(),
            None => format!(" {token}"),
        };
        match cleans {
            true => text.push_str(&cleaned(token)),
            false => text.push_str(&token),
        }
    }
    text
}

fn cleaned(token: String) -> String {
    const FORMS: [(&str, &str); 11] = [
        (" .", "."),
        (" ?", "?"),
        (" !", "!"),
        (" ,", ","),
        (" ' ", "'"),
        (" n't", "n't"),
        (" 'm", "'m"),
        (" do not", " don't"),
        (" 's", "'s"),
        (" 've", "'ve"),
        (" 're", "'re"),
    ];
    FORMS.iter().fold(token, |token, (from, to)| match token.contains(from) {
        true => token.replace(from, to),
        false => token,
    })
}
