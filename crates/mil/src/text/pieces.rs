//! Finds the parts of a single statement in its text.

use std::ops::Range;

use super::lex::{Lexer, Token};
use super::names::unescape;

/// Parts of an operation's text or of a function's header, as byte ranges without surrounding blanks and
/// comments.
#[derive(Debug, Default)]
pub struct StatementParts<'t> {
    /// `type name`, before the operator.
    pub outputs: Vec<Piece<'t>>,
    /// Text before the first parenthesis: the name of the operation, or the name of a function with its
    /// opset.
    pub operator: Range<usize>,
    /// Comma-separated text between the outermost parentheses and brackets.
    pub arguments: Vec<Piece<'t>>,
}

/// A range of tokens in a statement.
#[derive(Debug)]
pub struct Piece<'t> {
    /// The bytes of the tokens.
    pub range: Range<usize>,
    first: Token<'t>,
    last: Token<'t>,
    /// The second token and its offset.
    second: Option<(usize, Token<'t>)>,
}

impl<'t> StatementParts<'t> {
    /// Splits a statement into its parts. If it is not a valid statement, finds as many parts as possible.
    pub fn of(text: &'t str) -> StatementParts<'t> {
        let mut pieces = StatementParts::default();
        let mut open: Option<Piece<'t>> = None;
        let mut seen_operator = false;
        let mut depth = 0usize;
        let mut lexer = Lexer::new(text);
        while let Ok((start, token)) = lexer.next() {
            let mark = match token {
                Token::End => break,
                Token::Punctuation(mark) => Some(mark),
                _ => None,
            };
            let mut is_border = false;
            match mark {
                Some('(' | '[') if depth == 0 => {
                    depth = 1;
                    is_border = true;
                    if !seen_operator {
                        seen_operator = true;
                        pieces.operator = open.take().map_or(start..start, Piece::without_func);
                    }
                }
                Some('(' | '[' | '{' | '<') => depth += 1,
                Some(')' | ']' | '}' | '>') => {
                    depth = depth.saturating_sub(1);
                    is_border = depth == 0 && seen_operator;
                }
                Some(',') => is_border = depth == usize::from(seen_operator),
                Some('=') => is_border = depth == 0 && !seen_operator,
                _ => {}
            }
            if is_border {
                let list = if seen_operator { &mut pieces.arguments } else { &mut pieces.outputs };
                list.extend(open.take());
                continue;
            }
            match &mut open {
                None => {
                    let range = start..lexer.offset();
                    open = Some(Piece { range, first: token, last: token, second: None });
                }
                Some(piece) => {
                    piece.range.end = lexer.offset();
                    piece.last = token;
                    piece.second.get_or_insert((start, token));
                }
            }
        }
        if !seen_operator {
            pieces.operator = open.map_or(0..0, Piece::without_func);
        }
        pieces
    }
}

impl Piece<'_> {
    /// Whether it binds this parameter or sets this attribute.
    pub fn binds(&self, name: &str) -> bool {
        matches!(self.second, Some((_, Token::Punctuation('=')))) && says(self.first, name)
    }

    /// Whether it declares a value with this name.
    pub fn declares(&self, name: &str) -> bool {
        says(self.last, name)
    }

    /// The range without the `func` before the name of a function.
    fn without_func(self) -> Range<usize> {
        match (self.first, self.second) {
            (Token::Word("func"), Some((start, _))) => start..self.range.end,
            _ => self.range,
        }
    }
}

fn says(token: Token<'_>, name: &str) -> bool {
    match token {
        Token::Word(word) => word == name,
        Token::Name(escaped) => unescape(escaped).is_ok_and(|unescaped| unescaped == name),
        _ => false,
    }
}

/// Length of the tokens on the first line, without a trailing comment.
pub fn first_line(text: &str) -> usize {
    let Some(newline) = text.find('\n') else { return text.len() };
    let mut lexer = Lexer::new(text);
    let mut end = 0;
    while let Ok((start, token)) = lexer.next() {
        if token == Token::End || start > newline {
            break;
        }
        // A string may continue on the next line.
        end = lexer.offset().min(newline);
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown<'t>(text: &'t str, pieces: &[Piece<'_>]) -> Vec<&'t str> {
        pieces.iter().map(|piece| &text[piece.range.clone()]).collect()
    }

    #[test]
    fn splits_operation_into_parts() {
        let text = r#"tensor<fp16, [1, 2]> a, int32 `b, c` = split(x = (p, q), y = string("a, \"(")) [name = string("n")]"#;
        let pieces = StatementParts::of(text);
        assert_eq!(shown(text, &pieces.outputs), ["tensor<fp16, [1, 2]> a", "int32 `b, c`"]);
        assert!(pieces.outputs[1].declares("b, c") && !pieces.outputs[1].declares("int32"));
        assert_eq!(&text[pieces.operator.clone()], "split");
        assert_eq!(
            shown(text, &pieces.arguments),
            ["x = (p, q)", r#"y = string("a, \"(")"#, r#"name = string("n")"#]
        );
        let bare = StatementParts::of("print_it()");
        assert_eq!((bare.operator, bare.arguments.len()), (0..8, 0));
    }

    #[test]
    fn splits_function_header_into_parts() {
        let header = "func  main<ios17>(tensor<fp32, [1, ?]> x, fp32 y) [a = bool(true)]";
        let pieces = StatementParts::of(header);
        assert_eq!(&header[pieces.operator.clone()], "main<ios17>");
        assert_eq!(
            shown(header, &pieces.arguments),
            ["tensor<fp32, [1, ?]> x", "fp32 y", "a = bool(true)"]
        );
        assert!(pieces.arguments[0].declares("x") && pieces.arguments[2].binds("a"));
    }

    #[test]
    fn parts_exclude_surrounding_blanks_and_comments() {
        let text = "fp16 // (half, half)\n  y=add\n(\n\tx // x = z,\n =a // )\n , `y` =\n b)";
        let pieces = StatementParts::of(text);
        assert_eq!(shown(text, &pieces.outputs), ["fp16 // (half, half)\n  y"]);
        assert_eq!(&text[pieces.operator.clone()], "add");
        assert_eq!(shown(text, &pieces.arguments), ["x // x = z,\n =a", "`y` =\n b"]);
        assert!(pieces.arguments[0].binds("x") && pieces.arguments[1].binds("y"));
        assert!(!pieces.arguments[0].binds("a"));
    }

    #[test]
    fn first_line_ends_at_last_token() {
        assert_eq!(first_line("a = b"), 5);
        assert_eq!(first_line("a = // so\n b"), 3);
        assert_eq!(first_line("a =\t\n\n b"), 3);
        assert_eq!(first_line("a = string(\"x\ny\")"), 13);
    }
}
