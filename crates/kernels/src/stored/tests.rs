use std::sync::Arc;

use super::*;
use crate::Activation;
use crate::Pool;
use crate::matmul::tests::{Random, compare, expected};
use crate::matmul::{
    Epilogue, Matrix, MatrixMut, Order, PackedWeights, Precision, Residual, Rounding, multiply,
};
use coremill_simd::Isa;
use coremill_tensor::{Buffer, DType, packed};

/// Weights in some format, and their values, row by row.
struct Sample {
    name: String,
    stored: QuantizedMatrix,
    values: Vec<f32>,
}

fn halves(values: &[f32]) -> Buffer {
    Buffer::from(
        values.iter().flat_map(|&x| half::f16::from_f32(x).to_le_bytes()).collect::<Vec<_>>(),
    )
}

fn singles(values: &[f32]) -> Buffer {
    Buffer::from(values.iter().flat_map(|&x| x.to_le_bytes()).collect::<Vec<_>>())
}

/// Moves the bytes to an unaligned address, which is possible in a file.
fn misaligned(bytes: &[u8]) -> Buffer {
    let all = Buffer::from([&[0xff], bytes].concat());
    all.slice(1..1 + bytes.len()).expect("bytes in range")
}

fn integers(random: &mut Random, dtype: DType, count: usize) -> Vec<i16> {
    let (low, high) = dtype.integer_range().expect("an integer type");
    (0..count).map(|_| (low + random.below((high - low + 1) as usize) as i128) as i16).collect()
}

fn float_sample(random: &mut Random, dtype: DType, rows: usize, columns: usize) -> Sample {
    let values = random.elements(rows * columns);
    let (bytes, values): (Vec<u8>, Vec<f32>) = match dtype {
        DType::Fp32 => (values.iter().flat_map(|x| x.to_le_bytes()).collect(), values),
        DType::Fp16 => {
            let halves: Vec<_> = values.iter().map(|&x| half::f16::from_f32(x)).collect();
            (
                halves.iter().flat_map(|x| x.to_le_bytes()).collect(),
                halves.iter().map(|x| x.to_f32()).collect(),
            )
        }
        _ => {
            let halves: Vec<_> = values.iter().map(|&x| half::bf16::from_f32(x)).collect();
            (
                halves.iter().flat_map(|x| x.to_le_bytes()).collect(),
                halves.iter().map(|x| x.to_f32()).collect(),
            )
        }
    };
    let stored = QuantizedMatrix::float(misaligned(&bytes), dtype, rows, columns).expect("it fits");
    Sample { name: dtype.to_string(), stored, values }
}

fn affine_sample(
    random: &mut Random,
    dtype: DType,
    [rows, columns]: [usize; 2],
    shape: [usize; 2],
    scale_dtype: DType,
    offset_dtype: Option<DType>,
) -> Sample {
    let elements = integers(random, dtype, rows * columns);
    let data = misaligned(&packed::pack(dtype, &elements).expect("in range"));
    let count = shape[0] * shape[1];
    let scales: Vec<f32> =
        (0..count).map(|_| half::f16::from_f32(random.element() / 8.0).to_f32()).collect();
    let scale = Blocks {
        data: if scale_dtype == DType::Fp32 { singles(&scales) } else { halves(&scales) },
        dtype: scale_dtype,
        shape,
    };
    let mut offsets = vec![0.0; count];
    let offset = offset_dtype.map(|dtype| {
        let integers =
            integers(random, if dtype.is_integer() { dtype } else { DType::Int4 }, count);
        offsets = integers.iter().map(|&x| f32::from(x)).collect();
        let data = match dtype {
            DType::Fp32 => singles(&offsets),
            DType::Fp16 => halves(&offsets),
            _ => Buffer::from(packed::pack(dtype, &integers).expect("in range")),
        };
        Blocks { data, dtype, shape }
    });
    let values = elements.iter().enumerate().map(|(at, &element)| {
        let (row, column) = (at / columns, at % columns);
        let block = row / (rows / shape[0]) * shape[1] + column / (columns / shape[1]);
        (f32::from(element) - offsets[block]) * scales[block]
    });
    let values = values.collect();
    let stored = QuantizedMatrix::affine(data, dtype, rows, columns, &scale, offset.as_ref());
    let name = format!("{dtype} {shape:?} {scale_dtype} {offset_dtype:?}");
    Sample { name, stored: stored.expect("it fits"), values }
}

fn palette_sample(
    random: &mut Random,
    dtype: DType,
    [rows, columns]: [usize; 2],
    shape: [usize; 2],
    palette_dtype: DType,
) -> Sample {
    let elements = integers(random, dtype, rows * columns);
    let data = misaligned(&packed::pack(dtype, &elements).expect("in range"));
    let length = 1 << dtype.bits().expect("a fixed width");
    let entries: Vec<f32> = (0..shape[0] * shape[1] * length)
        .map(|_| half::f16::from_f32(random.element()).to_f32())
        .collect();
    let palettes = if palette_dtype == DType::Fp32 { singles(&entries) } else { halves(&entries) };
    let values = elements.iter().enumerate().map(|(at, &element)| {
        let (row, column) = (at / columns, at % columns);
        let block = row / (rows / shape[0]) * shape[1] + column / (columns / shape[1]);
        entries[block * length + element as usize]
    });
    let values = values.collect();
    let stored =
        QuantizedMatrix::palette(data, dtype, rows, columns, &palettes, palette_dtype, shape);
    Sample { name: format!("palette {dtype} {shape:?}"), stored: stored.expect("it fits"), values }
}

/// The encoding of the elements in [`nested_sample`].
#[derive(Clone, Copy, Debug)]
enum Values {
    Integers(DType),
    Palette(DType),
    /// 6-bit integers from which 32 is subtracted.
    Sixes,
    Split,
}

/// Weights whose block scales and shifts are quantized themselves: each is a step of `steps_dtype` times a unit that several
/// blocks share. 6-bit steps are stored with an offset of 32.
fn nested_sample(
    random: &mut Random,
    of: Values,
    steps_dtype: DType,
    size: [usize; 2],
    shape: [usize; 2],
) -> Sample {
    let each = if shape[1].is_multiple_of(4) { 4 } else { shape[1] };
    let has_table = steps_dtype == DType::UInt6;
    nested_sample_of(random, of, Steps { dtype: steps_dtype, has_table, each }, size, shape)
}

/// Quantized scales and shifts of [`nested_sample_of`].
#[derive(Clone, Copy, Debug)]
struct Steps {
    dtype: DType,
    /// Whether a table maps each stored step to the step minus 32.
    has_table: bool,
    /// Number of blocks with the same unit.
    each: usize,
}

fn nested_sample_of(
    random: &mut Random,
    of: Values,
    steps_form: Steps,
    [rows, columns]: [usize; 2],
    shape: [usize; 2],
) -> Sample {
    let dtype = match of {
        Values::Integers(dtype) | Values::Palette(dtype) => dtype,
        Values::Sixes => DType::UInt6,
        Values::Split => DType::UInt4,
    };
    let count = rows * columns;
    let elements = integers(random, dtype, count);
    let data = misaligned(&packed::pack(dtype, &elements).expect("in range"));
    let bits = integers(random, DType::UInt1, count);
    let (values, plain): (ElementValues, Vec<f32>) = match of {
        Values::Integers(_) => {
            (ElementValues::Integers, elements.iter().map(|&element| f32::from(element)).collect())
        }
        Values::Palette(_) => {
            let entries = random.elements(1 << dtype.bits().expect("a fixed width"));
            let plain = elements.iter().map(|&element| entries[element as usize]).collect();
            (ElementValues::Palette(entries), plain)
        }
        Values::Sixes => {
            let entries = (-32..32).map(|entry| entry as f32).collect();
            let plain = elements.iter().map(|&element| f32::from(element - 32)).collect();
            (ElementValues::Palette(entries), plain)
        }
        Values::Split => {
            let lower: [f32; 16] = random.elements(16).try_into().expect("sixteen");
            let (upper, shift) = ([-0.5, 0.75], 0.625);
            let plain = elements
                .iter()
                .zip(&bits)
                .map(|(&element, &bit)| lower[element as usize] * upper[bit as usize] - shift);
            let plain = plain.collect();
            let bits = misaligned(&packed::pack(DType::UInt1, &bits).expect("in range"));
            (ElementValues::Split { bits, lower, upper, shift }, plain)
        }
    };
    let [down, across] = shape;
    let Steps { dtype: steps_dtype, has_table, each } = steps_form;
    let mut nested = |factor: f32| {
        let steps = match steps_dtype {
            DType::Fp16 | DType::Fp32 => None,
            dtype => Some(integers(random, dtype, down * across)),
        };
        let table = has_table.then(|| (-32..32).map(|at| at as f32).collect());
        let (data, numbers) = match &steps {
            None => {
                let numbers: Vec<f32> = random.elements(down * across);
                let numbers: Vec<f32> =
                    numbers.iter().map(|&x| half::f16::from_f32(x).to_f32()).collect();
                let data = if steps_dtype == DType::Fp32 { singles } else { halves };
                (data(&numbers), numbers)
            }
            Some(steps) => {
                let decode =
                    |&step: &i16| f32::from(if table.is_some() { step - 32 } else { step });
                let numbers = steps.iter().map(decode).collect();
                (misaligned(&packed::pack(steps_dtype, steps).expect("in range")), numbers)
            }
        };
        let units: Vec<f32> = (0..down * across / each)
            .map(|_| half::f16::from_f32(random.element() / 64.0).to_f32())
            .collect();
        let all =
            numbers.iter().enumerate().map(|(at, &number)| number * units[at / each] * factor);
        let all: Vec<f32> = all.collect();
        let steps = Blocks { data, dtype: steps_dtype, shape };
        let units =
            Blocks { data: halves(&units), dtype: DType::Fp16, shape: [down, across / each] };
        (NestedBlocks { steps, table, units: Some(units), factor }, all)
    };
    let ((scale, scales), (shift, shifts)) = (nested(1.0), nested(-1.0));
    let weights = plain.iter().enumerate().map(|(at, &value)| {
        let (row, column) = (at / columns, at % columns);
        let block = row / (rows / down) * across + column / (columns / across);
        value * scales[block] + shifts[block]
    });
    let weights = weights.collect();
    let stored = QuantizedMatrix::nested(data, dtype, rows, columns, &values, &scale, Some(&shift));
    let name = format!("nested {of:?} {steps_form:?} {shape:?}");
    Sample { name, stored: stored.expect("it fits"), values: weights }
}

/// Samples of all formats with this number of blocks in both directions.
fn samples(seed: u64, down: usize, across: usize, rows: usize, block: usize) -> Vec<Sample> {
    let random = &mut Random::new(seed);
    let [rows, columns] = [rows * down, across * block];
    let mut samples = vec![];
    for dtype in [DType::Fp32, DType::Fp16, DType::Bf16] {
        samples.push(float_sample(random, dtype, rows, columns));
    }
    let shape = [down, across];
    for dtype in [DType::Int8, DType::UInt8, DType::Int4, DType::UInt4, DType::UInt2, DType::UInt3]
    {
        for scale in [DType::Fp16, DType::Fp32] {
            for offset in [None, Some(DType::Fp16), Some(dtype)] {
                samples.push(affine_sample(random, dtype, [rows, columns], shape, scale, offset));
            }
        }
    }
    for dtype in
        [DType::UInt1, DType::UInt2, DType::UInt3, DType::UInt4, DType::UInt6, DType::UInt8]
    {
        for entries in [DType::Fp16, DType::Fp32] {
            samples.push(palette_sample(random, dtype, [rows, columns], shape, entries));
        }
    }
    for (values, steps) in [
        (Values::Integers(DType::UInt4), DType::UInt6),
        (Values::Integers(DType::Int8), DType::Fp16),
        (Values::Palette(DType::UInt2), DType::UInt4),
        (Values::Palette(DType::UInt3), DType::UInt6),
        (Values::Palette(DType::UInt4), DType::Fp32),
        (Values::Palette(DType::UInt6), DType::Int8),
        (Values::Split, DType::UInt6),
        (Values::Split, DType::UInt8),
    ] {
        samples.push(nested_sample(random, values, steps, [rows, columns], shape));
    }
    samples
}

/// Number of blocks in both directions, and rows and columns of a block.
fn sizes() -> Vec<[usize; 4]> {
    if cfg!(miri) {
        return vec![[1, 1, 1, 1], [2, 2, 3, 9], [3, 1, 1, 32]];
    }
    vec![
        [1, 1, 1, 1],
        [1, 1, 7, 65],
        [9, 1, 1, 40],
        [70, 4, 1, 32],
        [5, 3, 2, 17],
        [3, 20, 5, 1],
        [2, 2, 70, 96],
        [6, 2, 1, 5],
        [133, 1, 1, 130],
    ]
}

fn check(isa: Isa, pool: &Pool, sample: &Sample, rows: usize, epilogue: &Epilogue) {
    let Sample { name, stored, values } = sample;
    let (outputs, inputs) = (stored.rows(), stored.columns());
    let mut random = Random::new(rows as u64);
    let elements = random.elements(rows * (inputs + 1));
    let left = Matrix { elements: &elements, stride: inputs + 1 };
    let (bias, addend) = (random.elements(outputs), random.elements(rows * outputs));
    let epilogue = Epilogue {
        bias: epilogue.bias.map(|_| &bias[..]),
        residual: epilogue.residual.map(|residual| Residual {
            rows: Matrix { elements: &addend, stride: outputs },
            ..residual
        }),
        ..*epilogue
    };
    let expected = expected(rows, left, inputs, values, outputs, &epilogue);
    // The error of a sum is relative to its terms, not to the result.
    let largest = values.iter().fold(1.0, |largest: f32, value| largest.max(value.abs()));
    let tolerance = if epilogue.rounding == Rounding::Fp16 { 3e-3 } else { 3e-5 * largest };
    let mut output = vec![12345.0; rows * (outputs + 2)];
    let target = MatrixMut { elements: &mut output, stride: outputs + 2 };
    multiply_stored(pool, isa, rows, left, stored, target, &epilogue);
    let what = format!("{isa} {rows} rows, {outputs}x{inputs} {name}");
    compare(&what, &output, outputs + 2, outputs, &expected, tolerance);

    output.fill(12345.0);
    let panels = Arc::new(StoredPanels::new(isa, stored.clone(), Order::OutputsFirst));
    let weights = PackedWeights::keep(isa, inputs, outputs, panels);
    let target = MatrixMut { elements: &mut output, stride: outputs + 2 };
    multiply(pool, rows, left, &weights, target, &epilogue);
    compare(&format!("panels, {what}"), &output, outputs + 2, outputs, &expected, tolerance);

    if stored.has_words() {
        output.fill(12345.0);
        // Elements of the left rows are below 1, and differ from their words by at most 2⁻¹⁶.
        let tolerance = tolerance + largest * inputs as f32 * 1.6e-5;
        let target = MatrixMut { elements: &mut output, stride: outputs + 2 };
        multiply_words(pool, isa, rows, left, stored, target, &epilogue);
        compare(&format!("words, {what}"), &output, outputs + 2, outputs, &expected, tolerance);
    }
}

#[test]
fn stored_matmul_matches_definition_for_every_format() {
    for isa in Isa::available() {
        let all = [(Pool::new(3), 7), (Pool::new(1), 1), (Pool::new(1), 3)];
        for (pool, rows) in all.into_iter().take(if cfg!(miri) { 1 } else { 3 }) {
            for (seed, [down, across, rows_of_block, block]) in sizes().into_iter().enumerate() {
                for sample in samples(seed as u64, down, across, rows_of_block, block) {
                    check(isa, &pool, &sample, rows, &Epilogue::default());
                }
            }
        }
    }
}

#[test]
fn stored_matmul_applies_epilogues() {
    let pool = Pool::new(2);
    let empty = Matrix { elements: &[], stride: 0 };
    for isa in Isa::available() {
        for rounding in [Rounding::None, Rounding::Fp16] {
            for after_activation in [false, true] {
                let epilogue = Epilogue {
                    bias: Some(&[]),
                    residual: Some(Residual { rows: empty, after_activation }),
                    activation: Activation::Silu,
                    rounding,
                };
                let sample = float_sample(&mut Random::new(1), DType::Fp16, 37, 20);
                check(isa, &pool, &sample, 2, &epilogue);
            }
        }
    }
}

/// Weights in every format that [`multiply_words`] supports.
fn word_samples(seed: u64, down: usize, across: usize, rows: usize, block: usize) -> Vec<Sample> {
    let random = &mut Random::new(seed);
    let (size, shape) = ([rows * down, across * block], [down, across]);
    let mut samples = vec![];
    for dtype in [DType::Int8, DType::UInt8, DType::Int4, DType::UInt4] {
        for offset in [None, Some(dtype)] {
            samples.push(affine_sample(random, dtype, size, shape, DType::Fp16, offset));
        }
        let of = Values::Integers(dtype);
        samples.push(nested_sample(random, of, DType::UInt6, size, shape));
    }
    samples.push(nested_sample(random, Values::Sixes, DType::Int8, size, shape));
    samples
}

#[test]
fn int16_matmul_supports_every_integer_format() {
    let sizes: &[[usize; 4]] = match cfg!(miri) {
        true => &[[2, 1, 1, 32]],
        false => {
            &[[1, 1, 1, 32], [97, 18, 1, 32], [3, 5, 17, 64], [2, 1, 20, 1056], [50, 40, 1, 32]]
        }
    };
    let mut failed = vec![];
    for isa in Isa::available() {
        for (pool, rows) in [(Pool::new(1), 1), (Pool::new(3), 3), (Pool::new(2), 19)] {
            for (seed, &[down, across, rows_of_block, block]) in sizes.iter().enumerate() {
                for sample in word_samples(seed as u64, down, across, rows_of_block, block) {
                    if !sample.stored.has_words() {
                        failed.push(sample.name.clone());
                    }
                    check(isa, &pool, &sample, rows, &Epilogue::default());
                }
            }
        }
    }
    assert_eq!(failed, Vec::<String>::new(), "`multiply_words` should support these formats");
}

/// Block scales and shifts of every dtype that is decoded just before its row, with block counts that are a multiple of the
/// vector length and others.
#[test]
fn int16_matmul_reads_block_scales_of_every_dtype() {
    let sizes: &[[usize; 3]] = match cfg!(miri) {
        true => &[[2, 1, 16]],
        false => &[[9, 1, 8], [6, 1, 16], [2, 3, 64], [7, 1, 48], [5, 2, 88], [3, 1, 192]],
    };
    for isa in Isa::available() {
        for &[down, rows_of_block, across] in sizes {
            let random = &mut Random::new(across as u64);
            for dtype in [DType::Fp16, DType::Int8, DType::UInt6] {
                for each in [8, 16, 2, 1].into_iter().filter(|&each| across % each == 0) {
                    for of in [Values::Integers(DType::UInt4), Values::Integers(DType::Int8)] {
                        let steps = Steps { dtype, has_table: false, each };
                        let size = [down * rows_of_block, across * 32];
                        let sample = nested_sample_of(random, of, steps, size, [down, across]);
                        assert!(sample.stored.has_words(), "{}", sample.name);
                        check(isa, &Pool::new(1), &sample, 2, &Epilogue::default());
                    }
                }
            }
        }
    }
}

/// 16-bit arithmetic has much smaller errors than half precision.
#[test]
fn int16_matmul_is_more_accurate_than_fp16() {
    let (pool, inputs, rows) = (Pool::new(1), 2048, 8);
    let random = &mut Random::new(4);
    let elements = random.elements(rows * inputs);
    let rounded: Vec<f32> = elements.iter().map(|&x| half::f16::from_f32(x).to_f32()).collect();
    let left = Matrix { elements: &elements, stride: inputs };
    let halves = Matrix { elements: &rounded, stride: inputs };
    for isa in Isa::available() {
        for sample in word_samples(9, 40, 64, 1, 32) {
            let outputs = sample.stored.rows();
            let product = |left: Matrix| -> Vec<f64> {
                let dot = |row: usize, output: usize| {
                    let weights = &sample.values[output * inputs..][..inputs];
                    let left = &left.elements[row * inputs..][..inputs];
                    left.iter().zip(weights).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum()
                };
                (0..rows * outputs).map(|at| dot(at / outputs, at % outputs)).collect()
            };
            let exact = product(left);
            let mut output = vec![0.0; rows * outputs];
            let target = MatrixMut { elements: &mut output, stride: outputs };
            multiply_words(&pool, isa, rows, left, &sample.stored, target, &Epilogue::default());
            let noise = |found: &mut dyn Iterator<Item = f64>| -> f64 {
                found.zip(&exact).map(|(found, exact)| (found - exact).powi(2)).sum::<f64>().sqrt()
            };
            let words = noise(&mut output.iter().map(|&x| f64::from(x)));
            let halves = noise(&mut product(halves).into_iter());
            assert!(words < halves / 3.0, "{isa} {}: {words} and {halves}", sample.name);
        }
    }
}

#[test]
fn int16_matmul_propagates_non_finite_inputs() {
    let sample =
        affine_sample(&mut Random::new(1), DType::Int4, [5, 64], [5, 2], DType::Fp16, None);
    for isa in Isa::available() {
        for rows in [1, 9] {
            let mut elements = vec![1e-39; rows * 64];
            elements[40] = f32::NAN;
            if rows > 1 {
                elements[64] = f32::INFINITY;
            }
            let left = Matrix { elements: &elements, stride: 64 };
            let mut output = vec![7.0; rows * 5];
            let target = MatrixMut { elements: &mut output, stride: 5 };
            let pool = Pool::new(1);
            multiply_words(&pool, isa, rows, left, &sample.stored, target, &Epilogue::default());
            for (row, output) in output.chunks_exact(5).enumerate() {
                let finite = row >= 2;
                assert!(output.iter().all(|x| if finite { *x == 0.0 } else { !x.is_finite() }));
            }
        }
    }
}

#[test]
fn expands_panels_of_every_order() {
    let (rows, columns, taps) = (10, 36, 9);
    let pool = Pool::new(1);
    for isa in Isa::available() {
        for order in [Order::InputsFirst, Order::ChannelsFirst { taps }] {
            for sample in samples(5, 5, 4, 2, 9) {
                let (inputs, outputs) = match order {
                    Order::InputsFirst => (rows, columns),
                    _ => (columns, rows),
                };
                let panels = StoredPanels::new(isa, sample.stored, order);
                let packed =
                    PackedWeights::pack(&pool, isa, inputs, outputs, Precision::F32, &panels);
                let mut identity = vec![0.0; inputs * inputs];
                identity.iter_mut().step_by(inputs + 1).for_each(|element| *element = 1.0);
                let mut output = vec![0.0; inputs * outputs];
                let left = Matrix { elements: &identity, stride: inputs };
                let target = MatrixMut { elements: &mut output, stride: outputs };
                multiply(&pool, inputs, left, &packed, target, &Epilogue::default());
                for input in 0..inputs {
                    for column in 0..outputs {
                        let channels = inputs / taps;
                        let at = match order {
                            Order::InputsFirst => input * columns + column,
                            _ => column * columns + input % channels * taps + input / channels,
                        };
                        let result = output[input * outputs + column];
                        assert_eq!(result, sample.values[at], "{isa} {} {order:?}", sample.name);
                    }
                }
            }
        }
    }
}

#[test]
fn rejects_mismatched_sizes_and_dtypes() {
    let bytes = Buffer::from(vec![0; 8]);
    assert!(QuantizedMatrix::float(bytes.clone(), DType::Fp16, 2, 2).is_some());
    assert!(QuantizedMatrix::float(bytes.clone(), DType::Fp16, 2, 3).is_none());
    assert!(QuantizedMatrix::float(bytes.clone(), DType::Int8, 2, 2).is_none());
    assert!(QuantizedMatrix::float(bytes.clone(), DType::Fp32, usize::MAX, 2).is_none());
    let blocks = |shape| Blocks { data: bytes.clone(), dtype: DType::Fp16, shape };
    let affine = |shape, offset: Option<[usize; 2]>| {
        let offset = offset.map(blocks);
        QuantizedMatrix::affine(bytes.clone(), DType::Int8, 2, 4, &blocks(shape), offset.as_ref())
    };
    assert!(affine([2, 2], None).is_some());
    assert!(affine([2, 3], None).is_none());
    assert!(affine([2, 4], None).is_none());
    assert!(affine([2, 2], Some([2, 1])).is_none());
    let palette = |dtype, count| {
        QuantizedMatrix::palette(bytes.clone(), dtype, 2, 4, &bytes, DType::Fp16, [count, 1])
    };
    assert!(palette(DType::UInt2, 1).is_some());
    assert!(palette(DType::UInt2, 2).is_none());
    assert!(palette(DType::Int4, 1).is_none());
    let nested = |values: &ElementValues, dtype, shape, units| {
        let units = Some(Blocks { data: bytes.clone(), dtype: DType::Fp16, shape: units });
        let scale =
            NestedBlocks { units, ..NestedBlocks::plain(Blocks { dtype, ..blocks(shape) }) };
        QuantizedMatrix::nested(bytes.clone(), DType::UInt4, 2, 4, values, &scale, None)
    };
    let integers = ElementValues::Integers;
    assert!(nested(&integers, DType::Int8, [2, 2], [2, 1]).is_some());
    assert!(nested(&integers, DType::Int8, [2, 2], [2, 4]).is_none());
    assert!(nested(&integers, DType::Int8, [2, 2], [0, 1]).is_none());
    assert!(nested(&integers, DType::Int8, [2, 3], [2, 1]).is_none());
    assert!(nested(&integers, DType::Fp32, [2, 4], [2, 1]).is_none());
    assert!(nested(&integers, DType::UInt3, [2, 2], [2, 1]).is_none());
    assert!(nested(&ElementValues::Palette(vec![1.0; 15]), DType::Int8, [2, 2], [2, 1]).is_none());
    let split = |count| ElementValues::Split {
        bits: Buffer::from(vec![0; count]),
        lower: [1.0; 16],
        upper: [1.0, 2.0],
        shift: 0.0,
    };
    assert!(nested(&split(1), DType::Int8, [2, 2], [2, 1]).is_some());
    assert!(nested(&split(0), DType::Int8, [2, 2], [2, 1]).is_none());
}
