//! Arithmetic with integers of which some are known only when the program runs.

use coremill_mil::ir::{Constant, Dim, Expr, ValueId};
use coremill_mil::ops::OpKind;

use super::builder::{Arg, Builder, int32};
use super::value::Int;
use crate::error::Refusal;

impl Builder {
    /// A scalar as an integer: known, if inference knows it.
    pub(crate) fn int_of(&self, value: ValueId) -> Int {
        let known = self.folded(value).and_then(|folded| folded.only()).and_then(|only| only.int());
        known.map_or(Int::Computed(value), Int::Known)
    }

    /// What inference knows of an integer.
    pub(crate) fn int_expr(&self, int: Int) -> Option<Expr> {
        match int {
            Int::Known(known) => Some(Expr::from(known)),
            Int::Computed(value) => self.folded(value)?.only()?.expr(),
        }
    }

    /// Whether both are the same for certain.
    pub(crate) fn same_ints(&self, left: Int, right: Int) -> bool {
        left == right
            || matches!((self.int_expr(left), self.int_expr(right)), (Some(l), Some(r)) if l == r)
    }

    /// Whether a dimension is that integer for certain.
    pub(crate) fn is_extent(&self, dim: &Dim, int: Int) -> bool {
        matches!((dim.expr(), self.int_expr(int)), (Some(dim), Some(int)) if dim == int)
    }

    pub(crate) fn add_ints(&mut self, left: Int, right: Int) -> Result<Int, Refusal> {
        match (left, right) {
            (Int::Known(left), Int::Known(right)) => known(left.checked_add(right)),
            (other, Int::Known(0)) | (Int::Known(0), other) => Ok(other),
            _ => self.computed(OpKind::Add, left, right),
        }
    }

    pub(crate) fn sub_ints(&mut self, left: Int, right: Int) -> Result<Int, Refusal> {
        match (left, right) {
            (Int::Known(left), Int::Known(right)) => known(left.checked_sub(right)),
            (left, Int::Known(0)) => Ok(left),
            _ if self.same_ints(left, right) => Ok(Int::Known(0)),
            _ => self.computed(OpKind::Sub, left, right),
        }
    }

    pub(crate) fn mul_ints(&mut self, left: Int, right: Int) -> Result<Int, Refusal> {
        match (left, right) {
            (Int::Known(left), Int::Known(right)) => known(left.checked_mul(right)),
            (other, Int::Known(1)) | (Int::Known(1), other) => Ok(other),
            (_, Int::Known(0)) | (Int::Known(0), _) => Ok(Int::Known(0)),
            _ => self.computed(OpKind::Mul, left, right),
        }
    }

    /// The quotient rounded towards −∞.
    pub(crate) fn floor_div_ints(&mut self, left: Int, right: Int) -> Result<Int, Refusal> {
        match (left, right) {
            (_, Int::Known(0)) => Err(Refusal::new("divides an integer by 0")),
            (Int::Known(left), Int::Known(right)) => known(floor_div(left, right)),
            (left, Int::Known(1)) => Ok(left),
            _ => self.computed(OpKind::FloorDiv, left, right),
        }
    }

    /// The quotient rounded towards +∞.
    pub(crate) fn ceil_div_ints(&mut self, left: Int, right: i64) -> Result<Int, Refusal> {
        let raised = self.add_ints(left, Int::Known(right - 1))?;
        self.floor_div_ints(raised, Int::Known(right))
    }

    /// What a division rounded towards −∞ leaves; it has the sign of the divisor.
    pub(crate) fn mod_ints(&mut self, left: Int, right: Int) -> Result<Int, Refusal> {
        match (left, right) {
            (_, Int::Known(0)) => Err(Refusal::new("divides an integer by 0")),
            (Int::Known(left), Int::Known(right)) => known(
                floor_div(left, right)
                    .and_then(|quotient| quotient.checked_mul(right))
                    .and_then(|multiple| left.checked_sub(multiple)),
            ),
            (_, Int::Known(1)) => Ok(Int::Known(0)),
            _ => self.computed(OpKind::Mod, left, right),
        }
    }

    pub(crate) fn min_ints(&mut self, left: Int, right: Int) -> Result<Int, Refusal> {
        match (left, right) {
            (Int::Known(left), Int::Known(right)) => Ok(Int::Known(left.min(right))),
            _ if self.same_ints(left, right) => Ok(left),
            _ => self.computed(OpKind::Minimum, left, right),
        }
    }

    pub(crate) fn max_ints(&mut self, left: Int, right: Int) -> Result<Int, Refusal> {
        match (left, right) {
            (Int::Known(left), Int::Known(right)) => Ok(Int::Known(left.max(right))),
            _ if self.same_ints(left, right) => Ok(left),
            (Int::Known(known), other) | (other, Int::Known(known))
                if self.is_at_least(other, known) =>
            {
                Ok(other)
            }
            _ => self.computed(OpKind::Maximum, left, right),
        }
    }

    /// Whether an integer is never below a bound, as far as can be told.
    pub(crate) fn is_at_least(&self, int: Int, bound: i64) -> bool {
        let lowest = self.int_expr(int).and_then(|expr| expr.lower_bound());
        lowest.is_some_and(|lowest| lowest >= bound)
    }

    /// The product of all.
    pub(crate) fn product(&mut self, ints: &[Int]) -> Result<Int, Refusal> {
        // Known factors first, so that one multiplication takes them all.
        let mut product = 1i64;
        for int in ints.iter().filter_map(|int| int.known()) {
            product = product.checked_mul(int).ok_or_else(too_large)?;
        }
        let mut product = Int::Known(product);
        for &int in ints.iter().filter(|int| int.known().is_none()) {
            product = self.mul_ints(product, int)?;
        }
        Ok(product)
    }

    fn computed(&mut self, kind: OpKind, left: Int, right: Int) -> Result<Int, Refusal> {
        let (left, right) = (scalar(left)?, scalar(right)?);
        let value = self.binary(kind, left, right)?;
        Ok(self.int_of(value))
    }
}

fn scalar(int: Int) -> Result<Arg, Refusal> {
    Ok(match int {
        Int::Known(known) => Constant::int32(int32(known)?).into(),
        Int::Computed(value) => value.into(),
    })
}

fn known(value: Option<i64>) -> Result<Int, Refusal> {
    value.map(Int::Known).ok_or_else(too_large)
}

fn too_large() -> Refusal {
    Refusal::new("an integer does not fit 64 bits")
}

fn floor_div(left: i64, right: i64) -> Option<i64> {
    let quotient = left.checked_div(right)?;
    Some(quotient - i64::from(left % right != 0 && (left < 0) != (right < 0)))
}
