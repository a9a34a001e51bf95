//! Reductions.

use coremill_pte::program::ScalarType;

use super::arguments::{float_output, same_type};
use super::{Arguments, Kernel, kernel};
use crate::error::{Result, ensure};
use crate::number::{Compute, Number, Scalar, can_cast, compute, is_complex, is_floating};
use crate::view::{OutTensor, View, dense, walk};

pub(super) const TABLE: &[Kernel] = &[
    kernel("aten::amax.out", "TNB>T", |x, out| extremum(x, out, true)),
    kernel("aten::amin.out", "TNB>T", |x, out| extremum(x, out, false)),
    kernel("aten::any.all_out", "T>T", |x, out| any(x, Axes::All, false, out)),
    kernel("aten::any.dims_out", "TnB>T", any_dims),
    kernel("aten::any.out", "TIB>T", |x, out| any(x, Axes::One(x.int(1)?), x.bool(2)?, out)),
    kernel("aten::argmax.out", "TiB>T", |x, out| {
        let (axes, keep) = (one_or_all(x.optional_int(1)?), x.bool(2)?);
        select(x, axes, keep, true, None, &mut out[0])
    }),
    kernel("aten::argmin.out", "TiB>T", |x, out| {
        let (axes, keep) = (one_or_all(x.optional_int(1)?), x.bool(2)?);
        select(x, axes, keep, false, None, &mut out[0])
    }),
    kernel("aten::cumsum.out", "TIi>T", cumulative_sum),
    kernel("aten::max.dim_max", "TIB>TT", |x, out| select_with_values(x, out, true)),
    kernel("aten::max.unary_out", "T>T", |x, out| extremum_of_all(x, out, true)),
    kernel("aten::mean.dtype_out", "Ti>T", |x, out| {
        mean(x, Axes::All, false, x.optional_dtype(1)?, out)
    }),
    kernel("aten::mean.out", "TnBi>T", |x, out| {
        mean(x, list_or_all(x.optional_ints(1)?), x.bool(2)?, x.optional_dtype(3)?, out)
    }),
    kernel("aten::min.dim_min", "TIB>TT", |x, out| select_with_values(x, out, false)),
    kernel("aten::min.unary_out", "T>T", |x, out| extremum_of_all(x, out, false)),
    kernel("aten::prod.int_out", "TIBi>T", |x, out| {
        product(x, Axes::One(x.int(1)?), x.bool(2)?, x.optional_dtype(3)?, out)
    }),
    kernel("aten::prod.out", "Ti>T", |x, out| {
        product(x, Axes::All, false, x.optional_dtype(1)?, out)
    }),
    kernel("aten::sum.IntList_out", "TnBi>T", sum),
    kernel("aten::var.correction_out", "TnsB>T", |x, out| {
        let correction = x.optional_scalar(2)?.map_or(1.0, Scalar::as_f64);
        variance(x, correction, x.bool(3)?, out)
    }),
    kernel("aten::var.out", "TnBB>T", |x, out| {
        variance(x, f64::from(u8::from(x.bool(2)?)), x.bool(3)?, out)
    }),
    kernel("aten::var_mean.correction_out", "TnsB>TT", |x, out| {
        let correction = x.optional_scalar(2)?.map_or(1.0, Scalar::as_f64);
        variance(x, correction, x.bool(3)?, out)
    }),
];

/// The reduced dimensions.
#[derive(Clone, Copy)]
enum Axes<'a> {
    All,
    One(i64),
    List(&'a [i64]),
}

/// An empty list selects all dimensions.
fn list_or_all(dims: Option<&[i64]>) -> Axes<'_> {
    match dims {
        None | Some([]) => Axes::All,
        Some(dims) => Axes::List(dims),
    }
}

fn one_or_all(dim: Option<i64>) -> Axes<'static> {
    dim.map_or(Axes::All, Axes::One)
}

/// Element offsets of a reduction, in a contiguous copy.
struct Plan {
    /// For each result, the offset of its first element.
    starts: Vec<usize>,
    /// Offsets of its elements relative to the first.
    offsets: Vec<usize>,
    sizes: Vec<usize>,
}

fn plan(view: &View, axes: Axes, keep: bool) -> Result<Plan> {
    let mut is_reduced = vec![matches!(axes, Axes::All); view.rank()];
    let one;
    let list = match axes {
        Axes::All => &[][..],
        Axes::One(dim) => {
            one = [dim];
            &one
        }
        Axes::List(list) => list,
    };
    for &dim in list {
        let axis = view.dimension(dim)?;
        if let Some(reduced) = is_reduced.get_mut(axis) {
            ensure!(!*reduced, "dimension {axis} is repeated");
            *reduced = true;
        }
    }
    let strides = dense(view.sizes);
    let places = |reduced: bool| {
        let axes = || (0..view.rank()).filter(|axis| is_reduced[*axis] == reduced);
        let sizes: Vec<usize> = axes().map(|axis| view.sizes[axis]).collect();
        let strides: Vec<usize> = axes().map(|axis| strides[axis]).collect();
        let mut places = Vec::new();
        walk(&sizes, &strides, |place| places.push(place));
        places
    };
    let sizes = view.sizes.iter().zip(&is_reduced).filter_map(|(size, reduced)| match reduced {
        false => Some(*size),
        true => keep.then_some(1),
    });
    Ok(Plan { starts: places(false), offsets: places(true), sizes: sizes.collect() })
}

impl Plan {
    /// Folds the elements of each result.
    fn fold<N: Copy, T>(
        &self,
        numbers: &[N],
        fold: impl Fn(&mut dyn Iterator<Item = N>) -> T,
    ) -> Vec<T> {
        let of =
            |start: &usize| fold(&mut self.offsets.iter().map(|offset| numbers[start + offset]));
        self.starts.iter().map(of).collect()
    }
}

/// Accumulation type of a result type: 64 bits.
fn accumulates(dtype: ScalarType) -> Compute {
    if is_floating(dtype) { Compute::F64 } else { Compute::I64 }
}

fn output_type(dtype: Option<ScalarType>, out: &OutTensor) -> Result {
    let found = out.dtype;
    ensure!(
        dtype.is_none_or(|dtype| dtype == found),
        "`dtype` is `{:?}`, but the output has type `{found:?}`",
        dtype.unwrap_or(found)
    );
    Ok(())
}

fn sum(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = x.tensor(0)?;
    output_type(x.optional_dtype(3)?, &out[0])?;
    let plan = plan(&view, list_or_all(x.optional_ints(1)?), x.bool(2)?)?;
    out[0].resize(&plan.sizes)?;
    if is_complex(view.dtype) {
        same_type(&view, &out[0])?;
        let sums = plan.fold(&super::complex::parts_of(view)?, |parts| {
            parts.fold([0.0; 2], |sum, part| [sum[0] + part[0], sum[1] + part[1]])
        });
        return super::complex::put(&sums, &mut out[0]);
    }
    Compute::of(view.dtype)?;
    accumulate(view, &plan, false, &mut out[0])
}

fn product(
    x: &Arguments,
    axes: Axes,
    keep: bool,
    dtype: Option<ScalarType>,
    out: &mut [OutTensor],
) -> Result {
    let view = x.tensor(0)?;
    output_type(dtype, &out[0])?;
    let plan = plan(&view, axes, keep)?;
    out[0].resize(&plan.sizes)?;
    Compute::of(view.dtype)?;
    accumulate(view, &plan, true, &mut out[0])
}

/// Products or sums.
fn accumulate(view: View, plan: &Plan, multiply: bool, out: &mut OutTensor) -> Result {
    compute!(accumulates(out.dtype), N => {
        let found = plan.fold(&view.contiguous::<N>(), |numbers| {
            if multiply { numbers.fold(N::ONE, N::multiply) } else { numbers.fold(N::ZERO, N::add) }
        });
        out.put_contiguous(&found);
        Ok(())
    })
}

fn mean(
    x: &Arguments,
    axes: Axes,
    keep: bool,
    dtype: Option<ScalarType>,
    out: &mut [OutTensor],
) -> Result {
    let view = x.tensor(0)?;
    output_type(dtype, &out[0])?;
    float_output(&out[0])?;
    Compute::of(view.dtype)?;
    let plan = plan(&view, axes, keep)?;
    out[0].resize(&plan.sizes)?;
    let count = plan.offsets.len() as f64;
    let means = plan.fold(&view.contiguous::<f64>(), |numbers| numbers.sum::<f64>() / count);
    out[0].put_contiguous(&means);
    Ok(())
}

/// The variance, and the mean if there is an output for it.
fn variance(x: &Arguments, correction: f64, keep: bool, out: &mut [OutTensor]) -> Result {
    let view = x.tensor(0)?;
    for out in &*out {
        float_output(out)?;
    }
    ensure!(is_floating(view.dtype), "the tensor must have a float type, got `{:?}`", view.dtype);
    let plan = plan(&view, list_or_all(x.optional_ints(1)?), keep)?;
    let numbers = view.contiguous::<f64>();
    let count = plan.offsets.len() as f64;
    let means = plan.fold(&numbers, |numbers| numbers.sum::<f64>() / count);
    let denominator = count - correction;
    let variances: Vec<f64> = plan
        .starts
        .iter()
        .zip(&means)
        .map(|(start, mean)| {
            let square = |offset: &usize| (numbers[start + offset] - mean).powi(2);
            let squares: f64 = plan.offsets.iter().map(square).sum();
            if denominator <= 0.0 { f64::NAN } else { squares / denominator }
        })
        .collect();
    out[0].resize(&plan.sizes)?;
    out[0].put_contiguous(&variances);
    if let Some(out) = out.get_mut(1) {
        out.resize(&plan.sizes)?;
        out.put_contiguous(&means);
    }
    Ok(())
}

fn extremum(x: &Arguments, out: &mut [OutTensor], largest: bool) -> Result {
    let view = x.tensor(0)?;
    same_type(&view, &out[0])?;
    let plan = plan(&view, list_or_all(Some(x.ints(1)?)), x.bool(2)?)?;
    out[0].resize(&plan.sizes)?;
    reduce_to_extremum(view, &plan, largest, &mut out[0])
}

fn reduce_to_extremum(view: View, plan: &Plan, largest: bool, out: &mut OutTensor) -> Result {
    ensure!(
        !plan.offsets.is_empty() || plan.starts.is_empty(),
        "cannot reduce an empty dimension of a tensor of sizes {:?} to its extremum",
        view.sizes
    );
    compute!(Compute::of(view.dtype)?, N => {
        let numbers = view.contiguous::<N>();
        let found = plan.fold(&numbers, |numbers| {
            if largest { numbers.fold(N::LEAST, N::greatest) } else { numbers.fold(N::GREATEST, N::least) }
        });
        out.put_contiguous(&found);
        Ok(())
    })
}

fn extremum_of_all(x: &Arguments, out: &mut [OutTensor], largest: bool) -> Result {
    let view = x.tensor(0)?;
    let (from, to) = (view.dtype, out[0].dtype);
    ensure!(can_cast(from, to), "a result of `{from:?}` cannot be written as `{to:?}`");
    let plan = plan(&view, Axes::All, false)?;
    out[0].resize(&[])?;
    reduce_to_extremum(view, &plan, largest, &mut out[0])
}

fn any_dims(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let keep = x.bool(2)?;
    match x.optional_ints(1)? {
        None => any(x, Axes::All, keep, out),
        // Here an empty list selects no dimension.
        Some(dims) => any(x, Axes::List(dims), keep, out),
    }
}

fn any(x: &Arguments, axes: Axes, keep: bool, out: &mut [OutTensor]) -> Result {
    let view = x.tensor(0)?;
    let dtype = out[0].dtype;
    ensure!(
        matches!(dtype, ScalarType::Bool | ScalarType::Byte),
        "the output must be `Bool` or `Byte`, got `{dtype:?}`"
    );
    let plan = plan(&view, axes, keep)?;
    out[0].resize(&plan.sizes)?;
    compute!(Compute::of(view.dtype)?, N => {
        let found = plan.fold(&view.contiguous::<N>(), |mut numbers| (&mut numbers).any(N::is_true));
        let found: Vec<i64> = found.into_iter().map(i64::from).collect();
        out[0].put_contiguous(&found);
        Ok(())
    })
}

/// Index of the first extreme element; NaN counts as extreme.
fn select(
    x: &Arguments,
    axes: Axes,
    keep: bool,
    largest: bool,
    values: Option<&mut OutTensor>,
    indices: &mut OutTensor,
) -> Result {
    let view = x.tensor(0)?;
    let dtype = indices.dtype;
    ensure!(dtype == ScalarType::Long, "the indices must be `Long`, got `{dtype:?}`");
    let plan = plan(&view, axes, keep)?;
    ensure!(
        !plan.offsets.is_empty() || plan.starts.is_empty(),
        "cannot reduce an empty dimension of a tensor of sizes {:?} to its extremum",
        view.sizes
    );
    indices.resize(&plan.sizes)?;
    compute!(Compute::of(view.dtype)?, N => {
        let found = plan.fold(&view.contiguous::<N>(), |numbers| {
            let mut best = (N::ZERO, 0);
            for (index, number) in numbers.enumerate() {
                let better = if largest { number > best.0 } else { number < best.0 };
                if index == 0 || (!best.0.is_nan() && (number.is_nan() || better)) {
                    best = (number, index as i64);
                }
            }
            best
        });
        indices.put_contiguous(&found.iter().map(|(_, index)| *index).collect::<Vec<i64>>());
        if let Some(values) = values {
            same_type(&view, values)?;
            values.resize(&plan.sizes)?;
            values.put_contiguous(&found.iter().map(|(value, _)| *value).collect::<Vec<N>>());
        }
        Ok(())
    })
}

fn select_with_values(x: &Arguments, out: &mut [OutTensor], largest: bool) -> Result {
    let (axes, keep) = (Axes::One(x.int(1)?), x.bool(2)?);
    let [values, indices] = out else { return Ok(()) };
    select(x, axes, keep, largest, Some(values), indices)
}

fn cumulative_sum(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = x.tensor(0)?;
    output_type(x.optional_dtype(2)?, &out[0])?;
    let axis = view.dimension(x.int(1)?)?;
    out[0].resize(view.sizes)?;
    Compute::of(view.dtype)?;
    let size = view.sizes.get(axis).copied().unwrap_or(1);
    let inner = dense(view.sizes).get(axis).copied().unwrap_or(1);
    compute!(accumulates(out[0].dtype), N => {
        let mut numbers = view.contiguous::<N>();
        for place in 0..numbers.len() {
            if place / inner % size > 0 {
                numbers[place] = numbers[place].add(numbers[place - inner]);
            }
        }
        out[0].put_contiguous(&numbers);
        Ok(())
    })
}
