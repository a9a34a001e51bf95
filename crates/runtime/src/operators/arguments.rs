use coremill_kernels::Pool;
use coremill_pte::program::ScalarType;
use coremill_simd::Isa;

use super::packed::Cache;
use crate::error::{Result, ensure, fail};
use crate::number::{Scalar, is_floating};
use crate::slot::{EValue, Origin, Place, TensorValue};
use crate::view::{OutTensor, View};

/// An input argument of a kernel.
#[derive(Clone, Debug)]
pub(crate) enum Argument<'a> {
    Null,
    Scalar(Scalar),
    Text(&'a str),
    Ints(Vec<i64>),
    Doubles(&'a [f64]),
    Bools(&'a [bool]),
    Tensor(View<'a>),
    Tensors(Vec<Option<View<'a>>>),
}

impl Argument<'_> {
    fn kind(&self) -> &'static str {
        match self {
            Argument::Null => "nothing",
            Argument::Scalar(Scalar::Int(_)) => "an integer",
            Argument::Scalar(Scalar::Bool(_)) => "a boolean",
            Argument::Scalar(Scalar::Double(_)) => "a float",
            Argument::Text(_) => "text",
            Argument::Ints(_) => "integers",
            Argument::Doubles(_) => "floats",
            Argument::Bools(_) => "booleans",
            Argument::Tensor(_) => "a tensor",
            Argument::Tensors(_) => "tensors",
        }
    }
}

/// Resources of kernels.
pub(crate) struct Machine {
    pub(crate) isa: Isa,
    pub(crate) pool: Pool,
    /// Rearranged weights of the program.
    pub(crate) packed: Cache,
}

/// Input arguments of a kernel, by position in the operator's schema.
pub(crate) struct Arguments<'a> {
    pub(crate) list: Vec<Argument<'a>>,
    pub(crate) machine: &'a Machine,
    /// Seed of random kernels.
    pub(crate) seed: u64,
    /// All values, and the indices of the arguments in them.
    pub(crate) slots: (&'a [EValue], &'a [usize]),
}

impl<'a> Arguments<'a> {
    fn wrong<T>(&self, index: usize, accepted: &str) -> Result<T> {
        let found = self.list.get(index).map_or("nothing", Argument::kind);
        fail!("argument {index} must be {accepted}, got {found}")
    }

    pub(crate) fn tensor(&self, index: usize) -> Result<View<'a>> {
        match self.list.get(index) {
            Some(Argument::Tensor(view)) => Ok(*view),
            _ => self.wrong(index, "a tensor"),
        }
    }

    /// Origin of a tensor that is stored in the program; `None` for other tensors.
    pub(crate) fn origin(&self, index: usize) -> Option<&'a Origin> {
        let (values, arguments) = self.slots;
        match values.get(*arguments.get(index)?)? {
            EValue::Tensor(TensorValue { place: Place::Shared { origin, .. }, .. }) => {
                origin.as_ref()
            }
            _ => None,
        }
    }

    pub(crate) fn optional_tensor(&self, index: usize) -> Result<Option<View<'a>>> {
        match self.list.get(index) {
            Some(Argument::Null) => Ok(None),
            Some(Argument::Tensor(view)) => Ok(Some(*view)),
            _ => self.wrong(index, "a tensor or nothing"),
        }
    }

    /// A list of tensors without missing ones.
    pub(crate) fn tensors(&self, index: usize) -> Result<Vec<View<'a>>> {
        let list = self.optional_tensors(index)?.iter().copied().collect();
        match list {
            Some(list) => Ok(list),
            None => self.wrong(index, "a list of tensors without missing ones"),
        }
    }

    pub(crate) fn optional_tensors(&self, index: usize) -> Result<&[Option<View<'a>>]> {
        match self.list.get(index) {
            Some(Argument::Tensors(list)) => Ok(list),
            _ => self.wrong(index, "tensors"),
        }
    }

    pub(crate) fn int(&self, index: usize) -> Result<i64> {
        match self.list.get(index) {
            Some(Argument::Scalar(Scalar::Int(value))) => Ok(*value),
            _ => self.wrong(index, "an integer"),
        }
    }

    pub(crate) fn optional_int(&self, index: usize) -> Result<Option<i64>> {
        match self.list.get(index) {
            Some(Argument::Null) => Ok(None),
            _ => self.int(index).map(Some),
        }
    }

    pub(crate) fn bool(&self, index: usize) -> Result<bool> {
        match self.list.get(index) {
            Some(Argument::Scalar(Scalar::Bool(value))) => Ok(*value),
            _ => self.wrong(index, "a boolean"),
        }
    }

    pub(crate) fn optional_bool(&self, index: usize) -> Result<Option<bool>> {
        match self.list.get(index) {
            Some(Argument::Null) => Ok(None),
            _ => self.bool(index).map(Some),
        }
    }

    pub(crate) fn double(&self, index: usize) -> Result<f64> {
        match self.list.get(index) {
            Some(Argument::Scalar(Scalar::Double(value))) => Ok(*value),
            Some(Argument::Scalar(Scalar::Int(value))) => Ok(*value as f64),
            _ => self.wrong(index, "a float"),
        }
    }

    pub(crate) fn optional_double(&self, index: usize) -> Result<Option<f64>> {
        match self.list.get(index) {
            Some(Argument::Null) => Ok(None),
            _ => self.double(index).map(Some),
        }
    }

    pub(crate) fn scalar(&self, index: usize) -> Result<Scalar> {
        match self.list.get(index) {
            Some(Argument::Scalar(scalar)) => Ok(*scalar),
            _ => self.wrong(index, "a number"),
        }
    }

    pub(crate) fn optional_scalar(&self, index: usize) -> Result<Option<Scalar>> {
        match self.list.get(index) {
            Some(Argument::Null) => Ok(None),
            _ => self.scalar(index).map(Some),
        }
    }

    pub(crate) fn text(&self, index: usize) -> Result<&'a str> {
        match self.list.get(index) {
            Some(Argument::Text(text)) => Ok(text),
            _ => self.wrong(index, "text"),
        }
    }

    pub(crate) fn optional_text(&self, index: usize) -> Result<Option<&'a str>> {
        match self.list.get(index) {
            Some(Argument::Null) => Ok(None),
            _ => self.text(index).map(Some),
        }
    }

    pub(crate) fn ints(&self, index: usize) -> Result<&[i64]> {
        match self.list.get(index) {
            Some(Argument::Ints(list)) => Ok(list),
            _ => self.wrong(index, "integers"),
        }
    }

    pub(crate) fn optional_ints(&self, index: usize) -> Result<Option<&[i64]>> {
        match self.list.get(index) {
            Some(Argument::Null) => Ok(None),
            _ => self.ints(index).map(Some),
        }
    }

    pub(crate) fn optional_doubles(&self, index: usize) -> Result<Option<&'a [f64]>> {
        match self.list.get(index) {
            Some(Argument::Null) => Ok(None),
            Some(Argument::Doubles(list)) => Ok(Some(list)),
            _ => self.wrong(index, "floats or nothing"),
        }
    }

    pub(crate) fn bools(&self, index: usize) -> Result<&'a [bool]> {
        match self.list.get(index) {
            Some(Argument::Bools(list)) => Ok(list),
            _ => self.wrong(index, "booleans"),
        }
    }

    /// An optional element type, given by number.
    pub(crate) fn optional_dtype(&self, index: usize) -> Result<Option<ScalarType>> {
        let Some(number) = self.optional_int(index)? else { return Ok(None) };
        match i8::try_from(number).ok().and_then(ScalarType::from_number) {
            Some(dtype) => Ok(Some(dtype)),
            None => fail!("argument {index} is {number}, which is not an element type"),
        }
    }

    /// A pair; a single number applies to both. `default` is used for an empty list.
    pub(crate) fn pair(&self, index: usize, default: Option<[i64; 2]>) -> Result<[i64; 2]> {
        match (self.ints(index)?, default) {
            ([], Some(default)) => Ok(default),
            ([both], _) => Ok([*both; 2]),
            ([first, second], _) => Ok([*first, *second]),
            (list, _) => fail!("argument {index} must be one or two integers, got {list:?}"),
        }
    }
}

pub(super) fn same_type(view: &View, out: &OutTensor) -> Result {
    let (given, expected) = (view.dtype, out.dtype);
    ensure!(given == expected, "the tensor must have type `{expected:?}`, got `{given:?}`");
    Ok(())
}

pub(super) fn float_output(out: &OutTensor) -> Result {
    let dtype = out.dtype;
    ensure!(is_floating(dtype), "the output must have a float type, got `{dtype:?}`");
    Ok(())
}
