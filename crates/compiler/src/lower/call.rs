//! A call being lowered, as seen by the lowering of its operator.

use std::ops::{Deref, DerefMut};

use coremill_mil::ir::ValueId;
use coremill_mil::ops::OpKind;
use coremill_pt2::{Argument, Graph, Meta, Node, ScalarType, Size, Subgraph, TensorMeta};

use super::builder::{Builder, ValueResult, int32};
use super::formula::kind;
use super::value::{Int, LoweredValue, Number, Tensor};
use super::{Frame, Lowering};
use crate::decompose::call::{position, spatial};
use crate::error::{LoweringError, Result, refuse};

/// One value per result of the call; list results are flattened.
pub(crate) type Results = Result<Vec<LoweredValue>>;

/// A call. Dereferences to the [`Builder`] that operations are appended with.
pub(crate) struct Call<'a, 'p> {
    pub(crate) lowering: &'a mut Lowering<'p>,
    pub(crate) frame: &'a mut Frame<'p>,
    pub(crate) node: &'p Node,
}

impl Deref for Call<'_, '_> {
    type Target = Builder;

    fn deref(&self) -> &Builder {
        &self.lowering.builder
    }
}

impl DerefMut for Call<'_, '_> {
    fn deref_mut(&mut self) -> &mut Builder {
        &mut self.lowering.builder
    }
}

impl<'p> Call<'_, 'p> {
    pub(crate) fn graph(&self) -> &'p Graph {
        self.frame.graph
    }

    /// The argument with this name.
    pub(crate) fn argument(&self, name: &str) -> Result<&'p Argument> {
        match self.node.argument(name) {
            Some(argument) => Ok(argument),
            None => refuse!("argument `{name}` is missing"),
        }
    }

    /// The MIL operation for the operator's own name, used in formulas: `exp`, `lt`, `max`.
    pub(crate) fn matching_op(&self) -> Result<OpKind> {
        let name = self.node.target.name();
        kind(name.rsplit('.').next().unwrap_or(name).trim_start_matches("sym_"))
    }

    /// Number of spatial dimensions in the operator's name.
    pub(crate) fn spatial(&self) -> usize {
        spatial(self.node.target.name())
    }

    /// Whether an argument is present and not `None`.
    pub(crate) fn has(&self, name: &str) -> bool {
        !matches!(self.node.argument(name), None | Some(Argument::None))
    }

    /// The lowered value of an argument.
    pub(crate) fn lowered(&mut self, argument: &Argument) -> Result<LoweredValue> {
        self.lowering.argument(self.frame, argument)
    }

    /// A tensor argument.
    pub(crate) fn tensor(&mut self, name: &str) -> Result<Tensor> {
        let argument = self.argument(name)?;
        match self.lowered(argument)? {
            LoweredValue::Tensor(tensor) => Ok(tensor),
            _ => refuse!("`{name}` is not a tensor"),
        }
    }

    /// The value of a tensor argument.
    pub(crate) fn value(&mut self, name: &str) -> ValueResult {
        Ok(self.tensor(name)?.value)
    }

    /// The value of an optional tensor argument.
    pub(crate) fn optional_value(&mut self, name: &str) -> Result<Option<ValueId>> {
        Ok(self.optional_tensor(name)?.map(|tensor| tensor.value))
    }

    /// An optional tensor argument.
    pub(crate) fn optional_tensor(&mut self, name: &str) -> Result<Option<Tensor>> {
        if self.has(name) { self.tensor(name).map(Some) } else { Ok(None) }
    }

    /// A list of optional tensors.
    pub(crate) fn optional_tensors(&mut self, name: &str) -> Result<Vec<Option<Tensor>>> {
        let Argument::List(items) = self.argument(name)? else {
            refuse!("`{name}` is not a list of tensors");
        };
        let mut tensors = Vec::with_capacity(items.len());
        for item in items {
            tensors.push(match self.lowered(item)? {
                LoweredValue::Tensor(tensor) => Some(tensor),
                LoweredValue::Nothing => None,
                _ => refuse!("`{name}` holds something that is not a tensor"),
            });
        }
        Ok(tensors)
    }

    /// A list of tensors.
    pub(crate) fn tensors(&mut self, name: &str) -> Result<Vec<Tensor>> {
        let tensors = self.optional_tensors(name)?.into_iter().collect::<Option<Vec<_>>>();
        tensors
            .ok_or_else(|| LoweringError::new(format!("one of the tensors of `{name}` is missing")))
    }

    /// A number argument of any type.
    pub(crate) fn number(&mut self, name: &str) -> Result<Number> {
        let argument = self.argument(name)?;
        let number = self.lowered(argument)?.number();
        number.ok_or_else(|| LoweringError::new(format!("`{name}` is not a number")))
    }

    /// An integer argument, possibly computed at run time.
    pub(crate) fn int(&mut self, name: &str) -> Result<Int> {
        let argument = self.argument(name)?;
        self.int_of(name, argument)
    }

    fn int_of(&mut self, name: &str, argument: &Argument) -> Result<Int> {
        let int = self.lowered(argument)?.number().and_then(Number::int);
        int.ok_or_else(|| LoweringError::new(format!("`{name}` is not an integer")))
    }

    /// An optional integer.
    pub(crate) fn optional_int(&mut self, name: &str) -> Result<Option<Int>> {
        if self.has(name) { self.int(name).map(Some) } else { Ok(None) }
    }

    /// A constant integer.
    pub(crate) fn known_int(&mut self, name: &str) -> Result<i64> {
        self.int(name)?.known().ok_or_else(|| computed(name))
    }

    /// Integers, possibly computed at run time.
    pub(crate) fn int_list(&mut self, name: &str) -> Result<Vec<Int>> {
        match self.argument(name)? {
            Argument::List(items) => items.iter().map(|item| self.int_of(name, item)).collect(),
            Argument::None => Ok(Vec::new()),
            single => Ok(vec![self.int_of(name, single)?]),
        }
    }

    /// Constant integers; empty for `None`.
    pub(crate) fn known_ints(&mut self, name: &str) -> Result<Vec<i64>> {
        let ints = self.int_list(name)?;
        let known: Option<Vec<_>> = ints.into_iter().map(Int::known).collect();
        known.ok_or_else(|| computed(name))
    }

    /// Constant integers for `count` dimensions. A single integer applies to all.
    pub(crate) fn per_dimension(&mut self, name: &str, count: usize) -> Result<Vec<i32>> {
        let mut ints = self.known_ints(name)?;
        if let ([only], true) = (ints.as_slice(), count > 1) {
            ints = vec![*only; count];
        }
        if ints.len() != count {
            refuse!(
                "`{name}` has {} integers; expected {count}, one for each dimension",
                ints.len()
            );
        }
        ints.into_iter().map(int32).collect()
    }

    /// A constant float; integers are converted.
    pub(crate) fn float(&mut self, name: &str) -> Result<f64> {
        let number = self.number(name)?.known();
        number.ok_or_else(|| {
            LoweringError::new(format!("`{name}` is not known before the program runs"))
        })
    }

    /// An optional constant float.
    pub(crate) fn optional_float(&mut self, name: &str) -> Result<Option<f64>> {
        if self.has(name) { self.float(name).map(Some) } else { Ok(None) }
    }

    /// Constant floats; empty for `None`.
    pub(crate) fn floats(&mut self, name: &str) -> Result<Vec<f64>> {
        let Argument::List(items) = self.argument(name)? else { return Ok(Vec::new()) };
        let float = |item: &Argument| match item {
            Argument::Float(value) => Ok(*value),
            Argument::Int(value) => Ok(*value as f64),
            _ => refuse!("`{name}` holds something that is not a float"),
        };
        items.iter().map(float).collect()
    }

    /// A boolean argument.
    pub(crate) fn flag(&self, name: &str) -> Result<bool> {
        match self.argument(name)? {
            Argument::Bool(value) => Ok(*value),
            Argument::Int(value) => Ok(*value != 0),
            Argument::None => Ok(false),
            _ => refuse!("`{name}` is not known before the program runs"),
        }
    }

    /// A string; `None` if the argument is None.
    pub(crate) fn text(&self, name: &str) -> Result<Option<&'p str>> {
        match self.argument(name)? {
            Argument::Text(text) => Ok(Some(text)),
            Argument::None => Ok(None),
            _ => refuse!("`{name}` is not a string"),
        }
    }

    /// An element type; `None` if the argument is None.
    pub(crate) fn scalar_type(&self, name: &str) -> Result<Option<ScalarType>> {
        match self.argument(name)? {
            Argument::ScalarType(ty) => Ok(Some(*ty)),
            Argument::None => Ok(None),
            _ => refuse!("`{name}` is not an element type"),
        }
    }

    /// A graph argument, by position.
    pub(crate) fn subgraph(&self, position: usize) -> Result<&'p Subgraph> {
        match self.node.arguments.get(position) {
            Some(Argument::Graph(graph)) => Ok(graph),
            _ => refuse!("argument {position} is not a graph"),
        }
    }

    /// Type that torch recorded for a result. The items of a list result are counted separately.
    pub(crate) fn result_meta(&self, index: usize) -> Option<&'p Meta> {
        let id = self.node.results().nth(index).flatten()?;
        Some(&self.frame.graph.value(id).meta)
    }

    /// Type that torch recorded for a tensor result.
    pub(crate) fn result_tensor(&self, index: usize) -> Result<&'p TensorMeta> {
        match self.result_meta(index) {
            Some(Meta::Tensor(meta)) => Ok(meta),
            _ => refuse!("result {index} is not a tensor"),
        }
    }

    /// torch's element type of the first result.
    pub(crate) fn result_dtype(&self) -> Result<ScalarType> {
        Ok(self.result_tensor(0)?.dtype)
    }

    /// Static sizes of a result; `None` if dynamic.
    pub(crate) fn result_sizes(&self, index: usize) -> Result<Vec<Option<i64>>> {
        Ok(self.result_tensor(index)?.sizes.iter().map(Size::fixed).collect())
    }

    /// Whether a result is used. The items of a list result are counted separately.
    pub(crate) fn is_used(&self, index: usize) -> bool {
        let Some(wanted) = self.node.results().nth(index).flatten() else { return false };
        let graph = self.graph();
        let mut used = false;
        let mut look = |id| used |= id == wanted;
        graph.outputs.iter().for_each(|output| output.for_each_value(&mut look));
        graph.nodes.iter().for_each(|node| node.for_each_use(&mut look));
        used
    }

    /// Sizes of the first result; dynamic ones come from an argument.
    pub(crate) fn sizes_for_result(&mut self, name: &str) -> Result<Vec<Int>> {
        let sizes = self.int_list(name)?;
        self.as_result(&sizes)
    }

    /// Replaces `sizes` of the first result by the static sizes that torch recorded.
    pub(crate) fn as_result(&self, sizes: &[Int]) -> Result<Vec<Int>> {
        let known = self.result_sizes(0)?;
        if known.len() != sizes.len() {
            return Ok(sizes.to_vec());
        }
        let pairs = sizes.iter().zip(known);
        Ok(pairs.map(|(&size, known)| known.map_or(size, Int::Known)).collect())
    }

    /// Reshapes to the first result; dynamic sizes come from `sizes`.
    pub(crate) fn resized(&mut self, x: ValueId, sizes: &[Int]) -> ValueResult {
        let sizes = self.as_result(sizes)?;
        self.with_sizes(x, &sizes)
    }

    /// Returns one real tensor with the element type that torch recorded.
    pub(crate) fn give(&self, value: ValueId) -> Results {
        Ok(vec![LoweredValue::tensor(value, self.result_dtype()?)])
    }

    /// Returns several real tensors with the element types that torch recorded.
    pub(crate) fn give_all(&self, values: &[ValueId]) -> Results {
        let lowered = values.iter().enumerate().map(|(index, &value)| {
            // The type of an unused result is unknown.
            let dtype = self.result_tensor(index).map_or(ScalarType::Float32, |meta| meta.dtype);
            LoweredValue::tensor(value, dtype)
        });
        Ok(lowered.collect())
    }

    /// Index of an axis argument.
    pub(crate) fn axis(&mut self, name: &str, rank: usize) -> Result<usize> {
        let axis = self.known_int(name)?;
        position(axis, rank)
    }

    /// Indices of axis arguments.
    pub(crate) fn axes(&mut self, name: &str, rank: usize) -> Result<Vec<usize>> {
        self.known_ints(name)?.into_iter().map(|axis| position(axis, rank)).collect()
    }
}

fn computed(name: &str) -> LoweringError {
    let sizes = "sizes that are not known before the program runs";
    LoweringError::new(format!("`{name}` is computed from {sizes}"))
}
