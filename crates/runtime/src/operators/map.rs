//! Elementwise functions with broadcasting.

use coremill_pte::program::ScalarType;

use crate::error::Result;
use crate::number::{Compute, Number, compute};
use crate::view::{OutTensor, View, broadcast, broadcast_strides, walk_from};

/// Number of elements converted and computed per step.
const BLOCK: usize = 512;

/// A tensor whose elements are read in the output's memory order.
struct Operand<'a> {
    view: View<'a>,
    access: Access,
}

enum Access {
    /// The memory order is the same.
    Same,
    /// A single element is broadcast.
    One,
    /// Strides along the output's dimensions, from outermost to innermost in memory.
    Strided { extents: Vec<usize>, strides: Vec<usize> },
}

impl<'a> Operand<'a> {
    fn new(view: View<'a>, out: &OutTensor) -> Result<Operand<'a>> {
        let strides = broadcast_strides(&view, &out.sizes)?;
        let own = out.strides();
        let axes = || 0..out.sizes.len();
        let access = if axes().all(|axis| out.sizes[axis] == 1 || strides[axis] == own[axis]) {
            Access::Same
        } else if strides.iter().all(|stride| *stride == 0) {
            Access::One
        } else {
            let in_memory = || out.order.iter().map(|axis| usize::from(*axis));
            Access::Strided {
                extents: in_memory().map(|axis| out.sizes[axis]).collect(),
                strides: in_memory().map(|axis| strides[axis]).collect(),
            }
        };
        Ok(Operand { view, access })
    }

    /// Reads the elements for a range of the output.
    fn read<N: Number>(&self, start: usize, target: &mut [N]) {
        let View { dtype, bytes, .. } = self.view;
        let width = self.view.width();
        let (extents, strides) = match &self.access {
            Access::Same => {
                return N::load(dtype, &bytes[start * width..][..target.len() * width], target);
            }
            Access::One => return target.fill(N::at(dtype, bytes, 0)),
            Access::Strided { extents, strides } => (extents, strides),
        };
        let last = extents.len() - 1;
        let mut done = 0;
        while done < target.len() {
            let mut rest = start + done;
            let within = rest % extents[last];
            rest /= extents[last];
            let mut place = within * strides[last];
            for axis in (0..last).rev() {
                place += rest % extents[axis] * strides[axis];
                rest /= extents[axis];
            }
            let length = (extents[last] - within).min(target.len() - done);
            let run = &mut target[done..done + length];
            match strides[last] {
                0 => run.fill(N::at(dtype, bytes, place)),
                1 => N::load(dtype, &bytes[place * width..][..length * width], run),
                stride => {
                    for (step, element) in run.iter_mut().enumerate() {
                        *element = N::at(dtype, bytes, place + step * stride);
                    }
                }
            }
            done += length;
        }
    }
}

/// Resizes the output to the broadcast shape.
pub(crate) fn resize_to_broadcast(views: &[View], out: &mut OutTensor) -> Result {
    let mut sizes = Vec::new();
    for view in views {
        sizes = broadcast(&sizes, view.sizes)?;
    }
    out.resize(&sizes)
}

/// Applies a function elementwise. The output is already resized.
pub(crate) fn map<const K: usize, N: Number>(
    views: [View; K],
    out: &mut OutTensor,
    function: impl Fn([N; K]) -> N,
) -> Result {
    map_wrapped(views, None, out, function)
}

/// Applies a function elementwise. Results are first wrapped to the integer type `common`.
pub(crate) fn map_wrapped<const K: usize, N: Number>(
    views: [View; K],
    common: Option<ScalarType>,
    out: &mut OutTensor,
    function: impl Fn([N; K]) -> N,
) -> Result {
    let mut operands = Vec::with_capacity(K);
    for view in views {
        operands.push(Operand::new(view, out)?);
    }
    let (dtype, count, width) = (out.dtype, out.count(), out.width());
    let wrapped = common.filter(|common| *common != dtype);
    let bytes = out.bytes();
    let mut blocks = [[N::ZERO; BLOCK]; K];
    let mut results = [N::ZERO; BLOCK];
    for start in (0..count).step_by(BLOCK) {
        let length = BLOCK.min(count - start);
        for (operand, block) in operands.iter().zip(&mut blocks) {
            operand.read(start, &mut block[..length]);
        }
        for (index, result) in results[..length].iter_mut().enumerate() {
            *result = function(std::array::from_fn(|operand| blocks[operand][index]));
        }
        if let Some(common) = wrapped {
            for result in &mut results[..length] {
                *result = result.wrap_to(common);
            }
        }
        N::store(&results[..length], dtype, &mut bytes[start * width..][..length * width]);
    }
    Ok(())
}

/// Copies a tensor to the output with broadcasting and conversion. The output is already resized.
pub(crate) fn copy(view: View, out: &mut OutTensor) -> Result {
    if view.dtype == out.dtype {
        return copy_elements(view, out);
    }
    // 64-bit integers are converted through integers, without loss.
    let through = match (Compute::of(view.dtype), view.dtype) {
        (Ok(compute), _) => compute,
        (Err(_), ScalarType::UInt16 | ScalarType::UInt32 | ScalarType::UInt64) => Compute::I64,
        (Err(error), _) => return Err(error),
    };
    compute!(through, N => map([view], out, |[element]: [N; 1]| element))
}

/// Copies elements of the same type.
pub(crate) fn copy_elements(view: View, out: &mut OutTensor) -> Result {
    let operand = Operand::new(view, out)?;
    if matches!(operand.access, Access::Same) {
        let bytes = out.bytes();
        bytes.copy_from_slice(&view.bytes[..bytes.len()]);
        return Ok(());
    }
    let strides = broadcast_strides(&view, &out.sizes)?;
    let (own, sizes, width) = (out.strides(), out.sizes.clone(), out.width());
    move_elements((view.bytes, 0, &strides), (out.bytes(), 0, &own), &sizes, width);
    Ok(())
}

/// Copies elements between two strided regions. Each is given by its bytes, the offset of the first element and the
/// strides, both in elements.
pub(crate) fn move_elements(
    source: (&[u8], usize, &[usize]),
    target: (&mut [u8], usize, &[usize]),
    sizes: &[usize],
    width: usize,
) {
    match width {
        1 => move_wide::<1>(source, target, sizes),
        2 => move_wide::<2>(source, target, sizes),
        4 => move_wide::<4>(source, target, sizes),
        8 => move_wide::<8>(source, target, sizes),
        _ => move_wide::<16>(source, target, sizes),
    }
}

fn move_wide<const W: usize>(
    (source, from_start, from): (&[u8], usize, &[usize]),
    (target, to_start, to): (&mut [u8], usize, &[usize]),
    sizes: &[usize],
) {
    let (source, _) = source.as_chunks::<W>();
    let (target, _) = target.as_chunks_mut::<W>();
    // Rows that are contiguous on both sides are copied as a whole.
    if let (Some((&length, outer)), Some((1, from)), Some((1, to))) =
        (sizes.split_last(), from.split_last(), to.split_last())
        && length > 0
    {
        walk_from(outer, [from_start, to_start], [from, to], |[from, to]| {
            target[to..to + length].copy_from_slice(&source[from..from + length]);
        });
        return;
    }
    walk_from(sizes, [from_start, to_start], [from, to], |[from, to]| target[to] = source[from]);
}

/// Fills the output with elements of a tensor, given the offset of the first one and the strides along the output's
/// dimensions.
pub(crate) fn take(view: View, start: usize, strides: &[usize], out: &mut OutTensor) {
    let (own, sizes, width) = (out.strides(), out.sizes.clone(), out.width());
    move_elements((view.bytes, start, strides), (out.bytes(), 0, &own), &sizes, width);
}

/// Fills the output with elements of a tensor of the same rank. A table per dimension contains source indices;
/// [`NOWHERE`] skips an element.
pub(crate) fn take_by_tables(view: View, tables: &[Vec<usize>], out: &mut OutTensor) {
    let (from, to, width) = (view.strides(), out.strides(), out.width());
    let bytes = out.bytes();
    if tables.iter().any(Vec::is_empty) {
        return;
    }
    let mut coordinates = vec![0; tables.len()];
    loop {
        let mut source = 0;
        let mut target = 0;
        let mut is_somewhere = true;
        for (axis, &coordinate) in coordinates.iter().enumerate() {
            let index = tables[axis][coordinate];
            is_somewhere &= index != NOWHERE;
            source += index.min(view.sizes[axis]) * from[axis];
            target += coordinate * to[axis];
        }
        if is_somewhere {
            bytes[target * width..][..width]
                .copy_from_slice(&view.bytes[source * width..][..width]);
        }
        let mut axis = tables.len();
        loop {
            if axis == 0 {
                return;
            }
            axis -= 1;
            coordinates[axis] += 1;
            if coordinates[axis] < tables[axis].len() {
                break;
            }
            coordinates[axis] = 0;
        }
    }
}

/// Entry in a table of [`take_by_tables`] that skips an element.
pub(crate) const NOWHERE: usize = usize::MAX;
