//! Arithmetic on 8-bit integers that stand for numbers: a *code* `q` for `scale · (q - zero)`.
//!
//! Codes are unsigned bytes; signed ones are stored 128 higher, with a zero 128 higher. Sums of their products
//! with weights are exact, and floats only come about when a sum is scaled. A tensor of codes has its channels
//! last, and [`SLACK`] bytes follow it, which kernels may read but do not use.
//!
//! | module | holds |
//! |---|---|
//! | `product` | rows times weights: linear layers and convolutions |
//! | `pieces` | where the rows of a convolution lie |
//! | `weights` | weights as the products take them |
//! | `channels` | convolutions of each channel by itself |
//! | `elements` | what is done element by element, and pools |

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

/// Bytes after a tensor of codes that kernels may read.
pub const SLACK: usize = 3;

/// The most inputs of a sum whose result surely fits 32 bits.
pub const MAX_INPUTS: usize = 1 << 15;

/// The floats that are as long as so many codes and their slack.
pub fn floats_for(codes: usize) -> usize {
    (codes + SLACK).div_ceil(4)
}

/// Memory of floats as codes.
pub fn codes(floats: &[f32]) -> &[u8] {
    // SAFETY: every byte of a float is a byte.
    #[expect(unsafe_code, reason = "memory is seen as its bytes")]
    unsafe {
        std::slice::from_raw_parts(floats.as_ptr().cast(), size_of_val(floats))
    }
}

/// The same to write to.
pub fn codes_mut(floats: &mut [f32]) -> &mut [u8] {
    // SAFETY: every byte of a float is a byte, and any four bytes are a float.
    #[expect(unsafe_code, reason = "memory is seen as its bytes")]
    unsafe {
        std::slice::from_raw_parts_mut(floats.as_mut_ptr().cast(), size_of_val(floats))
    }
}

/// How sums become results: `sum · scale + shift` of the output, between bounds.
///
/// Where results are codes, all of it counts steps of their scale, and the bounds are integers.
#[derive(Clone, Debug)]
pub struct Scaling {
    /// For each output.
    pub scale: Vec<f32>,
    /// For each output.
    pub shift: Vec<f32>,
    /// What results are at least.
    pub low: f32,
    /// What they are at most.
    pub high: f32,
}

/// How a code that was computed and one of another tensor are added:
/// `(own - own's zero) · factor + other · other_factor + shift`, between integral bounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sum {
    /// What the own one is multiplied by.
    pub factor: f32,
    /// What the other is multiplied by.
    pub other_factor: f32,
    /// What is added.
    pub shift: f32,
    /// What results are at least.
    pub low: f32,
    /// What they are at most.
    pub high: f32,
}

/// Where results go.
#[derive(Debug)]
pub enum Target<'a> {
    /// Codes, with the code of zero.
    Codes {
        /// The elements.
        codes: &'a mut [u8],
        /// The code of zero.
        zero: i32,
        /// Another tensor of as many codes, and how it is added.
        sum: Option<(&'a [u8], Sum)>,
    },
    /// Floats.
    Floats(&'a mut [f32]),
}
