//! Sliding windows of convolutions and pooling.

use crate::call::Call;
use crate::error::{Result, fail};

/// A window along one spatial dimension.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Size of the input.
    pub input: usize,
    /// Number of elements of the window.
    pub kernel: usize,
    /// Distance between window positions; positive.
    pub stride: i64,
    /// Distance between elements of the window; positive.
    pub dilation: i64,
    /// Padding before the input. Negative padding crops the input.
    pub before: i64,
    /// Padding after the input.
    pub after: i64,
    /// Number of window positions.
    pub output: usize,
}

/// Padding mode, MIL's `pad_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PadType {
    /// No padding.
    Valid,
    /// The output has `ceil(input / stride)` elements. If the padding is odd, there is more after
    /// the input.
    Same,
    /// Like [`PadType::Same`], but odd padding has more before the input.
    SameLower,
    /// Padding from the `pad` parameter.
    Custom,
}

impl PadType {
    /// The padding that a call names.
    pub fn of(call: &Call) -> Result<PadType> {
        let text = call.text("pad_type")?;
        let known = [
            ("valid", PadType::Valid),
            ("same", PadType::Same),
            ("same_lower", PadType::SameLower),
            ("custom", PadType::Custom),
        ];
        match known.into_iter().find(|(name, _)| name.eq_ignore_ascii_case(text)) {
            Some((_, pad_type)) => Ok(pad_type),
            None => {
                fail!("`pad_type` must be `valid`, `same`, `same_lower` or `custom`, got `{text}`")
            }
        }
    }

    /// Splits a total padding into the parts before and after the input.
    pub fn split(self, total: i64) -> (i64, i64) {
        let less = total / 2;
        if self == PadType::SameLower { (total - less, less) } else { (less, total - less) }
    }
}

/// A parameter with `times` integers per spatial dimension.
pub fn per_dimension(call: &Call, name: &str, spatial: usize, times: usize) -> Result<Vec<i64>> {
    let values = call.ints(name, spatial)?;
    if values.len() != spatial * times {
        fail!("`{name}` has {} elements; expected {}", values.len(), spatial * times);
    }
    Ok(values.into_iter().map(i64::from).collect())
}

/// A parameter with one integer per spatial dimension, all at least 1.
pub fn positive(call: &Call, name: &str, spatial: usize) -> Result<Vec<i64>> {
    let values = per_dimension(call, name, spatial, 1)?;
    match values.iter().find(|&&value| value < 1) {
        None => Ok(values),
        Some(value) => fail!("`{name}` must contain values of at least 1, got {value}"),
    }
}

/// The window along each spatial dimension.
pub fn windows(
    call: &Call,
    input: &[usize],
    kernel: &[usize],
    dilations: &[i64],
    rounded_up: bool,
) -> Result<Vec<Window>> {
    let spatial = input.len();
    let pad_type = PadType::of(call)?;
    let strides = positive(call, "strides", spatial)?;
    let pads = match pad_type {
        PadType::Custom => per_dimension(call, "pad", spatial, 2)?,
        _ => vec![0; 2 * spatial],
    };
    let windows = (0..spatial).map(|axis| {
        let (extent, stride, dilation) = (input[axis] as i64, strides[axis], dilations[axis]);
        let reach = match (kernel[axis] as i64 - 1).checked_mul(dilation) {
            Some(gaps) => gaps + 1,
            None => fail!("the window along spatial dimension {axis} is too large"),
        };
        let (mut before, mut after) = (pads[2 * axis], pads[2 * axis + 1]);
        let steps = if matches!(pad_type, PadType::Same | PadType::SameLower) {
            let steps = ceil_div(extent, stride);
            (before, after) =
                pad_type.split((((steps - 1) * stride).saturating_add(reach) - extent).max(0));
            steps
        } else {
            let room = extent + before + after - reach;
            if rounded_up {
                let steps = ceil_div(room, stride);
                // A last window that starts in the padding after the input does not count.
                let starts = ceil_div(extent + before, stride);
                steps + i64::from(before <= 0 || steps < starts)
            } else {
                room.div_euclid(stride) + 1
            }
        };
        if steps < 1 {
            fail!(
                "the window of {} produces {steps} elements along spatial dimension {axis} of `x`, \
                 whose size is {extent}; expected at least 1",
                kernel[axis]
            );
        }
        let kernel = kernel[axis];
        let output = steps as usize;
        Ok(Window { input: input[axis], kernel, stride, dilation, before, after, output })
    });
    windows.collect()
}

fn ceil_div(value: i64, by: i64) -> i64 {
    -(-value).div_euclid(by)
}

impl Window {
    /// Index in the input of a window element at a position, `None` in the padding.
    pub fn source(&self, step: usize, element: usize) -> Option<usize> {
        let at = step as i64 * self.stride + element as i64 * self.dilation - self.before;
        (0..self.input as i64).contains(&at).then_some(at as usize)
    }
}
