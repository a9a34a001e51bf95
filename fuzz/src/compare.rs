//! Runs generated programs and compares their results, for all targets that need it.

use std::any::Any;

use coremill_engine::{
    Array, Elements, Error, FeatureSpec, Hooks, Limits, Outputs, Session, Value,
};
use coremill_mil::ir::{Function, Program};
use coremill_mil::ops::OpKind;
use coremill_mil::text;
use coremill_tensor::DType;

use crate::draw::Draw;

/// Small enough that a program of this size runs quickly.
pub(crate) const LIMITS: Limits = Limits { elements: 1 << 12, bytes: 16 << 20, operations: 20_000 };

pub(crate) fn run(
    session: &mut Session,
    inputs: &[(&str, Array)],
    hooks: &mut Hooks<'_>,
) -> Result<Outputs, Error> {
    session.reset()?;
    session.run_with(inputs, hooks)
}

/// The message of a panic.
pub(crate) fn message(cause: &(dyn Any + Send)) -> String {
    let text = cause.downcast_ref::<String>().cloned();
    let text = text.or_else(|| cause.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    text.unwrap_or_default()
}

pub(crate) fn show(program: &Program) -> String {
    text::print(program, &text::PrintOptions::default()).text
}

/// A valid array for the port, with small numbers if `benign`; `None` if it would be large.
pub(crate) fn input(
    port: &FeatureSpec,
    shape: &[usize],
    draw: &mut Draw<'_>,
    benign: bool,
) -> Option<Array> {
    let shape = shape.to_vec();
    let count = shape.iter().try_fold(1usize, |count, &extent| count.checked_mul(extent))?;
    let count = Some(count).filter(|&count| count <= LIMITS.elements)?;
    let dtype = port.ty.as_tensor()?.dtype;
    if dtype == DType::String {
        return None;
    }
    let offset = draw.below(33);
    if dtype.is_float() {
        let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, 6e4, -1e-7];
        let at = draw.below(count.max(1) * 2);
        let mut floats: Vec<f32> =
            (0..count).map(|index| ((index * 5 + offset) % 33) as f32 / 16.0 - 1.0).collect();
        if !benign && let Some(float) = floats.get_mut(at) {
            *float = draw.of(&odd);
        }
        return Some(Array::floats(dtype, shape, floats));
    }
    let ints = (0..count).map(|index| match dtype {
        DType::Bool => ((index + offset) % 2) as i32,
        _ if benign => ((index * 3 + offset) % 4) as i32,
        _ => draw.of(&[0, 1, 1, 2, 3, -1, 100]),
    });
    Some(Array::ints(dtype, shape, ints.collect()))
}

/// Whether small differences of the value cause only small differences of results.
pub(crate) fn is_tame(value: &Value) -> bool {
    match value {
        Value::Array(array) => match array.elements() {
            Elements::Floats(floats) => floats.iter().all(|x| x.is_finite() && x.abs() < 1e3),
            Elements::Ints(_) | Elements::Texts(_) => true,
        },
        Value::List(_) | Value::Dictionary(_) => false,
    }
}

pub(crate) fn difference(expected: &Array, found: &Array, tolerance: f32) -> Option<String> {
    let (Some(expected), Some(found)) = (expected.as_floats(), found.as_floats()) else {
        return (expected != found).then(|| format!("{expected:?} became {found:?}"));
    };
    let finite = expected.iter().filter(|x| x.is_finite());
    let scale = finite.fold(1.0f32, |scale, x| scale.max(x.abs()));
    let mut pairs = expected.iter().zip(found).enumerate();
    let off = pairs.find(|(_, (x, y))| {
        let within = (*x - *y).abs() <= tolerance * scale || x == y || x.is_nan() && y.is_nan();
        !within
    });
    off.map(|(index, (x, y))| {
        format!("element {index} is {y}, expected {x} (maximum magnitude {scale})")
    })
}

/// Whether random numbers and rounding do not change the shapes of results, and so cause no errors in other operations.
pub(crate) fn has_steady_shapes(function: &Function) -> bool {
    let is_steady = |kind: OpKind| !kind.is_random() && kind != OpKind::NonZero;
    function.all_ops().all(|(_, op)| op.kind().is_some_and(is_steady))
}

/// Whether small changes of operands cause only small changes of results: other operations have discontinuities or
/// poles.
pub(crate) fn is_steady(kind: OpKind) -> bool {
    !kind.is_random()
        && !matches!(
            kind,
            OpKind::Acos
                | OpKind::Argsort
                | OpKind::Asin
                | OpKind::Atanh
                | OpKind::Cast
                | OpKind::Ceil
                | OpKind::CropResize
                | OpKind::Equal
                | OpKind::Floor
                | OpKind::FloorDiv
                | OpKind::Greater
                | OpKind::GreaterEqual
                | OpKind::Inverse
                | OpKind::L2Norm
                | OpKind::Less
                | OpKind::LessEqual
                | OpKind::Log
                | OpKind::Mod
                | OpKind::NonMaximumSuppression
                | OpKind::NonZero
                | OpKind::NotEqual
                | OpKind::Pow
                | OpKind::Quantize
                | OpKind::RealDiv
                | OpKind::ReduceArgmax
                | OpKind::ReduceArgmin
                | OpKind::ReduceLogSum
                | OpKind::Resample
                | OpKind::Round
                | OpKind::Rsqrt
                | OpKind::ScaledTanh
                | OpKind::Sign
                | OpKind::Sqrt
                | OpKind::Tan
                | OpKind::Threshold
                | OpKind::ThresholdedRelu
                | OpKind::Topk
        )
}
