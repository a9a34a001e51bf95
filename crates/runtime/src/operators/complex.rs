//! Complex numbers.

use coremill_pte::program::ScalarType;

use super::{Arguments, Kernel, kernel};
use crate::error::{Result, ensure, fail};
use crate::number::{Number, is_complex};
use crate::view::{OutTensor, View, broadcast_strides, walk_all};

pub(super) const TABLE: &[Kernel] = &[
    kernel("aten::_conj_physical.out", "T>T", conjugate),
    kernel("aten::view_as_real_copy.out", "T>T", view_as_real),
];

/// Element type of the real and imaginary parts.
pub(super) fn part(dtype: ScalarType) -> Result<ScalarType> {
    Ok(match dtype {
        ScalarType::ComplexHalf => ScalarType::Half,
        ScalarType::ComplexFloat => ScalarType::Float,
        ScalarType::ComplexDouble => ScalarType::Double,
        _ => fail!("the tensor must be complex, got `{dtype:?}`"),
    })
}

/// Real and imaginary parts of all elements, in dimension order.
pub(super) fn parts_of(view: View) -> Result<Vec<[f64; 2]>> {
    let part = part(view.dtype)?;
    let bytes = view.contiguous_bytes();
    let mut numbers = vec![0.0; 2 * view.count()];
    f64::load(part, &bytes, &mut numbers);
    Ok(numbers.chunks_exact(2).map(|pair| [pair[0], pair[1]]).collect())
}

/// Writes complex elements that are given in dimension order.
pub(super) fn put(numbers: &[[f64; 2]], out: &mut OutTensor) -> Result {
    let part = part(out.dtype)?;
    let mut bytes = vec![0; numbers.len() * out.width()];
    f64::store(numbers.as_flattened(), part, &mut bytes);
    out.put_contiguous_bytes(&bytes);
    Ok(())
}

fn same_types(views: [View; 2], out: &OutTensor) -> Result {
    let found = [views[0].dtype, views[1].dtype, out.dtype];
    ensure!(
        found[0] == found[1] && found[1] == found[2],
        "complex tensors must have the same type, got {found:?}"
    );
    Ok(())
}

/// Applies a function to two broadcast tensors.
fn join(
    views: [View; 2],
    out: &mut OutTensor,
    join: impl Fn([f64; 2], [f64; 2]) -> [f64; 2],
) -> Result {
    same_types(views, out)?;
    let part = part(out.dtype)?;
    let sizes = out.sizes.clone();
    let strides = [broadcast_strides(&views[0], &sizes)?, broadcast_strides(&views[1], &sizes)?];
    let at = |view: &View, place: usize| {
        [2 * place, 2 * place + 1].map(|place| f64::at(part, view.bytes, place))
    };
    let mut numbers = Vec::with_capacity(out.count());
    walk_all(&sizes, [&strides[0], &strides[1]], |[a, b]| {
        numbers.push(join(at(&views[0], a), at(&views[1], b)));
    });
    put(&numbers, out)
}

pub(super) fn add(views: [View; 2], alpha: f64, out: &mut OutTensor) -> Result {
    join(views, out, |a, b| [a[0] + alpha * b[0], a[1] + alpha * b[1]])
}

pub(super) fn multiply(views: [View; 2], out: &mut OutTensor) -> Result {
    join(views, out, |a, b| [a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]])
}

pub(super) fn absolute(view: View, out: &mut OutTensor) -> Result {
    super::arguments::float_output(out)?;
    let numbers: Vec<f64> =
        parts_of(view)?.iter().map(|[real, imaginary]| real.hypot(*imaginary)).collect();
    out.put_contiguous(&numbers);
    Ok(())
}

/// Converts real to complex with a zero imaginary part, or complex to real. The output is already resized.
pub(super) fn convert(view: View, out: &mut OutTensor) -> Result {
    if is_complex(view.dtype) {
        super::arguments::float_output(out)?;
        let numbers: Vec<f64> = parts_of(view)?.iter().map(|[real, _]| *real).collect();
        out.put_contiguous(&numbers);
        return Ok(());
    }
    ensure!(
        crate::number::is_floating(view.dtype),
        "a `{:?}` tensor cannot be converted to complex; expected floats",
        view.dtype
    );
    let numbers: Vec<[f64; 2]> =
        view.contiguous::<f64>().into_iter().map(|real| [real, 0.0]).collect();
    put(&numbers, out)
}

fn conjugate(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = x.tensor(0)?;
    super::arguments::same_type(&view, &out[0])?;
    out[0].resize(view.sizes)?;
    let numbers: Vec<[f64; 2]> =
        parts_of(view)?.iter().map(|[real, imaginary]| [*real, -imaginary]).collect();
    put(&numbers, &mut out[0])
}

fn view_as_real(x: &Arguments, out: &mut [OutTensor]) -> Result {
    let view = x.tensor(0)?;
    super::arguments::float_output(&out[0])?;
    let sizes: Vec<usize> = view.sizes.iter().copied().chain([2]).collect();
    out[0].resize(&sizes)?;
    let numbers = parts_of(view)?;
    out[0].put_contiguous(numbers.as_flattened());
    Ok(())
}
