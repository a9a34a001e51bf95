//! Arithmetic with integers that are constant or computed at run time.

use coremill_mil::ir::{Dim, Expr, ValueId};
use coremill_mil::ops::OpKind;

use super::builder::{Arg, Builder, int32};
use super::value::Int;
use crate::error::{LoweringError, Result, refuse};

impl Builder {
    /// A scalar as an integer; constant if inference knows it.
    pub(crate) fn int_of(&self, value: ValueId) -> Int {
        let known = self.folded(value).and_then(|folded| folded.only()).and_then(|only| only.int());
        known.map_or(Int::Computed(value), Int::Known)
    }

    /// Symbolic value of an integer, from inference.
    pub(crate) fn int_expr(&self, int: Int) -> Option<Expr> {
        match int {
            Int::Known(known) => Some(Expr::from(known)),
            Int::Computed(value) => self.folded(value)?.only()?.expr(),
        }
    }

    /// Whether two integers are known to be equal.
    pub(crate) fn same_ints(&self, left: Int, right: Int) -> bool {
        left == right
            || matches!((self.int_expr(left), self.int_expr(right)), (Some(l), Some(r)) if l == r)
    }

    /// Whether a dimension is known to equal an integer.
    pub(crate) fn is_extent(&self, dim: &Dim, int: Int) -> bool {
        matches!((dim.expr(), self.int_expr(int)), (Some(dim), Some(int)) if dim == int)
    }

    /// `left op right`. Quotients are rounded towards −∞; remainders have the sign of the divisor.
    pub(crate) fn int_op(&mut self, kind: OpKind, left: Int, right: Int) -> Result<Int> {
        use super::value::Scalar::Known;
        use OpKind::{Add, FloorDiv, Maximum, Minimum, Mod, Mul, Sub};
        Ok(match (kind, left, right) {
            (FloorDiv | Mod, _, Known(0)) => refuse!("divides an integer by 0"),
            (_, Known(left), Known(right)) => {
                Known(known(kind, left, right).ok_or_else(too_large)?)
            }
            (Add | Sub, other, Known(0))
            | (Add, Known(0), other)
            | (Mul | FloorDiv, other, Known(1))
            | (Mul, Known(1), other) => other,
            (Mul, _, Known(0)) | (Mul, Known(0), _) | (Mod, _, Known(1)) => Known(0),
            (Sub, ..) if self.same_ints(left, right) => Known(0),
            (Minimum | Maximum, ..) if self.same_ints(left, right) => left,
            (Maximum, Known(known), other) | (Maximum, other, Known(known))
                if self.is_at_least(other, known) =>
            {
                other
            }
            _ => {
                let value = self.binary(kind, scalar(left)?, scalar(right)?)?;
                self.int_of(value)
            }
        })
    }

    pub(crate) fn add_ints(&mut self, left: Int, right: Int) -> Result<Int> {
        self.int_op(OpKind::Add, left, right)
    }

    pub(crate) fn sub_ints(&mut self, left: Int, right: Int) -> Result<Int> {
        self.int_op(OpKind::Sub, left, right)
    }

    pub(crate) fn mul_ints(&mut self, left: Int, right: Int) -> Result<Int> {
        self.int_op(OpKind::Mul, left, right)
    }

    /// Quotient rounded towards −∞.
    pub(crate) fn floor_div_ints(&mut self, left: Int, right: Int) -> Result<Int> {
        self.int_op(OpKind::FloorDiv, left, right)
    }

    /// Quotient rounded towards +∞.
    pub(crate) fn ceil_div_ints(&mut self, left: Int, right: i64) -> Result<Int> {
        let raised = self.add_ints(left, Int::Known(right - 1))?;
        self.floor_div_ints(raised, Int::Known(right))
    }

    /// Whether an integer is known to be at least `bound`.
    pub(crate) fn is_at_least(&self, int: Int, bound: i64) -> bool {
        let lowest = self.int_expr(int).and_then(|expr| expr.lower_bound());
        lowest.is_some_and(|lowest| lowest >= bound)
    }

    /// Product of integers.
    pub(crate) fn product(&mut self, ints: &[Int]) -> Result<Int> {
        // Constant factors first, so that a single multiplication applies them.
        let (known, computed): (Vec<Int>, _) = ints.iter().partition(|int| int.known().is_some());
        let mut product = Int::Known(1);
        for int in known.into_iter().chain(computed) {
            product = self.mul_ints(product, int)?;
        }
        Ok(product)
    }
}

/// An integer as an operand.
pub(crate) fn scalar(int: Int) -> Result<Arg> {
    Ok(match int {
        Int::Known(known) => int32(known)?.into(),
        Int::Computed(value) => value.into(),
    })
}

fn known(kind: OpKind, left: i64, right: i64) -> Option<i64> {
    let floor_div = || {
        let quotient = left.checked_div(right)?;
        Some(quotient - i64::from(left % right != 0 && (left < 0) != (right < 0)))
    };
    match kind {
        OpKind::Add => left.checked_add(right),
        OpKind::Sub => left.checked_sub(right),
        OpKind::Mul => left.checked_mul(right),
        OpKind::FloorDiv => floor_div(),
        OpKind::Mod => left.checked_sub(floor_div()?.checked_mul(right)?),
        OpKind::Minimum => Some(left.min(right)),
        OpKind::Maximum => Some(left.max(right)),
        _ => None,
    }
}

fn too_large() -> LoweringError {
    LoweringError::new("an integer does not fit in 64 bits")
}
