//! One operation on constants, as compilers fold them.

use std::ops::Range;

use coremill_mil::ir::Opset;
use coremill_mil::ops::OpKind;
use coremill_tensor::DType;

use crate::array::Array;
use crate::call::Call;
use crate::error::{Error, Result};
use crate::limits::Limits;
use crate::reference;

/// What an operation gives, of these element types, for tensors bound to its parameters.
///
/// Operations that run blocks, keep states or draw random numbers have no value of their own.
pub fn evaluate(
    kind: OpKind,
    opset: Opset,
    arguments: &[(&str, &[Array])],
    dtypes: &[DType],
) -> Result<Vec<Array>> {
    let evaluate = || {
        let row = kind.row(opset);
        let row = row.ok_or_else(|| Error::new(format!("comes later than {opset}")))?;
        let function = reference::kernel(kind);
        let function = function.ok_or_else(|| Error::new("has no value of its own"))?;
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
        })
    };
    evaluate().map_err(|error: Error| error.of_operation(kind.name(), ""))
}
