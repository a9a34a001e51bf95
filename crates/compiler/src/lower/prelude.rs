//! Imports shared by all lowerings.

pub(crate) use coremill_mil::ir::{Binding, Constant, Dim, Opset, ValueId};
pub(crate) use coremill_mil::ops::OpKind;
pub(crate) use coremill_pt2::ScalarType;
pub(crate) use coremill_tensor::DType;

pub(crate) use super::builder::{Arg, Builder, ValueResult, emit, int32, operation};
pub(crate) use super::call::{Call, Results};
pub(crate) use super::dtype::{core_dtype, is_float};
pub(crate) use super::formula::calc;
pub(crate) use super::layout::{Axes, Range, places};
pub(crate) use super::row::{Row, number, several, tensor};
pub(crate) use super::value::{Int, LoweredValue, Number, Real, Truth};
pub(crate) use crate::bounds::{
    CheckedIndex, axis_from_end, checked, checked_numel, product, take,
};
pub(crate) use crate::decompose::call::position;
pub(crate) use crate::error::{LoweringError, Result, refuse};
