//! A call being rewritten: its arguments, and the calls that replace it.

use std::fmt::Debug;
use std::slice::SliceIndex;

use std::sync::Arc;

use coremill_pt2::{
    Argument, Device, Hint, Kind, Layout, Meta, Node, Origin, Output, ScalarType, Schema, Size,
    Symbolic, Target, TensorMeta, ValueId,
};

use super::{Frame, MAX_CALLS, Rewrite, dtype, has_rule, size};
use crate::bounds::CheckedIndex;
use crate::error::{Result, refuse};

/// A tensor: an argument of the call, or the result of a new call.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tensor {
    pub(crate) id: ValueId,
    pub(crate) dtype: ScalarType,
    pub(crate) sizes: Vec<Size>,
}

impl Tensor {
    pub(crate) fn rank(&self) -> usize {
        self.sizes.len()
    }

    /// Size of a dimension, or sizes of a range of dimensions. Checked, as a malformed archive may declare a lower
    /// rank than the operator requires.
    pub(crate) fn extent<I>(&self, at: I) -> Result<&I::Output>
    where
        I: SliceIndex<[Size]> + Clone + Debug,
    {
        size::at(&self.sizes, at)
    }

    /// Static size of a dimension. `what` names it in the error.
    pub(crate) fn known(&self, at: usize, what: &str) -> Result<i64> {
        size::known(self.extent(at)?, what)
    }

    /// All sizes, which must be static.
    pub(crate) fn all_known(&self, what: &str) -> Result<Vec<i64>> {
        self.sizes.iter().map(|size| size::known(size, what)).collect()
    }

    /// The sizes with one dimension replaced.
    pub(crate) fn with_size(&self, at: usize, size: Size) -> Result<Vec<Size>> {
        let mut sizes = self.sizes.clone();
        *sizes.at_mut(at)? = size;
        Ok(sizes)
    }

    pub(crate) fn argument(&self) -> Argument {
        Argument::Value(self.id)
    }

    /// Index of a dimension; negative numbers count from the end. A scalar counts as having one dimension.
    pub(crate) fn dimension(&self, dimension: i64) -> Result<usize> {
        position(dimension, self.rank())
    }
}

/// A new tensor, or an error.
pub(crate) type TensorResult = Result<Tensor>;

/// Arguments by parameter name.
pub(crate) type Arguments<'g> = &'g [(&'g str, Argument)];

/// Types and shapes of several tensors.
pub(crate) type Types = Vec<(ScalarType, Vec<Size>)>;

/// Conversion to an argument of an operator.
pub(crate) trait IntoArgument {
    fn given(&self) -> Argument;
}

/// Conversions of single values.
macro_rules! arguments {
    ($($kind:ty: $value:ident => $argument:expr),* $(,)?) => {$(
        impl IntoArgument for $kind {
            fn given(&self) -> Argument {
                let $value = self;
                $argument
            }
        }
    )*};
}

arguments! {
    Argument: argument => argument.clone(),
    Tensor: tensor => tensor.argument(),
    i64: number => Argument::Int(*number),
    usize: number => Argument::Int(*number as i64),
    f64: number => Argument::Float(*number),
    bool: truth => Argument::Bool(*truth),
    ScalarType: dtype => Argument::ScalarType(*dtype),
}

impl<T: IntoArgument + ?Sized> IntoArgument for &T {
    fn given(&self) -> Argument {
        (**self).given()
    }
}

impl<T: IntoArgument> IntoArgument for Option<T> {
    fn given(&self) -> Argument {
        self.as_ref().map_or(Argument::None, T::given)
    }
}

impl<T: IntoArgument> IntoArgument for [T] {
    fn given(&self) -> Argument {
        Argument::List(self.iter().map(T::given).collect())
    }
}

impl<T: IntoArgument> IntoArgument for Vec<T> {
    fn given(&self) -> Argument {
        self.as_slice().given()
    }
}

impl<T: IntoArgument, const N: usize> IntoArgument for [T; N] {
    fn given(&self) -> Argument {
        self.as_slice().given()
    }
}

/// Arguments by parameter name: `given!(self = x, dim = at)`.
macro_rules! given {
    ($($name:ident = $value:expr),* $(,)?) => {
        &[$((stringify!($name), crate::decompose::call::IntoArgument::given(&$value))),*]
    };
}
pub(crate) use given;

/// Index of a dimension in a tensor of this rank.
pub(crate) fn position(dimension: i64, rank: usize) -> Result<usize> {
    let count = rank.max(1) as i64;
    let at = if dimension < 0 { dimension + count } else { dimension };
    match usize::try_from(at) {
        Ok(position) if at < count => Ok(position),
        _ => refuse!("dimension {dimension} is out of range for a tensor of rank {rank}"),
    }
}

/// Number of spatial dimensions in an operator's name: 2 for `max_pool2d`.
pub(crate) fn spatial(name: &str) -> usize {
    name.chars().find_map(|letter| letter.to_digit(10)).map_or(2, |count| count as usize)
}

/// Replacement of one result of a call. A list result counts as several results.
#[derive(Clone, Debug)]
pub(crate) enum RewriteResult {
    Tensor(Tensor),
    /// Real and imaginary part of a complex result.
    Pair(Box<[Tensor; 2]>),
    /// A number or another value that is not a tensor.
    Number(Argument),
    /// An unused result.
    Nothing,
}

/// The replacements of all results.
pub(crate) type Results = Result<Vec<RewriteResult>>;

/// A single tensor result.
pub(crate) fn one(tensor: Tensor) -> Results {
    Ok(vec![RewriteResult::Tensor(tensor)])
}

/// A tensor for the first of several results; the other results must be unused.
pub(crate) fn first(call: &Call<'_>, tensor: Tensor) -> Results {
    let mut results = vec![RewriteResult::Tensor(tensor)];
    results.resize_with(call.node.results().count().max(1), || RewriteResult::Nothing);
    Ok(results)
}

/// Parses an operator name such as `aten.add.Tensor`.
pub(crate) fn target(operator: &str) -> Target {
    let mut parts = operator.splitn(3, '.');
    match (parts.next(), parts.next(), parts.next()) {
        (Some(namespace), Some(name), Some(overload)) => Target::Operator {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            overload: overload.to_owned(),
        },
        _ => Target::Function(operator.to_owned()),
    }
}

/// A call being rewritten.
pub(crate) struct Call<'a> {
    pub(crate) rewrite: &'a mut Rewrite,
    pub(crate) frame: &'a mut Frame,
    pub(crate) node: &'a Node,
    pub(crate) made: Vec<Node>,
    /// Tensors whose dimensions can supply symbolic sizes: the call's arguments and the new tensors.
    pub(crate) at_hand: Vec<Tensor>,
}

impl<'a> Call<'a> {
    pub(crate) fn new(rewrite: &'a mut Rewrite, frame: &'a mut Frame, node: &'a Node) -> Call<'a> {
        let mut at_hand = Vec::new();
        node.for_each_use(&mut |id| {
            if let Some([part, _]) = frame.pairs.get(&id) {
                at_hand.push(part.clone());
            } else if let Meta::Tensor(meta) = &frame.value(id).meta {
                at_hand.push(Tensor { id, dtype: meta.dtype, sizes: meta.sizes.clone() });
            }
        });
        Call { rewrite, frame, node, made: Vec::new(), at_hand }
    }

    /// The argument with this name.
    pub(crate) fn argument(&self, name: &str) -> Result<&'a Argument> {
        match self.node.argument(name) {
            Some(argument) => Ok(argument),
            None => refuse!("argument `{name}` is missing"),
        }
    }

    /// Whether an argument is present and not `None`.
    pub(crate) fn has(&self, name: &str) -> bool {
        !matches!(self.node.argument(name), None | Some(Argument::None))
    }

    /// A tensor argument; numbers become scalar tensors.
    pub(crate) fn tensor_of(&mut self, name: &str, argument: &Argument) -> TensorResult {
        if let Argument::Value(id) = argument
            && let Meta::Tensor(meta) = &self.frame.value(*id).meta
        {
            return Ok(Tensor { id: *id, dtype: meta.dtype, sizes: meta.sizes.clone() });
        }
        match self.number_dtype(argument) {
            Some(dtype) => self.full(Vec::new(), argument.clone(), dtype),
            None => refuse!("`{name}` is not a tensor"),
        }
    }

    pub(crate) fn tensor(&mut self, name: &str) -> TensorResult {
        let argument = self.argument(name)?;
        self.tensor_of(name, argument)
    }

    /// A tensor argument converted to an element type; numbers become scalar tensors of that type.
    pub(crate) fn tensor_as(&mut self, name: &str, dtype: ScalarType) -> TensorResult {
        let argument = self.argument(name)?;
        if self.number_dtype(argument).is_some() {
            return self.scalar(argument.clone(), dtype);
        }
        let tensor = self.tensor(name)?;
        self.cast(&tensor, dtype)
    }

    /// A tensor argument converted to the type of the first result.
    pub(crate) fn typed(&mut self, name: &str) -> TensorResult {
        let dtype = self.result(0)?.dtype;
        self.tensor_as(name, dtype)
    }

    pub(crate) fn optional_tensor(&mut self, name: &str) -> Result<Option<Tensor>> {
        if self.has(name) { self.tensor(name).map(Some) } else { Ok(None) }
    }

    /// A list of tensors.
    pub(crate) fn tensors(&mut self, name: &str) -> Result<Vec<Tensor>> {
        let items = list(name, self.argument(name)?)?;
        items.iter().map(|item| self.tensor_of(name, item)).collect()
    }

    /// A list of optional tensors.
    pub(crate) fn optional_tensors(&mut self, name: &str) -> Result<Vec<Option<Tensor>>> {
        let items = list(name, self.argument(name)?)?;
        let tensor = |item: &Argument| match item {
            Argument::None => Ok(None),
            item => self.tensor_of(name, item).map(Some),
        };
        items.iter().map(tensor).collect()
    }

    /// Element type of a number as a tensor; `None` if the argument is not a number.
    pub(crate) fn number_dtype(&self, argument: &Argument) -> Option<ScalarType> {
        match argument {
            Argument::Int(_) => Some(ScalarType::Int64),
            Argument::Float(_) => Some(ScalarType::Float32),
            Argument::Bool(_) => Some(ScalarType::Bool),
            Argument::Complex(..) => Some(ScalarType::Complex64),
            Argument::Value(id) => match &self.frame.value(*id).meta {
                Meta::Int(_) => Some(ScalarType::Int64),
                Meta::Float(_) => Some(ScalarType::Float32),
                Meta::Bool(_) => Some(ScalarType::Bool),
                Meta::Tensor(_) | Meta::CustomObject(_) | Meta::Token => None,
            },
            _ => None,
        }
    }

    /// A number, constant or not.
    pub(crate) fn number(&self, name: &str) -> Result<Argument> {
        let argument = self.argument(name)?;
        match self.number_dtype(argument) {
            Some(_) => Ok(argument.clone()),
            None => refuse!("`{name}` is not a number"),
        }
    }

    /// A constant integer.
    pub(crate) fn int(&self, name: &str) -> Result<i64> {
        self.int_of(name, self.argument(name)?)
    }

    pub(crate) fn int_of(&self, name: &str, argument: &Argument) -> Result<i64> {
        match argument {
            Argument::Bool(value) => Ok(i64::from(*value)),
            argument => match self.frame.size_of(argument) {
                Some(Size::Fixed(value)) => Ok(value),
                Some(Size::Symbolic(_)) => {
                    refuse!("`{name}` must be known at compile time")
                }
                None => refuse!("`{name}` is not an integer"),
            },
        }
    }

    pub(crate) fn int_or(&self, name: &str, default: i64) -> Result<i64> {
        if self.has(name) { self.int(name) } else { Ok(default) }
    }

    /// Index of a dimension argument.
    pub(crate) fn dimension(&self, name: &str, rank: usize) -> Result<usize> {
        position(self.int(name)?, rank)
    }

    /// Indices of several dimension arguments.
    pub(crate) fn positions(&self, name: &str, rank: usize) -> Result<Vec<usize>> {
        self.ints(name)?.into_iter().map(|at| position(at, rank)).collect()
    }

    /// Constant integers.
    pub(crate) fn ints(&self, name: &str) -> Result<Vec<i64>> {
        match self.argument(name)? {
            Argument::List(items) => items.iter().map(|item| self.int_of(name, item)).collect(),
            Argument::None => Ok(Vec::new()),
            single => Ok(vec![self.int_of(name, single)?]),
        }
    }

    /// An integer, possibly symbolic.
    pub(crate) fn size(&self, name: &str) -> Result<Size> {
        match self.frame.size_of(self.argument(name)?) {
            Some(size) => Ok(size),
            None => refuse!("`{name}` is not an integer"),
        }
    }

    /// Integers, possibly symbolic.
    pub(crate) fn sizes(&self, name: &str) -> Result<Vec<Size>> {
        let size = |item: &Argument| match self.frame.size_of(item) {
            Some(size) => Ok(size),
            None => refuse!("`{name}` holds something that is not an integer"),
        };
        match self.argument(name)? {
            Argument::List(items) => items.iter().map(size).collect(),
            single => Ok(vec![size(single)?]),
        }
    }

    /// A constant number.
    pub(crate) fn float(&self, name: &str) -> Result<f64> {
        match self.argument(name)? {
            Argument::Float(value) => Ok(*value),
            Argument::Int(value) => Ok(*value as f64),
            Argument::Bool(value) => Ok(f64::from(u8::from(*value))),
            Argument::Value(id) => match &self.frame.value(*id).meta {
                Meta::Float(Some(known)) if known.expression.symbols().is_empty() => {
                    match known.hint {
                        Some(Hint::Float(value)) => Ok(value),
                        _ => refuse!("`{name}` is not a known number"),
                    }
                }
                Meta::Int(Size::Fixed(value)) => Ok(*value as f64),
                _ => refuse!("`{name}` must be known at compile time"),
            },
            _ => refuse!("`{name}` is not a number"),
        }
    }

    pub(crate) fn float_or(&self, name: &str, default: f64) -> Result<f64> {
        if self.has(name) { self.float(name) } else { Ok(default) }
    }

    pub(crate) fn bool(&self, name: &str) -> Result<bool> {
        match self.node.argument(name) {
            Some(Argument::Bool(value)) => Ok(*value),
            Some(Argument::Int(value)) => Ok(*value != 0),
            None | Some(Argument::None) => Ok(false),
            Some(_) => refuse!("`{name}` is neither true nor false"),
        }
    }

    pub(crate) fn text(&self, name: &str) -> Result<&'a str> {
        match self.argument(name)? {
            Argument::Text(text) => Ok(text),
            _ => refuse!("`{name}` is not a string"),
        }
    }

    /// Indices of the dimensions; all dimensions if the argument is absent or empty.
    pub(crate) fn dimensions(&self, name: &str, rank: usize) -> Result<Vec<usize>> {
        let found = if self.has(name) { self.positions(name, rank)? } else { Vec::new() };
        if found.is_empty() { Ok((0..rank).collect()) } else { Ok(found) }
    }

    /// Type that torch recorded for a result. The items of a list result are counted separately.
    pub(crate) fn result(&self, index: usize) -> Result<&TensorMeta> {
        match self.node.results().nth(index) {
            Some(Some(id)) => match &self.frame.value(id).meta {
                Meta::Tensor(meta) => Ok(meta),
                _ => refuse!("result {index} is not a tensor"),
            },
            _ => refuse!("result {index} is unused and therefore has no type"),
        }
    }

    /// Element type and shape that torch recorded for the first result.
    pub(crate) fn result_type(&self) -> Result<(ScalarType, Vec<Size>)> {
        self.result(0).map(|noted| (noted.dtype, noted.sizes.clone()))
    }

    /// Shape that torch recorded for the first result.
    pub(crate) fn result_sizes(&self) -> Result<Vec<Size>> {
        self.result(0).map(|noted| noted.sizes.clone())
    }

    /// Name of the operator, without namespace and overload.
    pub(crate) fn name(&self) -> &'a str {
        self.node.target.name()
    }

    /// Whether a result is used.
    pub(crate) fn wants(&self, index: usize) -> bool {
        self.result(index).is_ok()
    }

    /// Calls another operator with the same arguments.
    pub(crate) fn renamed(&mut self, operator: &str) -> Results {
        let done = self.callable(operator)?;
        let schema = self.schema(operator)?;
        let mut arguments = Vec::with_capacity(schema.arguments.len());
        for parameter in &schema.arguments {
            let given = self.node.argument(&parameter.name).cloned();
            let Some(value) = given.or_else(|| parameter.default_argument()) else {
                refuse!("`{operator}` needs `{}`, which the call does not have", parameter.name);
            };
            arguments.push(self.fitting(&parameter.kind, &parameter.name, value)?);
        }
        let mut node = self.node.clone();
        node.target = done;
        node.schema = Some(schema);
        node.arguments = arguments;
        node.keywords = Vec::new();
        let results = self.as_given(&node)?;
        self.made.push(node);
        Ok(results)
    }

    /// Converts numbers to tensors if the kernel requires tensors.
    fn fitting(&mut self, kind: &Kind, name: &str, value: Argument) -> Result<Argument> {
        let kind = match kind {
            Kind::Optional(inner) => inner.as_ref(),
            kind => kind,
        };
        match (kind, &value) {
            (Kind::Tensor, Argument::None) => Ok(value),
            (Kind::Tensor, argument) if self.number_dtype(argument).is_some() => {
                Ok(self.tensor_of(name, argument)?.argument())
            }
            _ => Ok(value),
        }
    }

    pub(crate) fn schema(&mut self, operator: &str) -> Result<Arc<Schema>> {
        let Target::Operator { namespace, name, overload } = target(operator) else {
            refuse!("`{operator}` is not an operator");
        };
        let found = self.rewrite.schemas.find(&namespace, &name, &overload);
        match found {
            Ok(Some(schema)) => Ok(schema),
            Ok(None) | Err(_) => match self.rewrite.natives.schema(&target(operator)) {
                Some(schema) => Ok(schema),
                None => refuse!("`{operator}` is not a known operator"),
            },
        }
    }

    /// Whether the target supports an operator without decomposition.
    pub(crate) fn is_native(&mut self, operator: &str) -> bool {
        self.rewrite.natives.has(&target(operator))
    }

    /// The operator, if the target supports it or a rule decomposes it.
    fn callable(&mut self, operator: &str) -> Result<Target> {
        let target = target(operator);
        // A rule that emits its own operator leaves it to the target.
        let is_apart = self.node.target != target && has_rule(&target);
        match is_apart || self.rewrite.natives.has(&target) {
            true => Ok(target),
            false => Err(self.rewrite.natives.lacks(operator)),
        }
    }

    /// Emits a call. Omitted arguments get their defaults.
    fn call(&mut self, operator: &str, given: Arguments<'_>, outputs: Vec<Output>) -> Result<()> {
        if self.made.len() >= MAX_CALLS {
            refuse!("decomposing the call requires more than {MAX_CALLS} calls");
        }
        let node = calling(self.callable(operator)?, self.schema(operator)?, given)?;
        let name = outputs.iter().find_map(|output| match output {
            Output::Value(id) => Some(self.frame.value(*id).name.clone()),
            Output::List(ids) => ids.first().map(|id| self.frame.value(*id).name.clone()),
            Output::Unused | Output::None => None,
        });
        let name = name.unwrap_or_else(|| self.node.name.clone());
        let origin = self.node.origin.clone();
        self.made.push(Node { name, outputs, origin, ..node });
        Ok(())
    }

    fn new_name(&self, operator: &str) -> String {
        let name = operator.split('.').nth(1).unwrap_or(operator);
        format!("{}_{}", self.node.name, name.trim_start_matches('_'))
    }

    /// Defines a new tensor.
    pub(crate) fn new_tensor(
        &mut self,
        operator: &str,
        dtype: ScalarType,
        sizes: Vec<Size>,
    ) -> TensorResult {
        let meta = Meta::Tensor(meta(dtype, sizes.clone()));
        let id = self.frame.define(&self.new_name(operator), meta)?;
        let tensor = Tensor { id, dtype, sizes };
        self.at_hand.push(tensor.clone());
        Ok(tensor)
    }

    /// Emits a call with one tensor result.
    pub(crate) fn emit(
        &mut self,
        operator: &str,
        given: Arguments<'_>,
        dtype: ScalarType,
        sizes: Vec<Size>,
    ) -> TensorResult {
        let tensor = self.new_tensor(operator, dtype, sizes)?;
        self.call(operator, given, vec![Output::Value(tensor.id)])?;
        Ok(tensor)
    }

    /// Emits a call whose result has the type and shape of another tensor.
    pub(crate) fn like(
        &mut self,
        x: &Tensor,
        operator: &str,
        given: Arguments<'_>,
    ) -> TensorResult {
        self.emit(operator, given, x.dtype, x.sizes.clone())
    }

    /// Emits a call whose result has the type and shape recorded for the first result.
    pub(crate) fn noted(&mut self, operator: &str, given: Arguments<'_>) -> TensorResult {
        let (dtype, sizes) = self.result_type()?;
        self.emit(operator, given, dtype, sizes)
    }

    /// Like [`noted`](Self::noted); omitted arguments are taken from this call if it has parameters of the same
    /// name.
    pub(crate) fn again(&mut self, operator: &str, given: Arguments<'_>) -> TensorResult {
        let given = self.with_own(operator, given)?;
        self.noted(operator, &given)
    }

    fn with_own<'n>(
        &mut self,
        operator: &str,
        given: &[(&'n str, Argument)],
    ) -> Result<Vec<(&'n str, Argument)>>
    where
        'a: 'n,
    {
        let schema = self.schema(operator)?;
        let mut all = given.to_vec();
        let own = self.node.schema.iter().flat_map(|schema| &schema.arguments);
        for parameter in own {
            let name = parameter.name.as_str();
            let is_wanted = schema.arguments.iter().any(|wanted| wanted.name == name);
            if is_wanted && !given.iter().any(|(given, _)| *given == name) {
                all.extend(self.node.argument(name).map(|own| (name, own.clone())));
            }
        }
        Ok(all)
    }

    /// Emits a call with several tensor results.
    pub(crate) fn emit_several(
        &mut self,
        operator: &str,
        given: Arguments<'_>,
        types: Types,
    ) -> Result<Vec<Tensor>> {
        let single = |ids: Vec<ValueId>| ids.into_iter().map(Output::Value).collect();
        self.emit_all(operator, given, types, single)
    }

    /// Emits a call that returns a list of tensors.
    pub(crate) fn emit_list(
        &mut self,
        operator: &str,
        given: Arguments<'_>,
        types: Types,
    ) -> Result<Vec<Tensor>> {
        self.emit_all(operator, given, types, |ids| vec![Output::List(ids)])
    }

    fn emit_all(
        &mut self,
        operator: &str,
        given: Arguments<'_>,
        types: Types,
        outputs: impl Fn(Vec<ValueId>) -> Vec<Output>,
    ) -> Result<Vec<Tensor>> {
        let new = |(dtype, sizes)| self.new_tensor(operator, dtype, sizes);
        let tensors = types.into_iter().map(new).collect::<Result<Vec<_>, _>>()?;
        self.call(operator, given, outputs(tensors.iter().map(|tensor| tensor.id).collect()))?;
        Ok(tensors)
    }

    /// Emits a call that returns a number.
    pub(crate) fn emit_number(
        &mut self,
        operator: &str,
        given: Arguments<'_>,
        meta: Meta,
    ) -> Result<Argument> {
        let id = self.frame.define(&self.new_name(operator), meta)?;
        self.call(operator, given, vec![Output::Value(id)])?;
        Ok(Argument::Value(id))
    }
}

/// The items of a list argument.
pub(crate) fn list<'a>(name: &str, argument: &'a Argument) -> Result<&'a [Argument]> {
    match argument {
        Argument::List(items) => Ok(items),
        _ => refuse!("`{name}` is not a list"),
    }
}

/// A call of an operator, without name and results. Omitted arguments get their defaults.
pub(crate) fn calling(target: Target, schema: Arc<Schema>, given: Arguments<'_>) -> Result<Node> {
    let mut arguments = Vec::with_capacity(schema.arguments.len());
    for parameter in &schema.arguments {
        let given = given.iter().find(|(name, _)| *name == parameter.name);
        let value = given.map(|(_, value)| value.clone()).or_else(|| parameter.default_argument());
        let Some(value) = value else { refuse!("`{target}` needs `{}`", parameter.name) };
        arguments.push(match (&parameter.kind, value) {
            (Kind::Float, Argument::Int(value)) => Argument::Float(value as f64),
            (_, value) => value,
        });
    }
    let is_known = |name: &str| schema.arguments.iter().any(|one| one.name == name);
    if let Some((name, _)) = given.iter().find(|(name, _)| !is_known(name)) {
        refuse!("`{target}` has no argument `{name}`");
    }
    Ok(Node {
        name: String::new(),
        target,
        schema: Some(schema),
        arguments,
        keywords: Vec::new(),
        outputs: Vec::new(),
        single_return: None,
        origin: Origin::default(),
    })
}

/// Metadata of a new contiguous tensor.
pub(crate) fn meta(dtype: ScalarType, sizes: Vec<Size>) -> TensorMeta {
    TensorMeta {
        dtype,
        strides: size::strides(&sizes),
        sizes,
        storage_offset: Size::Fixed(0),
        layout: Layout::Strided,
        device: Device { kind: "cpu".to_owned(), index: None },
    }
}

/// A size that is unknown at compile time.
pub(crate) fn unknown() -> Size {
    let expression = coremill_pt2::Expression::Call(
        coremill_pt2::Function::Other("unknown".to_owned()),
        Vec::new(),
    );
    Size::Symbolic(Arc::new(Symbolic { expression, hint: None }))
}

/// Type promotion of tensors and numbers.
pub(crate) fn promoted(call: &Call<'_>, operands: &[&Argument]) -> Option<ScalarType> {
    let mut kinds = Vec::with_capacity(operands.len());
    let mut number = None;
    for operand in operands {
        match operand {
            Argument::Value(id) if matches!(call.frame.value(*id).meta, Meta::Tensor(_)) => {
                if let Meta::Tensor(meta) = &call.frame.value(*id).meta {
                    kinds.push((meta.dtype, meta.sizes.len()));
                }
            }
            operand => {
                let dtype = call.number_dtype(operand)?;
                number = Some(number.map_or(dtype, |known| dtype::promote(known, dtype)));
            }
        }
    }
    match (dtype::promote_ranked(kinds), number) {
        (Some(tensors), Some(number)) => Some(dtype::promote_scalar(number, tensors)),
        (tensors, number) => tensors.or(number),
    }
}
