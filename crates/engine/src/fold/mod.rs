//! Constant folding for compilers.

mod moved;

use coremill_mil::infer::{InferredValue, KnownElements};
use coremill_mil::ir::{Constant, Function, Op, TensorType};
use coremill_reference::array::Array;
use coremill_reference::error::Result;
use coremill_reference::evaluate;
use coremill_tensor::Buffer;

use self::moved::moved;

/// Maximum numbers of elements for folding at compile time.
#[derive(Clone, Copy, Debug)]
pub struct FoldLimits {
    /// Limit on each operand.
    pub operands: u64,
    /// Limit on each result. Results may always be as large as the largest operand.
    pub results: u64,
}

/// Computes the outputs of an operation on constants: values known from inference, or the results
/// of operations within the limits. Weights that are only moved become lazy tensors, computed when
/// the model is written.
pub fn fold(
    function: &Function,
    op: &Op,
    outcomes: &[InferredValue],
    most: FoldLimits,
) -> Result<Option<Vec<Constant>>> {
    let Some(kind) = op.kind() else { return Ok(None) };
    if outcomes.is_empty() || kind.is_constexpr() || kind.is_random() || !op.blocks.is_empty() {
        return Ok(None);
    }
    let known =
        |outcome: &InferredValue| outcome.value.as_deref().and_then(KnownElements::to_constant);
    if let Some(constants) = outcomes.iter().map(known).collect() {
        return Ok(Some(constants));
    }
    let mut arguments = Vec::with_capacity(op.inputs.len());
    let mut largest = most.results;
    for input in &op.inputs {
        let constants = input.bindings.iter().map(|binding| function.bound_constant(binding));
        let Some(constants) = constants.collect::<Option<Vec<_>>>() else { return Ok(None) };
        for constant in &constants {
            let elements = constant.tensor_type().and_then(TensorType::element_count).unwrap_or(0);
            if elements > most.operands {
                return Ok(None);
            }
            largest = largest.max(elements);
        }
        arguments.push((input.name.as_ref(), constants));
    }
    let mut dtypes = Vec::with_capacity(outcomes.len());
    for outcome in outcomes {
        let ty = outcome.ty.as_tensor();
        match ty.and_then(|ty| Some((ty.dtype, ty.element_count()?))) {
            Some((dtype, elements)) if elements <= largest => dtypes.push(dtype),
            _ => return Ok(None),
        }
    }
    if let Some(constants) = moved(function, op, outcomes) {
        return Ok(Some(constants));
    }
    let mut arrays = Vec::with_capacity(arguments.len());
    for (name, constants) in arguments {
        let converted = constants.into_iter().map(Array::from_constant);
        arrays.push((name, converted.collect::<Result<Vec<_>>>()?));
    }
    let arrays: Vec<_> = arrays.iter().map(|(name, all)| (*name, all.as_slice())).collect();
    let results = evaluate(kind, function.opset, &arrays, &dtypes)?;
    Ok(results.iter().map(constant_of).collect())
}

fn constant_of(array: &Array) -> Option<Constant> {
    let shape: Vec<_> = array.shape().iter().map(|&extent| extent as u64).collect();
    Some(Constant::by_size(array.dtype(), &shape, Buffer::from(array.to_bytes()?)))
}
