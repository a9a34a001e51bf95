//! Loss of weights in `fp16` arithmetic, as a signal-to-noise ratio.

use coremill_tensor::Buffer;
use half::f16;

use super::blocks::is_exact_in_fp16;
use crate::error::{Result, fail};
use crate::params::Param;
use crate::scheme::{MAX_WEIGHTS, Scheme};

/// Number of windows of a tensor that are read.
const WINDOWS: usize = 16;

/// Number of weights in a window: whole blocks of every scheme.
const WINDOW: usize = 4096;

fn rounded(number: f32) -> f32 {
    f16::from_f32(number).to_f32()
}

/// Energies of weights and of their errors.
#[derive(Default)]
struct Energies {
    signal: f64,
    noise: f64,
}

impl Energies {
    fn add(&mut self, exact: f32, found: f32) {
        self.signal += f64::from(exact) * f64::from(exact);
        self.noise += (f64::from(exact) - f64::from(found)).powi(2);
    }

    fn decibels(&self) -> Option<f64> {
        (self.noise > 0.0).then(|| 10.0 * (self.signal / self.noise).log10())
    }
}

impl Param {
    /// Signal-to-noise ratio in dB of the weights as a device computes them in `fp16`, from samples. `None` if no bit
    /// is lost. With `keeps_codes`, GGUF weights are computed from their codes, scales and offsets, where each
    /// operation rounds; otherwise the dequantized weights are rounded.
    pub fn fp16_decibels(&self, keeps_codes: bool) -> Result<Option<f64>> {
        let mut energies = Energies::default();
        match self.scheme() {
            Some(scheme) if keeps_codes && is_exact_in_fp16(scheme) => return Ok(None),
            Some(scheme) if keeps_codes && scheme.group() > 1 => {
                let (count, size) = scheme.block();
                let (mut exact, mut found) = ([0.0; MAX_WEIGHTS], [0.0; MAX_WEIGHTS]);
                windows(self.bytes(), WINDOW / count * size, size, &mut |bytes| {
                    for block in bytes.chunks_exact(size) {
                        let (exact, found) = (&mut exact[..count], &mut found[..count]);
                        scheme.dequantize(block, exact);
                        dequantize_in_fp16(scheme, block, found);
                        exact.iter().zip(found).for_each(|(&x, &mut y)| energies.add(x, y));
                    }
                })?;
            }
            _ => windows(&self.to_fp32()?, 4 * WINDOW, 4, &mut |bytes| {
                for &word in bytes.as_chunks::<4>().0 {
                    let number = f32::from_le_bytes(word);
                    energies.add(number, rounded(number));
                }
            })?,
        }
        Ok(energies.decibels())
    }
}

/// Reads windows of at most `size` bytes that are spread over a buffer, and start at multiples of `unit`.
fn windows(bytes: &Buffer, size: usize, unit: usize, each: &mut dyn FnMut(&[u8])) -> Result<()> {
    let size = size.min(bytes.len());
    let count = (bytes.len() / size.max(1)).clamp(1, WINDOWS);
    let mut window = vec![0; size];
    for index in 0..count {
        let start = (bytes.len() - size) / count.max(2).saturating_sub(1) * index / unit * unit;
        if let Err(error) = bytes.read_at(start, &mut window) {
            fail!(File, "a parameter cannot be read: {error}");
        }
        each(&window);
    }
    Ok(())
}

/// Decodes a block with operations that round to `fp16`, in the order of the package's operations.
fn dequantize_in_fp16(scheme: Scheme, block: &[u8], weights: &mut [f32]) {
    let mut codes = [0; MAX_WEIGHTS];
    let codes = &mut codes[..weights.len()];
    scheme.codes(block, codes);
    let unit = rounded(scheme.scale(block));
    let groups = weights.chunks_mut(scheme.group()).zip(codes.chunks(scheme.group()));
    for (group, (weights, codes)) in groups.enumerate() {
        let (step, offset_step) = scheme.steps(block, group);
        let factor = if scheme.has_groups() { rounded(unit * f32::from(step)) } else { unit };
        let offset = match scheme {
            _ if !scheme.has_offsets() => 0.0,
            _ if scheme.has_groups() => {
                rounded(scheme.offset_scale(block) * f32::from(offset_step))
            }
            _ => rounded(scheme.offset(block, group)),
        };
        for (weight, &code) in weights.iter_mut().zip(codes) {
            let product = rounded(factor * f32::from(scheme.meaning(code)));
            *weight = rounded(product - offset);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks(scheme: Scheme, count: u64) -> Param {
        let (weights, size) = scheme.block();
        let mut state = 7u32;
        let mut bytes: Vec<u8> = (0..count as usize * size)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            })
            .collect();
        let scale = f16::from_f32(0.01234).to_le_bytes();
        for block in bytes.chunks_exact_mut(size) {
            block[..2].copy_from_slice(&scale);
            block[2..4].copy_from_slice(&scale);
            if scheme == Scheme::Q6_K {
                block[208..].copy_from_slice(&scale);
            }
        }
        Param::blocks(scheme, [count, weights as u64], bytes).expect("blocks")
    }

    #[test]
    fn fp16_snr_of_gguf_codes_is_in_expected_range() {
        let decibels =
            |scheme, keeps| blocks(scheme, 300).fp16_decibels(keeps).expect("readable weights");
        assert_eq!(decibels(Scheme::Q4_0, true), None);
        assert_eq!(decibels(Scheme::Q8_0, true), None);
        for scheme in [Scheme::Q4_1, Scheme::Q5_1, Scheme::Q4_K, Scheme::Q5_K, Scheme::Q6_K] {
            let kept = decibels(scheme, true).expect("a loss");
            let rounded = decibels(scheme, false).expect("a loss");
            assert!((60.0..rounded + 3.0).contains(&kept), "{scheme}: {kept} dB, {rounded} dB");
            assert!((70.0..90.0).contains(&rounded), "{scheme}: {rounded} dB");
        }
    }

    #[test]
    fn fp16_snr_of_floats_matches_rounding_error() {
        let decibels = |floats: &[f32]| {
            Param::floats([floats.len() as u64], floats).and_then(|it| it.fp16_decibels(true))
        };
        assert_eq!(decibels(&[1.0, -0.5, 0.25]).expect("readable weights"), None);
        let exact = 1.0 + 2f32.powi(-12);
        let found = decibels(&[exact]).expect("readable weights").expect("a loss");
        // The error is 2^-12 of the number.
        assert!((found - 72.25).abs() < 0.05, "{found}");
    }
}
