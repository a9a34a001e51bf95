//! One call about to be lowered, as the lowerings of its operator see it.

use std::ops::{Deref, DerefMut};

use coremill_mil::ir::{Constant, Dim, ValueId};
use coremill_mil::ops::OpKind;
use coremill_pt2::{Argument, Graph, Meta, Node, ScalarType, Size, Subgraph, TensorMeta};
use coremill_tensor::DType;

use super::builder::{Arg, Builder, int32};
use super::dtype::core_dtype;
use super::value::{Int, Lowered, Number, Real, Tensor, Truth};
use super::{Frame, Lowering};
use crate::error::{Refusal, refuse};

/// What a lowering gives: something for each result of the call, lists of results flattened.
pub(crate) type Results = Result<Vec<Lowered>, Refusal>;

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

    /// The argument of that name.
    pub(crate) fn argument(&self, name: &str) -> Result<&'p Argument, Refusal> {
        match self.node.argument(name) {
            Some(argument) => Ok(argument),
            None => refuse!("argument `{name}` is missing"),
        }
    }

    /// Whether the argument of that name is there and is not None.
    pub(crate) fn has(&self, name: &str) -> bool {
        !matches!(self.node.argument(name), None | Some(Argument::None))
    }

    /// What an argument became; only for values.
    pub(crate) fn lowered(&mut self, argument: &Argument) -> Result<Lowered, Refusal> {
        match argument {
            Argument::Value(id) => self.lowering.value(self.frame, *id),
            Argument::None => Ok(Lowered::Nothing),
            Argument::Int(value) => Ok(Lowered::Int(Int::Known(*value))),
            Argument::Float(value) => Ok(Lowered::Float(Real::Known(*value))),
            Argument::Bool(value) => Ok(Lowered::Bool(Truth::Known(*value))),
            _ => refuse!("an argument is not a value"),
        }
    }

    /// A tensor.
    pub(crate) fn tensor(&mut self, name: &str) -> Result<Tensor, Refusal> {
        let argument = self.argument(name)?;
        match self.lowered(argument)? {
            Lowered::Tensor(tensor) => Ok(tensor),
            _ => refuse!("`{name}` is not a tensor"),
        }
    }

    /// A tensor, if one is given.
    pub(crate) fn optional_tensor(&mut self, name: &str) -> Result<Option<Tensor>, Refusal> {
        if self.has(name) { self.tensor(name).map(Some) } else { Ok(None) }
    }

    /// The tensors of a list; none for those that are None.
    pub(crate) fn optional_tensors(&mut self, name: &str) -> Result<Vec<Option<Tensor>>, Refusal> {
        let Argument::List(items) = self.argument(name)? else {
            refuse!("`{name}` is not a list of tensors");
        };
        let mut tensors = Vec::with_capacity(items.len());
        for item in items {
            tensors.push(match self.lowered(item)? {
                Lowered::Tensor(tensor) => Some(tensor),
                Lowered::Nothing => None,
                _ => refuse!("`{name}` holds something that is not a tensor"),
            });
        }
        Ok(tensors)
    }

    /// The tensors of a list.
    pub(crate) fn tensors(&mut self, name: &str) -> Result<Vec<Tensor>, Refusal> {
        let tensors = self.optional_tensors(name)?.into_iter().collect::<Option<Vec<_>>>();
        tensors.ok_or_else(|| Refusal::new(format!("`{name}` lacks one of its tensors")))
    }

    /// A number of any type.
    pub(crate) fn number(&mut self, name: &str) -> Result<Number, Refusal> {
        let argument = self.argument(name)?;
        match self.lowered(argument)? {
            Lowered::Int(int) => Ok(Number::Int(int)),
            Lowered::Float(real) => Ok(Number::Float(real)),
            Lowered::Bool(truth) => Ok(Number::Bool(truth)),
            _ => refuse!("`{name}` is not a number"),
        }
    }

    /// An integer, which may be computed when the program runs.
    pub(crate) fn int(&mut self, name: &str) -> Result<Int, Refusal> {
        let argument = self.argument(name)?;
        self.int_of(name, argument)
    }

    fn int_of(&mut self, name: &str, argument: &Argument) -> Result<Int, Refusal> {
        match self.lowered(argument)? {
            Lowered::Int(int) => Ok(int),
            Lowered::Bool(Truth::Known(value)) => Ok(Int::Known(i64::from(value))),
            _ => refuse!("`{name}` is not an integer"),
        }
    }

    /// An integer, if one is given.
    pub(crate) fn optional_int(&mut self, name: &str) -> Result<Option<Int>, Refusal> {
        if self.has(name) { self.int(name).map(Some) } else { Ok(None) }
    }

    /// An integer that is known now.
    pub(crate) fn known_int(&mut self, name: &str) -> Result<i64, Refusal> {
        match self.int(name)? {
            Int::Known(value) => Ok(value),
            Int::Computed(_) => {
                refuse!(
                    "`{name}` is computed from sizes that are not known before the program runs"
                )
            }
        }
    }

    /// Integers, some of which may be computed when the program runs.
    pub(crate) fn int_list(&mut self, name: &str) -> Result<Vec<Int>, Refusal> {
        match self.argument(name)? {
            Argument::List(items) => items.iter().map(|item| self.int_of(name, item)).collect(),
            Argument::None => Ok(Vec::new()),
            single => Ok(vec![self.int_of(name, single)?]),
        }
    }

    /// Integers that are known now; empty if the argument is None.
    pub(crate) fn known_ints(&mut self, name: &str) -> Result<Vec<i64>, Refusal> {
        let ints = self.int_list(name)?;
        let known: Option<Vec<_>> = ints.into_iter().map(Int::known).collect();
        known.ok_or_else(|| {
            Refusal::new(format!(
                "`{name}` is computed from sizes that are not known before the program runs"
            ))
        })
    }

    /// Integers that are known now, one for each of `count` dimensions; one alone stands for all.
    pub(crate) fn per_dimension(&mut self, name: &str, count: usize) -> Result<Vec<i32>, Refusal> {
        let mut ints = self.known_ints(name)?;
        if let ([only], true) = (ints.as_slice(), count > 1) {
            ints = vec![*only; count];
        }
        if ints.len() != count {
            refuse!("`{name}` has {} integers for {count} dimensions", ints.len());
        }
        ints.into_iter().map(int32).collect()
    }

    /// A float that is known now; integers are taken for floats.
    pub(crate) fn float(&mut self, name: &str) -> Result<f64, Refusal> {
        let number = self.number(name)?.known();
        number.ok_or_else(|| Refusal::new(format!("`{name}` is not known before the program runs")))
    }

    /// A float that is known now, if one is given.
    pub(crate) fn optional_float(&mut self, name: &str) -> Result<Option<f64>, Refusal> {
        if self.has(name) { self.float(name).map(Some) } else { Ok(None) }
    }

    /// Floats that are known now; empty if the argument is None.
    pub(crate) fn floats(&mut self, name: &str) -> Result<Vec<f64>, Refusal> {
        let Argument::List(items) = self.argument(name)? else { return Ok(Vec::new()) };
        let float = |item: &Argument| match item {
            Argument::Float(value) => Ok(*value),
            Argument::Int(value) => Ok(*value as f64),
            _ => refuse!("`{name}` holds something that is not a float"),
        };
        items.iter().map(float).collect()
    }

    /// True or false.
    pub(crate) fn flag(&self, name: &str) -> Result<bool, Refusal> {
        match self.argument(name)? {
            Argument::Bool(value) => Ok(*value),
            Argument::Int(value) => Ok(*value != 0),
            Argument::None => Ok(false),
            _ => refuse!("`{name}` is not known before the program runs"),
        }
    }

    /// A text; none if the argument is None.
    pub(crate) fn text(&self, name: &str) -> Result<Option<&'p str>, Refusal> {
        match self.argument(name)? {
            Argument::Text(text) => Ok(Some(text)),
            Argument::None => Ok(None),
            _ => refuse!("`{name}` is not a text"),
        }
    }

    /// An element type; none if the argument is None.
    pub(crate) fn scalar_type(&self, name: &str) -> Result<Option<ScalarType>, Refusal> {
        match self.argument(name)? {
            Argument::ScalarType(ty) => Ok(Some(*ty)),
            Argument::None => Ok(None),
            _ => refuse!("`{name}` is not an element type"),
        }
    }

    /// A graph that is an argument, by position.
    pub(crate) fn subgraph(&self, position: usize) -> Result<&'p Subgraph, Refusal> {
        match self.node.arguments.get(position) {
            Some(Argument::Graph(graph)) => Ok(graph),
            _ => refuse!("argument {position} is not a graph"),
        }
    }

    /// What torch knows of a result; results of lists are counted through.
    pub(crate) fn result_meta(&self, index: usize) -> Option<&'p Meta> {
        let id = self.node.results().nth(index).flatten()?;
        Some(&self.frame.graph.value(id).meta)
    }

    /// What torch knows of a result that is a tensor.
    pub(crate) fn result_tensor(&self, index: usize) -> Result<&'p TensorMeta, Refusal> {
        match self.result_meta(index) {
            Some(Meta::Tensor(meta)) => Ok(meta),
            _ => refuse!("result {index} is not a tensor"),
        }
    }

    /// torch's element type of the first result.
    pub(crate) fn result_dtype(&self) -> Result<ScalarType, Refusal> {
        Ok(self.result_tensor(0)?.dtype)
    }

    /// The sizes of a result as far as torch knew them.
    pub(crate) fn result_sizes(&self, index: usize) -> Result<Vec<Option<i64>>, Refusal> {
        Ok(self.result_tensor(index)?.sizes.iter().map(Size::fixed).collect())
    }

    /// One real tensor as the only result, of the element type that torch says.
    pub(crate) fn give(&self, value: ValueId) -> Results {
        Ok(vec![Lowered::tensor(value, self.result_dtype()?)])
    }

    /// Several real tensors, of the element types that torch says.
    pub(crate) fn give_all(&self, values: &[ValueId]) -> Results {
        let lowered = values.iter().enumerate().map(|(index, &value)| {
            // A result that nothing uses has no type.
            let dtype = self.result_tensor(index).map_or(ScalarType::Float32, |meta| meta.dtype);
            Lowered::tensor(value, dtype)
        });
        Ok(lowered.collect())
    }

    /// An axis counted from the front.
    pub(crate) fn axis(&mut self, name: &str, rank: usize) -> Result<usize, Refusal> {
        let axis = self.known_int(name)?;
        normalized(axis, rank)
    }

    /// Axes counted from the front; all of them if none are given.
    pub(crate) fn axes(&mut self, name: &str, rank: usize) -> Result<Vec<usize>, Refusal> {
        let axes = self.known_ints(name)?;
        if axes.is_empty() {
            return Ok((0..rank).collect());
        }
        axes.into_iter().map(|axis| normalized(axis, rank)).collect()
    }
}

/// An axis counted from the front; a scalar counts as having one.
pub(crate) fn normalized(axis: i64, rank: usize) -> Result<usize, Refusal> {
    let extent = rank.max(1) as i64;
    let at = if axis < 0 { axis + extent } else { axis };
    match usize::try_from(at) {
        Ok(at) if at < extent as usize => Ok(at),
        _ => refuse!("axis {axis} is out of range for rank {rank}"),
    }
}

impl Builder {
    /// A tensor in another of Core ML's element types.
    pub(crate) fn cast(&mut self, value: ValueId, dtype: DType) -> Result<ValueId, Refusal> {
        if self.dtype(value) == dtype {
            return Ok(value);
        }
        self.emit(OpKind::Cast, [("x", value.into()), ("dtype", dtype.name().into())])
    }

    /// A tensor in the element type that Core ML computes torch's in.
    pub(crate) fn cast_to(
        &mut self,
        value: ValueId,
        dtype: ScalarType,
    ) -> Result<ValueId, Refusal> {
        self.cast(value, core_dtype(dtype)?)
    }

    /// A tensor with other dimensions.
    pub(crate) fn reshape(&mut self, value: ValueId, sizes: &[Int]) -> Result<ValueId, Refusal> {
        let unknown = sizes.iter().filter(|size| size.known().is_none()).count();
        let open = sizes.iter().any(|size| matches!(size, Int::Known(extent) if *extent <= 0));
        let shape = if unknown == 1 && !open {
            // Of one dimension inference knows that it takes the rest.
            let rest = sizes.iter().map(|size| Int::Known(size.known().unwrap_or(-1)));
            self.ints(&rest.collect::<Vec<_>>())?
        } else {
            self.ints(sizes)?
        };
        if sizes.is_empty() {
            // An empty shape has no element type of its own.
            let axes: Vec<_> = (0..self.rank(value) as i32).collect();
            return self.squeeze(value, &axes);
        }
        self.emit(OpKind::Reshape, [("x", value.into()), ("shape", shape)])
    }

    /// A tensor without these axes, each of which has one element.
    pub(crate) fn squeeze(&mut self, value: ValueId, axes: &[i32]) -> Result<ValueId, Refusal> {
        if axes.is_empty() {
            return Ok(value);
        }
        self.emit(OpKind::Squeeze, [("x", value.into()), ("axes", axes.into())])
    }

    /// A tensor with axes of one element more, at these places of the result.
    pub(crate) fn expand_dims(&mut self, value: ValueId, axes: &[i32]) -> Result<ValueId, Refusal> {
        if axes.is_empty() {
            return Ok(value);
        }
        self.emit(OpKind::ExpandDims, [("x", value.into()), ("axes", axes.into())])
    }

    /// A tensor with its axes in another order.
    pub(crate) fn transpose(
        &mut self,
        value: ValueId,
        order: &[usize],
    ) -> Result<ValueId, Refusal> {
        if order.iter().enumerate().all(|(at, &from)| at == from) {
            return Ok(value);
        }
        let order: Vec<_> = order.iter().map(|&axis| axis as i32).collect();
        self.emit(OpKind::Transpose, [("x", value.into()), ("perm", order.as_slice().into())])
    }

    /// A constant of one element in the type of `like`.
    pub(crate) fn scalar_like(&self, like: ValueId, number: f64) -> Result<Arg, Refusal> {
        Ok(match self.dtype(like) {
            DType::Int32 => Constant::int32(int32(number as i64)?).into(),
            DType::Bool => Constant::bool(number != 0.0).into(),
            _ => Constant::fp32(number as f32).into(),
        })
    }

    /// `x op y`, both of one element type.
    pub(crate) fn binary(
        &mut self,
        kind: OpKind,
        x: impl Into<Arg>,
        y: impl Into<Arg>,
    ) -> Result<ValueId, Refusal> {
        self.emit(kind, [("x", x.into()), ("y", y.into())])
    }

    /// `op(x)`.
    pub(crate) fn unary(&mut self, kind: OpKind, x: ValueId) -> Result<ValueId, Refusal> {
        self.emit(kind, [("x", x.into())])
    }

    /// The extents that are fixed, by axis.
    pub(crate) fn extents(&self, value: ValueId) -> Vec<Option<u64>> {
        self.shape(value).iter().map(Dim::known).collect()
    }
}
