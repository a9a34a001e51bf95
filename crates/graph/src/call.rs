//! Construction of an operation.

use std::collections::HashMap;
use std::panic::Location;

use coremill_engine::Array;
use coremill_mil::ir::{Binding, Constant, Op, Type};
use coremill_mil::ops::{Accepts, OpKind, OpRow};
use coremill_tensor::{Buffer, DType};

use crate::arg::{Arg, Bools, Ints, Operand};
use crate::graph::Graph;
use crate::tensor::Tensor;

/// An operation that is being added to the graph.
pub(crate) struct Call<'g> {
    graph: &'g Graph,
    kind: OpKind,
    op: Op,
    /// Whether all arguments are valid.
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

    /// Binds integers with the parameter's type in the newest opset.
    pub(crate) fn ints(&mut self, name: &'static str, ints: Ints) {
        let dtypes = |row: &OpRow| match row.parameter(name)?.accepts {
            Accepts::Tensor { dtypes, .. } => Some(dtypes),
            _ => None,
        };
        let dtypes = self.kind.rows().iter().rev().find_map(dtypes).unwrap_or_default();
        let is_unsigned = dtypes.contains(&DType::UInt32) && !dtypes.contains(&DType::Int32);
        let dtype = if is_unsigned { DType::UInt32 } else { DType::Int32 };
        match ints.constant(dtype) {
            Ok(constant) => self.op.set_input(name.into(), vec![Binding::Literal(constant)]),
            Err(outside) => {
                let kind = self.kind.name();
                self.fault(format!("`{kind}`: `{name}`: {outside} does not fit `{dtype}`"), None);
            }
        }
    }

    pub(crate) fn bools(&mut self, name: &'static str, bools: Bools) {
        self.op.set_input(name.into(), vec![Binding::Literal(bools.constant())]);
    }

    pub(crate) fn text(&mut self, name: &'static str, text: &str) {
        self.op.set_input(name.into(), vec![Binding::Literal(Constant::string(text))]);
    }

    fn binding(&mut self, name: &str, arg: Arg<'g>) -> Option<Binding> {
        let tensor = match arg.0 {
            Operand::Constant(constant) => return Some(Binding::Literal(constant)),
            Operand::Tensor(tensor) => tensor,
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

    /// Converts literal numbers to the element type of the tensor arguments.
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

    /// Appends the operation and returns its results. An invalid operation returns the requested number of
    /// invalid tensors.
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

/// Converts a literal number to a type; `None` if this changes its value.
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
