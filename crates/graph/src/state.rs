use std::ops::Range;
use std::panic::Location;

use coremill_mil::ir::{Dim, ValueId};
use coremill_mil::ops::OpKind;
use coremill_tensor::DType;

use crate::arg::Arg;
use crate::call::Call;
use crate::graph::Graph;
use crate::ops;
use crate::tensor::{Tensor, format_dims};

/// Floats that persist between runs, for instance a KV cache.
#[derive(Clone, Copy, Debug)]
pub struct State<'g> {
    graph: &'g Graph,
    value: Option<ValueId>,
    /// The first index and the number of selected rows; `None` for the whole state.
    rows: Option<(usize, usize)>,
}

impl<'g> State<'g> {
    pub(crate) fn new(graph: &'g Graph, value: Option<ValueId>) -> State<'g> {
        State { graph, value, rows: None }
    }

    /// Selects rows, which are elements of the first dimension. The result is read and written like a state, so that several layers
    /// can share one state: Core ML is reported to fail on the Neural Engine with three or more states.
    ///
    /// ```
    /// use coremill_graph::{DType, Graph};
    ///
    /// let graph = Graph::new();
    /// let sums = graph.state("sums", [2, 32]);
    /// let x = graph.input("x", DType::Fp32, [1, 32]);
    /// let second = sums.rows(1..2);
    /// second.write(second.read() + x);
    /// graph.output("y", second.read());
    /// graph.check()?;
    /// # Ok::<(), coremill_graph::Error>(())
    /// ```
    #[track_caller]
    pub fn rows(self, rows: Range<usize>) -> State<'g> {
        let count = self.shape().first().copied().unwrap_or(rows.end);
        if rows.start >= rows.end || rows.end > count {
            let message = format!(
                "rows {} to {} are out of range for a state of {count} rows",
                rows.start, rows.end
            );
            self.graph.note(message, None, Location::caller());
            return State { value: None, ..self };
        }
        let selection = (self.first_row() + rows.start, rows.len());
        State { rows: (rows.len() < count).then_some(selection).or(self.rows), ..self }
    }

    /// Index of the first selected row.
    pub(crate) fn first_row(self) -> usize {
        self.rows.map_or(0, |(first, _)| first)
    }

    /// The state without a selection of rows.
    pub(crate) fn whole(self) -> State<'g> {
        State { rows: None, ..self }
    }

    fn tensor(self) -> Tensor<'g> {
        Tensor::new(self.graph, self.value)
    }

    /// Returns the sizes of the dimensions.
    #[track_caller]
    pub fn shape(self) -> Vec<usize> {
        let mut shape = self.tensor().shape();
        if let (Some(extent), Some((_, count))) = (shape.first_mut(), self.rows) {
            *extent = count;
        }
        shape
    }

    /// Reads the current contents.
    #[track_caller]
    pub fn read(self) -> Tensor<'g> {
        let mut call = Call::new(self.graph, OpKind::ReadState);
        call.arg("input", self.tensor());
        let all = call.unfolded();
        // A cast of the selected rows costs less than one of the whole state.
        let rows = match self.rows {
            Some((first, count)) => all.narrow(0, bound(first)..bound(first + count)),
            None => all,
        };
        rows.cast(DType::Fp32)
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
        let shape = self.shape();
        let dims: Vec<Dim> = shape.iter().map(|&extent| Dim::Known(extent as u64)).collect();
        if data.dims() != dims {
            let (found, held) = (format_dims(&data.dims()), format_dims(&dims));
            let message =
                format!("a tensor of shape {found} cannot be written to a state of shape {held}");
            let hint = "a state keeps its shape: update a part of it with `slice_update`";
            return self.graph.note(message, Some(hint.into()), location);
        }
        if let Some((first, _)) = self.rows {
            let begin: Vec<i32> =
                (0..shape.len()).map(|axis| if axis == 0 { bound(first) } else { 0 }).collect();
            let end: Vec<i32> =
                begin.iter().zip(&shape).map(|(&at, &count)| at + bound(count)).collect();
            let options = ops::SliceUpdate::new();
            let updated = self.whole().read().slice_update(data, &begin, &end, options);
            return self.whole().write(updated);
        }
        let mut call = Call::new(self.graph, OpKind::WriteState);
        call.arg("input", self.tensor());
        call.arg("data", data.cast(DType::Fp16));
        call.all();
    }
}

/// An index in Core ML's 32-bit integers, saturated. No state has a larger size.
fn bound(index: usize) -> i32 {
    i32::try_from(index).unwrap_or(i32::MAX)
}
