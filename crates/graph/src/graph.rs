//! A function that grows operation by operation, each checked and inferred as it is appended.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::panic::Location;

use coremill_engine::{Array, Most, fold};
use coremill_mil::builder::FunctionBuilder;
use coremill_mil::infer::{Outcome, Refusal};
use coremill_mil::ir::{
    Binding, BlockId, Constant, ConstantData, Definition, Dim, Function, Op, OpId, Opset,
    TensorType, Type, ValueId, Weight,
};
use coremill_mil::model::shapes::FlexibleShapes;
use coremill_mil::ops::{Accepts, OpKind};
use coremill_mil::text::{identifier, is_plain, is_reserved};
use coremill_tensor::{Buffer, DType};

use crate::arg::{ACCEPTED_EXTENTS, Arg, Bools, Given, Ints, extents};
use crate::error::{Error, Mistake, Result};
use crate::state::State;
use crate::tensor::Tensor;

/// Results of more elements are computed by the program rather than stored in it.
const MAX_FOLDED_ELEMENTS: u64 = 1 << 16;

/// A function under construction: inputs, parameters, states, operations, outputs.
///
/// Methods never fail: a mistake is noted with the line of Rust that made it, what depends on it is skipped, and
/// [`Graph::check`] and compiling report all of them together. Floats are `fp32` here; compiling chooses the
/// precision.
///
/// ```
/// use coremill_graph::{DType, Device, Graph, Session};
///
/// let graph = Graph::new();
/// let x = graph.input("x", DType::Fp32, [2, 3]);
/// let weight = graph.param("weight", [4, 3]);
/// graph.output("y", (x.matmul_t(weight) + 1.0).relu());
///
/// let mut model = Session::new(Device::Host).compile(&graph)?;
/// model.set_param("weight", &[0.5f32; 12])?;
/// let outputs = model.run(&[("x", &[1.0f32, 2.0, 3.0, -1.0, -2.0, -3.0])])?;
/// assert_eq!(outputs.floats("y"), Some(&[4.0, 4.0, 4.0, 4.0, 0.0, 0.0, 0.0, 0.0][..]));
/// # Ok::<(), coremill_graph::Error>(())
/// ```
pub struct Graph {
    state: RefCell<Inner>,
    /// The line of the caller that was seen last.
    line: Cell<Option<&'static Location<'static>>>,
}

#[derive(Clone)]
pub(crate) struct Inner {
    pub(crate) builder: FunctionBuilder,
    /// Names of inputs, parameters, states and outputs, which callers use.
    taken: HashSet<String>,
    /// What stands before the names of what is appended now.
    scope: Vec<String>,
    pub(crate) params: Vec<ParamSlot>,
    shapes: FlexibleShapes,
    outputs: Vec<ValueId>,
    mistakes: Vec<Mistake>,
}

/// A parameter of a graph.
#[derive(Clone, Debug)]
pub(crate) struct ParamSlot {
    pub(crate) name: String,
    pub(crate) shape: Vec<u64>,
    pub(crate) op: OpId,
}

/// The name of the function that runs where none is named.
pub(crate) const MAIN: &str = "main";

impl Default for Graph {
    fn default() -> Graph {
        Graph::new()
    }
}

impl Graph {
    /// An empty function named `main` for iOS 18.
    pub fn new() -> Graph {
        Graph::named(MAIN, Opset::Ios18)
    }

    /// An empty function for a release.
    pub fn for_target(target: Opset) -> Graph {
        Graph::named(MAIN, target)
    }

    /// An empty function of a name, for models of several functions.
    pub fn named(name: &str, target: Opset) -> Graph {
        let inner = Inner {
            builder: FunctionBuilder::new(name, target, folded_constants),
            taken: HashSet::new(),
            scope: Vec::new(),
            params: Vec::new(),
            shapes: FlexibleShapes::default(),
            outputs: Vec::new(),
            mistakes: Vec::new(),
        };
        Graph { state: RefCell::new(inner), line: Cell::new(None) }
    }

    /// The function's name.
    pub fn name(&self) -> String {
        self.state.borrow().builder.function.name.clone()
    }

    /// The release that the graph is built for.
    pub fn target(&self) -> Opset {
        self.state.borrow().builder.function.opset
    }

    /// Declares an input. Core ML passes `fp32`, `int32` and `fp16`.
    #[track_caller]
    pub fn input(&self, name: &str, dtype: DType, shape: impl Into<Ints>) -> Tensor<'_> {
        let shape = shape.into();
        let ranges: Vec<_> = shape.values.iter().map(|&extent| (extent, extent)).collect();
        self.add_input(name, dtype, &ranges, Location::caller())
    }

    /// Declares an input whose extents may vary, each from the first to the second number. The shape of the
    /// smallest extents is the default.
    #[track_caller]
    pub fn flexible_input(&self, name: &str, dtype: DType, ranges: &[(i64, i64)]) -> Tensor<'_> {
        self.add_input(name, dtype, ranges, Location::caller())
    }

    fn add_input(
        &self,
        name: &str,
        dtype: DType,
        ranges: &[(i64, i64)],
        location: &'static Location<'static>,
    ) -> Tensor<'_> {
        if !matches!(dtype, DType::Fp32 | DType::Fp16 | DType::Int32) {
            let message = format!(
                "input `{name}` holds `{dtype}`; Core ML passes `fp32`, `fp16` and `int32`"
            );
            return self.mistake(
                message,
                Some("declare one of those, and cast it".into()),
                location,
            );
        }
        if ranges.is_empty() || ranges.len() > 5 {
            let rank = ranges.len();
            let message =
                format!("input `{name}` has rank {rank}; Core ML's inputs have rank 1 to 5");
            return self.mistake(message, None, location);
        }
        let extent = |extent: i64| i32::try_from(extent).ok().filter(|&extent| extent > 0);
        let bounds: Option<Vec<[i32; 2]>> = ranges
            .iter()
            .map(|&(low, high)| Some([extent(low)?, extent(high).filter(|_| low <= high)?]))
            .collect();
        let Some(bounds) = bounds else {
            let message = format!(
                "input `{name}` has extents {}; accepted are 1 to 2^31 - 1{}",
                shown_ranges(ranges),
                if ranges.iter().any(|(low, high)| low > high) {
                    ", the smaller first"
                } else {
                    ""
                }
            );
            return self.mistake(message, None, location);
        };
        let largest: Vec<i64> = ranges.iter().map(|&(_, high)| high).collect();
        if extents(&largest).is_none() {
            let message = format!(
                "input `{name}` has extents {}, too many elements to address",
                shown_ranges(ranges)
            );
            return self.mistake(message, None, location);
        }
        if !self.take(name, "input", location) {
            return self.nothing();
        }
        let mut inner = self.state.borrow_mut();
        let shape = bounds.iter().map(|&[low, high]| match low == high {
            true => Dim::Known(low as u64),
            false => Dim::Unknown,
        });
        let ty = Type::Tensor(TensorType { dtype, shape: shape.collect() });
        if bounds.iter().any(|[low, high]| low != high) {
            let default = bounds.iter().map(|&[low, _]| low).collect();
            inner.shapes.defaults.push((name.to_owned(), default));
            inner.shapes.ranges.push((name.to_owned(), bounds));
        }
        inner.builder.claim_name(name);
        Tensor::new(self, Some(inner.builder.input(name, ty)))
    }

    /// Declares a parameter: a tensor of floats that is set by name before the first run.
    #[track_caller]
    pub fn param(&self, name: &str, shape: impl Into<Ints>) -> Tensor<'_> {
        let location = Location::caller();
        let shape = shape.into().values;
        let Some(shape) = extents(&shape) else {
            let message = format!("parameter `{name}` has extents {shape:?}; {ACCEPTED_EXTENTS}");
            return self.mistake(message, None, location);
        };
        let full = self.state.borrow().scoped(name);
        let known = self.state.borrow().params.iter().find(|param| param.name == full).cloned();
        if let Some(known) = known {
            if known.shape == shape {
                let value = self.state.borrow().builder.function.op(known.op).outputs[0];
                return Tensor::new(self, Some(value));
            }
            let before = &known.shape;
            let message = format!(
                "parameter `{full}` is declared with shape {before:?} and again with {shape:?}"
            );
            return self.mistake(message, Some("give one of them another name".into()), location);
        }
        if !self.take(&full, "parameter", location) {
            return self.nothing();
        }
        let constant = Constant {
            ty: Type::tensor(DType::Fp32, &shape),
            data: ConstantData::Weight(Weight { data: None, place: None }),
        };
        let mut inner = self.state.borrow_mut();
        let value = inner.builder.constant(&full, constant);
        let Definition::Output(op, _) = inner.builder.function.value(value).definition else {
            unreachable!("a constant is the output of its operation")
        };
        inner.params.push(ParamSlot { name: full, shape, op });
        Tensor::new(self, Some(value))
    }

    /// Declares a state: floats that stay from run to run, zero at first. Core ML keeps them in `fp16`.
    #[track_caller]
    pub fn state(&self, name: &str, shape: impl Into<Ints>) -> State<'_> {
        let location = Location::caller();
        let shape = shape.into().values;
        let target = self.target();
        let extents = extents(&shape);
        let refusal = if target < Opset::Ios18 {
            Some(format!("state `{name}` needs iOS18; this graph targets {target}"))
        } else if extents.is_none() || shape.is_empty() || shape.len() > 5 {
            Some(format!(
                "state `{name}` has shape {shape:?}; accepted are 1 to 5 extents of 1 and more, up to 2^31 - 1"
            ))
        } else {
            None
        };
        if let Some(message) = refusal {
            let hint = "build for it: `Graph::new`, or `Graph::for_target(Opset::Ios18)`";
            let hint = (target < Opset::Ios18).then(|| hint.to_owned());
            self.note(message, hint, location);
            return State::new(self, None);
        }
        let full = self.state.borrow().scoped(name);
        if !self.take(&full, "state", location) {
            return State::new(self, None);
        }
        let name = identifier(&full);
        let held = Type::tensor(DType::Fp16, &extents.unwrap_or_default());
        let builder = &mut self.state.borrow_mut().builder;
        builder.claim_name(&name);
        State::new(self, Some(builder.input(name, Type::State(Box::new(held)))))
    }

    /// Declares an output. A scalar becomes a vector of one element, and truth values and narrow integers
    /// become `int32`, since that is what Core ML hands out.
    #[track_caller]
    pub fn output<'g>(&'g self, name: &str, tensor: impl Into<Arg<'g>>) {
        let location = Location::caller();
        let Given::Tensor(mut tensor) = tensor.into().0 else {
            return self.note(
                format!("output `{name}` is not a tensor of the graph"),
                None,
                location,
            );
        };
        if self.state.borrow().builder.is_nested() {
            let message = format!("output `{name}` is declared inside a branch or a loop");
            return self.note(message, Some("return the value from the block".into()), location);
        }
        if !self.owns(tensor, &format!("output `{name}`"), location)
            || !self.take(name, "output", location)
        {
            return;
        }
        match tensor.dtype() {
            DType::Fp16 | DType::Fp32 | DType::Int32 => {}
            DType::Bool | DType::Int8 | DType::UInt8 | DType::Int16 | DType::UInt16 => {
                tensor = tensor.cast(DType::Int32);
            }
            _ => {}
        }
        if tensor.rank() == 0 && tensor.dtype() != DType::String {
            tensor = tensor.expand_dims([0]);
        }
        let Some(value) = tensor.value else { return };
        let inner = self.state.borrow();
        let own = inner.builder.is_computed_here(value) && !inner.outputs.contains(&value);
        drop(inner);
        let mut call = Call::new(self, OpKind::Identity);
        call.arg("x", tensor);
        let value = if own { Some(value) } else { call.unfolded().value };
        let Some(value) = value else { return };
        let mut inner = self.state.borrow_mut();
        if inner.builder.function.value(value).name != name {
            inner.builder.claim_name(name);
            inner.builder.function.value_mut(value).name = name.to_owned();
        }
        inner.outputs.push(value);
    }

    /// A constant of floats.
    #[track_caller]
    pub fn floats(&self, shape: impl Into<Ints>, elements: &[f32]) -> Tensor<'_> {
        let bytes: Vec<u8> = elements.iter().flat_map(|element| element.to_le_bytes()).collect();
        self.numbers(DType::Fp32, shape.into(), elements.len(), bytes, Location::caller())
    }

    /// A constant of integers.
    #[track_caller]
    pub fn ints(&self, shape: impl Into<Ints>, elements: &[i32]) -> Tensor<'_> {
        let bytes: Vec<u8> = elements.iter().flat_map(|element| element.to_le_bytes()).collect();
        self.numbers(DType::Int32, shape.into(), elements.len(), bytes, Location::caller())
    }

    fn numbers(
        &self,
        dtype: DType,
        shape: Ints,
        count: usize,
        bytes: Vec<u8>,
        location: &'static Location<'static>,
    ) -> Tensor<'_> {
        let sizes: Option<Vec<u64>> =
            shape.values.iter().map(|&extent| u64::try_from(extent).ok()).collect();
        let product = |sizes: &[u64]| sizes.iter().try_fold(1u64, |all, &one| all.checked_mul(one));
        let sizes = sizes.filter(|sizes| product(sizes) == Some(count as u64));
        let Some(sizes) = sizes else {
            let shape = &shape.values;
            let message = format!("{count} elements do not fill a constant of shape {shape:?}");
            return self.mistake(message, None, location);
        };
        self.constant(Constant::by_size(dtype, &sizes, bytes))
    }

    /// A scalar of an integer.
    pub fn int(&self, value: i32) -> Tensor<'_> {
        self.constant(Constant::int32(value))
    }

    /// A scalar of a float.
    pub fn float(&self, value: f32) -> Tensor<'_> {
        self.constant(Constant::fp32(value))
    }

    /// A constant of any type.
    pub fn constant(&self, constant: Constant) -> Tensor<'_> {
        let value = self.state.borrow_mut().builder.constant("const", constant);
        Tensor::new(self, Some(value))
    }

    /// Puts a name before those of the parameters, states and values that are made in `build`.
    pub fn scope<T>(&self, name: impl fmt::Display, build: impl FnOnce() -> T) -> T {
        self.state.borrow_mut().scope.push(name.to_string());
        let result = build();
        self.state.borrow_mut().scope.pop();
        result
    }

    /// The names and shapes of the parameters, in the order of their declaration.
    pub fn params(&self) -> Vec<(String, Vec<u64>)> {
        let inner = self.state.borrow();
        inner.params.iter().map(|param| (param.name.clone(), param.shape.clone())).collect()
    }

    /// Everything that is wrong with the graph, if anything is.
    pub fn check(&self) -> Result<()> {
        let mistakes = self.state.borrow().mistakes.clone();
        if mistakes.is_empty() { Ok(()) } else { Err(Error::of_graph(mistakes)) }
    }

    /// What was built, with its outputs in place.
    pub(crate) fn finished(&self) -> Result<Inner> {
        self.check()?;
        let mut inner = self.state.borrow().clone();
        let function = &mut inner.builder.function;
        let name = &function.name;
        if inner.outputs.is_empty() {
            let error =
                Error::new(crate::ErrorKind::Graph, format!("function `{name}` has no outputs"));
            return Err(error.hint("declare one with `graph.output`"));
        }
        function.block_mut(function.body).outputs = inner.outputs.clone();
        if !inner.shapes.ranges.is_empty() {
            let mut shapes = inner.shapes.clone();
            shapes.defaults.sort();
            shapes.ranges.sort();
            let key = coremill_mil::model::shapes::ATTRIBUTE;
            function.attributes.insert(key, shapes.to_constant());
        }
        Ok(inner)
    }

    /// Gives a value a name that is made unique.
    pub(crate) fn rename(&self, value: ValueId, name: &str) {
        let builder = &mut self.state.borrow_mut().builder;
        builder.function.value_mut(value).name = builder.fresh_name(name);
    }

    /// The line of Rust that made a mistake: modules of this crate pass on the line that called them.
    pub(crate) fn line(&self, location: &'static Location<'static>) -> &'static Location<'static> {
        let sources = file!().strip_suffix("graph.rs").unwrap_or_default();
        if location.file().starts_with(sources) {
            return self.line.get().unwrap_or(location);
        }
        self.line.set(Some(location));
        location
    }

    pub(crate) fn nothing(&self) -> Tensor<'_> {
        Tensor::new(self, None)
    }

    pub(crate) fn note(
        &self,
        message: String,
        hint: Option<String>,
        location: &'static Location<'static>,
    ) {
        let location = self.line(location);
        self.state.borrow_mut().mistakes.push(Mistake { message, hint, location });
    }

    pub(crate) fn mistake(
        &self,
        message: String,
        hint: Option<String>,
        location: &'static Location<'static>,
    ) -> Tensor<'_> {
        self.note(message, hint, location);
        self.nothing()
    }

    /// Takes a name that callers use, if it is free and Core ML accepts it.
    fn take(&self, name: &str, what: &str, location: &'static Location<'static>) -> bool {
        let accepted = match what {
            "input" | "output" => name.is_empty() || is_plain(name),
            "state" => !is_reserved(name),
            _ => true,
        };
        // Parameters are named by their slots; the others by their names in the model.
        let key = if what == "parameter" { name.to_owned() } else { identifier(name) };
        let (message, hint) = if name.is_empty() {
            (format!("the {what} has no name"), "give it a name")
        } else if !accepted {
            let hint =
                "use letters, digits and `_`, begin with a letter or `_`, and avoid names of types";
            (format!("{what} `{name}`: Core ML does not accept this name"), hint)
        } else if !self.state.borrow_mut().taken.insert(key) {
            let hint = "give each input, parameter, state and output a name of its own";
            (format!("{what} `{name}`: the name is taken"), hint)
        } else {
            return true;
        };
        self.note(message, Some(hint.into()), location);
        false
    }

    /// Whether a tensor without mistakes is a value of this graph that can be used here; a mistake if it is another's.
    pub(crate) fn owns(
        &self,
        tensor: Tensor<'_>,
        what: &str,
        location: &'static Location<'static>,
    ) -> bool {
        let Some(value) = tensor.value else { return false };
        let (message, hint) = if !tensor.is_of(self) {
            (format!("{what} is a tensor of another graph"), "build both in one graph")
        } else if !self.state.borrow().builder.is_in_scope(value) {
            let message = format!("{what} is a value of a branch or a loop that has ended");
            (message, "return the value from the block that computes it")
        } else {
            return true;
        };
        self.note(message, Some(hint.into()), location);
        false
    }

    /// The inferred type of a value.
    pub(crate) fn type_of(&self, value: ValueId) -> Option<TensorType> {
        let inner = self.state.borrow();
        inner.builder.analysis.ty(value)?.stripped_of_state().as_tensor().cloned()
    }

    /// Whether the value is a constant.
    pub(crate) fn holds(&self, value: ValueId) -> bool {
        self.state.borrow().builder.function.constant(value).is_some()
    }

    pub(crate) fn open_block(&self, inputs: &[(String, Type)]) -> Vec<ValueId> {
        self.state.borrow_mut().builder.open_block(inputs)
    }

    /// Closes the innermost block, which gives these values; each becomes an operation of its own.
    pub(crate) fn close_block(&self, outputs: &[Tensor<'_>]) -> BlockId {
        let mut given = Vec::new();
        for &output in outputs {
            let Some(value) = output.value else { continue };
            let own = {
                let builder = &self.state.borrow().builder;
                let is_input = builder.function.block(builder.block()).inputs.contains(&value);
                (is_input || builder.is_computed_here(value)) && !given.contains(&value)
            };
            let mut call = Call::new(self, OpKind::Identity);
            call.arg("x", output);
            given.extend(if own { Some(value) } else { call.unfolded().value });
        }
        self.state.borrow_mut().builder.close_block(given)
    }

    pub(crate) fn append_with_blocks(
        &self,
        mut op: Op,
        blocks: Vec<BlockId>,
        location: &'static Location<'static>,
    ) -> Vec<Tensor<'_>> {
        op.blocks = blocks;
        let appended = self.state.borrow_mut().append(op, false);
        match appended {
            Ok(values) => values.into_iter().map(|value| Tensor::new(self, Some(value))).collect(),
            Err((message, hint)) => {
                self.note(message, hint, location);
                Vec::new()
            }
        }
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = self.state.borrow();
        let function = &inner.builder.function;
        write!(f, "Graph({}, {} operations)", function.name, function.op_count())
    }
}

impl Inner {
    fn scoped(&self, name: &str) -> String {
        let parts = self.scope.iter().map(String::as_str).chain([name]);
        parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join(".")
    }

    /// Appends an operation, or the constants that it gives.
    fn append(
        &mut self,
        op: Op,
        folds: bool,
    ) -> std::result::Result<Vec<ValueId>, (String, Option<String>)> {
        let type_name = op.type_name().to_owned();
        let name = self.scoped(&type_name);
        let appended = match folds {
            true => self.builder.append(op, &name),
            false => self.builder.append_unfolded(op, &name),
        };
        appended.map_err(|refusals| refused(&type_name, &refusals))
    }
}

/// The constants that an operation on few elements gives. An operation that cannot be computed now stays.
fn folded_constants(
    function: &Function,
    op: &Op,
    outcomes: &[Outcome],
) -> std::result::Result<Option<Vec<Constant>>, Refusal> {
    let most = Most { operands: MAX_FOLDED_ELEMENTS, results: MAX_FOLDED_ELEMENTS };
    Ok(fold(function, op, outcomes, most).unwrap_or_default())
}

/// Extents as they were declared: those that vary as ranges.
fn shown_ranges(ranges: &[(i64, i64)]) -> String {
    let shown = ranges.iter().map(|&(low, high)| match low == high {
        true => low.to_string(),
        false => format!("{low}..={high}"),
    });
    format!("[{}]", shown.collect::<Vec<_>>().join(", "))
}

fn refused(type_name: &str, refusals: &[Refusal]) -> (String, Option<String>) {
    let reasons: Vec<_> = refusals.iter().map(ToString::to_string).collect();
    let hint = refusals.iter().find_map(|refusal| refusal.hint.clone());
    (format!("`{type_name}`: {}", reasons.join("; ")), hint)
}

/// One operation on its way into the graph.
pub(crate) struct Call<'g> {
    graph: &'g Graph,
    kind: OpKind,
    op: Op,
    /// Whether everything that it takes is sound.
    sound: bool,
    location: &'static Location<'static>,
}

impl<'g> Call<'g> {
    #[track_caller]
    pub(crate) fn new(graph: &'g Graph, kind: OpKind) -> Call<'g> {
        let location = graph.line(Location::caller());
        Call { graph, kind, op: Op::new(kind), sound: true, location }
    }

    pub(crate) fn arg(&mut self, name: &'static str, arg: impl Into<Arg<'g>>) {
        let bound = self.binding(name, arg.into());
        if let Some(bound) = bound {
            self.op.set_input(name.into(), vec![bound]);
        }
    }

    pub(crate) fn many(
        &mut self,
        name: &'static str,
        args: impl IntoIterator<Item: Into<Arg<'g>>>,
    ) {
        let bound: Vec<_> =
            args.into_iter().filter_map(|arg| self.binding(name, arg.into())).collect();
        self.op.set_input(name.into(), bound);
    }

    pub(crate) fn ints(&mut self, name: &'static str, ints: Ints) {
        self.integers(name, &ints, DType::Int32);
    }

    pub(crate) fn unsigned(&mut self, name: &'static str, ints: Ints) {
        self.integers(name, &ints, DType::UInt32);
    }

    pub(crate) fn bools(&mut self, name: &'static str, bools: Bools) {
        self.op.set_input(name.into(), vec![Binding::Literal(bools.constant())]);
    }

    pub(crate) fn text(&mut self, name: &'static str, text: &str) {
        self.op.set_input(name.into(), vec![Binding::Literal(Constant::string(text))]);
    }

    fn integers(&mut self, name: &'static str, ints: &Ints, dtype: DType) {
        match ints.constant(dtype) {
            Ok(constant) => self.op.set_input(name.into(), vec![Binding::Literal(constant)]),
            Err(outside) => {
                let kind = self.kind.name();
                self.fault(format!("`{kind}`: `{name}`: {outside} does not fit `{dtype}`"), None);
            }
        }
    }

    fn binding(&mut self, name: &str, arg: Arg<'g>) -> Option<Binding> {
        let tensor = match arg.0 {
            Given::Constant(constant) => return Some(Binding::Literal(constant)),
            Given::Tensor(tensor) => tensor,
        };
        let what = format!("`{}`: `{name}`", self.kind.name());
        if !self.graph.owns(tensor, &what, self.location) {
            self.sound = false;
            return None;
        }
        tensor.value.map(Binding::Value)
    }

    fn fault(&mut self, message: String, hint: Option<String>) {
        self.sound = false;
        self.graph.note(message, hint, self.location);
    }

    /// Numbers stated on the spot take the element type of the tensors beside them.
    fn settle_literals(&mut self) {
        let inner = self.graph.state.borrow();
        let Some(row) = self.kind.row(inner.builder.function.opset) else { return };
        let variable = |name: &str| match row.parameter(name)?.accepts {
            Accepts::Tensor { variable, .. } => variable,
            Accepts::Values => Some("values"),
            _ => None,
        };
        let mut known: HashMap<&str, DType> = HashMap::new();
        for (name, binding) in self.op.all_bindings() {
            let Binding::Value(value) = binding else { continue };
            let ty = inner.builder.analysis.ty(*value).and_then(Type::as_tensor);
            if let (Some(variable), Some(ty)) = (variable(name), ty) {
                known.entry(variable).or_insert(ty.dtype);
            }
        }
        let wanted: Vec<_> = self
            .op
            .inputs
            .iter()
            .map(|input| variable(&input.name).and_then(|variable| known.get(variable).copied()))
            .collect();
        for (input, wanted) in self.op.inputs.iter_mut().zip(wanted) {
            let Some(wanted) = wanted else { continue };
            for binding in &mut input.bindings {
                let Binding::Literal(constant) = binding else { continue };
                if let Some(settled) = settled(constant, wanted) {
                    *constant = settled;
                }
            }
        }
    }

    fn append(mut self, folds: bool) -> Option<Vec<Tensor<'g>>> {
        if !self.sound {
            return None;
        }
        self.settle_literals();
        let appended = self.graph.state.borrow_mut().append(self.op, folds);
        match appended {
            Ok(values) => {
                Some(values.into_iter().map(|value| Tensor::new(self.graph, Some(value))).collect())
            }
            Err((message, hint)) => {
                self.graph.note(message, hint, self.location);
                None
            }
        }
    }

    pub(crate) fn one(self) -> Tensor<'g> {
        let graph = self.graph;
        self.append(true).and_then(|all| all.into_iter().next()).unwrap_or_else(|| graph.nothing())
    }

    pub(crate) fn unfolded(self) -> Tensor<'g> {
        let graph = self.graph;
        self.append(false).and_then(|all| all.into_iter().next()).unwrap_or_else(|| graph.nothing())
    }

    pub(crate) fn several<const N: usize>(self) -> [Tensor<'g>; N] {
        let graph = self.graph;
        let all = self.append(true).unwrap_or_default();
        std::array::from_fn(|at| all.get(at).copied().unwrap_or_else(|| graph.nothing()))
    }

    /// As many results as the operation has; as many of nothing as were asked for if it cannot stand.
    pub(crate) fn all(self) -> Vec<Tensor<'g>> {
        let graph = self.graph;
        let literal = |name: &str| match self.op.binding(name) {
            Some(Binding::Literal(constant)) => Array::from_constant(constant).ok(),
            _ => None,
        };
        let number = literal("num_splits").and_then(|array| array.as_ints()?.first().copied());
        let sizes = literal("split_sizes").map(|array| array.view().len());
        let asked = sizes.or(number.and_then(|number| usize::try_from(number).ok())).unwrap_or(0);
        self.append(true).unwrap_or_else(|| vec![graph.nothing(); asked])
    }
}

/// A stated number in the type of what it is used with, if it is the same number there.
fn settled(constant: &Constant, wanted: DType) -> Option<Constant> {
    let found = constant.tensor_type()?;
    if found.dtype == wanted {
        return None;
    }
    let array = Array::from_constant(constant).ok()?;
    let shape: Vec<u64> = found.known_shape()?;
    let extents = array.shape().to_vec();
    let converted = match (array.as_floats(), array.as_ints()) {
        (Some(floats), _) if wanted.is_float() => Array::floats(wanted, extents, floats.to_vec()),
        (Some(floats), _) if wanted == DType::Int32 => {
            let whole = floats.iter().all(|x| x.fract() == 0.0 && x.abs() < 2e9);
            let ints = whole.then(|| floats.iter().map(|&x| x as i32).collect())?;
            Array::ints(wanted, extents, ints)
        }
        (_, Some(ints)) if wanted.is_float() && found.dtype == DType::Int32 => {
            Array::floats(wanted, extents, ints.iter().map(|&int| int as f32).collect())
        }
        _ => return None,
    };
    Some(Constant::by_size(wanted, &shape, Buffer::from(converted.to_bytes()?)))
}
