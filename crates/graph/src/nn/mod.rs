//! Layers that consist of several operations.
//!
//! A layer with parameters is a struct with its settings. `new` takes the required settings, and methods set
//! the others: `Linear::new(8).without_bias()`, `Conv::new(16, [3, 3]).padding([1, 1])`,
//! `LayerNorm::new(1e-5)`. `apply` takes a name and a tensor, declares the parameters below the name with
//! torch's names (`fc.weight`, `fc.bias`), and returns the result. Layers without parameters are functions.
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
//! | file | contents |
//! |---|---|
//! | `linear` | [`Linear`], [`Embedding`], [`Lora`] |
//! | `conv` | [`Conv`], [`ConvTranspose`], pooling, resizing |
//! | `mixers` | [`Mamba`], [`Mamba2`], [`GatedDeltaNet`], [`causal_conv`], and their caches |
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
pub use mixers::{
    Decay, GatedDeltaNet, Mamba, Mamba2, MixerCache, MixerShapes, SequenceBlock, causal_conv,
    causal_conv_block,
};
pub use norm::{
    BatchNorm, GroupNorm, InstanceNorm, LayerNorm, LayerNorm2d, RmsNorm, adaptive_norm,
};
pub use recurrent::{Gru, Lstm};
pub use rope::{Rope, RopeScaling, RopeStyle, RopeTables, axial_tables, rotate};
pub use sampling::{sample, top_k_filter, top_p_filter};
pub use scan::{MAX_UNROLLED, gated_delta, repeat, scan, selective_scan, state_space_dual, wkv};
pub use spectral::{LogMel, fft};

/// Maximum number of elements of a constant that a layer computes, such as a table or a mask.
const MAX_CONSTANT: usize = 1 << 28;

/// Whether a constant of these sizes is small enough; otherwise records an error.
#[track_caller]
fn fits(graph: &Graph, what: &str, extents: &[usize]) -> bool {
    let fits = product(extents) <= MAX_CONSTANT;
    if !fits {
        let message = format!(
            "{what} of shape {extents:?} has too many elements; the maximum for a constant is {MAX_CONSTANT}"
        );
        graph.note(message, None, Location::caller());
    }
    fits
}

/// Whether a tensor has these axes; otherwise records an error.
#[track_caller]
fn has_axes(x: Tensor<'_>, what: &str, axes: &[&str]) -> bool {
    let fits = !x.is_valid() || x.rank() == axes.len();
    if !fits {
        let (axes, found) = (axes.join(", "), format_dims(&x.dims()));
        let message = format!("{what} requires a tensor of `[{axes}]`; found shape {found}");
        x.graph().note(message, None, Location::caller());
    }
    x.is_valid() && fits
}

/// Whether a tensor is a batch of square matrices; otherwise records an error.
#[track_caller]
fn is_square(a: Tensor<'_>, what: &str) -> bool {
    if !has_axes(a, what, &["batch", "n", "n"]) {
        return false;
    }
    let [rows, columns] = [a.extent(1), a.extent(2)];
    if rows != columns {
        let message =
            format!("{what} requires square matrices; found {rows} rows, {columns} columns");
        a.graph().note(message, None, Location::caller());
    }
    rows == columns
}

/// Returns a constant of zeros.
#[track_caller]
fn zeros<'g>(graph: &'g Graph, shape: &[usize]) -> Tensor<'g> {
    if !fits(graph, "a tensor of zeros", shape) {
        return graph.nothing();
    }
    graph.floats(shape, &vec![0.0; product(shape)])
}

/// The product of sizes, saturated at `usize::MAX`. Tensors of that size are rejected when they are declared.
fn product(extents: &[usize]) -> usize {
    extents.iter().fold(1, |all, &extent| all.saturating_mul(extent))
}

/// A size in Core ML's 32-bit integers, saturated. No tensor has a larger size.
fn place(extent: usize) -> i32 {
    i32::try_from(extent).unwrap_or(i32::MAX)
}

/// Appends a part to a name.
fn below(name: &str, part: &str) -> String {
    if name.is_empty() { part.to_owned() } else { format!("{name}.{part}") }
}
