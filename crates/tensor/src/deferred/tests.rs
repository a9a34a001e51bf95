use half::{bf16, f16};

use crate::{Buffer, DType, LazyTensor, Overflow, RecipeError, Statistics};

/// Deterministic numbers with fractions, of both signs and many magnitudes.
fn numbers(count: usize) -> Vec<f32> {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let magnitude = 2f32.powi((random >> 32) as i32 % 24);
        (random as u32 as f32 / u32::MAX as f32 - 0.5) * magnitude
    };
    (0..count).map(|_| next()).collect()
}

fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

fn floats(buffer: &Buffer) -> Vec<f32> {
    buffer.as_bytes().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

fn halves(numbers: impl IntoIterator<Item = f32>) -> Vec<u8> {
    numbers.into_iter().flat_map(|number| f16::from_f32(number).to_le_bytes()).collect()
}

fn recipe(numbers: &[f32], shape: &[u64]) -> LazyTensor {
    LazyTensor::new(Buffer::from(bytes(numbers)), DType::Fp32, shape).expect("fits")
}

/// The bytes of a buffer, read in windows of `size` bytes. Windows may begin inside an element.
fn in_windows(buffer: &Buffer, size: usize) -> Vec<u8> {
    let mut read = vec![0; buffer.len()];
    for start in (0..buffer.len()).step_by(size) {
        let end = buffer.len().min(start + size);
        buffer.read_at(start, &mut read[start..end]).expect("computed");
    }
    read
}

#[test]
fn float_casts_match_reference_in_any_window_size() {
    let mut numbers = numbers(5000);
    numbers.extend([0.0, -0.0, 65504.0, 65519.99, 65520.0, -7e4, f32::INFINITY, f32::MIN_POSITIVE]);
    numbers.extend([5.960_464_5e-8, 2.980_232_2e-8, 2.980_232_5e-8, f32::MAX]);
    let count = numbers.len() as u64;
    for dtype in [DType::Fp16, DType::Bf16, DType::Fp64] {
        let buffer = recipe(&numbers, &[count]).cast(dtype).expect("floats").to_buffer();
        let expected: Vec<u8> = match dtype {
            DType::Fp16 => halves(numbers.iter().copied()),
            DType::Bf16 => {
                numbers.iter().flat_map(|&number| bf16::from_f32(number).to_le_bytes()).collect()
            }
            _ => numbers.iter().flat_map(|&number| f64::from(number).to_le_bytes()).collect(),
        };
        for size in [1, 3, 7, 1000, 4096, 1 << 20] {
            assert_eq!(in_windows(&buffer, size), expected, "{dtype} in windows of {size}");
        }
        assert!(buffer.is_deferred(), "reading in windows must not materialize the buffer");
        assert_eq!(buffer.as_bytes(), expected);
        assert!(!buffer.is_deferred());
        assert_eq!(in_windows(&buffer, 1001), expected);
    }
}

#[test]
fn casts_between_every_dtype_pair_match_rust() {
    let stored = |dtype: DType, number: f64| -> Vec<u8> {
        match dtype {
            DType::Bool => vec![u8::from(number != 0.0)],
            DType::Fp16 => f16::from_f64(number).to_le_bytes().into(),
            DType::Bf16 => bf16::from_f64(number).to_le_bytes().into(),
            DType::Fp32 => (number as f32).to_le_bytes().into(),
            DType::Fp64 => number.to_le_bytes().into(),
            DType::Int8 => (number as i8).to_le_bytes().into(),
            DType::Int16 => (number as i16).to_le_bytes().into(),
            DType::Int32 => (number as i32).to_le_bytes().into(),
            DType::Int64 => (number as i64).to_le_bytes().into(),
            DType::UInt8 => (number as u8).to_le_bytes().into(),
            DType::UInt16 => (number as u16).to_le_bytes().into(),
            DType::UInt32 => (number as u32).to_le_bytes().into(),
            DType::UInt64 => (number as u64).to_le_bytes().into(),
            _ => unreachable!("not a numeric type"),
        }
    };
    let types = [
        DType::Bool,
        DType::Fp16,
        DType::Bf16,
        DType::Fp32,
        DType::Fp64,
        DType::Int8,
        DType::Int16,
        DType::Int32,
        DType::Int64,
        DType::UInt8,
        DType::UInt16,
        DType::UInt32,
        DType::UInt64,
    ];
    for from in types {
        // All types represent these numbers exactly.
        let whole: Vec<f64> = if from == DType::Bool {
            vec![0.0, 1.0, 1.0]
        } else {
            vec![0.0, 1.0, 2.0, 3.0, 64.0, 100.0, 120.0, 127.0]
        };
        let source: Vec<u8> = whole.iter().flat_map(|&number| stored(from, number)).collect();
        for to in types {
            let expected: Vec<u8> = whole.iter().flat_map(|&number| stored(to, number)).collect();
            let recipe = LazyTensor::new(source.clone().into(), from, &[whole.len() as u64]);
            let cast = recipe.and_then(|recipe| recipe.cast(to)).expect("numbers in range");
            assert_eq!(cast.to_buffer().as_bytes(), expected, "{from} to {to}");
            assert_eq!(cast.dtype(), to);
            // Cast to another type and back.
            let back = cast.cast(from).expect("numbers in range").to_buffer();
            if to != DType::Bool {
                assert_eq!(back.as_bytes(), source, "{from} to {to} and back");
            }
        }
    }
}

#[test]
fn float_to_integer_casts_truncate_and_saturate() {
    let numbers = [1.9, -1.9, 300.0, -300.0, f32::NAN, 1e20, 0.0];
    let cast = |dtype| recipe(&numbers, &[7]).cast(dtype).expect("numbers").to_buffer();
    assert_eq!(
        cast(DType::Int8).as_bytes().to_vec(),
        [1i8, -1, 127, -128, 0, 127, 0].map(|v| v as u8)
    );
    assert_eq!(cast(DType::UInt8).as_bytes(), [1, 0, 255, 0, 0, 255, 0]);
    assert_eq!(cast(DType::Bool).as_bytes(), [1, 1, 1, 1, 1, 1, 0]);
}

#[test]
fn integer_overflow_is_rejected_saturated_or_wrapped() {
    let count = 700_000usize;
    let mut integers = vec![5i64; count];
    let recipe = |integers: &[i64]| {
        let bytes: Vec<u8> = integers.iter().flat_map(|number| number.to_le_bytes()).collect();
        LazyTensor::new(bytes.into(), DType::Int64, &[count as u64]).expect("fits")
    };
    recipe(&integers).cast(DType::Int32).expect("all fit");
    integers[600_001] = 1 << 31;
    integers[600_009] = i64::MIN;
    let error = recipe(&integers).cast(DType::Int32).err().expect("one does not fit");
    let expected = RecipeError::OutOfRange { index: 600_001, value: 1 << 31, dtype: DType::Int32 };
    assert_eq!(error, expected);
    let expected = "element 600001 is 2147483648, which is out of range for `int32`";
    assert_eq!(error.to_string(), expected);

    let at = |overflow, index: usize| {
        let cast = recipe(&integers).cast_with(DType::Int32, overflow).expect("not checked");
        let mut element = [0; 4];
        cast.to_buffer().read_at(index * 4, &mut element).expect("computed");
        i32::from_le_bytes(element)
    };
    assert_eq!(at(Overflow::Saturate, 600_001), i32::MAX);
    assert_eq!(at(Overflow::Saturate, 600_009), i32::MIN);
    assert_eq!(at(Overflow::Wrap, 600_001), i32::MIN);
    assert_eq!(at(Overflow::Wrap, 600_009), 0);

    integers[600_001] = 7;
    let kept = recipe(&integers).cast_with(DType::Int32, Overflow::KeepBounds).expect("bounds");
    let mut element = [0; 4];
    kept.to_buffer().read_at(600_009 * 4, &mut element).expect("computed");
    assert_eq!(i32::from_le_bytes(element), i32::MIN);
    integers[3] = -1 << 40;
    assert!(recipe(&integers).cast_with(DType::Int32, Overflow::KeepBounds).is_err());

    let large = u64::MAX.to_le_bytes();
    let large = LazyTensor::new(large.to_vec().into(), DType::UInt64, &[]).expect("fits");
    let error = large.clone().cast(DType::Int64).err().expect("too large");
    assert!(error.to_string().contains("is 18446744073709551615"), "{error}");
    let cast = |dtype, overflow| {
        large.clone().cast_with(dtype, overflow).expect("not checked").to_buffer()
    };
    assert_eq!(cast(DType::Int64, Overflow::Saturate).as_bytes(), i64::MAX.to_le_bytes());
    assert_eq!(cast(DType::Int64, Overflow::Wrap).as_bytes(), (-1i64).to_le_bytes());
    assert_eq!(cast(DType::Fp32, Overflow::Refuse).as_bytes(), 2f32.powi(64).to_le_bytes());
}

#[test]
fn fuses_steps_across_deferred_buffers() {
    let source = numbers(4 * 6);
    let first = recipe(&source, &[4, 6]).permute(&[1, 0]).expect("a permutation");
    let first = first.scale(0, &numbers(6)).expect("fits");
    let at_once = first.clone().cast(DType::Fp16).expect("floats").to_buffer();
    let later = LazyTensor::new(first.to_buffer(), DType::Fp32, &[6, 4]).expect("the same size");
    let later = later.cast(DType::Fp16).expect("floats").to_buffer();
    assert_eq!(later.identity(), at_once.identity());
    // Reshaping a non-contiguous tensor, or reading the bytes as another type, takes a separate pass.
    for (dtype, shape) in [(DType::Fp32, [3, 8]), (DType::Int32, [6, 4])] {
        let other = LazyTensor::new(first.to_buffer(), dtype, &shape).expect("as many bytes");
        assert_eq!(other.shape(), shape);
        assert_eq!(other.to_buffer().as_bytes(), first.to_buffer().as_bytes());
    }
    let flat = LazyTensor::new(
        recipe(&source, &[24]).cast(DType::Fp16).expect("floats").to_buffer(),
        DType::Fp16,
        &[2, 12],
    );
    assert_eq!(flat.expect("as many elements").to_buffer().as_bytes(), halves(source));
}

/// The elements of a tensor with sizes and strides, one by one.
fn strided(source: &[f32], shape: &[u64], strides: &[u64], offset: u64) -> Vec<f32> {
    let count = shape.iter().product();
    let element = |index: u64| {
        let (mut left, mut at) = (index, offset);
        for (&size, &stride) in shape.iter().zip(strides).rev() {
            at += left % size * stride;
            left /= size;
        }
        source[at as usize]
    };
    (0..count).map(element).collect()
}

#[test]
fn gathers_strided_views() {
    let source = numbers(40_000);
    let buffer = Buffer::from(bytes(&source));
    let cases: [(&[u64], &[u64], u64); 9] = [
        (&[37, 53], &[53, 1], 0),
        (&[53, 37], &[1, 53], 0),
        (&[200, 100], &[1, 200], 7),
        (&[3, 70, 90], &[6300, 1, 70], 11),
        (&[70, 3, 90], &[1, 6300, 70], 0),
        (&[4, 5, 6, 7], &[1, 4, 20, 120], 3),
        (&[100], &[9], 1),
        (&[8, 1, 33], &[40, 999_999, 2], 2),
        (&[5, 7, 11], &[0, 11, 1], 4),
    ];
    for (shape, strides, offset) in cases {
        let expected = strided(&source, shape, strides, offset);
        let recipe = LazyTensor::strided(buffer.clone(), DType::Fp32, shape, strides, offset);
        let recipe = recipe.expect("within");
        assert_eq!(floats(&recipe.to_buffer()), expected, "{shape:?} {strides:?}");
        let cast = recipe.cast(DType::Fp16).expect("floats").to_buffer();
        for size in [2, 6, 1000, 1 << 20] {
            let expected = halves(expected.iter().copied());
            assert!(in_windows(&cast, size) == expected, "{shape:?} {strides:?} {size}");
        }
    }
    let scalar = LazyTensor::strided(buffer.clone(), DType::Fp32, &[], &[], 5).expect("within");
    assert_eq!(floats(&scalar.to_buffer()), [source[5]]);
    let empty =
        LazyTensor::strided(buffer, DType::Fp32, &[0, 1 << 40], &[1 << 62, 1 << 62], 1 << 62);
    let empty =
        empty.expect("an empty view is always in bounds").cast(DType::Fp16).expect("floats");
    assert!(empty.to_buffer().is_empty());
}

#[test]
fn gathers_deferred_and_large_sources_in_pieces() {
    // Views of deferred buffers and of large files are gathered in pieces.
    let source = numbers(300 * 70 * 3);
    let doubled: Vec<f32> = source.iter().map(|number| number * 2.0).collect();
    let cases: [(&[u64], &[u64], u64); 4] = [
        (&[70, 300], &[1, 70], 0),
        (&[300, 70], &[1, 300], 5),
        (&[3, 70, 300], &[21_000, 1, 70], 0),
        (&[21_000, 3], &[1, 21_000], 0),
    ];
    for (shape, strides, offset) in cases {
        let base = recipe(&source, &[63_000]).scale(0, &[2.0]).expect("floats").to_buffer();
        let view = LazyTensor::strided(base, DType::Fp32, shape, strides, offset).expect("within");
        let view = view.cast(DType::Int32).and_then(|it| it.cast(DType::Fp32)).expect("numbers");
        let expected = strided(&doubled, shape, strides, offset);
        let expected: Vec<u8> =
            expected.iter().flat_map(|&number| (number as i32 as f32).to_le_bytes()).collect();
        for size in [400, 4 * 997, 40_000, 1 << 20] {
            assert!(in_windows(&view.to_buffer(), size) == expected, "{shape:?} in {size}");
        }
    }
    let directory = tempfile::tempdir().expect("temporary directory");
    let path = directory.path().join("large");
    let file = std::fs::File::create(&path).expect("a file");
    let (rows, columns) = (3000u64, 4000u64);
    let write = |row: u64, column: u64, number: f32| {
        use std::io::{Seek, SeekFrom, Write};
        let mut file = &file;
        file.seek(SeekFrom::Start((row * columns + column) * 4)).expect("a place");
        file.write_all(&number.to_le_bytes()).expect("written");
    };
    file.set_len(rows * columns * 4).expect("a length");
    let marked = [(0, 0), (1, 0), (2999, 0), (0, 1), (1500, 2000), (1501, 2000), (2999, 3999)];
    for (index, &(row, column)) in marked.iter().enumerate() {
        write(row, column, index as f32 + 1.0);
    }
    let source = Buffer::map(&path).expect("mapped");
    let transposed = LazyTensor::new(source, DType::Fp32, &[rows, columns]).expect("fits");
    let transposed =
        transposed.permute(&[1, 0]).and_then(|it| it.cast(DType::Fp16)).expect("floats");
    let bytes = in_windows(&transposed.to_buffer(), 1_000_002);
    let halves: Vec<f32> =
        bytes.as_chunks().0.iter().map(|bytes| f16::from_le_bytes(*bytes).to_f32()).collect();
    assert_eq!(halves.iter().filter(|&&half| half != 0.0).count(), marked.len());
    for (index, &(row, column)) in marked.iter().enumerate() {
        assert_eq!(halves[(column * rows + row) as usize], index as f32 + 1.0);
    }
}

#[test]
fn rejects_views_out_of_bounds() {
    let buffer = Buffer::from(vec![0; 64]);
    let refused: [(DType, &[u64], &[u64], u64); 7] = [
        (DType::Fp32, &[17], &[1], 0),
        (DType::Fp32, &[16], &[1], 1),
        (DType::Fp32, &[2], &[u64::MAX], 0),
        (DType::Fp32, &[u64::MAX, u64::MAX], &[0, 0], 0),
        (DType::Fp32, &[1 << 30], &[0], 0),
        (DType::UInt4, &[2], &[1], 0),
        (DType::Fp32, &[2, 2], &[1], 0),
    ];
    for (dtype, shape, strides, offset) in refused {
        let recipe = LazyTensor::strided(buffer.clone(), dtype, shape, strides, offset);
        assert!(matches!(recipe, Err(RecipeError::Misfit(_))), "{dtype} {shape:?} {strides:?}");
    }
    assert!(LazyTensor::new(buffer.clone(), DType::Fp32, &[15]).is_err());
    assert!(LazyTensor::new(buffer, DType::Fp32, &[16]).is_ok());
}

#[test]
fn scale_and_shift_compute_in_fp32_and_round_once() {
    let source = numbers(6 * 5 * 7);
    let factors: Vec<f32> = numbers(6).iter().map(|number| number / 3.0).collect();
    let terms: Vec<f32> = numbers(5).iter().map(|number| number * 0.1).collect();
    let folded = recipe(&source, &[6, 5, 7]).scale(0, &factors).expect("fits");
    let folded = folded.shift(1, &terms).and_then(|recipe| recipe.cast(DType::Fp16));
    let folded = folded.expect("fits").to_buffer();
    let expected = |index: usize| source[index] * factors[index / 35] + terms[index / 7 % 5];
    assert_eq!(in_windows(&folded, 38), halves((0..210).map(expected)));

    // Scale along the last axis, with more elements than a chunk; shift by a single number.
    let source = numbers(9001 * 3);
    let scaled = recipe(&source, &[9001, 3]).scale(1, &[2.0, 0.5, -1.0]).expect("fits");
    let scaled = scaled.shift(0, &[0.25]).expect("fits").to_buffer();
    let expected: Vec<f32> =
        source.iter().zip([2.0, 0.5, -1.0].iter().cycle()).map(|(x, f)| x * f + 0.25).collect();
    assert_eq!(floats(&scaled), expected);
    let along = numbers(9001);
    let scaled = recipe(&source, &[9001, 3]).scale(0, &along).expect("fits").to_buffer();
    let expected: Vec<f32> = (0..source.len()).map(|at| source[at] * along[at / 3]).collect();
    assert_eq!(floats(&scaled), expected);
}

#[test]
fn intermediate_casts_round() {
    let source = numbers(100);
    let round = |number: f32| f16::from_f32(number).to_f32();
    let there_and_back = recipe(&source, &[100]).cast(DType::Fp16);
    let there_and_back = there_and_back.and_then(|recipe| recipe.cast(DType::Fp32));
    let expected: Vec<f32> = source.iter().map(|&number| round(number)).collect();
    assert_eq!(floats(&there_and_back.expect("floats").to_buffer()), expected);

    let scaled =
        recipe(&source, &[100]).cast(DType::Fp16).and_then(|recipe| recipe.scale(0, &[0.1]));
    let expected = halves(source.iter().map(|&number| round(number) * 0.1));
    assert_eq!(scaled.expect("floats").to_buffer().as_bytes(), expected);

    // Casts through a type whose numbers fp32 does not represent exactly.
    let whole =
        recipe(&source, &[100]).cast(DType::Int32).and_then(|recipe| recipe.cast(DType::Fp32));
    let expected: Vec<f32> = source.iter().map(|&number| number as i32 as f32).collect();
    assert_eq!(floats(&whole.expect("numbers").to_buffer()), expected);
}

#[test]
fn permute_works_before_and_after_scale_and_reshape() {
    let source = numbers(4 * 5 * 6);
    let factors = numbers(5);
    let before = recipe(&source, &[4, 5, 6]).scale(1, &factors).expect("fits");
    let before = before.permute(&[2, 1, 0]).expect("a permutation");
    assert_eq!(before.shape(), [6, 5, 4]);
    let after = recipe(&source, &[4, 5, 6]).permute(&[2, 1, 0]).expect("a permutation");
    let after = after.scale(1, &factors).expect("fits");
    let permuted = strided(&source, &[6, 5, 4], &[1, 6, 30], 0);
    let expected: Vec<f32> =
        permuted.iter().enumerate().map(|(at, number)| number * factors[at / 4 % 5]).collect();
    assert_eq!(floats(&before.to_buffer()), expected);
    assert_eq!(floats(&after.to_buffer()), expected);

    // If a reshape has merged the scaled axis, a separate pass is needed.
    let merged = recipe(&source, &[4, 5, 6]).scale(1, &factors).expect("fits");
    let merged = merged.reshape(&[2, 10, 6]).and_then(|recipe| recipe.permute(&[2, 0, 1]));
    let scaled: Vec<f32> = (0..120).map(|at| source[at] * factors[at / 6 % 5]).collect();
    let expected = strided(&scaled, &[6, 2, 10], &[1, 60, 6], 0);
    assert_eq!(floats(&merged.expect("a permutation").to_buffer()), expected);
    let flat = before.reshape(&[120]).expect("as many elements").to_buffer();
    assert_eq!(floats(&flat), floats(&after.to_buffer()));
    assert!(recipe(&source, &[120]).permute(&[1]).is_err());
    assert!(recipe(&source, &[120]).reshape(&[60, 3]).is_err());
}

#[test]
fn concat_composes_with_other_steps() {
    let (left, right) = (numbers(2 * 3 * 4), numbers(2 * 5 * 4));
    let join = || {
        let parts = vec![recipe(&left, &[2, 3, 4]), recipe(&right, &[2, 5, 4])];
        LazyTensor::concat(parts, 1).expect("fits")
    };
    assert_eq!(join().shape(), [2, 8, 4]);
    let mut expected = Vec::new();
    for outer in 0..2 {
        expected.extend_from_slice(&left[outer * 12..][..12]);
        expected.extend_from_slice(&right[outer * 20..][..20]);
    }
    assert_eq!(floats(&join().to_buffer()), expected);
    let cast = join().cast(DType::Fp16).expect("floats").to_buffer();
    for size in [1, 5, 64, 1000] {
        assert_eq!(in_windows(&cast, size), halves(expected.iter().copied()));
    }
    let factors = numbers(8);
    let steps = join().scale(1, &factors).and_then(|recipe| recipe.shift(0, &[1.0, 2.0]));
    let steps = steps.and_then(|recipe| recipe.permute(&[2, 1, 0])).expect("fits");
    let computed: Vec<f32> =
        (0..64).map(|at| expected[at] * factors[at / 4 % 8] + [1.0, 2.0][at / 32]).collect();
    assert_eq!(steps.shape(), [4, 8, 2]);
    assert_eq!(floats(&steps.to_buffer()), strided(&computed, &[4, 8, 2], &[1, 4, 32], 0));
    let part = join().narrow(1, 2, 3).expect("within").to_buffer();
    assert_eq!(floats(&part), strided(&expected, &[2, 3, 4], &[32, 4, 1], 8));
    let flat = join().reshape(&[64]).expect("as many elements").to_buffer();
    assert_eq!(floats(&flat), expected);
    assert!(
        LazyTensor::concat(vec![recipe(&left, &[2, 3, 4]), recipe(&right, &[2, 5, 4])], 0).is_err()
    );
    assert!(LazyTensor::concat(Vec::new(), 0).is_err());
}

#[test]
fn clamp_to_fp16_keeps_masks_finite() {
    let mask = [0.0, f32::MIN, -7e4, f32::NEG_INFINITY, 1e5, f32::INFINITY];
    let clamped = |keep_infinities| {
        let recipe =
            recipe(&mask, &[6]).clamp_to_fp16(keep_infinities).and_then(|it| it.cast(DType::Fp16));
        let buffer = recipe.expect("floats").to_buffer();
        let halves = buffer.as_bytes().as_chunks().0.iter().map(|bytes| f16::from_le_bytes(*bytes));
        halves.map(f16::to_f32).collect::<Vec<_>>()
    };
    assert_eq!(clamped(false), [0.0, -65504.0, -65504.0, -65504.0, 65504.0, 65504.0]);
    let infinite = f32::INFINITY;
    assert_eq!(clamped(true), [0.0, -65504.0, -65504.0, -infinite, 65504.0, infinite]);
    // More elements than a SIMD vector, with a remainder.
    let many: Vec<f32> = mask.iter().copied().cycle().take(1003).collect();
    let many = recipe(&many, &[1003]).clamp_to_fp16(true).and_then(|it| it.cast(DType::Fp16));
    let expected = clamped(true).into_iter().cycle().take(1003);
    assert_eq!(many.expect("floats").to_buffer().as_bytes(), halves(expected));
    let nan = recipe(&[f32::NAN], &[1]).clamp_to_fp16(false).and_then(|it| it.cast(DType::Fp16));
    let nan = nan.expect("floats").to_buffer();
    assert!(f16::from_le_bytes(nan.as_bytes().try_into().expect("a half")).is_nan());
}

#[test]
fn unchanged_contiguous_views_alias_source() {
    let source = Buffer::from(bytes(&numbers(60)));
    let recipe = LazyTensor::new(source.clone(), DType::Fp32, &[4, 15]).expect("fits");
    let same = recipe.clone().reshape(&[60]).and_then(|recipe| recipe.cast(DType::Fp32));
    assert!(same.expect("fits").to_buffer().same_place(&source));
    let row = recipe.narrow(0, 1, 2).expect("within").to_buffer();
    assert!(row.same_place(&source.slice(60..180).expect("within")));
}

#[test]
fn equal_recipes_have_equal_identity() {
    let source = Buffer::from(bytes(&numbers(64)));
    let make = |factor: f32| {
        let recipe = LazyTensor::new(source.clone(), DType::Fp32, &[8, 8]).expect("fits");
        let recipe = recipe.permute(&[1, 0]).and_then(|recipe| recipe.scale(0, &[factor]));
        recipe.and_then(|recipe| recipe.cast(DType::Fp16)).expect("fits").to_buffer()
    };
    assert_eq!(make(2.0).identity(), make(2.0).identity());
    assert_ne!(make(2.0).identity(), make(3.0).identity());
    assert_eq!(make(2.0), make(2.0));
    assert!(make(2.0) != make(3.0));
    assert_eq!(make(2.0).slice(2..6), make(2.0).slice(2..6));
    assert_ne!(make(2.0).slice(2..6), make(2.0).slice(4..8));
    // A buffer with equal bytes in other memory is equal too. The comparison does not materialize the buffer.
    let other = Buffer::from(make(2.0).as_bytes().to_vec());
    let deferred = make(2.0);
    assert_eq!(deferred, other);
    assert!(deferred.is_deferred());
    assert_eq!(format!("{deferred:?}"), "Buffer(128 bytes, deferred)");
}

#[test]
fn reads_unaligned_mapped_sources() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let path = directory.path().join("weights");
    let source = numbers(100_000);
    let mut content = vec![7; 3];
    content.extend(bytes(&source));
    std::fs::write(&path, content).expect("written");
    let file = Buffer::map(&path).expect("mapped");
    let part = file.slice(3..400_003).expect("within");
    let cast = |shape: &[u64], order: &[usize]| {
        let recipe = LazyTensor::new(part.clone(), DType::Fp32, shape).expect("fits");
        recipe.permute(order).and_then(|it| it.cast(DType::Fp16)).expect("fits").to_buffer()
    };
    assert!(cast(&[100_000], &[0]).as_bytes() == halves(source.iter().copied()));
    let permuted = strided(&source, &[400, 250], &[1, 400], 0);
    assert!(in_windows(&cast(&[250, 400], &[1, 0]), 70_001) == halves(permuted));
}

#[test]
fn statistics_count_fp16_overflow_and_underflow() {
    let mut source: Vec<f32> = numbers(3_000_000).iter().map(|number| number / 1e3).collect();
    let within =
        Statistics::of(&bytes(&source).into(), DType::Fp32).expect("read").expect("floats");
    let expect_min = source.iter().copied().fold(f32::INFINITY, f32::min);
    let expect_max = source.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    assert_eq!((within.min, within.max), (expect_min.into(), expect_max.into()));
    assert!(within.fits_fp16());
    let vanishing = source.iter().filter(|&&x| x != 0.0 && f16::from_f32(x).to_f32() == 0.0);
    assert_eq!(within.vanishing, vanishing.count() as u64);

    source[7] = 65519.0;
    source[2_999_999] = -65520.0;
    source[1_500_000] = f32::NEG_INFINITY;
    source[1_500_001] = f32::NAN;
    source[1_500_002] = 2.980_232_2e-8;
    source[1_500_003] = 2.980_232_5e-8;
    let found = Statistics::of(&bytes(&source).into(), DType::Fp32).expect("read").expect("floats");
    assert_eq!((found.min, found.max), (-65520.0, 65519.0));
    assert_eq!((found.nans, found.infinities, found.overflowing), (1, 1, 1));
    assert!(!found.fits_fp16());
    // Fp64 is read by the code for other types; the statistics must be equal.
    let double: Vec<u8> = source.iter().flat_map(|&x| f64::from(x).to_le_bytes()).collect();
    assert_eq!(Statistics::of(&double.into(), DType::Fp64).expect("read"), Some(found));
    assert_eq!(Statistics::of(&vec![1; 8].into(), DType::UInt4).expect("read"), None);
    let none = Statistics::of(&Vec::new().into(), DType::Fp32).expect("read").expect("floats");
    assert_eq!((none.min, none.max), (f64::INFINITY, f64::NEG_INFINITY));
}
