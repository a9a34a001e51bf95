//! Special functions that there are no kernels for.

use coremill_pt2::{Argument, Meta, ScalarType, ValueId};

use crate::decompose::call::{Call, Results, Tensor, one};
use crate::decompose::dtype::is_half;
use crate::decompose::row::{Row, by};
use crate::error::{Refusal, refuse};
use crate::special::{
    Binary, Medium, ORDER_0, ORDER_1, Unary, bessel, digamma, entropy, inverse_erf,
    inverse_normal_share, log_gamma, log_normal_share, multivariate_log_gamma, normal_share,
    polygamma, zeta,
};

pub(crate) const ROWS: &[Row] = &[
    by(|call| mapped(call, inverse_erf), &["aten.erfinv.default", "aten.special_erfinv.default"]),
    by(|call| mapped(call, log_gamma), &["aten.lgamma.default", "aten.special_gammaln.default"]),
    by(several_gammas, &["aten.mvlgamma.default", "aten.special_multigammaln.default"]),
    by(
        |call| mapped(call, digamma),
        &["aten.digamma.default", "aten.special_digamma.default", "aten.special_psi.default"],
    ),
    by(derivative, &["aten.polygamma.default", "aten.special_polygamma.default"]),
    by(zeta_of_tensors, &["aten.special_zeta.default"]),
    by(
        |call| mapped(call, |call, x| bessel(call, x, &ORDER_0, false)),
        &["aten.i0.default", "aten.special_i0.default", "aten.special_modified_bessel_i0.default"],
    ),
    by(
        |call| mapped(call, |call, x| bessel(call, x, &ORDER_1, false)),
        &["aten.special_i1.default", "aten.special_modified_bessel_i1.default"],
    ),
    by(
        |call| mapped(call, |call, x| bessel(call, x, &ORDER_0, true)),
        &["aten.special_i0e.default"],
    ),
    by(
        |call| mapped(call, |call, x| bessel(call, x, &ORDER_1, true)),
        &["aten.special_i1e.default"],
    ),
    by(|call| mapped(call, entropy), &["aten.special_entr.default"]),
    by(|call| mapped(call, normal_share), &["aten.special_ndtr.default"]),
    by(|call| mapped(call, inverse_normal_share), &["aten.special_ndtri.default"]),
    by(|call| mapped(call, log_normal_share), &["aten.special_log_ndtr.default"]),
];

/// A tensor or a number.
#[derive(Clone, Copy)]
pub(crate) enum Operand {
    Tensor(ValueId),
    Number(f32),
}

impl From<ValueId> for Operand {
    fn from(tensor: ValueId) -> Operand {
        Operand::Tensor(tensor)
    }
}

impl From<f32> for Operand {
    fn from(number: f32) -> Operand {
        Operand::Number(number)
    }
}

impl Call<'_> {
    fn made_tensor(&self, id: ValueId) -> Result<Tensor, Refusal> {
        match &self.frame.value(id).meta {
            Meta::Tensor(meta) => Ok(Tensor { id, dtype: meta.dtype, sizes: meta.sizes.clone() }),
            _ => refuse!("a function is of something that is not a tensor"),
        }
    }

    /// The operand as a tensor, numbers of the type of the result.
    fn as_tensor(&mut self, operand: Operand) -> Result<Tensor, Refusal> {
        match operand {
            Operand::Tensor(id) => self.made_tensor(id),
            Operand::Number(number) => {
                let dtype = computed_in(self.result(0)?.dtype);
                self.full(Vec::new(), Argument::Float(f64::from(number)), dtype)
            }
        }
    }
}

/// Halves are too coarse for series.
fn computed_in(dtype: ScalarType) -> ScalarType {
    if is_half(dtype) { ScalarType::Float32 } else { dtype }
}

impl Medium for Call<'_> {
    type Value = ValueId;
    type Operand = Operand;

    fn binary(
        &mut self,
        kind: Binary,
        x: impl Into<Operand>,
        y: impl Into<Operand>,
    ) -> Result<ValueId, Refusal> {
        let (x, y) = (x.into(), y.into());
        let (function, is_test) = match kind {
            Binary::Add => ("add", false),
            Binary::Sub => ("sub", false),
            Binary::Mul => ("mul", false),
            Binary::RealDiv => ("div", false),
            Binary::Mod => ("remainder", false),
            Binary::Less => ("lt", true),
            Binary::Greater => ("gt", true),
            Binary::Equal => ("eq", true),
            Binary::Minimum => ("minimum", false),
            Binary::Maximum => ("maximum", false),
            Binary::Pow => ("pow", false),
        };
        let made = match (x, y) {
            (Operand::Tensor(x), Operand::Number(number)) => {
                let x = self.made_tensor(x)?;
                let number = Argument::Float(f64::from(number));
                match (kind, is_test) {
                    (_, true) => self.compare_number(function, &x, number)?,
                    (Binary::Minimum, _) => self.bounded(&x, Argument::None, number)?,
                    (Binary::Maximum, _) => self.bounded(&x, number, Argument::None)?,
                    (Binary::Pow, _) => self.power(&x, number)?,
                    _ => self.with(function, &x, number)?,
                }
            }
            (Operand::Number(number), Operand::Tensor(y)) if kind == Binary::Sub => {
                let y = self.made_tensor(y)?;
                self.with("rsub", &y, Argument::Float(f64::from(number)))?
            }
            (x, y) => {
                let (x, y) = (self.as_tensor(x)?, self.as_tensor(y)?);
                match (kind, is_test) {
                    (_, true) => self.compare(function, &x, &y)?,
                    (Binary::RealDiv, _) => self.divide(&x, &y)?,
                    (Binary::Minimum | Binary::Maximum, _) => {
                        self.join(&format!("aten.{function}.default"), &x, &y)?
                    }
                    (Binary::Pow, _) => self.raised(&x, &y)?,
                    _ => self.join(&format!("aten.{function}.Tensor"), &x, &y)?,
                }
            }
        };
        Ok(made.id)
    }

    fn unary(&mut self, kind: Unary, x: ValueId) -> Result<ValueId, Refusal> {
        let x = self.made_tensor(x)?;
        let function = match kind {
            Unary::Square => return Ok(self.multiply(&x, &x)?.id),
            Unary::Sqrt => "sqrt",
            Unary::Abs => "abs",
            Unary::Floor => "floor",
            Unary::Sin => "sin",
            Unary::Tan => "tan",
            Unary::Exp => "exp",
            Unary::Erf => "erf",
            Unary::Sign => "sign",
        };
        Ok(self.map(function, &x)?.id)
    }

    fn select(
        &mut self,
        condition: ValueId,
        a: impl Into<Operand>,
        b: impl Into<Operand>,
    ) -> Result<ValueId, Refusal> {
        let condition = self.made_tensor(condition)?;
        let (a, b) = (self.as_tensor(a.into())?, self.as_tensor(b.into())?);
        Ok(self.choose(&condition, &a, &b)?.id)
    }

    fn log(&mut self, x: ValueId) -> Result<ValueId, Refusal> {
        let x = self.made_tensor(x)?;
        Ok(self.map("log", &x)?.id)
    }

    fn rsqrt(&mut self, x: ValueId) -> Result<ValueId, Refusal> {
        let x = self.made_tensor(x)?;
        Ok(self.map("rsqrt", &x)?.id)
    }

    fn reciprocal(&mut self, x: ValueId) -> Result<ValueId, Refusal> {
        let x = self.made_tensor(x)?;
        Ok(self.map("reciprocal", &x)?.id)
    }

    fn keep_exact(&mut self) {
        self.frame.exact = true;
    }
}

impl Call<'_> {
    fn bounded(&mut self, x: &Tensor, low: Argument, high: Argument) -> Result<Tensor, Refusal> {
        let given = [("self", x.argument()), ("min", low), ("max", high)];
        self.emit("aten.clamp.default", &given, x.dtype, x.sizes.clone())
    }

    fn raised(&mut self, x: &Tensor, y: &Tensor) -> Result<Tensor, Refusal> {
        let Some(sizes) = crate::decompose::size::broadcast(&x.sizes, &y.sizes) else {
            refuse!("two operands do not broadcast");
        };
        let given = [("self", x.argument()), ("exponent", y.argument())];
        self.emit("aten.pow.Tensor_Tensor", &given, x.dtype, sizes)
    }
}

/// The function of the operand, as the type of the result.
fn mapped<'a>(
    call: &mut Call<'a>,
    f: impl Fn(&mut Call<'a>, ValueId) -> Result<ValueId, Refusal>,
) -> Results {
    let dtype = call.result(0)?.dtype;
    let x = call.tensor("self")?;
    let x = call.cast(&x, computed_in(dtype))?;
    let y = f(call, x.id)?;
    let y = call.made_tensor(y)?;
    one(call.cast(&y, dtype)?)
}

/// The modified Bessel function of order 0.
pub(super) fn bessel_0(call: &mut Call<'_>, x: &Tensor) -> Result<Tensor, Refusal> {
    let y = bessel(call, x.id, &ORDER_0, false)?;
    call.made_tensor(y)
}

fn several_gammas(call: &mut Call<'_>) -> Results {
    let p = call.int("p")?;
    mapped(call, |call, x| multivariate_log_gamma(call, x, p))
}

fn derivative(call: &mut Call<'_>) -> Results {
    let order = call.int("n")?;
    mapped(call, |call, x| polygamma(call, x, order))
}

fn zeta_of_tensors(call: &mut Call<'_>) -> Results {
    let dtype = call.result(0)?.dtype;
    let (s, q) = (call.tensor("self")?, call.tensor("other")?);
    let (s, q) = (call.cast(&s, computed_in(dtype))?, call.cast(&q, computed_in(dtype))?);
    let y = zeta(call, s.id.into(), q.id)?;
    let y = call.made_tensor(y)?;
    one(call.cast(&y, dtype)?)
}
