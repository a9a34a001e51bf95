//! Pooling. Kernels exist for 2-D only: 1-D input gets a height of 1, and volumes are pooled in 2-D and then along
//! their depth.

use crate::decompose::prelude::*;

pub(crate) const ROWS: &[Row] = &[
    by(max_pool, &["aten.max_pool{1,2,3}d"]),
    by(max_pool_indices, &["aten.max_pool{1,2,3}d_with_indices"]),
    by(average_pool, &["aten.avg_pool{1,2,3}d"]),
    by(adaptive_average, &["aten.adaptive_avg_pool{1,2,3}d", "aten._adaptive_avg_pool{2,3}d"]),
    by(adaptive_max, &["aten.adaptive_max_pool{1,2,3}d"]),
];

/// Parameters of a window along one dimension.
#[derive(Clone, Copy)]
struct Side {
    kernel: i64,
    stride: i64,
    padding: i64,
    dilation: i64,
}

/// A window of one element.
const UNIT: Side = Side { kernel: 1, stride: 1, padding: 0, dilation: 1 };

/// Parameters of a window; its sides belong to the last dimensions of the tensor.
struct Window {
    sides: Vec<Side>,
    ceil: bool,
}

impl Window {
    /// One parameter of every side.
    fn each(&self, number: fn(&Side) -> i64) -> Vec<i64> {
        self.sides.iter().map(number).collect()
    }
}

fn window(call: &Call<'_>) -> Result<Window> {
    let spatial = spatial(call.name());
    let [kernels, strides, paddings, dilations] = ["kernel_size", "stride", "padding", "dilation"]
        .map(|name| match call.has(name) {
            true => call.ints(name),
            false => Ok(Vec::new()),
        });
    let (kernels, strides, paddings, dilations) = (kernels?, strides?, paddings?, dilations?);
    // A single number applies to all dimensions.
    let of = |values: &[i64], at: usize, default: i64| match values {
        [] => Ok(default),
        [single] => Ok(*single),
        values => values.at(at).copied(),
    };
    let mut sides = Vec::with_capacity(spatial);
    for at in 0..spatial {
        let kernel = of(&kernels, at, 1)?;
        sides.push(Side {
            kernel,
            stride: of(&strides, at, kernel)?,
            padding: of(&paddings, at, 0)?,
            dilation: of(&dilations, at, 1)?,
        });
    }
    Ok(Window { sides, ceil: call.bool("ceil_mode")? })
}

/// A 2-D pooling that returns one tensor, or the maxima and their indices.
type Pool<'p> = &'p dyn Fn(&mut Call<'_>, &Tensor, &Window, Vec<Size>) -> Result<Vec<Tensor>>;

/// Pools a tensor of any rank with a function for 2-D pooling.
fn pooled(
    call: &mut Call<'_>,
    x: &Tensor,
    window: &Window,
    sizes: &[Size],
    pool: Pool<'_>,
) -> Result<Vec<Tensor>> {
    let (spatial, rank) = (window.sides.len(), x.rank());
    if rank <= spatial || sizes.len() != rank {
        refuse!("cannot pool {spatial} dimensions from rank {rank} to rank {}", sizes.len());
    }
    let (leading, old) = (x.extent(..rank - spatial)?, x.extent(rank - spatial..)?);
    let new = size::at(sizes, rank - spatial..)?;
    let (batch, unit) = (size::product(leading), Size::Fixed(1));
    let of = |sides: &[Side]| Window { sides: sides.to_vec(), ceil: window.ceil };
    let found = match (window.sides.as_slice(), old, new) {
        ([_, _], ..) if rank <= 4 => return pool(call, x, window, sizes.to_vec()),
        (&[side], [width], [new_width]) => {
            let planes = vec![batch.clone(), unit.clone(), unit.clone(), width.clone()];
            let planes = call.view(x, planes)?;
            let found = vec![batch, unit.clone(), unit, new_width.clone()];
            pool(call, &planes, &of(&[UNIT, side]), found)?
        }
        (&[deep, tall, wide], [depth, height, width], [new_depth, new_height, new_width]) => {
            let planes = vec![batch.clone(), depth.clone(), height.clone(), width.clone()];
            let planes = call.view(x, planes)?;
            let found = vec![batch.clone(), depth.clone(), new_height.clone(), new_width.clone()];
            let done = take(&mut pool(call, &planes, &of(&[tall, wide]), found)?, 0)?;
            let area = size::multiply(new_height, new_width);
            let columns = vec![batch.clone(), unit.clone(), depth.clone(), area.clone()];
            let columns = call.view(&done, columns)?;
            let found = vec![batch, unit, new_depth.clone(), area];
            pool(call, &columns, &of(&[deep, UNIT]), found)?
        }
        _ => refuse!("cannot pool {spatial} dimensions of a tensor of rank {rank}"),
    };
    found.iter().map(|tensor| call.view(tensor, sizes.to_vec())).collect()
}

fn max_planes(
    call: &mut Call<'_>,
    x: &Tensor,
    window: &Window,
    sizes: Vec<Size>,
) -> Result<Vec<Tensor>> {
    let given = given!(
        self = x,
        kernel_size = window.each(|side| side.kernel),
        stride = window.each(|side| side.stride),
        padding = window.each(|side| side.padding),
        dilation = window.each(|side| side.dilation),
        ceil_mode = window.ceil,
    );
    let types = vec![(x.dtype, sizes.clone()), (ScalarType::Int64, sizes)];
    call.emit_several("aten.max_pool2d_with_indices.default", given, types)
}

fn max_pool(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let window = window(call)?;
    let sizes = call.result_sizes()?;
    one(take(&mut pooled(call, &x, &window, &sizes, &max_planes)?, 0)?)
}

fn max_pool_indices(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let window = window(call)?;
    let sizes = call.result(usize::from(!call.wants(0)))?.sizes.clone();
    if call.wants(1) && window.sides.len() == 3 {
        refuse!("no kernel returns the indices of the maxima in 3-D pooling");
    }
    let both = pooled(call, &x, &window, &sizes, &max_planes)?;
    Ok(both.into_iter().map(RewriteResult::Tensor).collect())
}

fn average_pool(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let window = window(call)?;
    let sizes = call.result_sizes()?;
    let divisor = call.int_or("divisor_override", 0)?;
    let area = product(&window.each(|side| side.kernel)).get()?;
    // With an explicit divisor, windows are sums that include the padding.
    let include = call.bool("count_include_pad")? || divisor != 0;
    if divisor != 0 && window.ceil {
        refuse!("`divisor_override` is not supported if windows may be partly outside the input");
    }
    let pool = |call: &mut Call<'_>, x: &Tensor, window: &Window, sizes: Vec<Size>| {
        let given = given!(
            self = x,
            kernel_size = window.each(|side| side.kernel),
            stride = window.each(|side| side.stride),
            padding = window.each(|side| side.padding),
            ceil_mode = window.ceil,
            count_include_pad = include,
        );
        Ok(vec![call.emit("aten.avg_pool2d.default", given, x.dtype, sizes)?])
    };
    let done = take(&mut pooled(call, &x, &window, &sizes, &pool)?, 0)?;
    if divisor == 0 {
        return one(done);
    }
    one(call.times(&done, area as f64 / divisor as f64)?)
}

fn adaptive_average(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let sizes = call.result_sizes()?;
    let pool = |call: &mut Call<'_>, x: &Tensor, _: &Window, sizes: Vec<Size>| {
        let wanted = call.sizes_argument(size::at(&sizes, axis_from_end(sizes.len(), 2)?..)?)?;
        let given = given!(self = x, output_size = wanted);
        Ok(vec![call.emit("aten._adaptive_avg_pool2d.default", given, x.dtype, sizes)?])
    };
    // Adaptive pooling is fully determined by the output size.
    let window = Window { sides: vec![UNIT; spatial(call.name())], ceil: false };
    one(take(&mut pooled(call, &x, &window, &sizes, &pool)?, 0)?)
}

/// Plain pooling if the output sizes divide the input sizes. Otherwise each output has its own window.
fn adaptive_max(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let spatial = spatial(call.name());
    if call.wants(1) {
        refuse!("no kernel returns the indices of the maxima in adaptive pooling");
    }
    let sizes = call.result_sizes()?;
    if x.rank() < spatial || sizes.len() != x.rank() {
        let (rank, given) = (x.rank(), sizes.len());
        refuse!("cannot pool {spatial} dimensions from rank {rank} to rank {given}");
    }
    let mut done = x.clone();
    for at in x.rank() - spatial..x.rank() {
        let before = x.known(at, "a size that is pooled adaptively")?;
        let after = size::known(size::at(&sizes, at)?, "the output size of adaptive pooling")?;
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
    Ok(vec![RewriteResult::Tensor(done), RewriteResult::Nothing])
}
