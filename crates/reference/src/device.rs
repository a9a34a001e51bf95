//! Operations in the arithmetic of a run: reference kernels, with operands and results as a device has them.

use coremill_kernels::Numerics;
use coremill_kernels::device::number;
use coremill_kernels::device::table::Function;
use coremill_mil::ops::OpKind;
use coremill_tensor::DType;

use crate::array::{Array, ElementsView, View, round_floats};
use crate::call::{Call, Results};

/// Performs an operation by its reference kernel, in the arithmetic of the call.
pub fn perform(function: fn(&Call) -> Results, call: &Call) -> Results {
    let arithmetic = call.arithmetic;
    let on_ane = arithmetic.numerics == Numerics::Ane && computes(call);
    let mut results = if on_ane { on_neural_engine(function, call)? } else { function(call)? };
    if arithmetic.numerics.rounds() && !(on_ane && is_product(call.kind())) {
        for array in &mut results {
            let dtype = array.dtype();
            if let (DType::Fp16 | DType::Bf16, Some(floats)) = (dtype, array.floats_mut()) {
                // Only results of arithmetic are rounded as the Neural Engine does; others are elements of operands.
                if on_ane { arithmetic.round(dtype, floats) } else { round_floats(dtype, floats) }
            }
        }
    }
    Ok(results)
}

/// Operations that Core ML runs on the CPU or the GPU, because no Neural Engine supports them.
const NO_PATH: [OpKind; 13] = [
    OpKind::Acos,
    OpKind::Asin,
    OpKind::Atanh,
    OpKind::Cast,
    OpKind::Cosh,
    OpKind::CropResize,
    OpKind::Cumsum,
    OpKind::Mod,
    OpKind::ReduceProd,
    OpKind::Sinh,
    OpKind::Tan,
    OpKind::ReduceArgmax,
    OpKind::ReduceArgmin,
];

/// Families whose operations compute numbers rather than move them.
const ARITHMETIC: [&str; 9] = [
    "activation",
    "conv",
    "elementwise_binary",
    "elementwise_unary",
    "image_resizing",
    "linear",
    "normalization",
    "pool",
    "reduction",
];

/// Whether an operation computes on the Neural Engine, in half precision.
fn computes(call: &Call) -> bool {
    let kind = call.kind();
    let attention = matches!(kind, OpKind::ScaledDotProductAttention | OpKind::Quantize);
    let is_half = |view: &View<'_>| view.dtype == DType::Fp16;
    (attention || ARITHMETIC.contains(&kind.family()))
        && !NO_PATH.contains(&kind)
        && (call.dtype() == DType::Fp16 || call.operands.iter().any(is_half))
        && !call.operands.iter().any(|view| view.dtype == DType::Fp32)
}

/// An operation whose operands are read as the Neural Engine does.
fn on_neural_engine(function: fn(&Call) -> Results, call: &Call) -> Results {
    // Products read their operands themselves.
    if is_product(call.kind()) {
        return function(call);
    }
    let mut read: Vec<Option<Array>> = Vec::with_capacity(call.operands.len());
    for view in call.operands {
        let floats = match view.elements {
            ElementsView::Floats(floats) => number::read_all(floats),
            ElementsView::Ints(_) | ElementsView::Texts(_) => None,
        };
        read.push(floats.map(|floats| Array::floats(view.dtype, view.shape, floats)));
    }
    if read.iter().all(Option::is_none) {
        return by_table(function, call);
    }
    let operands = read.iter().zip(call.operands);
    let operands: Vec<View<'_>> =
        operands.map(|(read, view)| read.as_ref().map_or(*view, Array::view)).collect();
    by_table(function, &Call { operands: &operands, ..*call })
}

/// Operations that round while they sum.
fn is_product(kind: OpKind) -> bool {
    matches!(kind.family(), "conv" | "linear")
}

/// An operation by its table, if it has one.
fn by_table(function: fn(&Call) -> Results, call: &Call) -> Results {
    let (table, epsilon) = match call.kind() {
        OpKind::Sigmoid => (Function::Sigmoid, 0.0),
        OpKind::Tanh => (Function::Tanh, 0.0),
        OpKind::Erf => (Function::Erf, 0.0),
        OpKind::Sin => (Function::Sin, 0.0),
        OpKind::Cos => (Function::Cos, 0.0),
        OpKind::Exp => (Function::Exp, 0.0),
        OpKind::Exp2 => (Function::Exp2, 0.0),
        OpKind::Sqrt => (Function::Sqrt, 0.0),
        OpKind::Gelu => (Function::Gelu, 0.0),
        OpKind::Silu => (Function::Silu, 0.0),
        OpKind::Log => (Function::Log, call.float("epsilon")?),
        OpKind::Rsqrt => (Function::Rsqrt, call.float("epsilon")?),
        OpKind::Inverse => (Function::Inverse, call.float("epsilon")?),
        OpKind::Softsign | OpKind::Softplus => return vanishing(function, call),
        _ => return function(call),
    };
    let x = call.tensor("x")?;
    let of = |&x: &f32| table.of(if epsilon == 0.0 { x } else { x + epsilon });
    call.give_floats(x.shape, x.floats()?.iter().map(of).collect())
}

/// `softsign` and `softplus`, which are 0 of infinity there.
fn vanishing(function: fn(&Call) -> Results, call: &Call) -> Results {
    let x = call.floats("x")?;
    let mut results = function(call)?;
    if let Some(floats) = results.first_mut().and_then(Array::floats_mut) {
        for (to, &x) in floats.iter_mut().zip(x) {
            if x >= number::INFINITY_AS_NUMBER {
                *to = 0.0;
            }
        }
    }
    Ok(results)
}
