//! Values of a graph.

use std::fmt;
use std::panic::Location;

use coremill_mil::ir::{Dim, ValueId};
use coremill_tensor::DType;

use crate::graph::Graph;

/// A value of a [`Graph`]: an input, a parameter, or the result of an operation.
///
/// Tensors are handles that are cheap to copy. Methods named after MIL operations are in [`ops`]; operators
/// broadcast like numpy.
#[derive(Clone, Copy)]
pub struct Tensor<'g> {
    pub(crate) graph: &'g Graph,
    /// `None` if the tensor depends on an error.
    pub(crate) value: Option<ValueId>,
}

impl fmt::Debug for Tensor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.value.and_then(|value| self.graph.type_of(value)) {
            Some(ty) => write!(f, "{ty}"),
            None => f.write_str("nothing"),
        }
    }
}

impl Graph {
    pub(crate) fn nothing(&self) -> Tensor<'_> {
        Tensor::new(self, None)
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

    /// Whether a valid tensor belongs to this graph and is visible here; otherwise records an error.
    pub(crate) fn owns(
        &self,
        tensor: Tensor<'_>,
        what: &str,
        location: &'static Location<'static>,
    ) -> bool {
        let Some(value) = tensor.value else { return false };
        let (message, hint) = if !tensor.is_of(self) {
            (format!("{what} belongs to another graph"), "build both in one graph")
        } else if !self.state.borrow().builder.is_in_scope(value) {
            let message = format!("{what} is a value of a branch or a loop that has ended");
            (message, "return the value from the block that computes it")
        } else {
            return true;
        };
        self.note(message, Some(hint.into()), location);
        false
    }
}

impl<'g> Tensor<'g> {
    pub(crate) fn new(graph: &'g Graph, value: Option<ValueId>) -> Tensor<'g> {
        Tensor { graph, value }
    }

    /// The graph that contains the value.
    #[track_caller]
    pub fn graph(self) -> &'g Graph {
        self.graph.line(Location::caller());
        self.graph
    }

    pub(crate) fn is_of(self, graph: &Graph) -> bool {
        std::ptr::eq(self.graph, graph)
    }

    /// Whether the tensor does not depend on an error.
    pub fn is_valid(self) -> bool {
        self.value.is_some()
    }

    /// Whether it is a constant or a parameter, which are stored in the package.
    pub fn is_constant(self) -> bool {
        self.value.is_some_and(|value| self.graph.holds(value))
    }

    /// The element type.
    pub fn dtype(self) -> DType {
        let ty = self.value.and_then(|value| self.graph.type_of(value));
        ty.map_or(DType::Fp32, |ty| ty.dtype)
    }

    /// The dimensions; unknown ones are expressions of the inputs' dimensions.
    #[track_caller]
    pub fn dims(self) -> Vec<Dim> {
        self.graph.line(Location::caller());
        let ty = self.value.and_then(|value| self.graph.type_of(value));
        ty.map_or_else(Vec::new, |ty| ty.shape)
    }

    /// The number of dimensions.
    #[track_caller]
    pub fn rank(self) -> usize {
        self.dims().len()
    }

    /// The sizes. Calling this for a tensor with unknown dimensions is an error of the graph.
    #[track_caller]
    pub fn shape(self) -> Vec<usize> {
        let dims = self.dims();
        let known: Option<Vec<usize>> =
            dims.iter().map(|dim| dim.known().map(|extent| extent as usize)).collect();
        known.unwrap_or_else(|| {
            let message = format!("a tensor of shape {} has no fixed shape", format_dims(&dims));
            let hint = "use `dims`, or `shape_tensor` for the sizes at run time";
            self.graph.note(message, Some(hint.into()), Location::caller());
            dims.iter().map(|dim| dim.known().map_or(1, |extent| extent as usize)).collect()
        })
    }

    /// The size of an axis; 1 for an invalid tensor.
    #[track_caller]
    pub fn extent(self, axis: usize) -> usize {
        if !self.is_valid() {
            return 1;
        }
        let dims = self.dims();
        let (message, hint) = match dims.get(axis).map(Dim::known) {
            Some(Some(extent)) => return extent as usize,
            Some(None) => {
                let shape = format_dims(&dims);
                let message = format!("axis {axis} of a tensor of shape {shape} has no fixed size");
                (message, Some("declare the input with a fixed size on this axis".to_owned()))
            }
            None => {
                let rank = dims.len();
                (format!("axis {axis} is out of range for a tensor of rank {rank}"), None)
            }
        };
        self.graph.note(message, hint, Location::caller());
        1
    }

    /// The size of the last axis.
    #[track_caller]
    pub fn last_extent(self) -> usize {
        self.extent(self.rank().saturating_sub(1))
    }

    /// Normalizes an axis that may count from the end.
    #[track_caller]
    pub(crate) fn axis(self, axis: i32) -> usize {
        let rank = self.rank() as i32;
        let from_front = if axis < 0 { axis + rank } else { axis };
        if self.is_valid() && !(0..rank).contains(&from_front) {
            let message = format!("axis {axis} is out of range for a tensor of rank {rank}");
            self.graph.note(message, None, Location::caller());
        }
        from_front.max(0) as usize
    }

    /// Sets the name of the value, for profiles and reports.
    pub fn label(self, name: &str) -> Tensor<'g> {
        if let Some(value) = self.value {
            self.graph.rename(value, name);
        }
        self
    }
}

/// Formats a shape.
pub(crate) fn format_dims(dims: &[Dim]) -> String {
    let dims: Vec<_> = dims.iter().map(ToString::to_string).collect();
    format!("[{}]", dims.join(", "))
}
