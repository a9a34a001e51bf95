use std::collections::BTreeMap;

use super::lex::{LexError, Lexer, Token};
use super::names::unescape;
use super::{Error, ErrorKind};

/// Parser state: a position in the text with one token of lookahead.
pub(super) struct Cursor<'t> {
    text: &'t str,
    lexer: Lexer<'t>,
    next: (usize, Token<'t>),
    /// End offset of the last consumed token.
    end: usize,
    depth: usize,
    /// The layout of the last parsed type, if it was a buffer.
    pub(super) layout: Option<BufferLayout>,
}

/// Maximum nesting depth of types, values and blocks. The parser is recursive, and real programs nest only a
/// few levels.
pub(super) const MAX_DEPTH: usize = 64;

/// The layout of a tensor's buffer. Each named property has one number for each dimension; `None` is written
/// `?`.
pub(super) type BufferLayout = BTreeMap<String, Vec<Option<u64>>>;

pub(super) type Result<T> = std::result::Result<T, Error>;

impl<'t> Cursor<'t> {
    pub(super) fn new(text: &'t str) -> Result<Cursor<'t>> {
        let mut cursor = Cursor {
            text,
            lexer: Lexer::new(text),
            next: (0, Token::End),
            end: 0,
            depth: 0,
            layout: None,
        };
        cursor.take()?;
        cursor.end = 0;
        Ok(cursor)
    }

    /// The next token.
    pub(super) fn peek(&self) -> Token<'t> {
        self.next.1
    }

    /// The token after the next one; [`Token::End`] if it is invalid.
    pub(super) fn peek_second(&self) -> Token<'t> {
        self.lexer.clone().next().map_or(Token::End, |token| token.1)
    }

    /// Start offset of the next token.
    pub(super) fn offset(&self) -> usize {
        self.next.0
    }

    /// Consumes the next token.
    pub(super) fn take(&mut self) -> Result<Token<'t>> {
        let token = self.next.1;
        self.end = self.lexer.offset();
        self.next = self.lexer.next().map_err(|(offset, trouble)| match trouble {
            LexError::Unexpected(c) => {
                self.error_at(offset, format!("unexpected character `{}`", c.escape_debug()))
            }
            LexError::Unterminated(quote) => self
                .error_at(offset, format!("no closing `{quote}` before the end of the text"))
                .with_hint("a quote inside a string is written `\\\"`"),
        })?;
        Ok(token)
    }

    /// End offset of the last consumed token.
    pub(super) fn end(&self) -> usize {
        self.end
    }

    /// The text from an offset to the end of the last token.
    pub(super) fn since(&self, offset: usize) -> &'t str {
        self.text.get(offset..self.end).unwrap_or_default()
    }

    /// Takes the layout of the last parsed type, if it was a buffer.
    pub(super) fn take_layout(&mut self) -> Option<BufferLayout> {
        self.layout.take()
    }

    /// Consumes a punctuation mark if it is the next token.
    pub(super) fn accept(&mut self, mark: char) -> Result<bool> {
        let found = self.peek() == Token::Punctuation(mark);
        if found {
            self.take()?;
        }
        Ok(found)
    }

    /// Consumes a punctuation mark or returns an error.
    pub(super) fn expect(&mut self, mark: char) -> Result<()> {
        if self.accept(mark)? { Ok(()) } else { Err(self.unexpected(&format!("`{mark}`"))) }
    }

    /// Consumes the `;` at the end of a statement. The error for a missing one refers to the end of the
    /// statement, not to the next token.
    pub(super) fn expect_semicolon(&mut self) -> Result<()> {
        if self.accept(';')? {
            return Ok(());
        }
        Err(self.error_at(self.end, self.unexpected("`;`").message().to_owned()))
    }

    /// Consumes a specific word or returns an error.
    pub(super) fn expect_word(&mut self, word: &str) -> Result<()> {
        if self.peek() != Token::Word(word) {
            return Err(self.unexpected(&format!("`{word}`")));
        }
        self.take()?;
        Ok(())
    }

    /// Consumes `->`.
    pub(super) fn expect_arrow(&mut self) -> Result<()> {
        if self.peek() != Token::Arrow {
            return Err(self.unexpected("`->`"));
        }
        self.take()?;
        Ok(())
    }

    /// Parses a comma-separated list between two marks.
    pub(super) fn list(
        &mut self,
        open: char,
        close: char,
        mut piece: impl FnMut(&mut Self) -> Result<()>,
    ) -> Result<()> {
        self.expect(open)?;
        if self.accept(close)? {
            return Ok(());
        }
        loop {
            piece(self)?;
            if self.accept(close)? {
                return Ok(());
            }
            if !self.accept(',')? {
                return Err(self.unexpected(&format!("`,` or `{close}`")));
            }
        }
    }

    /// Runs `inner` one nesting level deeper.
    pub(super) fn nested<T>(&mut self, inner: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.enter()?;
        let result = inner(self);
        self.leave();
        result
    }

    /// Increases the nesting depth; [`Cursor::leave`] decreases it.
    pub(super) fn enter(&mut self) -> Result<()> {
        if self.depth >= MAX_DEPTH {
            return Err(self.limit(format!("nested deeper than {MAX_DEPTH} levels")));
        }
        self.depth += 1;
        Ok(())
    }

    pub(super) fn leave(&mut self) {
        self.depth -= 1;
    }

    /// Consumes a string and returns its unescaped text.
    pub(super) fn string(&mut self) -> Result<String> {
        let Token::String(escaped) = self.peek() else { return Err(self.unexpected("a string")) };
        let text = self.unescaped(escaped)?;
        self.take()?;
        Ok(text)
    }

    /// Unescapes the text of the next token.
    pub(super) fn unescaped(&self, escaped: &str) -> Result<String> {
        unescape(escaped).map_err(|at| {
            let message = "unknown escape in a string".to_owned();
            self.error_at(self.offset() + 1 + at, message).with_hint(
                "supported escapes are \\n, \\r, \\t, \\\\, \\\", \\` and ASCII codes such as \\033 or \\x1b",
            )
        })
    }

    /// Error: the next token is not the expected one.
    pub(super) fn unexpected(&self, accepted: &str) -> Error {
        let found = match self.peek() {
            Token::Word(word) | Token::Number(word) => format!("`{}`", shortened(word)),
            Token::Name(name) => format!("`{}`", shortened(name)),
            Token::String(_) => "a string".to_owned(),
            Token::Arrow => "`->`".to_owned(),
            Token::Punctuation(mark) => format!("`{mark}`"),
            Token::End => "the end of the text".to_owned(),
        };
        self.error(format!("expected {accepted}, found {found}"))
    }

    /// Error at the next token.
    pub(super) fn error(&self, message: String) -> Error {
        self.error_at(self.offset(), message)
    }

    /// An error at an offset.
    pub(super) fn error_at(&self, offset: usize, message: String) -> Error {
        Error::new(ErrorKind::Syntax, self.text, offset, message)
    }

    /// Error at the next token: a limit was exceeded.
    pub(super) fn limit(&self, message: String) -> Error {
        Error::new(ErrorKind::Limit, self.text, self.offset(), message)
    }
}

/// Text quoted in a message, truncated if it is long.
pub(super) fn shortened(text: &str) -> String {
    match text.char_indices().nth(48) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}
