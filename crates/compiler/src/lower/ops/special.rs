//! Special functions that Core ML has no operations for.

use coremill_mil::ir::ValueId;
use coremill_mil::ops::OpKind;
use coremill_tensor::DType;

use super::unary::mapped;
use crate::error::Refusal;
use crate::lower::builder::{Arg, Builder};
use crate::lower::call::{Call, Results};
use crate::lower::table::{Row, all};
use crate::special::{
    Binary, Medium, ORDER_0, ORDER_1, Unary, bessel, digamma, entropy, inverse_erf,
    inverse_normal_share, log_gamma, log_normal_share, multivariate_log_gamma, normal_share,
    polygamma, zeta,
};

pub(crate) const ROWS: &[Row] = &[
    all("aten.erfinv", |call| mapped(call, inverse_erf)),
    all("aten.special_erfinv", |call| mapped(call, inverse_erf)),
    all("aten.lgamma", |call| mapped(call, log_gamma)),
    all("aten.special_gammaln", |call| mapped(call, log_gamma)),
    all("aten.mvlgamma", several_gammas),
    all("aten.special_multigammaln", several_gammas),
    all("aten.digamma", |call| mapped(call, digamma)),
    all("aten.special_digamma", |call| mapped(call, digamma)),
    all("aten.special_psi", |call| mapped(call, digamma)),
    all("aten.polygamma", derivative),
    all("aten.special_polygamma", derivative),
    all("aten.special_zeta", zeta_of_tensors),
    all("aten.special_modified_bessel_i0", |call| {
        mapped(call, |b, x| bessel(b, x, &ORDER_0, false))
    }),
    all("aten.special_modified_bessel_i1", |call| {
        mapped(call, |b, x| bessel(b, x, &ORDER_1, false))
    }),
    all("aten.special_entr", |call| mapped(call, entropy)),
    all("aten.special_ndtr", |call| mapped(call, normal_share)),
    all("aten.special_ndtri", |call| mapped(call, inverse_normal_share)),
    all("aten.special_log_ndtr", |call| mapped(call, log_normal_share)),
    all("aten.i0", |call| mapped(call, |b, x| bessel(b, x, &ORDER_0, false))),
    all("aten.special_i0", |call| mapped(call, |b, x| bessel(b, x, &ORDER_0, false))),
    all("aten.special_i0e", |call| mapped(call, |b, x| bessel(b, x, &ORDER_0, true))),
    all("aten.special_i1", |call| mapped(call, |b, x| bessel(b, x, &ORDER_1, false))),
    all("aten.special_i1e", |call| mapped(call, |b, x| bessel(b, x, &ORDER_1, true))),
];

impl Medium for Builder {
    type Value = ValueId;
    type Operand = Arg;

    fn binary(
        &mut self,
        kind: Binary,
        x: impl Into<Arg>,
        y: impl Into<Arg>,
    ) -> Result<ValueId, Refusal> {
        let kind = match kind {
            Binary::Add => OpKind::Add,
            Binary::Sub => OpKind::Sub,
            Binary::Mul => OpKind::Mul,
            Binary::RealDiv => OpKind::RealDiv,
            Binary::Mod => OpKind::Mod,
            Binary::Pow => OpKind::Pow,
            Binary::Minimum => OpKind::Minimum,
            Binary::Maximum => OpKind::Maximum,
            Binary::Less => OpKind::Less,
            Binary::Greater => OpKind::Greater,
            Binary::Equal => OpKind::Equal,
        };
        Builder::binary(self, kind, x, y)
    }

    fn unary(&mut self, kind: Unary, x: ValueId) -> Result<ValueId, Refusal> {
        let kind = match kind {
            Unary::Abs => OpKind::Abs,
            Unary::Erf => OpKind::Erf,
            Unary::Exp => OpKind::Exp,
            Unary::Floor => OpKind::Floor,
            Unary::Sign => OpKind::Sign,
            Unary::Sin => OpKind::Sin,
            Unary::Sqrt => OpKind::Sqrt,
            Unary::Square => OpKind::Square,
            Unary::Tan => OpKind::Tan,
        };
        Builder::unary(self, kind, x)
    }

    fn select(
        &mut self,
        condition: ValueId,
        a: impl Into<Arg>,
        b: impl Into<Arg>,
    ) -> Result<ValueId, Refusal> {
        Builder::select(self, condition, a, b)
    }

    fn log(&mut self, x: ValueId) -> Result<ValueId, Refusal> {
        Builder::log(self, x, 0.0)
    }

    fn rsqrt(&mut self, x: ValueId) -> Result<ValueId, Refusal> {
        Builder::rsqrt(self, x)
    }

    fn reciprocal(&mut self, x: ValueId) -> Result<ValueId, Refusal> {
        Builder::reciprocal(self, x)
    }

    fn keep_exact(&mut self) {
        self.exact = true;
    }
}

fn several_gammas(call: &mut Call<'_, '_>) -> Results {
    let p = call.known_int("p")?;
    mapped(call, |builder, x| multivariate_log_gamma(builder, x, p))
}

fn zeta_of_tensors(call: &mut Call<'_, '_>) -> Results {
    let (s, q) = (call.operand("self")?, call.operand("other")?);
    let s = call.operand_in(s, DType::Fp32)?;
    let q = call.operand_value(q, DType::Fp32)?;
    let y = zeta::<Builder>(call, s, q)?;
    call.give(y)
}

fn derivative(call: &mut Call<'_, '_>) -> Results {
    let order = call.known_int("n")?;
    mapped(call, |builder, x| polygamma(builder, x, order))
}
