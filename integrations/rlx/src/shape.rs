//! Shapes, slices and indexing.

use coremill_graph::{Error, Tensor, ops};
use rlx_ir::Op;
use rlx_ir::op::{PadMode, ScatterNdReduction};

use crate::site::NodeContext;

pub(crate) fn lower<'g>(site: &NodeContext<'_, 'g>) -> Result<Option<Tensor<'g>>, Error> {
    let graph = site.graph;
    Ok(Some(match &site.node.op {
        Op::Reshape { .. } => site.viewed(site.arg(0)?)?,
        Op::Transpose { perm } => site.arg(0)?.transpose(perm),
        Op::Narrow { axis, start, len } => {
            site.arg(0)?.narrow(*axis as i32, *start as i32..(*start + *len) as i32)
        }
        Op::Slice { axis, start, len, step } if *step > 0 => {
            let end = *start + (len.saturating_sub(1)) * *step as usize + 1;
            site.arg(0)?.strided(*axis as i32, *start as i32..end as i32, *step as i32)
        }
        Op::Slice { axis, start, len, step } => {
            let places: Vec<i32> =
                (0..*len as i64).map(|at| (*start as i64 + at * step) as i32).collect();
            let places = graph.ints([places.len()], &places);
            site.arg(0)?.gather(places, ops::Gather::new().axis(*axis))
        }
        Op::Roll { shifts, dims } => {
            let mut x = site.arg(0)?;
            for (&shift, &axis) in shifts.iter().zip(dims) {
                let extent = x.extent(axis) as i64;
                let cut = (extent - shift.rem_euclid(extent.max(1))) as i32;
                if cut as i64 != extent && cut != 0 {
                    let parts = [x.narrow(axis as i32, cut..), x.narrow(axis as i32, ..cut)];
                    x = graph.concat(parts, axis, ops::Concat::new());
                }
            }
            x
        }
        Op::Concat { axis } => graph.concat(&site.args, *axis, ops::Concat::new()),
        Op::Expand { .. } => site.arg(0)?.broadcast_to(site.shape()?),
        Op::Tile { reps } => {
            site.arg(0)?.tile(reps.iter().map(|&count| count as i32).collect::<Vec<i32>>())
        }
        Op::Reverse { axes } => site.arg(0)?.reverse(ops::Reverse::new().axes(axes)),
        Op::Pad { pads, mode } => padded(site, pads, *mode)?,
        Op::Trilu { upper, diagonal } => {
            let x = site.arg(0)?;
            let (rows, columns) = match *site.shape()? {
                [.., rows, columns] => (rows, columns),
                _ => return site.refuse("requires a rank of at least 2"),
            };
            let kept = |row: usize, column: usize| {
                let ahead = column as i64 - row as i64;
                if *upper { ahead >= *diagonal } else { ahead <= *diagonal }
            };
            let mask: Vec<f32> = (0..rows * columns)
                .map(|at| if kept(at / columns, at % columns) { 1.0 } else { 0.0 })
                .collect();
            graph.select_or(graph.floats([rows, columns], &mask).not_equal(0.0), x, 0.0)
        }
        Op::Gather { axis } => {
            site.arg(0)?.gather(site.indices(1)?, ops::Gather::new().axis(*axis))
        }
        Op::GatherElements { axis } => {
            let options = ops::GatherAlongAxis::new().axis(*axis);
            site.arg(0)?.gather_along_axis(site.indices(1)?, options)
        }
        Op::GatherNd { batch_dims } => {
            let options = ops::GatherNd::new().batch_dims(*batch_dims);
            site.arg(0)?.gather_nd(site.indices(1)?, options)
        }
        Op::ScatterAdd { axis } => {
            let options = ops::Scatter::new().axis(*axis).mode("add");
            site.zeros(site.shape()?).scatter(site.indices(1)?, site.arg(0)?, options)
        }
        Op::ScatterNd { reduction } => {
            let options = ops::ScatterNd::new().mode(mode(*reduction));
            site.arg(0)?.scatter_nd(site.indices(1)?, site.arg(2)?, options)
        }
        Op::ScatterElements { axis, reduction } => {
            let options = ops::ScatterAlongAxis::new().axis(*axis).mode(mode(*reduction));
            site.arg(0)?.scatter_along_axis(site.indices(1)?, site.arg(2)?, options)
        }
        Op::KvAppend { axis, pos } => {
            let (cache, row) = (site.arg(0)?, site.arg(1)?);
            match *pos {
                0 => row,
                pos => {
                    let before = cache.narrow(*axis as i32, ..pos as i32);
                    graph.concat([before, row], *axis, ops::Concat::new())
                }
            }
        }
        Op::DynamicUpdateSlice { axis } => {
            let (x, update) = (site.arg(0)?, site.arg(1)?);
            let (extent, length) = (x.extent(*axis), update.extent(*axis));
            let last = extent.saturating_sub(length) as i32;
            let start = site.indices(2)?.view([1]).maximum(0).minimum(last);
            let steps: Vec<i32> = (0..length as i32).collect();
            let places = start + graph.ints([length], &steps);
            x.scatter(places, update, ops::Scatter::new().axis(*axis).mode("update"))
        }
        _ => return Ok(None),
    }))
}

fn mode(reduction: ScatterNdReduction) -> &'static str {
    match reduction {
        ScatterNdReduction::None => "update",
        ScatterNdReduction::Add => "add",
        ScatterNdReduction::Mul => "mul",
        ScatterNdReduction::Max => "max",
        ScatterNdReduction::Min => "min",
    }
}

fn padded<'g>(
    site: &NodeContext<'_, 'g>,
    pads: &[[usize; 2]],
    mode: PadMode,
) -> Result<Tensor<'g>, Error> {
    let x = site.arg(0)?;
    if let PadMode::Constant(value) = mode {
        let flat: Vec<i32> = pads.iter().flatten().map(|&pad| pad as i32).collect();
        return Ok(x.pad(flat, ops::Pad::new().constant_val(value)));
    }
    // Along each axis, the padding is gathered from the indices that it repeats.
    let mut x = x;
    for (axis, &[before, after]) in pads.iter().enumerate() {
        let extent = x.extent(axis) as i64;
        if before + after == 0 {
            continue;
        }
        let place = |at: i64| match mode {
            PadMode::Replicate => at.clamp(0, extent - 1),
            PadMode::Circular => at.rem_euclid(extent.max(1)),
            _ => {
                let period = (2 * (extent - 1)).max(1);
                let at = at.rem_euclid(period);
                if at < extent { at } else { period - at }
            }
        };
        let places: Vec<i32> =
            (-(before as i64)..extent + after as i64).map(|at| place(at) as i32).collect();
        let places = site.graph.ints([places.len()], &places);
        x = x.gather(places, ops::Gather::new().axis(axis));
    }
    Ok(x)
}
