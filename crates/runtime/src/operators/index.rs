//! Indexing by tensors.

use coremill_pte::program::ScalarType;

use super::arguments::same_type;
use super::map::{copy, move_elements};
use super::shape::{index_of, slice_of};
use super::unary::fits;
use super::{Arguments, Kernel, kernel};
use crate::error::{Result, ensure, fail};
use crate::number::{Compute, Number, compute};
use crate::view::{
    OutTensor, View, broadcast, broadcast_strides, count, dense, walk_all, walk_from,
};

pub(super) const TABLE: &[Kernel] = &[
    kernel("aten::embedding.out", "TTIBB>T", embedding),
    kernel("aten::gather.out", "TITB>T", gather),
    kernel("aten::index.Tensor_out", "TO>T", index),
    kernel("aten::index_put.out", "TOTB>T", index_put),
    kernel("aten::index_put_", "MOTB>", index_put_in_place),
    kernel("aten::index_select.out", "TIT>T", index_select),
    kernel("aten::scatter.src_out", "TITT>T", scatter_source),
    kernel("aten::scatter.value_out", "TITS>T", scatter_value),
    kernel("aten::scatter_add.out", "TITT>T", scatter_add),
    kernel("aten::select_scatter.out", "TTII>T", select_scatter),
    kernel("aten::slice_scatter.out", "TTIiiI>T", slice_scatter),
    kernel("aten::topk.values", "TIIBB>TT", topk),
];

/// Indices as numbers, in dimension order.
fn indices(view: View) -> Result<Vec<i64>> {
    let dtype = view.dtype;
    ensure!(
        matches!(dtype, ScalarType::Long | ScalarType::Int),
        "the indices must be `Long` or `Int`, got `{dtype:?}`"
    );
    Ok(view.contiguous())
}

/// Copies the selected slices of a dimension.
fn take_along(view: View, axis: usize, indices: &[i64], out: &mut OutTensor) -> Result {
    let (mut sizes, strides, own) = (view.sizes.to_vec(), view.strides(), out.strides());
    sizes[axis] = 1;
    let width = out.width();
    for (target, &index) in indices.iter().enumerate() {
        let index = index_of(index, view.sizes[axis])?;
        move_elements(
            (view.bytes, index * strides[axis], &strides),
            (out.bytes(), target * own[axis], &own),
            &sizes,
            width,
        );
    }
    Ok(())
}

fn embedding(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let (weight, view) = (x.tensor(0)?, x.tensor(1)?);
    same_type(&weight, &out[0])?;
    let [rows, columns] = *weight.sizes else {
        fail!("the weight has sizes {:?}; expected two dimensions", weight.sizes);
    };
    let sizes: Vec<usize> = view.sizes.iter().copied().chain([columns]).collect();
    out[0].resize(&sizes)?;
    let length = columns * weight.width();
    let bytes = weight.contiguous_bytes();
    let mut found = Vec::with_capacity(out[0].count() * weight.width());
    for index in indices(view)? {
        ensure!(
            (0..rows as i64).contains(&index),
            "row {index} is out of range; the table has {rows} rows"
        );
        found.extend_from_slice(&bytes[index as usize * length..][..length]);
    }
    out[0].put_contiguous_bytes(&found);
    Ok(())
}

fn index_select(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let (view, index) = (x.tensor(0)?, x.tensor(2)?);
    same_type(&view, &out[0])?;
    ensure!(index.rank() <= 1, "the rank of the index must be at most 1, got {}", index.rank());
    let axis = view.dimension(x.int(1)?)?;
    let indices = indices(index)?;
    if view.rank() == 0 {
        ensure!(indices == [0], "the index of a scalar must be [0], got {indices:?}");
        out[0].resize(&[])?;
        return copy(view, &mut out[0]);
    }
    let mut sizes = view.sizes.to_vec();
    sizes[axis] = indices.len();
    out[0].resize(&sizes)?;
    take_along(view, axis, &indices, &mut out[0])
}

/// Strides with a zero for the indexed dimension.
fn except(view_strides: &[usize], axis: usize) -> Vec<usize> {
    let mut strides = view_strides.to_vec();
    if let Some(stride) = strides.get_mut(axis) {
        *stride = 0;
    }
    strides
}

/// Checks that an index tensor fits: it must not be larger in other dimensions than the indexed one.
fn index_fits(index: &View, sizes: &[usize], axis: usize) -> Result {
    let fits = index.rank() == sizes.len()
        && (0..sizes.len()).all(|other| other == axis || index.sizes[other] <= sizes[other]);
    ensure!(
        fits || index.count() == 0 || (index.rank() <= 1 && sizes.len() <= 1),
        "indices of sizes {:?} do not fit a tensor of sizes {sizes:?}",
        index.sizes
    );
    Ok(())
}

/// Calls `visit` for each index with the offset in a second tensor of the index's shape and the indexed offset in the
/// tensor. `own` are the strides of the tensor, `extra` the strides of the second one.
fn walk_index(
    index: View,
    axis: usize,
    (sizes, own): (&[usize], &[usize]),
    extra: &[usize],
    mut visit: impl FnMut(usize, usize),
) -> Result {
    index_fits(&index, sizes, axis)?;
    let dtype = index.dtype;
    ensure!(dtype == ScalarType::Long, "the index must be `Long`, got `{dtype:?}`");
    let size = sizes.get(axis).copied().unwrap_or(1);
    let step = own.get(axis).copied().unwrap_or(0);
    // A scalar used with a vector counts as having one element.
    let padded = |strides: &[usize]| {
        let mut strides = strides.to_vec();
        strides.resize(index.rank(), 0);
        strides
    };
    let (places, others) = (padded(&except(own, axis)), padded(extra));
    let mut wrong = None;
    walk_all(index.sizes, [&index.strides(), &places, &others], |[at, place, other]| {
        let found = index.at::<i64>(at);
        match index_of(found, size) {
            Ok(found) => visit(other, place + found * step),
            Err(error) => wrong = Some(error),
        }
    });
    wrong.map_or(Ok(()), Err)
}

fn gather(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let (view, index) = (x.tensor(0)?, x.tensor(2)?);
    same_type(&view, &out[0])?;
    let axis = view.dimension(x.int(1)?)?;
    out[0].resize(index.sizes)?;
    let (own, width) = (out[0].strides(), view.width());
    let bytes = out[0].bytes();
    walk_index(index, axis, (view.sizes, &view.strides()), &own, |target, source| {
        bytes[target * width..][..width].copy_from_slice(&view.bytes[source * width..][..width]);
    })
}

/// Common start of scatters: copies the tensor to the output.
fn scattered<'a>(x: &Arguments<'a>, out: &mut OutTensor) -> Result<(View<'a>, usize, View<'a>)> {
    let (view, index) = (x.tensor(0)?, x.tensor(2)?);
    same_type(&view, out)?;
    let axis = view.dimension(x.int(1)?)?;
    out.resize(view.sizes)?;
    copy(view, out)?;
    Ok((view, axis, index))
}

/// Checks that each index has an element of the source.
fn source_fits(index: &View, source: &View) -> Result {
    let fits = index.rank() == source.rank()
        && index.sizes.iter().zip(source.sizes).all(|(index, source)| index <= source);
    ensure!(
        fits || index.count() == 0 || (index.count() <= 1 && source.count() >= 1),
        "the source has sizes {:?}, which do not cover the index sizes {:?}",
        source.sizes,
        index.sizes
    );
    Ok(())
}

fn scatter_source(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let (view, axis, index) = scattered(x, &mut out[0])?;
    let source = x.tensor(3)?;
    same_type(&source, &out[0])?;
    source_fits(&index, &source)?;
    let (own, width) = (out[0].strides(), view.width());
    let bytes = out[0].bytes();
    walk_index(index, axis, (view.sizes, &own), &source.strides(), |from, to| {
        bytes[to * width..][..width].copy_from_slice(&source.bytes[from * width..][..width]);
    })
}

fn scatter_value(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let (view, axis, index) = scattered(x, &mut out[0])?;
    let (value, dtype) = (x.scalar(3)?, view.dtype);
    ensure!(fits(value, dtype), "{} does not fit `{dtype:?}`", value.as_f64());
    let own = out[0].strides();
    let bytes = out[0].bytes();
    compute!(Compute::of(dtype)?, N => {
        let value = N::of(value);
        walk_index(index, axis, (view.sizes, &own), &own, |_, to| value.put(dtype, bytes, to))
    })
}

fn scatter_add(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let (view, axis, index) = scattered(x, &mut out[0])?;
    let source = x.tensor(3)?;
    same_type(&source, &out[0])?;
    source_fits(&index, &source)?;
    let own = out[0].strides();
    let dtype = view.dtype;
    let bytes = out[0].bytes();
    compute!(Compute::of(dtype)?, N => {
        walk_index(index, axis, (view.sizes, &own), &source.strides(), |from, to| {
            N::at(dtype, bytes, to).add(source.at::<N>(from)).put(dtype, bytes, to);
        })
    })
}

fn select_scatter(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let (view, source) = (x.tensor(0)?, x.tensor(1)?);
    same_type(&view, &out[0])?;
    ensure!(view.rank() > 0, "a scalar has no dimensions");
    let axis = view.dimension(x.int(2)?)?;
    let index = index_of(x.int(3)?, view.sizes[axis])?;
    out[0].resize(view.sizes)?;
    copy(view, &mut out[0])?;
    let own = out[0].strides();
    let start = index * own[axis];
    let without = |list: &[usize]| -> Vec<usize> {
        let kept = list.iter().enumerate().filter(|(other, _)| *other != axis);
        kept.map(|(_, element)| *element).collect()
    };
    write_part(source, &without(view.sizes), (start, &without(&own)), &mut out[0])
}

fn slice_scatter(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let (view, source) = (x.tensor(0)?, x.tensor(1)?);
    same_type(&view, &out[0])?;
    ensure!(view.rank() > 0, "a scalar has no dimensions");
    let axis = view.dimension(x.int(2)?)?;
    let [start, length, step] = slice_of(view.sizes[axis], x, 3)?;
    out[0].resize(view.sizes)?;
    copy(view, &mut out[0])?;
    let mut own = out[0].strides();
    let first = start * own[axis];
    own[axis] *= step;
    let mut sizes = view.sizes.to_vec();
    sizes[axis] = length;
    write_part(source, &sizes, (first, &own), &mut out[0])
}

/// Writes a tensor to a region of the output, with conversion.
fn write_part(
    source: View,
    sizes: &[usize],
    (start, strides): (usize, &[usize]),
    out: &mut OutTensor,
) -> Result {
    ensure!(
        source.sizes == sizes,
        "the source has sizes {:?}; the written region has sizes {sizes:?}",
        source.sizes
    );
    let dtype = out.dtype;
    let bytes = out.bytes();
    compute!(Compute::of(source.dtype)?, N => {
        walk_from(sizes, [0, start], [&source.strides(), strides], |[from, to]| {
            source.at::<N>(from).put(dtype, bytes, to);
        });
    });
    Ok(())
}

/// Result of resolving indices of several dimensions.
struct IndexedDims {
    /// Sizes of the result.
    sizes: Vec<usize>,
    /// Position of the index dimensions in the result.
    first: usize,
    /// Number of index dimensions.
    rank: usize,
    /// For each combination of indices, the start offset of the selected slice.
    starts: Vec<usize>,
    /// Dimensions without indices.
    rest: Vec<usize>,
}

/// Resolves indices like PyTorch's advanced indexing; a mask selects the indices of its true elements.
fn named(sizes: &[usize], strides: &[usize], list: &[Option<View>]) -> Result<IndexedDims> {
    let mut by_axis: Vec<Option<(Vec<usize>, Vec<i64>)>> = Vec::new();
    for view in list {
        let Some(view) = view else {
            by_axis.push(None);
            continue;
        };
        if !matches!(view.dtype, ScalarType::Bool | ScalarType::Byte) {
            by_axis.push(Some((view.sizes.to_vec(), indices(*view)?)));
            continue;
        }
        let start = by_axis.len();
        ensure!(
            sizes.get(start..start + view.rank()) == Some(view.sizes),
            "a mask of sizes {:?} does not fit dimension {start} of {sizes:?}",
            view.sizes
        );
        let mask = view.contiguous::<i64>();
        let found: Vec<usize> = (0..mask.len()).filter(|place| mask[*place] != 0).collect();
        for (step, size) in dense(view.sizes).into_iter().zip(view.sizes) {
            let along = found.iter().map(|place| (place / step % size) as i64).collect();
            by_axis.push(Some((vec![found.len()], along)));
        }
    }
    ensure!(
        by_axis.len() <= sizes.len(),
        "{} dimensions are indexed; the tensor has {}",
        by_axis.len(),
        sizes.len()
    );
    by_axis.resize(sizes.len(), None);
    let mut shape = Vec::new();
    for (own, _) in by_axis.iter().flatten() {
        shape = broadcast(&shape, own)?;
    }
    let mut starts = vec![0; count(&shape)?];
    for (axis, indexed) in by_axis.iter().enumerate() {
        let Some((own, indices)) = indexed else { continue };
        let order: Vec<u8> = (0..own.len() as u8).collect();
        let view = View { dtype: ScalarType::Long, sizes: own, order: &order, bytes: &[] };
        let steps = broadcast_strides(&view, &shape)?;
        let mut starts = starts.iter_mut();
        let mut wrong = None;
        crate::view::walk(&shape, &steps, |place| match index_of(indices[place], sizes[axis]) {
            Ok(index) => {
                if let Some(start) = starts.next() {
                    *start += index * strides[axis];
                }
            }
            Err(error) => wrong = Some(error),
        });
        if let Some(error) = wrong {
            return Err(error);
        }
    }
    let is_indexed = |axis: &usize| by_axis[*axis].is_some();
    let indexed: Vec<usize> = (0..sizes.len()).filter(is_indexed).collect();
    let rest: Vec<usize> = (0..sizes.len()).filter(|axis| !is_indexed(axis)).collect();
    // Index dimensions replace adjacent indexed dimensions. Otherwise they move to the front.
    let first = match (indexed.first(), indexed.last()) {
        (Some(first), Some(last)) if last - first + 1 == indexed.len() => *first,
        _ => 0,
    };
    let mut result: Vec<usize> = rest.iter().map(|axis| sizes[*axis]).collect();
    result.splice(first..first, shape.iter().copied());
    Ok(IndexedDims { sizes: result, first, rank: shape.len(), starts, rest })
}

impl IndexedDims {
    /// Removes the index dimensions from a list with one entry per result dimension.
    fn without_indices(&self, list: &[usize]) -> Vec<usize> {
        let mut list = list.to_vec();
        list.drain(self.first..self.first + self.rank);
        list
    }

    /// Start offset of each combination of indices in a tensor of the result's sizes.
    fn places(&self, strides: &[usize]) -> Vec<usize> {
        let within = self.first..self.first + self.rank;
        let mut places = Vec::with_capacity(self.starts.len());
        crate::view::walk(&self.sizes[within.clone()], &strides[within], |place| {
            places.push(place)
        });
        places
    }
}

fn index(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = x.tensor(0)?;
    same_type(&view, &out[0])?;
    let strides = view.strides();
    let named = named(view.sizes, &strides, x.optional_tensors(1)?)?;
    out[0].resize(&named.sizes)?;
    let (own, width) = (out[0].strides(), view.width());
    let sizes = named.without_indices(&named.sizes);
    let from: Vec<usize> = named.rest.iter().map(|axis| strides[*axis]).collect();
    let to = named.without_indices(&own);
    let bytes = out[0].bytes();
    for (&start, place) in named.starts.iter().zip(named.places(&own)) {
        move_elements((view.bytes, start, &from), (bytes, place, &to), &sizes, width);
    }
    Ok(())
}

/// Writes values at indices; the output already holds the tensor.
fn put(x: &Arguments, out: &mut OutTensor) -> Result {
    let (values, accumulate) = (x.tensor(2)?, x.bool(3)?);
    same_type(&values, out)?;
    let (strides, own_sizes) = (out.strides(), out.sizes.clone());
    let named = named(&own_sizes, &strides, x.optional_tensors(1)?)?;
    let from_all = broadcast_strides(&values, &named.sizes)?;
    let from = named.without_indices(&from_all);
    let to: Vec<usize> = named.rest.iter().map(|axis| strides[*axis]).collect();
    let sizes = named.without_indices(&named.sizes);
    let (dtype, width) = (out.dtype, out.width());
    let bytes = out.bytes();
    for (&start, place) in named.starts.iter().zip(named.places(&from_all)) {
        if !accumulate {
            move_elements((values.bytes, place, &from), (bytes, start, &to), &sizes, width);
            continue;
        }
        compute!(Compute::of(dtype)?, N => {
            walk_from(&sizes, [place, start], [&from, &to], |[from, to]| {
                N::at(dtype, bytes, to).add(values.at::<N>(from)).put(dtype, bytes, to);
            });
        });
    }
    Ok(())
}

fn index_put(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = x.tensor(0)?;
    same_type(&view, &out[0])?;
    out[0].resize(view.sizes)?;
    copy(view, &mut out[0])?;
    put(x, &mut out[0])
}

fn index_put_in_place(x: &Arguments, out: &mut [OutTensor]) -> Result {
    put(x, &mut out[0])
}

fn topk(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = x.tensor(0)?;
    same_type(&view, &out[0])?;
    let dtype = out[1].dtype;
    ensure!(dtype == ScalarType::Long, "the indices must be `Long`, got `{dtype:?}`");
    let axis = view.dimension(x.int(2)?)?;
    let largest = x.bool(3)?;
    let size = view.sizes.get(axis).copied().unwrap_or(1);
    let k = usize::try_from(x.int(1)?).ok().filter(|k| *k <= size);
    let Some(k) = k else { fail!("`k` must be from 0 to {size}, got {}", x.int(1)?) };
    let mut sizes = view.sizes.to_vec();
    if let Some(size) = sizes.get_mut(axis) {
        *size = k;
    }
    out[0].resize(&sizes)?;
    out[1].resize(&sizes)?;
    compute!(Compute::of(view.dtype)?, N => {
        let numbers = view.contiguous::<N>();
        let inner = dense(view.sizes).get(axis).copied().unwrap_or(1);
        let count = out[0].count();
        let (mut values, mut indices) = (vec![N::ZERO; count], vec![0i64; count]);
        for line in 0..numbers.len().checked_div(size).unwrap_or(0) {
            let (outer, within) = (line / inner, line % inner);
            let at = |index: usize| numbers[(outer * size + index) * inner + within];
            let mut order: Vec<usize> = (0..size).collect();
            // NaN sorts last; the sort is stable.
            let rank = |a: &usize, b: &usize| {
                let (a, b) = (at(*a), at(*b));
                a.is_nan().cmp(&b.is_nan()).then(a.partial_cmp(&b).unwrap_or(std::cmp::Ordering::Equal))
            };
            if largest {
                order.sort_by(|a, b| rank(b, a));
            } else {
                order.sort_by(rank);
            }
            for (place, &index) in order[..k].iter().enumerate() {
                let target = (outer * k + place) * inner + within;
                values[target] = at(index);
                indices[target] = index as i64;
            }
        }
        out[0].put_contiguous(&values);
        out[1].put_contiguous(&indices);
        Ok(())
    })
}
