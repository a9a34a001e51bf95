//! Movement of elements of any type.

use std::sync::Arc;

use crate::array::{Array, Elements, ElementsView, View};
use crate::call::{Call, Results};
use crate::error::Result;
use crate::geometry;

/// Builds elements from the elements of a view, with one expression for all element types.
macro_rules! moved {
    ($view:expr, $source:ident => $make:expr) => {
        match $view.elements {
            $crate::array::ElementsView::Floats($source) => {
                $crate::array::Elements::Floats(std::sync::Arc::new($make))
            }
            $crate::array::ElementsView::Ints($source) => {
                $crate::array::Elements::Ints(std::sync::Arc::new($make))
            }
            $crate::array::ElementsView::Texts($source) => {
                $crate::array::Elements::Texts(std::sync::Arc::new($make))
            }
        }
    };
}
pub(crate) use moved;

/// A strided view of a dense tensor. The element at an index has the offset `start` plus the sum of
/// index times stride. A stride of 0 repeats elements, a negative one reverses them.
#[derive(Clone, Debug)]
pub struct StridedView {
    /// Offset of the first element.
    pub start: usize,
    /// Shape of the view.
    pub shape: Vec<usize>,
    /// Strides in elements.
    pub strides: Vec<isize>,
}

/// Equally spaced elements, from [`StridedView::each_run`].
struct Run {
    start: usize,
    stride: isize,
    length: usize,
}

impl StridedView {
    /// The identity view of a dense tensor.
    pub fn dense(shape: &[usize]) -> StridedView {
        let strides = geometry::strides(shape).into_iter().map(|stride| stride as isize);
        StridedView { start: 0, shape: shape.to_vec(), strides: strides.collect() }
    }

    /// The view with permuted axes.
    pub fn permuted(&self, perm: &[usize]) -> StridedView {
        StridedView {
            start: self.start,
            shape: perm.iter().map(|&axis| self.shape[axis]).collect(),
            strides: perm.iter().map(|&axis| self.strides[axis]).collect(),
        }
    }

    /// Reads the view's elements in row-major order. All offsets must be within `source`.
    pub fn read<T: Clone>(&self, source: &[T]) -> Vec<T> {
        if self.shape.contains(&0) {
            return Vec::new();
        }
        let mut elements = Vec::with_capacity(self.shape.iter().product());
        self.each_run(|run| match run.stride {
            1 => elements.extend_from_slice(&source[run.start..][..run.length]),
            stride => elements.extend((0..run.length as isize).map(|step| {
                let place = run.start as isize + step * stride;
                source[place as usize].clone()
            })),
        });
        elements
    }

    /// Writes elements, in row-major order, to the view's offsets. All must be within `target`.
    pub fn write<T: Clone>(&self, elements: &[T], target: &mut [T]) {
        let mut left = elements;
        self.each_run(|run| {
            let (now, later) = left.split_at(run.length);
            left = later;
            if run.stride == 1 {
                return target[run.start..][..run.length].clone_from_slice(now);
            }
            for (step, element) in now.iter().enumerate() {
                let place = run.start as isize + step as isize * run.stride;
                target[place as usize] = element.clone();
            }
        });
    }

    /// Calls `write` with the offsets of elements, in row-major order, and as many of them as are adjacent in the view.
    pub fn adjacent<T>(&self, elements: &[T], write: &mut dyn FnMut(usize, &[T])) {
        let mut left = elements;
        self.each_run(|run| {
            let (now, later) = left.split_at(run.length);
            left = later;
            if run.stride == 1 {
                return write(run.start, now);
            }
            for (step, element) in now.iter().enumerate() {
                let place = run.start as isize + step as isize * run.stride;
                write(place as usize, std::slice::from_ref(element));
            }
        });
    }

    /// Calls `visit` for the view's elements, split into the longest equally spaced runs.
    fn each_run(&self, mut visit: impl FnMut(Run)) {
        if self.shape.contains(&0) {
            return;
        }
        let (mut shape, mut strides) = self.merged();
        let length = shape.pop().unwrap_or(1);
        let stride = strides.pop().unwrap_or(1);
        let mut index = vec![0; shape.len()];
        let mut offset = self.start as isize;
        loop {
            visit(Run { start: offset as usize, stride, length });
            let mut axis = shape.len();
            loop {
                if axis == 0 {
                    return;
                }
                axis -= 1;
                index[axis] += 1;
                offset += strides[axis];
                if index[axis] < shape[axis] {
                    break;
                }
                offset -= strides[axis] * shape[axis] as isize;
                index[axis] = 0;
            }
        }
    }

    /// Merges axes. Returns the smallest equivalent shape and its strides.
    fn merged(&self) -> (Vec<usize>, Vec<isize>) {
        let (mut shape, mut strides) = (Vec::<usize>::new(), Vec::<isize>::new());
        for (&extent, &stride) in self.shape.iter().zip(&self.strides) {
            if extent == 1 {
                continue;
            }
            match (shape.last_mut(), strides.last_mut()) {
                (Some(outer), Some(outer_stride)) if *outer_stride == stride * extent as isize => {
                    *outer *= extent;
                    *outer_stride = stride;
                }
                _ => {
                    shape.push(extent);
                    strides.push(stride);
                }
            }
        }
        (shape, strides)
    }
}

impl View<'_> {
    /// The same elements under another shape of equal size.
    pub fn reshaped(self, shape: Vec<usize>) -> Array {
        Array::from_elements(self.dtype, shape, moved!(self, source => source.to_vec()))
    }

    /// Concatenates runs of `length` elements at these offsets, under a shape of equal size.
    pub fn runs(self, shape: Vec<usize>, starts: &[usize], length: usize) -> Array {
        let elements = moved!(self, source => gathered(source, starts, length));
        Array::from_elements(self.dtype, shape, elements)
    }

    /// Broadcasts a single element to a shape. Returns `None` if there is not exactly one element.
    pub fn repeated(self, shape: Vec<usize>, count: usize) -> Option<Array> {
        let elements = match self.elements {
            ElementsView::Floats([value]) => Elements::Floats(Arc::new(vec![*value; count])),
            ElementsView::Ints([value]) => Elements::Ints(Arc::new(vec![*value; count])),
            ElementsView::Texts([text]) => Elements::Texts(Arc::new(vec![text.clone(); count])),
            _ => return None,
        };
        Some(Array::from_elements(self.dtype, shape, elements))
    }
}

/// Concatenates runs of `length` elements at these offsets.
pub fn gathered<T: Clone>(source: &[T], starts: &[usize], length: usize) -> Vec<T> {
    if length == 1 {
        return starts.iter().map(|&start| source[start].clone()).collect();
    }
    let mut elements = Vec::with_capacity(starts.len() * length);
    for &start in starts {
        elements.extend_from_slice(&source[start..][..length]);
    }
    elements
}

impl Call<'_> {
    /// A single output: the elements of a strided view.
    pub fn give_strided(&self, x: View, seen: &StridedView) -> Results {
        Ok(vec![self.strided(x, seen)?])
    }

    /// Copies a strided view to a tensor.
    pub fn strided(&self, x: View, seen: &StridedView) -> Result<Array> {
        self.count(&seen.shape)?;
        let elements = moved!(x, source => seen.read(source));
        Ok(Array::from_elements(x.dtype, seen.shape.clone(), elements))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_repeated_and_negative_strides() {
        let source: Vec<i32> = (0..12).collect();
        let dense = StridedView::dense(&[3, 4]);
        assert_eq!(dense.read(&source), source);
        assert_eq!(dense.permuted(&[1, 0]).read(&source)[..4], [0, 4, 8, 1]);
        let backwards = StridedView { start: 7, shape: vec![2, 2], strides: vec![-4, -1] };
        assert_eq!(backwards.read(&source), [7, 6, 3, 2]);
        let repeated = StridedView { start: 1, shape: vec![2, 3], strides: vec![0, 1] };
        assert_eq!(repeated.read(&source), [1, 2, 3, 1, 2, 3]);
        let scalar = StridedView { start: 5, shape: vec![], strides: vec![] };
        assert_eq!(scalar.read(&source), [5]);
    }

    #[test]
    fn write_inverts_read() {
        let view = StridedView { start: 11, shape: vec![3, 2], strides: vec![-4, -2] };
        let source: Vec<i32> = (0..12).collect();
        let mut target = vec![-1; 12];
        view.write(&view.read(&source), &mut target);
        assert_eq!(target, [-1, 1, -1, 3, -1, 5, -1, 7, -1, 9, -1, 11]);
    }

    #[test]
    fn reads_empty_tensor_with_huge_extents() {
        let huge = 1 << 40;
        assert!(StridedView::dense(&[0, huge, huge]).read::<i32>(&[]).is_empty());
    }
}
