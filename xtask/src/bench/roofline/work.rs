//! The work of a program: operations and bytes that any implementation needs.

use std::collections::{HashMap, VecDeque};

use coremill_engine::Span;
use coremill_mil::ir::{Binding, Definition, Function, Op, OpId, TensorType, ValueId};
use coremill_mil::ops::OpKind;

/// Work of one run.
#[derive(Clone, Copy, Default)]
pub(super) struct Work {
    /// Floating-point operations; a multiply-add counts as two.
    pub(super) flop: f64,
    /// Bytes that must be transferred: constants, inputs and outputs. Other values may stay in caches.
    pub(super) bytes: f64,
}

/// Work of a program of fixed shapes.
pub(super) fn work(function: &Function) -> Work {
    let mut work = Work::default();
    for (_, op) in function.all_ops() {
        work.flop += flop(function, op);
        if op.is_constant() {
            work.bytes +=
                op.outputs.iter().map(|&output| value_bytes(function, output)).sum::<f64>();
        }
        let literals = op.all_bindings().filter_map(|(_, binding)| match binding {
            Binding::Literal(constant) => constant.tensor_type(),
            Binding::Value(_) => None,
        });
        work.bytes += literals.map(bytes).sum::<f64>();
    }
    let ends = function.inputs().iter().chain(function.outputs());
    work.bytes += ends.map(|&value| value_bytes(function, value)).sum::<f64>();
    work
}

fn tensor(function: &Function, value: ValueId) -> Option<&TensorType> {
    function.value(value).ty.unwrap_state().as_tensor()
}

fn argument<'f>(function: &'f Function, binding: &'f Binding) -> Option<&'f TensorType> {
    match binding {
        Binding::Value(value) => tensor(function, *value),
        Binding::Literal(constant) => constant.tensor_type(),
    }
}

/// The sizes of a tensor of fixed shape.
fn shape(tensor: &TensorType) -> Option<Vec<f64>> {
    Some(tensor.known_shape()?.into_iter().map(|size| size as f64).collect())
}

fn bytes(tensor: &TensorType) -> f64 {
    tensor.storage_bytes().map_or(0.0, |bytes| bytes as f64)
}

fn value_bytes(function: &Function, value: ValueId) -> f64 {
    tensor(function, value).map_or(0.0, bytes)
}

/// The families of operations that compute, apart from products. They count one operation for each element of
/// their results.
const COMPUTING: [&str; 6] =
    ["activation", "elementwise_binary", "elementwise_unary", "normalization", "pool", "reduction"];

/// Operations of one call.
fn flop(function: &Function, op: &Op) -> f64 {
    let count = |shape: Option<Vec<f64>>| shape.map_or(0.0, |shape| shape.iter().product::<f64>());
    let results = op.outputs.iter().map(|&output| count(tensor(function, output).and_then(shape)));
    let results: f64 = results.sum();
    let size = |name: &str| shape(argument(function, op.binding(name)?)?);
    let product = || match op.kind()? {
        OpKind::Conv => {
            let weight = size("weight")?;
            Some(2.0 * results * weight.iter().skip(1).product::<f64>())
        }
        OpKind::ConvTranspose => {
            let weight = size("weight")?;
            Some(2.0 * count(size("x")) * weight.iter().skip(1).product::<f64>())
        }
        OpKind::Linear => Some(2.0 * results * size("weight")?.last()?),
        OpKind::Matmul => {
            let x = size("x")?;
            let transposed = op.binding("transpose_x").and_then(|it| function.bound_constant(it));
            let is_transposed = transposed.and_then(|it| it.as_bool()).unwrap_or(false);
            let from_end = if is_transposed { 2 } else { 1 };
            Some(2.0 * results * x.get(x.len().checked_sub(from_end)?)?)
        }
        OpKind::ScaledDotProductAttention => {
            let (query, key) = (size("query")?, size("key")?);
            let [.., keys, depth] = key[..] else { return None };
            let rows = query.iter().rev().skip(1).product::<f64>();
            Some(2.0 * rows * keys * (depth + size("value")?.last()?))
        }
        OpKind::Lstm | OpKind::Gru | OpKind::Rnn => {
            let [steps, batch, ..] = size("x")?[..] else { return None };
            let names = ["weight_ih", "weight_hh", "weight_ih_back", "weight_hh_back"];
            let weights: f64 = names.iter().map(|name| count(size(name))).sum();
            Some(2.0 * steps * batch * weights)
        }
        _ => None,
    };
    let computes = || op.kind().is_some_and(|kind| COMPUTING.contains(&kind.family()));
    product().unwrap_or_else(|| if computes() { results } else { 0.0 })
}

/// Attribution of the engine's steps to the operations of a program.
pub(super) struct Operations<'f> {
    function: &'f Function,
    by_value: HashMap<&'f str, OpId>,
}

/// Ends the labels of steps on 8-bit integers.
const INTEGER_SUFFIX: &str = " int8";

/// Whether a step computes with 8-bit integers.
pub(super) fn is_integer(step: &Span) -> bool {
    step.label.ends_with(INTEGER_SUFFIX)
}

/// The families of operations that compute each element of the result from few elements.
const ELEMENTWISE: [&str; 3] = ["activation", "elementwise_binary", "elementwise_unary"];

impl<'f> Operations<'f> {
    pub(super) fn new(function: &'f Function) -> Operations<'f> {
        let named = function.all_ops().flat_map(|(id, op)| {
            op.outputs.iter().map(move |&output| (function.value(output).name.as_str(), id))
        });
        Operations { function, by_value: named.collect() }
    }

    /// The kind of a step, and the bytes of the weights that it reads.
    pub(super) fn classify(&self, step: &Span) -> (&'static str, f64) {
        let label = step.label.trim_end_matches(INTEGER_SUFFIX);
        let depthwise = label.strip_prefix("depthwise ");
        let names: Vec<&str> = depthwise.unwrap_or(label).split('+').collect();
        let kinds: Vec<_> = names.iter().filter_map(|name| OpKind::from_name(name)).collect();
        let product = kinds.iter().find(|kind| is_product(**kind));
        if let Some(&product) = product {
            let weight = self.weight(step, product, names.len() + 3);
            let bytes = weight.map_or(0.0, bytes);
            let window = weight.and_then(shape);
            let window = window.as_deref().and_then(|shape| shape.get(2..));
            let kind = match product {
                _ if depthwise.is_some() => "depthwise",
                OpKind::Linear | OpKind::Matmul | OpKind::ScaledDotProductAttention => "matmul",
                OpKind::Lstm | OpKind::Gru | OpKind::Rnn => "recurrent",
                _ => match window {
                    Some(window) if window.iter().all(|&size| size == 1.0) => "conv 1x1",
                    Some([3.0, 3.0]) => "conv 3x3",
                    _ => "conv, other",
                },
            };
            return (kind, bytes);
        }
        let is_elementwise = |kind: &OpKind| ELEMENTWISE.contains(&kind.family());
        let kind = match label {
            "attention" | "concat+attention" => "attention",
            _ if kinds.len() == names.len() && kinds.iter().all(is_elementwise) => "elementwise",
            _ => "other",
        };
        (kind, 0.0)
    }

    /// The largest constant of the product that a step computes: the nearest one before its result.
    fn weight(&self, step: &Span, product: OpKind, distance: usize) -> Option<&'f TensorType> {
        let mut next = VecDeque::from([(*self.by_value.get(step.value.as_str())?, 0)]);
        while let Some((id, depth)) = next.pop_front() {
            let op = self.function.op(id);
            if op.kind() == Some(product) {
                let constants = op.all_bindings().filter(|(_, binding)| self.is_constant(binding));
                let types = constants.filter_map(|(_, binding)| argument(self.function, binding));
                return types.max_by(|a, b| bytes(a).total_cmp(&bytes(b)));
            }
            if depth < distance {
                let values = op.all_bindings().filter_map(|(_, binding)| self.writer(binding));
                next.extend(values.map(|writer| (writer, depth + 1)));
            }
        }
        None
    }

    /// The operation that computes an argument.
    fn writer(&self, binding: &Binding) -> Option<OpId> {
        let Binding::Value(value) = binding else { return None };
        match self.function.value(*value).definition {
            Definition::Output(op, _) => Some(op),
            Definition::Input(..) => None,
        }
    }

    fn is_constant(&self, binding: &Binding) -> bool {
        match binding {
            Binding::Literal(_) => true,
            Binding::Value(_) => {
                self.writer(binding).is_some_and(|op| self.function.op(op).is_constant())
            }
        }
    }
}

fn is_product(kind: OpKind) -> bool {
    use OpKind::{Conv, ConvTranspose, Gru, Linear, Lstm, Matmul, Rnn, ScaledDotProductAttention};
    matches!(
        kind,
        Conv | ConvTranspose | Gru | Linear | Lstm | Matmul | Rnn | ScaledDotProductAttention
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    use coremill_engine::{Array, Engine, Hooks, LoadOptions};
    use coremill_mil::{model, text};
    use coremill_tensor::DType;

    /// A constant of this shape, as a literal.
    fn ones(shape: &[usize]) -> String {
        let nested = shape.iter().rev().fold("1.0".to_owned(), |inner, &size| {
            format!("[{}]", vec![inner.as_str(); size].join(", "))
        });
        format!("tensor<fp32, {shape:?}>({nested})")
    }

    #[test]
    fn classifies_steps_and_counts_flops_and_bytes() {
        let text = format!(
            r#"program(1.3) {{
                func main<ios17>(tensor<fp32, [1, 16, 8, 8]> x) {{
                    tensor<fp32, [1, 32, 8, 8]> a = conv(x = x, weight = {}, pad_type = string("same"));
                    tensor<fp32, [1, 32, 8, 8]> b = relu(x = a);
                    tensor<fp32, [1, 32, 8, 8]> c = conv(x = b, weight = {}, pad_type = string("same"), groups = int32(32));
                    tensor<fp32, [1, 24, 8, 8]> d = conv(x = c, weight = {});
                    tensor<fp32, [1, 24, 64]> e = reshape(x = d, shape = tensor<int32, [3]>([1, 24, 64]));
                    tensor<fp32, [1, 24, 10]> y = linear(x = e, weight = {});
                }} -> (y);
            }}"#,
            ones(&[32, 16, 3, 3]),
            ones(&[32, 1, 3, 3]),
            ones(&[24, 32, 1, 1]),
            ones(&[10, 64]),
        );
        let program = text::parse(&text, &text::NoWeights).expect("it is MIL");
        let model = model::describe(program).expect("it is complete");
        let verified = coremill::verify(&model).expect("it is sound");
        let engine = Engine::load(&verified, &LoadOptions::default()).expect("it loads");
        let mut session = engine.session("main").expect("it exists");
        let x = Array::floats(DType::Fp32, [1, 16, 8, 8], vec![1.0; 1024]);
        let mut steps = Vec::new();
        let mut hooks = Hooks { profile: Some(&mut steps), ..Hooks::default() };
        session.run_with(&[("x", x)], &mut hooks).expect("it runs");

        let pixels = 64.0;
        let expected = [
            ("conv 3x3", 2.0 * pixels * (32 * 16 * 9) as f64, 4.0 * (32 * 16 * 9) as f64),
            ("depthwise", 2.0 * pixels * (32 * 9) as f64, 4.0 * (32 * 9) as f64),
            ("conv 1x1", 2.0 * pixels * (24 * 32) as f64, 4.0 * (24 * 32) as f64),
            ("matmul", 2.0 * (24 * 10 * 64) as f64, 4.0 * 640.0),
        ];
        let found = engine.inspect("main", &mut |function| {
            let operations = Operations::new(function);
            let kinds = steps.iter().map(|step| {
                let (kind, weights) = operations.classify(step);
                (kind, step.operations as f64, weights)
            });
            let products = kinds.filter(|(kind, ..)| *kind != "other").collect::<Vec<_>>();
            (products, work(function))
        });
        let (found, total) = found.expect("the function exists");
        assert_eq!(found, expected);
        let products: f64 = expected.iter().map(|(_, flop, _)| flop).sum();
        // The activation counts one operation for each element.
        assert_eq!(total.flop, products + pixels * 32.0);
        let weights: f64 = expected.iter().map(|(.., bytes)| bytes).sum();
        let port_bytes = 4.0 * (1024 + 240) as f64;
        assert!(
            (weights + port_bytes..weights + port_bytes + 100.0).contains(&total.bytes),
            "{}",
            total.bytes
        );
    }
}
