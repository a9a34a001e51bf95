//! Emits calls that compute symbolic sizes.

use std::sync::Arc;

use coremill_pt2::{Argument, Expression, Function, Meta, Size, Symbolic};

use super::Place;
use super::call::{Call, given};
use crate::error::{Result, refuse};

/// Maximum nesting of an expression.
const MAX_DEPTH: usize = 32;

impl Call<'_> {
    /// A size as an argument: a constant, or the value that computes it.
    pub(crate) fn size_argument(&mut self, size: &Size) -> Result<Argument> {
        match size {
            Size::Fixed(value) => Ok(Argument::Int(*value)),
            Size::Symbolic(symbolic) => self.computed(&symbolic.expression, MAX_DEPTH),
        }
    }

    /// Sizes as a list argument.
    pub(crate) fn sizes_argument(&mut self, sizes: &[Size]) -> Result<Argument> {
        let sizes = sizes.iter().map(|size| self.size_argument(size));
        sizes.collect::<Result<_, _>>().map(Argument::List)
    }

    fn computed(&mut self, expression: &Expression, depth: usize) -> Result<Argument> {
        let Some(depth) = depth.checked_sub(1) else {
            refuse!("the expression of a size is nested more than {MAX_DEPTH} deep");
        };
        if let Expression::Integer(value) = expression {
            return Ok(Argument::Int(*value));
        }
        if let Some(place) = self.place(expression) {
            return self.at_place(place, expression);
        }
        let (function, operands) = match expression {
            Expression::Call(function, operands) => (Some(function), operands.as_slice()),
            _ => (None, &[][..]),
        };
        match (function, operands) {
            (Some(Function::Add), terms) => self.folded("add", terms, depth),
            (Some(Function::Mul), factors) => self.product(factors, depth),
            (Some(Function::Max), all) => self.folded("sym_max", all, depth),
            (Some(Function::Min), all) => self.folded("sym_min", all, depth),
            (Some(Function::FloorDiv | Function::CleanDiv), both) => {
                self.folded("floordiv", both, depth)
            }
            (Some(Function::Mod | Function::PythonMod), both) => self.folded("mod", both, depth),
            (Some(Function::CeilDiv), [above, below]) => {
                let (above, below) = (self.computed(above, depth)?, self.computed(below, depth)?);
                let above = self.prim("mul", vec![above, Argument::Int(-1)])?;
                let quotient = self.prim("floordiv", vec![above, below])?;
                self.prim("mul", vec![quotient, Argument::Int(-1)])
            }
            (Some(Function::ModularIndexing), [above, below, modulus]) => {
                let (above, below) = (self.computed(above, depth)?, self.computed(below, depth)?);
                let modulus = self.computed(modulus, depth)?;
                let quotient = self.prim("floordiv", vec![above, below])?;
                self.prim("mod", vec![quotient, modulus])
            }
            (Some(Function::Pow), [base, Expression::Integer(exponent @ 2..=8)]) => {
                self.folded("mul", &vec![base.clone(); *exponent as usize], depth)
            }
            (Some(Function::Identity), [inner]) => self.computed(inner, depth),
            _ => {
                let shown = expression.display(&self.rewrite.symbols).to_string();
                let shown: String = shown.chars().take(80).collect();
                refuse!(
                    "the size `{shown}` cannot be computed from the inputs of the call or of the program"
                )
            }
        }
    }

    /// Finds an existing value of the expression.
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

    fn at_place(&mut self, place: Place, expression: &Expression) -> Result<Argument> {
        match place {
            Place::Number(id) => Ok(Argument::Value(id)),
            Place::Size(id, dimension) => {
                let size = Symbolic { expression: expression.clone(), hint: None };
                let size = Meta::Int(Size::Symbolic(Arc::new(size)));
                let given = given!(self = Argument::Value(id), dim = dimension);
                self.emit_number("aten.sym_size.int", given, size)
            }
        }
    }

    /// Emits a product. Denominators of rational factors are divided out last.
    fn product(&mut self, factors: &[Expression], depth: usize) -> Result<Argument> {
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
    ) -> Result<Argument> {
        let [first, rest @ ..] = operands else {
            refuse!("the expression of a size has no operands")
        };
        let mut folded = self.computed(first, depth)?;
        for operand in rest {
            let operand = self.computed(operand, depth)?;
            folded = self.prim(function, vec![folded, operand])?;
        }
        Ok(folded)
    }

    /// Emits a function of numbers such as `add` or `floordiv`, with constant folding of simple cases.
    pub(crate) fn prim(&mut self, function: &str, operands: Vec<Argument>) -> Result<Argument> {
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
