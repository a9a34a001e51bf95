//! Rewrites a program to call delegates in place of its partitions.

use std::collections::HashMap;

use coremill_pt2::{
    Argument, ExportedProgram, Graph, Meta, Node, Origin, Output, OutputKind, ScalarType, Schemas,
    Target, TensorMeta, ValueId,
};

use super::Division;
use crate::decompose::{calling, given, meta, target};
use crate::error::{Error, LoweringError, Result, refuse};

/// Placeholder operator for a partition: its number, then its inputs.
pub(crate) const DELEGATE: &str = "executorch_call_delegate";

/// A program that calls delegates.
pub(crate) struct DelegatedProgram {
    pub(crate) program: ExportedProgram,
    /// For each node, whether it is outside delegates.
    pub(crate) outside: Vec<bool>,
}

/// Replaces partitions by delegate calls. Tensors of types that delegates do not support are cast before and after
/// the call; numbers become tensors.
pub(crate) fn around(
    program: &ExportedProgram,
    division: &Division,
) -> Result<DelegatedProgram, Error> {
    let mut made = Maker {
        graph: Graph { nodes: Vec::new(), ..program.graph.clone() },
        schemas: Schemas::default(),
        outside: Vec::new(),
        cast: HashMap::new(),
        origin: Origin::default(),
    };
    let graph = &program.graph;
    let flow = &division.flow;

    // A call outside runs after the partitions it depends on and before the partitions that depend on it.
    let mut order: Vec<(i64, bool, usize)> = Vec::new();
    let mut needed = Vec::new();
    for (call, why) in division.outside.iter().enumerate() {
        if why.is_some() {
            order.push((division.stages.of_call(call), true, call));
            graph.nodes[call].for_each_use(&mut |id| needed.push(id));
        }
    }
    for (number, delegated) in division.delegated.iter().enumerate() {
        order.push((division.stages.of_call(delegated.part.calls[0]), false, number));
        // Scalar inputs are passed as tensors.
        needed.extend(delegated.part.inputs.iter().copied());
    }
    order.sort_unstable();
    let states: Vec<&String> =
        division.delegated.iter().flat_map(|delegated| &delegated.part.states).collect();
    let mut outputs = Vec::new();
    let mut output_kinds = Vec::new();
    for (output, kind) in graph.outputs.iter().zip(&program.outputs) {
        let is_state = matches!(kind, OutputKind::BufferMutation(name)
            | OutputKind::ParameterMutation(name) if states.contains(&name));
        if !is_state {
            output.for_each_value(&mut |id| needed.push(id));
            outputs.push(output.clone());
            output_kinds.push(kind.clone());
        }
    }

    // Numbers are computed as soon as their sources are available.
    let mut numbers = Vec::new();
    flow.add_numbers(graph, needed, &mut numbers);
    let mut is_there = vec![false; graph.values.len()];
    for input in &graph.inputs {
        input.for_each_value(&mut |id| is_there[id.index()] = true);
    }
    let mut place_numbers = |made: &mut Maker, is_there: &mut Vec<bool>| {
        numbers.retain(|&number| {
            let node = &graph.nodes[number];
            let mut ready = true;
            node.for_each_use(&mut |id| ready &= is_there[id.index()]);
            if ready {
                node.defined().for_each(|id| is_there[id.index()] = true);
                made.push(node.clone(), true);
            }
            !ready
        });
    };
    place_numbers(&mut made, &mut is_there);
    for (_, is_outside, number) in order {
        if is_outside {
            let node = graph.nodes[number].clone();
            node.defined().for_each(|id| is_there[id.index()] = true);
            made.push(node, true);
        } else {
            let part = &division.delegated[number].part;
            made.origin = graph.nodes[part.calls[0]].origin.clone();
            made.delegate(number, &part.inputs, &part.outputs).map_err(Error::Program)?;
            part.outputs.iter().for_each(|id| is_there[id.index()] = true);
        }
        place_numbers(&mut made, &mut is_there);
    }

    let Maker { mut graph, outside, .. } = made;
    graph.outputs = outputs;
    let mut frame = program.clone();
    frame.graph = graph;
    frame.outputs = output_kinds;
    Ok(DelegatedProgram { program: frame, outside })
}

struct Maker {
    graph: Graph,
    schemas: Schemas,
    outside: Vec<bool>,
    /// Values already cast or converted to tensors.
    cast: HashMap<ValueId, ValueId>,
    origin: Origin,
}

impl Maker {
    fn push(&mut self, node: Node, is_outside: bool) {
        self.graph.nodes.push(node);
        self.outside.push(is_outside);
    }

    fn delegate(&mut self, number: usize, inputs: &[ValueId], outputs: &[ValueId]) -> Result<()> {
        let mut arguments = vec![Argument::Int(i64::try_from(number).unwrap_or(i64::MAX))];
        for &input in inputs {
            arguments.push(Argument::Value(self.entering(input)?));
        }
        let mut leaving = Vec::with_capacity(outputs.len());
        let mut after = Vec::new();
        for &output in outputs {
            let value = self.graph.value(output).clone();
            match &value.meta {
                Meta::Tensor(meta) if taken_as(meta.dtype) != meta.dtype => {
                    let meta = of_type(meta, taken_as(meta.dtype));
                    let given = self.define(&format!("{}_given", value.name), meta)?;
                    leaving.push(Output::Value(given));
                    after.push((given, output));
                }
                _ => leaving.push(Output::Value(output)),
            }
        }
        let name = format!("{DELEGATE}_{number}");
        let node = Node {
            name,
            target: Target::HigherOrder(DELEGATE.to_owned()),
            schema: None,
            arguments,
            keywords: Vec::new(),
            outputs: leaving,
            single_return: None,
            origin: self.origin.clone(),
        };
        self.push(node, false);
        for (given, output) in after {
            let dtype = match &self.graph.value(output).meta {
                Meta::Tensor(meta) => meta.dtype,
                _ => continue,
            };
            let given = given!(self = Argument::Value(given), dtype = dtype);
            self.call("aten._to_copy.default", given, output)?;
        }
        Ok(())
    }

    /// Converts a value to a form that delegates accept.
    fn entering(&mut self, id: ValueId) -> Result<ValueId> {
        if let Some(&cast) = self.cast.get(&id) {
            return Ok(cast);
        }
        let value = self.graph.value(id).clone();
        let scalar = |dtype| (meta(dtype, Vec::new()), "aten.scalar_tensor.default", "s");
        let (meta, operator, parameter) = match &value.meta {
            Meta::Tensor(meta) if taken_as(meta.dtype) != meta.dtype => {
                (of_type(meta, taken_as(meta.dtype)), "aten._to_copy.default", "self")
            }
            Meta::Int(_) => scalar(ScalarType::Int64),
            Meta::Float(_) => scalar(ScalarType::Float32),
            Meta::Bool(_) => scalar(ScalarType::Bool),
            Meta::Tensor(_) | Meta::CustomObject(_) | Meta::Token => return Ok(id),
        };
        let dtype = meta.dtype;
        let cast = self.define(&format!("{}_taken", value.name), meta)?;
        let arguments = [(parameter, Argument::Value(id)), ("dtype", Argument::ScalarType(dtype))];
        self.call(operator, &arguments, cast)?;
        self.cast.insert(id, cast);
        Ok(cast)
    }

    fn define(&mut self, name: &str, meta: TensorMeta) -> Result<ValueId> {
        let id = self.graph.define(name.to_owned(), Meta::Tensor(meta));
        id.ok_or_else(|| LoweringError::new("the graph has too many values for 32-bit indices"))
    }

    /// Appends a call; omitted arguments get their defaults.
    fn call(&mut self, operator: &str, given: &[(&str, Argument)], output: ValueId) -> Result<()> {
        let Target::Operator { namespace, name, overload } = target(operator) else {
            refuse!("`{operator}` is not an operator");
        };
        let found = self.schemas.find(&namespace, &name, &overload).ok().flatten();
        let Some(schema) = found else { refuse!("the schema of `{operator}` is missing") };
        let name = self.graph.value(output).name.clone();
        let (outputs, origin) = (vec![Output::Value(output)], self.origin.clone());
        let node = Node { name, outputs, origin, ..calling(target(operator), schema, given)? };
        self.push(node, true);
        Ok(())
    }
}

/// Element type with which tensors cross the boundary of a delegate.
fn taken_as(dtype: ScalarType) -> ScalarType {
    match dtype {
        ScalarType::Int8 => ScalarType::Int32,
        ScalarType::BFloat16 => ScalarType::Float32,
        other => other,
    }
}

fn of_type(meta: &TensorMeta, dtype: ScalarType) -> TensorMeta {
    TensorMeta { dtype, ..meta.clone() }
}
