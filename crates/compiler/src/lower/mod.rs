//! From calls of ATen to operations of MIL.
//!
//! Each operator's lowering is a function of a [`Call`]; the families in `ops/` list theirs in tables, which
//! `table` joins. A lowering looks at the call's real arguments, element types and sizes, and either appends
//! operations or refuses with a reason; nothing else decides what is supported. All refusals of a program are
//! reported at once; of a call that depends on a refused one, only whether its operator has a lowering at all is.
//!
//! Floats are `fp32` and integers `int32` here, whatever torch had; narrower integers wrap where torch's do.
//! Every result is compared with the sizes that torch noted at export, so that a mistake in a lowering ends in
//! a refusal and not in wrong numbers.

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

/// A program being lowered to a function.
pub(crate) struct Lowering<'p> {
    program: &'p ExportedProgram,
    /// Why calls of complex numbers are not written with real ones, by name.
    unwritten: &'p HashMap<String, LoweringError>,
    options: &'p Options,
    builder: Builder,
    refused: Vec<UnsupportedOp>,
    /// For each refusal the call of the outermost graph that it belongs to.
    refused_nodes: Vec<usize>,
    /// For each call of the outermost graph the values that were made for it, by their places in the function.
    made: Vec<std::ops::Range<usize>>,
    /// The calls of the outermost graph that are to be looked at each for itself.
    probe: Option<&'p SupportQuery<'p>>,
    /// The shapes that inputs may have, where they may have several.
    shapes: FlexibleShapes,
    /// Buffers that the program writes to.
    buffers: Vec<states::Buffer>,
    /// Those that became inputs and outputs.
    fed: Vec<LoopedBuffer>,
    /// What the user's outputs are called.
    output_labels: Vec<String>,
    /// The dimensions that torch's symbols are.
    symbols: HashMap<SymbolId, Dim>,
    /// Weights that were stated, by where they are stored: parameters can share a tensor.
    weights: HashMap<WeightKey<'p>, ValueId>,
    /// What takes operators apart that have no row; made when the first one is met.
    rewrite: Option<Rewrite>,
    /// Where the next call that is taken apart is kept.
    expansions: &'p Arena<Graph>,
}

/// Which bytes of the archive a weight is, and how it reads them.
type WeightKey<'p> = (&'p str, u64, &'p [u64], &'p [u64]);

/// A graph being lowered: the program's own, or one nested in it.
pub(crate) struct Frame<'p> {
    graph: &'p Graph,
    /// What each value of the graph became, by [`coremill_pt2::ValueId::index`].
    values: Vec<Slot<'p>>,
    /// Whether a tensor may stand for many, as the rows of one with an axis in front that the graph knows nothing of:
    /// its calls compute each element from those at its place.
    in_rows: bool,
    /// Whether halves are too coarse for what its calls compute.
    exact: bool,
}

#[derive(Clone)]
enum Slot<'p> {
    /// Nothing has defined it yet.
    Empty,
    Done(LoweredValue),
    /// A tensor of the archive that nothing has used yet.
    Weight(&'p str),
}

/// What to look at when every call is asked whether it can be lowered, whatever becomes of those before it.
pub(crate) struct SupportQuery<'p> {
    /// Calls that are not asked: their results are taken for given.
    pub(crate) passed: &'p [bool],
}

/// A lowering, and which calls of the outermost graph stand in its way.
pub(crate) struct Attempt {
    pub(crate) draft: Result<AnalyzedFunction, Error>,
    /// One for each refusal, none for what concerns the whole program.
    pub(crate) refused_nodes: Vec<usize>,
    /// By the name of a value in the draft, the call that it was made for.
    pub(crate) origins: HashMap<String, usize>,
    /// Buffers that are inputs and outputs.
    pub(crate) fed: Vec<LoopedBuffer>,
}

/// Lowers a program to a function called `main`, or tells which calls are refused.
pub(crate) fn attempt(program: &ExportedProgram, opset: Opset, options: &Options) -> Attempt {
    let attempt = attempt_whole(program, opset, options);
    attempt.unwrap_or_else(|refusal| Attempt::failed(Error::Program(refusal), Vec::new()))
}

/// The same, unless the whole program is refused.
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
    let Builder { mil, exact_values, .. } = lowering.builder;
    let FunctionBuilder { function, analysis, .. } = mil;
    let mut origins = HashMap::new();
    for (node, values) in lowering.made.into_iter().enumerate() {
        for value in values {
            let name = function.value(ValueId::from_index(value)).name.clone();
            origins.insert(name, real.source(node));
        }
    }
    let draft = AnalyzedFunction { function, analysis, exact: exact_values };
    Ok(Attempt { draft: Ok(draft), refused_nodes: Vec::new(), origins, fed: lowering.fed })
}

impl Attempt {
    fn failed(error: Error, refused_nodes: Vec<usize>) -> Attempt {
        Attempt { draft: Err(error), refused_nodes, origins: HashMap::new(), fed: Vec::new() }
    }
}

/// Asks every call whether it can be lowered: what a refused one gives is an input to those that take it. Gives
/// refusals with the positions of their calls; more than one can belong to a call with nested graphs.
pub(crate) fn probe(
    program: &ExportedProgram,
    opset: Opset,
    options: &Options,
    probe: &SupportQuery<'_>,
) -> Vec<(usize, UnsupportedOp)> {
    let expansions = Arena::default();
    // What is wrong with stored tensors is told when a program is lowered.
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

/// A program without complex numbers: the one that is to be lowered, or what was made of it.
struct RealProgram<'p> {
    program: Cow<'p, ExportedProgram>,
    /// By call the one that it was made of; none if the program is the one that was given.
    sources: Option<Vec<usize>>,
    /// Why calls are left that take or give complex numbers, by name.
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

    /// The call that one was made of.
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
                    let reason = "takes something that nothing outside Core ML can hand over";
                    self.refused.push(UnsupportedOp::of(node, LoweringError::new(reason)));
                }
                if self.refused.len() > before {
                    self.stub_as_inputs(frame, node);
                }
            }
            self.refused_nodes.resize(self.refused.len(), index);
        }
    }

    /// Makes inputs of what a call gives, as far as there can be such inputs.
    fn stub_as_inputs(&mut self, frame: &mut Frame<'p>, node: &'p Node) {
        let graph = frame.graph;
        for id in node.defined() {
            let value = graph.value(id);
            let given = self.user_input(&identifier(&value.name), &value.meta);
            frame.set(id, given.unwrap_or(LoweredValue::Refused));
        }
    }

    /// Lowers a nested graph in place, and says what its outputs became.
    pub(crate) fn inline(
        &mut self,
        graph: &'p Graph,
        inputs: Vec<LoweredValue>,
    ) -> Result<Vec<LoweredValue>> {
        self.inline_in(Frame::new(graph), inputs)
    }

    /// The same with what is to be known of the graph.
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

    /// What the outputs of a nested graph became.
    fn outputs(&mut self, frame: &mut Frame<'p>) -> Results {
        let graph = frame.graph;
        graph.outputs.iter().map(|output| self.argument(frame, output)).collect()
    }

    /// What an argument became; only for values.
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
        // That nothing lowers an operator is true whatever its arguments would have become.
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

    /// Lowers the calls that a rule makes of one.
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

    /// Records what a call's results became, after a look at whether they are what torch says.
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

    /// Lets inference know which open dimensions torch knows, or knows to be those of inputs.
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

    /// What a value became.
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

    /// A tensor of the archive.
    fn weight(&mut self, name: &'p str) -> Result<LoweredValue> {
        let Some(stored) = self.program.tensors.get(name) else {
            refuse!("the archive has no tensor `{name}`");
        };
        let (key, dtype) = match stored {
            StoredValue::Tensor(tensor) => {
                let (sizes, strides) = (tensor.sizes.as_slice(), tensor.strides.as_slice());
                let key = (tensor.storage_name.as_str(), tensor.offset, sizes, strides);
                (Some(key), tensor.dtype)
            }
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

/// The row that lowers calls of an operator; none if a rule takes them apart.
fn lowered_by(target: &Target) -> Result<Option<Lower>> {
    match table::find(target) {
        Ok(lower) => Ok(Some(lower)),
        Err(_) if decompose::has_rule(target) => Ok(None),
        Err(refusal) => Err(refusal),
    }
}

/// Whether something that a call gives was given up.
fn is_given_up(frame: &Frame<'_>, node: &Node) -> bool {
    node.defined().any(|id| matches!(frame.values[id.index()], Slot::Done(LoweredValue::Refused)))
}

/// Refuses a result that has not the dimensions that torch noted.
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
        "the lowering gives [{}], but the archive records [{}]",
        found.join(", "),
        wanted.join(", ")
    ))
    .hint("export the program anew; if that does not help, this is a fault of coremill: please report it"))
}
