//! Modules of several operations, as networks are made of.
//!
//! A layer with parameters is a struct of its settings. `new` takes those that every such layer needs, and methods set the
//! rest: `Linear::new(8).without_bias()`, `Conv::new(16, [3, 3]).padding([1, 1])`, `LayerNorm::new(1e-5)`. `apply` takes a
//! name and a tensor, declares the parameters below the name as torch does (`fc.weight`, `fc.bias`), and returns the
//! result. What has no parameters is a function.
//!
//! ```
//! use coremill_graph::nn::{Activation, LayerNorm, Linear};
//! use coremill_graph::{DType, Graph};
//!
//! let graph = Graph::new();
//! let x = graph.input("x", DType::Fp32, [1, 4]);
//! let x = LayerNorm::new(1e-5).apply("norm", x);
//! graph.output("y", Activation::Gelu.apply(Linear::new(8).apply("fc", x)));
//! let names: Vec<String> = graph.params().into_iter().map(|(name, _)| name).collect();
//! assert!(names.contains(&"fc.weight".to_owned()) && names.contains(&"norm.bias".to_owned()));
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `linear` | [`Linear`], [`Embedding`], [`Lora`] |
//! | `conv` | [`Conv`], [`ConvTranspose`], pooling, resizing |
//! | `mixers` | [`Mamba`], [`GatedDeltaNet`], [`causal_conv`], and what they remember |
//! | `norm` | [`LayerNorm`], [`RmsNorm`], [`GroupNorm`], [`BatchNorm`], [`InstanceNorm`], [`LayerNorm2d`], [`adaptive_norm`] |
//! | `activation` | [`Activation`] |
//! | `rope` | [`Rope`] and its scalings |
//! | `attention` | [`attention`], [`Attention`], [`KvCache`], [`latent_attention`] |
//! | `experts` | [`Experts`], [`top_experts`], [`grouped_matmul`] |
//! | `scan` | [`scan`], [`repeat`], [`selective_scan`], [`state_space_dual`], [`gated_delta`], [`wkv`] |
//! | `recurrent` | [`Lstm`], [`Gru`] |
//! | `linalg` | [`solve`], [`solve_triangular`], [`determinant`], [`cholesky`], [`qr`], [`eigh`], [`svd`] |
//! | `sampling` | [`top_k_filter`], [`top_p_filter`], [`sample`] |
//! | `spectral` | [`fft`], [`LogMel`] |

use std::panic::Location;

use crate::graph::Graph;
use crate::tensor::{Tensor, format_dims};

mod activation;
mod attention;
mod conv;
mod experts;
mod linalg;
mod linear;
mod mixers;
mod norm;
mod recurrent;
mod rope;
mod sampling;
mod scan;
mod spectral;

pub use activation::Activation;
pub use attention::{Attention, AttentionOptions, KvCache, attention, latent_attention};
pub use conv::{
    Conv, ConvTranspose, adaptive_avg_pool, avg_pool, max_pool, resize_bilinear, resize_nearest,
};
pub use experts::{Experts, grouped_matmul, top_experts};
pub use linalg::{cholesky, determinant, eigh, qr, solve, solve_triangular, svd};
pub use linear::{Embedding, Linear, Lora};
pub use mixers::{Decay, GatedDeltaNet, Mamba, MixerCache, causal_conv};
pub use norm::{
    BatchNorm, GroupNorm, InstanceNorm, LayerNorm, LayerNorm2d, RmsNorm, adaptive_norm,
};
pub use recurrent::{Gru, Lstm};
pub use rope::{Rope, RopeScaling, RopeStyle, RopeTables, axial_tables, rotate};
pub use sampling::{sample, top_k_filter, top_p_filter};
pub use scan::{MAX_UNROLLED, gated_delta, repeat, scan, selective_scan, state_space_dual, wkv};
pub use spectral::{LogMel, fft};

/// The most elements of a constant that a module computes: tables, masks, filters, zeros.
const MAX_CONSTANT: usize = 1 << 28;

/// Whether a constant of these extents may be computed; a mistake if it is too large.
#[track_caller]
fn fits(graph: &Graph, what: &str, extents: &[usize]) -> bool {
    let fits = product(extents) <= MAX_CONSTANT;
    if !fits {
        let message = format!(
            "{what} of extents {extents:?} takes more than {MAX_CONSTANT} elements, the most of a constant"
        );
        graph.note(message, None, Location::caller());
    }
    fits
}

/// Whether a tensor has the axes that a module names; a mistake if it has others.
#[track_caller]
fn has_axes(x: Tensor<'_>, what: &str, axes: &[&str]) -> bool {
    let fits = !x.is_valid() || x.rank() == axes.len();
    if !fits {
        let (axes, found) = (axes.join(", "), format_dims(&x.dims()));
        let message = format!("{what} takes a tensor of `[{axes}]`; found shape {found}");
        x.graph().note(message, None, Location::caller());
    }
    x.is_valid() && fits
}

/// Whether a tensor is a batch of square matrices; a mistake if it is not.
#[track_caller]
fn is_square(a: Tensor<'_>, what: &str) -> bool {
    if !has_axes(a, what, &["batch", "n", "n"]) {
        return false;
    }
    let [rows, columns] = [a.extent(1), a.extent(2)];
    if rows != columns {
        let message = format!("{what} takes square matrices; found {rows} rows, {columns} columns");
        a.graph().note(message, None, Location::caller());
    }
    rows == columns
}

/// A constant of zeros.
#[track_caller]
fn zeros<'g>(graph: &'g Graph, shape: &[usize]) -> Tensor<'g> {
    if !fits(graph, "a tensor of zeros", shape) {
        return graph.nothing();
    }
    graph.floats(shape, &vec![0.0; product(shape)])
}

/// The product of extents, `usize::MAX` if it is beyond: tensors of that size are refused where they are declared.
fn product(extents: &[usize]) -> usize {
    extents.iter().fold(1, |all, &extent| all.saturating_mul(extent))
}

/// An extent as Core ML counts, in 32 bits; the largest of these for what is beyond, which no tensor has.
fn place(extent: usize) -> i32 {
    i32::try_from(extent).unwrap_or(i32::MAX)
}

/// A name below another.
fn below(name: &str, part: &str) -> String {
    if name.is_empty() { part.to_owned() } else { format!("{name}.{part}") }
}
