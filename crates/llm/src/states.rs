//! States of all layers.
//!
//! Core ML is reported to fail on the Neural Engine with three or more states, and with last dimensions that are not multiples of
//! 32. So tensors of the same purpose and shape are rows of one state, and heads are padded.

use coremill_graph::{Graph, State};

/// Name of the state for keys and values.
pub(crate) const CACHE: &str = "cache";

/// The last dimension of a state is a multiple of this number.
const ALIGNMENT: usize = 32;

/// Elements of a head in a cache.
pub(crate) fn stored_head(head: usize) -> usize {
    head.checked_next_multiple_of(ALIGNMENT).unwrap_or(head)
}

/// A tensor that a layer keeps between calls: its purpose, and its shape with one row.
pub(crate) type Part = (&'static str, Vec<usize>);

/// Declares the states for the parts of all layers, and returns the parts of each layer as rows of these states.
pub(crate) fn declare<'g>(graph: &'g Graph, layers: &[Vec<Part>]) -> Vec<Vec<State<'g>>> {
    let parts = || layers.iter().flatten();
    let mut known: Vec<(&Part, State<'g>)> = Vec::new();
    for part in parts() {
        if known.iter().any(|(other, _)| *other == part) {
            continue;
        }
        let (purpose, shape) = part;
        let mut shape = shape.clone();
        shape[0] *= parts().filter(|other| *other == part).count();
        let others = known.iter().filter(|((other, _), _)| other == purpose).count();
        let name = match others {
            0 => (*purpose).to_owned(),
            _ => format!("{purpose}_{}", others + 1),
        };
        known.push((part, graph.state(&name, shape)));
    }
    let mut used = vec![0; known.len()];
    let mut take = |part: &Part| {
        let index = known.iter().position(|(other, _)| *other == part)?;
        let (first, count) = (used[index], part.1[0]);
        used[index] += count;
        Some(known[index].1.rows(first..first + count))
    };
    layers.iter().map(|parts| parts.iter().filter_map(&mut take).collect()).collect()
}

#[cfg(test)]
mod tests {
    use coremill_graph::{Device, Session};

    use super::*;

    #[test]
    fn tensors_of_equal_purpose_and_shape_share_a_state() {
        let graph = Graph::new();
        let attention = || vec![(CACHE, vec![1, 2, 8, 32]), (CACHE, vec![1, 2, 8, 32])];
        let layers = [
            attention(),
            vec![("window", vec![1, 3, 64])],
            vec![("window", vec![1, 2, 64])],
            attention(),
        ];
        let states = declare(&graph, &layers);
        let counts: Vec<_> = states.iter().map(Vec::len).collect();
        assert_eq!(counts, [2, 1, 1, 2]);
        assert_eq!(states[3][1].shape(), [1, 2, 8, 32]);
        for state in states.iter().flatten() {
            state.write(state.read());
        }
        graph.output("y", states[0][0].read());
        let mut executable = Session::new(Device::Host).compile(&graph).expect("compiles");
        let mut found = executable.states("main").expect("states");
        found.sort_by(|a, b| a.name.cmp(&b.name));
        let found: Vec<_> = found
            .iter()
            .map(|state| (&*state.name, state.default_shape().unwrap_or_default()))
            .collect();
        let expected = [
            ("cache", vec![4, 2, 8, 32]),
            ("window", vec![1, 3, 64]),
            ("window_2", vec![1, 2, 64]),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn pads_head_size_to_alignment() {
        assert_eq!([1, 32, 80, 128].map(stored_head), [32, 32, 96, 128]);
        assert_eq!(stored_head(usize::MAX), usize::MAX);
    }
}
