//! Arguments of operations: values of the graph, or literal numbers.

use coremill_mil::ir::Constant;
use coremill_tensor::DType;

use crate::tensor::Tensor;

/// The argument of one parameter.
#[derive(Clone, Debug)]
pub struct Arg<'g>(pub(crate) Operand<'g>);

#[derive(Clone, Debug)]
pub(crate) enum Operand<'g> {
    Tensor(Tensor<'g>),
    Constant(Constant),
}

/// Several tensors or numbers for one parameter, from any iterator.
#[derive(Clone, Debug)]
pub struct Args<'g>(pub(crate) Vec<Arg<'g>>);

impl<'g, I: IntoIterator<Item: Into<Arg<'g>>>> From<I> for Args<'g> {
    fn from(args: I) -> Args<'g> {
        Args(args.into_iter().map(Into::into).collect())
    }
}

/// One or more integers, known when the graph is built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ints {
    pub(crate) values: Vec<i64>,
    pub(crate) is_scalar: bool,
}

/// The sizes that [`extents`] accepts.
pub(crate) const ACCEPTED_EXTENTS: &str =
    "expected sizes from 1 to 2^31 - 1, and fewer than 2^61 elements";

/// Converts declared sizes. Each must fit Core ML's 32 bits, and the number of bytes must fit 63 bits.
pub(crate) fn extents(shape: &[i64]) -> Option<Vec<u64>> {
    let extent = |&extent: &i64| i32::try_from(extent).ok().filter(|&e| e > 0).map(|e| e as u64);
    let extents = shape.iter().map(extent).collect::<Option<Vec<u64>>>()?;
    let count = extents.iter().try_fold(1i64, |all, &extent| all.checked_mul(extent as i64))?;
    count.checked_mul(4).map(|_| extents)
}

/// One or more booleans, known when the graph is built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bools {
    pub(crate) values: Vec<bool>,
    pub(crate) is_scalar: bool,
}

impl Ints {
    /// Converts to a constant; the error is an integer out of the range of the type.
    pub(crate) fn constant(&self, dtype: DType) -> Result<Constant, i64> {
        let mut bytes = Vec::with_capacity(self.values.len() * 4);
        for &value in &self.values {
            let word = match dtype {
                DType::UInt32 => u32::try_from(value).map(u32::to_le_bytes),
                _ => i32::try_from(value).map(i32::to_le_bytes),
            };
            bytes.extend(word.map_err(|_| value)?);
        }
        let shape: &[u64] = if self.is_scalar { &[] } else { &[self.values.len() as u64] };
        Ok(Constant::bytes(dtype, shape, bytes))
    }
}

impl Bools {
    pub(crate) fn constant(&self) -> Constant {
        let bytes: Vec<u8> = self.values.iter().map(|&value| u8::from(value)).collect();
        let shape: &[u64] = if self.is_scalar { &[] } else { &[self.values.len() as u64] };
        Constant::bytes(DType::Bool, shape, bytes)
    }
}

fn floats(values: &[f32]) -> Constant {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    Constant::by_size(DType::Fp32, &[values.len() as u64], bytes)
}

fn int32s(values: &[i32]) -> Constant {
    Constant::int32s(values)
}

macro_rules! ints_from {
    ($($int:ty),*) => {$(
        impl From<$int> for Ints {
            fn from(value: $int) -> Ints {
                // An integer that exceeds 64 bits exceeds all parameter types, too; the clamped value is
                // rejected as well.
                let value = i64::try_from(value).unwrap_or(i64::MAX);
                Ints { values: vec![value], is_scalar: true }
            }
        }

        impl From<&[$int]> for Ints {
            fn from(values: &[$int]) -> Ints {
                let values = values.iter().map(|&value| i64::try_from(value).unwrap_or(i64::MAX));
                Ints { values: values.collect(), is_scalar: false }
            }
        }

        impl From<Vec<$int>> for Ints {
            fn from(values: Vec<$int>) -> Ints {
                values.as_slice().into()
            }
        }

        impl From<&Vec<$int>> for Ints {
            fn from(values: &Vec<$int>) -> Ints {
                values.as_slice().into()
            }
        }

        impl<const N: usize> From<[$int; N]> for Ints {
            fn from(values: [$int; N]) -> Ints {
                values.as_slice().into()
            }
        }
    )*};
}
ints_from!(i32, i64, usize, u64);

/// The shape of a scalar.
impl From<()> for Ints {
    fn from((): ()) -> Ints {
        Ints { values: Vec::new(), is_scalar: false }
    }
}

impl From<bool> for Bools {
    fn from(value: bool) -> Bools {
        Bools { values: vec![value], is_scalar: true }
    }
}

impl From<&[bool]> for Bools {
    fn from(values: &[bool]) -> Bools {
        Bools { values: values.to_vec(), is_scalar: false }
    }
}

impl From<Vec<bool>> for Bools {
    fn from(values: Vec<bool>) -> Bools {
        Bools { values, is_scalar: false }
    }
}

impl<const N: usize> From<[bool; N]> for Bools {
    fn from(values: [bool; N]) -> Bools {
        values.as_slice().into()
    }
}

impl<'g> From<Tensor<'g>> for Arg<'g> {
    fn from(tensor: Tensor<'g>) -> Arg<'g> {
        Arg(Operand::Tensor(tensor))
    }
}

impl<'g> From<&Tensor<'g>> for Arg<'g> {
    fn from(tensor: &Tensor<'g>) -> Arg<'g> {
        Arg(Operand::Tensor(*tensor))
    }
}

macro_rules! arg_from {
    ($($(#[$of:meta])? $from:ty => $constant:expr;)*) => {$(
        impl From<$from> for Arg<'_> {
            fn from(value: $from) -> Self {
                let constant: fn($from) -> Constant = $constant;
                Arg(Operand::Constant(constant(value)))
            }
        }
    )*};
}
arg_from! {
    Constant => |value| value;
    f32 => Constant::fp32;
    i32 => Constant::int32;
    bool => Constant::bool;
    &str => |value| Constant::string(value);
    &[f32] => floats;
    Vec<f32> => |values| floats(&values);
    &Vec<f32> => |values| floats(values);
    &[i32] => int32s;
    Vec<i32> => |values| int32s(&values);
    &Vec<i32> => |values| int32s(values);
    Vec<bool> => |values| Bools::from(values).constant();
}

impl<const N: usize> From<[f32; N]> for Arg<'_> {
    fn from(values: [f32; N]) -> Self {
        Arg(Operand::Constant(floats(&values)))
    }
}

impl<const N: usize> From<[i32; N]> for Arg<'_> {
    fn from(values: [i32; N]) -> Self {
        Arg(Operand::Constant(int32s(&values)))
    }
}

impl<const N: usize> From<[bool; N]> for Arg<'_> {
    fn from(values: [bool; N]) -> Self {
        Arg(Operand::Constant(Bools::from(values).constant()))
    }
}
