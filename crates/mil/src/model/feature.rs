use std::fmt;

use coremill_tensor::DType;

use crate::ir::UnknownFields;

/// What callers are told about an input, an output or a state.
#[derive(Clone, Debug, PartialEq)]
pub struct FeatureDescription {
    /// The name of the program's value.
    pub name: String,
    /// A text for people.
    pub short_description: String,
    /// What it holds.
    pub ty: FeatureType,
    /// Whether callers may leave it out.
    pub is_optional: bool,
    /// What the model file holds that this crate does not know.
    pub unknown: UnknownFields,
}

/// What a feature holds.
#[derive(Clone, Debug, PartialEq)]
pub enum FeatureType {
    /// Nothing that the model says; Core ML refuses it.
    Unspecified,
    /// An integer.
    Int64,
    /// A number.
    Double,
    /// A text.
    String,
    /// An image.
    Image(ImageType),
    /// An array.
    MultiArray(ArrayType),
    /// A map to numbers, from class labels to probabilities for instance.
    Dictionary(Option<KeyType>),
    /// A sequence.
    Sequence(SequenceType),
    /// An array that keeps its content between predictions.
    State(ArrayType),
}

/// What a dictionary is looked up by, or a sequence made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KeyType {
    /// Integers.
    Int64,
    /// Texts.
    String,
}

/// A sequence of integers or texts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SequenceType {
    /// What it is made of; none if the model does not say.
    pub element: Option<KeyType>,
    /// How long it may be.
    pub length: Option<SizeRange>,
}

/// An image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageType {
    /// The width in pixels, the default one if there are several.
    pub width: i64,
    /// The height in pixels, the default one if there are several.
    pub height: i64,
    /// The meaning of the pixels.
    pub color_space: ColorSpace,
    /// The other sizes that are accepted.
    pub sizes: ImageSizes,
}

/// The sizes that an image may have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ImageSizes {
    /// The default one.
    #[default]
    Fixed,
    /// Any of these.
    Enumerated(Vec<ImageSize>),
    /// Any within these ranges.
    Ranged {
        /// The widths.
        width: SizeRange,
        /// The heights.
        height: SizeRange,
    },
}

/// A size in pixels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ImageSize {
    /// The width.
    pub width: u64,
    /// The height.
    pub height: u64,
}

/// The meaning of an image's pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ColorSpace {
    /// 8 bits of grey.
    Grayscale,
    /// 8 bits each of red, green and blue.
    Rgb,
    /// 8 bits each of blue, green and red.
    Bgr,
    /// A 16-bit float of grey.
    GrayscaleFloat16,
    /// None of these; 0 is what the format calls invalid.
    Other(i32),
}

/// An array.
#[derive(Clone, Debug, PartialEq)]
pub struct ArrayType {
    /// The shape, the default one if there are several; empty for an output whose shape depends on
    /// the inputs.
    pub shape: Vec<i64>,
    /// The type of the elements.
    pub data_type: ArrayDataType,
    /// The other shapes that are accepted.
    pub flexibility: ShapeFlexibility,
    /// The element that an input which was left out is filled with.
    pub default: Option<DefaultElement>,
}

/// The shapes that an array may have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ShapeFlexibility {
    /// The default one.
    #[default]
    Fixed,
    /// Any of these.
    Enumerated(Vec<Vec<i64>>),
    /// Any whose dimensions lie within these.
    Ranged(Vec<SizeRange>),
}

/// What an array that was left out is filled with.
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
    /// 8-bit integers, from iOS 26 on.
    Int8,
    /// 16-bit floats, from iOS 16 on.
    Float16,
    /// None of these; 0 is what the format calls invalid.
    Other(i32),
}

/// The extents from `lower` to `upper`, both included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SizeRange {
    /// The smallest.
    pub lower: u64,
    /// The largest; there is none if it is negative. Writers say −1.
    pub upper: i64,
}

impl FeatureDescription {
    /// A feature that callers must give, without a text for people.
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
    /// The array, if it is one, or what a state holds.
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

    /// The image, if it is one.
    pub fn image(&self) -> Option<&ImageType> {
        match self {
            FeatureType::Image(image) => Some(image),
            _ => None,
        }
    }
}

impl ArrayType {
    /// An array of one shape.
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
    /// The range that holds one extent.
    pub fn exactly(extent: u64) -> SizeRange {
        SizeRange { lower: extent, upper: i64::try_from(extent).unwrap_or(-1) }
    }

    /// The largest extent; none if there is none.
    pub fn upper_bound(self) -> Option<u64> {
        u64::try_from(self.upper).ok()
    }

    /// Whether an extent lies within.
    pub fn contains(self, extent: u64) -> bool {
        extent >= self.lower && self.upper_bound().is_none_or(|upper| extent <= upper)
    }

    /// Whether there is one extent only.
    pub fn is_fixed(self) -> bool {
        self.upper_bound() == Some(self.lower)
    }
}

impl ColorSpace {
    /// The number in the model file.
    pub const fn code(self) -> i32 {
        match self {
            ColorSpace::Grayscale => 10,
            ColorSpace::Rgb => 20,
            ColorSpace::Bgr => 30,
            ColorSpace::GrayscaleFloat16 => 40,
            ColorSpace::Other(code) => code,
        }
    }

    /// The colour space of a number in the model file.
    pub const fn from_code(code: i32) -> ColorSpace {
        match code {
            10 => ColorSpace::Grayscale,
            20 => ColorSpace::Rgb,
            30 => ColorSpace::Bgr,
            40 => ColorSpace::GrayscaleFloat16,
            code => ColorSpace::Other(code),
        }
    }

    /// How many channels the tensor of such an image has.
    pub const fn channels(self) -> Option<u64> {
        match self {
            ColorSpace::Grayscale | ColorSpace::GrayscaleFloat16 => Some(1),
            ColorSpace::Rgb | ColorSpace::Bgr => Some(3),
            ColorSpace::Other(_) => None,
        }
    }
}

impl ArrayDataType {
    /// The number in the model file: the width in bits, plus 65536 for floats or 131072 for
    /// integers.
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

    /// The type of a number in the model file.
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

    /// The element type of the program's tensor.
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

    /// The type of an array that holds such elements; none if features have none for it.
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
    fn codes_round_trip() {
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
    fn negative_upper_bounds_are_none() {
        let open = SizeRange { lower: 2, upper: -1 };
        assert!(open.contains(2) && open.contains(u64::MAX) && !open.contains(1));
        assert!(SizeRange::exactly(3).is_fixed() && !open.is_fixed());
        assert!(!SizeRange { lower: 1, upper: 4 }.contains(5));
    }
}
