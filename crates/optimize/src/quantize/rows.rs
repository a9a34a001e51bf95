//! The input vectors that a layer multiplies by the rows of its weight.

use coremill_engine::Array;
use coremill_mil::ir::{Constant, OpId};
use coremill_mil::ops::OpKind;
use coremill_passes::Editor;

/// Maximum number of products per input. Limits how many vectors are sampled.
const MAX_PRODUCTS: usize = 1 << 33;

/// The layout of a layer's input vectors.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Rows {
    /// Vectors along the last axis.
    Last,
    /// Windows over the spatial axes.
    Windows {
        /// Number of channel groups, each with its own vectors.
        groups: usize,
        /// The window along each axis.
        axes: Vec<Window>,
    },
}

/// A window along one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Window {
    kernel: usize,
    stride: usize,
    dilation: usize,
    before: usize,
    after: usize,
}

impl Rows {
    /// The layout of an operation's input vectors, `None` if it has none or they are unknown.
    pub(super) fn of(editor: &Editor<'_>, id: OpId, kind: OpKind) -> Option<Rows> {
        match kind {
            OpKind::Linear => Some(Rows::Last),
            OpKind::Conv => {
                let weight =
                    editor.constant_argument(id, "weight").and_then(Constant::tensor_type)?;
                let kernel = weight.shape.get(2..)?;
                let rank = kernel.len();
                let of = |name, missing: i64, length: usize| -> Option<Vec<usize>> {
                    let given = editor.ints(id, name).unwrap_or_else(|| vec![missing; length]);
                    let sizes: Option<Vec<usize>> =
                        given.into_iter().map(|size| usize::try_from(size).ok()).collect();
                    sizes.filter(|sizes| sizes.len() == length)
                };
                let pads = match editor.text(id, "pad_type").unwrap_or("valid") {
                    "valid" => vec![0; 2 * rank],
                    "custom" => of("pad", 0, 2 * rank)?,
                    _ => return None,
                };
                let (strides, dilations) = (of("strides", 1, rank)?, of("dilations", 1, rank)?);
                let groups = match editor.number(id, "groups") {
                    Some(groups) => groups as usize,
                    None => 1,
                };
                let window = |axis: usize| {
                    Some(Window {
                        kernel: kernel[axis].known().and_then(|size| size.try_into().ok())?,
                        stride: strides[axis].max(1),
                        dilation: dilations[axis].max(1),
                        before: pads[2 * axis],
                        after: pads[2 * axis + 1],
                    })
                };
                let axes = (0..rank).map(window).collect::<Option<Vec<_>>>()?;
                Some(Rows::Windows { groups, axes })
            }
            _ => None,
        }
    }

    /// Number of groups, and length of each vector, for an input of this shape.
    pub(super) fn lengths(&self, shape: &[usize]) -> Option<(usize, usize)> {
        match self {
            Rows::Last => Some((1, *shape.last()?)),
            Rows::Windows { groups, axes } => {
                let channels = *shape.get(1)?;
                let is_sound = shape.len() == axes.len() + 2
                    && *groups > 0
                    && channels.is_multiple_of(*groups);
                let kernel: usize = axes.iter().map(|window| window.kernel).product();
                is_sound.then(|| (*groups, channels / groups * kernel))
            }
        }
    }

    /// Calls `visit` with a sample of the input's vectors and their group.
    pub(super) fn for_each(&self, input: &Array, visit: &mut dyn FnMut(usize, &[f32])) {
        let (Some(elements), Some((groups, length))) =
            (input.as_floats(), self.lengths(input.shape()))
        else {
            return;
        };
        let products = length.saturating_mul(length).max(1);
        let every = |count: usize| (count.saturating_mul(products) / MAX_PRODUCTS).max(1);
        match self {
            Rows::Last => {
                let rows = elements.chunks_exact(length.max(1));
                let every = every(rows.len());
                rows.step_by(every).for_each(|row| visit(0, row));
            }
            Rows::Windows { axes, .. } => {
                let (sets, extents) = (input.shape()[0], &input.shape()[2..]);
                let places = places(axes, extents);
                let (plane, kernel) = (extents.iter().product::<usize>(), length);
                let channels = input.shape()[1] / groups;
                let every = every(sets * groups * places.len());
                let mut row = Vec::with_capacity(kernel);
                let all = (0..sets * groups)
                    .flat_map(|set| places.iter().map(move |window| (set, window)));
                for (set, window) in all.step_by(every) {
                    row.clear();
                    for channel in elements[set * channels * plane..][..channels * plane]
                        .chunks_exact(plane.max(1))
                    {
                        row.extend(window.iter().map(|at| at.map_or(0.0, |at| channel[at])));
                    }
                    visit(set % groups, &row);
                }
            }
        }
    }
}

/// Offset in a plane of each window element, `None` in the padding.
fn places(axes: &[Window], extents: &[usize]) -> Vec<Vec<Option<usize>>> {
    let mut all: Vec<Vec<Option<usize>>> = vec![vec![Some(0)]];
    for (window, &extent) in axes.iter().zip(extents) {
        let covered = window.dilation * (window.kernel.max(1) - 1) + 1;
        let steps = (extent + window.before + window.after)
            .checked_sub(covered)
            .map_or(0, |room| room / window.stride + 1);
        let along = |step: usize| {
            (0..window.kernel).map(move |at| {
                let at = step * window.stride + at * window.dilation;
                at.checked_sub(window.before).filter(|&at| at < extent)
            })
        };
        let mut next = Vec::with_capacity(all.len() * steps);
        for outer in &all {
            for step in 0..steps {
                let inner: Vec<Option<usize>> = along(step).collect();
                let both = outer.iter().flat_map(|&outer| {
                    inner.iter().map(move |&inner| Some(outer? * extent + inner?))
                });
                next.push(both.collect());
            }
        }
        all = next;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(kernel: usize, stride: usize, dilation: usize, pads: [usize; 2]) -> Window {
        Window { kernel, stride, dilation, before: pads[0], after: pads[1] }
    }

    #[test]
    fn yields_conv_windows_with_padding() {
        let elements: Vec<f32> = (1..=24).map(|at| at as f32).collect();
        let input = Array::floats(coremill_tensor::DType::Fp32, [1, 2, 3, 4], elements);
        let axes = vec![window(2, 2, 1, [1, 0]), window(2, 1, 2, [0, 1])];
        let mut seen = Vec::new();
        let rows = Rows::Windows { groups: 2, axes };
        rows.for_each(&input, &mut |group, row| seen.push((group, row.to_vec())));
        assert_eq!(rows.lengths(input.shape()), Some((2, 4)));
        assert_eq!(seen.len(), 12);
        // The first row of windows starts in the padding, and the last window of a row ends in it.
        assert_eq!(seen[0], (0, vec![0.0, 0.0, 1.0, 3.0]));
        assert_eq!(seen[2], (0, vec![0.0, 0.0, 3.0, 0.0]));
        assert_eq!(seen[4], (0, vec![6.0, 8.0, 10.0, 12.0]));
        assert_eq!(seen[9], (1, vec![17.0, 19.0, 21.0, 23.0]));
    }

    #[test]
    fn yields_vectors_along_last_axis() {
        let input =
            Array::floats(coremill_tensor::DType::Fp32, [2, 1, 2], vec![1.0, 2.0, 3.0, 4.0]);
        let mut seen = Vec::new();
        Rows::Last.for_each(&input, &mut |group, row| seen.push((group, row.to_vec())));
        assert_eq!(seen, [(0, vec![1.0, 2.0]), (0, vec![3.0, 4.0])]);
    }
}
