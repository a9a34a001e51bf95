use super::names::{continues_word, starts_word};

/// A token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token<'t> {
    /// An identifier or a reserved word.
    Word(&'t str),
    /// A name between backticks; the text excludes the backticks and is not unescaped.
    Name(&'t str),
    /// A string; the text excludes the quotes and is not unescaped.
    String(&'t str),
    /// A number, including `-inf` and `-nan`.
    Number(&'t str),
    /// `->`
    Arrow,
    /// One of `()[]{}<>,=;?`
    Punctuation(char),
    /// The end of the text.
    End,
}

/// Reason why there is no valid token at an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LexError {
    /// A character that cannot start a token.
    Unexpected(char),
    /// A string or quoted name without an end.
    Unterminated(char),
}

/// Splits text into tokens, separated by white space and comments (`//` to the end of the line).
#[derive(Clone)]
pub(super) struct Lexer<'t> {
    text: &'t str,
    offset: usize,
}

impl<'t> Lexer<'t> {
    pub(super) fn new(text: &'t str) -> Lexer<'t> {
        Lexer { text, offset: 0 }
    }

    /// Returns the next token and its start offset.
    pub(super) fn next(&mut self) -> Result<(usize, Token<'t>), (usize, LexError)> {
        self.skip_blank();
        let start = self.offset;
        let rest = &self.text[start..];
        let Some(first) = rest.bytes().next() else { return Ok((start, Token::End)) };
        let token = match first {
            b'(' | b')' | b'[' | b']' | b'{' | b'}' | b'<' | b'>' | b',' | b'=' | b';' | b'?' => {
                self.offset += 1;
                Token::Punctuation(char::from(first))
            }
            b'"' => Token::String(self.quoted('"')?),
            b'`' => Token::Name(self.quoted('`')?),
            b'-' if rest.starts_with("->") => {
                self.offset += 2;
                Token::Arrow
            }
            b'-' | b'0'..=b'9' => Token::Number(self.number()),
            _ if starts_word(first) => {
                let length = rest.bytes().take_while(|&byte| continues_word(byte)).count();
                self.offset += length;
                Token::Word(&rest[..length])
            }
            _ => {
                let c = rest.chars().next().unwrap_or('\u{fffd}');
                return Err((start, LexError::Unexpected(c)));
            }
        };
        Ok((start, token))
    }

    fn skip_blank(&mut self) {
        let bytes = self.text.as_bytes();
        while let Some(&byte) = bytes.get(self.offset) {
            if byte.is_ascii_whitespace() {
                self.offset += 1;
            } else if bytes[self.offset..].starts_with(b"//") {
                let rest = &bytes[self.offset..];
                self.offset += rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len());
            } else {
                break;
            }
        }
    }

    fn quoted(&mut self, quote: char) -> Result<&'t str, (usize, LexError)> {
        let bytes = self.text.as_bytes();
        let start = self.offset + 1;
        let mut at = start;
        loop {
            match bytes.get(at) {
                None => return Err((self.offset, LexError::Unterminated(quote))),
                Some(b'\\') => at += 2,
                Some(&byte) if char::from(byte) == quote => break,
                Some(_) => at += 1,
            }
        }
        self.offset = at + 1;
        // Quotes are ASCII, so both ends are character boundaries.
        Ok(&self.text[start..at])
    }

    /// Consumes a sign, then letters, digits and dots, with another sign after the exponent letter. The
    /// caller parses the value.
    fn number(&mut self) -> &'t str {
        let rest = &self.text.as_bytes()[self.offset..];
        let hexadecimal = rest.strip_prefix(b"-").unwrap_or(rest).starts_with(b"0x");
        let mut length = 1;
        while let Some(&byte) = rest.get(length) {
            let exponent = match rest[length - 1] {
                b'p' | b'P' => true,
                b'e' | b'E' => !hexadecimal,
                _ => false,
            };
            let sign = matches!(byte, b'+' | b'-') && exponent;
            if !(byte.is_ascii_alphanumeric() || byte == b'.' || sign) {
                break;
            }
            length += 1;
        }
        let start = self.offset;
        self.offset += length;
        &self.text[start..self.offset]
    }

    /// End offset of the last token.
    pub(super) fn offset(&self) -> usize {
        self.offset
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> Vec<Token<'_>> {
        let mut lexer = Lexer::new(text);
        let mut tokens = Vec::new();
        loop {
            match lexer.next().expect("tokens").1 {
                Token::End => return tokens,
                token => tokens.push(token),
            }
        }
    }

    #[test]
    fn lexes_every_token_kind() {
        use Token::{Arrow, Name, Number, Punctuation, String, Word};
        assert_eq!(
            all("a@1 = f(-0x1.8p-3, 1e-5, -nan) // b\n} -> (`x.y`, \"s\\\"t\");"),
            [
                Word("a@1"),
                Punctuation('='),
                Word("f"),
                Punctuation('('),
                Number("-0x1.8p-3"),
                Punctuation(','),
                Number("1e-5"),
                Punctuation(','),
                Number("-nan"),
                Punctuation(')'),
                Punctuation('}'),
                Arrow,
                Punctuation('('),
                Name("x.y"),
                Punctuation(','),
                String("s\\\"t"),
                Punctuation(')'),
                Punctuation(';'),
            ]
        );
    }

    #[test]
    fn reports_unexpected_and_unterminated_input() {
        assert_eq!(Lexer::new("  %").next(), Err((2, LexError::Unexpected('%'))));
        assert_eq!(Lexer::new("größe").next().map(|token| token.1), Ok(Token::Word("gr")));
        for text in ["\"abc", "\"abc\\\"", "\"abc\\"] {
            assert_eq!(Lexer::new(text).next(), Err((0, LexError::Unterminated('"'))));
        }
    }
}
