//! Rotary position embeddings.

use std::panic::Location;

use super::{fits, place};
use crate::graph::Graph;
use crate::ops::Gather;
use crate::tensor::Tensor;

/// Rotary position embedding of attention heads.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Rope {
    /// Number of rotated elements of a head; the elements after them are unchanged.
    pub rotated: usize,
    /// Base of the wavelengths.
    pub theta: f64,
    /// Layout of the rotated pairs.
    pub style: RopeStyle,
    /// Scaling of the wavelengths for longer contexts.
    pub scaling: RopeScaling,
}

/// Pairs of elements that are rotated together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RopeStyle {
    /// Elements `i` and `i + rotated / 2`, as in NeoX and in transformers' Llama.
    #[default]
    SplitHalves,
    /// Elements `2 i` and `2 i + 1`, as in GPT-J and in GGUF's Llama.
    Interleaved,
}

/// Scaling of the wavelengths.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum RopeScaling {
    /// No scaling.
    #[default]
    None,
    /// All wavelengths are scaled by one factor.
    Linear {
        /// The factor.
        factor: f64,
    },
    /// The base is increased.
    Ntk {
        /// Factor by which the context grows.
        factor: f64,
    },
    /// Long waves are scaled by the factor, short waves are unchanged, and waves in between are scaled
    /// partly.
    Yarn {
        /// The factor.
        factor: f64,
        /// Length of the context in training.
        original: f64,
        /// Number of turns within the original context above which waves are unchanged; usually 32.
        beta_fast: f64,
        /// Number of turns below which waves are fully scaled; usually 1.
        beta_slow: f64,
    },
    /// The scaling of Llama 3.1.
    Llama3 {
        /// The factor.
        factor: f64,
        /// Number of turns within the original context below which waves are fully scaled; usually 1.
        low: f64,
        /// Number of turns within the original context above which waves are unchanged; usually 4.
        high: f64,
        /// Length of the context in training.
        original: f64,
    },
}

/// Cosines and sines of positions.
#[derive(Clone, Copy, Debug)]
pub struct RopeTables<'g> {
    /// Cosines; the last axis has half of the rotated elements.
    pub cos: Tensor<'g>,
    /// Sines; the last axis has half of the rotated elements.
    pub sin: Tensor<'g>,
    style: RopeStyle,
}

impl Rope {
    /// Returns an embedding that rotates the first `rotated` elements of each head, without scaling.
    pub fn new(rotated: usize, theta: f64) -> Rope {
        Rope { rotated, theta, style: RopeStyle::default(), scaling: RopeScaling::None }
    }

    /// Sets the layout of the pairs.
    pub fn style(mut self, style: RopeStyle) -> Rope {
        self.style = style;
        self
    }

    /// Sets the scaling of the wavelengths.
    pub fn scaling(mut self, scaling: RopeScaling) -> Rope {
        self.scaling = scaling;
        self
    }

    /// The angle of each frequency for one position, and the factor of cosines and sines.
    pub fn frequencies(&self) -> (Vec<f64>, f64) {
        let width = self.rotated as f64;
        let base = match self.scaling {
            RopeScaling::Ntk { factor } => self.theta * factor.powf(width / (width - 2.0)),
            _ => self.theta,
        };
        let plain: Vec<f64> =
            (0..self.rotated / 2).map(|at| base.powf(-2.0 * at as f64 / width)).collect();
        match self.scaling {
            RopeScaling::None | RopeScaling::Ntk { .. } => (plain, 1.0),
            RopeScaling::Linear { factor } => (plain.iter().map(|f| f / factor).collect(), 1.0),
            RopeScaling::Yarn { factor, original, beta_fast, beta_slow } => {
                let turns = |count: f64| {
                    width * (original / (count * std::f64::consts::TAU)).ln() / (2.0 * base.ln())
                };
                let low = turns(beta_fast).floor().max(0.0);
                let high = turns(beta_slow).ceil().min(width - 1.0);
                let span = if high > low { high - low } else { 0.001 };
                let mixed = plain.iter().enumerate().map(|(at, f)| {
                    let stretched = ((at as f64 - low) / span).clamp(0.0, 1.0);
                    f / factor * stretched + f * (1.0 - stretched)
                });
                (mixed.collect(), if factor <= 1.0 { 1.0 } else { 0.1 * factor.ln() + 1.0 })
            }
            RopeScaling::Llama3 { factor, low, high, original } => {
                let scaled = plain.iter().map(|f| {
                    let length = std::f64::consts::TAU / f;
                    if length > original / low {
                        f / factor
                    } else if length < original / high {
                        *f
                    } else {
                        let smooth = (original / length - low) / (high - low);
                        (1.0 - smooth) * f / factor + smooth * f
                    }
                });
                (scaled.collect(), 1.0)
            }
        }
    }

    /// The tables of the first positions, as constants of shape `[positions, rotated / 2]`.
    #[track_caller]
    pub fn tables<'g>(&self, graph: &'g Graph, positions: usize) -> RopeTables<'g> {
        let rotated = self.rotated;
        if rotated == 0 || !rotated.is_multiple_of(2) || positions == 0 {
            let message = format!(
                "rotary embeddings need at least 1 position and an even number of rotated elements, got {positions} and {rotated}"
            );
            let nothing = graph.mistake(message, None, Location::caller());
            return RopeTables::new(nothing, nothing, self.style);
        }
        if !fits(graph, "a table of rotations", &[positions, rotated / 2]) {
            return RopeTables::new(graph.nothing(), graph.nothing(), self.style);
        }
        let (frequencies, factor) = self.frequencies();
        RopeTables::of_frequencies(graph, positions, &frequencies, factor, self.style)
    }
}

impl<'g> RopeTables<'g> {
    /// Returns tables of cosines and sines that were computed elsewhere. The last axis has half of the
    /// rotated elements.
    pub fn new(cos: Tensor<'g>, sin: Tensor<'g>, style: RopeStyle) -> RopeTables<'g> {
        RopeTables { cos, sin, style }
    }

    /// The tables of the first positions, as constants, for given angles of a step of position. Cosines and sines are
    /// multiplied by the factor.
    #[track_caller]
    pub fn of_frequencies(
        graph: &'g Graph,
        positions: usize,
        frequencies: &[f64],
        factor: f64,
        style: RopeStyle,
    ) -> RopeTables<'g> {
        if !fits(graph, "a table of rotations", &[positions, frequencies.len()]) {
            return RopeTables::new(graph.nothing(), graph.nothing(), style);
        }
        let angles: Vec<f64> = (0..positions)
            .flat_map(|position| frequencies.iter().map(move |f| position as f64 * f))
            .collect();
        let table = |of: fn(f64) -> f64| {
            let elements: Vec<f32> = angles.iter().map(|&x| (of(x) * factor) as f32).collect();
            graph.floats([positions, frequencies.len()], &elements)
        };
        RopeTables { cos: table(f64::cos), sin: table(f64::sin), style }
    }

    /// The rows at integer positions.
    #[track_caller]
    pub fn at(self, positions: Tensor<'g>) -> RopeTables<'g> {
        let rows = |table: Tensor<'g>| table.gather(positions, Gather::new().axis(0));
        RopeTables { cos: rows(self.cos), sin: rows(self.sin), ..self }
    }
}

/// Tables for the positions of an image, as in SAM 2: the first half of a head is rotated by the column and
/// the second half by the row. The shape is `[height · width, head / 2]`, for [`RopeStyle::Interleaved`].
#[track_caller]
pub fn axial_tables<'g>(
    graph: &'g Graph,
    head: usize,
    theta: f64,
    height: usize,
    width: usize,
) -> RopeTables<'g> {
    if head == 0 || !head.is_multiple_of(4) || height == 0 || width == 0 {
        let message = format!(
            "rotary embeddings in two dimensions need at least 1 position and a head size divisible by 4, got {height} × {width} and {head}"
        );
        let nothing = graph.mistake(message, None, Location::caller());
        return RopeTables::new(nothing, nothing, RopeStyle::Interleaved);
    }
    if !fits(graph, "a table of rotations", &[height, width, head]) {
        return RopeTables::new(graph.nothing(), graph.nothing(), RopeStyle::Interleaved);
    }
    let quarter = head / 4;
    let frequencies: Vec<f64> =
        (0..quarter).map(|at| theta.powf(-4.0 * at as f64 / head as f64)).collect();
    let mut angles = Vec::with_capacity(height * width * quarter * 2);
    for at in 0..height * width {
        let (column, row) = ((at % width) as f64, (at / width) as f64);
        angles.extend(frequencies.iter().map(|f| column * f));
        angles.extend(frequencies.iter().map(|f| row * f));
    }
    let table = |of: fn(f64) -> f64| {
        let elements: Vec<f32> = angles.iter().map(|&x| of(x) as f32).collect();
        graph.floats([height * width, quarter * 2], &elements)
    };
    RopeTables { cos: table(f64::cos), sin: table(f64::sin), style: RopeStyle::Interleaved }
}

/// Rotates the first elements of heads of shape `[batch, heads, positions, head]`.
#[track_caller]
pub fn rotate<'g>(x: Tensor<'g>, tables: RopeTables<'g>) -> Tensor<'g> {
    let graph = x.graph();
    let rotated = 2 * tables.cos.last_extent();
    let head = x.last_extent();
    let part = if rotated < head { x.narrow(-1, ..place(rotated)) } else { x };
    let (cos, sin) = (tables.cos, tables.sin);
    let half = place(rotated / 2);
    let turned = match tables.style {
        RopeStyle::SplitHalves => {
            let (first, second) = (part.narrow(-1, ..half), part.narrow(-1, half..));
            graph.concat(
                [first * cos - second * sin, second * cos + first * sin],
                -1,
                Default::default(),
            )
        }
        RopeStyle::Interleaved => {
            let (first, second) = (part.strided(-1, .., 2), part.strided(-1, 1.., 2));
            let pairs = [first * cos - second * sin, second * cos + first * sin];
            let stacked = graph.stack(pairs, -1);
            let mut shape: Vec<i32> = x.shape().iter().map(|&extent| place(extent)).collect();
            if let Some(last) = shape.last_mut() {
                *last = place(rotated);
            }
            stacked.reshape(shape)
        }
    };
    if rotated < head {
        let rest = x.narrow(-1, place(rotated)..);
        graph.concat([turned, rest], -1, Default::default())
    } else {
        turned
    }
}
