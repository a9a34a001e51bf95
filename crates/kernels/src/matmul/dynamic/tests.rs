use super::super::tests::Random;
use super::*;

/// Strides of a tensor whose axes are in random order, with gaps, and the number of elements that it spans.
fn strides(random: &mut Random, extents: [usize; 4]) -> ([usize; 4], usize) {
    let mut order = [0, 1, 2, 3];
    for end in (1..4).rev() {
        order.swap(end, random.below(end + 1));
    }
    let (mut strides, mut next) = ([0; 4], 1);
    for axis in order {
        strides[axis] = next;
        next *= extents[axis].max(1);
        next += if random.below(4) == 0 { 3 } else { 0 };
    }
    (strides, next)
}

#[test]
fn batched_matmul_matches_definition_for_all_strides() {
    let (rounds, largest) = if cfg!(miri) { (5, 6) } else { (400, 70) };
    for isa in Isa::available() {
        for threads in [1, 3] {
            let pool = Pool::new(threads);
            let mut random = Random::new(threads as u64);
            for round in 0..rounds {
                let batch = [1 + random.below(2), 1 + random.below(4)];
                let rows = if round % 3 == 0 { 1 + random.below(3) } else { 1 + random.below(30) };
                let (inputs, outputs) = (random.below(largest), 1 + random.below(largest));
                let (mut left_strides, left_length) =
                    strides(&mut random, [batch[0], batch[1], rows, inputs]);
                let (mut right_strides, right_length) =
                    strides(&mut random, [batch[0], batch[1], inputs, outputs]);
                // Some matrices are broadcast along a batch axis.
                if random.below(4) == 0 {
                    left_strides[0] = 0;
                    right_strides[1] = 0;
                }
                // Some repeat a row, a column or one element.
                for strides in [&mut left_strides, &mut right_strides] {
                    for stride in &mut strides[2..] {
                        if random.below(6) == 0 {
                            *stride = 0;
                        }
                    }
                }
                let (left, right) = (random.elements(left_length), random.elements(right_length));
                let stride = outputs + random.below(3);
                let output_strides = if round % 2 == 0 {
                    [batch[1] * rows * stride, rows * stride, stride]
                } else {
                    [batch[1] * rows * stride, stride, batch[1] * stride]
                };
                let mut output = vec![12345.0; batch[0] * batch[1] * rows * stride];
                let bias = random.elements(outputs);
                let epilogue =
                    Epilogue { bias: (round % 5 == 0).then_some(&bias[..]), ..Epilogue::default() };
                let shape = BatchShape { batch, rows, inputs, outputs };
                let [a, b, c, d] = left_strides;
                let left_batch = Batch { elements: &left, batch_strides: [a, b], strides: [c, d] };
                let [e, f, g, h] = right_strides;
                let right_batch =
                    Batch { elements: &right, batch_strides: [e, f], strides: [g, h] };
                let target = BatchMut {
                    elements: &mut output,
                    batch_strides: [output_strides[0], output_strides[1]],
                    stride: output_strides[2],
                };
                multiply_batch(&pool, isa, shape, 0.5, left_batch, right_batch, target, &epilogue);
                let mut written = 0;
                for i in 0..batch[0] {
                    for j in 0..batch[1] {
                        for row in 0..rows {
                            for column in 0..outputs {
                                let sum: f64 = (0..inputs)
                                    .map(|input| {
                                        let left = left[i * a + j * b + row * c + input * d];
                                        let right = right[i * e + j * f + input * g + column * h];
                                        f64::from(left) * f64::from(right)
                                    })
                                    .sum();
                                let bias =
                                    epilogue.bias.map_or(0.0, |bias| f64::from(bias[column]));
                                let expected = (sum * 0.5 + bias) as f32;
                                let at = i * output_strides[0] + j * output_strides[1];
                                let result = output[at + row * output_strides[2] + column];
                                written += 1;
                                assert!(
                                    (result - expected).abs() < 1e-5 * (1.0 + expected.abs()),
                                    "{isa} {shape:?} {left_strides:?} {right_strides:?}: \
                                     {result} at {i}, {j}, {row}, {column}, expected {expected}"
                                );
                            }
                        }
                    }
                }
                let untouched = output.iter().filter(|&&element| element == 12345.0).count();
                assert_eq!(untouched, output.len() - written, "{isa} {shape:?} wrote to gaps");
            }
        }
    }
}

#[test]
#[should_panic(expected = "results overlap")]
fn rejects_overlapping_results() {
    let shape = BatchShape { batch: [1, 2], rows: 2, inputs: 1, outputs: 2 };
    let elements = [1.0; 8];
    let matrices = Batch { elements: &elements, batch_strides: [0, 2], strides: [1, 1] };
    let target = BatchMut { elements: &mut [0.0; 8], batch_strides: [0, 1], stride: 2 };
    let pool = Pool::new(1);
    multiply_batch(
        &pool,
        Isa::detect(),
        shape,
        1.0,
        matrices,
        matrices,
        target,
        &Epilogue::default(),
    );
}
