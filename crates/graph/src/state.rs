use std::panic::Location;

use coremill_mil::ir::ValueId;
use coremill_mil::ops::OpKind;
use coremill_tensor::DType;

use crate::arg::Arg;
use crate::call::Call;
use crate::graph::Graph;
use crate::tensor::{Tensor, format_dims};

/// Floats that persist between runs, for instance a KV cache.
#[derive(Clone, Copy, Debug)]
pub struct State<'g> {
    graph: &'g Graph,
    value: Option<ValueId>,
}

impl<'g> State<'g> {
    pub(crate) fn new(graph: &'g Graph, value: Option<ValueId>) -> State<'g> {
        State { graph, value }
    }

    fn tensor(self) -> Tensor<'g> {
        Tensor::new(self.graph, self.value)
    }

    /// Returns the sizes of the dimensions.
    #[track_caller]
    pub fn shape(self) -> Vec<usize> {
        self.tensor().shape()
    }

    /// Reads the current contents.
    #[track_caller]
    pub fn read(self) -> Tensor<'g> {
        let mut call = Call::new(self.graph, OpKind::ReadState);
        call.arg("input", self.tensor());
        call.unfolded().cast(DType::Fp32)
    }

    /// Replaces the contents. Later reads return the new contents.
    #[track_caller]
    pub fn write(self, data: impl Into<Arg<'g>>) {
        let location = Location::caller();
        let mut identity = Call::new(self.graph, OpKind::Identity);
        identity.arg("x", data);
        let data = identity.one();
        if !data.is_valid() || self.value.is_none() {
            return;
        }
        if data.dims() != self.tensor().dims() {
            let (found, held) = (format_dims(&data.dims()), format_dims(&self.tensor().dims()));
            let message = format!("a state of shape {held} is written a tensor of shape {found}");
            let hint = "a state keeps its shape: update a part of it with `slice_update`";
            return self.graph.note(message, Some(hint.into()), location);
        }
        let mut call = Call::new(self.graph, OpKind::WriteState);
        call.arg("input", self.tensor());
        call.arg("data", data.cast(DType::Fp16));
        call.all();
    }
}
