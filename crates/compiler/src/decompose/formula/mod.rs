//! Formulas: elementwise expressions in mathematical notation, compiled to calls.
//!
//! `self * tanh(softplus(self))` is the complete rule for `mish`. Names refer to the call's arguments, or to
//! variables passed to [`calc!`]; `is_huber = ...;` names a term. Constant conditions are decided at compile time,
//! and common terms are computed once.
//!
//! Reductions have torch's parameters: `sum(self, dim, keepdim)`. Without dimensions they reduce all of them. A
//! function that [`Call::function`] does not list is torch's operator of that name, which must preserve type and
//! shape. Numbers after the tensors are its arguments by position.

pub(crate) mod parse;

use std::collections::HashMap;

use coremill_pt2::{Argument, Kind, ScalarType};

use self::parse::{Formula, Term};
use super::call::{
    Call, IntoArgument, Results, RewriteResult, Tensor, TensorResult, given, position,
};
use super::dtype::{is_float, is_half};
use crate::error::{LoweringError, Result, refuse};

/// Value of a term: a tensor or a constant number.
#[derive(Clone, Debug)]
pub(crate) enum Operand {
    Tensor(Tensor),
    Number(Number),
    /// Integers, mostly dimensions; empty for an argument that is `None`.
    List(Vec<i64>),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Number {
    Bool(bool),
    Int(i64),
    Float(f64),
}

impl Operand {
    fn number(&self) -> Option<Number> {
        match self {
            Operand::Number(number) => Some(*number),
            Operand::Tensor(_) | Operand::List(_) => None,
        }
    }

    /// Index of a single dimension.
    fn dimension(&self, rank: usize) -> Result<usize> {
        match self {
            Operand::Number(number) => position(number.value() as i64, rank),
            _ => refuse!("a dimension is not a number"),
        }
    }

    /// Indices of dimensions; all dimensions if the list is empty.
    fn dimensions(&self, rank: usize) -> Result<Vec<usize>> {
        match self {
            Operand::Number(_) => Ok(vec![self.dimension(rank)?]),
            Operand::List(all) if all.is_empty() => Ok((0..rank).collect()),
            Operand::List(all) => all.iter().map(|at| position(*at, rank)).collect(),
            Operand::Tensor(_) => refuse!("dimensions are unknown at compile time"),
        }
    }
}

impl Number {
    fn value(self) -> f64 {
        match self {
            Number::Bool(truth) => f64::from(u8::from(truth)),
            Number::Int(value) => value as f64,
            Number::Float(value) => value,
        }
    }

    fn truth(self) -> bool {
        self.value() != 0.0
    }

    fn argument(self) -> Argument {
        match self {
            Number::Bool(truth) => Argument::Bool(truth),
            Number::Int(value) => Argument::Int(value),
            Number::Float(value) => Argument::Float(value),
        }
    }

    fn of(argument: &Argument) -> Option<Number> {
        match argument {
            Argument::Bool(truth) => Some(Number::Bool(*truth)),
            Argument::Int(value) => Some(Number::Int(*value)),
            Argument::Float(value) => Some(Number::Float(*value)),
            _ => None,
        }
    }

    /// Applies a function to constant numbers.
    fn function(name: &str, all: &[Number]) -> Option<Number> {
        let whole = all.iter().all(|number| !matches!(number, Number::Float(_)));
        let value = |at: usize| all.get(at).map(|number| number.value());
        let (x, y) = (value(0)?, value(1));
        let number = match (name, y) {
            ("neg", None) => -x,
            ("abs", None) => x.abs(),
            ("exp", None) => x.exp(),
            ("log", None) => x.ln(),
            ("sqrt", None) => x.sqrt(),
            ("logical_not", None) => return Some(Number::Bool(x == 0.0)),
            ("signbit", None) => return Some(Number::Bool(x.is_sign_negative())),
            ("add", Some(y)) => x + y,
            ("sub", Some(y)) => x - y,
            ("mul", Some(y)) => x * y,
            ("div", Some(y)) => x / y,
            ("pow", Some(y)) => x.powf(y),
            ("min", Some(y)) => x.min(y),
            ("max", Some(y)) => x.max(y),
            ("eq", Some(y)) => return Some(Number::Bool(x == y)),
            ("ne", Some(y)) => return Some(Number::Bool(x != y)),
            ("lt", Some(y)) => return Some(Number::Bool(x < y)),
            ("le", Some(y)) => return Some(Number::Bool(x <= y)),
            ("gt", Some(y)) => return Some(Number::Bool(x > y)),
            ("ge", Some(y)) => return Some(Number::Bool(x >= y)),
            ("logical_and", Some(y)) => return Some(Number::Bool(x != 0.0 && y != 0.0)),
            ("logical_or", Some(y)) => return Some(Number::Bool(x != 0.0 || y != 0.0)),
            _ => return None,
        };
        let stays = whole && !matches!(name, "div" | "exp" | "log" | "sqrt" | "pow");
        Some(if stays { Number::Int(number as i64) } else { Number::Float(number) })
    }
}

/// Evaluates a formula whose names are arguments of the call, or variables of the same name. `all` returns an array
/// of values.
macro_rules! calc {
    (all $call:expr, $formula:expr $(, $name:ident)* $(,)?) => {
        $call.calculated_all(
            $formula,
            &[$((stringify!($name), crate::decompose::call::IntoArgument::given(&$name))),*],
        )
    };
    ($call:expr, $formula:expr $(, $name:ident)* $(,)?) => {
        $call.calculated(
            $formula,
            &[$((stringify!($name), crate::decompose::call::IntoArgument::given(&$name))),*],
        )
    };
}
pub(crate) use calc;

/// State of the evaluation of a formula.
struct Evaluation<'f> {
    formula: &'f Formula<'f>,
    given: &'f [(&'f str, Argument)],
    known: HashMap<&'f Term<'f>, Operand>,
}

impl Call<'_> {
    /// Evaluates the formula of a rule and casts the values to the result types. Further results must be unused.
    pub(super) fn formula(&mut self, text: &str) -> Results {
        let found = self.values(text, &[])?;
        let mut results = Vec::with_capacity(found.len());
        for (index, value) in found.into_iter().enumerate() {
            let dtype = self.result(index).map_or(value.dtype, |noted| noted.dtype);
            results.push(RewriteResult::Tensor(self.cast(&value, dtype)?));
        }
        results.resize_with(self.node.results().count().max(1), || RewriteResult::Nothing);
        Ok(results)
    }

    /// Evaluates a formula with several values.
    pub(crate) fn calculated_all<const N: usize>(
        &mut self,
        formula: &str,
        given: &[(&str, Argument)],
    ) -> Result<[Tensor; N]> {
        let values = self.values(formula, given)?;
        values.try_into().map_err(|_| LoweringError::new(format!("a formula must have {N} values")))
    }

    /// Evaluates a formula with one value.
    pub(crate) fn calculated(&mut self, formula: &str, given: &[(&str, Argument)]) -> TensorResult {
        self.calculated_all(formula, given).map(|[value]| value)
    }

    fn values(&mut self, formula: &str, given: &[(&str, Argument)]) -> Result<Vec<Tensor>> {
        let formula = Formula::parse(formula)?;
        let mut evaluation = Evaluation { formula: &formula, given, known: HashMap::new() };
        let mut values = Vec::with_capacity(formula.results.len());
        for term in &formula.results {
            let value = self.term(&mut evaluation, term)?;
            values.push(self.as_tensor(value, None)?);
        }
        Ok(values)
    }

    /// Converts an operand to a tensor. A number takes its type from the other operand, or from the result.
    fn as_tensor(&mut self, operand: Operand, beside: Option<&Tensor>) -> TensorResult {
        match (operand, beside) {
            (Operand::Tensor(tensor), _) => Ok(tensor),
            (Operand::Number(number), Some(other)) => self.number_beside(number.argument(), other),
            (Operand::Number(number), None) => self.scalar(number.argument(), self.kind()?),
            (Operand::List(_), _) => refuse!("a list is not a tensor"),
        }
    }

    /// Type of the first used result.
    fn kind(&self) -> Result<ScalarType> {
        let first = (0..self.node.results().count()).find(|index| self.wants(*index));
        self.result(first.unwrap_or(0)).map(|noted| noted.dtype)
    }

    fn term<'f>(&mut self, evaluation: &mut Evaluation<'f>, term: &'f Term<'f>) -> Result<Operand> {
        if let Some(known) = evaluation.known.get(term) {
            return Ok(known.clone());
        }
        let found = match term {
            Term::Number(text) => self.literal(text)?,
            Term::Name(name) => {
                let formula = evaluation.formula;
                if let Some((_, given)) = evaluation.given.iter().find(|(own, _)| own == name) {
                    self.operand(name, given)?
                } else if let Some((_, term)) = formula.names.iter().find(|(own, _)| own == name) {
                    self.term(evaluation, term)?
                } else {
                    self.named(name)?
                }
            }
            Term::Call("where", all) => self.choice(evaluation, all)?,
            Term::Call(word @ ("given" | "long"), all) => {
                let [Term::Name(name)] = all.as_slice() else {
                    refuse!("`{word}` requires the name of an argument")
                };
                if *word == "given" {
                    Operand::Number(Number::Bool(self.has(name)))
                } else {
                    let index = self.tensor(name)?;
                    Operand::Tensor(self.cast(&index, ScalarType::Int64)?)
                }
            }
            Term::Call(name, all) => {
                let operands = all.iter().map(|term| self.term(evaluation, term));
                let operands = operands.collect::<Result<Vec<_>, _>>()?;
                self.function(name, &operands)?
            }
        };
        evaluation.known.insert(term, found.clone());
        Ok(found)
    }

    fn literal(&self, text: &str) -> Result<Operand> {
        let plain = text.replace('_', "");
        let whole = plain.parse().map(Number::Int);
        match whole.or_else(|_| plain.parse().map(Number::Float)) {
            Ok(number) => Ok(Operand::Number(number)),
            Err(_) => refuse!("`{text}` is not a number"),
        }
    }

    /// A constant or an argument of the call. Tensor arguments are converted to a floating-point result type.
    fn named(&mut self, name: &str) -> Result<Operand> {
        let constant = match name {
            "pi" => Some(std::f64::consts::PI),
            "inf" => Some(f64::INFINITY),
            "nan" if !self.has(name) => Some(f64::NAN),
            _ => None,
        };
        if let Some(constant) = constant {
            return Ok(Operand::Number(Number::Float(constant)));
        }
        let operand = self.operand(name, self.argument(name)?)?;
        let dtype = self.kind()?;
        Ok(match operand {
            Operand::Tensor(tensor) if is_float(dtype) => {
                Operand::Tensor(self.cast(&tensor, dtype)?)
            }
            operand => operand,
        })
    }

    fn operand(&mut self, name: &str, argument: &Argument) -> Result<Operand> {
        Ok(match (Number::of(argument), argument) {
            (Some(number), _) => Operand::Number(number),
            (None, Argument::None) => Operand::List(Vec::new()),
            (None, Argument::List(items)) => {
                let items = items.iter().map(|item| self.int_of(name, item));
                Operand::List(items.collect::<Result<_, _>>()?)
            }
            (None, argument) => Operand::Tensor(self.tensor_of(name, argument)?),
        })
    }

    /// Evaluates `where(condition, a, b)`. For a constant condition, only the selected term is computed.
    fn choice<'f>(
        &mut self,
        evaluation: &mut Evaluation<'f>,
        all: &'f [Term<'f>],
    ) -> Result<Operand> {
        let [condition, yes, no] = all else { refuse!("`where` requires three terms") };
        let condition = match self.term(evaluation, condition)? {
            Operand::Tensor(condition) => condition,
            Operand::Number(known) => {
                return self.term(evaluation, if known.truth() { yes } else { no });
            }
            Operand::List(_) => refuse!("a list is not a condition"),
        };
        let (yes, no) = (self.term(evaluation, yes)?, self.term(evaluation, no)?);
        let like = [&yes, &no].into_iter().find_map(|operand| match operand {
            Operand::Tensor(tensor) => Some(tensor.clone()),
            Operand::Number(_) | Operand::List(_) => None,
        });
        let (yes, no) = (self.as_tensor(yes, like.as_ref())?, self.as_tensor(no, like.as_ref())?);
        Ok(Operand::Tensor(self.choose(&condition, &yes, &no)?))
    }

    fn function(&mut self, name: &str, operands: &[Operand]) -> Result<Operand> {
        if let Some(numbers) = operands.iter().map(Operand::number).collect::<Option<Vec<_>>>()
            && let Some(number) = Number::function(name, &numbers)
        {
            return Ok(Operand::Number(number));
        }
        if let ([Operand::Number(number), other] | [other, Operand::Number(number)], true) =
            (operands, matches!(name, "logical_and" | "logical_or"))
        {
            let decides = number.truth() == (name == "logical_or");
            return Ok(if decides { Operand::Number(*number) } else { other.clone() });
        }
        let found = match operands {
            [Operand::Tensor(x), rest @ ..] if let Some(found) = self.placed(name, x, rest)? => {
                found
            }
            [Operand::Tensor(x)] => match name {
                "is_float" => return Ok(Operand::Number(Number::Bool(is_float(x.dtype)))),
                "is_half" => return Ok(Operand::Number(Number::Bool(is_half(x.dtype)))),
                "isnan" | "isinf" | "isfinite" | "signbit" | "logical_not" => self.test(name, x)?,
                "square" => self.multiply(x, x)?,
                "number" => self.cast(x, self.kind()?)?,
                "reduced" => self.reduced(x)?,
                _ => self.map(name, x)?,
            },
            [Operand::Tensor(x), Operand::Number(number)] => self.with_number(name, x, *number)?,
            [Operand::Number(number), Operand::Tensor(y)] => self.number_with(name, *number, y)?,
            [Operand::Tensor(x), Operand::Tensor(y)] => self.of_two(name, x, y)?,
            [Operand::Tensor(x), Operand::Number(low), Operand::Number(high)]
                if name == "clamp" =>
            {
                self.clamp(x, Some(low.value()), Some(high.value()))?
            }
            [Operand::Tensor(x), at, Operand::Tensor(index)] => {
                let at = at.dimension(x.rank())?;
                match name {
                    "gather" => self.gather(x, at, index)?,
                    "index_select" => self.index_select(x, at, index)?,
                    _ => refuse!("`{name}` is not a function of indices"),
                }
            }
            [Operand::Tensor(x), rest @ ..]
                if let Some(numbers) =
                    rest.iter().map(Operand::number).collect::<Option<Vec<_>>>() =>
            {
                self.with_numbers(name, x, &numbers)?
            }
            _ => refuse!("`{name}` does not accept these {} operands", operands.len()),
        };
        Ok(Operand::Tensor(found))
    }

    /// Applies a reduction or a function that moves elements. Returns `None` for other functions.
    fn placed(&mut self, name: &str, x: &Tensor, rest: &[Operand]) -> Result<Option<Tensor>> {
        let rank = x.rank();
        let over = |at: usize| match rest.get(at) {
            Some(dimensions) => dimensions.dimensions(rank),
            None => Ok((0..rank).collect()),
        };
        let keep = |at: usize| rest.get(at).and_then(Operand::number).is_some_and(Number::truth);
        Ok(Some(match (name, rest) {
            ("sum", _) => self.sum(x, &over(0)?, keep(1))?,
            ("mean", _) => self.mean(x, &over(0)?, keep(1))?,
            ("amax" | "amin", _) => self.extreme(name, x, &over(0)?, keep(1))?,
            ("any", _) => self.any(x, &over(0)?, keep(1))?,
            ("norm", [Operand::Number(degree), ..]) => {
                self.norm(x, degree.value(), &over(1)?, keep(2))?
            }
            ("softmax", [at]) => self.softmax(x, at.dimension(rank)?)?,
            ("log_softmax", [at]) => self.log_softmax(x, at.dimension(rank)?)?,
            ("squeeze", [at]) => self.squeeze(x, at.dimension(rank)?)?,
            ("unsqueeze", [at]) => self.unsqueeze(x, at.dimension(rank + 1)?)?,
            ("flip", [_]) => self.flip(x, &over(0)?)?,
            ("roll", [Operand::Number(by), _]) => {
                self.roll(x, [by.argument()].given(), &over(1)?)?
            }
            ("transpose", [first, second]) => {
                self.transpose(x, first.dimension(rank)?, second.dimension(rank)?)?
            }
            ("head" | "tail", [at]) => self.all_but(x, at.dimension(rank)?, name == "head")?,
            ("mT", []) => self.turned(x)?,
            ("flat", []) => self.flat(x)?,
            _ => return Ok(None),
        }))
    }

    /// Calls an operator that preserves type and shape and has numeric parameters, such as `elu`.
    fn with_numbers(&mut self, name: &str, x: &Tensor, numbers: &[Number]) -> TensorResult {
        let operator = format!("aten.{name}.default");
        let schema = self.schema(&operator)?;
        let names = schema.arguments.iter().map(|parameter| parameter.name.as_str());
        let numbers = numbers.iter().map(|number| number.argument());
        let given: Vec<_> = names.zip(std::iter::once(x.argument()).chain(numbers)).collect();
        self.like(x, &operator, &given)
    }

    fn with_number(&mut self, name: &str, x: &Tensor, number: Number) -> TensorResult {
        let argument = number.argument();
        let keeps = is_float(x.dtype) || !matches!(number, Number::Float(_));
        match name {
            "mul" | "div" if number.value() == 1.0 && keeps && x.dtype != ScalarType::Bool => {
                Ok(x.clone())
            }
            "add" | "sub" | "mul" | "div" | "remainder" => self.with(name, x, argument),
            "pow" => self.power(x, argument),
            "min" => self.clamp(x, None, Some(number.value())),
            "max" => self.clamp(x, Some(number.value()), None),
            "eq" | "ne" | "lt" | "le" | "gt" | "ge" => self.compare_number(name, x, argument),
            _ => {
                let schema = self.schema(&format!("aten.{name}.default"))?;
                if schema.arguments.get(1).is_some_and(|second| second.kind != Kind::Tensor) {
                    return self.with_numbers(name, x, &[number]);
                }
                let number = self.number_beside(argument, x)?;
                self.of_two(name, x, &number)
            }
        }
    }

    fn number_with(&mut self, name: &str, number: Number, y: &Tensor) -> TensorResult {
        match (name, number.value()) {
            ("add" | "mul" | "min" | "max" | "eq" | "ne", _) => self.with_number(name, y, number),
            ("sub", _) => self.with("rsub", y, number.argument()),
            ("div", 1.0) => self.map("reciprocal", y),
            ("lt", _) => self.with_number("gt", y, number),
            ("le", _) => self.with_number("ge", y, number),
            ("gt", _) => self.with_number("lt", y, number),
            ("ge", _) => self.with_number("le", y, number),
            ("pow", _) => {
                let given = given!(self = number.argument(), exponent = y);
                self.like(y, "aten.pow.Scalar", given)
            }
            _ => {
                let number = self.number_beside(number.argument(), y)?;
                self.of_two(name, &number, y)
            }
        }
    }

    fn of_two(&mut self, name: &str, x: &Tensor, y: &Tensor) -> TensorResult {
        match name {
            "div" => self.divide(x, y),
            "min" => self.join("aten.minimum.default", x, y),
            "max" => self.join("aten.maximum.default", x, y),
            "pow" => self.raised(x, y),
            "add" | "sub" | "mul" | "remainder" => self.join(&format!("aten.{name}.Tensor"), x, y),
            "eq" | "ne" | "lt" | "le" | "gt" | "ge" => self.compare(name, x, y),
            "logical_and" | "logical_or" | "logical_xor" => self.logic(name, x, y),
            "matmul" => self.matmul(x, y),
            "mm" => self.mm(x, y),
            "bmm" => self.bmm(x, y),
            _ => self.join(&format!("aten.{name}.default"), x, y),
        }
    }
}

/// Checks the syntax of a formula.
#[cfg(test)]
pub(crate) fn is_formula(text: &str) -> Result<()> {
    Formula::parse(text).map(drop)
}
