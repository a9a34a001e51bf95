//! Parameters of weights that a model holds in compressed form, for compressing them further.

use coremill_mil::ir::{Binding, Constant, Op, ValueId};
use coremill_mil::ops::OpKind;
use coremill_passes::Editor;
use coremill_tensor::{DType, packed};
use half::f16;

use super::blocks::Blocks;
use super::form::trained::{TrainedCompression, TrainedIntegers, TrainedParameter, TrainedTable};

/// Parameters of the compressed weight that an operation computes, in the operations of iOS18. `None` for other
/// operations and combinations.
pub fn compression_of(editor: &Editor<'_>, value: ValueId) -> Option<TrainedCompression> {
    let op = producer(editor, value)?;
    match op.kind()? {
        OpKind::ConstexprSparseToDense => {
            let data = op.binding("nonzero_data")?;
            let mut found = match data {
                _ if editor.function().bound_constant(data).is_some() => {
                    TrainedCompression::default()
                }
                Binding::Literal(_) => return None,
                Binding::Value(value) => sparse_data(editor, *value)?,
            };
            found.is_sparse = true;
            Some(found)
        }
        OpKind::ConstexprBlockwiseShiftScale => scaled(editor, op),
        OpKind::ConstexprLutToDense => looked_up(editor, op),
        _ => None,
    }
}

fn producer<'e>(editor: &'e Editor<'_>, value: ValueId) -> Option<&'e Op> {
    editor.op(editor.producer(value)?)
}

/// The operation that computes a parameter.
fn computed<'e>(editor: &'e Editor<'_>, op: &Op, name: &str) -> Option<&'e Op> {
    match op.binding(name)? {
        Binding::Value(value) => producer(editor, *value),
        Binding::Literal(_) => None,
    }
}

/// Compression of the elements of a sparse weight.
fn sparse_data(editor: &Editor<'_>, value: ValueId) -> Option<TrainedCompression> {
    let op = producer(editor, value)?;
    match op.kind()? {
        OpKind::ConstexprSparseBlockwiseShiftScale => {
            let integers = Some(integers(editor, op, "nonzero_data")?);
            Some(TrainedCompression { integers, ..TrainedCompression::default() })
        }
        OpKind::ConstexprLutToSparse => looked_up(editor, op),
        _ => None,
    }
}

/// A weight with a scale: integers, or the results of a look-up.
fn scaled(editor: &Editor<'_>, op: &Op) -> Option<TrainedCompression> {
    if let Some(lookup) = computed(editor, op, "data")
        && lookup.kind() == Some(OpKind::ConstexprLutToDense)
    {
        let mut found = looked_up(editor, lookup)?;
        let table = found.table.as_mut()?;
        if found.integers.is_some() || table.scale.is_some() || op.binding("offset").is_some() {
            return None;
        }
        table.scale = Some(parameter(editor, op, "scale")?);
        return Some(found);
    }
    let integers = Some(integers(editor, op, "data")?);
    Some(TrainedCompression { integers, ..TrainedCompression::default() })
}

fn integers(editor: &Editor<'_>, op: &Op, data: &str) -> Option<TrainedIntegers> {
    let data = editor.function().bound_constant(op.binding(data)?)?.tensor_type()?;
    let bits = data.dtype.bits().filter(|_| !data.dtype.is_float())?;
    let zero_point = match op.binding("offset") {
        None => None,
        Some(_) => Some(parameter(editor, op, "offset")?),
    };
    Some(TrainedIntegers { bits, scale: parameter(editor, op, "scale")?, zero_point })
}

/// A look-up in tables of floats, of integers, or of floats with a scale.
fn looked_up(editor: &Editor<'_>, op: &Op) -> Option<TrainedCompression> {
    let vector_axis = match op.binding("vector_axis") {
        None => None,
        Some(_) => {
            Some(parameter(editor, op, "vector_axis")?.elements.first().map(|&axis| axis as i64)?)
        }
    };
    let table = |entries| Some(TrainedTable { entries, scale: None, vector_axis });
    if let Some(entries) = parameter(editor, op, "lut") {
        return Some(TrainedCompression { table: table(entries), ..TrainedCompression::default() });
    }
    let scaled = computed(editor, op, "lut")?;
    if scaled.kind() != Some(OpKind::ConstexprBlockwiseShiftScale) {
        return None;
    }
    let data = parameter(editor, scaled, "data")?;
    let scale = parameter(editor, scaled, "scale")?;
    let offset = match scaled.binding("offset") {
        None => None,
        Some(_) => Some(parameter(editor, scaled, "offset")?),
    };
    let entries = dequantized(&data, &scale, offset.as_ref())?;
    let integers = integers(editor, scaled, "data");
    Some(TrainedCompression { table: table(entries), integers, ..TrainedCompression::default() })
}

/// `scale · (data − offset)`; each block of the data has one scale.
fn dequantized(
    data: &TrainedParameter,
    scale: &TrainedParameter,
    offset: Option<&TrainedParameter>,
) -> Option<TrainedParameter> {
    let sizes = data.shape.iter().zip(&scale.shape).map(|(all, count)| all / count.max(&1));
    let blocks = Blocks::new(&data.shape, &sizes.collect::<Vec<_>>())?;
    if blocks.count() != scale.elements.len() {
        return None;
    }
    let mut elements = data.elements.clone();
    let mut rest = &mut elements[..];
    blocks.for_each_run(0, data.elements.len(), |run, block| {
        let (now, later) = std::mem::take(&mut rest).split_at_mut(run);
        let offset = offset.and_then(|offset| offset.elements.get(block)).copied().unwrap_or(0.0);
        now.iter_mut().for_each(|element| *element = scale.elements[block] * (*element - offset));
        rest = later;
    });
    Some(TrainedParameter { shape: data.shape.clone(), elements })
}

fn parameter(editor: &Editor<'_>, op: &Op, name: &str) -> Option<TrainedParameter> {
    numbers(editor.function().bound_constant(op.binding(name)?)?)
}

/// The elements of a constant.
fn numbers(constant: &Constant) -> Option<TrainedParameter> {
    let ty = constant.tensor_type()?;
    let shape = ty.known_shape()?;
    let shape = shape.iter().map(|&size| usize::try_from(size).ok()).collect::<Option<Vec<_>>>()?;
    let count = shape.iter().product();
    let buffer = constant.elements()?;
    let mut bytes = vec![0; buffer.len()];
    buffer.read_at(0, &mut bytes).ok()?;
    let elements: Vec<f32> = match ty.dtype {
        DType::Fp32 => bytes.as_chunks().0.iter().map(|&four| f32::from_le_bytes(four)).collect(),
        DType::Fp16 => {
            bytes.as_chunks().0.iter().map(|&two| f16::from_le_bytes(two).to_f32()).collect()
        }
        DType::Int32 => {
            bytes.as_chunks().0.iter().map(|&four| i32::from_le_bytes(four) as f32).collect()
        }
        dtype => packed::unpack(dtype, &bytes, count)?.into_iter().map(f32::from).collect(),
    };
    (elements.len() == count).then_some(TrainedParameter { shape, elements })
}
