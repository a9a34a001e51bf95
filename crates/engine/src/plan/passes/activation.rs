use coremill_kernels::Activation;
use coremill_mil::ops::OpKind;
use coremill_reference::error::fail;

use super::super::graph::{Graph, Node, Operand};
use super::parameters::parameters;
use crate::plan::FunctionContext;

/// The activation that an operation computes, and its input. `None` for other operations.
pub(crate) fn activation<'n>(
    source: &FunctionContext,
    graph: &Graph,
    node: &'n Node,
) -> Option<(Activation, &'n Operand)> {
    let kind = node.operation()?;
    let activation = parameters(source, graph, node, |call| {
        // Kernels compare with the parameters. NaN parameters are left to the reference kernel.
        let number = |name| match call.float(name)? {
            number if number.is_nan() => fail!("`{name}` is not a number"),
            number => Ok(number),
        };
        let both = |make: fn(f32, f32) -> Activation| Ok(make(number("alpha")?, number("beta")?));
        Ok(match kind {
            OpKind::Relu => Activation::Relu,
            OpKind::Relu6 => Activation::Clamp { low: 0.0, high: 6.0 },
            OpKind::Clip => both(|low, high| Activation::Clamp { low, high })?,
            OpKind::LeakyRelu => Activation::LeakyRelu { alpha: number("alpha")? },
            OpKind::Elu => Activation::Elu { alpha: number("alpha")? },
            OpKind::Sigmoid => Activation::Sigmoid,
            OpKind::SigmoidHard => both(|alpha, beta| Activation::HardSigmoid { alpha, beta })?,
            OpKind::Silu => Activation::Silu,
            OpKind::Tanh => Activation::Tanh,
            OpKind::ScaledTanh => both(|alpha, beta| Activation::ScaledTanh { alpha, beta })?,
            OpKind::Softplus => Activation::Softplus,
            OpKind::Softsign => Activation::Softsign,
            OpKind::LinearActivation => both(|alpha, beta| Activation::Linear { alpha, beta })?,
            OpKind::Gelu => match call.text("mode")? {
                "EXACT" => Activation::GeluExact,
                "TANH_APPROXIMATION" => Activation::GeluTanh,
                "SIGMOID_APPROXIMATION" => Activation::GeluSigmoid,
                mode => fail!("unknown mode `{mode}`"),
            },
            _ => fail!("the operation is not an activation"),
        })
    })?;
    let [operand] = node.bound("x") else { return None };
    Some((activation, operand))
}
