//! Inputs of runs: slices, arrays, and slices with shapes.

use coremill_engine::{Array, Elements, ElementsView};
use coremill_tensor::DType;

use crate::FeatureSpec;
use crate::error::{Error, ErrorKind, Result, fail};

/// A value that can be passed as an input.
///
/// A slice or a vector gets the shape that the input declares. If that is ambiguous, use [`ArrayView`] to state the
/// shape.
pub trait Input {
    /// Converts the value to an array for an input.
    fn array(&self, spec: &FeatureSpec) -> Result<Array>;

    /// The elements in the caller's memory, if runs can read them in place.
    #[doc(hidden)]
    fn lying(&self) -> Option<BorrowedElements<'_>> {
        None
    }
}

/// Elements that runs read in place.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct BorrowedElements<'a> {
    /// Element type.
    pub dtype: DType,
    /// The elements in row-major order.
    pub elements: ElementsView<'a>,
    /// The shape; `None` for the input's declared shape.
    pub shape: Option<&'a [usize]>,
}

impl BorrowedElements<'_> {
    fn len(&self) -> usize {
        match self.elements {
            ElementsView::Floats(floats) => floats.len(),
            ElementsView::Ints(ints) => ints.len(),
            ElementsView::Texts(texts) => texts.len(),
        }
    }
}

/// Writes the shape of borrowed elements to a reused vector.
pub(crate) fn lying_shape(
    spec: &FeatureSpec,
    lying: &BorrowedElements<'_>,
    shape: &mut Vec<usize>,
) -> Result<()> {
    shape.clear();
    match lying.shape {
        Some(given) => shape.extend(given),
        None => shape_for(spec, lying.len(), shape)?,
    }
    Ok(())
}

/// Elements of a stated shape.
#[derive(Clone, Copy, Debug)]
pub struct ArrayView<'a, T> {
    /// Sizes, outermost dimension first.
    pub shape: &'a [usize],
    /// The elements in row-major order.
    pub elements: &'a [T],
}

/// An element type of arrays.
pub trait Element: Copy {
    /// An array of these elements.
    #[doc(hidden)]
    fn array(shape: Vec<usize>, elements: &[Self], name: &str) -> Result<Array>;

    /// Borrows the elements, if runs can read them in place.
    #[doc(hidden)]
    fn lying(_: &[Self]) -> Option<BorrowedElements<'_>> {
        None
    }
}

impl Element for f32 {
    fn array(shape: Vec<usize>, elements: &[f32], _: &str) -> Result<Array> {
        Ok(Array::floats(DType::Fp32, shape, elements.to_vec()))
    }

    fn lying(elements: &[f32]) -> Option<BorrowedElements<'_>> {
        Some(BorrowedElements {
            dtype: DType::Fp32,
            elements: ElementsView::Floats(elements),
            shape: None,
        })
    }
}

impl Element for i32 {
    fn array(shape: Vec<usize>, elements: &[i32], _: &str) -> Result<Array> {
        Ok(Array::ints(DType::Int32, shape, elements.to_vec()))
    }

    fn lying(elements: &[i32]) -> Option<BorrowedElements<'_>> {
        Some(BorrowedElements {
            dtype: DType::Int32,
            elements: ElementsView::Ints(elements),
            shape: None,
        })
    }
}

impl Element for i64 {
    fn array(shape: Vec<usize>, elements: &[i64], name: &str) -> Result<Array> {
        let mut narrow = Vec::with_capacity(elements.len());
        for &element in elements {
            match i32::try_from(element) {
                Ok(element) => narrow.push(element),
                Err(_) => {
                    fail!(Input, "`{name}`: {element} does not fit in Core ML's 32-bit integers")
                }
            }
        }
        Ok(Array::ints(DType::Int32, shape, narrow))
    }
}

impl Element for half::f16 {
    fn array(shape: Vec<usize>, elements: &[half::f16], _: &str) -> Result<Array> {
        let floats = elements.iter().map(|element| element.to_f32()).collect();
        Ok(Array::floats(DType::Fp16, shape, floats))
    }
}

/// The shape of an input with `count` elements. At most one dimension may be open.
fn shape_for(spec: &FeatureSpec, count: usize, shape: &mut Vec<usize>) -> Result<()> {
    let Some(ty) = spec.ty.as_tensor() else {
        fail!(Input, "`{}` is a `{}`; only tensors can be passed in", spec.name, spec.ty);
    };
    let extents = || ty.shape.iter().map(|dim| dim.known().map(|extent| extent as usize));
    let takes: usize = extents().flatten().product();
    let open = extents().filter(Option::is_none).count();
    let missing = match open {
        0 if takes == count => 1,
        0 => {
            let shape: Vec<_> = extents().flatten().collect();
            let error = Error::new(format!(
                "`{}` has shape {shape:?}, which requires {takes} elements, got {count}",
                spec.name
            ));
            return Err(error
                .with_kind(ErrorKind::Input)
                .with_hint(format!("pass {takes} elements, in row-major order")));
        }
        1 if takes > 0 && count.is_multiple_of(takes) => count / takes,
        _ => {
            let accepted = spec.accepted_shapes();
            let error = Error::new(format!(
                "{count} elements do not fit any shape of `{}`; expected {accepted}",
                spec.name
            ));
            return Err(error
                .with_kind(ErrorKind::Input)
                .with_hint("specify the shape with `ArrayView`"));
        }
    };
    shape.extend(extents().map(|extent| extent.unwrap_or(missing)));
    Ok(())
}

fn slice<T: Element>(elements: &[T], spec: &FeatureSpec) -> Result<Array> {
    let mut shape = Vec::new();
    shape_for(spec, elements.len(), &mut shape)?;
    T::array(shape, elements, &spec.name)
}

impl<T: Element> Input for Vec<T> {
    fn array(&self, spec: &FeatureSpec) -> Result<Array> {
        slice(self, spec)
    }

    fn lying(&self) -> Option<BorrowedElements<'_>> {
        T::lying(self)
    }
}

impl<T: Element> Input for &[T] {
    fn array(&self, spec: &FeatureSpec) -> Result<Array> {
        slice(self, spec)
    }

    fn lying(&self) -> Option<BorrowedElements<'_>> {
        T::lying(self)
    }
}

impl<T: Element, const N: usize> Input for [T; N] {
    fn array(&self, spec: &FeatureSpec) -> Result<Array> {
        slice(self, spec)
    }

    fn lying(&self) -> Option<BorrowedElements<'_>> {
        T::lying(self)
    }
}

impl<T> ArrayView<'_, T> {
    /// Whether the number of elements matches the shape.
    fn is_filled(&self) -> bool {
        let takes = self.shape.iter().try_fold(1usize, |all, &extent| all.checked_mul(extent));
        takes == Some(self.elements.len())
    }
}

impl<T: Element> Input for ArrayView<'_, T> {
    fn array(&self, spec: &FeatureSpec) -> Result<Array> {
        if !self.is_filled() {
            let (shape, count) = (self.shape, self.elements.len());
            fail!(Input, "`{}`: {count} elements do not fill the shape {shape:?}", spec.name);
        }
        T::array(self.shape.to_vec(), self.elements, &spec.name)
    }

    fn lying(&self) -> Option<BorrowedElements<'_>> {
        let lying = T::lying(self.elements).filter(|_| self.is_filled())?;
        Some(BorrowedElements { shape: Some(self.shape), ..lying })
    }
}

impl Input for Array {
    fn array(&self, _: &FeatureSpec) -> Result<Array> {
        Ok(self.clone())
    }

    fn lying(&self) -> Option<BorrowedElements<'_>> {
        let elements = match self.elements() {
            Elements::Floats(floats) => ElementsView::Floats(floats),
            Elements::Ints(ints) => ElementsView::Ints(ints),
            Elements::Texts(_) => return None,
        };
        Some(BorrowedElements { dtype: self.dtype(), elements, shape: Some(self.shape()) })
    }
}

#[cfg(feature = "ndarray")]
impl<T: Element, S: ndarray::RawData<Elem = T> + ndarray::Data, D: ndarray::Dimension> Input
    for ndarray::ArrayBase<S, D>
{
    fn array(&self, spec: &FeatureSpec) -> Result<Array> {
        let elements: Vec<T> = self.iter().copied().collect();
        T::array(self.shape().to_vec(), &elements, &spec.name)
    }

    fn lying(&self) -> Option<BorrowedElements<'_>> {
        let lying = T::lying(self.as_slice()?)?;
        Some(BorrowedElements { shape: Some(self.shape()), ..lying })
    }
}
