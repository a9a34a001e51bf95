//! Inlines the graphs of wrappers, and removes calls that only check or annotate.
//!
//! `torch.no_grad()` around a part of `forward` is traced as `wrap_with_set_grad_enabled(False, graph, x)`. The
//! nodes of its graph are inlined, and its results replaced by the graph's. Control flow keeps its graphs.

use std::collections::HashMap;

use coremill_pt2::{
    Argument, ExportedProgram, Graph, InputKind, Meta, Node, Output, OutputKind, Schemas, Target,
    ValueId, normalize, operators,
};

use crate::autocast::{self, Cast};
use crate::edit::{Editor, positional};
use crate::error::{Error, escape_truncated};

/// Functions that check or annotate and return nothing.
const CHECK_FUNCTIONS: [&str; 5] = [
    "torch._assert",
    "torch._check",
    "torch._C._set_grad_enabled",
    "torch._check_is_size",
    "torch._constrain_as_size",
];

pub(crate) fn inline(program: &mut ExportedProgram, schemas: &mut Schemas) -> Result<(), Error> {
    let graph = std::mem::take(&mut program.graph);
    program.graph = self::graph(graph, schemas, None)?;
    drop_tokens(program);
    Ok(())
}

/// Processes a graph that is not inlined.
fn graph(graph: Graph, schemas: &mut Schemas, cast: Option<Cast>) -> Result<Graph, Error> {
    let Graph { values, inputs, mut outputs, nodes, single_return } = graph;
    let mut inliner = Inliner { editor: Editor::new(schemas, values), entered: Vec::new() };
    for mut node in nodes {
        inliner.editor.resolve_node(&mut node);
        let name = node.name.clone();
        inliner.place(node, cast).map_err(|error| error.in_node(&name))?;
    }
    let Editor { values, nodes, .. } = {
        outputs.iter_mut().for_each(|output| inliner.editor.resolve(output));
        inliner.editor
    };
    Ok(Graph { values, inputs, outputs, nodes, single_return })
}

struct Inliner<'a> {
    editor: Editor<'a>,
    /// Regions opened by `_enter_autocast` that are not closed yet.
    entered: Vec<Option<Cast>>,
}

impl Inliner<'_> {
    /// Emits a node whose arguments are already resolved.
    fn place(&mut self, mut node: Node, cast: Option<Cast>) -> Result<(), Error> {
        let cast = self.entered.last().copied().unwrap_or(cast);
        match &node.target {
            Target::HigherOrder(name) => match name.as_str() {
                "wrap_with_set_grad_enabled"
                | "hints_wrapper"
                | "strict_mode"
                | "run_const_graph"
                | "invoke_subgraph"
                | "tag_activation_checkpoint"
                | "wrap_activation_checkpoint"
                | "wrap" => return self.unwrap(node, cast),
                "wrap_with_autocast" => {
                    let cast = Cast::read(&node.arguments)?;
                    return self.unwrap(node, cast);
                }
                "_export_tracepoint" => {
                    return self.results(&node.outputs, node.arguments);
                }
                "with_effects" => return self.effect(node, cast),
                "out_dtype" => return self.out_dtype(node, cast),
                _ => {}
            },
            Target::Function(name) => {
                if CHECK_FUNCTIONS.contains(&name.as_str()) {
                    return Ok(());
                }
                match name.as_str() {
                    "torch.amp.autocast_mode._enter_autocast" => {
                        let mut arguments = node.arguments;
                        arguments.extend(node.keywords.into_iter().map(|(_, value)| value));
                        self.entered.push(Cast::read(&arguments)?);
                        return Ok(());
                    }
                    "torch.amp.autocast_mode._exit_autocast" => {
                        self.entered.pop();
                        return Ok(());
                    }
                    "_operator.getitem" => {
                        if let [Argument::List(items), Argument::Int(index)] =
                            node.arguments.as_slice()
                            && let Some(item) =
                                usize::try_from(*index).ok().and_then(|index| items.get(index))
                        {
                            let item = vec![item.clone()];
                            return self.results(&node.outputs, item);
                        }
                    }
                    _ => {}
                }
            }
            Target::Operator { namespace, name, .. } => {
                if namespace == "aten" && operators::named(name).check {
                    return Ok(());
                }
                if is_idle_dropout(&node) {
                    return self.dropout(node);
                }
            }
        }
        let keywords = node.keywords.iter_mut().map(|(_, argument)| argument);
        for argument in node.arguments.iter_mut().chain(keywords) {
            if let Argument::Graph(inner) = argument {
                let taken = std::mem::take(&mut inner.graph);
                inner.graph = graph(taken, self.editor.schemas, cast)?;
            }
        }
        if let Some(cast) = cast {
            autocast::apply(cast, &mut node, &mut self.editor)?;
        }
        self.editor.nodes.push(node);
        Ok(())
    }

    /// Inlines the graph of a wrapper. The arguments after the graph are its inputs.
    fn unwrap(&mut self, node: Node, cast: Option<Cast>) -> Result<(), Error> {
        let Node { target, arguments, keywords, outputs, .. } = node;
        let mut inner = None;
        let mut operands = Vec::new();
        let keywords = keywords.into_iter().filter(|(name, _)| name != "hints");
        for argument in arguments.into_iter().chain(keywords.map(|(_, value)| value)) {
            match (argument, &inner) {
                (Argument::Graph(subgraph), None) => inner = Some(subgraph.graph),
                // Arguments before the graph configure the wrapper; a string identifies the graph.
                (_, None) | (Argument::Text(_), Some(_)) => {}
                (argument, Some(_)) => flatten(argument, &mut operands),
            }
        }
        let Some(inner) = inner else {
            return Err(Error::malformed(format!("`{target}` has no graph among its arguments")));
        };
        if inner.inputs.len() != operands.len() {
            return Err(Error::malformed(format!(
                "the graph of `{target}` has {} inputs, but is called with {}",
                inner.inputs.len(),
                operands.len()
            )));
        }
        let mut renamed: HashMap<ValueId, Argument> = HashMap::new();
        for (input, operand) in inner.inputs.into_iter().zip(operands) {
            if let Argument::Value(id) = input {
                renamed.insert(id, operand);
            }
        }
        for mut node in inner.nodes {
            rename_node(&mut node, &renamed)?;
            // Results of inner wrappers are known only after they were inlined.
            self.editor.resolve_node(&mut node);
            for output in &mut node.outputs {
                let ids = match output {
                    Output::Value(id) => std::slice::from_mut(id),
                    Output::List(ids) => ids,
                    Output::Unused | Output::None => &mut [],
                };
                for id in ids {
                    let value = &inner.values[id.index()];
                    let new = self.editor.define(&value.name, value.meta.clone())?;
                    renamed.insert(*id, Argument::Value(new));
                    *id = new;
                }
            }
            self.place(node, cast)?;
        }
        let mut results = Vec::new();
        for mut output in inner.outputs {
            rename(&mut output, &renamed)?;
            self.editor.resolve(&mut output);
            results.push(output);
        }
        self.results(&outputs, results)
    }

    /// Binds the results of a removed node to values.
    fn results(&mut self, outputs: &[Output], values: Vec<Argument>) -> Result<(), Error> {
        let mut ids: Vec<_> = outputs.iter().flat_map(Output::results).collect();
        // Trailing unused results may be missing.
        ids.truncate(ids.iter().rposition(Option::is_some).map_or(0, |last| last + 1));
        let mut flat = Vec::new();
        values.into_iter().for_each(|value| flatten(value, &mut flat));
        if ids.len() > flat.len() {
            return Err(Error::malformed(format!(
                "{} results are used, but the graph returns {}",
                ids.len(),
                flat.len()
            )));
        }
        for (id, value) in ids.into_iter().zip(flat) {
            if let Some(id) = id {
                self.editor.replace(id, value);
            }
        }
        Ok(())
    }

    /// Replaces inactive dropout by its input.
    fn dropout(&mut self, mut node: Node) -> Result<(), Error> {
        let input = node.arguments.swap_remove(0);
        match node.outputs.as_slice() {
            [Output::Value(_), Output::Value(mask)] => {
                // The mask of `native_dropout` keeps all elements.
                let (mask, one) = (*mask, Argument::Bool(true));
                let given = vec![positional(input.clone()), positional(one)];
                let outputs = vec![Output::Value(mask)];
                self.editor.call_into(("full_like", "default"), given, outputs, &node.origin)?;
                if let Some(call) = self.editor.nodes.last_mut()
                    && let Meta::Tensor(meta) = &self.editor.values[mask.index()].meta
                    && let Some(dtype) = call.arguments.get_mut(2)
                {
                    *dtype = Argument::ScalarType(meta.dtype);
                }
                self.results(&node.outputs[..1], vec![input])
            }
            outputs => self.results(outputs, vec![input]),
        }
    }

    /// `with_effects(token, operator, …)` becomes a call of the operator. Node order defines the order of effects.
    fn effect(&mut self, mut node: Node, cast: Option<Cast>) -> Result<(), Error> {
        if node.arguments.len() < 2 || node.outputs.is_empty() {
            return Err(Error::malformed("`with_effects` has no token or operator"));
        }
        let rest = node.arguments.split_off(2);
        let (Some(Argument::Operator(name)), Some(token)) =
            (node.arguments.pop(), node.arguments.pop())
        else {
            return Err(Error::malformed("`with_effects` has no operator as its second argument"));
        };
        let token_out = node.outputs.remove(0);
        self.results(&[token_out], vec![token])?;
        let call = self.operator(&name, rest, node)?;
        self.place(call, cast)
    }

    /// `out_dtype(operator, type, …)` becomes a call of the operator on tensors cast to the type.
    fn out_dtype(&mut self, mut node: Node, cast: Option<Cast>) -> Result<(), Error> {
        let mut rest = node.arguments.split_off(2.min(node.arguments.len()));
        let [Argument::Operator(name), Argument::ScalarType(dtype)] = node.arguments.as_slice()
        else {
            return Err(Error::malformed(
                "`out_dtype` has no operator and type before its arguments",
            ));
        };
        let (name, dtype) = (name.clone(), *dtype);
        for argument in &mut rest {
            autocast::convert(argument, dtype, &mut self.editor, &node.origin, &|_| true)?;
        }
        let call = self.operator(&name, rest, node)?;
        self.place(call, cast)
    }

    /// Turns the node into a call of an operator that was an argument.
    fn operator(&mut self, name: &str, rest: Vec<Argument>, node: Node) -> Result<Node, Error> {
        let target = match Target::parse(name) {
            Target::Function(_) => Target::parse(&format!("torch.ops.{}", name.replace("::", "."))),
            found => found,
        };
        let Target::Operator { namespace, name: operator, overload } = &target else {
            return Err(Error::unsupported(format!(
                "`{}` is not an operator",
                escape_truncated(name)
            )));
        };
        let schema = self.editor.schemas.find(namespace, operator, overload)?;
        let given = rest.into_iter().map(positional).collect();
        let (arguments, mut keywords) = normalize::arguments(schema.as_deref(), given)?;
        if schema.is_none() {
            keywords.extend(node.keywords);
        }
        Ok(Node { target, schema, arguments, keywords, ..node })
    }
}

/// Flattens lists and maps of operands.
fn flatten(argument: Argument, into: &mut Vec<Argument>) {
    match argument {
        Argument::List(items) => items.into_iter().for_each(|item| flatten(item, into)),
        Argument::Map(items) => items.into_iter().for_each(|(_, item)| flatten(item, into)),
        other => into.push(other),
    }
}

fn rename(argument: &mut Argument, names: &HashMap<ValueId, Argument>) -> Result<(), Error> {
    argument.try_map_values(&mut |id| {
        names.get(&id).cloned().ok_or_else(|| {
            Error::malformed(format!("{id} of a nested graph is used before it is defined"))
        })
    })
}

fn rename_node(node: &mut Node, names: &HashMap<ValueId, Argument>) -> Result<(), Error> {
    for argument in &mut node.arguments {
        rename(argument, names)?;
    }
    for (_, argument) in &mut node.keywords {
        rename(argument, names)?;
    }
    Ok(())
}

/// Whether a call is dropout without effect: outside training, or with probability zero.
fn is_idle_dropout(node: &Node) -> bool {
    let Target::Operator { namespace, name, .. } = &node.target else { return false };
    namespace == "aten"
        && operators::named(name.strip_suffix('_').unwrap_or(name)).dropout
        && (node.argument("train") == Some(&Argument::Bool(false))
            || node.argument("p") == Some(&Argument::Float(0.0)))
}

/// Removes effect tokens, as node order defines the order of effects.
fn drop_tokens(program: &mut ExportedProgram) {
    let graph = &mut program.graph;
    if program.inputs.contains(&InputKind::Token) {
        let mut kinds = program.inputs.iter();
        graph.inputs.retain(|_| kinds.next() != Some(&InputKind::Token));
        program.inputs.retain(|kind| *kind != InputKind::Token);
    }
    if program.outputs.contains(&OutputKind::Token) {
        let mut kinds = program.outputs.iter();
        graph.outputs.retain(|_| kinds.next() != Some(&OutputKind::Token));
        program.outputs.retain(|kind| *kind != OutputKind::Token);
    }
}
