//! Upper bounds of magnitudes, from the operations that compute a value.

use coremill_mil::infer::Scalar;
use coremill_mil::ir::Binding;
use coremill_mil::ops::OpKind;

use super::{Context, Subject};

/// Maximum number of operations that are followed from a value to its sources.
const MAX_DEPTH: usize = 8;

impl Context<'_> {
    /// An upper bound of the magnitude of each element that is bound to a parameter; `None` if unknown.
    pub(super) fn magnitude(&self, subject: Subject<'_>, parameter: &str) -> Option<f64> {
        self.magnitude_within(subject, parameter, MAX_DEPTH)
    }

    fn magnitude_within(&self, subject: Subject<'_>, parameter: &str, depth: usize) -> Option<f64> {
        if let Some(known) = self.known(subject, parameter) {
            let mut floats = known.elements.iter().map(Scalar::float);
            return floats.try_fold(0.0, |most: f64, value| Some(most.max(value?.abs())));
        }
        let depth = depth.checked_sub(1)?;
        let producer = self.producer(subject, parameter)?;
        let of = |parameter: &str| self.magnitude_within(producer, parameter, depth);
        match producer.kind {
            OpKind::Sigmoid
            | OpKind::SigmoidHard
            | OpKind::Softmax
            | OpKind::Softsign
            | OpKind::Tanh
            | OpKind::Erf
            | OpKind::Sin
            | OpKind::Cos
            | OpKind::L2Norm => Some(1.0),
            OpKind::Relu6 => Some(6.0),
            OpKind::Clip => Some(of("alpha")?.max(of("beta")?)),
            OpKind::Abs
            | OpKind::Cast
            | OpKind::ExpandDims
            | OpKind::Identity
            | OpKind::ReduceMax
            | OpKind::ReduceMean
            | OpKind::ReduceMin
            | OpKind::Relu
            | OpKind::Reshape
            | OpKind::SliceByIndex
            | OpKind::SliceBySize
            | OpKind::Squeeze
            | OpKind::Transpose => of("x"),
            OpKind::Square => of("x").map(|x| x * x),
            OpKind::Add | OpKind::Sub => Some(of("x")? + of("y")?),
            OpKind::Mul => Some(of("x")? * of("y")?),
            OpKind::Maximum | OpKind::Minimum => Some(of("x")?.max(of("y")?)),
            OpKind::RealDiv => self.divides_by_largest(producer).then_some(1.0),
            _ => None,
        }
    }

    /// Whether an operation divides a tensor by the largest magnitude of a group of its elements, or by more.
    fn divides_by_largest(&self, division: Subject<'_>) -> bool {
        let Some(Binding::Value(dividend)) = division.op.binding("x") else { return false };
        let is_largest = |subject: Subject<'_>, parameter: &str| {
            let Some(largest) = self.producer(subject, parameter) else { return false };
            let keeps = self.known(largest, "keep_dims");
            let keeps = keeps.is_some_and(|keeps| keeps.only() == Some(&Scalar::Bool(true)));
            let magnitudes = self.producer(largest, "x").filter(|found| found.kind == OpKind::Abs);
            largest.kind == OpKind::ReduceMax
                && keeps
                && magnitudes.is_some_and(|magnitudes| {
                    magnitudes.op.binding("x") == Some(&Binding::Value(*dividend))
                })
        };
        if is_largest(division, "y") {
            return true;
        }
        let Some(divisor) = self.producer(division, "y") else { return false };
        let is_positive = |parameter: &str| {
            let known = self.known(divisor, parameter);
            known.is_some_and(|known| {
                known.elements.iter().all(|value| value.float().is_some_and(|value| value >= 0.0))
            })
        };
        [("x", "y"), ("y", "x")].into_iter().any(|(one, other)| {
            is_largest(divisor, one)
                && match divisor.kind {
                    OpKind::Maximum => true,
                    OpKind::Add => is_positive(other),
                    _ => false,
                }
        })
    }
}
