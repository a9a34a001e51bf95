//! Evaluates one operation on constants, for constant folding in compilers.

use std::ops::Range;

use coremill_mil::ir::Opset;
use coremill_mil::ops::OpKind;
use coremill_tensor::DType;

use crate::arithmetic::Arithmetic;
use crate::array::Array;
use crate::call::Call;
use crate::error::{Error, Result};
use crate::limits::Limits;
use crate::ops;

/// Computes the outputs of an operation from the tensors bound to its parameters. `dtypes` are the
/// element types of the outputs.
///
/// Fails for operations with blocks, states or random results.
pub fn evaluate(
    kind: OpKind,
    opset: Opset,
    arguments: &[(&str, &[Array])],
    dtypes: &[DType],
) -> Result<Vec<Array>> {
    let evaluate = || {
        let row = kind.row(opset);
        let row = row.ok_or_else(|| Error::new(format!("is not available in {opset}")))?;
        let function = ops::kernel(kind);
        let function = function.ok_or_else(|| Error::new("cannot be evaluated on constants"))?;
        let mut operands = Vec::new();
        let mut parameters: Vec<(String, Range<usize>)> = Vec::new();
        for (name, arrays) in arguments {
            let start = operands.len();
            operands.extend(arrays.iter().map(Array::view));
            parameters.push(((*name).to_owned(), start..operands.len()));
        }
        let limits = Limits::default();
        function(&Call {
            row,
            parameters: &parameters,
            operands: &operands,
            dtypes,
            limits: &limits,
            seed: 0,
            note: None,
            arithmetic: Arithmetic::default(),
        })
    };
    evaluate().map_err(|error: Error| error.of_operation(kind.name(), ""))
}
