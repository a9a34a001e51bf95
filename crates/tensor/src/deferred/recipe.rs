use std::any::Any;
use std::io;
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::RecipeError;
use super::error::misfit;
use super::join::Join;
use super::scan::map_windows;
use super::steps::{Elements, PerAxis, Step, fits_single, is_numeric, read_integers};
use super::view::View;
use crate::produce::{ByteSource, Fingerprint};
use crate::{Buffer, DType};

type Result<T> = std::result::Result<T, RecipeError>;

/// The largest finite number of half precision.
const MAX_FP16: f32 = 65504.0;

/// A tensor whose elements are computed on demand from elements in a buffer.
///
/// Each method adds a step. Nothing is computed before the [buffer](Recipe::to_buffer) is read, except for
/// the range check of integers that are cast to a narrower type. Consecutive steps on floats are computed in
/// single precision and rounded once at the end, unless there is a cast in between.
#[derive(Clone)]
pub struct LazyTensor {
    shape: Vec<u64>,
    dtype: DType,
    body: Body,
}

#[derive(Clone)]
enum Body {
    /// A view of the source and the steps applied to its elements. Its shape is the shape of the tensor.
    View { view: View, steps: Vec<Step>, wraps: bool },
    /// Concatenated tensors, already cast to the same type.
    Join { parts: Vec<LazyTensor>, axis: usize },
}

/// Returns the replacement of a source with elements of a type: a buffer with the same number of elements in
/// the same order, and its element type.
pub type Replace<'r> = dyn Fn(&Buffer, DType) -> Option<(Buffer, DType)> + 'r;

/// Handling of integers that are out of the range of the target type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// The cast is an error that names the first of them.
    #[default]
    Refuse,
    /// They are clamped to the range.
    Saturate,
    /// The cast is an error as with [`Refuse`](Overflow::Refuse), with one exception. The smallest and the
    /// largest number of the source type mean "no bound". They become the smallest and the largest number of
    /// the target type.
    KeepBounds,
    /// They lose their upper bits.
    Wrap,
}

impl LazyTensor {
    /// Returns the elements of a buffer, in row-major order. If the buffer is the result of another lazy
    /// tensor, the steps of both are computed together.
    pub fn new(source: Buffer, dtype: DType, shape: &[u64]) -> Result<LazyTensor> {
        match LazyTensor::of(&source) {
            Some(known) if known.dtype == dtype && known.shape == shape => Ok(known),
            Some(known)
                if known.dtype == dtype
                    && matches!(&known.body, Body::View { view, .. } if view.is_contiguous()) =>
            {
                known.reshape(shape)
            }
            _ => LazyTensor::over(source, dtype, shape),
        }
    }

    /// The lazy tensor of which a buffer is the complete result, if there is one.
    pub(super) fn of(buffer: &Buffer) -> Option<LazyTensor> {
        buffer.producer()?.description()?.downcast_ref().cloned()
    }

    /// Returns the elements of a buffer; if they are computed, then in a separate pass.
    fn over(source: Buffer, dtype: DType, shape: &[u64]) -> Result<LazyTensor> {
        let mut strides = vec![0; shape.len()];
        let mut stride = 1u64;
        for (size, place) in shape.iter().zip(&mut strides).rev() {
            *place = stride;
            stride = stride.saturating_mul(*size);
        }
        let length = source.len() as u64;
        let recipe = LazyTensor::strided(source, dtype, shape, &strides, 0)?;
        let expected = dtype.storage_bytes(recipe.count());
        if expected != Some(length) {
            let expected = expected.unwrap_or_default();
            return misfit!(
                "a `{dtype}` tensor of sizes {shape:?} requires {expected} bytes, got {length}"
            );
        }
        Ok(recipe)
    }

    /// Returns strided elements of a buffer. Strides and offset are in elements.
    pub fn strided(
        source: Buffer,
        dtype: DType,
        shape: &[u64],
        strides: &[u64],
        offset: u64,
    ) -> Result<LazyTensor> {
        let view = View::new(source, dtype, shape, strides, offset)?;
        let body = Body::View { view, steps: Vec::new(), wraps: false };
        Ok(LazyTensor { shape: shape.to_vec(), dtype, body })
    }

    /// Returns a tensor whose elements are all equal; `element` contains the bytes of one.
    pub fn repeated(element: &[u8], dtype: DType, shape: &[u64]) -> Result<LazyTensor> {
        LazyTensor::strided(Buffer::from(element.to_vec()), dtype, shape, &vec![0; shape.len()], 0)
    }

    /// Concatenates tensors along an axis.
    pub fn concat(parts: Vec<LazyTensor>, axis: usize) -> Result<LazyTensor> {
        let Some(first) = parts.first() else {
            return misfit!("expected at least one tensor to concatenate");
        };
        let (dtype, mut shape) = (first.dtype, first.shape.clone());
        if axis >= shape.len() {
            return misfit!("axis {axis} is out of range for sizes {shape:?}");
        }
        shape[axis] = 0;
        for part in &parts {
            let fits = part.dtype == dtype && part.shape.len() == shape.len();
            let beside = |at: usize| at == axis || part.shape[at] == first.shape[at];
            if !fits || !(0..shape.len()).all(beside) {
                return misfit!(
                    "a `{}` tensor of sizes {:?} cannot be concatenated with a `{dtype}` tensor of sizes {:?} \
                     along axis {axis}",
                    part.dtype,
                    part.shape,
                    first.shape
                );
            }
            let Some(size) = shape[axis].checked_add(part.shape[axis]) else {
                return misfit!("the concatenated tensors are too large");
            };
            shape[axis] = size;
        }
        let bytes = shape.iter().try_fold(1u64, |product, &size| product.checked_mul(size));
        let bytes = bytes.and_then(|count| dtype.storage_bytes(count));
        if bytes.is_none_or(|bytes| bytes > isize::MAX as u64) {
            return misfit!("the concatenated tensors are too large");
        }
        Ok(LazyTensor { shape, dtype, body: Body::Join { parts, axis } })
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The sizes.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// The number of elements.
    pub fn count(&self) -> u64 {
        if self.shape.contains(&0) { 0 } else { self.shape.iter().product() }
    }

    /// Transposes the tensor: dimension `i` of the result is dimension `order[i]` of this tensor.
    pub fn permute(mut self, order: &[usize]) -> Result<LazyTensor> {
        let mut sorted = order.to_vec();
        sorted.sort_unstable();
        if !sorted.iter().copied().eq(0..self.shape.len()) {
            return misfit!("{order:?} is not a permutation of {} dimensions", self.shape.len());
        }
        let shape: Vec<u64> = order.iter().map(|&from| self.shape[from]).collect();
        match &mut self.body {
            Body::Join { parts, axis } => {
                let moved = parts.drain(..).map(|part| part.permute(order));
                *parts = moved.collect::<Result<_>>()?;
                *axis = order.iter().position(|from| from == axis).unwrap_or_default();
            }
            Body::View { view, steps, .. } => {
                for step in steps {
                    if let Step::Scale(along) | Step::Shift(along) = step
                        && along.numbers.len() > 1
                    {
                        let Some(axis) = axis_of(along, &self.shape) else {
                            return self.nested()?.permute(order);
                        };
                        let axis = order.iter().position(|&from| from == axis).unwrap_or_default();
                        along.inner = inner(&shape, axis);
                    }
                }
                view.shape = order.iter().map(|&from| view.shape[from]).collect();
                view.strides = order.iter().map(|&from| view.strides[from]).collect();
            }
        }
        self.shape = shape;
        Ok(self)
    }

    /// Reshapes the tensor in row-major order.
    pub fn reshape(mut self, shape: &[u64]) -> Result<LazyTensor> {
        let count = shape.iter().try_fold(1u64, |product, &size| product.checked_mul(size));
        let count = if shape.contains(&0) { Some(0) } else { count };
        if count != Some(self.count()) {
            return misfit!("sizes {:?} cannot be reshaped to {shape:?}", self.shape);
        }
        match &mut self.body {
            Body::View { view, .. } if view.is_contiguous() => {
                let (source, dtype, offset) = (view.source.clone(), view.dtype, view.offset);
                let mut strides = vec![1u64; shape.len()];
                for at in (1..shape.len()).rev() {
                    strides[at - 1] = strides[at].saturating_mul(shape[at]);
                }
                *view = View::new(source, dtype, shape, &strides, offset as u64)?;
                self.shape = shape.to_vec();
                Ok(self)
            }
            Body::View { .. } | Body::Join { .. } if self.shape == shape => Ok(self),
            Body::View { .. } | Body::Join { .. } => {
                LazyTensor::over(self.to_buffer(), self.dtype, shape)
            }
        }
    }

    /// Slices an axis: `length` elements starting at `start`.
    pub fn narrow(mut self, axis: usize, start: u64, length: u64) -> Result<LazyTensor> {
        let end = start.checked_add(length);
        if self.shape.get(axis).is_none_or(|&size| end.is_none_or(|end| end > size)) {
            return misfit!(
                "{length} elements at offset {start} are out of range along axis {axis} of sizes {:?}",
                self.shape
            );
        }
        match &mut self.body {
            Body::View { view, steps, .. } if steps.is_empty() => {
                let skipped = (start as usize).saturating_mul(view.strides[axis]);
                view.offset = view.offset.saturating_add(skipped);
                view.shape[axis] = length as usize;
                self.shape[axis] = length;
                Ok(self)
            }
            Body::View { .. } | Body::Join { .. } => self.nested()?.narrow(axis, start, length),
        }
    }

    /// Casts with MIL's semantics. Floats round to nearest, with ties to even; conversion to integers
    /// truncates; every number except 0 becomes true. Integers out of range are errors, for which the
    /// elements are read.
    pub fn cast(self, dtype: DType) -> Result<LazyTensor> {
        self.cast_with(dtype, Overflow::Refuse)
    }

    /// Like [`cast`](Recipe::cast), with a choice for integers out of range.
    pub fn cast_with(mut self, dtype: DType, overflow: Overflow) -> Result<LazyTensor> {
        if dtype == self.dtype {
            return Ok(self);
        }
        if !is_numeric(dtype) || !is_numeric(self.dtype) {
            return misfit!("elements of `{}` cannot be cast to `{dtype}`", self.dtype);
        }
        if matches!(overflow, Overflow::Refuse | Overflow::KeepBounds) {
            self.check_range(dtype, overflow)?;
        }
        let before = self.dtype;
        match &mut self.body {
            Body::Join { parts, .. } => {
                let cast = parts.drain(..).map(|part| part.cast_with(dtype, overflow));
                *parts = cast.collect::<Result<_>>()?;
            }
            Body::View { view, steps, wraps } => {
                let first = steps.is_empty() && view.dtype == before;
                let single = fits_single(view.dtype) || !steps.is_empty();
                match before {
                    _ if first => {}
                    DType::Fp32 if single => {}
                    DType::Fp16 if single => steps.push(Step::RoundToFp16),
                    DType::Bf16 if single => steps.push(Step::RoundToBf16),
                    _ => return self.nested()?.cast_with(dtype, overflow),
                }
                *wraps = overflow == Overflow::Wrap;
            }
        }
        self.dtype = dtype;
        Ok(self)
    }

    /// Multiplies each element by the factor for its index along an axis. A single factor applies to all
    /// elements.
    pub fn scale(self, axis: usize, factors: &[f32]) -> Result<LazyTensor> {
        self.along(axis, factors, Step::Scale)
    }

    /// Adds to each element the term for its index along an axis. A single term applies to all elements.
    pub fn shift(self, axis: usize, terms: &[f32]) -> Result<LazyTensor> {
        self.along(axis, terms, Step::Shift)
    }

    /// Clamps numbers to the finite range of half precision, for instance the −3.4e38 of a mask. Infinities
    /// are optionally kept.
    pub fn clamp_to_fp16(self, keep_infinities: bool) -> Result<LazyTensor> {
        self.with_step(Step::Clamp { limit: MAX_FP16, keep_infinities })
    }

    /// The elements as floats of a type; for half precision, clamped to its finite range.
    pub(super) fn narrowed_to(self, dtype: DType) -> Result<LazyTensor> {
        let clamped = if dtype == DType::Fp16 { self.clamp_to_fp16(true)? } else { self };
        clamped.cast_with(dtype, Overflow::Saturate)
    }

    /// Returns the tensor with replaced sources; `None` if no source is replaced.
    pub(super) fn with_source(&self, replace: &Replace<'_>) -> Option<LazyTensor> {
        let body = match &self.body {
            Body::View { view, steps, wraps } => {
                let (source, dtype) = match replace(&view.source, view.dtype) {
                    Some(found) => found,
                    None => (
                        LazyTensor::of(&view.source)?.with_source(replace)?.to_buffer(),
                        view.dtype,
                    ),
                };
                let wide = |extents: &[usize]| -> Vec<u64> {
                    extents.iter().map(|&extent| extent as u64).collect()
                };
                let (shape, strides) = (wide(&view.shape), wide(&view.strides));
                let mut steps = steps.clone();
                let is_clamped = steps.iter().any(|step| matches!(step, Step::Clamp { .. }));
                if dtype != view.dtype && self.dtype == DType::Fp16 && !is_clamped {
                    steps.push(Step::Clamp { limit: MAX_FP16, keep_infinities: true });
                }
                let view = View::new(source, dtype, &shape, &strides, view.offset as u64).ok()?;
                Body::View { view, steps, wraps: *wraps }
            }
            Body::Join { parts, axis } => {
                let mut is_replaced = false;
                let part = |part: &LazyTensor| match part.with_source(replace) {
                    Some(other) => {
                        is_replaced = true;
                        other
                    }
                    None => part.clone(),
                };
                let parts = parts.iter().map(part).collect();
                if !is_replaced {
                    return None;
                }
                Body::Join { parts, axis: *axis }
            }
        };
        Some(LazyTensor { shape: self.shape.clone(), dtype: self.dtype, body })
    }

    /// Whether the result contains each element of the source exactly once, at most rounded or clamped.
    pub(super) fn keeps_elements(&self) -> bool {
        match &self.body {
            Body::View { view, steps, .. } => {
                let computes = |step: &Step| matches!(step, Step::Scale(_) | Step::Shift(_));
                let is_whole = view.count() * view.width == view.source.len();
                is_whole && !view.strides.contains(&0) && !steps.iter().any(computes)
            }
            Body::Join { .. } => false,
        }
    }

    /// The packed elements in row-major order. If they are unchanged and contiguous in the source, the result
    /// is a part of the source. Otherwise they are computed when they are read.
    pub fn to_buffer(&self) -> Buffer {
        match &self.body {
            Body::View { view, steps, wraps } => {
                if steps.is_empty() && view.dtype == self.dtype && view.is_contiguous() {
                    return view.source.slice(view.run()).unwrap_or_else(|| view.source.clone());
                }
                let elements = Elements::new(view.clone(), steps.clone(), self.dtype, *wraps);
                self.deferred(elements)
            }
            Body::Join { parts, axis } => {
                let width = width_of(self.dtype);
                let turns = self.shape[..*axis].iter().product::<u64>() as usize;
                let block = |part: &LazyTensor| {
                    width * part.shape[*axis..].iter().product::<u64>() as usize
                };
                let parts = parts.iter().map(|part| (part.to_buffer(), block(part))).collect();
                self.deferred(Join { parts, turns, width })
            }
        }
    }

    /// For single-precision elements that are only scaled: the unscaled elements, and the factor with the
    /// largest magnitude.
    pub(super) fn scaled(&self) -> Option<(Buffer, f32)> {
        let Body::View { view, steps, .. } = &self.body else { return None };
        if view.dtype != DType::Fp32 || self.dtype != DType::Fp32 || !view.is_contiguous() {
            return None;
        }
        let largest = |most: f32, factor: &f32| most.max(factor.abs());
        let factors = steps.iter().map(|step| match step {
            Step::Scale(along) if along.numbers.iter().all(|number| !number.is_nan()) => {
                Some(along.numbers.iter().fold(0.0, largest))
            }
            _ => None,
        });
        let factor = factors.product::<Option<f32>>()?;
        Some((view.source.slice(view.run())?, factor))
    }

    fn deferred(&self, producer: impl ByteSource + 'static) -> Buffer {
        Buffer::deferred(Arc::new(ComputedBytes { producer, recipe: self.clone() }))
    }

    /// The same tensor, computed in a separate pass.
    fn nested(&self) -> Result<LazyTensor> {
        LazyTensor::over(self.to_buffer(), self.dtype, &self.shape)
    }

    fn along(
        mut self,
        axis: usize,
        numbers: &[f32],
        step: impl Fn(PerAxis) -> Step + Copy,
    ) -> Result<LazyTensor> {
        let size = self.shape.get(axis).copied();
        if numbers.len() != 1 && size != Some(numbers.len() as u64) {
            return misfit!(
                "{} numbers do not match axis {axis} of sizes {:?}",
                numbers.len(),
                self.shape
            );
        }
        if let Body::Join { parts, axis: joined } = &mut self.body {
            let mut start = 0;
            let changed = parts.drain(..).map(|part| {
                let end = start + part.shape[axis] as usize;
                let alone = axis != *joined || numbers.len() == 1;
                let own = if alone { numbers } else { &numbers[start..end] };
                start = end;
                if own.is_empty() { Ok(part) } else { part.along(axis, own, step) }
            });
            *parts = changed.collect::<Result<_>>()?;
            return Ok(self);
        }
        let inner = if numbers.len() == 1 { usize::MAX } else { inner(&self.shape, axis) };
        if numbers.is_empty() || self.shape.contains(&0) {
            return Ok(self);
        }
        self.with_step(step(PerAxis { inner, numbers: numbers.into() }))
    }

    /// Adds a step in single precision. The element type is unchanged: if it is not single precision, numbers
    /// are converted before the step and rounded after it.
    fn with_step(mut self, step: Step) -> Result<LazyTensor> {
        let dtype = self.dtype;
        if !matches!(dtype, DType::Fp16 | DType::Bf16 | DType::Fp32) {
            return misfit!("arithmetic on `{dtype}` is not supported; cast to a float type first");
        }
        match &mut self.body {
            Body::Join { parts, .. } => {
                let changed = parts.drain(..).map(|part| part.with_step(step.clone()));
                *parts = changed.collect::<Result<_>>()?;
            }
            Body::View { view, steps, .. } => {
                let stored = steps.is_empty() && view.dtype == dtype;
                match dtype {
                    _ if stored => {}
                    DType::Fp16 => steps.push(Step::RoundToFp16),
                    DType::Bf16 => steps.push(Step::RoundToBf16),
                    _ => {}
                }
                steps.push(step);
            }
        }
        Ok(self)
    }

    /// Checks that integers are within the range of a type.
    fn check_range(&self, dtype: DType, overflow: Overflow) -> Result<()> {
        let (Some(from), Some((low, high))) = (self.dtype.integer_range(), dtype.integer_range())
        else {
            return Ok(());
        };
        if dtype == DType::Bool || (low <= from.0 && from.1 <= high) {
            return Ok(());
        }
        let unbounded =
            |value: i128| overflow == Overflow::KeepBounds && (value == from.0 || value == from.1);
        let found = map_windows(&self.to_buffer(), &|start, bytes| {
            first_outside(self.dtype, bytes, low..=high, &unbounded)
                .map(|(at, value)| ((start / width_of(self.dtype) + at) as u64, value))
        });
        match found.map(|found| found.into_iter().flatten().next()) {
            Ok(None) => Ok(()),
            Ok(Some((index, value))) => Err(RecipeError::OutOfRange { index, value, dtype }),
            Err(error) => Err(RecipeError::Unreadable(error.to_string())),
        }
    }
}

/// The result of a lazy tensor, with a description for further steps.
struct ComputedBytes<P> {
    producer: P,
    recipe: LazyTensor,
}

impl<P: ByteSource> ByteSource for ComputedBytes<P> {
    fn length(&self) -> usize {
        self.producer.length()
    }

    fn produce(&self, offset: usize, target: &mut [u8]) -> io::Result<()> {
        self.producer.produce(offset, target)
    }

    fn granule(&self) -> usize {
        self.producer.granule()
    }

    fn identity(&self) -> Option<Fingerprint> {
        self.producer.identity()
    }

    fn description(&self) -> Option<&dyn Any> {
        Some(&self.recipe)
    }
}

/// The first integer outside a range and its index, ignoring exceptions.
fn first_outside(
    dtype: DType,
    bytes: &[u8],
    range: RangeInclusive<i128>,
    allowed: &dyn Fn(i128) -> bool,
) -> Option<(usize, i128)> {
    const CHUNK: usize = 2048;
    let value = |number: i64| match dtype {
        DType::UInt64 => i128::from(number.cast_unsigned()),
        _ => i128::from(number),
    };
    let mut numbers = [0; CHUNK];
    for (index, chunk) in bytes.chunks(CHUNK * width_of(dtype)).enumerate() {
        let numbers = &mut numbers[..chunk.len() / width_of(dtype)];
        read_integers(dtype, chunk, numbers);
        let (least, most) = numbers.iter().fold((i64::MAX, i64::MIN), |(least, most), &number| {
            (least.min(number), most.max(number))
        });
        // Unsigned integers that exceed the signed type are negative here.
        let unsigned = dtype == DType::UInt64 && least < 0;
        if unsigned || !range.contains(&least.into()) || !range.contains(&most.into()) {
            let outside =
                |&number: &i64| !range.contains(&value(number)) && !allowed(value(number));
            let at = numbers.iter().position(outside);
            if let Some(at) = at {
                return Some((index * CHUNK + at, value(numbers[at])));
            }
        }
    }
    None
}

/// Size of an element in bytes, if it is a multiple of a byte.
fn width_of(dtype: DType) -> usize {
    dtype.bits().map_or(1, |bits| bits as usize / 8)
}

/// Row-major stride of an axis.
fn inner(shape: &[u64], axis: usize) -> usize {
    shape[axis + 1..].iter().map(|&size| size as usize).product()
}

/// The axis along which numbers apply.
fn axis_of(along: &PerAxis, shape: &[u64]) -> Option<usize> {
    let fits = |axis: &usize| {
        shape[*axis] == along.numbers.len() as u64 && inner(shape, *axis) == along.inner
    };
    (0..shape.len()).find(fits)
}
