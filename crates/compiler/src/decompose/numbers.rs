//! Expressions of symbolic sizes as calls that compute them.

use std::sync::Arc;

use coremill_pt2::{Argument, Expression, Function, Meta, Size, Symbolic};

use super::Place;
use super::call::Call;
use crate::error::{Refusal, refuse};

/// Nesting of an expression that is computed.
const MAX_DEPTH: usize = 32;

impl Call<'_> {
    /// The integer as an argument: the number if it is known, else what computes it.
    pub(crate) fn size_argument(&mut self, size: &Size) -> Result<Argument, Refusal> {
        match size {
            Size::Fixed(value) => Ok(Argument::Int(*value)),
            Size::Symbolic(symbolic) => self.computed(&symbolic.expression, MAX_DEPTH),
        }
    }

    /// The integers as an argument.
    pub(crate) fn sizes_argument(&mut self, sizes: &[Size]) -> Result<Argument, Refusal> {
        sizes
            .iter()
            .map(|size| self.size_argument(size))
            .collect::<Result<_, _>>()
            .map(Argument::List)
    }

    fn computed(&mut self, expression: &Expression, depth: usize) -> Result<Argument, Refusal> {
        let Some(depth) = depth.checked_sub(1) else {
            refuse!("a size is computed by more than {MAX_DEPTH} nested functions");
        };
        if let Expression::Integer(value) = expression {
            return Ok(Argument::Int(*value));
        }
        if let Some(place) = self.place(expression) {
            return self.at_place(place, expression);
        }
        match expression {
            Expression::Call(Function::Add, terms) => self.folded("add", terms, depth),
            Expression::Call(Function::Mul, factors) => self.product(factors, depth),
            Expression::Call(Function::Max, all) => self.folded("sym_max", all, depth),
            Expression::Call(Function::Min, all) => self.folded("sym_min", all, depth),
            Expression::Call(Function::FloorDiv | Function::CleanDiv, both) => {
                self.folded("floordiv", both, depth)
            }
            Expression::Call(Function::Mod | Function::PythonMod, both) => {
                self.folded("mod", both, depth)
            }
            Expression::Call(Function::CeilDiv, both) => match both.as_slice() {
                [above, below] => {
                    let above = self.computed(above, depth)?;
                    let below = self.computed(below, depth)?;
                    let above = self.prim("mul", vec![above, Argument::Int(-1)])?;
                    let quotient = self.prim("floordiv", vec![above, below])?;
                    self.prim("mul", vec![quotient, Argument::Int(-1)])
                }
                _ => refuse!("a quotient has {} operands", both.len()),
            },
            Expression::Call(Function::ModularIndexing, all) => match all.as_slice() {
                [above, below, modulus] => {
                    let above = self.computed(above, depth)?;
                    let below = self.computed(below, depth)?;
                    let modulus = self.computed(modulus, depth)?;
                    let quotient = self.prim("floordiv", vec![above, below])?;
                    self.prim("mod", vec![quotient, modulus])
                }
                _ => refuse!("a remainder has {} operands", all.len()),
            },
            Expression::Call(Function::Pow, both) => match both.as_slice() {
                [base, Expression::Integer(exponent @ 2..=8)] => {
                    let factors = vec![base.clone(); *exponent as usize];
                    self.folded("mul", &factors, depth)
                }
                _ => refuse!("a size is a power that is not known to be from 2 to 8"),
            },
            Expression::Call(Function::Identity, inner) => match inner.as_slice() {
                [inner] => self.computed(inner, depth),
                _ => refuse!("a size has {} values", inner.len()),
            },
            other => {
                let shown = other.display(&self.rewrite.symbols).to_string();
                let shown: String = shown.chars().take(80).collect();
                refuse!(
                    "the size `{shown}` is not known from the inputs of the call or of the program"
                )
            }
        }
    }

    /// Where the value is found without computing.
    fn place(&self, expression: &Expression) -> Option<Place> {
        for tensor in &self.at_hand {
            for (dimension, size) in tensor.sizes.iter().enumerate() {
                if matches!(size, Size::Symbolic(known) if known.expression == *expression) {
                    return Some(Place::Size(tensor.id, dimension));
                }
            }
        }
        let mut found = None;
        for argument in &self.node.arguments {
            argument.for_each_value(&mut |id| {
                if let Meta::Int(Size::Symbolic(known)) = &self.frame.value(id).meta
                    && known.expression == *expression
                {
                    found = Some(Place::Number(id));
                }
            });
        }
        match expression {
            Expression::Symbol(symbol) => found.or_else(|| self.frame.symbols.get(symbol).copied()),
            _ => found,
        }
    }

    fn at_place(&mut self, place: Place, expression: &Expression) -> Result<Argument, Refusal> {
        match place {
            Place::Number(id) => Ok(Argument::Value(id)),
            Place::Size(id, dimension) => {
                let size = Symbolic { expression: expression.clone(), hint: None };
                let given =
                    [("self", Argument::Value(id)), ("dim", Argument::Int(dimension as i64))];
                self.emit_number(
                    "aten.sym_size.int",
                    &given,
                    Meta::Int(Size::Symbolic(Arc::new(size))),
                )
            }
        }
    }

    /// A product; fractions in it divide in the end.
    fn product(&mut self, factors: &[Expression], depth: usize) -> Result<Argument, Refusal> {
        let mut above: Vec<Expression> = Vec::new();
        let mut below = 1i64;
        for factor in factors {
            match factor {
                Expression::Rational(numerator, denominator) => {
                    above.push(Expression::Integer(*numerator));
                    below = below.saturating_mul(*denominator);
                }
                factor => above.push(factor.clone()),
            }
        }
        let product = self.folded("mul", &above, depth)?;
        if below == 1 {
            return Ok(product);
        }
        self.prim("floordiv", vec![product, Argument::Int(below)])
    }

    fn folded(
        &mut self,
        function: &str,
        operands: &[Expression],
        depth: usize,
    ) -> Result<Argument, Refusal> {
        let mut folded: Option<Argument> = None;
        for operand in operands {
            let operand = self.computed(operand, depth)?;
            folded = Some(match folded {
                None => operand,
                Some(folded) => self.prim(function, vec![folded, operand])?,
            });
        }
        folded.ok_or_else(|| Refusal::new("a size is a function of nothing"))
    }

    /// Calls a function of numbers: `add`, `floordiv`; known operands give a known result where that is plain.
    pub(crate) fn prim(
        &mut self,
        function: &str,
        operands: Vec<Argument>,
    ) -> Result<Argument, Refusal> {
        if let [Argument::Int(left), Argument::Int(right)] = operands.as_slice() {
            let known = match function {
                "add" => left.checked_add(*right),
                "sub" => left.checked_sub(*right),
                "mul" => left.checked_mul(*right),
                "floordiv" if *right != 0 => Some(left.div_euclid(*right)).filter(|_| *right > 0),
                "sym_max" => Some(*left.max(right)),
                "sym_min" => Some(*left.min(right)),
                _ => None,
            };
            if let Some(known) = known {
                return Ok(Argument::Int(known));
            }
        }
        let names: &[&str] = if function == "sym_ite" { &["b", "t", "f"] } else { &["a", "b"] };
        let given: Vec<_> = names.iter().copied().zip(operands).collect();
        let meta = match function {
            "eq" | "gt" | "lt" | "ge" | "le" | "sym_not" => Meta::Bool(None),
            "truediv" | "sym_float" => Meta::Float(None),
            _ if given.iter().any(|(_, operand)| self.is_float_number(operand)) => {
                Meta::Float(None)
            }
            _ => Meta::Int(super::call::unknown()),
        };
        self.emit_number(&format!("executorch_prim.{function}.Scalar"), &given, meta)
    }

    pub(crate) fn is_float_number(&self, argument: &Argument) -> bool {
        match argument {
            Argument::Float(_) => true,
            Argument::Value(id) => matches!(self.frame.value(*id).meta, Meta::Float(_)),
            _ => false,
        }
    }
}
