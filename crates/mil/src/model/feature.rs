use std::fmt;

use coremill_tensor::DType;

use crate::ir::UnknownFields;

/// Description of an input, an output or a state.
#[derive(Clone, Debug, PartialEq)]
pub struct FeatureDescription {
    /// Name of the program's value.
    pub name: String,
    /// Description for users.
    pub short_description: String,
    /// The type.
    pub ty: FeatureType,
    /// Whether callers may omit it.
    pub is_optional: bool,
    /// Fields of the model file that this crate does not know.
    pub unknown: UnknownFields,
}

/// The type of a feature.
#[derive(Clone, Debug, PartialEq)]
pub enum FeatureType {
    /// The model does not specify a type; Core ML rejects it.
    Unspecified,
    /// A 64-bit integer.
    Int64,
    /// A 64-bit float.
    Double,
    /// A string.
    String,
    /// An image.
    Image(ImageType),
    /// An array.
    MultiArray(ArrayType),
    /// A map to numbers, for instance from class labels to probabilities.
    Dictionary(Option<KeyType>),
    /// A sequence.
    Sequence(SequenceType),
    /// An array that keeps its contents between predictions.
    State(ArrayType),
}

/// Type of a dictionary's keys or of a sequence's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyType {
    /// Integers.
    Int64,
    /// Strings.
    String,
}

/// A sequence of integers or strings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SequenceType {
    /// Type of the elements; `None` if the model does not specify it.
    pub element: Option<KeyType>,
    /// Allowed lengths.
    pub length: Option<SizeRange>,
}

/// An image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageType {
    /// The width in pixels; the default width if several are allowed.
    pub width: i64,
    /// The height in pixels; the default height if several are allowed.
    pub height: i64,
    /// The color space.
    pub color_space: ColorSpace,
    /// Other allowed sizes.
    pub sizes: ImageSizes,
}

/// Allowed sizes of an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ImageSizes {
    /// Only the default size.
    #[default]
    Fixed,
    /// One of these sizes.
    Enumerated(Vec<ImageSize>),
    /// Any size within these ranges.
    Ranged {
        /// Allowed widths.
        width: SizeRange,
        /// Allowed heights.
        height: SizeRange,
    },
}

/// The size of an image in pixels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ImageSize {
    /// The width.
    pub width: u64,
    /// The height.
    pub height: u64,
}

/// The color space of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ColorSpace {
    /// 8-bit gray.
    Grayscale,
    /// 8-bit red, green and blue.
    Rgb,
    /// 8-bit blue, green and red.
    Bgr,
    /// 16-bit float gray.
    GrayscaleFloat16,
    /// An unknown code; the format uses 0 for an invalid color space.
    Other(i32),
}

/// An array.
#[derive(Clone, Debug, PartialEq)]
pub struct ArrayType {
    /// The shape; the default shape if several are allowed. Empty for an output whose shape depends on the
    /// inputs.
    pub shape: Vec<i64>,
    /// The type of the elements.
    pub data_type: ArrayDataType,
    /// Other allowed shapes.
    pub flexibility: ShapeFlexibility,
    /// Fill value for an omitted input.
    pub default: Option<DefaultElement>,
}

/// Allowed shapes of an array.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ShapeFlexibility {
    /// Only the default shape.
    #[default]
    Fixed,
    /// One of these shapes.
    Enumerated(Vec<Vec<i64>>),
    /// Any shape whose dimensions are within these ranges.
    Ranged(Vec<SizeRange>),
}

/// Fill value for an omitted array.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DefaultElement {
    /// An integer.
    Int(i32),
    /// A float.
    Float(f32),
    /// A double.
    Double(f64),
}

/// The element type of an array feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ArrayDataType {
    /// 32-bit floats.
    Float32,
    /// 64-bit floats.
    Double,
    /// 32-bit integers.
    Int32,
    /// 8-bit integers, since iOS 26.
    Int8,
    /// 16-bit floats, since iOS 16.
    Float16,
    /// An unknown code; the format uses 0 for an invalid type.
    Other(i32),
}

/// The sizes from `lower` to `upper`, both inclusive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SizeRange {
    /// The smallest size.
    pub lower: u64,
    /// The largest size; negative if unbounded. Writers use −1.
    pub upper: i64,
}

impl FeatureDescription {
    /// Returns a required feature without a description.
    pub fn new(name: impl Into<String>, ty: FeatureType) -> FeatureDescription {
        FeatureDescription {
            name: name.into(),
            short_description: String::new(),
            ty,
            is_optional: false,
            unknown: UnknownFields::default(),
        }
    }
}

impl FeatureType {
    /// The array type of an array or a state.
    pub fn array(&self) -> Option<&ArrayType> {
        match self {
            FeatureType::MultiArray(array) | FeatureType::State(array) => Some(array),
            FeatureType::Unspecified
            | FeatureType::Int64
            | FeatureType::Double
            | FeatureType::String
            | FeatureType::Image(_)
            | FeatureType::Dictionary(_)
            | FeatureType::Sequence(_) => None,
        }
    }

    /// The image type of an image.
    pub fn image(&self) -> Option<&ImageType> {
        match self {
            FeatureType::Image(image) => Some(image),
            _ => None,
        }
    }
}

impl ArrayType {
    /// Returns an array type with one allowed shape.
    pub fn fixed(data_type: ArrayDataType, shape: &[i64]) -> ArrayType {
        ArrayType {
            shape: shape.to_vec(),
            data_type,
            flexibility: ShapeFlexibility::Fixed,
            default: None,
        }
    }
}

impl SizeRange {
    /// Returns the range that contains only this size.
    pub fn exactly(extent: u64) -> SizeRange {
        SizeRange { lower: extent, upper: i64::try_from(extent).unwrap_or(-1) }
    }

    /// The largest size; `None` if unbounded.
    pub fn upper_bound(self) -> Option<u64> {
        u64::try_from(self.upper).ok()
    }

    /// Whether the range contains a size.
    pub fn contains(self, extent: u64) -> bool {
        extent >= self.lower && self.upper_bound().is_none_or(|upper| extent <= upper)
    }

    /// Whether the range contains only one size.
    pub fn is_fixed(self) -> bool {
        self.upper_bound() == Some(self.lower)
    }
}

impl ColorSpace {
    /// Code of the color space in the model file.
    pub const fn code(self) -> i32 {
        match self {
            ColorSpace::Grayscale => 10,
            ColorSpace::Rgb => 20,
            ColorSpace::Bgr => 30,
            ColorSpace::GrayscaleFloat16 => 40,
            ColorSpace::Other(code) => code,
        }
    }

    /// Returns the color space with this code in the model file.
    pub const fn from_code(code: i32) -> ColorSpace {
        match code {
            10 => ColorSpace::Grayscale,
            20 => ColorSpace::Rgb,
            30 => ColorSpace::Bgr,
            40 => ColorSpace::GrayscaleFloat16,
            code => ColorSpace::Other(code),
        }
    }

    /// Number of channels of the tensor for such an image.
    pub const fn channels(self) -> Option<u64> {
        match self {
            ColorSpace::Grayscale | ColorSpace::GrayscaleFloat16 => Some(1),
            ColorSpace::Rgb | ColorSpace::Bgr => Some(3),
            ColorSpace::Other(_) => None,
        }
    }
}

impl ArrayDataType {
    /// Code of the type in the model file: the number of bits, plus 65536 for floats or 131072 for integers.
    pub const fn code(self) -> i32 {
        match self {
            ArrayDataType::Float16 => 65552,
            ArrayDataType::Float32 => 65568,
            ArrayDataType::Double => 65600,
            ArrayDataType::Int8 => 131080,
            ArrayDataType::Int32 => 131104,
            ArrayDataType::Other(code) => code,
        }
    }

    /// Returns the type with this code in the model file.
    pub const fn from_code(code: i32) -> ArrayDataType {
        match code {
            65552 => ArrayDataType::Float16,
            65568 => ArrayDataType::Float32,
            65600 => ArrayDataType::Double,
            131080 => ArrayDataType::Int8,
            131104 => ArrayDataType::Int32,
            code => ArrayDataType::Other(code),
        }
    }

    /// The element type of the corresponding tensor.
    pub const fn dtype(self) -> Option<DType> {
        match self {
            ArrayDataType::Float16 => Some(DType::Fp16),
            ArrayDataType::Float32 => Some(DType::Fp32),
            ArrayDataType::Double => Some(DType::Fp64),
            ArrayDataType::Int8 => Some(DType::Int8),
            ArrayDataType::Int32 => Some(DType::Int32),
            ArrayDataType::Other(_) => None,
        }
    }

    /// The array type for an element type; `None` if features do not support the element type.
    pub const fn from_dtype(dtype: DType) -> Option<ArrayDataType> {
        match dtype {
            DType::Fp16 => Some(ArrayDataType::Float16),
            DType::Fp32 => Some(ArrayDataType::Float32),
            DType::Fp64 => Some(ArrayDataType::Double),
            DType::Int8 => Some(ArrayDataType::Int8),
            DType::Int32 => Some(ArrayDataType::Int32),
            _ => None,
        }
    }
}

impl fmt::Display for ColorSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ColorSpace::Grayscale => f.pad("grayscale"),
            ColorSpace::Rgb => f.pad("RGB"),
            ColorSpace::Bgr => f.pad("BGR"),
            ColorSpace::GrayscaleFloat16 => f.pad("grayscale float16"),
            ColorSpace::Other(code) => write!(f, "color space {code}"),
        }
    }
}

impl fmt::Display for ArrayDataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ArrayDataType::Float16 => f.pad("float16"),
            ArrayDataType::Float32 => f.pad("float32"),
            ArrayDataType::Double => f.pad("double"),
            ArrayDataType::Int8 => f.pad("int8"),
            ArrayDataType::Int32 => f.pad("int32"),
            ArrayDataType::Other(code) => write!(f, "data type {code}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn color_space_and_array_type_codes_round_trip() {
        for code in [0, 10, 20, 30, 40, 7] {
            assert_eq!(ColorSpace::from_code(code).code(), code);
        }
        for code in [0, 65552, 65568, 65600, 131080, 131104, 7] {
            let data_type = ArrayDataType::from_code(code);
            assert_eq!(data_type.code(), code);
            assert_eq!(data_type.dtype().and_then(ArrayDataType::from_dtype).is_some(), code > 40);
        }
    }

    #[test]
    fn negative_upper_bound_means_unbounded() {
        let open = SizeRange { lower: 2, upper: -1 };
        assert!(open.contains(2) && open.contains(u64::MAX) && !open.contains(1));
        assert!(SizeRange::exactly(3).is_fixed() && !open.is_fixed());
        assert!(!SizeRange { lower: 1, upper: 4 }.contains(5));
    }
}
