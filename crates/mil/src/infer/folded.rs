use std::sync::Arc;

use coremill_tensor::{Buffer, DType, packed};
use half::{bf16, f16};

use crate::ir::{Constant, ConstantData, Dim, Expr};

/// Elements of a small tensor, as far as inference knows them.
///
/// Programs compute shapes, axes, pads and scales from constants and from the dimensions of inputs. The types
/// of later operations depend on these values.
#[derive(Clone, Debug, PartialEq)]
pub struct KnownElements {
    /// The element type.
    pub dtype: DType,
    /// The shape; the product of the dimensions is the number of elements.
    pub shape: Vec<u64>,
    /// The elements in row-major order.
    pub elements: Vec<Scalar>,
}

/// One element.
#[derive(Clone, Debug, PartialEq)]
pub enum Scalar {
    /// A `bool`.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A float, rounded to the element type.
    Float(f64),
    /// A string.
    Text(Arc<str>),
    /// An integer that is a non-constant expression of unknown dimensions.
    Symbolic(Expr),
    /// An unknown element.
    Unknown,
}

/// Maximum number of elements of a folded tensor. No type depends on larger tensors, and a hostile program
/// could otherwise make inference run forever.
pub const MAX_FOLDED_ELEMENTS: u64 = 4096;

/// Maximum number of elements of a folded float constant. Larger float constants are weights, of which models
/// have thousands.
const MAX_FOLDED_FLOATS: u64 = 64;

impl KnownElements {
    /// A scalar.
    pub fn scalar(dtype: DType, element: Scalar) -> KnownElements {
        KnownElements { dtype, shape: Vec::new(), elements: vec![element] }
    }

    /// A vector.
    pub fn vector(dtype: DType, elements: Vec<Scalar>) -> KnownElements {
        KnownElements { dtype, shape: vec![elements.len() as u64], elements }
    }

    /// Returns a tensor; `None` if the shape does not match the number of elements, or if there are too many
    /// elements.
    pub fn new(dtype: DType, shape: Vec<u64>, elements: Vec<Scalar>) -> Option<KnownElements> {
        let count = shape.iter().try_fold(1u64, |count, &extent| count.checked_mul(extent))?;
        let fits = count == elements.len() as u64 && count <= MAX_FOLDED_ELEMENTS;
        fits.then_some(KnownElements { dtype, shape, elements })
    }

    /// The elements of a small constant tensor; `None` if its bytes were not read.
    pub fn from_constant(constant: &Constant) -> Option<KnownElements> {
        let tensor = constant.tensor_type()?;
        let shape = tensor.known_shape()?;
        let is_float = tensor.dtype.is_float();
        let most = if is_float { MAX_FOLDED_FLOATS } else { MAX_FOLDED_ELEMENTS };
        let count = tensor.element_count().filter(|&count| count <= most)?;
        let elements = match &constant.data {
            ConstantData::Strings(strings) => {
                strings.iter().map(|text| Scalar::Text(text.as_str().into())).collect()
            }
            _ => {
                let bytes = constant.elements()?;
                let decode = |bytes: &[u8]| decode(tensor.dtype, bytes, count as usize);
                bytes.with_window(0..bytes.len(), decode).ok()??
            }
        };
        KnownElements::new(tensor.dtype, shape, elements)
    }

    /// The constant with these elements, if all of them are known.
    pub fn to_constant(&self) -> Option<Constant> {
        if self.dtype == DType::String {
            let text = |element: &Scalar| match element {
                Scalar::Text(text) => Some(text.to_string()),
                _ => None,
            };
            let strings = self.elements.iter().map(text).collect::<Option<_>>()?;
            let ty = crate::ir::Type::tensor(self.dtype, &self.shape);
            return Some(Constant { ty, data: ConstantData::Strings(strings) });
        }
        let bytes = encode(self.dtype, &self.elements)?;
        Some(Constant::bytes(self.dtype, &self.shape, Buffer::from(bytes)))
    }

    /// The element of a tensor with exactly one element.
    pub fn only(&self) -> Option<&Scalar> {
        match self.elements.as_slice() {
            [element] => Some(element),
            _ => None,
        }
    }

    /// The elements as integers, if all are known.
    pub fn ints(&self) -> Option<Vec<i64>> {
        self.elements.iter().map(Scalar::int).collect()
    }

    /// The elements as expressions; `None` for unknown elements.
    pub fn exprs(&self) -> Vec<Option<Expr>> {
        self.elements.iter().map(Scalar::expr).collect()
    }
}

impl Scalar {
    /// Converts an expression to an element; a constant expression becomes an integer.
    pub fn from_expr(expr: Option<Expr>) -> Scalar {
        match expr {
            None => Scalar::Unknown,
            Some(expr) => match expr.constant() {
                Some(value) => Scalar::Int(value),
                None => Scalar::Symbolic(expr),
            },
        }
    }

    /// Converts a dimension to an element.
    pub fn from_dim(dim: &Dim) -> Scalar {
        Scalar::from_expr(dim.expr())
    }

    /// The value as an integer; a `bool` is 0 or 1.
    pub fn int(&self) -> Option<i64> {
        match self {
            Scalar::Bool(value) => Some(i64::from(*value)),
            Scalar::Int(value) => Some(*value),
            Scalar::Float(_) | Scalar::Text(_) | Scalar::Symbolic(_) | Scalar::Unknown => None,
        }
    }

    /// The value as an expression, if it is an integer.
    pub fn expr(&self) -> Option<Expr> {
        match self {
            Scalar::Symbolic(expr) => Some(expr.clone()),
            _ => self.int().map(Expr::from),
        }
    }

    /// The value as a float.
    pub fn float(&self) -> Option<f64> {
        match self {
            Scalar::Float(value) => Some(*value),
            _ => self.int().map(|value| value as f64),
        }
    }

    /// The value of a `bool`.
    pub fn bool(&self) -> Option<bool> {
        match self {
            Scalar::Bool(value) => Some(*value),
            _ => None,
        }
    }
}

/// Rounds a float to a float element type.
pub(crate) fn round_to(dtype: DType, value: f64) -> f64 {
    match dtype {
        DType::Fp16 => f16::from_f64(value).to_f64(),
        DType::Bf16 => bf16::from_f64(value).to_f64(),
        DType::Fp32 => f64::from(value as f32),
        _ => value,
    }
}

fn decode(dtype: DType, bytes: &[u8], count: usize) -> Option<Vec<Scalar>> {
    macro_rules! read {
        ($type:ty, $make:expr) => {{
            let chunks = bytes.chunks_exact(size_of::<$type>()).take(count);
            let value = |chunk: &[u8]| {
                let bytes = chunk.try_into().expect("chunks have the size of the type");
                $make(<$type>::from_le_bytes(bytes))
            };
            chunks.map(value).collect::<Vec<_>>()
        }};
    }
    let elements = match dtype {
        DType::Bool => bytes.iter().take(count).map(|&byte| Scalar::Bool(byte != 0)).collect(),
        DType::Fp16 => read!(f16, |value: f16| Scalar::Float(value.to_f64())),
        DType::Bf16 => read!(bf16, |value: bf16| Scalar::Float(value.to_f64())),
        DType::Fp32 => read!(f32, |value| Scalar::Float(f64::from(value))),
        DType::Fp64 => read!(f64, Scalar::Float),
        DType::Int16 => read!(i16, |value| Scalar::Int(i64::from(value))),
        DType::Int32 => read!(i32, |value| Scalar::Int(i64::from(value))),
        DType::Int64 => read!(i64, Scalar::Int),
        DType::UInt16 => read!(u16, |value| Scalar::Int(i64::from(value))),
        DType::UInt32 => read!(u32, |value| Scalar::Int(i64::from(value))),
        DType::UInt64 => {
            read!(u64, |value| i64::try_from(value).map_or(Scalar::Unknown, Scalar::Int))
        }
        DType::Fp8E4M3Fn | DType::Fp8E5M2 => vec![Scalar::Unknown; count],
        DType::String => return None,
        DType::Int4
        | DType::Int8
        | DType::UInt1
        | DType::UInt2
        | DType::UInt3
        | DType::UInt4
        | DType::UInt6
        | DType::UInt8 => {
            let values = packed::unpack(dtype, bytes, count)?;
            values.into_iter().map(|value| Scalar::Int(i64::from(value))).collect()
        }
    };
    (elements.len() == count).then_some(elements)
}

fn encode(dtype: DType, elements: &[Scalar]) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    if dtype.is_sub_byte() || matches!(dtype, DType::Int8 | DType::UInt8) {
        let narrow = |element: &Scalar| i16::try_from(element.int()?).ok();
        return packed::pack(dtype, &elements.iter().map(narrow).collect::<Option<Vec<_>>>()?);
    }
    for element in elements {
        match dtype {
            DType::Bool => bytes.push(u8::from(element.bool()?)),
            DType::Fp16 => bytes.extend(f16::from_f64(element.float()?).to_le_bytes()),
            DType::Bf16 => bytes.extend(bf16::from_f64(element.float()?).to_le_bytes()),
            DType::Fp32 => bytes.extend((element.float()? as f32).to_le_bytes()),
            DType::Fp64 => bytes.extend(element.float()?.to_le_bytes()),
            DType::Int16 => bytes.extend(i16::try_from(element.int()?).ok()?.to_le_bytes()),
            DType::Int32 => bytes.extend(i32::try_from(element.int()?).ok()?.to_le_bytes()),
            DType::Int64 => bytes.extend(element.int()?.to_le_bytes()),
            DType::UInt16 => bytes.extend(u16::try_from(element.int()?).ok()?.to_le_bytes()),
            DType::UInt32 => bytes.extend(u32::try_from(element.int()?).ok()?.to_le_bytes()),
            DType::UInt64 => bytes.extend(u64::try_from(element.int()?).ok()?.to_le_bytes()),
            DType::String
            | DType::Fp8E4M3Fn
            | DType::Fp8E5M2
            | DType::Int4
            | DType::Int8
            | DType::UInt1
            | DType::UInt2
            | DType::UInt3
            | DType::UInt4
            | DType::UInt6
            | DType::UInt8 => return None,
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_elements_round_trip_every_dtype() {
        for dtype in DType::ALL {
            if matches!(dtype, DType::String | DType::Fp8E4M3Fn | DType::Fp8E5M2) {
                continue;
            }
            let element = |value: i64| match dtype {
                DType::Bool => Scalar::Bool(value != 0),
                _ if dtype.is_float() => Scalar::Float(value as f64),
                _ => Scalar::Int(value),
            };
            let folded = KnownElements::vector(dtype, vec![element(1), element(0), element(1)]);
            let constant = folded.to_constant().expect("known");
            assert_eq!(KnownElements::from_constant(&constant), Some(folded), "{dtype}");
        }
        let text = KnownElements::scalar(DType::String, Scalar::Text("valid".into()));
        assert_eq!(KnownElements::from_constant(&Constant::string("valid")), Some(text));
    }

    #[test]
    fn does_not_fold_large_or_invalid_constants() {
        let large = Constant::bytes(DType::UInt8, &[5000], vec![0; 5000]);
        assert_eq!(KnownElements::from_constant(&large), None);
        let wide = KnownElements::scalar(DType::Int16, Scalar::Int(40_000));
        assert_eq!(wide.to_constant(), None);
        let short = Constant::bytes(DType::Int32, &[2], vec![0; 4]);
        assert_eq!(KnownElements::from_constant(&short), None);
    }
}
