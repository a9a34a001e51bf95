//! Sliding windows, `im2col` and `col2im`, and strided views.

use coremill_pt2::{Meta, Size};

use super::pad::padded_with;
use super::write::both;
use crate::bounds::CheckedInt;
use crate::lower::ops::index::{gathered_at, written_along};
use crate::lower::prelude::*;

pub(super) const ROWS: &[Row] = &[
    tensor("aten.unfold", unfold),
    tensor("aten.im2col", columns),
    tensor("aten.col2im", from_columns),
    tensor("aten.as_strided", as_strided),
    tensor("aten.as_strided_scatter", as_strided_scatter),
];

fn unfold(call: &mut Call<'_, '_>) -> ValueResult {
    let x = call.value("self")?;
    let (size, step) = (call.known_int("size")? as i32, call.known_int("step")? as i32);
    if call.rank(x) == 0 {
        return call.expand_dims(x, &[0]);
    }
    let axis = call.axis("dimension", call.rank(x))?;
    let x = call.numeric(x)?;
    let windows = emit!(call, OpKind::SlidingWindows, x, axis, size, stride = step)?;
    // In torch, the elements of a window are along the last axis.
    let mut order: Vec<_> = (0..call.rank(windows)).filter(|&at| at != axis + 1).collect();
    order.push(axis + 1);
    call.transpose(windows, &order)
}

/// Parameters of `im2col` and `col2im`.
struct Patches {
    kernel: [i32; 2],
    dilation: [i32; 2],
    padding: [i32; 2],
    stride: [i32; 2],
}

impl Patches {
    fn of(call: &mut Call<'_, '_>) -> Result<Patches> {
        let mut two = |name: &str| -> Result<[i32; 2]> {
            let both = call.per_dimension(name, 2)?;
            Ok([*both.at(0)?, *both.at(1)?])
        };
        let patches = Patches {
            kernel: two("kernel_size")?,
            dilation: two("dilation")?,
            padding: two("padding")?,
            stride: two("stride")?,
        };
        checked_numel(&patches.kernel)?;
        Ok(patches)
    }

    /// Number of elements of a patch.
    fn elements(&self) -> Result<usize> {
        checked_numel(&self.kernel)
    }

    /// Number of patches along an axis of an image.
    fn count(&self, axis: usize, extent: i64) -> Result<i64> {
        let room = checked(extent) + checked(*self.padding.at(axis)?) * 2 - self.reach(axis)?;
        (room.over((*self.stride.at(axis)?).into()) + 1).get()
    }

    /// Number of elements that a patch spans along an axis.
    fn reach(&self, axis: usize) -> Result<CheckedInt> {
        Ok(checked(*self.dilation.at(axis)?) * (checked(*self.kernel.at(axis)?) - 1) + 1)
    }

    /// One-hot kernels: one per element of a patch, repeated for each channel.
    fn one_hot_kernels(&self, channels: usize) -> Result<Constant> {
        let each = self.elements()?;
        let mut weights =
            vec![0.0f32; checked_numel(&[channels as u64, each as u64, each as u64])?];
        for (at, kernel) in weights.chunks_exact_mut(each).enumerate() {
            *kernel.at_mut(at % each)? = 1.0;
        }
        let bytes: Vec<u8> = weights.iter().flat_map(|weight| weight.to_le_bytes()).collect();
        let [rows, columns] = self.kernel.map(|extent| extent as u64);
        let shape = [checked_numel(&[channels as u64, each as u64])? as u64, 1, rows, columns];
        Ok(Constant::weight(DType::Fp32, &shape, bytes))
    }
}

/// The image with a batch axis, and its static number of channels.
fn image(builder: &mut Builder, x: ValueId) -> Result<(ValueId, i64)> {
    let x = if builder.rank(x) == 3 { builder.expand_dims(x, &[0])? } else { x };
    match builder.extents(x)[..] {
        [_, Some(channels), _, _] => Ok((x, channels as i64)),
        _ => refuse!(
            "takes patches of images whose number of channels is unknown at compile time; export the \
             program for a fixed number"
        ),
    }
}

fn columns(call: &mut Call<'_, '_>) -> ValueResult {
    let x = call.value("self")?;
    let patches = Patches::of(call)?;
    let without_batch = call.rank(x) == 3;
    let (x, channels) = image(call, x)?;
    let batch = call.dim(x, 0)?;
    let all = (checked(channels) * patches.elements()? as i64).get()?;
    let counts = match call.extents(x)[..] {
        [_, _, Some(height), Some(width)] => {
            Some([patches.count(0, height as i64)?, patches.count(1, width as i64)?])
        }
        _ => None,
    };
    let each = match counts {
        Some([rows, columns]) => (checked(rows) * columns).get()?,
        None => -1,
    };
    let mut sizes = vec![batch, Int::Known(all), Int::Known(each)];
    if without_batch {
        take(&mut sizes, 0)?;
    }
    let cut = match (call.dtype(x), counts) {
        (DType::Fp32, _) => picked_by_convolution(call, x, &patches, channels)?,
        (_, Some(counts)) => picked_by_index(call, x, &patches, counts)?,
        (dtype, None) => refuse!(
            "takes patches of `{dtype}` images whose size is unknown at compile time; expected floats"
        ),
    };
    call.resized(cut, &sizes)
}

fn picked_by_convolution(
    builder: &mut Builder,
    x: ValueId,
    patches: &Patches,
    channels: i64,
) -> ValueResult {
    let weight = builder.constant(patches.one_hot_kernels(channels as usize)?);
    let [vertical, horizontal] = patches.padding;
    emit!(
        builder,
        OpKind::Conv,
        x,
        weight,
        strides = patches.stride,
        pad_type = "custom",
        pad = [vertical, vertical, horizontal, horizontal],
        dilations = patches.dilation,
        groups = channels as i32
    )
}

/// Convolutions require floats; other types are gathered patch by patch.
fn picked_by_index(
    builder: &mut Builder,
    x: ValueId,
    patches: &Patches,
    [rows, columns]: [i64; 2],
) -> ValueResult {
    let (batch, channels, width) = (builder.dim(x, 0)?, builder.dim(x, 1)?, builder.dim(x, 3)?);
    let Int::Known(width) = width else { refuse!("the width of the image is unknown") };
    let [vertical, horizontal] = patches.padding.map(i64::from);
    let pads = [
        (2, Int::Known(vertical), Int::Known(vertical)),
        (3, Int::Known(horizontal), Int::Known(horizontal)),
    ];
    let padded = padded_with(builder, x, &pads, 0.0)?;
    let line = (checked(width) + checked(horizontal) * 2).get()?;
    let flat = builder.with_sizes(padded, &[batch, channels, Int::Known(-1)])?;
    let mut places = Vec::new();
    for element in 0..patches.elements()? as i64 {
        let (down, right) = (
            checked(element / i64::from(patches.kernel[1])) * patches.dilation[0],
            checked(element % i64::from(patches.kernel[1])) * patches.dilation[1],
        );
        for row in 0..rows {
            for column in 0..columns {
                let top = checked(row) * patches.stride[0] + down;
                let left = checked(column) * patches.stride[1] + right;
                places.push((top * line + left).get()?);
            }
        }
    }
    gathered_at(builder, flat, &places, 2)
}

/// `col2im`: a transposed convolution that sums overlapping patches.
fn from_columns(call: &mut Call<'_, '_>) -> ValueResult {
    let x = call.value("self")?;
    let patches = Patches::of(call)?;
    let [height, width] = call.known_ints("output_size")?[..] else {
        refuse!("`output_size` must have two elements");
    };
    let rank = call.rank(x);
    let x = if rank == 2 { call.expand_dims(x, &[0])? } else { x };
    let batch = call.dim(x, 0)?;
    let Some(all) = *call.extents(x).at(1)? else {
        refuse!("the number of channels of the patches is unknown at compile time");
    };
    let channels = all as i64 / patches.elements()? as i64;
    let counts = [patches.count(0, height)?, patches.count(1, width)?];
    let grid = [batch, Int::Known(all as i64), Int::Known(counts[0]), Int::Known(counts[1])];
    let grid = call.with_sizes(x, &grid)?;
    let weight = call.constant(patches.one_hot_kernels(channels as usize)?);
    let mut image = emit!(
        call,
        OpKind::ConvTranspose,
        x = grid,
        weight,
        strides = patches.stride,
        pad_type = "valid",
        pad = [0; 4],
        dilations = patches.dilation,
        groups = channels as i32
    )?;
    for (at, wanted) in [height, width].into_iter().enumerate() {
        let axis = at + 2;
        let found = (checked(*counts.at(at)?) - 1) * *patches.stride.at(at)? + patches.reach(at)?;
        let (begin, end) =
            (i64::from(*patches.padding.at(at)?), i64::from(*patches.padding.at(at)?) + wanted);
        // Rows outside all patches are zero.
        let missing = (checked(end) - found).get()?.max(0);
        image = padded_with(call, image, &[(axis, Int::Known(0), Int::Known(missing))], 0.0)?;
        image = call.sliced(image, axis, Range::between(Int::Known(begin), Int::Known(end)))?;
    }
    Ok(if rank == 2 { call.squeeze(image, &[0])? } else { image })
}

/// A strided view: sizes, and the storage index of each element.
struct StridedView {
    sizes: Vec<i64>,
    places: Vec<i64>,
}

/// Maximum number of elements of a strided view, whose indices are stored in the program.
const MAX_STRIDED_ELEMENTS: i64 = 1 << 24;

impl StridedView {
    fn of(call: &mut Call<'_, '_>) -> Result<StridedView> {
        let sizes = call.known_ints("size")?;
        let strides = call.known_ints("stride")?;
        let offset = if call.has("storage_offset") { call.known_int("storage_offset")? } else { 0 };
        let count = sizes.iter().try_fold(1i64, |count, &size| count.checked_mul(size));
        if count.is_none_or(|count| !(1..=MAX_STRIDED_ELEMENTS).contains(&count)) {
            refuse!("is a view of sizes {sizes:?}; expected 1 to {MAX_STRIDED_ELEMENTS} elements");
        }
        let mut places = vec![offset];
        for (&size, &stride) in sizes.iter().zip(&strides) {
            let along = |place: &i64| {
                let place = checked(*place);
                (0..size).map(move |step| (place + checked(step) * stride).get())
            };
            places = places.iter().flat_map(along).collect::<Result<_, _>>()?;
        }
        Ok(StridedView { sizes, places })
    }
}

/// The elements of `self` in storage order, and the axis order for it.
fn stored(call: &mut Call<'_, '_>, x: ValueId) -> Result<(ValueId, Vec<usize>)> {
    let coremill_pt2::Argument::Value(id) = call.argument("self")? else {
        refuse!("`self` is not a tensor");
    };
    let Meta::Tensor(meta) = &call.graph().value(*id).meta else {
        refuse!("`self` is not a tensor");
    };
    let known = |sizes: &[Size]| sizes.iter().map(Size::fixed).collect::<Option<Vec<_>>>();
    let (Some(sizes), Some(strides)) = (known(&meta.sizes), known(&meta.strides)) else {
        refuse!("is a strided view of a tensor whose sizes or strides are unknown");
    };
    let mut order: Vec<_> = (0..sizes.len()).collect();
    order.sort_by_key(|&axis| std::cmp::Reverse(strides.get(axis)));
    // Unit axes can have any stride.
    let mut expected = 1;
    for &axis in order.iter().rev() {
        if *sizes.at(axis)? != 1 && *strides.at(axis)? != expected {
            refuse!(
                "is a strided view of a strided view of sizes {sizes:?} and strides {strides:?}; expected a tensor \
                 without gaps"
            );
        }
        expected *= *sizes.at(axis)?;
    }
    let x = call.transpose(x, &order)?;
    Ok((call.with_sizes(x, &[Int::Known(-1)])?, order))
}

fn as_strided(call: &mut Call<'_, '_>) -> ValueResult {
    let view = StridedView::of(call)?;
    let x = call.value("self")?;
    let (flat, _) = stored(call, x)?;
    check_within(call, flat, &view)?;
    let sizes: Vec<_> = view.sizes.iter().map(|&size| Int::Known(size)).collect();
    let picked = gathered_at(call, flat, &view.places, 0)?;
    call.with_sizes(picked, &sizes)
}

fn as_strided_scatter(call: &mut Call<'_, '_>) -> ValueResult {
    let view = StridedView::of(call)?;
    let (x, update) = both(call)?;
    let (flat, order) = stored(call, x)?;
    check_within(call, flat, &view)?;
    let update = call.with_sizes(update, &[Int::Known(-1)])?;
    let places: Vec<_> = view.places.iter().map(|&place| place as i32).collect();
    let places = call.constant(Constant::int32s(&places));
    let written = written_along(call, flat, places, update, 0, "update")?;
    let dims = call.dims(x)?;
    let sizes = order.iter().map(|&axis| dims.at(axis).copied()).collect::<Result<Vec<_>, _>>()?;
    let written = call.with_sizes(written, &sizes)?;
    call.transpose_back(written, &order)
}

fn check_within(builder: &Builder, flat: ValueId, view: &StridedView) -> Result<()> {
    let count = builder.extents(flat).at(0)?.unwrap_or(0) as i64;
    match view.places.iter().find(|place| !(0..count).contains(*place)) {
        None => Ok(()),
        Some(place) => {
            refuse!("uses element {place} of the storage, but the tensor has {count} elements")
        }
    }
}
