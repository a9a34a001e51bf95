//! Graph construction: operations are checked and inferred when they are appended.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::fmt;
use std::panic::Location;

use coremill_engine::{FoldLimits, fold};
use coremill_mil::builder::FunctionBuilder;
use coremill_mil::infer::{InferError, InferredValue};
use coremill_mil::ir::{Constant, Function, Op, OpId, Opset, TensorType, Type, ValueId};
use coremill_mil::model::shapes::FlexibleShapes;

use crate::error::{BuildError, Error, Result};

/// Maximum number of elements of a folded result. Larger results are computed at run time.
const MAX_FOLDED_ELEMENTS: u64 = 1 << 16;

/// A function under construction: inputs, parameters, states, operations, outputs.
///
/// Methods never fail. The graph records each error with its line of Rust code and skips the dependent
/// operations. [`Graph::check`] and compiling report all errors together. Floats are `fp32` in the graph; the
/// compiler selects the precision.
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
    pub(crate) state: RefCell<Inner>,
    /// The last location of a caller.
    line: Cell<Option<&'static Location<'static>>>,
}

#[derive(Clone)]
pub(crate) struct Inner {
    pub(crate) builder: FunctionBuilder,
    /// Names of inputs, parameters, states and outputs.
    pub(crate) taken: HashSet<String>,
    /// Current prefix of names.
    scope: Vec<String>,
    pub(crate) params: Vec<ParamSlot>,
    pub(crate) shapes: FlexibleShapes,
    pub(crate) outputs: Vec<ValueId>,
    mistakes: Vec<BuildError>,
}

/// A parameter of a graph.
#[derive(Clone, Debug)]
pub(crate) struct ParamSlot {
    pub(crate) name: String,
    pub(crate) shape: Vec<u64>,
    pub(crate) op: OpId,
}

/// Name of the default function.
pub(crate) const MAIN: &str = "main";

impl Default for Graph {
    fn default() -> Graph {
        Graph::new()
    }
}

impl Graph {
    /// Returns an empty function named `main` for iOS 18.
    pub fn new() -> Graph {
        Graph::named(MAIN, Opset::Ios18)
    }

    /// Returns an empty function for a release.
    pub fn for_target(target: Opset) -> Graph {
        Graph::named(MAIN, target)
    }

    /// Returns an empty function with a name, for multifunction models.
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

    /// Name of the function.
    pub fn name(&self) -> String {
        self.state.borrow().builder.function.name.clone()
    }

    /// The target release.
    pub fn target(&self) -> Opset {
        self.state.borrow().builder.function.opset
    }

    /// Prefixes the names of all parameters, states and values that `build` creates.
    pub fn scope<T>(&self, name: impl fmt::Display, build: impl FnOnce() -> T) -> T {
        self.state.borrow_mut().scope.push(name.to_string());
        let result = build();
        self.state.borrow_mut().scope.pop();
        result
    }

    /// Names and shapes of the parameters, in the order of declaration.
    pub fn params(&self) -> Vec<(String, Vec<u64>)> {
        let inner = self.state.borrow();
        inner.params.iter().map(|param| (param.name.clone(), param.shape.clone())).collect()
    }

    /// Returns all errors in the graph, if there are any.
    pub fn check(&self) -> Result<()> {
        let mistakes = self.state.borrow().mistakes.clone();
        if mistakes.is_empty() { Ok(()) } else { Err(Error::of_graph(mistakes)) }
    }

    /// The complete function with its outputs.
    pub(crate) fn finished(&self) -> Result<Inner> {
        self.check()?;
        let mut inner = self.state.borrow().clone();
        let function = &mut inner.builder.function;
        let name = &function.name;
        if inner.outputs.is_empty() {
            let error =
                Error::new(crate::ErrorKind::Graph, format!("function `{name}` has no outputs"));
            return Err(error.with_hint("declare one with `graph.output`"));
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

    /// Renames a value; the name is made unique.
    pub(crate) fn rename(&self, value: ValueId, name: &str) {
        let builder = &mut self.state.borrow_mut().builder;
        builder.function.value_mut(value).name = builder.fresh_name(name);
    }

    /// Location for an error: modules of this crate report the location of their caller.
    pub(crate) fn line(&self, location: &'static Location<'static>) -> &'static Location<'static> {
        let sources = file!().strip_suffix("graph.rs").unwrap_or_default();
        if location.file().starts_with(sources) {
            return self.line.get().unwrap_or(location);
        }
        self.line.set(Some(location));
        location
    }

    pub(crate) fn note(
        &self,
        message: String,
        hint: Option<String>,
        location: &'static Location<'static>,
    ) {
        let location = self.line(location);
        self.state.borrow_mut().mistakes.push(BuildError { message, hint, location });
    }

    /// The inferred type of a value.
    pub(crate) fn type_of(&self, value: ValueId) -> Option<TensorType> {
        let inner = self.state.borrow();
        inner.builder.analysis.ty(value)?.unwrap_state().as_tensor().cloned()
    }

    /// Whether the value is a constant.
    pub(crate) fn holds(&self, value: ValueId) -> bool {
        self.state.borrow().builder.function.constant(value).is_some()
    }

    pub(crate) fn open_block(&self, inputs: &[(String, Type)]) -> Vec<ValueId> {
        self.state.borrow_mut().builder.open_block(inputs)
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
    pub(crate) fn scoped(&self, name: &str) -> String {
        let parts = self.scope.iter().map(String::as_str).chain([name]);
        parts.filter(|part| !part.is_empty()).collect::<Vec<_>>().join(".")
    }

    /// Appends an operation, or the resulting constants if it can be folded.
    pub(crate) fn append(
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

/// Folds an operation with few elements to constants. Returns `None` if it cannot be computed now.
fn folded_constants(
    function: &Function,
    op: &Op,
    outcomes: &[InferredValue],
) -> std::result::Result<Option<Vec<Constant>>, InferError> {
    let most = FoldLimits { operands: MAX_FOLDED_ELEMENTS, results: MAX_FOLDED_ELEMENTS };
    Ok(fold(function, op, outcomes, most).unwrap_or_default())
}

fn refused(type_name: &str, refusals: &[InferError]) -> (String, Option<String>) {
    let reasons: Vec<_> = refusals.iter().map(ToString::to_string).collect();
    let hint = refusals.iter().find_map(|refusal| refusal.hint.clone());
    (format!("`{type_name}`: {}", reasons.join("; ")), hint)
}
