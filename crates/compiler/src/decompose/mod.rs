//! Decompositions of operators, each written once for both backends.
//!
//! A rule is a function of a [`call::Call`] that replaces the call by calls of other ATen operators. Each family in
//! `ops/` has a table of its rules; `table` joins the tables. A target declares the operators that it supports
//! itself ([`TargetOps`]): Core ML supports the operators that `lower` has a row for, ExecuTorch's runtime supports
//! the operators that it has kernels for. A rule may call an operator that only one of the two supports; for the
//! other it is decomposed in turn.
//!
//! New values carry their own types. The type of the final result is compared with the type that torch recorded for
//! the call, so a wrong rule ends in an error.
//!
//! | module | holds |
//! |---|---|
//! | `call` | a call being rewritten: its arguments, and the calls that replace it |
//! | `prelude` | the vocabulary that rules are written in |
//! | `formula` | elementwise expressions in mathematical notation |
//! | `constants` | tensors that rules store |
//! | `bind` | last step of a rewrite: new values replace the results of the call |
//! | `numbers`, `size` | sizes that are unknown at compile time |
//! | `ops` | the rules |
//! | `complex` | complex numbers as pairs of real ones |

mod bind;
pub(crate) mod call;
mod complex;
mod constants;
pub(crate) mod dtype;
pub(crate) mod formula;
mod numbers;
mod ops;
mod prelude;
mod row;
pub(crate) mod size;
mod table;

use std::collections::{HashMap, HashSet};

use coremill_pt2::{
    Argument, Graph, Meta, Node, Schema, Schemas, Size, SymbolId, Symbols, Target, Value, ValueId,
};

use self::call::{Call, Tensor};
pub(crate) use self::call::{calling, given, meta, target};
pub use self::complex::{ComplexLowered, pairs};
pub(crate) use self::complex::{complex_outputs, has_complex};
use self::constants::Constant;
use self::row::Rule;
use self::table::rule;
pub(crate) use self::table::{OPERATORS, for_each_name};
use crate::bounds;
use crate::error::{LoweringError, Result, guarded, refuse};

/// Maximum number of calls in the decomposition of one call.
const MAX_CALLS: usize = 1 << 14;

/// Maximum depth of nested decompositions.
const MAX_DEPTH: usize = 8;

/// The operators that a target supports without decomposition.
pub(crate) trait TargetOps {
    /// Whether the target supports an operator.
    fn has(&mut self, target: &Target) -> bool;

    /// Error for an operator with neither native support nor a rule.
    fn lacks(&self, operator: &str) -> LoweringError;

    /// Schema of an operator that torch does not define.
    fn schema(&self, target: &Target) -> Option<std::sync::Arc<Schema>>;
}

/// State shared by the rewrites of all graphs of a program.
pub(crate) struct Rewrite {
    natives: Box<dyn TargetOps>,
    schemas: Schemas,
    symbols: Symbols,
}

/// A graph under construction.
pub(crate) struct Frame {
    pub(crate) graph: Graph,
    /// For each node, the index of the node it was derived from.
    pub(crate) sources: Vec<usize>,
    names: HashSet<String>,
    /// Replacements of values in later uses.
    replaced: HashMap<ValueId, Argument>,
    /// Inputs that determine the value of a symbol: a tensor and its dimension, or a number.
    symbols: HashMap<SymbolId, Place>,
    /// Real and imaginary parts of complex values.
    pairs: HashMap<ValueId, [Tensor; 2]>,
    /// New constants, which become inputs.
    constants: Vec<Constant>,
    /// Whether the graph is nested in another one and therefore cannot hold constants.
    is_nested: bool,
    /// Whether the new calls need more precision than fp16.
    exact: bool,
}

/// Source of an expression's value at run time.
#[derive(Clone, Copy)]
pub(crate) enum Place {
    /// Size of a tensor's dimension.
    Size(ValueId, usize),
    /// A number value.
    Number(ValueId),
}

/// Decomposition of a call as a graph of its own. Its calls are native or can be decomposed further.
pub(crate) struct Expansion {
    pub(crate) graph: Graph,
    /// The values of the enclosing graph that are bound to the inputs.
    pub(crate) inputs: Vec<ValueId>,
    /// Constants, which are inputs of the graph after the values.
    pub(crate) constants: Vec<Constant>,
    /// Whether it needs more precision than fp16.
    pub(crate) exact: bool,
}

/// Appends the overload of `like` if the operator names none.
fn overloaded(operator: &str, like: &Target) -> String {
    match like {
        Target::Operator { overload, .. } if operator.matches('.').count() == 1 => {
            format!("{operator}.{overload}")
        }
        _ => operator.to_owned(),
    }
}

/// Whether a rule decomposes an operator.
pub(crate) fn has_rule(target: &Target) -> bool {
    rule(target).is_some()
}

impl Rewrite {
    pub(crate) fn new(natives: Box<dyn TargetOps>, symbols: Symbols) -> Rewrite {
        Rewrite { natives, schemas: Schemas::default(), symbols }
    }

    /// Returns the symbols to the caller.
    pub(crate) fn into_symbols(self) -> Symbols {
        self.symbols
    }

    /// Rewrites a node to native calls.
    pub(crate) fn node(&mut self, frame: &mut Frame, node: &Node) -> Result<Vec<Node>> {
        self.nested(frame, node, MAX_DEPTH)
    }

    fn nested(&mut self, frame: &mut Frame, node: &Node, depth: usize) -> Result<Vec<Node>> {
        let Some(depth) = depth.checked_sub(1) else {
            refuse!("`{}` is decomposed more than {MAX_DEPTH} times", node.target);
        };
        let made = self.once(frame, node)?;
        let mut done = Vec::with_capacity(made.len());
        for mut call in made {
            frame.resolve(&mut call);
            if self.natives.has(&call.target) {
                done.push(call);
            } else {
                done.extend(self.nested(frame, &call, depth)?);
            }
        }
        Ok(done)
    }

    /// Applies the rule of a node once.
    fn once(&mut self, frame: &mut Frame, node: &Node) -> Result<Vec<Node>> {
        bounds::check(node, &frame.graph)?;
        let rule = rule(&node.target);
        let mut call = Call::new(self, frame, node);
        let results = match rule {
            Some(Rule::Rename(operator)) => call.renamed(&overloaded(operator, &node.target))?,
            Some(Rule::Formula(text)) => call.formula(text)?,
            Some(Rule::Rewrite(rewrite)) => guarded(node, || rewrite(&mut call))?,
            None => call.renamed(&node.target.to_string())?,
        };
        call.finish(results)
    }

    /// Decomposes a node of a graph to a graph of its own.
    pub(crate) fn expand(&mut self, graph: &Graph, node: &Node) -> Result<Expansion> {
        let mut own = Graph::default();
        let mut known: HashMap<ValueId, ValueId> = HashMap::new();
        let mut inputs = Vec::new();
        let mut all = Vec::new();
        node.for_each_use(&mut |id| all.push(id));
        let used = all.len();
        all.extend(node.defined());
        for (at, id) in all.into_iter().enumerate() {
            if known.contains_key(&id) {
                continue;
            }
            let value = graph.value(id);
            let Some(new) = own.define(value.name.clone(), value.meta.clone()) else {
                refuse!("the call has too many arguments");
            };
            known.insert(id, new);
            if at < used {
                inputs.push(id);
                own.inputs.push(Argument::Value(new));
            }
        }
        let mut node = node.clone();
        let own_id = |id: ValueId| known.get(&id).copied().unwrap_or(id);
        for argument in node.arguments.iter_mut().chain(node.keywords.iter_mut().map(|(_, a)| a)) {
            argument.map_values(&mut |id| Argument::Value(own_id(id)));
        }
        node.outputs.iter_mut().for_each(|output| output.map(own_id));
        let mut frame = Frame::of(own);
        let made = self.once(&mut frame, &node)?;
        let outputs = node.results().map(|id| id.map_or(Argument::None, Argument::Value));
        frame.graph.outputs = outputs.collect();
        frame.push(0, made);
        frame.resolve_outputs();
        let Frame { mut graph, constants, exact, .. } = frame;
        graph.inputs.extend(constants.iter().map(|constant| constant.tensor.argument()));
        Ok(Expansion { graph, inputs, constants, exact })
    }
}

impl Frame {
    /// A nested graph without nodes.
    pub(crate) fn nested(graph: Graph) -> Frame {
        Frame { is_nested: true, ..Frame::of(graph) }
    }

    /// A graph without nodes.
    pub(crate) fn of(graph: Graph) -> Frame {
        let names = graph.values.iter().map(|value| value.name.clone()).collect();
        let mut frame = Frame {
            graph,
            sources: Vec::new(),
            names,
            replaced: HashMap::new(),
            symbols: HashMap::new(),
            pairs: HashMap::new(),
            constants: Vec::new(),
            is_nested: false,
            exact: false,
        };
        frame.find_symbols();
        frame
    }

    /// Appends nodes derived from the node `source`.
    pub(crate) fn push(&mut self, source: usize, made: Vec<Node>) {
        self.sources.extend(std::iter::repeat_n(source, made.len()));
        self.graph.nodes.extend(made);
    }

    pub(crate) fn resolve_outputs(&mut self) {
        let mut outputs = std::mem::take(&mut self.graph.outputs);
        outputs.iter_mut().for_each(|output| self.resolve_argument(output));
        self.graph.outputs = outputs;
    }

    fn find_symbols(&mut self) {
        for input in &self.graph.inputs {
            let Argument::Value(id) = input else { continue };
            match &self.graph.value(*id).meta {
                Meta::Tensor(meta) => {
                    for (dimension, size) in meta.sizes.iter().enumerate() {
                        if let Some(symbol) = size.symbol() {
                            self.symbols.entry(symbol).or_insert(Place::Size(*id, dimension));
                        }
                    }
                }
                Meta::Int(size) => {
                    if let Some(symbol) = size.symbol() {
                        self.symbols.entry(symbol).or_insert(Place::Number(*id));
                    }
                }
                Meta::Float(_) | Meta::Bool(_) | Meta::CustomObject(_) | Meta::Token => {}
            }
        }
    }

    /// Defines a new value, named `name` if the name is free.
    fn define(&mut self, name: &str, meta: Meta) -> Result<ValueId> {
        let mut free = name.to_owned();
        let mut number = self.graph.values.len();
        while !self.names.insert(free.clone()) {
            free = format!("{name}_{number}");
            number += 1;
        }
        let id = self.graph.define(free, meta);
        id.ok_or_else(|| LoweringError::new("the graph has too many values for 32-bit indices"))
    }

    fn value(&self, id: ValueId) -> &Value {
        self.graph.value(id)
    }

    pub(crate) fn resolve(&self, node: &mut Node) {
        if self.replaced.is_empty() {
            return;
        }
        node.arguments.iter_mut().for_each(|argument| self.resolve_argument(argument));
        node.keywords.iter_mut().for_each(|(_, argument)| self.resolve_argument(argument));
    }

    fn resolve_argument(&self, argument: &mut Argument) {
        argument.map_values(&mut |id| {
            let mut now = Argument::Value(id);
            while let Argument::Value(id) = now
                && let Some(next) = self.replaced.get(&id)
            {
                now = next.clone();
            }
            now
        });
    }

    /// The integer of an argument, as an expression.
    fn size_of(&self, argument: &Argument) -> Option<Size> {
        match argument {
            Argument::Int(value) => Some(Size::Fixed(*value)),
            Argument::Value(id) => match &self.value(*id).meta {
                Meta::Int(size) => Some(size.clone()),
                _ => None,
            },
            _ => None,
        }
    }
}
