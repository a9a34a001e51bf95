//! Parser of both notations: calls with keywords, and operators with Python's precedence.

use super::{Expression, Function, Symbols};
use crate::error::{Error, escape_truncated};
use crate::limits::{MAX_DEPTH, MAX_EXPRESSION_TERMS};

pub(super) fn parse(text: &str, symbols: &mut Symbols) -> Result<Expression, Error> {
    let mut parser = Parser { text, at: 0, depth: 0, terms: 0, symbols };
    let expression = parser.disjunction()?;
    parser.skip_space();
    if parser.at < text.len() {
        return Err(parser.unexpected("the end of the expression"));
    }
    Ok(expression)
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
    terms: usize,
    symbols: &'a mut Symbols,
}

/// An argument of a call.
enum Argument {
    Expression(Expression),
    Text(String),
    /// An assumption of sympy about a symbol, such as `positive=True`.
    Keyword,
}

impl Parser<'_> {
    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn skip_space(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
    }

    fn take(&mut self, token: &str) -> bool {
        self.skip_space();
        let found = self.rest().starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    fn unexpected(&self, wanted: &str) -> Error {
        let found = self.rest().chars().take(20).collect::<String>();
        let found = if found.is_empty() { "the end".to_owned() } else { format!("`{found}`") };
        Error::malformed(format!(
            "the expression `{}` has {found} at offset {}; expected {wanted}",
            escape_truncated(self.text),
            self.at
        ))
    }

    fn deeper<T>(&mut self, parse: impl FnOnce(&mut Self) -> Result<T, Error>) -> Result<T, Error> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(Error::limit(format!(
                "the expression `{}` is nested deeper than {MAX_DEPTH} levels",
                escape_truncated(self.text)
            )));
        }
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    fn count(&mut self) -> Result<(), Error> {
        self.terms += 1;
        if self.terms > MAX_EXPRESSION_TERMS {
            return Err(Error::limit(format!(
                "the expression `{}` has more than {MAX_EXPRESSION_TERMS} terms",
                escape_truncated(self.text)
            )));
        }
        Ok(())
    }

    fn disjunction(&mut self) -> Result<Expression, Error> {
        self.deeper(|parser| parser.chain("|", Function::Or, Self::conjunction))
    }

    fn conjunction(&mut self) -> Result<Expression, Error> {
        self.chain("&", Function::And, Self::comparison)
    }

    fn chain(
        &mut self,
        operator: &str,
        function: Function,
        next: fn(&mut Self) -> Result<Expression, Error>,
    ) -> Result<Expression, Error> {
        let first = next(self)?;
        let mut terms = vec![first];
        while self.take(operator) {
            self.count()?;
            terms.push(next(self)?);
        }
        Ok(match terms.len() {
            1 => terms.swap_remove(0),
            _ => Expression::Call(function, terms),
        })
    }

    fn comparison(&mut self) -> Result<Expression, Error> {
        const OPERATORS: [(&str, Function); 6] = [
            ("<=", Function::LessOrEqual),
            (">=", Function::GreaterOrEqual),
            ("==", Function::Equal),
            ("!=", Function::NotEqual),
            ("<", Function::Less),
            (">", Function::Greater),
        ];
        let left = self.sum()?;
        for (operator, function) in OPERATORS {
            if self.take(operator) {
                let right = self.sum()?;
                return Ok(Expression::Call(function, vec![left, right]));
            }
        }
        Ok(left)
    }

    fn sum(&mut self) -> Result<Expression, Error> {
        let first = self.product()?;
        let mut terms = vec![first];
        loop {
            let negative = if self.take("+") {
                false
            } else if self.take("-") {
                true
            } else {
                break;
            };
            self.count()?;
            let term = self.product()?;
            terms.push(if negative { negate(term) } else { term });
        }
        Ok(match terms.len() {
            1 => terms.swap_remove(0),
            _ => Expression::Call(Function::Add, terms),
        })
    }

    fn product(&mut self) -> Result<Expression, Error> {
        let mut left = self.sign()?;
        // Each iteration nests the expression once more, so a long product is as deep as it is long.
        let mut wraps = 0;
        loop {
            self.skip_space();
            let (function, symbol) = if self.rest().starts_with("//") {
                (Function::FloorDiv, "//")
            } else if self.rest().starts_with('/') {
                (Function::FloatTrueDiv, "/")
            } else if self.rest().starts_with('%') {
                (Function::Mod, "%")
            } else if self.rest().starts_with('*') {
                (Function::Mul, "*")
            } else {
                break;
            };
            self.take(symbol);
            self.count()?;
            let right = self.sign()?;
            left = match (function, left, right) {
                (Function::Mul, Expression::Call(Function::Mul, mut factors), right) => {
                    factors.push(right);
                    Expression::Call(Function::Mul, factors)
                }
                (Function::FloatTrueDiv, left, right) => quotient(left, right),
                (function, left, right) => Expression::Call(function, vec![left, right]),
            };
            wraps += 1;
            if self.depth + wraps > MAX_DEPTH {
                return Err(Error::limit(format!(
                    "the expression `{}` is nested deeper than {MAX_DEPTH} levels",
                    escape_truncated(self.text)
                )));
            }
        }
        Ok(left)
    }

    fn sign(&mut self) -> Result<Expression, Error> {
        if self.take("-") {
            return self.deeper(Self::sign).map(negate);
        }
        if self.take("~") {
            let inner = self.deeper(Self::sign)?;
            return Ok(Expression::Call(Function::Not, vec![inner]));
        }
        self.power()
    }

    fn power(&mut self) -> Result<Expression, Error> {
        let base = self.primary()?;
        if self.take("**") {
            let exponent = self.deeper(Self::sign)?;
            return Ok(Expression::Call(Function::Pow, vec![base, exponent]));
        }
        Ok(base)
    }

    fn primary(&mut self) -> Result<Expression, Error> {
        self.count()?;
        self.skip_space();
        if self.take("(") {
            let inner = self.disjunction()?;
            return if self.take(")") { Ok(inner) } else { Err(self.unexpected("`)`")) };
        }
        match self.rest().bytes().next() {
            Some(b'0'..=b'9' | b'.') => self.number(),
            Some(first) if first == b'_' || first.is_ascii_alphabetic() => self.named(),
            _ => Err(self.unexpected("a number, a symbol, a call or `(`")),
        }
    }

    fn number(&mut self) -> Result<Expression, Error> {
        let rest = self.rest().as_bytes();
        let mut length = 0;
        while let Some(&byte) = rest.get(length) {
            let exponent = length > 0 && matches!(rest[length - 1], b'e' | b'E');
            let sign = exponent && matches!(byte, b'+' | b'-');
            if !(byte.is_ascii_digit() || matches!(byte, b'.' | b'e' | b'E') || sign) {
                break;
            }
            length += 1;
        }
        let text = &self.rest()[..length];
        let parsed = match text.parse() {
            Ok(value) => Some(Expression::Integer(value)),
            Err(_) if text.bytes().all(|byte| byte.is_ascii_digit()) => None,
            Err(_) => text.parse().ok().map(Expression::Float),
        };
        let parsed = parsed.ok_or_else(|| self.unexpected("a number of at most 64 bits"))?;
        self.at += length;
        Ok(parsed)
    }

    fn word(&mut self) -> String {
        let rest = self.rest();
        let named = |c: char| c == '_' || c == '.' || c.is_ascii_alphanumeric();
        let end = rest.find(|c| !named(c)).unwrap_or(rest.len());
        let word = rest[..end].to_owned();
        self.at += end;
        word
    }

    fn named(&mut self) -> Result<Expression, Error> {
        let start = self.at;
        let word = self.word();
        if !self.take("(") {
            return Ok(match word.as_str() {
                "true" | "True" => Expression::Bool(true),
                "false" | "False" => Expression::Bool(false),
                "oo" | "int_oo" | "inf" => Expression::Float(f64::INFINITY),
                name => Expression::Symbol(self.symbols.intern(name)),
            });
        }
        let mut arguments = Vec::new();
        while !self.take(")") {
            if !arguments.is_empty() && !self.take(",") {
                return Err(self.unexpected("`,` or `)`"));
            }
            // A tuple with one element ends with a comma.
            if !arguments.is_empty() && self.take(")") {
                break;
            }
            let argument = self.deeper(Self::argument)?;
            arguments.push(argument);
        }
        self.call(&word, arguments, start)
    }

    fn argument(&mut self) -> Result<Argument, Error> {
        self.skip_space();
        for quote in ['\'', '"'] {
            if let Some(rest) = self.rest().strip_prefix(quote) {
                let Some(end) = rest.find(quote) else {
                    return Err(self.unexpected("a quoted string"));
                };
                let text = rest[..end].to_owned();
                self.at += end + 2;
                return Ok(Argument::Text(text));
            }
        }
        let start = self.at;
        let word = self.word();
        if !word.is_empty() && self.take("=") && !self.rest().starts_with('=') {
            self.disjunction()?;
            return Ok(Argument::Keyword);
        }
        self.at = start;
        self.disjunction().map(Argument::Expression)
    }

    fn call(
        &mut self,
        name: &str,
        arguments: Vec<Argument>,
        start: usize,
    ) -> Result<Expression, Error> {
        let wrong = || {
            Error::malformed(format!(
                "the expression `{}` has arguments at offset {start} that `{}` does not accept",
                escape_truncated(self.text),
                escape_truncated(name)
            ))
        };
        match (name, arguments.first()) {
            ("Symbol" | "Dummy", Some(Argument::Text(symbol))) => {
                return Ok(Expression::Symbol(self.symbols.intern(symbol)));
            }
            ("Float", Some(Argument::Text(text))) => {
                return text.parse().map(Expression::Float).map_err(|_| wrong());
            }
            _ => {}
        }
        let mut expressions = Vec::with_capacity(arguments.len());
        for argument in arguments {
            match argument {
                Argument::Expression(expression) => expressions.push(expression),
                Argument::Keyword => {}
                Argument::Text(_) => return Err(wrong()),
            }
        }
        match (name, expressions.as_slice()) {
            ("Integer", &[Expression::Integer(value)]) => Ok(Expression::Integer(value)),
            ("Rational", &[Expression::Integer(above), Expression::Integer(below)])
                if below != 0 =>
            {
                Ok(Expression::Rational(above, below))
            }
            ("Integer" | "Rational" | "Symbol" | "Dummy" | "Float", _) => Err(wrong()),
            _ => Ok(Expression::Call(Function::from_name(name), expressions)),
        }
    }
}

fn negate(expression: Expression) -> Expression {
    match expression {
        Expression::Integer(value) if value != i64::MIN => Expression::Integer(-value),
        Expression::Float(value) => Expression::Float(-value),
        Expression::Rational(above, below) if above != i64::MIN => {
            Expression::Rational(-above, below)
        }
        Expression::Call(Function::Mul, mut factors) => {
            factors.insert(0, Expression::Integer(-1));
            Expression::Call(Function::Mul, factors)
        }
        other => Expression::Call(Function::Mul, vec![Expression::Integer(-1), other]),
    }
}

/// sympy has no division: a quotient is a product with the power -1.
fn quotient(left: Expression, right: Expression) -> Expression {
    match (left, right) {
        (Expression::Integer(above), Expression::Integer(below)) if below > 0 => {
            Expression::Rational(above, below)
        }
        (left, Expression::Integer(below)) if below > 0 => {
            Expression::Call(Function::Mul, vec![left, Expression::Rational(1, below)])
        }
        (left, right) => {
            let inverse = Expression::Call(Function::Pow, vec![right, Expression::Integer(-1)]);
            Expression::Call(Function::Mul, vec![left, inverse])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Expression, Symbols};
    use crate::ErrorKind;

    /// Formats the value of `text` for `s0` = 7 and `s1` = 3.
    fn value(text: &str) -> String {
        let mut symbols = Symbols::default();
        let expression = Expression::parse(text, &mut symbols).expect("an expression");
        let value = expression.evaluate(&|id| match symbols.get(id).name.as_str() {
            "s0" => Some(7),
            "s1" => Some(3),
            _ => None,
        });
        value.map_or("none".to_owned(), |value| value.to_string())
    }

    #[test]
    fn evaluates_srepr_and_infix_expressions() {
        for (text, wanted) in [
            ("Mul(Integer(2), Symbol('s0', positive=True, integer=True))", "14"),
            ("2*s0", "14"),
            ("2*s0 + s1 - 1", "16"),
            ("-s0", "-7"),
            ("s0**2 - s1**2", "40"),
            ("FloorDiv(Add(Symbol('s0', integer=True), Integer(-1)), Integer(4))", "1"),
            ("((s0 - 1)//4)", "1"),
            ("(s0//2)*s1", "9"),
            ("-(s0//2)", "-3"),
            ("PythonMod(-s0, 4)", "1"),
            ("Mod(s0, 4)", "3"),
            ("Max(1, s0, s1)", "7"),
            ("Min(Symbol('s0'), Symbol('s1'))", "3"),
            ("s0/2 + 1/2", "4"),
            ("CeilToInt(IntTrueDiv(s0, 2))", "4"),
            ("TruncToInt(Mul(Float('-0.5', precision=53), ToFloat(Symbol('s0'))))", "-3"),
            ("Where(s0 > s1, 10, 20)", "10"),
            ("GreaterThan(Symbol('s0'), Integer(7))", "true"),
            ("Eq(s0, s1)", "false"),
            ("(s0 <= 7) & (s1 != 4)", "true"),
            ("Ne(s1, 3) | ~(s0 == 6)", "true"),
            ("s2 + 1", "none"),
            ("Unheard(s0)", "none"),
            ("s0**s0**s0", "none"),
            ("9223372036854775807 * s0 * 9223372036854775807 * 9223372036854775807", "none"),
        ] {
            assert_eq!(value(text), wanted, "{text}");
        }
    }

    #[test]
    fn rejects_invalid_and_oversized_expressions() {
        for text in [
            "",
            "2*",
            "(s0",
            "Integer('x')",
            "Rational(1, 0)",
            "s0 s1",
            "99999999999999999999",
            "é",
        ] {
            let error = Expression::parse(text, &mut Symbols::default()).expect_err(text);
            assert_eq!(error.kind(), ErrorKind::Malformed, "{text}");
        }
        for text in
            ["(".repeat(10_000), "-".repeat(10_000), "s0//1".to_owned() + &"//2".repeat(10_000)]
        {
            let error = Expression::parse(&text, &mut Symbols::default()).expect_err("too deep");
            assert_eq!(error.kind(), ErrorKind::Limit);
        }
        let wide = "1+".repeat(100_000) + "1";
        let error = Expression::parse(&wide, &mut Symbols::default()).expect_err("too wide");
        assert_eq!(error.kind(), ErrorKind::Limit);
    }
}
