//! Formulas in mathematical notation, compiled to MIL operations.
//!
//! The syntax is the same as in [`crate::decompose`]; functions have MIL's names. Numbers with a decimal point are
//! floats, others are integers.

use std::collections::HashMap;

use crate::decompose::formula::parse::{Formula, Term};
use crate::lower::prelude::*;

/// Evaluates a formula whose names are variables. `all` returns an array of values.
macro_rules! calc {
    (all $builder:expr, $formula:expr $(, $name:ident)* $(,)?) => {
        $builder.calculated_all(
            $formula,
            [$((stringify!($name), $crate::lower::builder::Arg::from($name.clone()))),*],
        )
    };
    ($builder:expr, $formula:expr $(, $name:ident)* $(,)?) => {
        $builder.calculated(
            $formula,
            [$((stringify!($name), $crate::lower::builder::Arg::from($name.clone()))),*],
        )
    };
}
pub(crate) use calc;

impl Builder {
    pub(crate) fn calculated<const N: usize>(
        &mut self,
        formula: &str,
        names: [(&str, Arg); N],
    ) -> ValueResult {
        let [value] = self.calculated_all(formula, names)?;
        Ok(value)
    }

    pub(crate) fn calculated_all<const N: usize, const R: usize>(
        &mut self,
        formula: &str,
        names: [(&str, Arg); N],
    ) -> Result<[coremill_mil::ir::ValueId; R]> {
        let Formula { names: given, results } = Formula::parse(formula)?;
        let mut names = HashMap::from(names);
        for (name, term) in &given {
            let value = self.term(term, &names)?;
            names.insert(name, value);
        }
        let mut values = Vec::with_capacity(R);
        for term in &results {
            let value = self.term(term, &names)?;
            values.push(self.bound_value(value)?);
        }
        let count = values.len();
        values.try_into().map_err(|_| LoweringError::new(format!("`{formula}` has {count} values")))
    }

    fn term(&mut self, term: &Term<'_>, names: &HashMap<&str, Arg>) -> Result<Arg> {
        let (function, terms) = match term {
            Term::Number(text) => return number(text, 1),
            Term::Name(name) => match names.get(name) {
                Some(value) => return Ok(value.clone()),
                None => refuse!("unknown name `{name}` in a formula"),
            },
            Term::Call(function, terms) => (*function, terms.as_slice()),
        };
        if let ("neg", [Term::Number(text)]) = (function, terms) {
            return number(text, -1);
        }
        let mut operands = Vec::with_capacity(terms.len());
        for term in terms {
            operands.push(self.term(term, names)?);
        }
        let value = match (function, operands.as_slice()) {
            ("where", [condition, yes, no]) => {
                let condition = self.bound_value(condition.clone())?;
                self.select(condition, yes.clone(), no.clone())?
            }
            ("log", [x]) => {
                self.emit(OpKind::Log, [("x", x.clone()), ("epsilon", 0.0_f32.into())])?
            }
            ("float" | "int", [x]) => {
                let x = self.bound_value(x.clone())?;
                self.cast(x, if function == "int" { DType::Int32 } else { DType::Fp32 })?
            }
            (function, [x]) => self.emit(kind(function)?, [("x", x.clone())])?,
            (function, [x, y]) => self.binary(kind(function)?, x.clone(), y.clone())?,
            (function, _) => refuse!("`{function}` of a formula has {} operands", operands.len()),
        };
        Ok(value.into())
    }
}

fn number(text: &str, sign: i8) -> Result<Arg> {
    let misfit = |_| LoweringError::new(format!("`{text}` of a formula is not a number"));
    Ok(match text.contains('.') {
        true => (f32::from(sign) * text.parse::<f32>().map_err(|_| misfit(()))?).into(),
        false => (i32::from(sign) * text.parse::<i32>().map_err(|_| misfit(()))?).into(),
    })
}

/// The MIL operation of a function or operator.
pub(super) fn kind(function: &str) -> Result<OpKind> {
    let name = match function {
        "eq" => "equal",
        "ne" => "not_equal",
        "lt" => "less",
        "le" => "less_equal",
        "gt" => "greater",
        "ge" => "greater_equal",
        "div" => "real_div",
        "remainder" => "mod",
        "max" => "maximum",
        "min" => "minimum",
        name => name,
    };
    OpKind::from_name(name).ok_or_else(|| LoweringError::new(format!("Core ML has no `{name}`")))
}
