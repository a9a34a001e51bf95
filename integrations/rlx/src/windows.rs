//! Sliding windows: im2col, gradients of convolutions and pooling, resampling.

use coremill_graph::{DType, Error, Tensor, ops};
use rlx_ir::Op;

use crate::network::convolved;
use crate::site::NodeContext;

pub(crate) fn lower<'g>(site: &NodeContext<'_, 'g>) -> Result<Option<Tensor<'g>>, Error> {
    Ok(Some(match &site.node.op {
        Op::Im2Col { kernel_size, stride, padding, dilation } => {
            let x = site.arg(0)?;
            let windows = Windows::new(site, &x.shape(), kernel_size, stride, padding, dilation)?;
            let taps = windows.taps(x, 0.0);
            // `[batch, channels, taps, places..]`, then a row for each window.
            let spots: usize = windows.places.iter().product();
            let (batch, channels, count) = (x.extent(0), x.extent(1), taps.len());
            let flat = taps.into_iter().map(|tap| tap.view([batch, channels, 1, spots]));
            let rows = site.joined(flat, 2).view([batch, channels * count, spots]);
            rows.transpose([0, 2, 1]).view([batch * spots, channels * count])
        }
        Op::MaxPool2dBackward { kernel_size, stride, padding }
        | Op::MaxPool3dBackward { kernel_size, stride, padding } => {
            let (x, dy) = (site.arg(0)?, site.arg(1)?);
            let ones = vec![1; kernel_size.len()];
            let windows = Windows::new(site, &x.shape(), kernel_size, stride, padding, &ones)?;
            let taps = windows.taps(x, f32::MIN);
            let largest = taps.iter().copied().reduce(|x, y| x.maximum(y)).unwrap_or(x);
            // If several elements are largest, the first one gets the whole gradient.
            let mut free = dy * 0.0 + 1.0;
            let mut parts = Vec::with_capacity(taps.len());
            for tap in taps {
                let own = tap.equal(largest).cast(DType::Fp32) * free;
                free = free - own;
                parts.push(own * dy);
            }
            windows.spread(site, parts)?
        }
        Op::Conv2dBackwardInput { kernel_size, stride, padding, dilation, groups }
        | Op::Conv3dBackwardInput { kernel_size, stride, padding, dilation, groups } => {
            let (dy, w) = (site.arg(0)?, site.arg(1)?);
            let windows =
                Windows::new(site, site.shape()?, kernel_size, stride, padding, dilation)?;
            let spots: usize = windows.places.iter().product();
            let (batch, outputs, inputs) = (dy.extent(0), dy.extent(1), w.extent(1));
            let groups = (*groups).max(1);
            let dy = dy.view([batch, groups, outputs / groups, spots]);
            let weights = w.view([groups, outputs / groups, inputs, windows.count()]);
            let parts = (0..windows.count() as i32).map(|tap| {
                let own = weights.at(3, tap);
                let part = own.transpose([0, 2, 1]).dot(dy);
                let shape = [&[batch, groups * inputs], &windows.places[..]].concat();
                part.view(shape)
            });
            windows.spread(site, parts.collect())?
        }
        Op::Conv2dBackwardWeight { kernel_size, stride, padding, dilation, groups }
        | Op::Conv3dBackwardWeight { kernel_size, stride, padding, dilation, groups } => {
            let (x, dy) = (site.arg(0)?, site.arg(1)?);
            let windows = Windows::new(site, &x.shape(), kernel_size, stride, padding, dilation)?;
            let spots: usize = windows.places.iter().product();
            let (batch, groups) = (x.extent(0), (*groups).max(1));
            // `[groups, channels, batch · places]`
            let rows = |x: Tensor<'g>| {
                let channels = x.extent(1);
                let split = x.view([batch, groups, channels / groups, spots]);
                split.transpose([1, 2, 0, 3]).view([groups, channels / groups, batch * spots])
            };
            let dy = rows(dy);
            let taps =
                windows.taps(x, 0.0).into_iter().map(|tap| dy.matmul_t(rows(tap)).unsqueeze(3));
            site.joined(taps, 3)
        }
        Op::PartitionedConv { .. } => {
            let (x, response) = (site.arg(0)?, site.arg(1)?);
            let (length, taps) = (x.last_extent(), response.last_extent());
            let rows = x.shape().iter().product::<usize>() / length.max(1);
            let kernel = response.view([taps]).reverse(ops::Reverse::new().axes([0]));
            let (kernel, x) = (kernel.view([1, 1, taps]), x.view([rows, 1, length]));
            convolved(x, kernel, &[1], &[taps - 1], &[1], 1)
        }
        Op::Interpolate3d { size } => {
            let mut x = site.arg(0)?;
            for (axis, &wanted) in size.iter().enumerate() {
                let extent = x.extent(axis + 2);
                if wanted == extent {
                    continue;
                }
                let places: Vec<i32> = (0..wanted)
                    .map(|at| (at * extent / wanted.max(1)).min(extent - 1) as i32)
                    .collect();
                let places = site.graph.ints([wanted], &places);
                x = x.gather(places, ops::Gather::new().axis(axis + 2));
            }
            x
        }
        _ => return Ok(None),
    }))
}

/// Windows over `[batch, channels, extents..]`.
struct Windows {
    extents: Vec<usize>,
    kernel: Vec<usize>,
    stride: Vec<usize>,
    padding: Vec<usize>,
    dilation: Vec<usize>,
    /// Number of windows along each axis.
    places: Vec<usize>,
}

impl Windows {
    fn new(
        site: &NodeContext<'_, '_>,
        shape: &[usize],
        kernel: &[usize],
        stride: &[usize],
        padding: &[usize],
        dilation: &[usize],
    ) -> Result<Windows, Error> {
        let extents = shape.get(2..).unwrap_or_default().to_vec();
        let rank = extents.len();
        let fits = [kernel, stride, padding, dilation].iter().all(|list| list.len() == rank);
        let positive = [kernel, stride, dilation].iter().all(|list| !list.contains(&0));
        if rank == 0 || !fits || !positive {
            return site.refuse(format!(
                "cannot slide windows of sizes {kernel:?} over sizes {extents:?}"
            ));
        }
        let places = (0..rank).map(|at| {
            let reach = dilation[at] * (kernel[at] - 1) + 1;
            let padded = extents[at] + 2 * padding[at];
            padded.checked_sub(reach).map(|free| free / stride[at] + 1)
        });
        let Some(places) = places.collect::<Option<Vec<_>>>() else {
            return site
                .refuse(format!("has windows of sizes {kernel:?}, which are larger than the padded sizes {extents:?}"));
        };
        let [kernel, stride, padding, dilation] =
            [kernel, stride, padding, dilation].map(<[usize]>::to_vec);
        Ok(Windows { extents, kernel, stride, padding, dilation, places })
    }

    fn count(&self) -> usize {
        self.kernel.iter().product()
    }

    /// Offsets of a window's elements, in row-major order.
    fn offsets(&self) -> Vec<Vec<usize>> {
        (0..self.count())
            .map(|tap| {
                let mut rest = tap;
                let mut offset = vec![0; self.kernel.len()];
                for axis in (0..self.kernel.len()).rev() {
                    offset[axis] = rest % self.kernel[axis] * self.dilation[axis];
                    rest /= self.kernel[axis];
                }
                offset
            })
            .collect()
    }

    /// For each element of a window, the values of all windows at this element.
    fn taps<'g>(&self, x: Tensor<'g>, border: f32) -> Vec<Tensor<'g>> {
        let mut pads = vec![0; 4];
        pads.extend(self.padding.iter().flat_map(|&pad| [pad as i32, pad as i32]));
        let padded = match self.padding.iter().all(|&pad| pad == 0) {
            true => x,
            false => x.pad(pads, ops::Pad::new().constant_val(border)),
        };
        let tap = |offset: &Vec<usize>| {
            let mut part = padded;
            for (axis, &from) in offset.iter().enumerate() {
                let (step, count) = (self.stride[axis], self.places[axis]);
                let to = from + (count - 1) * step + 1;
                part = part.strided(axis as i32 + 2, from as i32..to as i32, step as i32);
            }
            part
        };
        self.offsets().iter().map(tap).collect()
    }

    /// The reverse of [`taps`](Self::taps): the sum of the windows' values at each element.
    fn spread<'g>(
        &self,
        site: &NodeContext<'_, 'g>,
        parts: Vec<Tensor<'g>>,
    ) -> Result<Tensor<'g>, Error> {
        let spread = |part: Tensor<'g>, offset: &Vec<usize>| {
            let mut part = part;
            for (axis, &from) in offset.iter().enumerate() {
                let (step, count) = (self.stride[axis], self.places[axis]);
                let shape = part.shape();
                let before: usize = shape[..axis + 2].iter().product();
                let after: usize = shape[axis + 3..].iter().product();
                let wide = self.extents[axis] + 2 * self.padding[axis];
                // Inserts zeros between strided positions, then before and after.
                let mut line = part.view([before, count, 1, after]);
                if step > 1 {
                    line = line.pad([0, 0, 0, 0, 0, step as i32 - 1, 0, 0], ops::Pad::new());
                }
                let line = line.view([before, count * step, after]);
                let reach = (count - 1) * step + 1;
                let line = line.narrow(1, ..reach as i32);
                let rest = wide - from - reach;
                let line = line.pad([0, 0, from as i32, rest as i32, 0, 0], ops::Pad::new());
                let inner = line.narrow(
                    1,
                    self.padding[axis] as i32..(self.padding[axis] + self.extents[axis]) as i32,
                );
                let mut shape = shape;
                shape[axis + 2] = self.extents[axis];
                part = inner.view(shape);
            }
            part
        };
        let offsets = self.offsets();
        let all = parts.into_iter().zip(&offsets).map(|(part, offset)| spread(part, offset));
        match all.reduce(|x, y| x + y) {
            Some(sum) => Ok(sum),
            None => Ok(site.zeros(site.shape()?)),
        }
    }
}
