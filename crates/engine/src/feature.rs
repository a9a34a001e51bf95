//! Inputs, outputs and states of functions, and validation of the arrays passed to them.

use coremill_mil::ir::{Dim, TensorType, Type};
use coremill_mil::model::{
    ArrayType, DefaultElement, FeatureDescription, FeatureType, ImageSizes, ImageType,
    ShapeFlexibility, SizeRange,
};
use coremill_simd::Isa;
use coremill_simd::math::round_to_fp16;
use coremill_tensor::DType;

use coremill_reference::array::{Array, Elements, View, int_range, round_floats};
use coremill_reference::call::count_within;
use coremill_reference::error::{Error, Result, fail};
use coremill_reference::limits::Limits;

use crate::states::StateValue;

/// An input, an output or a state of a function.
#[derive(Clone, Debug, PartialEq)]
pub struct FeatureSpec {
    /// Name in the function's signature.
    pub name: String,
    /// The declared type. For a state, the type of its value.
    pub ty: Type,
    /// The model's description: allowed shapes, preprocessing of images.
    pub description: Option<FeatureDescription>,
}

impl FeatureSpec {
    /// The shape to use if the caller specifies none. `None` if neither the program nor the
    /// description has one.
    pub fn default_shape(&self) -> Option<Vec<usize>> {
        let ty = self.ty.as_tensor()?;
        let known: Vec<Option<usize>> = ty.shape.iter().map(known_extent).collect();
        if let Some(shape) = known.iter().copied().collect() {
            return Some(shape);
        }
        let described: Vec<Option<usize>> = match &self.description.as_ref()?.ty {
            FeatureType::MultiArray(array) | FeatureType::State(array) => {
                let stated = array.shape.iter().map(|&extent| usize::try_from(extent).ok());
                match &array.flexibility {
                    // A description may have only ranges. Their lower bounds are the default shape.
                    ShapeFlexibility::Ranged(ranges) if array.shape.is_empty() => {
                        ranges.iter().map(|range| usize::try_from(range.lower).ok()).collect()
                    }
                    _ => stated.collect(),
                }
            }
            FeatureType::Image(image) => {
                let mut shape = known.clone();
                if let [.., height, width] = &mut shape[..] {
                    *height = usize::try_from(image.height).ok();
                    *width = usize::try_from(image.width).ok();
                }
                shape
            }
            _ => return None,
        };
        if described.len() != known.len() {
            return None;
        }
        known.into_iter().zip(described).map(|(known, described)| known.or(described)).collect()
    }

    /// The allowed shapes as text: `[1, 3, 224, 224]`, `[1, 1…32]`, `[1, 3] or [1, 4]`.
    pub fn accepted_shapes(&self) -> String {
        let Some(ty) = self.ty.as_tensor() else { return self.ty.to_string() };
        let plain = || {
            let dims = ty.shape.iter().map(|dim| match dim {
                Dim::Known(extent) => extent.to_string(),
                Dim::Unknown | Dim::Symbolic(_) => "?".to_owned(),
            });
            format!("[{}]", dims.collect::<Vec<_>>().join(", "))
        };
        match self.description.as_ref().map(|description| &description.ty) {
            Some(FeatureType::MultiArray(array)) => match &array.flexibility {
                ShapeFlexibility::Ranged(ranges) => {
                    let ranges: Vec<_> = ranges.iter().map(|&range| range_text(range)).collect();
                    format!("[{}]", ranges.join(", "))
                }
                ShapeFlexibility::Enumerated(shapes) => {
                    let mut shapes: Vec<_> =
                        shapes.iter().map(|shape| format!("{shape:?}")).collect();
                    if !array.shape.is_empty() {
                        shapes.insert(0, format!("{:?}", array.shape));
                    }
                    one_of(shapes)
                }
                ShapeFlexibility::Fixed if array.shape.len() == ty.rank() => {
                    format!("{:?}", array.shape)
                }
                ShapeFlexibility::Fixed => plain(),
            },
            Some(FeatureType::Image(image)) => {
                let leading: Vec<_> = ty.shape.iter().map(ToString::to_string).collect();
                let leading = leading.split_last_chunk::<2>().map_or(&[][..], |(rest, _)| rest);
                let whole = |height: String, width: String| {
                    let dims = leading.iter().cloned().chain([height, width]);
                    format!("[{}]", dims.collect::<Vec<_>>().join(", "))
                };
                let default = whole(image.height.to_string(), image.width.to_string());
                match &image.sizes {
                    ImageSizes::Fixed => default,
                    ImageSizes::Ranged { width, height } => {
                        whole(range_text(*height), range_text(*width))
                    }
                    ImageSizes::Enumerated(sizes) => {
                        let sizes = sizes
                            .iter()
                            .map(|size| whole(size.height.to_string(), size.width.to_string()));
                        one_of([default].into_iter().chain(sizes).collect())
                    }
                }
            }
            _ => plain(),
        }
    }

    /// Returns true if the model allows this shape.
    pub fn accepts_shape(&self, shape: &[usize]) -> bool {
        let Some(ty) = self.ty.as_tensor() else { return false };
        let fits = ty.rank() == shape.len()
            && ty.shape.iter().zip(shape).all(|(dim, &extent)| match dim {
                Dim::Known(expected) => *expected == extent as u64,
                Dim::Unknown | Dim::Symbolic(_) => true,
            });
        fits && match self.description.as_ref().map(|description| &description.ty) {
            Some(FeatureType::MultiArray(array)) => array_accepts(array, shape),
            Some(FeatureType::Image(image)) => match shape {
                [.., height, width] => image_accepts(image, *height, *width),
                _ => false,
            },
            _ => true,
        }
    }

    /// Returns true if a tensor can be read in place: the shape is allowed, the type is the
    /// declared one, and its elements need no validation.
    pub(crate) fn takes_as_is(&self, view: &View<'_>) -> bool {
        let ty = self.ty.as_tensor();
        let same = ty.is_some_and(|ty| {
            ty.dtype == view.dtype && matches!(ty.dtype, DType::Fp32 | DType::Int32)
        });
        same && self.accepts_shape(view.shape) && view.shape.iter().product::<usize>() == view.len()
    }

    /// Validates shape and element type, and converts elements to the declared type.
    pub fn accept(&self, mut array: Array) -> Result<Array> {
        let name = &self.name;
        let Some(ty) = self.ty.as_tensor() else {
            fail!("`{name}` is a `{}`; only tensors can be passed", self.ty);
        };
        array = adapted(ty, array);
        if !self.accepts_shape(array.shape()) {
            let found = array.shape();
            let of_shape = match ty.known_shape() {
                Some(_) => String::new(),
                None => format!(" of shape {}", self.accepted_shapes()),
            };
            fail!("`{name}` expects a `{ty}`{of_shape}, found shape {found:?}");
        }
        let same_kind = match array.elements() {
            Elements::Floats(_) => ty.dtype.is_float(),
            Elements::Ints(_) => {
                (ty.dtype == DType::Bool) == (array.dtype() == DType::Bool)
                    && int_range(ty.dtype).is_some()
            }
            Elements::Texts(_) => ty.dtype == DType::String,
        };
        if !same_kind {
            let found = array.dtype();
            let message = format!("`{name}` expects a `{ty}`, found elements of type `{found}`");
            let wanted = if ty.dtype.is_float() { "floats" } else { "integers" };
            return Err(Error::new(message).with_hint(format!("pass {wanted}")));
        }
        if array.dtype() != ty.dtype {
            if let (Some((low, high)), Some(ints)) = (int_range(ty.dtype), array.as_ints())
                && let Some(outside) = ints.iter().find(|int| !(low..=high).contains(int))
            {
                fail!(
                    "`{name}` expects a `{ty}` with elements from {low} to {high}, found {outside}"
                );
            }
            array = round_to(ty, array).map_err(|outside| {
                let dtype = ty.dtype;
                Error::new(format!(
                    "`{name}` expects a `{ty}`, found the element {outside}, which overflows `{dtype}`"
                ))
            })?;
        }
        Ok(array)
    }

    /// The default value of an optional input. `None` unless the description makes the input
    /// optional and specifies its element.
    pub fn default_array(&self) -> Result<Option<Array>> {
        let Some(description) = self.description.as_ref().filter(|found| found.is_optional) else {
            return Ok(None);
        };
        let Some(element) = description.ty.array().and_then(|array| array.default) else {
            return Ok(None);
        };
        let (Some(ty), Some(shape)) = (self.ty.as_tensor(), self.default_shape()) else {
            return Ok(None);
        };
        filled(ty.dtype, shape, element).map(Some)
    }

    /// Initial value of a state.
    pub(crate) fn zeros(&self) -> Result<StateValue> {
        let ty = self.ty.as_tensor();
        let shape = ty.and_then(|ty| ty.shape.iter().map(known_extent).collect::<Option<Vec<_>>>());
        let (Some(ty), Some(shape)) = (ty, shape) else {
            fail!("state `{}` is a `{}`; expected a tensor of fixed shape", self.name, self.ty);
        };
        count_within(&shape, &Limits::default())?;
        if !ty.dtype.is_float() && int_range(ty.dtype).is_none() {
            fail!("elements of type `{}` cannot be initialized to 0", ty.dtype);
        }
        Ok(StateValue::zeros(ty.dtype, shape))
    }
}

fn known_extent(dim: &Dim) -> Option<usize> {
    match dim {
        Dim::Known(extent) => usize::try_from(*extent).ok(),
        Dim::Unknown | Dim::Symbolic(_) => None,
    }
}

fn array_accepts(array: &ArrayType, shape: &[usize]) -> bool {
    let is = |stated: &[i64]| {
        stated.len() == shape.len()
            && stated.iter().zip(shape).all(|(&stated, &extent)| {
                usize::try_from(stated).is_ok_and(|stated| stated == extent)
            })
    };
    match &array.flexibility {
        ShapeFlexibility::Fixed => array.shape.is_empty() || is(&array.shape),
        ShapeFlexibility::Enumerated(shapes) => {
            is(&array.shape) || shapes.iter().any(|shape| is(shape))
        }
        ShapeFlexibility::Ranged(ranges) => {
            ranges.len() == shape.len()
                && ranges.iter().zip(shape).all(|(range, &extent)| range.contains(extent as u64))
        }
    }
}

fn image_accepts(image: &ImageType, height: usize, width: usize) -> bool {
    let is_default =
        usize::try_from(image.height) == Ok(height) && usize::try_from(image.width) == Ok(width);
    let (height, width) = (height as u64, width as u64);
    match &image.sizes {
        ImageSizes::Fixed => is_default,
        ImageSizes::Enumerated(sizes) => {
            is_default || sizes.iter().any(|size| size.height == height && size.width == width)
        }
        ImageSizes::Ranged { width: widths, height: heights } => {
            widths.contains(width) && heights.contains(height)
        }
    }
}

/// Adapts an array as Core ML does: a scalar becomes rank 1, and bools become numbers.
fn adapted(ty: &TensorType, array: Array) -> Array {
    let array = match (array.shape(), ty.rank()) {
        ([], 1) => array.clone().reshaped([1]).unwrap_or(array),
        _ => array,
    };
    match array.as_ints() {
        Some(ints) if array.dtype() == DType::Bool && ty.dtype.is_float() => {
            let floats = ints.iter().map(|&int| int as f32).collect();
            Array::floats(DType::Fp32, array.shape(), floats)
        }
        Some(ints) if array.dtype() == DType::Bool && ty.dtype != DType::Bool => {
            Array::ints(DType::Int32, array.shape(), ints.to_vec())
        }
        _ => array,
    }
}

/// Rounds an array to the type. The error is a finite element that overflows.
fn round_to(ty: &TensorType, array: Array) -> std::result::Result<Array, f32> {
    let was = match (ty.dtype, array.as_floats()) {
        // Values stored as fp32 cannot overflow any other type.
        (DType::Fp16 | DType::Bf16, Some(floats)) => floats,
        _ => return Ok(array.retyped(ty.dtype)),
    };
    let mut rounded = was.to_vec();
    match ty.dtype {
        DType::Fp16 => round_to_fp16(Isa::detect(), &mut rounded),
        dtype => round_floats(dtype, &mut rounded),
    }
    let overflows = |(was, is): (&f32, &f32)| was.is_finite() & !is.is_finite();
    // The vectorized check covers all elements. Only if it fails does a search find the element.
    if was.iter().zip(&rounded).fold(false, |any, pair| any | overflows(pair))
        && let Some((outside, _)) = was.iter().zip(&rounded).find(|&pair| overflows(pair))
    {
        return Err(*outside);
    }
    Ok(Array::floats(ty.dtype, array.shape(), rounded))
}

fn filled(dtype: DType, shape: Vec<usize>, element: DefaultElement) -> Result<Array> {
    let count = count_within(&shape, &Limits::default())?;
    let number = match element {
        DefaultElement::Int(value) => f64::from(value),
        DefaultElement::Float(value) => f64::from(value),
        DefaultElement::Double(value) => value,
    };
    if dtype.is_float() {
        let mut rounded = [number as f32];
        round_floats(dtype, &mut rounded);
        // Memory of zeros is not touched before it is written.
        return Ok(Array::floats(dtype, shape, vec![rounded[0]; count]));
    }
    match int_range(dtype) {
        Some((low, high)) if (f64::from(low)..=f64::from(high)).contains(&number) => {
            Ok(Array::ints(dtype, shape, vec![number as i32; count]))
        }
        _ => fail!("`{dtype}` cannot represent the default value {number}"),
    }
}

fn range_text(range: SizeRange) -> String {
    match range.upper_bound() {
        Some(upper) if upper == range.lower => upper.to_string(),
        Some(upper) => format!("{}…{upper}", range.lower),
        None => format!("{}…", range.lower),
    }
}

/// Formats choices as `a`, `a or b` or `a, b or c`, without repetitions.
fn one_of(mut choices: Vec<String>) -> String {
    let mut seen = std::collections::HashSet::new();
    choices.retain(|choice| seen.insert(choice.clone()));
    match choices.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        Some((only, _)) => only.clone(),
        None => "none".to_owned(),
    }
}
