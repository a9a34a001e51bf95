use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

use coremill_io::quoted_choice;
use coremill_tensor::DType;

use super::folded::{KnownElements, Scalar};
use crate::ir::{Binding, Constant, Dim, Expr, Function, Op, Opset, Symbol, TensorType, Type};
use crate::ops::{DefaultValue, OpRow, Parameter};

/// Inference result of one value.
#[derive(Clone, Debug, PartialEq)]
pub struct InferredValue {
    /// The type; none of its dimensions is [`Dim::Unknown`].
    pub ty: Type,
    /// The elements, if they are few and known.
    pub value: Option<Arc<KnownElements>>,
    /// Whether the value is known at compile time: a constant, or computed only from constants.
    pub constant: bool,
}

/// The reason why an operation is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InferError {
    /// The expected and the actual value.
    pub message: String,
    /// The parameter at fault.
    pub parameter: Option<String>,
    /// Suggested fix.
    pub hint: Option<String>,
}

/// Types and, if known, elements of an operation's outputs.
pub(crate) type Rule = Result<Vec<InferredValue>, InferError>;

/// The bound values of each parameter, including attributes that are operands of the older compressed
/// constants.
pub(super) type Operands<'a> = Vec<(&'a str, Cow<'a, [InferredValue]>)>;

/// An operation with the inference results of its arguments, passed to inference rules.
///
/// The arguments have already been checked against the op table: required arguments are present, tensors have
/// a supported element type, type variables agree, and constant parameters are constant.
pub(crate) struct InferContext<'a> {
    pub(super) function: &'a Function,
    pub(super) op: &'a Op,
    pub(super) row: &'static OpRow,
    /// Inference results of all bindings, by parameter.
    pub(super) operands: Operands<'a>,
    /// Inputs of each of the operation's blocks.
    pub(super) block_inputs: Vec<Vec<InferredValue>>,
    /// Outputs of each of the operation's blocks.
    pub(super) block_outputs: Vec<Vec<InferredValue>>,
    pub(super) next_symbol: &'a Cell<u32>,
}

impl InferError {
    /// Returns an error about the whole operation.
    pub fn new(message: impl Into<String>) -> InferError {
        InferError { message: message.into(), parameter: None, hint: None }
    }

    /// Sets the parameter at fault.
    pub fn of(mut self, parameter: impl Into<String>) -> InferError {
        self.parameter = Some(parameter.into());
        self
    }

    /// Sets the hint.
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

/// Returns from a rule with an [`InferError`] with a formatted message.
macro_rules! refuse {
    ($($message:tt)*) => {
        return Err($crate::infer::InferError::new(format!($($message)*)))
    };
}
pub(crate) use refuse;

impl InferredValue {
    /// A value with a known type and unknown elements.
    pub fn of(ty: Type) -> InferredValue {
        InferredValue { ty, value: None, constant: false }
    }

    /// A tensor with a known type and unknown elements.
    pub fn tensor(dtype: DType, shape: Vec<Dim>) -> InferredValue {
        InferredValue::of(Type::Tensor(TensorType { dtype, shape }))
    }

    /// A tensor with at least partly known elements.
    pub fn folded(value: KnownElements) -> InferredValue {
        let ty = Type::tensor(value.dtype, &value.shape);
        InferredValue { ty, value: Some(Arc::new(value)), constant: false }
    }

    /// Sets the known elements, which must match the value's type.
    pub fn with(mut self, value: Option<KnownElements>) -> InferredValue {
        debug_assert!(value.as_ref().is_none_or(|value| {
            Type::tensor(value.dtype, &value.shape).is_compatible(&self.ty)
        }));
        self.value = value.map(Arc::new);
        self
    }

    /// The inference result of a constant.
    pub fn of_constant(constant: &Constant) -> InferredValue {
        let value = KnownElements::from_constant(constant).map(Arc::new);
        InferredValue { ty: constant.ty.clone(), value, constant: true }
    }
}

impl<'a> InferContext<'a> {
    /// Name of the operation, for messages.
    pub(crate) fn name(&self) -> &'static str {
        self.row.kind.name()
    }

    /// The opset of the function.
    pub(crate) fn opset(&self) -> Opset {
        self.function.opset
    }

    /// The first opset that has this definition of the operation.
    pub(crate) fn since(&self) -> Opset {
        self.row.since
    }

    /// The operation itself.
    pub(crate) fn op(&self) -> &'a Op {
        self.op
    }

    /// The definition of the operation in the function's opset.
    pub(crate) fn row(&self) -> &'static OpRow {
        self.row
    }

    /// The declaration of a parameter.
    pub(crate) fn parameter(&self, name: &str) -> Option<&'static Parameter> {
        self.row.parameter(name)
    }

    /// All values bound to a parameter; empty if it is unbound.
    pub(crate) fn all(&self, name: &str) -> &[InferredValue] {
        let found = self.operands.iter().find(|(parameter, _)| *parameter == name);
        found.map_or(&[], |(_, bound)| bound)
    }

    /// The first value bound to a parameter.
    pub(crate) fn operand(&self, name: &str) -> Option<&InferredValue> {
        self.all(name).first()
    }

    /// Whether a parameter is bound.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.operand(name).is_some()
    }

    /// Whether the definition has a parameter with this name.
    pub(crate) fn row_has(&self, name: &str) -> bool {
        self.row.parameter(name).is_some()
    }

    /// The bindings of a parameter in the program.
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

    /// The type of the tensor bound to a parameter; `None` if it is unbound.
    pub(crate) fn optional_tensor(&self, name: &str) -> Option<&TensorType> {
        self.operand(name)?.ty.as_tensor()
    }

    /// The known elements of the tensor bound to a parameter.
    pub(crate) fn value(&self, name: &str) -> Option<&KnownElements> {
        self.operand(name)?.value.as_deref()
    }

    /// The integer value of a parameter, bound or default.
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

    /// The integer values of a parameter, bound or default. `spatial` is the number of spatial dimensions, on
    /// which some defaults depend.
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

    /// The integer values of a parameter; `None` if it is unbound.
    pub(crate) fn optional_ints(&self, name: &str) -> Result<Option<Vec<i64>>, InferError> {
        if self.has(name) { self.ints(name, 0).map(Some) } else { Ok(None) }
    }

    /// The `bool` value of a parameter, bound or default.
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

    /// The `bool` values of a parameter; `count` times `false` if it is unbound.
    pub(crate) fn bools(&self, name: &str, count: usize) -> Result<Vec<bool>, InferError> {
        match self.known(name)? {
            Some(value) => {
                let bools = value.elements.iter().map(Scalar::bool).collect::<Option<_>>();
                bools.ok_or_else(|| self.expected(name, "bools"))
            }
            None => Ok(vec![false; count]),
        }
    }

    /// The float value of a parameter, bound or default. Defaults that depend on the element type are those
    /// for fp32.
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

    /// The string value of a parameter, bound or default.
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

    /// The string value of a parameter, which must be one of `known`.
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

    /// The axis value of a parameter, normalized to `0..rank`.
    pub(crate) fn axis(&self, name: &str, rank: usize) -> Result<usize, InferError> {
        normalize_axis(self.int(name)?, rank).map_err(|refusal| refusal.of(name))
    }

    /// The axis values of a parameter, normalized to `0..rank`.
    pub(crate) fn axes(&self, name: &str, rank: usize) -> Result<Vec<usize>, InferError> {
        let axes = self.ints(name, 0)?.into_iter();
        let axes: Result<Vec<_>, _> = axes.map(|axis| normalize_axis(axis, rank)).collect();
        axes.map_err(|refusal| refusal.of(name))
    }

    /// Inputs of the operation's blocks.
    pub(crate) fn block_inputs(&self) -> &[Vec<InferredValue>] {
        &self.block_inputs
    }

    /// Outputs of the operation's blocks.
    pub(crate) fn block_outputs(&self) -> &[Vec<InferredValue>] {
        &self.block_outputs
    }

    /// The function that contains the operation.
    pub(crate) fn function(&self) -> &'a Function {
        self.function
    }

    /// A new unknown dimension.
    pub(crate) fn fresh(&self) -> Dim {
        let id = self.next_symbol.get();
        self.next_symbol.set(id + 1);
        Dim::Symbolic(Expr::from(Symbol(id)))
    }

    /// The dimension of an expression, or a new unknown dimension if there is no expression.
    pub(crate) fn dim(&self, expr: Option<Expr>) -> Dim {
        match expr.map(Dim::from) {
            Some(Dim::Unknown) | None => self.fresh(),
            Some(dim) => dim,
        }
    }

    /// An error that states the expected value of a parameter.
    pub(crate) fn expected(&self, name: &str, what: &str) -> InferError {
        match self.operand(name) {
            Some(operand) => InferError::new(format!("expects {what}, found `{}`", operand.ty)),
            None => InferError::new(format!("expects {what}, but nothing is bound to it")),
        }
        .of(name)
    }

    /// The known elements bound to a parameter; `None` if it is unbound, an error if the elements are
    /// unknown.
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

/// Normalizes an axis to `0..rank`. Negative axes count from the end.
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
