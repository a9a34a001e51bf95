//! Weights in GGUF schemes of one to four bits. MXFP4 is missing: `rlx-gguf` treats the two codes of a byte
//! as adjacent weights, but in files they are 16 weights apart, as the tests of `coremill-graph` show.

use rlx_ir::Op;
use rlx_ir::quant::QuantScheme;

use super::{Case, noise, op, packed, x};

pub(crate) fn add(cases: &mut Vec<Case>) {
    // Positions of the `fp16` scales and of the `fp32` scales in a block.
    for (scheme, halves, floats) in [
        (QuantScheme::GgufIQ4XS, &[0usize][..], &[][..]),
        (QuantScheme::GgufTQ1_0, &[52], &[]),
        (QuantScheme::GgufTQ2_0, &[64], &[]),
        (QuantScheme::GgufQ1_0, &[0], &[]),
        (QuantScheme::GgufQ2_0, &[0], &[]),
        (QuantScheme::GgufIQ2XXS, &[0], &[]),
        (QuantScheme::GgufIQ2XS, &[0], &[]),
        (QuantScheme::GgufIQ2S, &[0], &[]),
        (QuantScheme::GgufIQ3XXS, &[0], &[]),
        (QuantScheme::GgufIQ3S, &[0], &[]),
        (QuantScheme::GgufIQ1S, &[0], &[]),
        (QuantScheme::GgufIQ1M, &[], &[]),
        (QuantScheme::GgufNVFP4, &[], &[]),
        (QuantScheme::GgufFV5, &[], &[0, 4]),
        (QuantScheme::GgufFV5B, &[], &[0]),
        (QuantScheme::GgufPtq1_0, &[26], &[]),
        (QuantScheme::GgufG8_0, &[], &[]),
        (QuantScheme::GgufBF16, &[], &[]),
    ] {
        let (width, size) = (scheme.gguf_block_size() as usize, scheme.gguf_block_bytes() as usize);
        let random = noise(6 * size, 230);
        let mut bytes: Vec<u8> = random.iter().map(|x| ((x + 1.0) * 127.9) as u8).collect();
        for (at, block) in bytes.chunks_mut(size).enumerate() {
            // Use moderate scales: 0x20.. is about a hundredth in `fp16`.
            for &place in halves {
                block[place..place + 2].copy_from_slice(&[at as u8 * 16, 0x20]);
            }
            for &place in floats {
                let scale = 0.01 + (at + place) as f32 / 100.0;
                block[place..place + 4].copy_from_slice(&scale.to_le_bytes());
            }
            match scheme {
                // The bits of the scale are distributed over the upper bits of four words.
                QuantScheme::GgufIQ1M => {
                    block[53] &= 15;
                    block[55] = 0x20 | (block[55] & 15);
                }
                QuantScheme::GgufNVFP4 => block[0] = 0x28 + at as u8,
                // Scales and weights in `bf16` keep their signs.
                QuantScheme::GgufG8_0 => [1, 3, 5, 7].iter().for_each(|&at| block[at] = 0x3d),
                QuantScheme::GgufBF16 => block[1] = 0x3d | (block[1] & 0x80),
                _ => {}
            }
        }
        // Rows of two blocks.
        let of = Op::DequantMatMul { scheme };
        cases.push(op(of, &[x(&[2, 2 * width], 231), packed(bytes)], &[2, 3]));
    }
}
