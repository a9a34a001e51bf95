//! The interface of reference kernels: arguments by name, with the defaults of the operation table.

use std::ops::Range;

use coremill_mil::ir::Opset;
use coremill_mil::ops::{DefaultValue, OpKind, OpRow};
use coremill_tensor::DType;

use crate::arithmetic::Arithmetic;
use crate::array::{Array, ElementsView, View, int_range};
use crate::error::{Error, Result, fail};
use crate::limits::Limits;

/// Result of a reference kernel: one tensor per output.
pub type Results = Result<Vec<Array>>;

/// One call of an operation.
pub struct Call<'a> {
    /// The operation's definition in the opset of the function.
    pub row: &'static OpRow,
    /// Parameter names, with the range of their tensors in `operands`. Parameters that take their
    /// default are absent.
    pub parameters: &'a [(String, Range<usize>)],
    /// Bound tensors.
    pub operands: &'a [View<'a>],
    /// Element type of each output; `string` for outputs that are not tensors.
    pub dtypes: &'a [DType],
    /// Limits of the run.
    pub limits: &'a Limits,
    /// Seed of random operations that have none. It differs between runs.
    pub seed: u64,
    /// Called with the range of operands that the kernel reads.
    pub note: Option<&'a dyn Fn(Range<usize>)>,
    /// Arithmetic of products and functions.
    pub arithmetic: Arithmetic<'a>,
}

impl<'a> Call<'a> {
    /// The operation.
    pub fn kind(&self) -> OpKind {
        self.row.kind
    }

    /// The opset that introduced this definition.
    pub fn since(&self) -> Opset {
        self.row.since
    }

    /// All tensors bound to a parameter, empty if there are none.
    pub fn all(&self, name: &str) -> &'a [View<'a>] {
        let Some(range) = self.bound(name) else { return &[] };
        if let Some(note) = self.note {
            note(range.clone());
        }
        &self.operands[range.clone()]
    }

    fn bound(&self, name: &str) -> Option<&'a Range<usize>> {
        let found = self.parameters.iter().find(|(parameter, _)| parameter == name);
        found.map(|(_, range)| range)
    }

    /// The tensor bound to a parameter, `None` if unbound.
    pub fn optional(&self, name: &str) -> Option<View<'a>> {
        self.all(name).first().copied()
    }

    /// Returns true if a tensor is bound to a parameter.
    pub fn has(&self, name: &str) -> bool {
        self.bound(name).is_some_and(|range| !range.is_empty())
    }

    /// The tensor bound to a required parameter.
    pub fn tensor(&self, name: &str) -> Result<View<'a>> {
        match self.optional(name) {
            Some(view) => Ok(view),
            None => fail!("`{name}` is required, but nothing is bound to it"),
        }
    }

    /// The elements of a required float tensor.
    pub fn floats(&self, name: &str) -> Result<&'a [f32]> {
        self.tensor(name)?.floats().map_err(|error| of_parameter(name, &error))
    }

    /// The elements of a float tensor, `None` if unbound.
    pub fn optional_floats(&self, name: &str) -> Result<Option<&'a [f32]>> {
        if self.has(name) { self.floats(name).map(Some) } else { Ok(None) }
    }

    /// An integer parameter: the bound value or the default.
    pub fn int(&self, name: &str) -> Result<i32> {
        match (self.optional(name), self.default(name)) {
            (Some(view), _) => match view.ints().map_err(|error| of_parameter(name, &error))? {
                [value] => Ok(*value),
                values => fail!("`{name}` expects one integer, found {}", values.len()),
            },
            (None, DefaultValue::Int(value)) => Ok(value),
            (None, _) => fail!("`{name}` expects one integer, but nothing is bound to it"),
        }
    }

    /// An integer parameter, `None` if unbound.
    pub fn optional_int(&self, name: &str) -> Result<Option<i32>> {
        if self.has(name) { self.int(name).map(Some) } else { Ok(None) }
    }

    /// A parameter that is a list of integers: the bound value or the default. Some defaults depend
    /// on `spatial`, the number of spatial dimensions.
    pub fn ints(&self, name: &str, spatial: usize) -> Result<Vec<i32>> {
        match (self.optional(name), self.default(name)) {
            (Some(view), _) => {
                Ok(view.ints().map_err(|error| of_parameter(name, &error))?.to_vec())
            }
            (None, DefaultValue::Ints(values)) => Ok(values.to_vec()),
            (None, DefaultValue::PerSpatialDim { value, times }) => {
                Ok(vec![value; spatial * times as usize])
            }
            (None, _) => fail!("`{name}` expects integers, but nothing is bound to it"),
        }
    }

    /// A parameter that is a list of integers, `None` if unbound.
    pub fn optional_ints(&self, name: &str) -> Result<Option<Vec<i32>>> {
        if self.has(name) { self.ints(name, 0).map(Some) } else { Ok(None) }
    }

    /// A `bool` parameter: the bound value or the default.
    pub fn bool(&self, name: &str) -> Result<bool> {
        match (self.optional(name), self.default(name)) {
            (Some(_), _) => self.int(name).map(|value| value != 0),
            (None, DefaultValue::Bool(value)) => Ok(value),
            (None, _) => fail!("`{name}` expects one bool, but nothing is bound to it"),
        }
    }

    /// A parameter that is a list of `bool`s; `count` times false if unbound.
    pub fn bools(&self, name: &str, count: usize) -> Result<Vec<bool>> {
        match self.optional_ints(name)? {
            Some(values) => Ok(values.into_iter().map(|value| value != 0).collect()),
            None => Ok(vec![false; count]),
        }
    }

    /// A number, bound or by default, as `f32`.
    pub fn float(&self, name: &str) -> Result<f32> {
        if let Some(view) = self.optional(name) {
            return match view.elements {
                ElementsView::Floats([value]) => Ok(*value),
                ElementsView::Ints([value]) => Ok(*value as f32),
                _ => fail!("`{name}` expects one number, found {} elements", view.len()),
            };
        }
        match self.default(name) {
            DefaultValue::Float(value) => Ok(value),
            DefaultValue::Int(value) => Ok(value as f32),
            DefaultValue::FloatByType { fp16, fp32 } => {
                let computes_in_fp16 = self.dtypes.first() == Some(&DType::Fp16);
                Ok(if computes_in_fp16 { fp16 } else { fp32 })
            }
            _ => fail!("`{name}` expects one number, but nothing is bound to it"),
        }
    }

    /// A number, `None` if unbound.
    pub fn optional_float(&self, name: &str) -> Result<Option<f32>> {
        if self.has(name) { self.float(name).map(Some) } else { Ok(None) }
    }

    /// A string parameter: the bound value or the default.
    pub fn text(&self, name: &str) -> Result<&'a str> {
        if let Some(view) = self.optional(name) {
            return match view.elements {
                ElementsView::Texts([text]) => Ok(text),
                _ => fail!("`{name}` expects one string, found `{}`", view.dtype),
            };
        }
        match self.default(name) {
            DefaultValue::Text(text) => Ok(text),
            _ => fail!("`{name}` expects one string, but nothing is bound to it"),
        }
    }

    /// An axis parameter, in `0..rank`. The bound value may be negative.
    pub fn axis(&self, name: &str, rank: usize) -> Result<usize> {
        normalize_axis(self.int(name)?, rank).map_err(|error| of_parameter(name, &error))
    }

    /// A parameter that is a list of axes, in `0..rank`. The bound values may be negative.
    pub fn axes(&self, name: &str, rank: usize) -> Result<Vec<usize>> {
        let axes = self.ints(name, 0)?.into_iter();
        axes.map(|axis| normalize_axis(axis, rank))
            .collect::<Result<_>>()
            .map_err(|error| of_parameter(name, &error))
    }

    /// A parameter that is a list of axes, in `0..rank`; all axes if unbound.
    pub fn axes_or_all(&self, name: &str, rank: usize) -> Result<Vec<usize>> {
        if self.has(name) { self.axes(name, rank) } else { Ok((0..rank).collect()) }
    }

    /// The element type of the first output.
    pub fn dtype(&self) -> DType {
        self.dtypes.first().copied().unwrap_or(DType::Fp32)
    }

    /// Number of elements of a shape. Fails if it exceeds the limit on tensors.
    pub fn count(&self, shape: &[usize]) -> Result<usize> {
        count_within(shape, self.limits)
    }

    /// A single output of floats.
    pub fn give_floats(&self, shape: impl Into<Vec<usize>>, floats: Vec<f32>) -> Results {
        Ok(vec![Array::floats(self.dtype(), shape, floats)])
    }

    /// A single output of integers or bools.
    pub fn give_ints(&self, shape: impl Into<Vec<usize>>, ints: Vec<i32>) -> Results {
        Ok(vec![Array::ints(self.dtype(), shape, ints)])
    }

    fn default(&self, name: &str) -> DefaultValue {
        self.row.parameter(name).map_or(DefaultValue::Absent, |parameter| parameter.default)
    }
}

impl<'a> View<'a> {
    /// The elements of a float tensor. The error names the type found.
    pub fn floats(&self) -> Result<&'a [f32]> {
        match self.elements {
            ElementsView::Floats(floats) => Ok(floats),
            _ => fail!("expects floats, found `{}`", self.dtype),
        }
    }

    /// The elements of an integer or bool tensor. The error names the type found.
    pub fn ints(&self) -> Result<&'a [i32]> {
        match self.elements {
            ElementsView::Ints(ints) => Ok(ints),
            _ => fail!("expects integers, found `{}`", self.dtype),
        }
    }
}

/// Number of elements of a shape. Fails if it exceeds the limit on tensors. Dimensions of size 0
/// count as 1 for the limit, since strides and parts of the shape are computed, too.
pub fn count_within(shape: &[usize], limits: &Limits) -> Result<usize> {
    let most = shape.iter().try_fold(1usize, |count, &extent| count.checked_mul(extent.max(1)));
    match most {
        Some(most) if most <= limits.elements => Ok(if shape.contains(&0) { 0 } else { most }),
        _ => Err(Error::limit(format!(
            "the result has shape {shape:?}; tensors are limited to {} elements",
            limits.elements
        ))),
    }
}

/// Converts an axis that may be negative to one in `0..rank`.
pub fn normalize_axis(axis: i32, rank: usize) -> Result<usize> {
    let shifted = if axis < 0 { i64::from(axis) + rank as i64 } else { i64::from(axis) };
    if (0..rank as i64).contains(&shifted) {
        Ok(shifted as usize)
    } else {
        fail!("axis {axis} is outside a tensor of rank {rank}")
    }
}

/// Wraps an integer to the range of its type, as two's complement does.
pub fn wrap_int(dtype: DType, value: i64) -> i32 {
    match dtype {
        DType::Bool => i32::from(value != 0),
        DType::Int8 => i32::from(value as i8),
        DType::UInt8 => i32::from(value as u8),
        DType::Int16 => i32::from(value as i16),
        DType::UInt16 => i32::from(value as u16),
        _ => value as i32,
    }
}

/// Converts a number to the nearest integer of a type. NaN becomes 0.
pub fn saturate_int(dtype: DType, value: f64) -> i32 {
    debug_assert!(!dtype.is_float());
    let (low, high) = int_range(dtype).unwrap_or((i32::MIN, i32::MAX));
    (value as i32).clamp(low, high)
}

fn of_parameter(name: &str, error: &Error) -> Error {
    Error::new(format!("`{name}`: {error}"))
}
