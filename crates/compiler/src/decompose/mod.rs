//! Operators that are made of others, each written once for every target.
//!
//! A rule is a function of a [`call::Call`] that writes the operator in other calls of ATen; the families in `ops/`
//! list theirs in tables, which `table` joins. A target says which operators it performs itself ([`TargetOps`]): Core ML
//! those that `lower` has a row for, ExecuTorch's runtime those that it has kernels for. A rule may call whatever one of
//! the two performs; where the other does not, that call is decomposed in its turn.
//!
//! New values have types of their own; what the last call of a decomposition gives is compared with what torch noted for
//! the call, so that a mistake ends in a refusal.
//!
//! | module | holds |
//! |---|---|
//! | `call` | a call about to be rewritten: its arguments, and the calls that are made of it |
//! | `words` | the vocabulary that rules are written in |
//! | `formula` | what is computed element by element, as a book would write it |
//! | `constants` | tensors that rules store |
//! | `bind` | the end of a rewriting: what was made takes the place of the call's results |
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

/// Calls that a decomposition may make of one.
const MAX_CALLS: usize = 1 << 14;

/// How often what a decomposition calls may be decomposed in its turn.
const MAX_DEPTH: usize = 8;

/// What a target performs without decomposition.
pub(crate) trait TargetOps {
    /// Whether it performs calls of an operator.
    fn has(&mut self, target: &Target) -> bool;

    /// Why it cannot perform calls of an operator that it does not have, and that no rule takes apart.
    fn lacks(&self, operator: &str) -> LoweringError;

    /// The schema of an operator that torch does not know.
    fn schema(&self, target: &Target) -> Option<std::sync::Arc<Schema>>;
}

/// What the rewriting of all graphs of a program shares.
pub(crate) struct Rewrite {
    natives: Box<dyn TargetOps>,
    schemas: Schemas,
    symbols: Symbols,
}

/// A graph in the making.
pub(crate) struct Frame {
    pub(crate) graph: Graph,
    /// For each node the index of the one that it was made of.
    pub(crate) sources: Vec<usize>,
    names: HashSet<String>,
    /// What uses of a value mean now.
    replaced: HashMap<ValueId, Argument>,
    /// Inputs that tell the value of a symbol: the tensor and its dimension, or the number.
    symbols: HashMap<SymbolId, Place>,
    /// The parts of complex values.
    pairs: HashMap<ValueId, [Tensor; 2]>,
    /// Constants that were made, which become inputs.
    constants: Vec<Constant>,
    /// Whether the graph is nested in another one, and cannot hold constants.
    is_nested: bool,
    /// Whether halves are too coarse for what was made.
    exact: bool,
}

/// Where the value of an expression is found when the program runs.
#[derive(Clone, Copy)]
pub(crate) enum Place {
    /// The size of a tensor's dimension.
    Size(ValueId, usize),
    /// A number.
    Number(ValueId),
}

/// A call as a graph of its own, of calls that the target performs or that are to be decomposed in their turn.
pub(crate) struct Expansion {
    pub(crate) graph: Graph,
    /// What the inputs of the graph are where the call stands.
    pub(crate) inputs: Vec<ValueId>,
    /// Constants that are inputs of the graph after those.
    pub(crate) constants: Vec<Constant>,
    /// Whether halves are too coarse for it.
    pub(crate) exact: bool,
}

/// The operator with an overload: that of the target, if it names none.
fn overloaded(operator: &str, like: &Target) -> String {
    match like {
        Target::Operator { overload, .. } if operator.matches('.').count() == 1 => {
            format!("{operator}.{overload}")
        }
        _ => operator.to_owned(),
    }
}

/// Whether a rule takes calls of an operator apart.
pub(crate) fn has_rule(target: &Target) -> bool {
    rule(target).is_some()
}

impl Rewrite {
    pub(crate) fn new(natives: Box<dyn TargetOps>, symbols: Symbols) -> Rewrite {
        Rewrite { natives, schemas: Schemas::default(), symbols }
    }

    /// The symbols that it was given.
    pub(crate) fn into_symbols(self) -> Symbols {
        self.symbols
    }

    /// The calls of natives that do what a node does.
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

    /// The calls that a rule makes of a node.
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

    /// What a rule makes of a node of a graph, as a graph of its own.
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
    /// A graph nested in another one, whose nodes are to come.
    pub(crate) fn nested(graph: Graph) -> Frame {
        Frame { is_nested: true, ..Frame::of(graph) }
    }

    /// A graph whose nodes are to come.
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

    /// Appends what was made of a node.
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

    /// A new value; its name is `name` if that is free.
    fn define(&mut self, name: &str, meta: Meta) -> Result<ValueId> {
        let mut free = name.to_owned();
        let mut number = self.graph.values.len();
        while !self.names.insert(free.clone()) {
            free = format!("{name}_{number}");
            number += 1;
        }
        let id = self.graph.define(free, meta);
        id.ok_or_else(|| LoweringError::new("the graph has more values than 32 bits count"))
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

    /// The integer that an argument is, as an expression.
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
