//! Products, norms, attention, convolutions, weights in blocks and codes.

use rlx_ir::op::*;
use rlx_ir::quant::QuantScheme;
use rlx_ir::{DType, Op};

use super::*;

pub(crate) fn add(cases: &mut Vec<Case>) {
    products(cases);
    norms(cases);
    attention(cases);
    convolutions(cases);
    stored(cases);
}

fn products(cases: &mut Vec<Case>) {
    let two = |salt| [x(&[2, 3], salt), x(&[3, 4], salt + 1)];
    let with = |salt: u64, more: OperandCase| [two(salt).to_vec(), vec![more]].concat();
    let s = &[2, 4];
    cases.push(op(Op::MatMul, &two(1), s));
    cases.push(op(Op::MatMul, &[x(&[2, 2, 3], 3), x(&[2, 3, 4], 4)], &[2, 2, 4]));
    // `rlx-cpu` has no kernel for the general form; a formula computes the expected result.
    let of = Op::DotGeneral {
        lhs_contracting: vec![1],
        rhs_contracting: vec![0],
        lhs_batch: vec![],
        rhs_batch: vec![],
    };
    cases.push(op(of, &two(5), s));
    let activation = Some(Activation::Silu);
    cases.push(op(Op::FusedMatMulBiasAct { activation }, &with(7, x(&[4], 9)), s));
    let lora = [two(13).to_vec(), vec![x(&[3, 1], 15), x(&[1, 4], 16)]].concat();
    cases.push(op(Op::LoraMatMul { scale: 0.5 }, &lora, s));
    let grouped = [x(&[3, 4], 17), x(&[2, 4, 5], 18), list(&[1.0, 0.0, 1.0])];
    cases.push(op(Op::GroupedMatMul, &grouped, &[3, 5]));
    for gate_first in [false, true] {
        let of = Op::FusedSwiGLU { cast_to: None, gate_first };
        cases.push(op(of, &[x(&[3, 8], 19)], &[3, 4]));
    }
}

fn norms(cases: &mut Vec<Case>) {
    let (s, eps) = (&[3, 4], 1e-5);
    let affine = |salt| [x(s, salt), x(&[4], salt + 1), x(&[4], salt + 2)];
    cases.push(op(Op::LayerNorm { axis: -1, eps }, &affine(30), s));
    cases.push(op(Op::RmsNorm { axis: -1, eps }, &affine(33), s));
    let image = &[2, 4, 3, 2];
    let channels = |salt| [x(image, salt), x(&[4], salt + 1), x(&[4], salt + 2)];
    cases.push(op(Op::GroupNorm { num_groups: 2, eps }, &channels(36), image));
    cases.push(op(Op::LayerNorm2d { eps }, &channels(39), image));
    let stats = [affine(42).to_vec(), vec![x(&[4], 45), between(&[4], 46, 0.5, 2.0)]];
    cases.push(op(Op::BatchNormInference { eps }, &stats.concat(), s));
    let modulated = [x(&[2, 3, 4], 47), x(&[2, 1, 4], 48), x(&[2, 1, 4], 49)];
    for norm in [AdaNormKind::LayerNorm, AdaNormKind::RmsNorm] {
        cases.push(op(Op::AdaLayerNorm { norm, eps }, &modulated, &[2, 3, 4]));
    }
    let gated = [x(&[2, 3, 4], 50), x(&[2, 3, 4], 51), x(&[2, 1, 4], 52)];
    cases.push(op(Op::GatedResidual, &gated, &[2, 3, 4]));
    for has_bias in [false, true] {
        let mut all = vec![x(s, 53), x(s, 54)];
        if has_bias {
            all.push(x(&[4], 55));
        }
        all.extend([x(&[4], 56), x(&[4], 57)]);
        cases.push(op(Op::FusedResidualLN { has_bias, eps }, &all, s));
        cases.push(op(Op::FusedResidualRmsNorm { has_bias, eps }, &all, s));
    }
}

fn attention(cases: &mut Vec<Case>) {
    let (heads, width) = (2, 4);
    let last = &[2, 5, heads, width];
    let first = &[2, heads, 5, width];
    let three = |shape: &[usize], salt: u64| -> Vec<OperandCase> {
        (0..3).map(|at| x(shape, salt + at)).collect()
    };
    let make = |mask_kind| Op::Attention {
        num_heads: heads,
        head_dim: width,
        v_head_dim: None,
        mask_kind,
        score_scale: None,
        attn_logit_softcap: None,
    };
    for mask in [MaskKind::None, MaskKind::Causal, MaskKind::SlidingWindow(2)] {
        cases.push(op(make(mask), &three(last, 60), last));
        cases.push(op(make(mask), &three(first, 63), first));
    }
    let flags = given(&[2, 5], vec![1., 1., 0., 1., 1., 1., 0., 0., 1., 1.]);
    let with = |more: &OperandCase| [three(last, 66), vec![more.clone()]].concat();
    cases.push(op(make(MaskKind::Custom), &with(&flags), last));
    cases.push(op(make(MaskKind::Bias), &with(&x(&[2, heads, 5, 5], 69)), last));
    for mask_kind in [MaskKind::None, MaskKind::Causal, MaskKind::SlidingWindow(2)] {
        let all = [three(first, 70), vec![x(first, 73)]].concat();
        for wrt in [AttentionBwdWrt::Query, AttentionBwdWrt::Key, AttentionBwdWrt::Value] {
            let (num_heads, head_dim) = (heads, width);
            let of = Op::AttentionBackward { num_heads, head_dim, mask_kind, wrt };
            cases.push(op(of, &all, first));
        }
        let of = Op::AttentionBackwardAll { num_heads: heads, head_dim: width, mask_kind };
        cases.push(op(of, &all, &[6, heads, 5, width]));
    }
    for style in [RopeStyle::NeoX, RopeStyle::GptJ] {
        for n_rot in [4, 2] {
            let tables = [x(&[5, n_rot / 2], 74), x(&[5, n_rot / 2], 75)];
            let all = [vec![x(&[2, 5, 8], 76)], tables.to_vec()].concat();
            cases.push(op(Op::Rope { head_dim: 4, n_rot, style }, &all, &[2, 5, 8]));
            cases.push(op(Op::RopeBackward { head_dim: 4, n_rot, style }, &all, &[2, 5, 8]));
        }
    }
    let tables = [x(&[2, heads, 5, 4], 77), x(&[5, 2], 78), x(&[5, 2], 79)];
    let of = Op::Rope { head_dim: 4, n_rot: 4, style: RopeStyle::NeoX };
    cases.push(op(of, &tables, &[2, heads, 5, 4]));
    let of = Op::AxialRope2d {
        end_x: 2,
        end_y: 3,
        head_dim: 8,
        num_heads: 2,
        theta: 100.0,
        repeat_factor: 1,
    };
    cases.push(op(of, &[x(&[2, 6, 16], 80)], &[2, 6, 16]));
    // In `rlx-cpu`, the output of a block is as wide as its heads.
    let (hidden, inner) = (heads * width, heads * width);
    let flags = || given(&[2, 3], vec![1., 1., 0., 1., 1., 1.]);
    let weight = |shape: &[usize], salt| between(shape, salt, -0.5, 0.5);
    let all = [
        x(&[2, 3, hidden], 81),
        weight(&[hidden, 3 * inner], 82),
        weight(&[inner, hidden], 83),
        flags(),
        x(&[3 * inner], 84),
        x(&[hidden], 85),
        x(&[3, 2], 86),
        x(&[3, 2], 87),
    ];
    let of = Op::FusedAttentionBlock {
        num_heads: heads,
        head_dim: width,
        has_bias: true,
        has_rope: true,
    };
    cases.push(op(of, &all, &[2, 3, hidden]));
    let make = |has_bias| Op::FusedTransformerLayer {
        num_heads: heads,
        head_dim: width,
        intermediate_size: 10,
        eps1: 1e-5,
        eps2: 1e-5,
        activation: Activation::Relu,
        has_bias,
    };
    let all = [
        x(&[2, 3, hidden], 88),
        weight(&[hidden, 3 * inner], 89),
        x(&[3 * inner], 90),
        weight(&[inner, hidden], 91),
        x(&[hidden], 92),
        x(&[hidden], 93),
        x(&[hidden], 94),
        weight(&[hidden, 10], 95),
        x(&[10], 96),
        weight(&[10, hidden], 97),
        x(&[hidden], 98),
        x(&[hidden], 99),
        x(&[hidden], 100),
        flags(),
    ];
    cases.push(op(make(true), &all, &[2, 3, hidden]));
    let plain = [0, 1, 3, 5, 7, 9, 11, 13].map(|at: usize| all[at].clone());
    cases.push(op(make(false), &plain, &[2, 3, hidden]));
}

fn convolutions(cases: &mut Vec<Case>) {
    let of = Op::Conv {
        kernel_size: vec![3, 2],
        stride: vec![2, 1],
        padding: vec![1, 0],
        dilation: vec![1, 2],
        groups: 2,
    };
    cases.push(op(of, &[x(&[2, 4, 5, 6], 110), x(&[6, 2, 3, 2], 111)], &[2, 6, 3, 4]));
    let of = Op::FusedConvBiasAct {
        kernel_size: vec![3, 3],
        stride: vec![1, 1],
        padding: vec![1, 1],
        dilation: vec![1, 1],
        groups: 1,
        activation: Some(Activation::Relu),
        has_residual: true,
    };
    let all = [x(&[1, 2, 4, 4], 112), x(&[3, 2, 3, 3], 113), x(&[3], 114), x(&[1, 3, 4, 4], 115)];
    cases.push(op(of, &all, &[1, 3, 4, 4]));
    let of = Op::ConvTranspose2d {
        kernel_size: vec![3, 3],
        stride: vec![2, 2],
        padding: vec![1, 1],
        dilation: vec![1, 1],
        output_padding: vec![1, 1],
        groups: 1,
    };
    cases.push(op(of, &[x(&[1, 4, 3, 3], 116), x(&[4, 2, 3, 3], 117)], &[1, 2, 6, 6]));
    let of = Op::Conv3d { stride: [1, 2, 1], padding: [1, 0, 1], dilation: [1, 1, 1], groups: 1 };
    cases.push(op(of, &[x(&[1, 2, 3, 5, 4], 118), x(&[3, 2, 2, 2, 2], 119)], &[1, 3, 4, 2, 5]));
    let of = Op::ConvTranspose3d {
        stride: [2, 1, 2],
        padding: [0, 0, 0],
        dilation: [1, 1, 1],
        output_padding: [0, 0, 1],
        groups: 1,
    };
    cases.push(op(of, &[x(&[1, 2, 2, 2, 2], 120), x(&[2, 3, 2, 2, 2], 121)], &[1, 3, 4, 3, 5]));
    for kind in [ReduceOp::Max, ReduceOp::Mean] {
        let of =
            Op::Pool { kind, kernel_size: vec![2, 3], stride: vec![2, 1], padding: vec![0, 0] };
        cases.push(op(of, &[x(&[1, 2, 4, 5], 122)], &[1, 2, 2, 3]));
    }
    cases.push(op(Op::PartitionedConv { block: 4 }, &[x(&[2, 9], 123), x(&[5], 124)], &[2, 13]));
}

fn stored(cases: &mut Vec<Case>) {
    let bytes = |count: usize, salt| -> Vec<u8> {
        noise(count, salt).iter().map(|x| ((x + 1.0) * 127.9) as u8).collect()
    };
    for (scheme, scales) in [
        (QuantScheme::GgufQ4_0, &[0usize][..]),
        (QuantScheme::GgufQ4_1, &[0, 2]),
        (QuantScheme::GgufQ5_0, &[0]),
        (QuantScheme::GgufQ5_1, &[0, 2]),
        (QuantScheme::GgufQ8_0, &[0]),
        (QuantScheme::GgufQ2K, &[80, 82]),
        (QuantScheme::GgufQ3K, &[108]),
        (QuantScheme::GgufQ4K, &[0, 2]),
        (QuantScheme::GgufQ5K, &[0, 2]),
        (QuantScheme::GgufQ6K, &[208]),
        (QuantScheme::GgufQ8K, &[]),
        (QuantScheme::GgufIQ4NL, &[0]),
    ] {
        let (width, size) = (scheme.gguf_block_size() as usize, scheme.gguf_block_bytes() as usize);
        let blocks = |count: usize| {
            let mut all = bytes(count * size, 130);
            for (at, block) in all.chunks_mut(size).enumerate() {
                // Use moderate scales: 0x20.. is about a hundredth in `fp16`.
                for &scale in scales {
                    block[scale..scale + 2].copy_from_slice(&[at as u8 * 16, 0x20]);
                }
                if scheme == QuantScheme::GgufQ8K {
                    block[..4].copy_from_slice(&(0.01f32 + at as f32 / 100.0).to_le_bytes());
                }
            }
            packed(all)
        };
        let of = Op::DequantMatMul { scheme };
        cases.push(op(of, &[x(&[2, width], 131), blocks(3)], &[2, 3]));
        if matches!(scheme, QuantScheme::GgufQ8_0 | QuantScheme::GgufQ4K) {
            let of = Op::DequantGroupedMatMul { scheme };
            let operands = [x(&[2, width], 132), blocks(6), list(&[1.0, 0.0])];
            // `rlx-cpu` rounds the factors to 8 bits here.
            cases.push(op(of, &operands, &[2, 3]).within(3e-3));
            cases.push(op(Op::DequantMoEWeights { scheme }, &[blocks(6)], &[2, width, 3]));
        }
    }
    let codes = |count: usize, salt| {
        typed(
            given(&[count], bytes(count, salt).iter().map(|&x| f32::from(x)).collect()),
            DType::U8,
        )
    };
    let signed = |shape: &[usize], salt| {
        let mut given = indices(shape, salt, 256);
        given.elements.iter_mut().for_each(|x| *x -= 128.0);
        typed(given, DType::I8)
    };
    let (rows, k, n) = (2, 32, 4);
    let input = || x(&[rows, k], 133);
    let scales = |salt| between(&[k / 16, n], salt, 0.01, 0.05);
    let zeros = || between(&[k / 16, n], 135, -3.0, 3.0);
    for scheme in
        [QuantScheme::Int8Block { block_size: 16 }, QuantScheme::Int8BlockAsym { block_size: 16 }]
    {
        let operands = [input(), signed(&[k, n], 134), scales(136), zeros()];
        cases.push(op(Op::DequantMatMul { scheme }, &operands, &[rows, n]));
    }
    let scheme = QuantScheme::Int4Block { block_size: 16 };
    let nothing = given(&[k / 16, n], vec![0.0; k / 16 * n]);
    let operands = [input(), codes(k * n / 2, 137), scales(138), nothing];
    cases.push(op(Op::DequantMatMul { scheme }, &operands, &[rows, n]));
    let moderate = |count: usize, salt| {
        let mut given = codes(count, salt);
        given.elements.iter_mut().for_each(|x| *x = 30.0 + *x % 30.0);
        given
    };
    let scheme = QuantScheme::Nvfp4Block;
    let operands = [input(), codes(k * n / 2, 139), moderate(k / 16 * n, 140), list(&[0.5])];
    cases.push(op(Op::DequantMatMul { scheme }, &operands, &[rows, n]));
    let scheme = QuantScheme::MxFp4x2Block { group_size: 16 };
    let scale = between(&[2 * k / 16 * n], 141, 0.01, 0.1);
    let operands = [input(), codes(k * n, 142), scale, list(&[0.0])];
    cases.push(op(Op::DequantMatMul { scheme }, &operands, &[rows, n]));
    for bits in [2u8, 4, 8] {
        let scheme = QuantScheme::MlxAffine { bits, group_size: 32 };
        let stored = codes(k * n * usize::from(bits) / 8, 143);
        let operands = [input(), stored, between(&[n, 1], 144, 0.01, 0.1), x(&[n, 1], 145)];
        cases.push(op(Op::DequantMatMul { scheme }, &operands, &[rows, n]));
    }
    let powers = || {
        let mut given = codes(n, 146);
        given.elements.iter_mut().for_each(|x| *x = 120.0 + *x % 8.0);
        given
    };
    let scheme = QuantScheme::MlxMxfp4 { group_size: 32 };
    let operands = [input(), codes(k * n / 2, 147), powers(), list(&[1.0])];
    cases.push(op(Op::DequantMatMul { scheme }, &operands, &[rows, n]));
    let scheme = QuantScheme::MlxMxfp8 { group_size: 32 };
    let operands = [input(), moderate(k * n, 148), powers(), list(&[1.0])];
    cases.push(op(Op::DequantMatMul { scheme }, &operands, &[rows, n]));
    let scheme = QuantScheme::MlxAffine { bits: 4, group_size: 32 };
    let of = Op::DequantGroupedMatMulMlx { scheme };
    let operands = [
        input(),
        codes(3 * k * n / 2, 149),
        between(&[3, n, 1], 150, 0.01, 0.1),
        x(&[3, n, 1], 151),
        list(&[2.0, 0.0]),
    ];
    cases.push(op(of, &operands, &[rows, n]));
    let kind = SynthKind::Codebook { entry_dim: 4, num_entries: 8 };
    let book = || x(&[8, 4], 152);
    let places = || typed(indices(&[n, k / 4], 153, 8), DType::U8);
    cases.push(op(Op::SynthMatMul { kind }, &[input(), places(), book()], &[rows, n]));
    let operands = [input(), places(), book(), x(&[rows, n], 154)];
    let of = Op::SynthMatMulBackward { kind, wrt: SynthBwdWrt::Dx };
    cases.push(op(of, &operands, &[rows, k]));
    let of = Op::SynthMatMulBackward { kind, wrt: SynthBwdWrt::Codebook };
    cases.push(op(of, &operands, &[8, 4]));
}
