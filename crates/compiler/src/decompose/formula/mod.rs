//! Formulas: what is computed element by element, as a book would write it, taken apart into calls.
//!
//! `self * tanh(softplus(self))` is all that a rule for `mish` has to say. Names stand for the call's arguments, or for
//! what a rule hands over by [`calc!`]; `is_huber = ...;` gives one to a term. What numbers alone decide is decided now, and
//! a term that is there twice is computed once.
//!
//! A function that is not listed in [`Call::function`] is torch's operator of that name, which keeps type and sizes.

mod parse;

use std::collections::HashMap;

use coremill_pt2::{Argument, ScalarType};

use self::parse::{Formula, Term};
use super::call::{Call, Results, Tensor, first};
use super::dtype::{is_float, is_half};
use super::words::Maybe;
use crate::error::{Refusal, refuse};

/// What a term stands for: a tensor, or a number that is known.
#[derive(Clone, Debug)]
pub(crate) enum Operand {
    Tensor(Tensor),
    Number(Number),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Number {
    Bool(bool),
    Int(i64),
    Float(f64),
}

impl From<&Tensor> for Operand {
    fn from(tensor: &Tensor) -> Operand {
        Operand::Tensor(tensor.clone())
    }
}

impl From<&&Tensor> for Operand {
    fn from(tensor: &&Tensor) -> Operand {
        Operand::Tensor((*tensor).clone())
    }
}

impl From<&f64> for Operand {
    fn from(number: &f64) -> Operand {
        Operand::Number(Number::Float(*number))
    }
}

impl From<&i64> for Operand {
    fn from(number: &i64) -> Operand {
        Operand::Number(Number::Int(*number))
    }
}

impl From<&bool> for Operand {
    fn from(truth: &bool) -> Operand {
        Operand::Number(Number::Bool(*truth))
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

    /// What a function makes of numbers.
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

/// The value of a formula whose names are arguments of the call, or variables that are named after it; an array of
/// values after `all`.
macro_rules! calc {
    (all $call:expr, $formula:expr $(, $name:ident)* $(,)?) => {
        $call.calculated_all(
            $formula,
            &[$((stringify!($name), crate::decompose::formula::Operand::from(&$name))),*],
        )
    };
    ($call:expr, $formula:expr $(, $name:ident)* $(,)?) => {
        $call.calculated(
            $formula,
            &[$((stringify!($name), crate::decompose::formula::Operand::from(&$name))),*],
        )
    };
}
pub(crate) use calc;

/// A formula on the way.
struct Evaluation<'f> {
    formula: &'f Formula<'f>,
    given: &'f [(&'f str, Operand)],
    known: HashMap<&'f Term<'f>, Operand>,
}

impl Call<'_> {
    /// What a formula says, as the type of the first result.
    pub(super) fn formula(&mut self, text: &str) -> Results {
        let found = self.calculated(text, &[])?;
        let dtype = self.result(0)?.dtype;
        let found = self.cast(&found, dtype)?;
        first(self, found)
    }

    /// The values of a formula with these names.
    pub(crate) fn calculated_all<const N: usize>(
        &mut self,
        formula: &str,
        given: &[(&str, Operand)],
    ) -> Result<[Tensor; N], Refusal> {
        let formula = Formula::parse(formula)?;
        let mut evaluation = Evaluation { formula: &formula, given, known: HashMap::new() };
        let mut values = Vec::with_capacity(N);
        for term in &formula.results {
            values.push(match self.term(&mut evaluation, term)? {
                Operand::Tensor(tensor) => tensor,
                Operand::Number(number) => {
                    let dtype = self.result(0)?.dtype;
                    self.full(Vec::new(), number.argument(), dtype)?
                }
            });
        }
        values.try_into().map_err(|_| Refusal::new(format!("a formula does not give {N} values")))
    }

    /// The value of a formula with these names.
    pub(crate) fn calculated(&mut self, formula: &str, given: &[(&str, Operand)]) -> Maybe {
        self.calculated_all(formula, given).map(|[value]| value)
    }

    fn term<'f>(
        &mut self,
        evaluation: &mut Evaluation<'f>,
        term: &'f Term<'f>,
    ) -> Result<Operand, Refusal> {
        if let Some(known) = evaluation.known.get(term) {
            return Ok(known.clone());
        }
        let found = match term {
            Term::Number(text) => self.literal(text)?,
            Term::Name(name) => {
                let formula = evaluation.formula;
                if let Some((_, given)) = evaluation.given.iter().find(|(own, _)| own == name) {
                    given.clone()
                } else if let Some((_, term)) = formula.names.iter().find(|(own, _)| own == name) {
                    self.term(evaluation, term)?
                } else {
                    self.named(name)?
                }
            }
            Term::Call("where", all) => self.choice(evaluation, all)?,
            Term::Call("given", all) => match all.as_slice() {
                [Term::Name(name)] => Operand::Number(Number::Bool(self.has(name))),
                _ => refuse!("`given` is asked of an argument's name"),
            },
            Term::Call(name, all) => {
                let mut operands = Vec::with_capacity(all.len());
                for term in all {
                    operands.push(self.term(evaluation, term)?);
                }
                self.function(name, &operands)?
            }
        };
        evaluation.known.insert(term, found.clone());
        Ok(found)
    }

    fn literal(&self, text: &str) -> Result<Operand, Refusal> {
        let plain = text.replace('_', "");
        let whole = plain.parse().map(Number::Int);
        match whole.or_else(|_| plain.parse().map(Number::Float)) {
            Ok(number) => Ok(Operand::Number(number)),
            Err(_) => refuse!("`{text}` is not a number"),
        }
    }

    /// A constant, or an argument of the call: tensors as the type of the result, if that has fractions.
    fn named(&mut self, name: &str) -> Result<Operand, Refusal> {
        let constant = match name {
            "pi" => Some(std::f64::consts::PI),
            "inf" => Some(f64::INFINITY),
            "nan" if !self.has(name) => Some(f64::NAN),
            _ => None,
        };
        if let Some(constant) = constant {
            return Ok(Operand::Number(Number::Float(constant)));
        }
        let argument = self.argument(name)?;
        if let Some(number) = Number::of(argument) {
            return Ok(Operand::Number(number));
        }
        let tensor = self.tensor_of(name, argument)?;
        let dtype = self.result(0)?.dtype;
        Ok(Operand::Tensor(if is_float(dtype) { self.cast(&tensor, dtype)? } else { tensor }))
    }

    /// `where(condition, a, b)`; of a condition that is known, only one of them is computed.
    fn choice<'f>(
        &mut self,
        evaluation: &mut Evaluation<'f>,
        all: &'f [Term<'f>],
    ) -> Result<Operand, Refusal> {
        let [condition, yes, no] = all else { refuse!("`where` takes three terms") };
        let condition = match self.term(evaluation, condition)? {
            Operand::Tensor(condition) => condition,
            Operand::Number(known) => {
                return self.term(evaluation, if known.truth() { yes } else { no });
            }
        };
        let (yes, no) = (self.term(evaluation, yes)?, self.term(evaluation, no)?);
        let like = [&yes, &no].into_iter().find_map(|operand| match operand {
            Operand::Tensor(tensor) => Some(tensor.clone()),
            Operand::Number(_) => None,
        });
        let side = |call: &mut Self, operand| match (operand, &like) {
            (Operand::Tensor(tensor), _) => Ok(tensor),
            (Operand::Number(number), Some(like)) => call.number_beside(number.argument(), like),
            (Operand::Number(number), None) => {
                let dtype = call.result(0)?.dtype;
                call.full(Vec::new(), number.argument(), dtype)
            }
        };
        let (yes, no) = (side(self, yes)?, side(self, no)?);
        Ok(Operand::Tensor(self.choose(&condition, &yes, &no)?))
    }

    fn function(&mut self, name: &str, operands: &[Operand]) -> Result<Operand, Refusal> {
        let numbers = operands.iter().map(|operand| match operand {
            Operand::Number(number) => Some(*number),
            Operand::Tensor(_) => None,
        });
        if let Some(numbers) = numbers.collect::<Option<Vec<_>>>()
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
            [Operand::Tensor(x)] => match name {
                "is_float" => return Ok(Operand::Number(Number::Bool(is_float(x.dtype)))),
                "is_half" => return Ok(Operand::Number(Number::Bool(is_half(x.dtype)))),
                "isnan" | "isinf" | "isfinite" | "signbit" | "logical_not" => self.test(name, x)?,
                "square" => self.multiply(x, x)?,
                "number" => self.cast(x, self.result(0)?.dtype)?,
                "reduced" => super::ops::reduced(self, x)?,
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
            _ => refuse!("`{name}` of {} such operands is not a function", operands.len()),
        };
        Ok(Operand::Tensor(found))
    }

    fn with_number(&mut self, name: &str, x: &Tensor, number: Number) -> Maybe {
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
            "sum" | "mean" | "amax" | "amin" => {
                let at = x.dimension(number.value() as i64)?;
                match name {
                    "sum" => self.sum(x, &[at], false),
                    "mean" => self.mean(x, &[at], false),
                    name => self.extreme(name, x, &[at], false),
                }
            }
            _ => {
                let number = self.number_beside(argument, x)?;
                self.of_two(name, x, &number)
            }
        }
    }

    fn number_with(&mut self, name: &str, number: Number, y: &Tensor) -> Maybe {
        match (name, number.value()) {
            ("add" | "mul" | "min" | "max" | "eq" | "ne", _) => self.with_number(name, y, number),
            ("sub", _) => self.with("rsub", y, number.argument()),
            ("div", 1.0) => self.map("reciprocal", y),
            ("lt", _) => self.with_number("gt", y, number),
            ("le", _) => self.with_number("ge", y, number),
            ("gt", _) => self.with_number("lt", y, number),
            ("ge", _) => self.with_number("le", y, number),
            ("pow", _) => {
                let given = [("self", number.argument()), ("exponent", y.argument())];
                self.emit("aten.pow.Scalar", &given, y.dtype, y.sizes.clone())
            }
            _ => {
                let number = self.number_beside(number.argument(), y)?;
                self.of_two(name, &number, y)
            }
        }
    }

    fn of_two(&mut self, name: &str, x: &Tensor, y: &Tensor) -> Maybe {
        match name {
            "div" => self.divide(x, y),
            "min" => self.join("aten.minimum.default", x, y),
            "max" => self.join("aten.maximum.default", x, y),
            "pow" => self.raised(x, y),
            "add" | "sub" | "mul" | "remainder" => self.join(&format!("aten.{name}.Tensor"), x, y),
            "eq" | "ne" | "lt" | "le" | "gt" | "ge" => self.compare(name, x, y),
            "logical_and" | "logical_or" | "logical_xor" => self.logic(name, x, y),
            _ => self.join(&format!("aten.{name}.default"), x, y),
        }
    }
}

/// Whether a text is a formula.
#[cfg(test)]
pub(crate) fn is_formula(text: &str) -> Result<(), Refusal> {
    Formula::parse(text).map(drop)
}
