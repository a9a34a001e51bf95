//! Arithmetic on quantized tensors of 8-bit codes: a *code* `q` represents the number `scale · (q - zero)`.
//!
//! Codes are unsigned bytes. Signed codes and their zero are stored with an offset of 128. Sums of products
//! of codes and weights are exact; floats are used only to scale a sum. A tensor of codes is channels last
//! and followed by [`SLACK`] bytes, which kernels may read but do not use.
//!
//! | module | contents |
//! |---|---|
//! | `product` | rows times weights: linear layers and convolutions |
//! | `pieces` | indirection tables for the rows of a convolution |
//! | `weights` | weights in the layout of the products |
//! | `channels` | depthwise convolutions |
//! | `elements` | elementwise functions and pooling |

mod channels;
mod elements;
mod pieces;
mod product;
#[cfg(test)]
mod tests;
mod weights;

pub use channels::{ChannelTarget, ChannelWeights, convolve_channels};
pub use elements::{
    Multiple, Steps, Table, add, dequantize, join, look_up, maximum, mean, permute, quantize,
    quantize_to_last, times,
};
pub use pieces::IndirectionTable;
pub use product::{Rows, multiply};
pub use weights::IntegerWeights;

/// Number of bytes after a tensor of codes that kernels may read.
pub const SLACK: usize = 3;

/// Maximum number of inputs for which a sum is guaranteed to fit 32 bits.
pub const MAX_INPUTS: usize = 1 << 15;

/// Number of floats that occupy the memory of `codes` codes and their slack.
pub fn floats_for(codes: usize) -> usize {
    (codes + SLACK).div_ceil(4)
}

/// The memory of floats as codes.
pub fn codes(floats: &[f32]) -> &[u8] {
    // SAFETY: every byte of a float is a byte.
    #[expect(unsafe_code, reason = "reinterprets memory as bytes")]
    unsafe {
        std::slice::from_raw_parts(floats.as_ptr().cast(), size_of_val(floats))
    }
}

/// The memory of floats as mutable codes.
pub fn codes_mut(floats: &mut [f32]) -> &mut [u8] {
    // SAFETY: every byte of a float is a byte, and any four bytes are a float.
    #[expect(unsafe_code, reason = "reinterprets memory as bytes")]
    unsafe {
        std::slice::from_raw_parts_mut(floats.as_mut_ptr().cast(), size_of_val(floats))
    }
}

/// Scaling of sums to results: `sum · scale + shift` for each output, clamped to bounds.
///
/// If the results are codes, all values are in units of their scale, and the bounds are integers.
#[derive(Clone, Debug)]
pub struct Scaling {
    /// Scale of each output.
    pub scale: Vec<f32>,
    /// Shift of each output.
    pub shift: Vec<f32>,
    /// Lower bound of the results.
    pub low: f32,
    /// Upper bound of the results.
    pub high: f32,
}

/// Addition of a computed code and a code of another tensor: `(own - own_zero) · factor + other ·
/// other_factor + shift`, clamped to integer bounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sum {
    /// Factor of the computed code.
    pub factor: f32,
    /// Factor of the other code.
    pub other_factor: f32,
    /// The offset.
    pub shift: f32,
    /// Lower bound of the results.
    pub low: f32,
    /// Upper bound of the results.
    pub high: f32,
}

/// Destination of the results.
#[derive(Debug)]
pub enum Target<'a> {
    /// Codes, with the code of zero.
    Codes {
        /// The codes.
        codes: &'a mut [u8],
        /// The code of zero.
        zero: i32,
        /// A tensor of the same number of codes to add, and the parameters of the addition.
        sum: Option<(&'a [u8], Sum)>,
    },
    /// Floats.
    Floats(&'a mut [f32]),
}
