use super::{below, place, product, zeros};
use crate::graph::Graph;
use crate::ops;
use crate::tensor::Tensor;

/// An LSTM layer over `[length, batch, inputs]`, with torch's parameters.
#[derive(Clone, Copy, Debug)]
pub struct Lstm {
    hidden: usize,
    bidirectional: bool,
}

/// A GRU layer over `[length, batch, inputs]`, with torch's parameters.
#[derive(Clone, Copy, Debug)]
pub struct Gru {
    hidden: usize,
}

/// Torch's parameters with the gates in Core ML's order.
#[track_caller]
fn ordered<'g>(
    graph: &'g Graph,
    name: &str,
    gates: &[i32],
    hidden: usize,
    inputs: Option<usize>,
) -> Tensor<'g> {
    let mut shape = vec![product(&[gates.len(), hidden])];
    shape.extend(inputs);
    let param = graph.param(name, shape);
    let part = |&gate: &i32| {
        let [begin, end] = [gate, gate + 1].map(|gate| gate.saturating_mul(place(hidden)));
        param.narrow(0, begin..end)
    };
    let parts: Vec<_> = gates.iter().map(part).collect();
    graph.concat(parts, 0, Default::default())
}

impl Lstm {
    /// Returns a layer with `hidden` units.
    pub fn new(hidden: usize) -> Lstm {
        Lstm { hidden, bidirectional: false }
    }

    /// Runs the layer in both directions.
    pub fn bidirectional(mut self) -> Lstm {
        self.bidirectional = true;
        self
    }

    /// Applies layer 0 of the name. By default, the initial states are zeros of shape `[batch, hidden]`.
    /// Returns all outputs, and the final `h` and `c`.
    #[track_caller]
    pub fn apply<'g>(
        self,
        name: &str,
        x: Tensor<'g>,
        start: Option<(Tensor<'g>, Tensor<'g>)>,
    ) -> (Tensor<'g>, Tensor<'g>, Tensor<'g>) {
        const GATES: [i32; 4] = [0, 1, 3, 2];
        let (graph, inputs, hidden) = (x.graph(), x.last_extent(), self.hidden);
        let param = |part: &str, inputs: Option<usize>| {
            ordered(graph, &below(name, part), &GATES, hidden, inputs)
        };
        let bias = |suffix: &str| {
            param(&format!("bias_ih_l0{suffix}"), None)
                + param(&format!("bias_hh_l0{suffix}"), None)
        };
        let width = if self.bidirectional { product(&[2, hidden]) } else { hidden };
        let (h, c) = start.unwrap_or_else(|| {
            let zeros = zeros(graph, &[x.extent(1), width]);
            (zeros, zeros)
        });
        let mut options = ops::Lstm::new()
            .bias(bias(""))
            .output_sequence(true)
            .direction(if self.bidirectional { "bidirectional" } else { "forward" });
        if self.bidirectional {
            options = options
                .weight_ih_back(param("weight_ih_l0_reverse", Some(inputs)))
                .weight_hh_back(param("weight_hh_l0_reverse", Some(hidden)))
                .bias_back(bias("_reverse"));
        }
        let of_input = param("weight_ih_l0", Some(inputs));
        let of_hidden = param("weight_hh_l0", Some(hidden));
        x.lstm(h, c, of_input, of_hidden, options)
    }
}

impl Gru {
    /// Returns a layer with `hidden` units.
    pub fn new(hidden: usize) -> Gru {
        Gru { hidden }
    }

    /// Applies layer 0 of the name. By default, the initial state is zeros of shape `[batch, hidden]`.
    /// Returns all outputs and the final state.
    #[track_caller]
    pub fn apply<'g>(
        self,
        name: &str,
        x: Tensor<'g>,
        start: Option<Tensor<'g>>,
    ) -> (Tensor<'g>, Tensor<'g>) {
        const GATES: [i32; 3] = [0, 2, 1];
        let (graph, inputs, hidden) = (x.graph(), x.last_extent(), self.hidden);
        let param = |part: &str, inputs: Option<usize>| {
            ordered(graph, &below(name, part), &GATES, hidden, inputs)
        };
        let h = start.unwrap_or_else(|| zeros(graph, &[x.extent(1), hidden]));
        let options = ops::Gru::new()
            .bias(param("bias_hh_l0", None))
            .input_bias(param("bias_ih_l0", None))
            .output_sequence(true)
            .reset_after(true);
        let of_input = param("weight_ih_l0", Some(inputs));
        let of_hidden = param("weight_hh_l0", Some(hidden));
        x.gru(h, of_input, of_hidden, options)
    }
}
