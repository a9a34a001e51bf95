//! Shorthands with the names of numpy and torch that append several MIL operations, and Rust's operators.

use std::ops::{Add, Bound, Div, Mul, Neg, RangeBounds, Rem, Sub};
use std::panic::Location;

use coremill_mil::ir::Dim;
use coremill_mil::ops::OpKind;

use crate::arg::{Arg, Ints};
use crate::call::Call;
use crate::graph::Graph;
use crate::ops;
use crate::tensor::{Tensor, format_dims};

impl<'g> Tensor<'g> {
    /// Matrix product with the transpose of `other`, as in a linear layer.
    #[track_caller]
    pub fn matmul_t(self, other: impl Into<Arg<'g>>) -> Tensor<'g> {
        self.matmul(other, ops::Matmul::new().transpose_y(true))
    }

    /// The matrix product.
    #[track_caller]
    pub fn dot(self, other: impl Into<Arg<'g>>) -> Tensor<'g> {
        self.matmul(other, ops::Matmul::new())
    }

    /// Softmax along an axis.
    #[track_caller]
    pub fn softmax_on(self, axis: i32) -> Tensor<'g> {
        self.softmax(ops::Softmax::new().axis(axis))
    }

    /// Mean over axes. With `keep_dims` they remain with size 1.
    #[track_caller]
    pub fn mean(self, axes: impl Into<Ints>, keep_dims: bool) -> Tensor<'g> {
        self.reduce_mean(ops::ReduceMean::new().axes(vector(axes.into())).keep_dims(keep_dims))
    }

    /// Sum over axes. With `keep_dims` they remain with size 1.
    #[track_caller]
    pub fn sum(self, axes: impl Into<Ints>, keep_dims: bool) -> Tensor<'g> {
        self.reduce_sum(ops::ReduceSum::new().axes(vector(axes.into())).keep_dims(keep_dims))
    }

    /// Maximum over axes. With `keep_dims` they remain with size 1.
    #[track_caller]
    pub fn max(self, axes: impl Into<Ints>, keep_dims: bool) -> Tensor<'g> {
        self.reduce_max(ops::ReduceMax::new().axes(vector(axes.into())).keep_dims(keep_dims))
    }

    /// The index of the largest element along an axis.
    #[track_caller]
    pub fn argmax(self, axis: i32) -> Tensor<'g> {
        self.reduce_argmax(ops::ReduceArgmax::new().axis(axis))
    }

    /// Reshapes the tensor; one size may be −1.
    #[track_caller]
    pub fn view(self, shape: impl Into<Ints>) -> Tensor<'g> {
        let extent = |&extent: &i64| i32::try_from(extent).unwrap_or(i32::MAX);
        self.reshape(shape.into().values.iter().map(extent).collect::<Vec<i32>>())
    }

    /// Swaps two axes.
    #[track_caller]
    pub fn swap(self, first: i32, second: i32) -> Tensor<'g> {
        let (first, second) = (self.axis(first), self.axis(second));
        let mut perm: Vec<usize> = (0..self.rank()).collect();
        if first.max(second) >= perm.len() {
            return self.graph.nothing();
        }
        perm.swap(first, second);
        self.transpose(perm)
    }

    /// Inserts an axis of size 1.
    #[track_caller]
    pub fn unsqueeze(self, axis: i32) -> Tensor<'g> {
        self.expand_dims([axis])
    }

    /// Slices one axis: `x.narrow(-1, 2..5)`. Negative bounds count from the end.
    #[track_caller]
    pub fn narrow(self, axis: i32, range: impl RangeBounds<i32>) -> Tensor<'g> {
        self.strided(axis, range, 1)
    }

    /// Slices one axis with a step.
    #[track_caller]
    pub fn strided(self, axis: i32, range: impl RangeBounds<i32>, step: i32) -> Tensor<'g> {
        let axis = self.axis(axis);
        let rank = self.rank();
        if axis >= rank {
            return self.graph.nothing();
        }
        let (mut begin, mut end) = (vec![0; rank], vec![0; rank]);
        let (mut begins, mut ends) = (vec![true; rank], vec![true; rank]);
        let mut stride = vec![1; rank];
        stride[axis] = step;
        match range.start_bound() {
            Bound::Included(&at) => (begin[axis], begins[axis]) = (at, false),
            // There are no elements after the last one.
            Bound::Excluded(&-1) => {
                let message = format!("the range starts at the end of axis {axis}");
                return self.graph.mistake(message, None, Location::caller());
            }
            Bound::Excluded(&at) => (begin[axis], begins[axis]) = (at.saturating_add(1), false),
            Bound::Unbounded => {}
        }
        match range.end_bound() {
            Bound::Included(&-1) | Bound::Unbounded => {}
            Bound::Included(&at) => (end[axis], ends[axis]) = (at.saturating_add(1), false),
            Bound::Excluded(&at) => (end[axis], ends[axis]) = (at, false),
        }
        // Core ML clamps bounds outside the axis, which would hide an error.
        if let Some(extent) = self.dims()[axis].known() {
            let outside = |index: i32| index.unsigned_abs() as u64 > extent;
            let found = [(begins[axis], begin[axis]), (ends[axis], end[axis])];
            if let Some((_, index)) = found.iter().find(|(open, index)| !open && outside(*index)) {
                let message =
                    format!("index {index} is out of range for axis {axis} of size {extent}");
                return self.graph.mistake(message, None, Location::caller());
            }
        }
        let options = ops::SliceByIndex::new().begin_mask(begins).end_mask(ends).stride(stride);
        self.slice_by_index(begin, end, options)
    }

    /// Selects one index of an axis and removes the axis: `x.at(0, 3)`. Negative indices count from the end.
    #[track_caller]
    pub fn at(self, axis: i32, index: i32) -> Tensor<'g> {
        let from_front = self.axis(axis);
        let known = self.dims().get(from_front).and_then(Dim::known);
        if let Some(extent) = known.and_then(|extent| i64::try_from(extent).ok())
            && !(-extent..extent).contains(&i64::from(index))
        {
            let message = format!("index {index} is out of range for axis {axis} of size {extent}");
            return self.graph.mistake(message, None, Location::caller());
        }
        if self.is_valid() && from_front >= self.rank() {
            return self.graph.nothing();
        }
        let range = self.narrow(axis, index..=index);
        range.squeeze(ops::Squeeze::new().axes([from_front]))
    }

    /// Broadcasts axes of size 1 to a shape.
    #[track_caller]
    pub fn broadcast_to(self, shape: impl Into<Ints>) -> Tensor<'g> {
        let wanted = shape.into().values;
        let own = self.dims();
        let added = wanted.len().saturating_sub(own.len());
        // For an unknown size this is checked only at run time.
        let fits = |(dim, &wanted): (&Dim, &i64)| {
            dim.known().is_none_or(|extent| extent == 1 || i64::try_from(extent) == Ok(wanted))
        };
        let is_reached = own.len() <= wanted.len()
            && wanted.iter().all(|&extent| extent > 0)
            && own.iter().zip(&wanted[added..]).all(fits);
        if self.is_valid() && !is_reached {
            let message = format!(
                "a tensor of shape {} cannot be broadcast to {wanted:?}",
                format_dims(&own)
            );
            let hint =
                "aligned at the last dimension, each size must equal the target size or be 1";
            return self.graph.mistake(message, Some(hint.into()), Location::caller());
        }
        let mut tensor = self;
        if added > 0 {
            tensor = tensor.expand_dims((0..added).collect::<Vec<usize>>());
        }
        let dims = tensor.dims();
        let reps = dims.iter().zip(&wanted).map(|(dim, &wanted)| match dim.known() {
            Some(1) => i32::try_from(wanted).unwrap_or(i32::MAX),
            _ => 1,
        });
        let reps: Vec<i32> = reps.collect();
        if reps.iter().all(|&count| count == 1) { tensor } else { tensor.tile(reps) }
    }

    /// Negates the elements.
    #[track_caller]
    fn negated(self) -> Tensor<'g> {
        self.mul(-1.0)
    }
}

impl Graph {
    /// Selects elements of a tensor where a condition is true, and a number elsewhere.
    #[track_caller]
    pub fn select_or<'g>(
        &'g self,
        condition: Tensor<'g>,
        then: Tensor<'g>,
        otherwise: f32,
    ) -> Tensor<'g> {
        condition.select(then, self.float(otherwise))
    }
}

fn vector(ints: Ints) -> Ints {
    Ints { is_scalar: false, ..ints }
}

macro_rules! operator {
    ($($name:ident $method:ident $op:ident;)*) => {$(
        impl<'g, T: Into<Arg<'g>>> $name<T> for Tensor<'g> {
            type Output = Tensor<'g>;

            #[track_caller]
            fn $method(self, other: T) -> Tensor<'g> {
                Tensor::$op(self, other)
            }
        }

        impl<'g, T: Into<Arg<'g>>> $name<T> for &Tensor<'g> {
            type Output = Tensor<'g>;

            #[track_caller]
            fn $method(self, other: T) -> Tensor<'g> {
                Tensor::$op(*self, other)
            }
        }

        impl<'g> $name<Tensor<'g>> for f32 {
            type Output = Tensor<'g>;

            #[track_caller]
            fn $method(self, other: Tensor<'g>) -> Tensor<'g> {
                other.graph.$op(self, other)
            }
        }

        impl<'g> $name<&Tensor<'g>> for f32 {
            type Output = Tensor<'g>;

            #[track_caller]
            fn $method(self, other: &Tensor<'g>) -> Tensor<'g> {
                other.graph.$op(self, *other)
            }
        }
    )*};
}
operator! {
    Add add add;
    Sub sub sub;
    Mul mul mul;
    Div div real_div;
    Rem rem modulo;
}

impl<'g> Neg for Tensor<'g> {
    type Output = Tensor<'g>;

    #[track_caller]
    fn neg(self) -> Tensor<'g> {
        self.negated()
    }
}

impl<'g> Neg for &Tensor<'g> {
    type Output = Tensor<'g>;

    #[track_caller]
    fn neg(self) -> Tensor<'g> {
        self.negated()
    }
}

macro_rules! literal_first {
    ($($op:ident $kind:ident;)*) => {
        impl Graph {$(
            #[track_caller]
            fn $op<'g>(&'g self, x: f32, y: Tensor<'g>) -> Tensor<'g> {
                let mut call = Call::new(self, OpKind::$kind);
                call.arg("x", x);
                call.arg("y", y);
                call.one()
            }
        )*}
    };
}
literal_first! {
    add Add;
    sub Sub;
    mul Mul;
    real_div RealDiv;
    modulo Mod;
}
