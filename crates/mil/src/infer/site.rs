use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

use coremill_io::quoted_choice;
use coremill_tensor::DType;

use super::folded::{KnownElements, Scalar};
use crate::ir::{Binding, Constant, Dim, Expr, Function, Op, Opset, Symbol, TensorType, Type};
use crate::ops::{DefaultValue, OpRow, Parameter};

/// What inference knows about one value.
#[derive(Clone, Debug, PartialEq)]
pub struct InferredValue {
    /// The type; no dimension of it is [`Dim::Unknown`].
    pub ty: Type,
    /// The elements, where they are few and known.
    pub value: Option<Arc<KnownElements>>,
    /// Whether it can be computed when the program is compiled: a constant, or computed from
    /// constants alone.
    pub constant: bool,
}

/// Why an operation cannot stand as it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InferError {
    /// What is wrong: what was found, what is accepted.
    pub message: String,
    /// The parameter at fault.
    pub parameter: Option<String>,
    /// What to do.
    pub hint: Option<String>,
}

/// The types, and where known the elements, that an operation gives.
pub(crate) type Rule = Result<Vec<InferredValue>, InferError>;

/// The bound values of each parameter. The operands that the older compressed constants state as
/// attributes count as bound.
pub(super) type Operands<'a> = Vec<(&'a str, Cow<'a, [InferredValue]>)>;

/// An operation with what is known about its arguments, as the rules of inference see it.
///
/// The arguments were checked against the op table before: required ones are there, tensors have an
/// element type that the parameter accepts, type variables agree, constants are constant.
pub(crate) struct InferContext<'a> {
    pub(super) function: &'a Function,
    pub(super) op: &'a Op,
    pub(super) row: &'static OpRow,
    /// What is known about everything bound, parameter by parameter.
    pub(super) operands: Operands<'a>,
    /// What each of the operation's blocks takes.
    pub(super) block_inputs: Vec<Vec<InferredValue>>,
    /// What each of the operation's blocks gives.
    pub(super) block_outputs: Vec<Vec<InferredValue>>,
    pub(super) next_symbol: &'a Cell<u32>,
}

impl InferError {
    /// A refusal of the whole operation.
    pub fn new(message: impl Into<String>) -> InferError {
        InferError { message: message.into(), parameter: None, hint: None }
    }

    /// The same, laid to a parameter.
    pub fn of(mut self, parameter: impl Into<String>) -> InferError {
        self.parameter = Some(parameter.into());
        self
    }

    /// The same, with a remedy.
    pub fn hint(mut self, hint: impl Into<String>) -> InferError {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for InferError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.parameter {
            Some(parameter) => write!(f, "`{parameter}`: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

/// Ends a rule with a [`InferError`] whose message is formatted.
macro_rules! refuse {
    ($($message:tt)*) => {
        return Err($crate::infer::InferError::new(format!($($message)*)))
    };
}
pub(crate) use refuse;

impl InferredValue {
    /// A value of which only the type is known.
    pub fn of(ty: Type) -> InferredValue {
        InferredValue { ty, value: None, constant: false }
    }

    /// A tensor of which only the type is known.
    pub fn tensor(dtype: DType, shape: Vec<Dim>) -> InferredValue {
        InferredValue::of(Type::Tensor(TensorType { dtype, shape }))
    }

    /// A tensor whose elements are known, at least in part.
    pub fn folded(value: KnownElements) -> InferredValue {
        let ty = Type::tensor(value.dtype, &value.shape);
        InferredValue { ty, value: Some(Arc::new(value)), constant: false }
    }

    /// The same value with elements that may be known. They must have the value's type.
    pub fn with(mut self, value: Option<KnownElements>) -> InferredValue {
        debug_assert!(value.as_ref().is_none_or(|value| {
            Type::tensor(value.dtype, &value.shape).is_compatible(&self.ty)
        }));
        self.value = value.map(Arc::new);
        self
    }

    /// What a constant states.
    pub fn of_constant(constant: &Constant) -> InferredValue {
        let value = KnownElements::from_constant(constant).map(Arc::new);
        InferredValue { ty: constant.ty.clone(), value, constant: true }
    }
}

impl<'a> InferContext<'a> {
    /// The operation's name, for messages.
    pub(crate) fn name(&self) -> &'static str {
        self.row.kind.name()
    }

    /// The opset of the function.
    pub(crate) fn opset(&self) -> Opset {
        self.function.opset
    }

    /// The opset that brought the definition that holds here.
    pub(crate) fn since(&self) -> Opset {
        self.row.since
    }

    /// The operation itself.
    pub(crate) fn op(&self) -> &'a Op {
        self.op
    }

    /// The definition that holds here.
    pub(crate) fn row(&self) -> &'static OpRow {
        self.row
    }

    /// What the definition says of a parameter.
    pub(crate) fn parameter(&self, name: &str) -> Option<&'static Parameter> {
        self.row.parameter(name)
    }

    /// Everything bound to a parameter; empty if nothing is.
    pub(crate) fn all(&self, name: &str) -> &[InferredValue] {
        let found = self.operands.iter().find(|(parameter, _)| *parameter == name);
        found.map_or(&[], |(_, bound)| bound)
    }

    /// What is bound to a parameter.
    pub(crate) fn operand(&self, name: &str) -> Option<&InferredValue> {
        self.all(name).first()
    }

    /// Whether anything is bound to a parameter.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.operand(name).is_some()
    }

    /// Whether the definition that holds here has a parameter of that name.
    pub(crate) fn row_has(&self, name: &str) -> bool {
        self.row.parameter(name).is_some()
    }

    /// The bindings of a parameter as the program has them.
    pub(crate) fn bindings(&self, name: &str) -> &'a [Binding] {
        self.op.bindings(name)
    }

    /// The type of the tensor bound to a parameter.
    pub(crate) fn tensor(&self, name: &str) -> Result<&TensorType, InferError> {
        match self.operand(name) {
            Some(operand) => operand.ty.as_tensor().ok_or_else(|| {
                InferError::new(format!("expects a tensor, found `{}`", operand.ty)).of(name)
            }),
            None => Err(InferError::new("is required, but nothing is bound to it").of(name)),
        }
    }

    /// The type of the tensor bound to a parameter, if one is.
    pub(crate) fn optional_tensor(&self, name: &str) -> Option<&TensorType> {
        self.operand(name)?.ty.as_tensor()
    }

    /// The known elements of the tensor bound to a parameter.
    pub(crate) fn value(&self, name: &str) -> Option<&KnownElements> {
        self.operand(name)?.value.as_deref()
    }

    /// The one integer that a parameter is, by its binding or by default.
    pub(crate) fn int(&self, name: &str) -> Result<i64, InferError> {
        if let Some(value) = self.known(name)? {
            return value
                .only()
                .and_then(Scalar::int)
                .ok_or_else(|| self.expected(name, "one integer"));
        }
        match self.default(name) {
            DefaultValue::Int(value) => Ok(i64::from(value)),
            _ => Err(self.expected(name, "one integer")),
        }
    }

    /// The integers that a parameter is; `spatial` is the number of spatial dimensions, for defaults
    /// that depend on it.
    pub(crate) fn ints(&self, name: &str, spatial: usize) -> Result<Vec<i64>, InferError> {
        if let Some(value) = self.known(name)? {
            return value.ints().ok_or_else(|| self.expected(name, "integers"));
        }
        match self.default(name) {
            DefaultValue::Ints(values) => Ok(values.iter().copied().map(i64::from).collect()),
            DefaultValue::PerSpatialDim { value, times } => {
                Ok(vec![i64::from(value); spatial * times as usize])
            }
            _ => Err(self.expected(name, "integers")),
        }
    }

    /// The integers that a parameter is, if anything is bound to it.
    pub(crate) fn optional_ints(&self, name: &str) -> Result<Option<Vec<i64>>, InferError> {
        if self.has(name) { self.ints(name, 0).map(Some) } else { Ok(None) }
    }

    /// The `bool` that a parameter is.
    pub(crate) fn bool(&self, name: &str) -> Result<bool, InferError> {
        if let Some(value) = self.known(name)? {
            return value
                .only()
                .and_then(Scalar::bool)
                .ok_or_else(|| self.expected(name, "one bool"));
        }
        match self.default(name) {
            DefaultValue::Bool(value) => Ok(value),
            _ => Err(self.expected(name, "one bool")),
        }
    }

    /// The `bool`s that a parameter is; all false, `count` of them, if nothing is bound to it.
    pub(crate) fn bools(&self, name: &str, count: usize) -> Result<Vec<bool>, InferError> {
        match self.known(name)? {
            Some(value) => {
                let bools = value.elements.iter().map(Scalar::bool).collect::<Option<_>>();
                bools.ok_or_else(|| self.expected(name, "bools"))
            }
            None => Ok(vec![false; count]),
        }
    }

    /// The one number that a parameter is; defaults that depend on the element type are those of
    /// fp32.
    pub(crate) fn float(&self, name: &str) -> Result<f64, InferError> {
        if let Some(value) = self.known(name)? {
            let number = value.only().and_then(Scalar::float);
            return number.ok_or_else(|| self.expected(name, "one number"));
        }
        match self.default(name) {
            DefaultValue::Float(value) | DefaultValue::FloatByType { fp32: value, .. } => {
                Ok(f64::from(value))
            }
            DefaultValue::Int(value) => Ok(f64::from(value)),
            _ => Err(self.expected(name, "one number")),
        }
    }

    /// The text that a parameter is.
    pub(crate) fn text(&self, name: &str) -> Result<Arc<str>, InferError> {
        if let Some(value) = self.known(name)? {
            return match value.only() {
                Some(Scalar::Text(text)) => Ok(Arc::clone(text)),
                _ => Err(self.expected(name, "one string")),
            };
        }
        match self.default(name) {
            DefaultValue::Text(text) => Ok(text.into()),
            _ => Err(self.expected(name, "one string")),
        }
    }

    /// The text that a parameter is, which must be one of those that the operation knows.
    pub(crate) fn choice(&self, name: &str, known: &[&str]) -> Result<Arc<str>, InferError> {
        let text = self.text(name)?;
        if known.contains(&&*text) {
            return Ok(text);
        }
        let message = format!("must be {}, got `{text}`", quoted_choice(known));
        Err(InferError::new(message).of(name))
    }

    /// The element type that a parameter names.
    pub(crate) fn dtype(&self, name: &str) -> Result<DType, InferError> {
        let text = self.text(name)?;
        let message = || InferError::new(format!("`{text}` is not an element type")).of(name);
        text.parse().map_err(|_| message())
    }

    /// An axis in `0..rank`, from one that may count from the end.
    pub(crate) fn axis(&self, name: &str, rank: usize) -> Result<usize, InferError> {
        normalize_axis(self.int(name)?, rank).map_err(|refusal| refusal.of(name))
    }

    /// Axes in `0..rank`, from ones that may count from the end.
    pub(crate) fn axes(&self, name: &str, rank: usize) -> Result<Vec<usize>, InferError> {
        let axes = self.ints(name, 0)?.into_iter();
        let axes: Result<Vec<_>, _> = axes.map(|axis| normalize_axis(axis, rank)).collect();
        axes.map_err(|refusal| refusal.of(name))
    }

    /// What the operation's blocks take.
    pub(crate) fn block_inputs(&self) -> &[Vec<InferredValue>] {
        &self.block_inputs
    }

    /// What the operation's blocks give.
    pub(crate) fn block_outputs(&self) -> &[Vec<InferredValue>] {
        &self.block_outputs
    }

    /// The function that holds the operation.
    pub(crate) fn function(&self) -> &'a Function {
        self.function
    }

    /// A dimension of which nothing is known but that it is one.
    pub(crate) fn fresh(&self) -> Dim {
        let id = self.next_symbol.get();
        self.next_symbol.set(id + 1);
        Dim::Symbolic(Expr::from(Symbol(id)))
    }

    /// The dimension that arithmetic gave, or a fresh one if it gave none.
    pub(crate) fn dim(&self, expr: Option<Expr>) -> Dim {
        match expr.map(Dim::from) {
            Some(Dim::Unknown) | None => self.fresh(),
            Some(dim) => dim,
        }
    }

    /// A refusal that says what a parameter must be.
    pub(crate) fn expected(&self, name: &str, what: &str) -> InferError {
        match self.operand(name) {
            Some(operand) => InferError::new(format!("expects {what}, found `{}`", operand.ty)),
            None => InferError::new(format!("expects {what}, but nothing is bound to it")),
        }
        .of(name)
    }

    /// The elements bound to a parameter; none if nothing is bound, an error if they are not known.
    fn known(&self, name: &str) -> Result<Option<&KnownElements>, InferError> {
        match self.operand(name) {
            None => Ok(None),
            Some(operand) => match &operand.value {
                Some(value) => Ok(Some(value)),
                None => Err(InferError::new(format!(
                    "must be known when the program is compiled; found a computed `{}`",
                    operand.ty
                ))
                .of(name)
                .hint("bind it to a `const`")),
            },
        }
    }

    fn default(&self, name: &str) -> DefaultValue {
        self.row.parameter(name).map_or(DefaultValue::Absent, |parameter| parameter.default)
    }
}

/// An axis in `0..rank`, from one that may count from the end.
pub fn normalize_axis(axis: i64, rank: usize) -> Result<usize, InferError> {
    let signed_rank = rank as i64;
    let normalized = if axis < 0 { axis.checked_add(signed_rank) } else { Some(axis) };
    match normalized {
        Some(axis) if (0..signed_rank).contains(&axis) => Ok(axis as usize),
        _ => Err(InferError::new(format!(
            "axis {axis} is outside a tensor of rank {rank}, whose axes are {} to {}",
            -signed_rank,
            signed_rank - 1
        ))),
    }
}
