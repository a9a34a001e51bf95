//! Reference kernels of compressed constants, and of `quantize` and `dequantize`, which use the
//! same layout.

use coremill_mil::ir::Opset;
use coremill_tensor::DType;

use crate::array::{Array, ElementsView, View, int_range};
use crate::call::{Call, Results};
use crate::error::{Result, fail};
use crate::geometry::{each_offset, strides};

pub(super) fn constexpr_affine_dequantize(call: &Call) -> Results {
    let data = call.tensor("quantized_data")?;
    let axis = Some(call.axis("axis", data.rank())?);
    affine(call, data, axis)
}

pub(super) fn dequantize(call: &Call) -> Results {
    let input = call.tensor("input")?;
    let axis = optional_axis(call, input.rank())?;
    affine(call, input, axis)
}

/// Computes `scale · (data - zero point)`. Scale and zero point are scalars, or vectors along an
/// axis.
fn affine(call: &Call, data: View, axis: Option<usize>) -> Results {
    let scale = PerAxis::of(call, "scale", data.shape, axis)?;
    let zero_point = PerAxis::optional(call, "zero_point", data.shape, axis)?;
    let numbers = numbers(data)?;
    let number = |(place, number)| scale.at(place) * (number - zero_point.at(place));
    call.give_floats(data.shape, numbers.into_iter().enumerate().map(number).collect::<Vec<_>>())
}

pub(super) fn quantize(call: &Call) -> Results {
    let input = call.tensor("input")?;
    let axis = optional_axis(call, input.rank())?;
    let scale = PerAxis::of(call, "scale", input.shape, axis)?;
    let zero_point = PerAxis::optional(call, "zero_point", input.shape, axis)?;
    let Some((low, high)) = int_range(call.dtype()) else {
        fail!("`output_dtype` must be `int8` or `uint8`, got `{}`", call.dtype())
    };
    let ties_away = call.arithmetic.is_ane(input.dtype);
    let quantized = |(place, x): (usize, &f32)| {
        let steps = x / scale.at(place);
        let steps = if ties_away { steps.round() } else { steps.round_ties_even() };
        let steps = steps + zero_point.at(place);
        // NaN becomes 0 in every integer type.
        steps.clamp(low as f32, high as f32) as i32
    };
    let ints: Vec<i32> = input.floats()?.iter().enumerate().map(quantized).collect();
    call.give_ints(input.shape, ints)
}

fn optional_axis(call: &Call, rank: usize) -> Result<Option<usize>> {
    if call.has("axis") { call.axis("axis", rank).map(Some) } else { Ok(None) }
}

/// A scalar for all elements of a tensor, or a vector along an axis.
struct PerAxis {
    numbers: Vec<f32>,
    /// Number of consecutive elements with the same index along the axis.
    inner: usize,
}

impl PerAxis {
    fn of(call: &Call, name: &str, shape: &[usize], axis: Option<usize>) -> Result<PerAxis> {
        let view = call.tensor(name)?;
        let numbers = numbers(view)?;
        match (view.shape, axis) {
            ([], _) => Ok(PerAxis { numbers, inner: 1 }),
            ([extent], Some(axis)) if shape.get(axis) == Some(extent) => {
                Ok(PerAxis { numbers, inner: strides(shape)[axis] })
            }
            _ => fail!(
                "`{name}` has shape {:?}; expected a scalar, or a vector with an element for each \
                 index of {shape:?} along `axis`",
                view.shape
            ),
        }
    }

    fn optional(call: &Call, name: &str, shape: &[usize], axis: Option<usize>) -> Result<PerAxis> {
        match call.has(name) {
            true => PerAxis::of(call, name, shape, axis),
            false => Ok(PerAxis { numbers: vec![0.0], inner: 1 }),
        }
    }

    fn at(&self, place: usize) -> f32 {
        self.numbers[place / self.inner.max(1) % self.numbers.len()]
    }
}

pub(super) fn constexpr_blockwise_shift_scale(call: &Call) -> Results {
    let data = call.tensor("data")?;
    let numbers = numbers(data)?;
    let mut output = Vec::with_capacity(numbers.len());
    shift_scale(call, data.shape, |shift, scale| {
        output.push(scale * (numbers[output.len()] - shift));
    })?;
    call.give_floats(data.shape, output)
}

pub(super) fn constexpr_sparse_blockwise_shift_scale(call: &Call) -> Results {
    let mask = call.tensor("data_mask")?;
    let set = mask.ints()?;
    let numbers = numbers(nonzero(call, "nonzero_data", set)?)?;
    let mut output = Vec::with_capacity(numbers.len());
    let mut place = 0;
    shift_scale(call, mask.shape, |shift, scale| {
        if set[place] != 0 {
            output.push(scale * (numbers[output.len()] - shift));
        }
        place += 1;
    })?;
    let count = output.len();
    Ok(vec![mask.to_array(), Array::floats(second_dtype(call), [count], output)])
}

/// Calls `visit` with the shift and the scale of each element. All elements of a block share them.
fn shift_scale(call: &Call, shape: &[usize], mut visit: impl FnMut(f32, f32)) -> Result<()> {
    let scale = call.tensor("scale")?;
    let scales = scale.floats()?;
    let shifts = match call.optional("offset") {
        Some(offset) if offset.shape != scale.shape => {
            fail!(
                "`offset` has shape {:?}; expected {:?}, the shape of `scale`",
                offset.shape,
                scale.shape
            )
        }
        Some(offset) => Some(numbers(offset)?),
        None => None,
    };
    each_block(shape, scale.shape, "scale", |block| {
        visit(shifts.as_ref().map_or(0.0, |shifts| shifts[block]), scales[block]);
    })
}

/// Calls `visit` with the block index of each element, in row-major order. `blocks` is the number
/// of blocks along each axis; the blocks of an axis have equal length.
fn each_block(
    shape: &[usize],
    blocks: &[usize],
    name: &str,
    mut visit: impl FnMut(usize),
) -> Result<()> {
    let divides = |(whole, parts): (&usize, &usize)| whole.checked_rem(*parts) == Some(0);
    if shape.len() != blocks.len() || !shape.iter().zip(blocks).all(divides) {
        fail!("`{name}` has {blocks:?} blocks, which do not divide a tensor of shape {shape:?}");
    }
    // Split each axis into blocks and elements within a block.
    let split: Vec<usize> =
        shape.iter().zip(blocks).flat_map(|(&whole, &parts)| [parts, whole / parts]).collect();
    let moves: Vec<usize> = strides(blocks).into_iter().flat_map(|stride| [stride, 0]).collect();
    each_offset(&split, &moves, &mut visit);
    Ok(())
}

pub(super) fn constexpr_cast(call: &Call) -> Results {
    let source = call.tensor("source_val")?;
    call.give_floats(source.shape, source.floats()?.to_vec())
}

pub(super) fn constexpr_lut_to_dense(call: &Call) -> Results {
    if call.since() >= Opset::Ios18 {
        let (indices, lut) = (call.tensor("indices")?, call.tensor("lut")?);
        let table = Table::of(call, lut, indices.shape)?;
        let entries = indices.ints()?;
        let shape = table.expanded_shape(call, indices.shape)?;
        let count = call.count(&shape)?;
        return Ok(vec![match lut.elements {
            ElementsView::Floats(values) => {
                let dense = table.look_up(indices.shape, entries, values, count)?;
                Array::floats(call.dtype(), shape, dense)
            }
            _ => {
                let dense = table.look_up(indices.shape, entries, lut.ints()?, count)?;
                Array::ints(call.dtype(), shape, dense)
            }
        }]);
    }
    let (indices, lut) = (call.tensor("indices")?.ints()?, call.tensor("lut")?);
    let shape = stated_shape(call)?;
    let count = call.count(&shape)?;
    let bits = match lut.len() {
        2 => DType::UInt1,
        4 => DType::UInt2,
        16 => DType::UInt4,
        64 => DType::UInt6,
        256 => DType::UInt8,
        entries => fail!("`lut` must have 2, 4, 16, 64 or 256 entries, got {entries}"),
    };
    let entries = unpacked(bits, indices, count, "indices")?;
    let indices = entries.iter().map(|&entry| entry as usize);
    Ok(vec![match lut.elements {
        ElementsView::Floats(values) => {
            Array::floats(call.dtype(), shape, indices.map(|index| values[index]).collect())
        }
        _ => {
            let values = lut.ints()?;
            Array::ints(call.dtype(), shape, indices.map(|index| values[index]).collect())
        }
    }])
}

pub(super) fn constexpr_lut_to_sparse(call: &Call) -> Results {
    let (mask, lut) = (call.tensor("indices_mask")?, call.tensor("lut")?);
    let set = mask.ints()?;
    let entries = nonzero(call, "indices_nonzero_data", set)?.ints()?;
    let table = Table::of(call, lut, mask.shape)?;
    let shape = table.expanded_shape(call, mask.shape)?;
    let count = call.count(&shape)?;
    let indices = scattered(set, entries, 0);
    let set = table.repeat(mask.shape, set, count)?;
    let dtype = second_dtype(call);
    let kept = match lut.elements {
        ElementsView::Floats(values) => {
            let kept = kept(table.look_up(mask.shape, &indices, values, count)?, &set);
            Array::floats(dtype, [kept.len()], kept)
        }
        _ => {
            let kept = kept(table.look_up(mask.shape, &indices, lut.ints()?, count)?, &set);
            Array::ints(dtype, [kept.len()], kept)
        }
    };
    Ok(vec![Array::ints(mask.dtype, shape, set), kept])
}

pub(super) fn constexpr_sparse_to_dense(call: &Call) -> Results {
    let unpacked_mask;
    let (shape, set) = if call.since() >= Opset::Ios18 {
        let mask = call.tensor("mask")?;
        (mask.shape.to_vec(), mask.ints()?)
    } else {
        let shape = stated_shape(call)?;
        let count = call.count(&shape)?;
        let bits = call.tensor("mask")?.ints()?;
        unpacked_mask = unpacked(DType::UInt1, bits, count, "mask")?;
        (shape, &unpacked_mask[..])
    };
    let data = nonzero(call, "nonzero_data", set)?;
    Ok(vec![match data.elements {
        ElementsView::Floats(values) => {
            Array::floats(call.dtype(), shape, scattered(set, values, 0.0))
        }
        _ => Array::ints(call.dtype(), shape, scattered(set, data.ints()?, 0)),
    }])
}

/// Element type of the operation's second output, which follows a mask.
fn second_dtype(call: &Call) -> DType {
    call.dtypes.get(1).copied().unwrap_or(DType::Fp32)
}

fn numbers(view: View) -> Result<Vec<f32>> {
    match view.elements {
        ElementsView::Floats(floats) => Ok(floats.to_vec()),
        ElementsView::Ints(ints) => Ok(ints.iter().map(|&int| int as f32).collect()),
        ElementsView::Texts(_) => fail!("expects numbers, found `{}`", view.dtype),
    }
}

/// The values of the elements set in a mask. Fails if their numbers differ.
fn nonzero<'a>(call: &Call<'a>, name: &str, set: &[i32]) -> Result<View<'a>> {
    let data = call.tensor(name)?;
    let count = set.iter().filter(|&&bit| bit != 0).count();
    if data.len() != count {
        fail!("`{name}` has {} elements, but the mask sets {count} bits", data.len());
    }
    Ok(data)
}

/// Expands values to the elements set in a mask; the others are `zero`.
fn scattered<T: Copy>(set: &[i32], elements: &[T], zero: T) -> Vec<T> {
    let mut elements = elements.iter().copied();
    let mut next = |bit: &i32| if *bit != 0 { elements.next().unwrap_or(zero) } else { zero };
    set.iter().map(&mut next).collect()
}

/// The elements set in a mask.
fn kept<T: Copy>(dense: Vec<T>, set: &[i32]) -> Vec<T> {
    let elements = dense.into_iter().zip(set);
    elements.filter(|(_, bit)| **bit != 0).map(|(element, _)| element).collect()
}

/// The `shape` parameter of the iOS 16 operations.
fn stated_shape(call: &Call) -> Result<Vec<usize>> {
    let shape = call.ints("shape", 0)?.into_iter();
    shape
        .map(|extent| match usize::try_from(extent) {
            Ok(extent) => Ok(extent),
            Err(_) => fail!("`shape` must contain sizes of at least 0, got {extent}"),
        })
        .collect()
}

/// Unpacks elements of the iOS 16 operations, which are packed in bytes.
fn unpacked(dtype: DType, bytes: &[i32], count: usize, name: &str) -> Result<Vec<i32>> {
    if dtype.storage_bytes(count as u64) != Some(bytes.len() as u64) {
        fail!(
            "`{name}` has {} bytes, which cannot hold {count} elements of `{dtype}`",
            bytes.len()
        );
    }
    let bytes: Vec<u8> = bytes.iter().map(|&byte| byte as u8).collect();
    match coremill_tensor::packed::unpack(dtype, &bytes, count) {
        Some(elements) => Ok(elements.into_iter().map(i32::from).collect()),
        None => fail!("`{name}` does not hold {count} elements of `{dtype}`"),
    }
}

/// Lookup tables, one per block of indices.
struct Table {
    /// Number of blocks along each axis.
    blocks: Vec<usize>,
    /// Number of entries per table.
    entries: usize,
    /// Number of elements per entry.
    vector: usize,
    /// The axis along which the elements of an entry are placed.
    axis: usize,
}

impl Table {
    fn of(call: &Call, lut: View, indices: &[usize]) -> Result<Table> {
        let rank = indices.len();
        if rank == 0 || lut.rank() != rank + 2 {
            fail!(
                "`lut` has rank {} and `indices` {rank}; expected two dimensions more than `indices`, which has at \
                 least 1",
                lut.rank()
            );
        }
        let (blocks, entry) = lut.shape.split_at(rank);
        let axis = if call.has("vector_axis") { call.axis("vector_axis", rank)? } else { rank - 1 };
        if entry[1] != 1 && !call.has("vector_axis") {
            fail!(
                "`vector_axis` is required: the entries of `lut` are vectors of size {}",
                entry[1]
            );
        }
        Ok(Table { blocks: blocks.to_vec(), entries: entry[0], vector: entry[1], axis })
    }

    /// The shape of the looked-up tensor.
    fn expanded_shape(&self, call: &Call, indices: &[usize]) -> Result<Vec<usize>> {
        let mut shape = indices.to_vec();
        shape[self.axis] = call.count(&[shape[self.axis], self.vector])?;
        Ok(shape)
    }

    /// Replaces each index by its entry.
    fn look_up<T: Copy + Default>(
        &self,
        shape: &[usize],
        indices: &[i32],
        values: &[T],
        count: usize,
    ) -> Result<Vec<T>> {
        let mut entries = Vec::with_capacity(indices.len());
        let mut refused = None;
        each_block(shape, &self.blocks, "lut", |block| {
            let index = indices[entries.len()];
            match usize::try_from(index).ok().filter(|&index| index < self.entries) {
                Some(index) => entries.push((block * self.entries + index) * self.vector),
                None => {
                    refused.get_or_insert(index);
                    entries.push(0);
                }
            }
        })?;
        if let Some(index) = refused {
            fail!("the index {index} is outside a table of {} entries", self.entries);
        }
        self.spread(shape, count, |place, element| values[entries[place] + element])
    }

    /// Repeats each element along the entries' axis, once per element of an entry.
    fn repeat(&self, shape: &[usize], elements: &[i32], count: usize) -> Result<Vec<i32>> {
        self.spread(shape, count, |place, _| elements[place])
    }

    /// Builds a tensor with `vector` elements per index, along the entries' axis.
    fn spread<T>(
        &self,
        shape: &[usize],
        count: usize,
        element: impl Fn(usize, usize) -> T,
    ) -> Result<Vec<T>> {
        let mut spread = Vec::with_capacity(count);
        if count > 0 {
            let inner = strides(shape)[self.axis];
            for first in (0..count / self.vector).step_by(inner) {
                for at in 0..self.vector {
                    spread.extend((first..first + inner).map(|place| element(place, at)));
                }
            }
        }
        Ok(spread)
    }
}
