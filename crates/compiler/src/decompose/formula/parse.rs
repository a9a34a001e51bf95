//! Parser of formulas.
//!
//! ```text
//! formula := (NAME "=" term ";")* term ("," term)*
//! term    := term OPERATOR term | "-" term | "!" term | NAME | NUMBER | NAME "(" term, ... ")" | "(" term ")"
//! ```
//!
//! Precedence as in Rust, plus `^` for powers: `|`, `&`, comparisons, `+ -`, `* / %`, `- !`, `^`. Each operator is
//! represented as a call of a named function.

use crate::bounds::take;
use crate::error::{Result, refuse};

/// Maximum nesting of terms.
const MAX_DEPTH: usize = 64;

/// A term of a formula.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Term<'a> {
    Number(&'a str),
    Name(&'a str),
    Call(&'a str, Vec<Term<'a>>),
}

/// A formula: named terms and results.
pub(crate) struct Formula<'a> {
    pub(crate) names: Vec<(&'a str, Term<'a>)>,
    pub(crate) results: Vec<Term<'a>>,
}

/// Binary operators: symbol, function name and precedence.
const OPERATORS: [(&str, &str, u8); 14] = [
    ("|", "logical_or", 1),
    ("&", "logical_and", 2),
    ("==", "eq", 3),
    ("!=", "ne", 3),
    ("<=", "le", 3),
    (">=", "ge", 3),
    ("<", "lt", 3),
    (">", "gt", 3),
    ("+", "add", 4),
    ("-", "sub", 4),
    ("*", "mul", 5),
    ("/", "div", 5),
    ("%", "remainder", 5),
    ("^", "pow", 7),
];

/// Precedence of unary operators.
const SIGN: u8 = 6;

impl<'a> Formula<'a> {
    pub(crate) fn parse(text: &'a str) -> Result<Formula<'a>> {
        let mut parts = text.split(';').collect::<Vec<_>>();
        let result = parts.pop().unwrap_or_default();
        let named = |part: &'a str| match part.split_once('=') {
            Some((name, term)) => Ok((name.trim(), take(&mut terms(term)?, 0)?)),
            None => refuse!("the formula `{part}` has no name"),
        };
        let names = parts.into_iter().map(named).collect::<Result<_>>()?;
        Ok(Formula { names, results: terms(result)? })
    }
}

fn terms(text: &str) -> Result<Vec<Term<'_>>> {
    let mut reader = Reader { rest: text.trim() };
    let mut terms = vec![reader.term(0, MAX_DEPTH)?];
    while reader.take(",") {
        terms.push(reader.term(0, MAX_DEPTH)?);
    }
    if !reader.rest.is_empty() {
        refuse!("the formula `{text}` continues after its end: `{}`", reader.rest);
    }
    Ok(terms)
}

struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
    /// Consumes a symbol if the rest starts with it.
    fn take(&mut self, sign: &str) -> bool {
        match self.rest.strip_prefix(sign) {
            Some(rest) => self.rest = rest.trim_start(),
            None => return false,
        }
        true
    }

    /// Consumes the longest prefix of matching characters.
    fn word(&mut self, is_part: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest.trim_start_matches(is_part);
        let word = self.rest.strip_suffix(rest).unwrap_or_default();
        self.rest = rest.trim_start();
        word
    }

    /// Parses a term of operators with a precedence above `least`.
    fn term(&mut self, least: u8, depth: usize) -> Result<Term<'a>> {
        let mut left = self.operand(depth)?;
        while let Some((sign, name, strength)) =
            OPERATORS.into_iter().find(|(sign, ..)| self.rest.starts_with(sign))
            && strength > least
        {
            self.take(sign);
            left = Term::Call(name, vec![left, self.term(strength, depth)?]);
        }
        Ok(left)
    }

    fn operand(&mut self, depth: usize) -> Result<Term<'a>> {
        let Some(depth) = depth.checked_sub(1) else {
            refuse!("a formula is nested more than {MAX_DEPTH} deep");
        };
        for (sign, name) in [("-", "neg"), ("!", "logical_not")] {
            if self.take(sign) {
                return Ok(Term::Call(name, vec![self.term(SIGN, depth)?]));
            }
        }
        if self.take("(") {
            let inner = self.term(0, depth)?;
            self.expect(")")?;
            return Ok(inner);
        }
        if self.rest.starts_with(|letter: char| letter.is_ascii_digit()) {
            let is_part = |letter: char| letter.is_ascii_digit() || ".e_".contains(letter);
            let number = self.word(is_part);
            if number.ends_with('e') && self.rest.starts_with('-') {
                refuse!("`{number}` has a negative exponent; write a decimal");
            }
            return Ok(Term::Number(number));
        }
        let name = self.word(|letter| letter.is_ascii_alphanumeric() || letter == '_');
        if name.is_empty() {
            refuse!("a term of a formula is missing before `{}`", self.rest);
        }
        if !self.take("(") {
            return Ok(Term::Name(name));
        }
        let mut arguments = vec![self.term(0, depth)?];
        while self.take(",") {
            arguments.push(self.term(0, depth)?);
        }
        self.expect(")")?;
        Ok(Term::Call(name, arguments))
    }

    fn expect(&mut self, sign: &str) -> Result<()> {
        match self.take(sign) {
            true => Ok(()),
            false => refuse!("a formula is missing `{sign}` before `{}`", self.rest),
        }
    }
}
