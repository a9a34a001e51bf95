//! Checks of a function's interface: its inputs, states and outputs.

use std::collections::HashSet;

use coremill_mil::ir::{Definition, Opset, Type, ValueId};
use coremill_mil::ops::OpKind;
use coremill_tensor::DType;

use super::codes::Code;
use super::diagnostic::{Findings, FunctionContext};
use super::structure::Layout;

pub(super) fn check(at: FunctionContext<'_>, layout: &Layout, findings: &mut Findings) {
    let function = at.function;
    let inputs = function.inputs();
    let outputs = function.outputs();
    if inputs.is_empty() && at.target < Opset::Ios18 {
        let message = format!("has no inputs, which needs iOS18; the target is {}", at.target);
        findings.report(Code::NoInputs, at.place(), message);
    }
    if outputs.is_empty() {
        findings.report(Code::NoOutputs, at.place(), "has no outputs");
    }

    for &input in inputs {
        match &function.value(input).ty {
            Type::State(held) => state(at, input, held, findings),
            ty => input_type(at, input, ty, findings),
        }
        if layout.uses[input.index()] == 0 {
            findings.report(Code::UnusedInput, at.value(input), "is an unused input");
        }
    }

    let taken: HashSet<ValueId> = inputs.iter().copied().collect();
    let mut returned = HashSet::new();
    for &output in outputs {
        if !returned.insert(output) {
            let message = "is returned twice";
            findings.report(Code::DuplicateOutput, at.value(output), message);
            continue;
        }
        if taken.contains(&output) {
            let message = "is an input that is returned unchanged";
            findings.report(Code::PassedThrough, at.value(output), message);
            continue;
        }
        output_type(at, output, findings);
    }
}

fn state(at: FunctionContext<'_>, input: ValueId, held: &Type, findings: &mut Findings) {
    let opset = at.target;
    if opset < Opset::Ios18 {
        let message = format!("is a state, which needs iOS18; the target is {opset}");
        findings.report(Code::StateTooNew, at.value(input), message);
    }
    let fits = held
        .as_tensor()
        .is_some_and(|tensor| tensor.dtype == DType::Fp16 && tensor.known_shape().is_some());
    if !fits {
        let message = format!("must hold an `fp16` tensor of fixed shape, got `{held}`");
        findings.report(Code::StateType, at.value(input), message);
    }
}

fn input_type(at: FunctionContext<'_>, input: ValueId, ty: &Type, findings: &mut Findings) {
    let opset = at.target;
    let Type::Tensor(tensor) = ty else {
        let message = format!("is an input of type `{ty}`; expected a tensor or a state");
        return findings.report(Code::InterfaceType, at.value(input), message);
    };
    if tensor.rank() == 0 {
        let message = format!("is an input of type `{ty}`, a scalar");
        findings.report(Code::ScalarInput, at.value(input), message);
    }
    // Gray images may be passed as bytes.
    let is_image = tensor.rank() == 4 && tensor.shape[1].known() == Some(1);
    let is_bytes = tensor.dtype == DType::UInt8 && is_image && opset >= Opset::Ios17;
    if !passes(tensor.dtype, opset) && !is_bytes {
        let message = refused(tensor.dtype, opset, "an input");
        findings.report(Code::InterfaceType, at.value(input), message);
    }
}

fn output_type(at: FunctionContext<'_>, output: ValueId, findings: &mut Findings) {
    let function = at.function;
    let value = function.value(output);
    let from_classify = match value.definition {
        Definition::Output(op, _) => function.op(op).kind() == Some(OpKind::Classify),
        Definition::Input(..) => false,
    };
    if from_classify {
        return;
    }
    let Type::Tensor(tensor) = &value.ty else {
        let message = format!("is an output of type `{}`; expected a tensor", value.ty);
        return findings.report(Code::InterfaceType, at.value(output), message);
    };
    if !passes(tensor.dtype, at.target) {
        let message = refused(tensor.dtype, at.target, "an output");
        findings.report(Code::InterfaceType, at.value(output), message);
    }
    if tensor.rank() == 0 {
        let message = format!("is an output of type `{}`, a scalar", value.ty);
        findings.report(Code::ScalarOutput, at.value(output), message);
    }
}

/// Element types of arrays in the interface, and the opset that introduced each.
const INTERFACE_TYPES: [(DType, Opset); 4] = [
    (DType::Fp32, Opset::Ios15),
    (DType::Int32, Opset::Ios15),
    (DType::Fp16, Opset::Ios16),
    (DType::Int8, Opset::Ios26),
];

fn passes(dtype: DType, opset: Opset) -> bool {
    INTERFACE_TYPES.iter().any(|(known, since)| *known == dtype && *since <= opset)
}

fn refused(dtype: DType, opset: Opset, what: &str) -> String {
    let since = INTERFACE_TYPES.iter().find(|(known, _)| *known == dtype);
    if let Some((_, since)) = since {
        return format!("is {what} of `{dtype}`, which needs {since}; the target is {opset}");
    }
    let accepted: Vec<_> = INTERFACE_TYPES
        .iter()
        .filter(|(_, since)| *since <= opset)
        .map(|(dtype, _)| format!("`{dtype}`"))
        .collect();
    format!("is {what} of `{dtype}`; expected {} in {opset}", accepted.join(", "))
}
