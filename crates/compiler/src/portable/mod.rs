//! What stays outside delegates becomes calls of ExecuTorch's kernels.
//!
//! Programs come as `pt2::prepare` leaves them, in torch's own operators. ExecuTorch's runtime has kernels for the out
//! variants of some of them; [`kernel`] tells which. Every other call is rewritten to calls that have one, by a function
//! of a [`call::Call`]; the families in `ops/` list theirs in tables, which `table` joins. A call without a row keeps its
//! operator, and has to have a kernel.
//!
//! Every tensor of the rewritten graph has its elements in the order of its dimensions: views are copies
//! (`view_copy`, `permute_copy`), and memory formats mean nothing. New values have types of their own; what the last call
//! of a decomposition gives is compared with what torch noted for the call, so that a mistake ends in a refusal.

mod bind;
mod call;
mod complex;
mod constants;
mod dtype;
mod kernels;
mod numbers;
mod ops;
mod size;
mod table;
mod words;

use std::collections::{HashMap, HashSet};

use coremill_pt2::{
    Argument, ExportedProgram, Graph, Meta, Node, Schemas, Size, Subgraph, SymbolId, Symbols,
    Target, Value, ValueId,
};

pub(crate) use self::call::meta;
use self::call::{Call, Tensor};
pub(crate) use self::complex::has_complex;
pub use self::complex::{Paired, pairs};
use self::kernels::Kernels;
pub use self::kernels::kernel;
use self::table::{Rule, Table};
use crate::bounds;
use crate::error::{Error, Refusal, Refused, refuse};

/// A program whose calls outside delegates all have kernels.
#[derive(Clone, Debug)]
pub struct Portable {
    /// The program. Values of the graph that was given have their ids still; those that nothing defines any more have no
    /// use.
    pub program: ExportedProgram,
    /// For each node of the program's graph the index of the node that it was made of.
    pub sources: Vec<usize>,
}

/// Calls that a decomposition may make of one.
const MAX_CALLS: usize = 1 << 14;

/// Rewrites the nodes of the outermost graph that `outside` names, and all graphs nested in those. Nodes that are not
/// outside stay what they are.
///
/// # Errors
/// All calls that no kernels can do, each with the reason.
pub fn portable(mut program: ExportedProgram, outside: &[bool]) -> Result<Portable, Error> {
    let mut rewrite = Rewrite::of(&mut program);
    let given = std::mem::take(&mut program.graph);
    let done = rewrite.graph(given, &|index| outside.get(index) == Some(&true));
    program.symbols = rewrite.symbols;
    if !rewrite.refused.is_empty() {
        return Err(Error::Refused(rewrite.refused));
    }
    program.graph = done.graph;
    let mut sources = done.sources;
    constants::turn(&mut program, &mut sources, outside);
    Ok(Portable { program, sources })
}

/// What all graphs of a program share.
pub(crate) struct Rewrite {
    schemas: Schemas,
    kernels: Kernels,
    table: Table,
    symbols: Symbols,
    refused: Vec<Refused>,
}

/// A graph in the making.
pub(crate) struct Frame {
    graph: Graph,
    sources: Vec<usize>,
    names: HashSet<String>,
    /// What uses of a value mean now.
    replaced: HashMap<ValueId, Argument>,
    /// Inputs that tell the value of a symbol: the tensor and its dimension, or the number.
    symbols: HashMap<SymbolId, Place>,
    /// The parts of complex values.
    pairs: HashMap<ValueId, [Tensor; 2]>,
    /// Constants that were made, which become inputs.
    constants: Vec<complex::Constant>,
}

/// Where the value of an expression is found when the program runs.
#[derive(Clone, Copy)]
pub(crate) enum Place {
    /// The size of a tensor's dimension.
    Size(ValueId, usize),
    /// A number.
    Number(ValueId),
}

impl Rewrite {
    /// With the symbols of a program, which gets them back when all is done.
    fn of(program: &mut ExportedProgram) -> Rewrite {
        Rewrite {
            schemas: Schemas::default(),
            kernels: Kernels::default(),
            table: Table::new(),
            symbols: std::mem::take(&mut program.symbols),
            refused: Vec::new(),
        }
    }

    fn graph(&mut self, mut graph: Graph, outside: &dyn Fn(usize) -> bool) -> Frame {
        let nodes = std::mem::take(&mut graph.nodes);
        let mut frame = Frame::of(graph);
        for (index, mut node) in nodes.into_iter().enumerate() {
            frame.resolve(&mut node);
            let made = if outside(index) {
                match self.node(&mut frame, &node) {
                    Ok(made) => made,
                    Err(refusal) => {
                        self.refused.push(Refused::of(&node, refusal));
                        continue;
                    }
                }
            } else {
                vec![node]
            };
            frame.push(index, made);
        }
        frame.resolve_outputs();
        frame
    }

    /// The calls that do what a node does.
    fn node(&mut self, frame: &mut Frame, node: &Node) -> Result<Vec<Node>, Refusal> {
        if let Target::HigherOrder(name) = &node.target {
            return self.higher_order(name, node);
        }
        bounds::check(node, &frame.graph)?;
        let rule = self.table.find(&node.target);
        let mut call = Call::new(self, frame, node);
        let results = match rule {
            Some(Rule::Rename(operator)) => call.renamed(operator)?,
            Some(Rule::Rewrite(rewrite)) => rewrite(&mut call)?,
            None => call.renamed(&node.target.to_string())?,
        };
        call.finish(results)
    }

    /// Control flow stays; what is in it is outside as well.
    fn higher_order(&mut self, name: &str, node: &Node) -> Result<Vec<Node>, Refusal> {
        const KEPT: [&str; 4] = ["cond", "map_impl", "scan", "while_loop"];
        if !KEPT.contains(&name) {
            refuse!(
                "`{name}` is not an operator that ExecuTorch's runtime can do; there are {}",
                KEPT.join(", ")
            );
        }
        let mut node = node.clone();
        for argument in &mut node.arguments {
            if let Argument::Graph(inner) = argument {
                let Subgraph { graph, .. } = inner.as_mut();
                *graph = self.graph(std::mem::take(graph), &|_| true).graph;
            }
        }
        Ok(vec![node])
    }
}

impl Frame {
    /// A graph whose nodes are to come.
    fn of(graph: Graph) -> Frame {
        let names = graph.values.iter().map(|value| value.name.clone()).collect();
        let mut frame = Frame {
            graph,
            sources: Vec::new(),
            names,
            replaced: HashMap::new(),
            symbols: HashMap::new(),
            pairs: HashMap::new(),
            constants: Vec::new(),
        };
        frame.find_symbols();
        frame
    }

    /// Appends what was made of a node.
    fn push(&mut self, source: usize, made: Vec<Node>) {
        self.sources.extend(std::iter::repeat_n(source, made.len()));
        self.graph.nodes.extend(made);
    }

    fn resolve_outputs(&mut self) {
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
    fn define(&mut self, name: &str, meta: Meta) -> Result<ValueId, Refusal> {
        let mut free = name.to_owned();
        let mut number = self.graph.values.len();
        while !self.names.insert(free.clone()) {
            free = format!("{name}_{number}");
            number += 1;
        }
        let id = self.graph.define(free, meta);
        id.ok_or_else(|| Refusal::new("the graph has more values than 32 bits count"))
    }

    fn value(&self, id: ValueId) -> &Value {
        self.graph.value(id)
    }

    fn resolve(&self, node: &mut Node) {
        if self.replaced.is_empty() {
            return;
        }
        node.arguments.iter_mut().for_each(|argument| self.resolve_argument(argument));
        node.keywords.iter_mut().for_each(|(_, argument)| self.resolve_argument(argument));
    }

    fn resolve_argument(&self, argument: &mut Argument) {
        argument
            .map_values(&mut |id| self.replaced.get(&id).cloned().unwrap_or(Argument::Value(id)));
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
