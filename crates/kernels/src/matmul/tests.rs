use super::*;
use crate::Activation;
use coremill_simd::Isa;
use coremill_tensor::{Buffer, DType};

/// Deterministic pseudorandom numbers.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() >> 33) as usize % end
    }

    /// An element between -1 and 1.
    pub(crate) fn element(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub(crate) fn elements(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.element()).collect()
    }
}

pub(crate) fn bytes_of(elements: &[f32]) -> Buffer {
    Buffer::from(elements.iter().flat_map(|element| element.to_le_bytes()).collect::<Vec<_>>())
}

/// Marker for elements of an output that must not change.
const UNTOUCHED: f32 = 12345.0;

/// The product computed by its definition, with weights `[outputs, inputs]`.
pub(crate) fn expected(
    rows: usize,
    left: Matrix,
    inputs: usize,
    weights: &[f32],
    outputs: usize,
    epilogue: &Epilogue,
) -> Vec<f32> {
    let mut result = Vec::new();
    for row in 0..rows {
        for output in 0..outputs {
            let mut sum = 0.0;
            for input in 0..inputs {
                let element = f64::from(left.elements[row * left.stride + input]);
                sum += element * f64::from(weights[output * inputs + input]);
            }
            result.push(finished(epilogue, row, output, sum));
        }
    }
    result
}

/// Applies the epilogue to one element.
pub(crate) fn finished(epilogue: &Epilogue, row: usize, column: usize, sum: f64) -> f32 {
    let round = |x: f64| match epilogue.rounding {
        Rounding::None => x,
        Rounding::Fp16 => f64::from(half::f16::from_f32(x as f32).to_f32()),
    };
    let residual = epilogue.residual.map(|residual| {
        let at = row * residual.rows.stride + column;
        (f64::from(residual.rows.elements[at]), residual.after_activation)
    });
    let mut x = round(sum + epilogue.bias.map_or(0.0, |bias| f64::from(bias[column])));
    if let Some((residual, false)) = residual {
        x = round(x + residual);
    }
    if epilogue.activation != Activation::None {
        x = round(f64::from(epilogue.activation.apply(x as f32)));
    }
    if let Some((residual, true)) = residual {
        x = round(x + residual);
    }
    x as f32
}

/// Compares the rows of an output, and checks that the gaps are unchanged.
pub(crate) fn compare(
    what: &str,
    output: &[f32],
    stride: usize,
    columns: usize,
    expected: &[f32],
    tolerance: f32,
) {
    for (index, result) in output.iter().enumerate() {
        let (row, column) = (index / stride, index % stride);
        if column >= columns {
            assert!(*result == UNTOUCHED, "{what}: wrote to a gap at {row}, {column}");
            continue;
        }
        let Some(&expected) = expected.get(row * columns + column) else { continue };
        let same = result.is_nan() && expected.is_nan() || *result == expected;
        assert!(
            same || (result - expected).abs() <= tolerance * expected.abs().max(1.0),
            "{what}: {result} at {row}, {column}, expected {expected}"
        );
    }
}

struct Case {
    rows: usize,
    inputs: usize,
    outputs: usize,
    left_gap: usize,
    gap: usize,
}

impl Case {
    fn run(&self, isa: Isa, pool: &Pool, seed: u64, epilogue: &Epilogue, precision: Precision) {
        let Case { rows, inputs, outputs, left_gap, gap } = *self;
        let mut random = Random::new(seed);
        let left = random.elements(rows * (inputs + left_gap));
        let left = Matrix { elements: &left, stride: inputs + left_gap };
        let mut weights = random.elements(inputs * outputs);
        if precision == Precision::F16 {
            weights.iter_mut().for_each(|weight| *weight = half::f16::from_f32(*weight).to_f32());
        }
        let source = DenseSource::new(
            isa,
            bytes_of(&weights),
            DType::Fp32,
            inputs,
            outputs,
            Order::OutputsFirst,
        );
        let packed = PackedWeights::pack(pool, isa, inputs, outputs, precision, &source);
        let bias = random.elements(outputs);
        let addend = random.elements(rows * (outputs + 3));
        let epilogue = Epilogue {
            bias: epilogue.bias.map(|_| &bias[..]),
            residual: epilogue.residual.map(|residual| Residual {
                rows: Matrix { elements: &addend, stride: outputs + 3 },
                ..residual
            }),
            ..*epilogue
        };
        let expected = expected(rows, left, inputs, &weights, outputs, &epilogue);
        let stride = outputs + gap;
        let mut output = vec![UNTOUCHED; rows * stride];
        let target = MatrixMut { elements: &mut output, stride };
        multiply(pool, rows, left, &packed, target, &epilogue);
        // Rounding to half precision may amplify a difference in the last bit of a sum to the last bit of a
        // half.
        let tolerance = if epilogue.rounding == Rounding::Fp16 { 3e-3 } else { 2e-5 };
        let what = format!("{isa} {rows}x{inputs}x{outputs} {precision:?} {epilogue:?}");
        compare(&what[..what.len().min(200)], &output, stride, outputs, &expected, tolerance);
    }
}

fn pools() -> Vec<Pool> {
    vec![Pool::new(1), Pool::new(3)]
}

/// Sizes at and near the boundaries of tiles, panels and blocks.
fn sizes() -> Vec<(usize, usize, usize)> {
    if cfg!(miri) {
        return vec![(1, 1, 1), (5, 3, 9), (9, 2, 17)];
    }
    let mut sizes = vec![
        (1, 1, 1),
        (8, 1, 48),
        (9, 513, 49),
        (17, 1025, 33),
        (64, 64, 64),
        (300, 7, 130),
        (3, 0, 5),
        (0, 3, 5),
        (3, 5, 0),
        (7, 2048, 16),
        (257, 20, 700),
    ];
    let mut random = Random::new(7);
    for _ in 0..60 {
        sizes.push((1 + random.below(40), 1 + random.below(90), 1 + random.below(120)));
    }
    sizes
}

#[test]
fn matmul_matches_definition_for_all_sizes() {
    for isa in Isa::available() {
        for pool in pools() {
            for (seed, (rows, inputs, outputs)) in sizes().into_iter().enumerate() {
                let case = Case { rows, inputs, outputs, left_gap: seed % 3, gap: seed % 4 };
                for precision in [Precision::F32, Precision::F16] {
                    case.run(isa, &pool, seed as u64, &Epilogue::default(), precision);
                }
            }
        }
    }
}

#[test]
fn every_epilogue_matches_definition() {
    let residual = |after_activation| {
        Some(Residual { rows: Matrix { elements: &[], stride: 0 }, after_activation })
    };
    let mut epilogues = Vec::new();
    for activation in [
        Activation::None,
        Activation::Relu,
        Activation::Clamp { low: -0.25, high: 0.5 },
        Activation::LeakyRelu { alpha: 0.1 },
        Activation::GeluExact,
        Activation::Silu,
    ] {
        for rounding in [Rounding::None, Rounding::Fp16] {
            for residual in [None, residual(false), residual(true)] {
                for bias in [None, Some(&[][..])] {
                    epilogues.push(Epilogue { bias, residual, activation, rounding });
                }
            }
        }
    }
    let cases = match cfg!(miri) {
        true => vec![(3, 2, 9)],
        false => vec![(13, 40, 70), (9, 600, 33)],
    };
    for isa in Isa::available() {
        for pool in pools() {
            for (seed, epilogue) in epilogues.iter().enumerate() {
                for &(rows, inputs, outputs) in &cases {
                    let case = Case { rows, inputs, outputs, left_gap: 1, gap: 2 };
                    case.run(isa, &pool, seed as u64, epilogue, Precision::F32);
                }
            }
        }
    }
}

#[test]
fn nan_and_infinity_pass_through() {
    let pool = Pool::new(1);
    for isa in Isa::available() {
        let (rows, inputs, outputs) = (9, 20, 50);
        let mut left = Random::new(3).elements(rows * inputs);
        left[2 * inputs + 3] = f32::NAN;
        left[4 * inputs] = f32::INFINITY;
        let weights = vec![1.0; inputs * outputs];
        let source = DenseSource::new(
            isa,
            bytes_of(&weights),
            DType::Fp32,
            inputs,
            outputs,
            Order::InputsFirst,
        );
        let packed = PackedWeights::pack(&pool, isa, inputs, outputs, Precision::F32, &source);
        for activation in
            [Activation::None, Activation::Relu, Activation::Clamp { low: 0.0, high: 6.0 }]
        {
            let mut output = vec![0.0; rows * outputs];
            let epilogue = Epilogue { activation, ..Epilogue::default() };
            let left = Matrix { elements: &left, stride: inputs };
            let target = MatrixMut { elements: &mut output, stride: outputs };
            multiply(&pool, rows, left, &packed, target, &epilogue);
            for row in 0..rows {
                let results = &output[row * outputs..][..outputs];
                assert_eq!(results.iter().all(|x| x.is_nan()), row == 2, "{isa} {activation:?}");
                assert_eq!(
                    results[0] == activation.apply(f32::INFINITY),
                    row == 4,
                    "{isa} {activation:?}"
                );
            }
        }
    }
}

#[test]
fn reads_weights_of_every_order_and_dtype() {
    let (inputs, outputs, taps) = if cfg!(miri) { (6, 5, 3) } else { (90, 53, 9) };
    let pool = Pool::new(2);
    for isa in Isa::available() {
        for dtype in [DType::Fp32, DType::Fp16, DType::Bf16] {
            for order in [Order::OutputsFirst, Order::InputsFirst, Order::ChannelsFirst { taps }] {
                let mut random = Random::new(11);
                // Values that all types represent exactly.
                let elements: Vec<f32> =
                    (0..inputs * outputs).map(|_| random.below(255) as f32 - 127.0).collect();
                let mut bytes = vec![];
                for element in &elements {
                    match dtype {
                        DType::Fp32 => bytes.extend(element.to_le_bytes()),
                        DType::Fp16 => bytes.extend(half::f16::from_f32(*element).to_le_bytes()),
                        _ => bytes.extend(half::bf16::from_f32(*element).to_le_bytes()),
                    }
                }
                let source =
                    DenseSource::new(isa, Buffer::from(bytes), dtype, inputs, outputs, order);
                let packed =
                    PackedWeights::pack(&pool, isa, inputs, outputs, Precision::F16, &source);
                let mut identity = vec![0.0; inputs * inputs];
                identity.iter_mut().step_by(inputs + 1).for_each(|element| *element = 1.0);
                let left = Matrix { elements: &identity, stride: inputs };
                for weights in
                    [packed, PackedWeights::keep(isa, inputs, outputs, std::sync::Arc::new(source))]
                {
                    let mut output = vec![0.0; inputs * outputs];
                    let target = MatrixMut { elements: &mut output, stride: outputs };
                    multiply(&pool, inputs, left, &weights, target, &Epilogue::default());
                    for input in 0..inputs {
                        for column in 0..outputs {
                            let channels = inputs / taps;
                            let at = match order {
                                Order::OutputsFirst => column * inputs + input,
                                Order::InputsFirst => input * outputs + column,
                                Order::ChannelsFirst { .. } => {
                                    (column * channels + input % channels) * taps + input / channels
                                }
                            };
                            let result = output[input * outputs + column];
                            assert_eq!(
                                result, elements[at],
                                "{isa} {dtype} {order:?} {input} {column}"
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "do not fit")]
fn rejects_too_short_left_matrix() {
    let isa = Isa::detect();
    let pool = Pool::new(1);
    let source = DenseSource::new(isa, bytes_of(&[1.0; 6]), DType::Fp32, 2, 3, Order::InputsFirst);
    let packed = PackedWeights::pack(&pool, isa, 2, 3, Precision::F32, &source);
    let left = Matrix { elements: &[1.0; 3], stride: 2 };
    let target = MatrixMut { elements: &mut [0.0; 6], stride: 3 };
    multiply(&pool, 2, left, &packed, target, &Epilogue::default());
}
