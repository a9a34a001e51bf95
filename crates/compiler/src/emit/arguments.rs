//! Kernel arguments as values.

use coremill_pt2::{Argument, Kind, MemoryFormat, Node, Output, Parameter, ValueId as TorchId};
use coremill_pte::program::{Value, ValueId};

use super::method::{Emitter, Frame, Literal};
use crate::error::{LoweringError, Result, refuse};
use crate::kernels::kernel;

impl<'m> Emitter<'m> {
    /// Calls the kernel of an operator with its arguments, its outputs, and the returned values, which repeat the
    /// outputs.
    pub(super) fn kernel_call(&mut self, frame: &mut Frame<'m>, node: &'m Node) -> Result<()> {
        let Some(schema) = kernel(&node.target) else {
            refuse!("ExecuTorch's runtime has no kernel for `{}`", node.target);
        };
        // A view of a contiguous tensor needs no instruction.
        if schema.name == "aten::view_copy.out"
            && let (Some(Argument::Value(base)), [Output::Value(id)]) =
                (node.argument("self"), node.outputs.as_slice())
        {
            let base = self.slot(frame, *base)?;
            if self.view(frame, base, *id)?.is_some() {
                return Ok(());
            }
        }
        let (name, overload) = schema.name.split_once('.').unwrap_or((&schema.name, ""));
        let mut outputs = node.outputs.iter();
        let mut arguments = Vec::with_capacity(schema.arguments.len() + 1);
        let mut returned = Vec::new();
        for parameter in &schema.arguments {
            if parameter.mutated && node.argument(&parameter.name).is_none() {
                let value = match outputs.next() {
                    Some(Output::Value(id)) => self.define(frame, *id)?,
                    Some(Output::List(ids)) => {
                        let items: Result<Vec<_>, _> =
                            ids.iter().map(|id| self.define(frame, *id)).collect();
                        self.add(Value::TensorList(items?))?
                    }
                    Some(Output::Unused | Output::None) | None => refuse!(
                        "the result `{}` of `{}` has no type because nothing uses it",
                        parameter.name,
                        node.target
                    ),
                };
                arguments.push(value);
                returned.push(value);
            } else {
                let given = node.argument(&parameter.name).cloned();
                let Some(argument) = given.or_else(|| parameter.default_argument()) else {
                    refuse!("the argument `{}` of `{}` is missing", parameter.name, node.target);
                };
                arguments.push(self.argument(frame, parameter, &argument)?);
            }
        }
        if returned.is_empty() {
            // Kernels that return numbers write them to the result values.
            for output in outputs {
                match output {
                    Output::Value(id) => arguments.push(self.define(frame, *id)?),
                    _ => refuse!("`{}` does not return a number", node.target),
                }
            }
        } else {
            arguments.push(match returned.as_slice() {
                [only] if !self.is_list(*only) => *only,
                // A returned list repeats the list of outputs.
                [only] => {
                    let again = self.plan.values[only.index()].clone();
                    self.add(again)?
                }
                all => self.add(Value::TensorList(all.to_vec()))?,
            });
        }
        self.call(name, overload, arguments)
    }

    fn is_list(&self, value: ValueId) -> bool {
        matches!(self.plan.values[value.index()], Value::TensorList(_))
    }

    fn argument(
        &mut self,
        frame: &mut Frame<'m>,
        parameter: &Parameter,
        argument: &Argument,
    ) -> Result<ValueId> {
        self.value_of(frame, &parameter.kind, argument).map_err(|refusal| LoweringError {
            reason: format!("argument `{}`: {}", parameter.name, refusal.reason),
            ..refusal
        })
    }

    fn value_of(
        &mut self,
        frame: &mut Frame<'m>,
        kind: &Kind,
        argument: &Argument,
    ) -> Result<ValueId> {
        let literal = match (argument, kind) {
            (Argument::None, Kind::Tensor) => Literal::EmptyTensor,
            (Argument::None, _) => Literal::Null,
            (argument, Kind::Optional(inner)) => return self.value_of(frame, inner, argument),
            (Argument::List(items), Kind::List(inner, _)) => {
                return self.list(frame, inner, items);
            }
            (Argument::Value(id), Kind::List(..)) => {
                return self.list(frame, kind, &[Argument::Value(*id)]);
            }
            (single, Kind::List(inner, count)) => {
                let times = count.map_or(1, |count| count as usize);
                let items = vec![single.clone(); times];
                return self.list(frame, inner, &items);
            }
            (Argument::Value(id), _) => return self.slot(frame, *id),
            (Argument::Int(number), Kind::Float) => Literal::Double((*number as f64).to_bits()),
            (Argument::Int(number), Kind::Bool) => Literal::Bool(*number != 0),
            (Argument::Int(number), _) => Literal::Int(*number),
            (Argument::Float(number), _) => Literal::Double(number.to_bits()),
            (Argument::Bool(truth), Kind::Int) => Literal::Int(i64::from(*truth)),
            (Argument::Bool(truth), _) => Literal::Bool(*truth),
            (Argument::Text(text), _) => Literal::String(text.clone()),
            (Argument::ScalarType(dtype), _) => Literal::Int(dtype.c10()),
            (Argument::MemoryFormat(format), _) => Literal::Int(match format {
                MemoryFormat::Contiguous => 0,
                MemoryFormat::Preserve => 1,
                MemoryFormat::ChannelsLast => 2,
                MemoryFormat::ChannelsLast3d => 3,
            }),
            // Strided layout, on the CPU.
            (Argument::Layout(_), _) => Literal::Int(0),
            (Argument::Device(_), _) => Literal::Null,
            (
                Argument::Complex(..)
                | Argument::Graph(_)
                | Argument::List(_)
                | Argument::Map(_)
                | Argument::Operator(_),
                _,
            ) => refuse!("has a kind that ExecuTorch does not support"),
        };
        self.literal(literal)
    }

    fn list(&mut self, frame: &mut Frame<'m>, kind: &Kind, items: &[Argument]) -> Result<ValueId> {
        let literal = match kind {
            Kind::Int | Kind::Tensor => {
                let items = items.iter().map(|item| self.value_of(frame, kind, item));
                let items = items.collect::<Result<_, _>>()?;
                if *kind == Kind::Int {
                    Literal::IntList(items)
                } else {
                    Literal::TensorList(items)
                }
            }
            Kind::Float | Kind::Scalar => {
                let float = |item: &Argument| match item {
                    Argument::Float(number) => Ok(number.to_bits()),
                    Argument::Int(number) => Ok((*number as f64).to_bits()),
                    _ => refuse!("holds something that is not a float"),
                };
                Literal::DoubleList(items.iter().map(float).collect::<Result<_, _>>()?)
            }
            Kind::Bool => {
                let truth = |item: &Argument| match item {
                    Argument::Bool(truth) => Ok(*truth),
                    _ => refuse!("holds something that is not a bool"),
                };
                Literal::BoolList(items.iter().map(truth).collect::<Result<_, _>>()?)
            }
            Kind::Optional(inner) if **inner == Kind::Tensor => {
                let value = |item: &Argument| match item {
                    Argument::None => Ok(None),
                    item => self.value_of(frame, inner, item).map(Some),
                };
                let all = items.iter().map(value).collect::<Result<_, _>>()?;
                Literal::OptionalTensorList(all)
            }
            other => refuse!("is a list of {other:?}, which ExecuTorch does not support"),
        };
        self.literal(literal)
    }

    /// Values of arguments that are all values or numbers.
    pub(super) fn operands(
        &mut self,
        frame: &mut Frame<'m>,
        items: &[Argument],
    ) -> Result<Vec<ValueId>> {
        items.iter().map(|item| self.value_of(frame, &Kind::Scalar, item)).collect()
    }

    /// The id of a single-value output.
    pub(super) fn ids(output: &Output) -> Option<TorchId> {
        match output {
            Output::Value(id) => Some(*id),
            Output::List(_) | Output::Unused | Output::None => None,
        }
    }
}
