use std::ops::Range;

use coremill_kernels::matmul::{Order, PanelSource};

use super::Weights;

/// A panel source for weights in any form.
pub(crate) struct WeightPanels {
    weights: Weights,
    inputs: usize,
    outputs: usize,
    order: Order,
}

impl WeightPanels {
    /// Returns `None` if the number of weights is not `inputs * outputs`.
    pub(crate) fn new(
        weights: Weights,
        inputs: usize,
        outputs: usize,
        order: Order,
    ) -> Option<WeightPanels> {
        let count = weights.rows() * weights.columns();
        (inputs.checked_mul(outputs)? == count).then_some(WeightPanels {
            weights,
            inputs,
            outputs,
            order,
        })
    }

    fn element(&self, place: usize) -> f32 {
        let mut element = [0.0];
        self.weights.expand_elements(place..place + 1, &mut element);
        element[0]
    }
}

impl PanelSource for WeightPanels {
    fn fill(&self, inputs: Range<usize>, outputs: Range<usize>, width: usize, panel: &mut [f32]) {
        panel.fill(0.0);
        if let Order::InputsFirst = self.order {
            for (input, panel) in inputs.zip(panel.chunks_exact_mut(width)) {
                let start = input * self.outputs;
                let places = start + outputs.start..start + outputs.end;
                self.weights.expand_elements(places, &mut panel[..outputs.len()]);
            }
            return;
        }
        let mut row = vec![0.0; inputs.len()];
        for (at, output) in outputs.enumerate() {
            let start = output * self.inputs;
            if let Order::ChannelsFirst { taps } = self.order {
                let channels = self.inputs / taps.max(1);
                for (input, to) in inputs.clone().zip(&mut row) {
                    *to = self.element(start + input % channels * taps + input / channels);
                }
            } else {
                let places = start + inputs.start..start + inputs.end;
                self.weights.expand_elements(places, &mut row);
            }
            for (panel, element) in panel.chunks_exact_mut(width).zip(&row) {
                panel[at] = *element;
            }
        }
    }
}
