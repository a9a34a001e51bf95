//! Elementwise operations, reductions, number formats, complex numbers.

use rlx_ir::double_single::DfOp;
use rlx_ir::fft::{FftAlgo, FftNorm, FftQScale};
use rlx_ir::number_format::{FloatFormat, FormatScaling};
use rlx_ir::op::*;
use rlx_ir::quant::{ScaleLayout, ScaledFormat};
use rlx_ir::{DType, Op, Shape};

use super::*;

pub(crate) fn add(cases: &mut Vec<Case>) {
    let s = &[3, 4];
    elements(cases);
    for reduce in [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Max, ReduceOp::Min, ReduceOp::Prod] {
        let of = Op::Reduce { op: reduce, axes: vec![1], keep_dim: true };
        cases.push(op(of, &[x(&[2, 3, 4], 5)], &[2, 1, 4]));
    }
    cases.push(op(Op::Softmax { axis: -1 }, &[x(s, 6)], s));
    for exclusive in [false, true] {
        cases.push(op(Op::Cumsum { axis: 1, exclusive }, &[x(s, 7)], s));
        cases.push(op(Op::CumProd { axis: 1, exclusive }, &[x(s, 8)], s));
        cases.push(op(Op::CumsumBackward { axis: 1, exclusive }, &[x(s, 9)], s));
    }
    cases.push(op(Op::CumMax { axis: 1, exclusive: false }, &[x(&[2, 7], 8)], &[2, 7]));
    cases.push(op(Op::ArgMax { axis: 1, keep_dim: false }, &[x(s, 10)], &[3]));
    cases.push(op(Op::ArgMin { axis: 1, keep_dim: true }, &[x(s, 11)], &[3, 1]));
    cases.push(op(Op::TopK { k: 2 }, &[x(s, 12)], &[3, 2]));
    cases.push(op(Op::Sort { axis: 1, descending: true }, &[x(s, 13)], s));
    cases.push(op(Op::ArgSort { axis: 1, descending: false }, &[x(s, 14)], s));
    cases.push(op(Op::Histogram { bins: 4, min: -0.5, max: 0.5 }, &[x(&[20], 15)], &[4]));
    quantized(cases);
    formats(cases);
    complex(cases);
    spectra(cases);
}

fn elements(cases: &mut Vec<Case>) {
    let s = &[3, 4];
    let positive = |salt| between(s, salt, 0.2, 3.0);
    let all = [
        Activation::Gelu,
        Activation::GeluApprox,
        Activation::Silu,
        Activation::Relu,
        Activation::Sigmoid,
        Activation::Tanh,
        Activation::Exp,
        Activation::Neg,
        Activation::Abs,
        Activation::Sin,
        Activation::Cos,
        Activation::Tan,
        Activation::Atan,
        Activation::Round,
        Activation::Floor,
        Activation::Ceil,
        Activation::Sign,
        Activation::Softplus,
        Activation::Elu,
        Activation::Erf,
        Activation::HardSwish,
        Activation::HardSigmoid,
        Activation::Mish,
        Activation::Softsign,
        Activation::LogSigmoid,
    ];
    for (at, activation) in all.into_iter().enumerate() {
        let wide = between(s, at as u64, -3.9, 3.9);
        // `rlx-cpu` is accurate to only four digits for some of these.
        cases.push(op(Op::Activation(activation), std::slice::from_ref(&wide), s).within(1e-3));
        // For these, `rlx-cpu` has no gradient, or one that is steep between its samples.
        if matches!(
            activation,
            Activation::Round
                | Activation::Tan
                | Activation::Erf
                | Activation::HardSwish
                | Activation::HardSigmoid
                | Activation::Mish
                | Activation::Softsign
                | Activation::LogSigmoid
        ) {
            continue;
        }
        let back = Op::ActivationBackward { kind: activation };
        cases.push(op(back, &[wide, x(s, 40)], s).within(1e-3));
    }
    for activation in [Activation::Log, Activation::Sqrt, Activation::Rsqrt, Activation::Recip] {
        cases.push(op(Op::Activation(activation), &[positive(1)], s));
        let back = Op::ActivationBackward { kind: activation };
        cases.push(op(back, &[positive(2), x(s, 41)], s));
    }
    let two = |salt| [x(s, salt), x(s, salt + 1)];
    for of in [
        BinaryOp::Add,
        BinaryOp::Sub,
        BinaryOp::Mul,
        BinaryOp::Div,
        BinaryOp::Max,
        BinaryOp::Min,
        BinaryOp::Atan2,
    ] {
        cases.push(op(Op::Binary(of), &two(2), s));
    }
    cases.push(op(Op::Binary(BinaryOp::Mul), &[x(&[3, 4], 1), x(&[4], 2)], s));
    cases.push(op(Op::Binary(BinaryOp::Pow), &[positive(3), x(s, 4)], s));
    let signed = between(s, 5, -9.0, 9.0);
    cases.push(op(Op::Binary(BinaryOp::Mod), &[signed, positive(6)], s));
    let whole = |salt: u64| {
        let mut given = indices(s, salt, 1 << 20);
        given
            .elements
            .iter_mut()
            .enumerate()
            .for_each(|(at, x)| *x *= if at % 3 == 0 { -1.0 } else { 1.0 });
        given
    };
    for of in [BinaryOp::BitAnd, BinaryOp::BitOr, BinaryOp::BitXor] {
        cases.push(op(Op::Binary(of), &[whole(7), whole(8)], s));
    }
    for of in [BinaryOp::Shl, BinaryOp::Shr] {
        cases.push(op(Op::Binary(of), &[indices(s, 9, 1 << 12), indices(s, 10, 9)], s));
    }
    for of in [CmpOp::Eq, CmpOp::Ne, CmpOp::Lt, CmpOp::Le, CmpOp::Gt, CmpOp::Ge] {
        let close = || indices(s, 11, 3);
        let case = [close(), indices(s, 12, 3)];
        cases.push(graph("Compare", &case, |graph, ids| {
            let truth = Shape::new(s, DType::Bool);
            let truth = graph.add_node(Op::Compare(of), ids.to_vec(), truth);
            graph.add_node(Op::Where, vec![truth, ids[0], ids[1]], Shape::new(s, DType::F32))
        }));
    }
    cases.push(op(Op::Fma, &[x(s, 13), x(s, 14), x(s, 15)], s));
    cases.push(op(Op::Clamp { min: -0.3, max: 0.4 }, &[x(s, 16)], s));
    cases.push(op(Op::ReluBackward, &two(17), s));
    cases.push(op(Op::StopGradient, &[x(s, 18)], s));
    cases.push(graph("Cast", &[between(s, 19, -9.0, 9.0)], |graph, ids| {
        let whole =
            graph.add_node(Op::Cast { to: DType::I32 }, ids.to_vec(), Shape::new(s, DType::I32));
        graph.add_node(Op::Cast { to: DType::F32 }, vec![whole], Shape::new(s, DType::F32))
    }));
    cases.push(graph("Constant", &[x(s, 20)], |graph, ids| {
        let data = noise(4, 21).iter().flat_map(|x| x.to_le_bytes()).collect();
        let constant = graph.add_node(Op::Constant { data }, vec![], Shape::new(&[4], DType::F32));
        graph.add_node(Op::Binary(BinaryOp::Mul), vec![ids[0], constant], Shape::new(s, DType::F32))
    }));
    let chain = vec![
        ChainStep::Activation(Activation::Relu, ChainOperand::Input(0)),
        ChainStep::Cast(DType::F16, ChainOperand::Step(0)),
        ChainStep::Binary(BinaryOp::Add, ChainOperand::Step(1), ChainOperand::Input(1)),
        ChainStep::Compare(CmpOp::Gt, ChainOperand::Step(2), ChainOperand::Input(1)),
        ChainStep::Where(ChainOperand::Step(3), ChainOperand::Step(2), ChainOperand::Input(0)),
    ];
    let region = Op::ElementwiseRegion {
        chain,
        num_inputs: 2,
        scalar_input_mask: 0,
        input_modulus: [0; 16],
        prologue: RegionPrologue::None,
        prologue_input: 0,
    };
    cases.push(op(region, &two(22), s));
    let image = &[1, 2, 2, 2];
    let step = || vec![ChainStep::Activation(Activation::Relu, ChainOperand::Input(0))];
    let batch = Op::BatchElementwiseRegion {
        chain: step(),
        num_batch_inputs: 2,
        scalar_input_mask: 0,
        input_modulus: [0; 16],
        prologue: RegionPrologue::None,
        prologue_input: 0,
    };
    cases.push(op(batch, &[x(image, 24), x(image, 25)], &[2, 2, 2, 2]));
    let steps = vec![TransformStep::ResizeNearest2x(ChainOperand::Input(0))];
    cases.push(op(Op::TransformRegion { steps, num_inputs: 1 }, &[x(image, 26)], &[1, 2, 4, 4]));
}

fn quantized(cases: &mut Vec<Case>) {
    let s = &[3, 4];
    let scales = vec![0.02, 0.01, 0.03];
    let zero_points = vec![3, -5, 0];
    cases.push(graph("Quantize", &[x(s, 30)], |graph, ids| {
        let (axis, scales, zero_points) = (Some(0), scales.clone(), zero_points.clone());
        let codes = Op::Quantize { axis, scales: scales.clone(), zero_points: zero_points.clone() };
        let codes = graph.add_node(codes, ids.to_vec(), Shape::new(s, DType::I8));
        let back = Op::Dequantize { axis, scales, zero_points };
        graph.add_node(back, vec![codes], Shape::new(s, DType::F32))
    }));
    for (axis, states) in [(None, 1), (Some(1), 4)] {
        let make =
            |scale_mode| Op::FakeQuantize { bits: 4, axis, ste: SteKind::Identity, scale_mode };
        let state = || between(&[states], 31, 0.05, 0.2);
        cases.push(op(make(ScaleMode::PerBatch), &[x(s, 32)], s));
        cases.push(op(make(ScaleMode::Fixed), &[x(s, 33), state()], s));
        cases.push(op(make(ScaleMode::EMA { decay: 0.9 }), &[x(s, 34), state()], s));
        for ste in [SteKind::Identity, SteKind::ClippedIdentity, SteKind::Tanh, SteKind::HardTanh] {
            let back = Op::FakeQuantizeBackward { bits: 4, axis, ste };
            cases.push(op(back, &[x(s, 35), x(s, 36)], s));
        }
        let learned = [x(s, 37), state(), x(s, 38)];
        cases.push(op(Op::FakeQuantizeLSQ { bits: 4, axis }, &learned[..2], s));
        cases.push(op(Op::FakeQuantizeLSQBackwardX { bits: 4, axis }, &learned, s));
        cases.push(op(Op::FakeQuantizeLSQBackwardScale { bits: 4, axis }, &learned, &[states]));
    }
    let bytes = |shape: &[usize], salt| {
        let mut given = indices(shape, salt, 256);
        given.elements.iter_mut().for_each(|x| *x -= 128.0);
        typed(given, DType::I8)
    };
    let bias = |count: usize| typed(indices(&[count], 39, 2000), DType::I32);
    let of = Op::QMatMul { x_zp: 3, w_zp: -2, out_zp: 5, mult: 0.002 };
    let operands = [bytes(&[3, 8], 40), bytes(&[8, 4], 41), bias(4)];
    cases.push(typed_op(of, &operands, s, DType::I8));
    let of = Op::QConv2d {
        kernel_size: vec![3, 3],
        stride: vec![2, 1],
        padding: vec![1, 1],
        dilation: vec![1, 1],
        groups: 2,
        x_zp: 3,
        w_zp: 1,
        out_zp: -5,
        mult: 0.001,
    };
    let operands = [bytes(&[1, 4, 5, 5], 42), bytes(&[6, 2, 3, 3], 43), bias(6)];
    cases.push(typed_op(of, &operands, &[1, 6, 3, 5], DType::I8));
}

fn formats(cases: &mut Vec<Case>) {
    let s = &[2, 40];
    let wide = || {
        let mut given = x(s, 50);
        for (at, x) in given.elements.iter_mut().enumerate() {
            *x *= 10f32.powi(at as i32 % 9 - 5);
        }
        given
    };
    let e4m3 = FloatFormat::from_scaled(ScaledFormat::F8E4M3);
    let e2m1 = FloatFormat::from_scaled(ScaledFormat::F4E2M1);
    for format in [FloatFormat::F16, FloatFormat::BF16, e4m3, e2m1] {
        let of = Op::RoundToFormat { format, scaling: FormatScaling::None };
        cases.push(op(of, &[wide()], s).within(0.0));
        let of = Op::RoundToFormat { format, scaling: FormatScaling::Block(16) };
        cases.push(op(of, &[wide()], s).within(0.0));
        let of = Op::RoundToFormat { format, scaling: FormatScaling::FineBlock(16) };
        cases.push(op(of, &[wide()], s).within(1e-7));
    }
    let of = Op::RoundToFormat { format: e4m3, scaling: FormatScaling::PerTensor };
    cases.push(op(of, &[wide(), list(&[999.0])], s).within(0.0));
    for (format, layout, count) in [
        (ScaledFormat::F8E4M3, ScaleLayout::PerTensor, 1),
        (ScaledFormat::F4E2M1, ScaleLayout::BlockMxE8M0 { block: 8 }, 10),
        (ScaledFormat::F8E5M2, ScaleLayout::BlockMxE8M0 { block: 16 }, 6),
        (ScaledFormat::F6E2M3, ScaleLayout::Nvfp4 { group: 16 }, 6),
    ] {
        let dtype = layout.scale_dtype();
        let rows = |count: usize| if count == 1 { vec![1] } else { vec![2, count / 2] };
        cases.push(graph("ScaledQuantize", &[x(s, 51)], |graph, ids| {
            let scale = Op::ScaledQuantScale { format, scale_layout: layout };
            let scale = graph.add_node(scale, ids.to_vec(), Shape::new(&rows(count), dtype));
            let codes = Op::ScaledQuantize { format, scale_layout: layout };
            let codes = graph.add_node(codes, vec![ids[0], scale], Shape::new(s, DType::U8));
            let back = Op::ScaledDequantize { format, scale_layout: layout };
            graph.add_node(back, vec![codes, scale], Shape::new(s, DType::F32))
        }));
        let codes = |shape: &[usize], salt| {
            // No code is infinite or NaN.
            let below = 1usize << format.bit_width();
            let mut given = indices(shape, salt, below);
            for code in &mut given.elements {
                if !rlx_ir::lowp_codec::decode(format, *code as u8).is_finite() {
                    *code = 1.0;
                }
            }
            typed(given, DType::U8)
        };
        let scale = |rows: usize, salt| match layout {
            ScaleLayout::PerTensor => list(&[0.01]),
            ScaleLayout::BlockMxE8M0 { block } => {
                let mut given = indices(&[rows, 40usize.div_ceil(block as usize)], salt, 6);
                given.elements.iter_mut().for_each(|x| *x += 118.0);
                typed(given, DType::U8)
            }
            ScaleLayout::Nvfp4 { group } => {
                typed(indices(&[rows, 40usize.div_ceil(group as usize)], salt, 100), DType::U8)
            }
        };
        let of = Op::ScaledMatMul {
            lhs_format: format,
            rhs_format: format,
            scale_layout: layout,
            has_bias: true,
        };
        let operands = [codes(s, 52), codes(&[3, 40], 53), scale(2, 54), scale(3, 55), x(&[3], 56)];
        cases.push(op(of, &operands, &[2, 3]));
        let of = Op::ScaledGroupedMatMul {
            lhs_format: format,
            rhs_format: format,
            scale_layout: layout,
            has_bias: true,
        };
        let operands = [
            codes(s, 57),
            codes(&[4, 3, 40], 58),
            scale(2, 59),
            scale(12, 60),
            list(&[3.0, 1.0]),
            x(&[4, 3], 61),
        ];
        cases.push(op(of, &operands, &[2, 3]));
    }
    let pair = |shape: &[usize], salt: u64, low: f32, high: f32| {
        let mut given = between(shape, salt, low, high);
        let rest = noise(given.elements.len(), salt + 1);
        for at in (1..given.elements.len()).step_by(2) {
            given.elements[at] = rest[at] * 1e-9;
        }
        given
    };
    let s = &[3, 4, 2];
    for of in [DfOp::Add, DfOp::Sub, DfOp::Mul, DfOp::Div, DfOp::Maximum] {
        let operands = [pair(s, 62, 0.5, 2.0), pair(s, 63, 0.5, 2.0)];
        cases.push(op(Op::DoubleSingle(of), &operands, s).within(1e-7));
    }
    for of in [DfOp::Sqrt, DfOp::Exp] {
        cases.push(op(Op::DoubleSingle(of), &[pair(s, 64, 0.5, 2.0)], s).within(1e-7));
    }
    let axes = vec![1];
    let of = DfOp::Sum { axes: axes.clone(), keep_dim: false };
    cases.push(op(Op::DoubleSingle(of), &[pair(s, 65, -2.0, 2.0)], &[3, 2]).within(1e-7));
    let of = DfOp::Max { axes, keep_dim: true };
    cases.push(op(Op::DoubleSingle(of), &[pair(s, 66, -2.0, 2.0)], &[3, 1, 2]).within(1e-7));
    let operands = [pair(&[2, 3, 2], 67, -2.0, 2.0), pair(&[3, 4, 2], 68, -2.0, 2.0)];
    cases.push(op(Op::DoubleSingle(DfOp::MatMul), &operands, &[2, 4, 2]).within(1e-7));
}

fn complex(cases: &mut Vec<Case>) {
    let s = &[3, 4];
    let z = |salt| OperandCase {
        shape: s.to_vec(),
        dtype: DType::C64,
        elements: noise(24, salt),
        bytes: None,
    };
    for of in [BinaryOp::Add, BinaryOp::Sub, BinaryOp::Mul, BinaryOp::Div] {
        cases.push(typed_op(Op::Binary(of), &[z(70), z(71)], s, DType::C64));
    }
    for of in [Activation::Neg, Activation::Exp, Activation::Log, Activation::Sqrt] {
        cases.push(typed_op(Op::Activation(of), &[z(72)], s, DType::C64));
    }
    cases.push(typed_op(Op::Conjugate, &[z(73)], s, DType::C64));
    cases.push(op(Op::ComplexNormSq, &[z(74)], s));
    cases.push(typed_op(Op::ComplexNormSqBackward, &[z(75), x(s, 76)], s, DType::C64));
    let (norm, algo) = (FftNorm::Ortho, FftAlgo::Native);
    cases.push(typed_op(Op::Fft { inverse: true, norm, algo }, &[z(77)], s, DType::C64));
}

fn spectra(cases: &mut Vec<Case>) {
    for (norm, inverse) in [
        (FftNorm::Backward, false),
        (FftNorm::Backward, true),
        (FftNorm::Forward, true),
        (FftNorm::Ortho, false),
    ] {
        for points in [8, 6] {
            let of = Op::Fft { inverse, norm, algo: FftAlgo::Native };
            cases.push(op(of, &[x(&[2, 2 * points], 80)], &[2, 2 * points]));
        }
    }
    let of = Op::Fft { inverse: false, norm: FftNorm::Backward, algo: FftAlgo::POCKETFFT_NO_FMA };
    cases.push(op(of, &[x(&[2, 20], 81)], &[2, 20]));
    for (scale, norm, inverse) in [
        (FftQScale::None, FftNorm::Backward, false),
        (FftQScale::Saturating, FftNorm::Backward, true),
        (FftQScale::PerStage, FftNorm::Ortho, false),
        (FftQScale::EveryOther, FftNorm::Forward, false),
    ] {
        let mut given = indices(&[2, 32], 82, 60000);
        given.elements.iter_mut().for_each(|x| *x -= 30000.0);
        let given = [typed(given, DType::I32)];
        let of = Op::FftQ { inverse, norm, scale };
        cases.push(typed_op(of, &given, &[2, 32], DType::I32).within(0.0));
    }
    let bit = |salt| indices(&[4], salt, 2);
    let of = Op::FftButterflyStage { stage: 1, n_fft: 8 };
    let operands = [x(&[2, 8, 2], 83), list(&[1., 0., 1., 1.]), bit(85), x(&[4], 86), x(&[4], 87)];
    cases.push(op(of, &operands, &[2, 8, 2]));
    let mel = [x(&[2, 16], 88), between(&[3, 5], 89, 0.0, 1.0)];
    cases.push(op(Op::LogMel, &mel, &[2, 3]));
    let mel = [mel[0].clone(), mel[1].clone(), x(&[2, 3], 90)];
    cases.push(op(Op::LogMelBackward, &mel, &[2, 16]));
    let of = Op::WelchPeaks { k: 3, n_segments: 2 };
    cases.push(op(of, &[x(&[4, 16], 91)], &[2, 6]));
}
