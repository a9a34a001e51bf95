//! Lowering from ATen calls to MIL operations.
//!
//! Each operator has a lowering, a function of a [`Call`]; the families in `ops/` list their lowerings in tables,
//! which `table` joins. A lowering inspects the call's actual arguments, element types and sizes. It appends
//! operations or returns an error with a reason; there is no other list of supported operators. All errors of a
//! program are reported at once. A call that depends on a refused one is only reported if its operator has no
//! lowering.
//!
//! Floats are `fp32` and integers `int32` here, independent of torch's type; narrower integers wrap like torch's.
//! Each result is compared with the sizes that torch recorded, so a wrong lowering ends in an error instead of wrong
//! numbers.

mod builder;
mod call;
mod compressed;
mod dtype;
mod formula;
mod high_rank;
mod int;
mod interface;
mod layout;
mod ops;
mod prelude;
mod row;
mod shapes;
mod states;
mod table;
mod trained;
mod value;
mod weights;

use std::borrow::Cow;
use std::collections::HashMap;

use coremill_mil::builder::FunctionBuilder;
use coremill_mil::ir::{Dim, Opset, ValueId};
use coremill_mil::model::shapes::FlexibleShapes;
use coremill_mil::text::identifier;
use coremill_passes::AnalyzedFunction;
use coremill_pt2::{
    Argument, ExportedProgram, Graph, Meta, Node, Output, StoredValue, SymbolId, Target, TensorMeta,
};

use coremill_io::cancel;

use self::builder::Builder;
use self::call::{Call, Results};
use self::dtype::core_dtype;
pub(crate) use self::dtype::is_float;
pub(crate) use self::high_rank::MAX_RANK;
use self::row::Lower;
pub use self::states::LoopedBuffer;
use self::value::{LoweredValue, Number, Tensor};
use crate::arena::Arena;
use crate::bounds;
use crate::decompose::{self, ComplexLowered, Expansion, Rewrite, has_complex, pairs};
use crate::error::{Error, LoweringError, Result, UnsupportedOp, guarded, refuse};
use crate::options::Options;

/// State of lowering a program to a function.
pub(crate) struct Lowering<'p> {
    program: &'p ExportedProgram,
    /// Errors by name of the complex calls that could not be rewritten to real ones.
    unwritten: &'p HashMap<String, LoweringError>,
    options: &'p Options,
    builder: Builder,
    refused: Vec<UnsupportedOp>,
    /// For each error, the index of its call in the outermost graph.
    refused_nodes: Vec<usize>,
    /// For each call of the outermost graph, the range of values created for it.
    made: Vec<std::ops::Range<usize>>,
    /// The calls to test one by one, in a probe.
    probe: Option<&'p SupportQuery<'p>>,
    /// Allowed shapes of flexible inputs.
    shapes: FlexibleShapes,
    /// Mutable buffers.
    buffers: Vec<states::Buffer>,
    /// Buffers that became inputs and outputs.
    fed: Vec<LoopedBuffer>,
    /// Names of the user's outputs.
    output_labels: Vec<String>,
    /// Maps torch's symbols to dimensions.
    symbols: HashMap<SymbolId, Dim>,
    /// Weights already added, by storage location, as parameters can share a tensor.
    weights: HashMap<WeightKey<'p>, ValueId>,
    /// Decomposes operators without a row; created on first use.
    rewrite: Option<Rewrite>,
    /// Storage for the graph of the next decomposed call.
    expansions: &'p Arena<Graph>,
}

/// Identity of a weight: storage name, offset, sizes and strides.
type WeightKey<'p> = (&'p str, u64, &'p [u64], &'p [u64]);

/// A graph being lowered: the program's graph or a nested one.
pub(crate) struct Frame<'p> {
    graph: &'p Graph,
    /// Lowered values, by [`coremill_pt2::ValueId::index`].
    values: Vec<Slot<'p>>,
    /// Whether tensors may have an extra leading axis that the graph does not know of. Its calls are elementwise, so
    /// they apply to all rows at once.
    in_rows: bool,
    /// Whether its calls need more precision than fp16.
    exact: bool,
}

#[derive(Clone)]
enum Slot<'p> {
    /// Not defined yet.
    Empty,
    Done(LoweredValue),
    /// A tensor of the archive that is not used yet.
    Weight(&'p str),
}

/// Selection of the calls for [`probe`], which tests every call by itself.
pub(crate) struct SupportQuery<'p> {
    /// Calls that are not tested; their results count as available.
    pub(crate) passed: &'p [bool],
}

/// Result of a lowering, and the calls of the outermost graph that failed.
pub(crate) struct Attempt {
    pub(crate) draft: Result<AnalyzedFunction, Error>,
    /// Index of the call for each error; empty for an error of the whole program.
    pub(crate) refused_nodes: Vec<usize>,
    /// Maps a value name of the draft to the index of its call.
    pub(crate) origins: HashMap<String, usize>,
    /// Buffers that are both inputs and outputs.
    pub(crate) fed: Vec<LoopedBuffer>,
}

/// Lowers a program to a function named `main`, or returns the refused calls.
pub(crate) fn attempt(program: &ExportedProgram, opset: Opset, options: &Options) -> Attempt {
    let attempt = attempt_whole(program, opset, options);
    attempt.unwrap_or_else(|refusal| Attempt::failed(Error::Program(refusal), Vec::new()))
}

/// Lowers a program; fails early if the whole program is refused.
fn attempt_whole(program: &ExportedProgram, opset: Opset, options: &Options) -> Result<Attempt> {
    let expansions = Arena::default();
    let real = RealProgram::of(program)?;
    let mut lowering = Lowering::new(&real, opset, options, None, &expansions);
    let mut frame = Frame::new(&real.program.graph);
    lowering.enter(&mut frame)?;
    lowering.run(&mut frame);
    if !lowering.refused.is_empty() {
        let Lowering { refused, refused_nodes, .. } = lowering;
        let refused_nodes = refused_nodes.into_iter().map(|node| real.source(node)).collect();
        return Ok(Attempt::failed(Error::Refused(refused), refused_nodes));
    }
    lowering.leave(&mut frame)?;
    let trained = trained::notes(&real.program)?;
    let trained: Vec<_> = trained
        .into_iter()
        .filter_map(|(name, trained)| Some((lowering.weight_value(&name)?, name, trained)))
        .collect();
    let Builder { mil, exact_values, .. } = lowering.builder;
    let FunctionBuilder { function, analysis, .. } = mil;
    let mut origins = HashMap::new();
    for (node, values) in lowering.made.into_iter().enumerate() {
        for value in values {
            let name = function.value(ValueId::from_index(value)).name.clone();
            origins.insert(name, real.source(node));
        }
    }
    let mut draft = AnalyzedFunction { function, analysis, exact: exact_values };
    trained::apply(&mut draft, trained, options)?;
    Ok(Attempt { draft: Ok(draft), refused_nodes: Vec::new(), origins, fed: lowering.fed })
}

impl Attempt {
    fn failed(error: Error, refused_nodes: Vec<usize>) -> Attempt {
        Attempt { draft: Err(error), refused_nodes, origins: HashMap::new(), fed: Vec::new() }
    }
}

/// Tests whether each call can be lowered. Results of a refused call become inputs of its users. Returns errors with
/// the positions of their calls; a call with nested graphs can have several.
pub(crate) fn probe(
    program: &ExportedProgram,
    opset: Opset,
    options: &Options,
    probe: &SupportQuery<'_>,
) -> Vec<(usize, UnsupportedOp)> {
    let expansions = Arena::default();
    // Errors in stored tensors are reported by the actual lowering.
    let Ok(real) = RealProgram::of(program) else { return Vec::new() };
    let count = real.program.graph.nodes.len();
    let passed: Vec<bool> = (0..count).map(|node| probe.passed[real.source(node)]).collect();
    let probe = SupportQuery { passed: &passed };
    let mut lowering = Lowering::new(&real, opset, options, Some(&probe), &expansions);
    let mut frame = Frame::new(&real.program.graph);
    lowering.enter_probe(&mut frame);
    lowering.run(&mut frame);
    let refused = lowering.refused_nodes.into_iter().zip(lowering.refused);
    refused.map(|(node, refused)| (real.source(node), refused)).collect()
}

/// A program without complex numbers: the original or a rewritten one.
struct RealProgram<'p> {
    program: Cow<'p, ExportedProgram>,
    /// For each call, the index of the call it was derived from; `None` for the original program.
    sources: Option<Vec<usize>>,
    /// Errors by name of the remaining complex calls.
    refused: HashMap<String, LoweringError>,
}

impl<'p> RealProgram<'p> {
    fn of(program: &'p ExportedProgram) -> Result<RealProgram<'p>> {
        Ok(match pairs(program)? {
            Some(ComplexLowered { program, sources, refused }) => {
                RealProgram { program: Cow::Owned(program), sources: Some(sources), refused }
            }
            None => RealProgram {
                program: Cow::Borrowed(program),
                sources: None,
                refused: HashMap::new(),
            },
        })
    }

    /// Index of the call that a call was derived from.
    fn source(&self, node: usize) -> usize {
        match &self.sources {
            Some(sources) => sources.get(node).copied().unwrap_or_default(),
            None => node,
        }
    }
}

impl<'p> Frame<'p> {
    fn new(graph: &'p Graph) -> Frame<'p> {
        Frame { graph, values: vec![Slot::Empty; graph.values.len()], in_rows: false, exact: false }
    }

    fn set(&mut self, id: coremill_pt2::ValueId, lowered: LoweredValue) {
        self.values[id.index()] = Slot::Done(lowered);
    }
}

impl<'p> Lowering<'p> {
    fn new(
        real: &'p RealProgram<'_>,
        opset: Opset,
        options: &'p Options,
        probe: Option<&'p SupportQuery<'p>>,
        expansions: &'p Arena<Graph>,
    ) -> Lowering<'p> {
        Lowering {
            program: &real.program,
            unwritten: &real.refused,
            options,
            builder: Builder::new("main", opset),
            refused: Vec::new(),
            refused_nodes: Vec::new(),
            made: Vec::new(),
            probe,
            shapes: FlexibleShapes::default(),
            buffers: Vec::new(),
            fed: Vec::new(),
            output_labels: Vec::new(),
            symbols: HashMap::new(),
            weights: HashMap::new(),
            rewrite: None,
            expansions,
        }
    }

    /// Lowers the calls of a graph.
    fn run(&mut self, frame: &mut Frame<'p>) {
        let is_outermost = std::ptr::eq(frame.graph, &self.program.graph);
        for (index, node) in frame.graph.nodes.iter().enumerate() {
            cancel::point();
            let before = self.refused.len();
            let first = self.builder.function.value_count();
            if let Some(probe) = self.probe.filter(|_| is_outermost)
                && probe.passed[index]
            {
                self.stub_as_inputs(frame, node);
                continue;
            }
            if let Err(refusal) = self.node(frame, node) {
                self.refused.push(UnsupportedOp::of(node, refusal));
                self.give_up(frame, node);
            }
            if !is_outermost {
                continue;
            }
            self.made.push(first..self.builder.function.value_count());
            if self.probe.is_some() {
                if self.refused.len() == before && is_given_up(frame, node) {
                    let reason = "has an operand that cannot be passed into Core ML";
                    self.refused.push(UnsupportedOp::of(node, LoweringError::new(reason)));
                }
                if self.refused.len() > before {
                    self.stub_as_inputs(frame, node);
                }
            }
            self.refused_nodes.resize(self.refused.len(), index);
        }
    }

    /// Turns the results of a call into inputs if possible.
    fn stub_as_inputs(&mut self, frame: &mut Frame<'p>, node: &'p Node) {
        let graph = frame.graph;
        for id in node.defined() {
            let value = graph.value(id);
            let given = self.user_input(&identifier(&value.name), &value.meta);
            frame.set(id, given.unwrap_or(LoweredValue::Refused));
        }
    }

    /// Lowers a nested graph in place, and returns its outputs.
    pub(crate) fn inline(
        &mut self,
        graph: &'p Graph,
        inputs: Vec<LoweredValue>,
    ) -> Result<Vec<LoweredValue>> {
        self.inline_in(Frame::new(graph), inputs)
    }

    /// Like [`inline`](Self::inline), with a given frame.
    pub(crate) fn inline_in(
        &mut self,
        mut frame: Frame<'p>,
        inputs: Vec<LoweredValue>,
    ) -> Result<Vec<LoweredValue>> {
        let graph = frame.graph;
        if inputs.len() != graph.inputs.len() {
            refuse!(
                "a nested graph takes {} values, but gets {}",
                graph.inputs.len(),
                inputs.len()
            );
        }
        for (input, lowered) in graph.inputs.iter().zip(inputs) {
            if let Argument::Value(id) = input {
                frame.set(*id, lowered);
            }
        }
        self.run(&mut frame);
        self.outputs(&mut frame)
    }

    /// Lowered outputs of a nested graph.
    fn outputs(&mut self, frame: &mut Frame<'p>) -> Results {
        let graph = frame.graph;
        graph.outputs.iter().map(|output| self.argument(frame, output)).collect()
    }

    /// Lowered value of an argument.
    fn argument(&mut self, frame: &mut Frame<'p>, argument: &Argument) -> Result<LoweredValue> {
        match argument {
            Argument::Value(id) => self.value(frame, *id),
            Argument::None => Ok(LoweredValue::Nothing),
            argument => match Number::stated(argument) {
                Some(number) => Ok(LoweredValue::Number(number)),
                None => refuse!("an argument is neither a value nor a number"),
            },
        }
    }

    fn node(&mut self, frame: &mut Frame<'p>, node: &'p Node) -> Result<()> {
        let mut depends_on_refused = false;
        node.for_each_use(&mut |id| {
            depends_on_refused |=
                matches!(frame.values[id.index()], Slot::Done(LoweredValue::Refused));
        });
        if !self.unwritten.is_empty() && has_complex(frame.graph, node) {
            if let Some(refusal) = self.unwritten.get(&node.name) {
                return Err(refusal.clone());
            }
            depends_on_refused |= !node.target.is("aten", "complex", "default");
        }
        // A missing lowering is reported even if the call depends on a refused one.
        let lower = lowered_by(&node.target)?;
        if depends_on_refused {
            self.give_up(frame, node);
            return Ok(());
        }
        bounds::check(node, frame.graph)?;
        self.builder.label = interface::label(node);
        self.call(frame, node, lower)?;
        for output in &node.outputs {
            if let Output::Value(id) = output {
                self.write_buffers(frame, *id)?;
            }
        }
        Ok(())
    }

    fn call(&mut self, frame: &mut Frame<'p>, node: &'p Node, lower: Option<Lower>) -> Result<()> {
        self.builder.exact = frame.exact;
        let results = match lower {
            Some(lower) => guarded(node, || lower.run(&mut Call { lowering: self, frame, node }))?,
            None => self.decomposed(frame, node)?,
        };
        self.assign(frame, node, results)
    }

    /// Lowers the decomposition of a call.
    fn decomposed(&mut self, frame: &mut Frame<'p>, node: &Node) -> Results {
        let rewrite = self.rewrite.get_or_insert_with(|| {
            Rewrite::new(Box::new(table::Rows), self.program.symbols.clone())
        });
        let Expansion { graph, inputs, constants, exact } = rewrite.expand(frame.graph, node)?;
        let (graph, next) = self.expansions.keep(graph);
        self.expansions = next;
        let mut inner =
            Frame { in_rows: frame.in_rows, exact: frame.exact || exact, ..Frame::new(graph) };
        for (input, outer) in graph.inputs.iter().zip(inputs) {
            if let Argument::Value(id) = input {
                inner.set(*id, self.value(frame, outer)?);
            }
        }
        for constant in constants {
            let (id, dtype) = (constant.tensor.id, constant.tensor.dtype);
            let stored = StoredValue::Tensor(constant.stored(String::new()));
            let value = self.builder.constant(weights::constant("a matrix", &stored)?);
            inner.set(id, LoweredValue::tensor(value, dtype));
        }
        for node in &graph.nodes {
            self.call(&mut inner, node, lowered_by(&node.target)?)?;
        }
        self.outputs(&mut inner)
    }

    fn give_up(&mut self, frame: &mut Frame<'p>, node: &Node) {
        node.defined().for_each(|id| frame.set(id, LoweredValue::Refused));
    }

    /// Stores the results of a call after checking them against the types that torch recorded.
    fn assign(
        &mut self,
        frame: &mut Frame<'p>,
        node: &'p Node,
        results: Vec<LoweredValue>,
    ) -> Result<()> {
        for (id, lowered) in node.results().zip(results) {
            let Some(id) = id else { continue };
            let lowered = self.checked(lowered, &frame.graph.value(id).meta, frame.in_rows)?;
            frame.set(id, lowered);
        }
        Ok(())
    }

    fn checked(
        &mut self,
        lowered: LoweredValue,
        meta: &Meta,
        in_rows: bool,
    ) -> Result<LoweredValue> {
        let (LoweredValue::Tensor(tensor), Meta::Tensor(meta)) = (&lowered, meta) else {
            return Ok(lowered);
        };
        let wanted = core_dtype(meta.dtype)?;
        let value = self.builder.cast(tensor.value, wanted)?;
        match self.builder.shape(value) {
            [_, row @ ..] if in_rows && row.len() == meta.sizes.len() => agrees(row, meta)?,
            shape => {
                agrees(shape, meta)?;
                self.refine(value, meta);
            }
        }
        Ok(LoweredValue::Tensor(Tensor { value, dtype: meta.dtype }))
    }

    /// Refines dynamic dimensions by sizes that torch recorded as static or as symbols of inputs.
    fn refine(&mut self, value: ValueId, meta: &TensorMeta) {
        let mut shape = self.builder.shape(value).to_vec();
        let mut is_better = false;
        for (dim, size) in shape.iter_mut().zip(&meta.sizes) {
            if dim.known().is_some() {
                continue;
            }
            let known = match size.extent() {
                Some(size) => Some(Dim::Known(size)),
                None => size.symbol().and_then(|symbol| self.symbols.get(&symbol).cloned()),
            };
            if let Some(known) = known.filter(|known| known != dim) {
                *dim = known;
                is_better = true;
            }
        }
        if is_better {
            self.builder.analysis.set_shape(value, shape);
        }
    }

    /// The lowered value of a graph value.
    fn value(&mut self, frame: &mut Frame<'p>, id: coremill_pt2::ValueId) -> Result<LoweredValue> {
        match frame.values[id.index()].clone() {
            Slot::Done(lowered) => Ok(lowered),
            Slot::Weight(name) => {
                let lowered = self.weight(name)?;
                frame.set(id, lowered.clone());
                Ok(lowered)
            }
            Slot::Empty => {
                refuse!("`{}` is not defined before it is used", frame.graph.value(id).name)
            }
        }
    }

    /// The value of a tensor of the archive that was added.
    fn weight_value(&self, name: &str) -> Option<ValueId> {
        match self.program.tensors.get(name)? {
            StoredValue::Tensor(tensor) => self.weights.get(&weight_key(tensor)).copied(),
            StoredValue::Missing { .. } | StoredValue::Object(_) => None,
        }
    }

    /// Adds a tensor of the archive.
    fn weight(&mut self, name: &'p str) -> Result<LoweredValue> {
        let Some(stored) = self.program.tensors.get(name) else {
            refuse!("the archive has no tensor `{name}`");
        };
        let (key, dtype) = match stored {
            StoredValue::Tensor(tensor) => (Some(weight_key(tensor)), tensor.dtype),
            StoredValue::Missing { dtype, .. } => (None, *dtype),
            StoredValue::Object(_) => (None, coremill_pt2::ScalarType::Float32),
        };
        if let Some(&value) = key.as_ref().and_then(|key| self.weights.get(key)) {
            return Ok(LoweredValue::tensor(value, dtype));
        }
        let constant = weights::constant(name, stored)?;
        let value = self.builder.mil.constant(name, constant);
        if let Some(key) = key {
            self.weights.insert(key, value);
        }
        Ok(LoweredValue::tensor(value, dtype))
    }
}

fn weight_key(tensor: &coremill_pt2::Tensor) -> WeightKey<'_> {
    (&tensor.storage_name, tensor.offset, &tensor.sizes, &tensor.strides)
}

/// The lowering of an operator; `None` if a rule decomposes it.
fn lowered_by(target: &Target) -> Result<Option<Lower>> {
    match table::find(target) {
        Ok(lower) => Ok(Some(lower)),
        Err(_) if decompose::has_rule(target) => Ok(None),
        Err(refusal) => Err(refusal),
    }
}

/// Whether a result of a call was refused.
fn is_given_up(frame: &Frame<'_>, node: &Node) -> bool {
    node.defined().any(|id| matches!(frame.values[id.index()], Slot::Done(LoweredValue::Refused)))
}

/// Checks a result against the dimensions that torch recorded.
fn agrees(found: &[Dim], meta: &TensorMeta) -> Result<()> {
    let same = found.len() == meta.sizes.len()
        && found.iter().zip(&meta.sizes).all(|(found, wanted)| {
            match (found.known(), wanted.fixed()) {
                (Some(found), Some(wanted)) => i64::try_from(found) == Ok(wanted),
                _ => true,
            }
        });
    if same {
        return Ok(());
    }
    let found: Vec<_> = found.iter().map(ToString::to_string).collect();
    let wanted: Vec<_> = meta
        .sizes
        .iter()
        .map(|size| size.fixed().map_or_else(|| "?".to_owned(), |size| size.to_string()))
        .collect();
    Err(LoweringError::new(format!(
        "the lowering returns [{}], but the archive records [{}]",
        found.join(", "),
        wanted.join(", ")
    ))
    .hint("export the program again; if that does not help, this is a bug in coremill: please report it"))
}
