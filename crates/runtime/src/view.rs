//! Tensor views that kernels read and write.

use coremill_pte::program::ScalarType;

use crate::error::{Result, ensure};
use crate::limits::MAX_RANK;
use crate::number::{Number, size_of};

/// A tensor to read. Its elements are dense in the given dimension order.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    pub(crate) dtype: ScalarType,
    pub(crate) sizes: &'a [usize],
    pub(crate) order: &'a [u8],
    /// Bytes of the elements; the length matches the sizes.
    pub(crate) bytes: &'a [u8],
}

/// Allocates memory for an output when its sizes change.
pub type ResizeFn<'a> = Box<dyn FnMut(&[usize]) -> Result<&'a mut [u8]> + 'a>;

/// A tensor to write.
pub struct OutTensor<'a> {
    pub(crate) dtype: ScalarType,
    pub(crate) sizes: Vec<usize>,
    pub(crate) order: &'a [u8],
    /// Whether the sizes may change.
    pub(crate) dynamic: bool,
    /// Available memory.
    pub(crate) memory: &'a mut [u8],
    /// Allocates memory when the sizes change.
    pub(crate) grow: Option<ResizeFn<'a>>,
}

impl<'a> View<'a> {
    /// A dense tensor with a dimension order, outermost first.
    pub fn new(
        dtype: ScalarType,
        sizes: &'a [usize],
        order: &'a [u8],
        bytes: &'a [u8],
    ) -> Result<View<'a>> {
        check_order(sizes, order)?;
        ensure!(
            length(dtype, sizes) == Some(bytes.len()),
            "{} bytes do not match a `{dtype:?}` tensor of sizes {sizes:?}",
            bytes.len()
        );
        Ok(View { dtype, sizes, order, bytes })
    }

    /// Element type.
    pub fn scalar_type(&self) -> ScalarType {
        self.dtype
    }

    /// Sizes of the dimensions.
    pub fn sizes(&self) -> &'a [usize] {
        self.sizes
    }

    /// Dimensions in memory order, outermost first.
    pub fn dim_order(&self) -> &'a [u8] {
        self.order
    }

    /// Bytes of the elements in memory order.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    pub(crate) fn rank(&self) -> usize {
        self.sizes.len()
    }

    pub(crate) fn count(&self) -> usize {
        self.sizes.iter().product()
    }

    pub(crate) fn strides(&self) -> Vec<usize> {
        strides(self.sizes, self.order)
    }

    pub(crate) fn is_contiguous(&self) -> bool {
        is_contiguous(self.sizes, self.order)
    }

    pub(crate) fn width(&self) -> usize {
        size_of(self.dtype)
    }

    /// The element at an index in memory.
    pub(crate) fn at<N: Number>(&self, index: usize) -> N {
        N::at(self.dtype, self.bytes, index)
    }

    /// All elements in memory order.
    pub(crate) fn numbers<N: Number>(&self) -> Vec<N> {
        let mut numbers = vec![N::ZERO; self.count()];
        N::load(self.dtype, self.bytes, &mut numbers);
        numbers
    }

    /// All elements in dimension order.
    pub(crate) fn contiguous<N: Number>(&self) -> Vec<N> {
        let numbers = self.numbers::<N>();
        if self.is_contiguous() {
            return numbers;
        }
        let mut moved = Vec::with_capacity(numbers.len());
        walk(self.sizes, &self.strides(), |index| moved.push(numbers[index]));
        moved
    }

    /// Bytes of the elements in dimension order.
    pub fn contiguous_bytes(&self) -> std::borrow::Cow<'a, [u8]> {
        if self.is_contiguous() {
            return self.bytes.into();
        }
        let width = self.width();
        let mut moved = Vec::with_capacity(self.bytes.len());
        walk(self.sizes, &self.strides(), |index| {
            moved.extend_from_slice(&self.bytes[index * width..][..width]);
        });
        moved.into()
    }

    /// Index of a dimension that may count from the end.
    pub(crate) fn dimension(&self, dimension: i64) -> Result<usize> {
        wrap_dimension(dimension, self.rank())
    }
}

impl<'a> OutTensor<'a> {
    /// An output. With `grow` its sizes may change, and `memory` may be too small for the initial ones.
    pub fn new(
        dtype: ScalarType,
        sizes: Vec<usize>,
        order: &'a [u8],
        memory: &'a mut [u8],
        dynamic: bool,
        grow: Option<ResizeFn<'a>>,
    ) -> Result<OutTensor<'a>> {
        check_order(&sizes, order)?;
        let needed = length(dtype, &sizes);
        ensure!(
            grow.is_some() || needed.is_some_and(|needed| needed <= memory.len()),
            "a `{dtype:?}` tensor of sizes {sizes:?} does not fit in {} bytes",
            memory.len()
        );
        Ok(OutTensor { dtype, sizes, order, dynamic: dynamic || grow.is_some(), memory, grow })
    }
}

impl OutTensor<'_> {
    /// Element type.
    pub fn scalar_type(&self) -> ScalarType {
        self.dtype
    }

    /// Sizes of the dimensions.
    pub fn sizes(&self) -> &[usize] {
        &self.sizes
    }

    /// Dimensions in memory order, outermost first.
    pub fn dim_order(&self) -> &[u8] {
        self.order
    }

    pub(crate) fn count(&self) -> usize {
        self.sizes.iter().product()
    }

    pub(crate) fn strides(&self) -> Vec<usize> {
        strides(&self.sizes, self.order)
    }

    pub(crate) fn is_contiguous(&self) -> bool {
        is_contiguous(&self.sizes, self.order)
    }

    pub(crate) fn width(&self) -> usize {
        size_of(self.dtype)
    }

    /// Bytes of the elements in memory order.
    pub fn bytes(&mut self) -> &mut [u8] {
        let length = self.count() * self.width();
        &mut self.memory[..length]
    }

    /// Copies a tensor of the same type, after resizing to its sizes.
    pub fn copy_from(&mut self, view: &View<'_>) -> Result {
        ensure!(
            view.dtype == self.dtype,
            "the elements have type `{:?}`; expected `{:?}`",
            view.dtype,
            self.dtype
        );
        self.resize(view.sizes)?;
        self.put_contiguous_bytes(&view.contiguous_bytes());
        Ok(())
    }

    /// Changes the sizes, if the tensor is dynamic and has or gets enough memory. The rank must not change.
    pub fn resize(&mut self, sizes: &[usize]) -> Result {
        let accepted = &self.sizes;
        let bytes = length(self.dtype, sizes);
        let fits = |memory: &[u8]| bytes.is_some_and(|bytes| bytes <= memory.len());
        if accepted == sizes && fits(self.memory) {
            return Ok(());
        }
        ensure!(
            self.dynamic,
            "the result has sizes {sizes:?}; the output is planned for {accepted:?}"
        );
        ensure!(
            sizes.len() == accepted.len(),
            "the result has sizes {sizes:?}; the output has rank {}",
            accepted.len()
        );
        if let Some(grow) = &mut self.grow {
            self.memory = grow(sizes)?;
        }
        ensure!(
            fits(self.memory),
            "the result has sizes {sizes:?}; the output's memory holds {} bytes",
            self.memory.len()
        );
        self.sizes = sizes.to_vec();
        Ok(())
    }

    /// Writes all elements, given in memory order.
    pub(crate) fn put_all<N: Number>(&mut self, numbers: &[N]) {
        let dtype = self.dtype;
        N::store(numbers, dtype, self.bytes());
    }

    /// Writes all elements, given in dimension order.
    pub(crate) fn put_contiguous<N: Number>(&mut self, numbers: &[N]) {
        if self.is_contiguous() {
            return self.put_all(numbers);
        }
        let (dtype, strides, sizes) = (self.dtype, self.strides(), self.sizes.clone());
        let bytes = self.bytes();
        let mut numbers = numbers.iter();
        walk(&sizes, &strides, |index| {
            if let Some(number) = numbers.next() {
                number.put(dtype, bytes, index);
            }
        });
    }

    /// Writes the bytes of all elements, given in dimension order.
    pub(crate) fn put_contiguous_bytes(&mut self, source: &[u8]) {
        if self.is_contiguous() {
            self.bytes().copy_from_slice(source);
            return;
        }
        let (width, strides, sizes) = (self.width(), self.strides(), self.sizes.clone());
        let bytes = self.bytes();
        let mut elements = source.chunks_exact(width);
        walk(&sizes, &strides, |index| {
            if let Some(element) = elements.next() {
                bytes[index * width..][..width].copy_from_slice(element);
            }
        });
    }

    /// The written tensor, for reading.
    pub(crate) fn view(&self) -> View<'_> {
        let length = self.count() * self.width();
        View {
            dtype: self.dtype,
            sizes: &self.sizes,
            order: self.order,
            bytes: &self.memory[..length],
        }
    }
}

impl std::fmt::Debug for OutTensor<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Out({:?} {:?} ordered {:?})", self.dtype, self.sizes, self.order)
    }
}

/// Size of a tensor in bytes; `None` on overflow.
pub(crate) fn length(dtype: ScalarType, sizes: &[usize]) -> Option<usize> {
    sizes.iter().try_fold(size_of(dtype), |bytes, size| bytes.checked_mul(*size))
}

/// Checks that `order` is a permutation of the dimensions.
pub(crate) fn check_order(sizes: &[usize], order: &[u8]) -> Result {
    ensure!(sizes.len() <= MAX_RANK, "the rank must be at most {MAX_RANK}, got {}", sizes.len());
    let mut sorted = order.to_vec();
    sorted.sort_unstable();
    ensure!(
        sorted.iter().copied().eq((0..sizes.len()).map(|axis| axis as u8)),
        "the dimension order {order:?} is not a permutation of {} dimensions",
        sizes.len()
    );
    Ok(())
}

/// Strides in elements for a dimension order.
pub(crate) fn strides(sizes: &[usize], order: &[u8]) -> Vec<usize> {
    let mut strides = vec![1; sizes.len()];
    let mut step = 1;
    for &axis in order.iter().rev() {
        let axis = usize::from(axis);
        strides[axis] = step;
        step *= sizes[axis].max(1);
    }
    strides
}

/// Strides of a contiguous tensor.
pub(crate) fn dense(sizes: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; sizes.len()];
    for axis in (1..sizes.len()).rev() {
        strides[axis - 1] = strides[axis] * sizes[axis].max(1);
    }
    strides
}

/// Whether elements are in dimension order. Unit dimensions do not matter.
pub(crate) fn is_contiguous(sizes: &[usize], order: &[u8]) -> bool {
    let long = |axis: &&u8| sizes[usize::from(**axis)] != 1;
    order.iter().filter(long).is_sorted()
}

/// Calls `visit` with the offset of each element of a strided tensor, in dimension order.
pub(crate) fn walk(sizes: &[usize], strides: &[usize], mut visit: impl FnMut(usize)) {
    walk_all(sizes, [strides], |[index]| visit(index));
}

/// Calls `visit` with the offsets of each element of several tensors of one shape.
pub(crate) fn walk_all<const N: usize>(
    sizes: &[usize],
    strides: [&[usize]; N],
    visit: impl FnMut([usize; N]),
) {
    walk_from(sizes, [0; N], strides, visit);
}

/// Like [`walk_all`], with start offsets. A negative stride is given in two's complement; wrapping additions then
/// result in the right offset.
pub(crate) fn walk_from<const N: usize>(
    sizes: &[usize],
    starts: [usize; N],
    strides: [&[usize]; N],
    mut visit: impl FnMut([usize; N]),
) {
    if sizes.contains(&0) {
        return;
    }
    let Some((&last, outer)) = sizes.split_last() else { return visit(starts) };
    let steps = strides.map(|strides| strides[outer.len()]);
    // Twice the maximum rank, as some callers split dimensions.
    let mut coordinates = [0usize; 2 * MAX_RANK];
    let mut places = starts;
    loop {
        let mut inner = places;
        for _ in 0..last {
            visit(inner);
            for (place, step) in inner.iter_mut().zip(steps) {
                *place = place.wrapping_add(step);
            }
        }
        let mut axis = outer.len();
        loop {
            if axis == 0 {
                return;
            }
            axis -= 1;
            coordinates[axis] += 1;
            for (place, strides) in places.iter_mut().zip(strides) {
                *place = place.wrapping_add(strides[axis]);
            }
            if coordinates[axis] < sizes[axis] {
                break;
            }
            for (place, strides) in places.iter_mut().zip(strides) {
                *place = place.wrapping_sub(strides[axis].wrapping_mul(sizes[axis]));
            }
            coordinates[axis] = 0;
        }
    }
}

/// Index of a dimension that may count from the end. A scalar counts as having one dimension.
pub(crate) fn wrap_dimension(dimension: i64, rank: usize) -> Result<usize> {
    let count = rank.max(1) as i64;
    let wrapped = if dimension < 0 { dimension.checked_add(count) } else { Some(dimension) };
    match wrapped {
        Some(wrapped) if (0..count).contains(&wrapped) => Ok(wrapped as usize),
        _ => crate::error::fail!("dimension {dimension} is out of range for rank {rank}"),
    }
}

/// Broadcast shape of two tensors.
pub(crate) fn broadcast(left: &[usize], right: &[usize]) -> Result<Vec<usize>> {
    let rank = left.len().max(right.len());
    let of = |sizes: &[usize], axis: usize| {
        (axis + sizes.len()).checked_sub(rank).map_or(1, |axis| sizes[axis])
    };
    let joined = (0..rank).map(|axis| match (of(left, axis), of(right, axis)) {
        (left, right) if left == right => Some(left),
        (1, size) | (size, 1) => Some(size),
        _ => None,
    });
    let joined: Option<Vec<usize>> = joined.collect();
    let Some(joined) = joined else {
        crate::error::fail!("tensors of sizes {left:?} and {right:?} cannot be broadcast together");
    };
    Ok(joined)
}

/// Strides of a tensor broadcast to a shape: 0 along repeated dimensions.
pub(crate) fn broadcast_strides(view: &View, sizes: &[usize]) -> Result<Vec<usize>> {
    let own = view.strides();
    let lead = sizes.len().checked_sub(view.rank());
    let fits = lead.is_some_and(|lead| {
        view.sizes.iter().zip(&sizes[lead..]).all(|(own, size)| own == size || *own == 1)
    });
    let Some(lead) = lead.filter(|_| fits) else {
        crate::error::fail!("a tensor of sizes {:?} cannot be broadcast to {sizes:?}", view.sizes);
    };
    let stride = |axis: usize| match axis.checked_sub(lead) {
        Some(axis) if view.sizes[axis] != 1 => own[axis],
        _ => 0,
    };
    Ok((0..sizes.len()).map(stride).collect())
}

/// Element count of sizes from arguments.
pub(crate) fn count(sizes: &[usize]) -> Result<usize> {
    match sizes.iter().try_fold(1usize, |count, size| count.checked_mul(*size)) {
        Some(count) => Ok(count),
        None => crate::error::fail!("a tensor of sizes {sizes:?} has too many elements"),
    }
}

/// Converts sizes from arguments.
pub(crate) fn sizes_of(sizes: &[i64]) -> Result<Vec<usize>> {
    let converted: Option<Vec<usize>> =
        sizes.iter().map(|size| usize::try_from(*size).ok()).collect();
    match converted {
        Some(converted) if converted.len() <= MAX_RANK => Ok(converted),
        _ => crate::error::fail!("{sizes:?} are not valid sizes of a tensor"),
    }
}
