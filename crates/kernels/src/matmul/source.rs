//! Sources of panels.

use std::ops::Range;

use super::weights::PanelSource;
use crate::scratch::with_scratch;
use coremill_simd::Isa;
use coremill_simd::vector::{Kernel, MAX_LANES, Vector, dispatch, transpose};
use coremill_tensor::{Buffer, DType};

/// Layout of a matrix of weights in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// `[outputs, inputs]`, as in linear layers.
    OutputsFirst,
    /// `[inputs, outputs]`
    InputsFirst,
    /// `[outputs, channels, taps]`, as in convolutions. The inputs are ordered tap by tap.
    ChannelsFirst {
        /// Number of elements of the kernel's window.
        taps: usize,
    },
}

/// Uncompressed weights of a float type.
#[derive(Clone, Debug)]
pub struct DenseSource {
    isa: Isa,
    data: Buffer,
    dtype: DType,
    inputs: usize,
    outputs: usize,
    order: Order,
}

impl DenseSource {
    /// Weights in `data`, which may be unaligned, of type `fp32`, `fp16` or `bf16`.
    ///
    /// # Panics
    /// Panics if the data is too short or of another type.
    pub fn new(
        isa: Isa,
        data: Buffer,
        dtype: DType,
        inputs: usize,
        outputs: usize,
        order: Order,
    ) -> DenseSource {
        let size = match dtype {
            DType::Fp32 => 4,
            DType::Fp16 | DType::Bf16 => 2,
            _ => panic!("dense weights are `fp32`, `fp16` or `bf16`, not `{dtype}`"),
        };
        let bytes = inputs.checked_mul(outputs).and_then(|count| count.checked_mul(size));
        assert!(
            bytes.is_some_and(|bytes| bytes <= data.len()),
            "the data is too short for the weights"
        );
        if let Order::ChannelsFirst { taps } = order {
            assert!(taps > 0 && inputs.is_multiple_of(taps), "the inputs are the taps' channels");
        }
        DenseSource { isa, data, dtype, inputs, outputs, order }
    }
}

impl PanelSource for DenseSource {
    fn fill(&self, inputs: Range<usize>, outputs: Range<usize>, width: usize, panel: &mut [f32]) {
        assert!(inputs.end <= self.inputs && outputs.end <= self.outputs, "weights exist");
        assert!(outputs.len() <= width && panel.len() == inputs.len() * width, "the panel fits");
        let (isa, dtype, bytes) = (self.isa, self.dtype, self.data.as_bytes());
        let size = if dtype == DType::Fp32 { 4 } else { 2 };
        match self.order {
            Order::InputsFirst => {
                for (input, row) in inputs.zip(panel.chunks_exact_mut(width)) {
                    let start = (input * self.outputs + outputs.start) * size;
                    let (some, rest) = row.split_at_mut(outputs.len());
                    widen(isa, dtype, &bytes[start..start + some.len() * size], some);
                    rest.fill(0.0);
                }
            }
            Order::OutputsFirst => {
                if dtype == DType::Fp32
                    && let Some(floats) = as_floats(&bytes[..self.inputs * self.outputs * size])
                {
                    let rows = &floats[outputs.start * self.inputs + inputs.start..];
                    let (stride, inputs, outputs) = (self.inputs, inputs.len(), outputs.len());
                    let transposed = Transpose { rows, stride, inputs, outputs, width, panel };
                    return dispatch(isa, transposed);
                }
                from_rows(isa, inputs.len(), outputs.len(), width, panel, |rows| {
                    for (output, row) in outputs.clone().zip(chunks(rows, inputs.len())) {
                        let start = (output * self.inputs + inputs.start) * size;
                        widen(isa, dtype, &bytes[start..start + row.len() * size], row);
                    }
                });
            }
            Order::ChannelsFirst { taps } => {
                let channels = self.inputs / taps;
                let mut gathered = vec![0; inputs.len() * size];
                from_rows(isa, inputs.len(), outputs.len(), width, panel, |rows| {
                    for (output, row) in outputs.clone().zip(chunks(rows, inputs.len())) {
                        let start = output * self.inputs * size;
                        let weights = &bytes[start..start + self.inputs * size];
                        let mut input = inputs.start;
                        while input < inputs.end {
                            // Take as many channels of one tap as possible.
                            let (tap, channel) = (input / channels, input % channels);
                            let count = (channels - channel).min(inputs.end - input);
                            let at = input - inputs.start;
                            let source = &weights[(channel * taps + tap) * size..];
                            let target = &mut gathered[at * size..(at + count) * size];
                            match size {
                                4 => gather::<4>(source, taps, target),
                                _ => gather::<2>(source, taps, target),
                            }
                            input += count;
                        }
                        widen(isa, dtype, &gathered, row);
                    }
                });
            }
        }
    }
}

/// Rows of `length` elements, which may be 0.
fn chunks(rows: &mut [f32], length: usize) -> impl Iterator<Item = &mut [f32]> {
    rows.chunks_exact_mut(length.max(1))
}

/// Copies every `stride`th element, starting with the first.
fn gather<const SIZE: usize>(source: &[u8], stride: usize, target: &mut [u8]) {
    let (targets, _) = target.as_chunks_mut::<SIZE>();
    let (sources, _) = source.as_chunks::<SIZE>();
    for (target, source) in targets.iter_mut().zip(sources.iter().step_by(stride)) {
        *target = *source;
    }
}

/// Builds a panel from weights that are written output by output: each row of `inputs` elements becomes a
/// column.
pub(crate) fn from_rows(
    isa: Isa,
    inputs: usize,
    outputs: usize,
    width: usize,
    panel: &mut [f32],
    write: impl FnOnce(&mut [f32]),
) {
    // The panel may itself be in scratch memory; `with_scratch` lends different memory here.
    with_scratch(|scratch| {
        let rows = scratch.elements(outputs * inputs);
        write(rows);
        dispatch(isa, Transpose { rows, stride: inputs, inputs, outputs, width, panel });
    });
}

/// Writes the transposed rows to a panel, with zeros after the last output.
struct Transpose<'a> {
    rows: &'a [f32],
    /// Distance between the starts of adjacent rows.
    stride: usize,
    inputs: usize,
    outputs: usize,
    width: usize,
    panel: &'a mut [f32],
}

impl Kernel for Transpose<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let Transpose { rows, stride, inputs, outputs, width, panel } = self;
        assert!(outputs <= width && panel.len() == inputs * width, "the panel fits");
        if inputs == 0 {
            return;
        }
        let read = outputs.checked_sub(1).map_or(0, |last| last * stride + inputs);
        assert!(read <= rows.len(), "the rows exist");
        let (source, target) = (rows.as_ptr(), panel.as_mut_ptr());
        for column in (0..width).step_by(V::LANES) {
            // The rows that exist, and the columns that are written.
            let present = outputs.saturating_sub(column).min(V::LANES);
            let columns = V::LANES.min(width - column);
            for input in (0..inputs).step_by(V::LANES) {
                let count = V::LANES.min(inputs - input);
                let mut square = [V::zero(); MAX_LANES];
                // SAFETY: all rows and columns exist, as asserted above: `present` rows from `column`,
                // `count` inputs from `input`, and `columns` elements of the panel's rows from `column`.
                #[expect(unsafe_code, reason = "vectors are accessed without bounds checks")]
                unsafe {
                    if present == V::LANES && count == V::LANES {
                        for (at, row) in square.iter_mut().enumerate().take(V::LANES) {
                            *row = V::load(source.add((column + at) * stride + input));
                        }
                        transpose(&mut square);
                        for (at, row) in square.iter().enumerate().take(V::LANES) {
                            row.store(target.add((input + at) * width + column));
                        }
                    } else {
                        for (at, row) in square.iter_mut().enumerate().take(present) {
                            let start = source.add((column + at) * stride + input);
                            *row = V::load_partial(start, count);
                        }
                        transpose(&mut square);
                        for (at, row) in square.iter().enumerate().take(count) {
                            row.store_partial(target.add((input + at) * width + column), columns);
                        }
                    }
                }
            }
        }
    }
}

/// Bytes of `f32` elements, if they are aligned and in this machine's byte order.
fn as_floats(bytes: &[u8]) -> Option<&[f32]> {
    // SAFETY: all bit patterns are valid floats.
    #[expect(unsafe_code, reason = "reinterprets bytes as floats")]
    let (before, floats, after) = unsafe { bytes.align_to::<f32>() };
    let whole = before.is_empty() && after.is_empty() && cfg!(target_endian = "little");
    whole.then_some(floats)
}

/// Converts elements of a float type to `f32`. The bytes may be unaligned.
pub(crate) fn widen(isa: Isa, dtype: DType, bytes: &[u8], target: &mut [f32]) {
    match dtype {
        DType::Fp16 => dispatch(isa, WidenF16 { bytes, target }),
        DType::Bf16 => {
            for (element, bytes) in target.iter_mut().zip(bytes.as_chunks().0) {
                *element = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
            }
        }
        _ => {
            for (element, bytes) in target.iter_mut().zip(bytes.as_chunks().0) {
                *element = f32::from_le_bytes(*bytes);
            }
        }
    }
}

struct WidenF16<'a> {
    bytes: &'a [u8],
    target: &'a mut [f32],
}

impl Kernel for WidenF16<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Vector>(self) {
        let mut targets = self.target.chunks_exact_mut(V::LANES);
        let mut sources = self.bytes.chunks_exact(2 * V::LANES);
        for (target, source) in targets.by_ref().zip(sources.by_ref()) {
            let mut halves = [0u16; coremill_simd::vector::MAX_LANES];
            for (half, bytes) in halves.iter_mut().zip(source.as_chunks().0) {
                *half = u16::from_le_bytes(*bytes);
            }
            // SAFETY: both have the elements of one vector.
            #[expect(unsafe_code, reason = "vectors are loaded and stored without bounds checks")]
            unsafe {
                V::load_f16(halves.as_ptr()).store(target.as_mut_ptr());
            }
        }
        for (element, bytes) in
            targets.into_remainder().iter_mut().zip(sources.remainder().as_chunks().0)
        {
            *element = half::f16::from_le_bytes(*bytes).to_f32();
        }
    }
}
