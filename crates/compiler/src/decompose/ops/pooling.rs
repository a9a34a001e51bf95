//! Pooling. Kernels are for planes; rows have a height of 1, and volumes are pooled as planes and then along their depth.

use coremill_pt2::{Argument, ScalarType, Size};

use crate::bounds::{At, back, checked, product, take};
use crate::decompose::call::{Call, Made, Results, Tensor, one};
use crate::decompose::row::{Row, by};
use crate::decompose::size;
use crate::decompose::words::{Maybe, list};
use crate::error::{Refusal, refuse};

pub(crate) const ROWS: &[Row] = &[
    by(
        max_pool,
        &["aten.max_pool1d.default", "aten.max_pool2d.default", "aten.max_pool3d.default"],
    ),
    by(
        max_pool_indices,
        &[
            "aten.max_pool2d_with_indices.default",
            "aten.max_pool1d_with_indices.default",
            "aten.max_pool3d_with_indices.default",
        ],
    ),
    by(
        average_pool,
        &["aten.avg_pool1d.default", "aten.avg_pool2d.default", "aten.avg_pool3d.default"],
    ),
    by(
        adaptive_average,
        &[
            "aten.adaptive_avg_pool1d.default",
            "aten.adaptive_avg_pool2d.default",
            "aten._adaptive_avg_pool2d.default",
            "aten.adaptive_avg_pool3d.default",
            "aten._adaptive_avg_pool3d.default",
        ],
    ),
    by(
        adaptive_max,
        &[
            "aten.adaptive_max_pool1d.default",
            "aten.adaptive_max_pool2d.default",
            "aten.adaptive_max_pool3d.default",
        ],
    ),
];

/// What a window does along each dimension, the last ones of the tensor.
#[derive(Clone)]
struct Window {
    kernel: Vec<i64>,
    stride: Vec<i64>,
    padding: Vec<i64>,
    dilation: Vec<i64>,
    ceil: bool,
}

fn each(values: Vec<i64>, spatial: usize, default: &[i64]) -> Vec<i64> {
    match values.as_slice() {
        [] => default.to_vec(),
        [single] => vec![*single; spatial],
        _ => values,
    }
}

/// Of how many dimensions the operator's windows are, by its name.
fn dimensions_of(call: &Call<'_>) -> usize {
    let name = call.node.target.to_string();
    [(1, "pool1d"), (3, "pool3d")]
        .into_iter()
        .find(|(_, part)| name.contains(part))
        .map_or(2, |(count, _)| count)
}

fn window(call: &Call<'_>) -> Result<Window, Refusal> {
    let spatial = dimensions_of(call);
    let kernel = each(call.ints("kernel_size")?, spatial, &[]);
    let optional = |name: &str, default: i64| -> Result<Vec<i64>, Refusal> {
        match call.node.argument(name) {
            Some(_) => Ok(each(call.ints(name)?, spatial, &vec![default; spatial])),
            None => Ok(vec![default; spatial]),
        }
    };
    let stride = each(call.ints("stride")?, spatial, &kernel);
    if kernel.len() != spatial || stride.len() != spatial {
        refuse!("the window has not as many sizes as the operator dimensions");
    }
    Ok(Window {
        stride,
        padding: optional("padding", 0)?,
        dilation: optional("dilation", 1)?,
        ceil: call.bool("ceil_mode")?,
        kernel,
    })
}

/// Sizes of all that is before the last `spatial` dimensions as one, so that there is a batch and one channel.
fn as_planes(
    call: &mut Call<'_>,
    x: &Tensor,
    height: &Size,
    width: &Size,
    channels: &Size,
    batch: &Size,
) -> Maybe {
    call.view(x, vec![batch.clone(), channels.clone(), height.clone(), width.clone()])
}

/// Pools a tensor of any rank along its last dimensions by a function that pools planes.
fn pooled(
    call: &mut Call<'_>,
    x: &Tensor,
    window: &Window,
    sizes: &[Size],
    pool: &dyn Fn(&mut Call<'_>, &Tensor, &Window, Vec<Size>) -> Maybe,
) -> Maybe {
    let spatial = window.kernel.len();
    if x.rank() <= spatial || sizes.len() != x.rank() {
        let (rank, given) = (x.rank(), sizes.len());
        refuse!("pools {spatial} dimensions of rank {rank} to rank {given}");
    }
    let leading = x.extent(..x.rank() - spatial)?;
    let batch = size::product(leading);
    let unit = Size::Fixed(1);
    match spatial {
        2 if x.rank() >= 3 && x.rank() <= 4 => pool(call, x, window, sizes.to_vec()),
        1 => {
            let width = x.extent(back(x.rank(), 1)?)?;
            let planes = as_planes(call, x, &unit, width, &unit, &batch)?;
            let flat = with_unit_height(window);
            let found = vec![batch, unit.clone(), unit, sizes.at(back(sizes.len(), 1)?)?.clone()];
            let done = pool(call, &planes, &flat, found)?;
            call.view(&done, sizes.to_vec())
        }
        3 => {
            let at = back(x.rank(), 3)?;
            let (depth, height, width) = (x.extent(at)?, x.extent(at + 1)?, x.extent(at + 2)?);
            let planes = as_planes(call, x, height, width, depth, &batch)?;
            let last = part(window, 1..3)?;
            let (new_height, new_width) = (size::at(&sizes, at + 1)?, size::at(&sizes, at + 2)?);
            let found = vec![batch.clone(), depth.clone(), new_height.clone(), new_width.clone()];
            let done = pool(call, &planes, &last, found)?;
            let area = size::multiply(new_height, new_width);
            let columns = as_planes(call, &done, depth, &area, &unit, &batch)?;
            let mut first = part(window, 0..1)?;
            first.kernel.push(1);
            first.stride.push(1);
            first.padding.push(0);
            first.dilation.push(1);
            let found = vec![batch, unit, size::at(&sizes, at)?.clone(), area];
            let done = pool(call, &columns, &first, found)?;
            call.view(&done, sizes.to_vec())
        }
        _ => refuse!("a tensor of rank {} is pooled along {spatial} dimensions", x.rank()),
    }
}

fn part(window: &Window, range: std::ops::Range<usize>) -> Result<Window, Refusal> {
    Ok(Window {
        kernel: window.kernel.part(range.clone())?.to_vec(),
        stride: window.stride.part(range.clone())?.to_vec(),
        padding: window.padding.part(range.clone())?.to_vec(),
        dilation: window.dilation.part(range)?.to_vec(),
        ceil: window.ceil,
    })
}

fn with_unit_height(window: &Window) -> Window {
    let before = |first: i64, values: &[i64]| [&[first], values].concat();
    Window {
        kernel: before(1, &window.kernel),
        stride: before(1, &window.stride),
        padding: before(0, &window.padding),
        dilation: before(1, &window.dilation),
        ceil: window.ceil,
    }
}

fn max_planes(call: &mut Call<'_>, x: &Tensor, window: &Window, sizes: Vec<Size>) -> Maybe {
    take(&mut max_planes_indices(call, x, window, sizes)?, 0)
}

fn max_planes_indices(
    call: &mut Call<'_>,
    x: &Tensor,
    window: &Window,
    sizes: Vec<Size>,
) -> Result<Vec<Tensor>, Refusal> {
    let given = [
        ("self", x.argument()),
        ("kernel_size", list(window.kernel.iter().copied())),
        ("stride", list(window.stride.iter().copied())),
        ("padding", list(window.padding.iter().copied())),
        ("dilation", list(window.dilation.iter().copied())),
        ("ceil_mode", Argument::Bool(window.ceil)),
    ];
    let types = vec![(x.dtype, sizes.clone()), (ScalarType::Int64, sizes)];
    call.emit_several("aten.max_pool2d_with_indices.default", &given, types)
}

fn max_pool(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let window = window(call)?;
    let sizes = call.result(0)?.sizes.clone();
    one(pooled(call, &x, &window, &sizes, &max_planes)?)
}

fn max_pool_indices(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let window = window(call)?;
    let wanted = if call.wants(0) { 0 } else { 1 };
    let sizes = call.result(wanted)?.sizes.clone();
    if !call.wants(1) {
        return Ok(vec![
            Made::Tensor(pooled(call, &x, &window, &sizes, &max_planes)?),
            Made::Nothing,
        ]);
    }
    match window.kernel.len() {
        2 => {
            let both = max_planes_indices(call, &x, &window, sizes)?;
            Ok(both.into_iter().map(Made::Tensor).collect())
        }
        1 => {
            let batch = size::product(x.extent(..back(x.rank(), 1)?)?);
            let unit = Size::Fixed(1);
            let width = x.extent(back(x.rank(), 1)?)?;
            let planes = as_planes(call, &x, &unit, width, &unit, &batch)?;
            let found = vec![batch, unit.clone(), unit, sizes.at(back(sizes.len(), 1)?)?.clone()];
            let flat = with_unit_height(&window);
            let mut results = Vec::with_capacity(2);
            for tensor in max_planes_indices(call, &planes, &flat, found)? {
                results.push(Made::Tensor(call.view(&tensor, sizes.clone())?));
            }
            Ok(results)
        }
        _ => refuse!("the places of the largest elements of volumes have no kernel"),
    }
}

fn average_pool(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let window = window(call)?;
    let sizes = call.result(0)?.sizes.clone();
    let include = call.bool("count_include_pad")?;
    let divisor = call.int_or("divisor_override", 0)?;
    let area = product(&window.kernel).get()?;
    // Where another divisor is given, windows are sums of full ones, whatever lies in them.
    let include = include || divisor != 0;
    if divisor != 0 && window.ceil {
        refuse!("a divisor of its own, and windows that may lie partly outside");
    }
    let pool = |call: &mut Call<'_>, x: &Tensor, window: &Window, sizes: Vec<Size>| {
        let given = [
            ("self", x.argument()),
            ("kernel_size", list(window.kernel.iter().copied())),
            ("stride", list(window.stride.iter().copied())),
            ("padding", list(window.padding.iter().copied())),
            ("ceil_mode", Argument::Bool(window.ceil)),
            ("count_include_pad", Argument::Bool(include)),
        ];
        call.emit("aten.avg_pool2d.default", &given, x.dtype, sizes)
    };
    let done = pooled(call, &x, &window, &sizes, &pool)?;
    if divisor == 0 {
        return one(done);
    }
    one(call.times(&done, area as f64 / divisor as f64)?)
}

fn adaptive_average(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let sizes = call.result(0)?.sizes.clone();
    let spatial = dimensions_of(call);
    let pool = |call: &mut Call<'_>, x: &Tensor, _: &Window, sizes: Vec<Size>| {
        let wanted = call.sizes_argument(size::at(&sizes, back(sizes.len(), 2)?..)?)?;
        let given = [("self", x.argument()), ("output_size", wanted)];
        call.emit("aten._adaptive_avg_pool2d.default", &given, x.dtype, sizes)
    };
    // The sizes of the results say all there is to know.
    let nothing = vec![1; spatial];
    let window = Window {
        kernel: nothing.clone(),
        stride: nothing.clone(),
        padding: nothing.clone(),
        dilation: nothing,
        ceil: false,
    };
    one(pooled(call, &x, &window, &sizes, &pool)?)
}

/// Where the sizes divide it is plain pooling; elsewhere each place has a window of its own.
fn adaptive_max(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let spatial = dimensions_of(call);
    if call.wants(1) {
        refuse!("the places of the largest elements of windows that adapt have no kernel");
    }
    let sizes = call.result(0)?.sizes.clone();
    if x.rank() < spatial || sizes.len() != x.rank() {
        let (rank, given) = (x.rank(), sizes.len());
        refuse!("pools {spatial} dimensions of rank {rank} to rank {given}");
    }
    let mut done = x.clone();
    for at in x.rank() - spatial..x.rank() {
        let (Some(before), Some(after)) = (x.extent(at)?.fixed(), size::at(&sizes, at)?.fixed())
        else {
            refuse!("adaptive pooling requires a static output size");
        };
        if before == after {
            continue;
        }
        let mut parts = Vec::new();
        for place in 0..after {
            let start = (checked(place) * before).over(after).get()?;
            let end = ((checked(place) + 1) * before + after - 1).over(after).get()?;
            let run = call.slice(&done, at, start, end - start, 1)?;
            parts.push(call.extreme("amax", &run, &[at], true)?);
        }
        done = call.concatenate(&parts, at)?;
    }
    Ok(vec![Made::Tensor(done), Made::Nothing])
}
