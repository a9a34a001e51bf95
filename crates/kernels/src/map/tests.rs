use super::*;
use crate::Activation;
use coremill_simd::math::Unary;

fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(747_796_405).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 16_777_216.0 * 8.0 - 4.0
    };
    (0..count).map(|_| next()).collect()
}

/// Offset of an element in an input.
fn offset(shape: &[usize], strides: &[usize], mut at: usize) -> usize {
    let mut offset = 0;
    for axis in (0..shape.len()).rev() {
        offset += at % shape[axis] * strides[axis];
        at /= shape[axis];
    }
    offset
}

fn binary(function: Binary, a: f32, b: f32) -> f32 {
    let truth = |truth: bool| f32::from(u8::from(truth));
    match function {
        Binary::Add => a + b,
        Binary::Sub => a - b,
        Binary::Mul => a * b,
        Binary::Div => a / b,
        Binary::FloorDiv => (f64::from(a) / f64::from(b)).floor() as f32,
        Binary::Mod => {
            let (a, b) = (f64::from(a), f64::from(b));
            (a - b * (a / b).floor()) as f32
        }
        Binary::Min => {
            if a.is_nan() || b.is_nan() {
                f32::NAN
            } else {
                a.min(b)
            }
        }
        Binary::Max => {
            if a.is_nan() || b.is_nan() {
                f32::NAN
            } else {
                a.max(b)
            }
        }
        Binary::Pow => f64::from(a).powf(f64::from(b)) as f32,
        Binary::Equal => truth(a == b),
        Binary::NotEqual => truth(a != b),
        Binary::Less => truth(a < b),
        Binary::LessEqual => truth(a <= b),
        Binary::Greater => truth(a > b),
        Binary::GreaterEqual => truth(a >= b),
        Binary::And => truth(a != 0.0 && b != 0.0),
        Binary::Or => truth(a != 0.0 || b != 0.0),
        Binary::Xor => truth((a != 0.0) != (b != 0.0)),
    }
}

fn close(result: f32, expected: f32) -> bool {
    (result - expected).abs() <= 2e-6 * expected.abs().max(1.0)
        || result == expected
        || result.is_nan() && expected.is_nan()
}

/// Shapes, and the strides of two inputs for each.
fn spaces() -> Vec<(Vec<usize>, [Vec<usize>; 2])> {
    let mut spaces = vec![
        (vec![], [vec![], vec![]]),
        (vec![1], [vec![1], vec![0]]),
        (vec![7], [vec![1], vec![0]]),
        (vec![3, 5], [vec![5, 1], vec![0, 1]]),
        (vec![3, 5], [vec![1, 0], vec![1, 3]]),
        (vec![2, 3, 4], [vec![12, 4, 1], vec![0, 1, 0]]),
        (vec![2, 1, 4], [vec![4, 9, 1], vec![0, 0, 0]]),
        (vec![0, 4], [vec![4, 1], vec![0, 1]]),
        (vec![4, 2, 3], [vec![1, 4, 8], vec![6, 3, 1]]),
        (vec![5, 4], [vec![0, 2], vec![8, 2]]),
    ];
    if !cfg!(miri) {
        spaces.extend([
            (vec![3, 2000], [vec![2000, 1], vec![0, 1]]),
            (vec![3, 2000], [vec![0, 1], vec![1, 0]]),
            (vec![2, 600], [vec![1, 2], vec![600, 1]]),
            (vec![41_003], [vec![1], vec![1]]),
            (vec![41_003], [vec![1], vec![0]]),
            (vec![40, 33, 32], [vec![1056, 32, 1], vec![0, 0, 1]]),
            (vec![40, 33, 32], [vec![1056, 32, 1], vec![0, 1, 0]]),
            (vec![40, 33, 32], [vec![1056, 32, 1], vec![32, 0, 1]]),
            (vec![2, 17, 49], [vec![833, 49, 1], vec![0, 1, 0]]),
        ]);
    }
    spaces
}

#[test]
fn binary_ops_match_definition_for_all_strides() {
    let elements = [numbers(50_000, 1), numbers(50_000, 2)];
    for isa in Isa::available() {
        for threads in [1, 3] {
            let pool = Pool::new(threads);
            for function in Binary::ALL {
                let mut program = MapProgram::new();
                let (a, b) = (program.input(0), program.input(1));
                let result = program.binary(function, a, b);
                program.output(result);
                for (shape, strides) in spaces() {
                    let total = shape.iter().product();
                    let inputs = [0, 1].map(|input| MapInput {
                        elements: &elements[input],
                        strides: &strides[input],
                    });
                    let mut results = vec![9.0; total];
                    map(isa, &pool, &program, &shape, &inputs, &mut [&mut results]);
                    for (at, &result) in results.iter().enumerate() {
                        let [a, b] = [0, 1]
                            .map(|input| elements[input][offset(&shape, &strides[input], at)]);
                        let expected = binary(function, a, b);
                        assert!(
                            close(result, expected),
                            "{isa} {shape:?} {strides:?} {function:?}({a}, {b}) is {result}, not {expected}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn binary_ops_handle_special_floats() {
    let specials =
        [0.0, -0.0, 1.0, -1.0, 2.5, -3.5, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e-40];
    let pool = Pool::new(1);
    for isa in Isa::available() {
        for function in Binary::ALL {
            if matches!(function, Binary::FloorDiv | Binary::Mod) {
                continue;
            }
            let mut program = MapProgram::new();
            let (a, b) = (program.input(0), program.input(1));
            let result = program.binary(function, a, b);
            program.output(result);
            let mut results = [0.0; 100];
            let rows = MapInput { elements: &specials, strides: &[1, 0] };
            let columns = MapInput { elements: &specials, strides: &[0, 1] };
            map(isa, &pool, &program, &[10, 10], &[rows, columns], &mut [&mut results]);
            for (at, &result) in results.iter().enumerate() {
                let (a, b) = (specials[at / 10], specials[at % 10]);
                let expected = binary(function, a, b);
                assert!(
                    close(result, expected),
                    "{isa} {function:?}({a}, {b}) is {result}, not {expected}"
                );
            }
        }
    }
}

#[test]
fn floor_div_and_mod_follow_python() {
    let cases = [
        (7.0, 2.0, 3.0, 1.0),
        (-7.0, 2.0, -4.0, 1.0),
        (7.0, -2.0, -4.0, -1.0),
        (-7.0, -2.0, 3.0, -1.0),
        (6.0, 3.0, 2.0, 0.0),
        (1.0, 0.1, 9.0, 0.1),
        (5.0, f32::INFINITY, 0.0, 5.0),
        (-5.0, f32::INFINITY, -1.0, f32::INFINITY),
        (5.0, 0.0, f32::INFINITY, f32::NAN),
        (f32::INFINITY, 2.0, f32::NAN, f32::NAN),
    ];
    let pool = Pool::new(1);
    for isa in Isa::available() {
        for (a, b, quotient, rest) in cases {
            let mut program = MapProgram::new();
            let (x, y) = (program.input(0), program.input(1));
            for function in [Binary::FloorDiv, Binary::Mod] {
                let result = program.binary(function, x, y);
                program.output(result);
            }
            let (mut quotients, mut rests) = ([0.0], [0.0]);
            let inputs = [a, b];
            let inputs = [0, 1].map(|at| MapInput { elements: &inputs[at..], strides: &[] });
            map(isa, &pool, &program, &[], &inputs, &mut [&mut quotients, &mut rests]);
            assert!(close(quotients[0], quotient), "{a} // {b} is {}", quotients[0]);
            assert!(close(rests[0], rest), "{a} % {b} is {}", rests[0]);
        }
    }
}

/// A program with all kinds of steps, several outputs, reused tiles and uniform values.
#[test]
fn long_op_chains_match_definition() {
    let mut program = MapProgram::new();
    let (x, bias, scale) = (program.input(0), program.input(1), program.input(2));
    let two = program.constant(2.0);
    let four = program.binary(Binary::Mul, two, two);
    let uniform = program.binary(Binary::Add, four, scale);
    let sum = program.binary(Binary::Add, x, bias);
    let product = program.push(Step::MulAdd(uniform, sum, two));
    let activated = program.activation(Activation::LeakyRelu { alpha: 0.25 }, product);
    let rounded = program.round_to_fp16(activated);
    let positive = program.binary(Binary::Greater, x, bias);
    let chosen = program.select(positive, uniform, rounded);
    let absolute = program.unary(Unary::Abs, uniform);
    let last = program.binary(Binary::Sub, absolute, chosen);
    let chosen_uniform = program.select(uniform, absolute, two);
    for output in [rounded, last, x, rounded, chosen_uniform, two] {
        program.output(output);
    }
    let numbers = numbers(60_000, 5);
    let sizes: &[(usize, usize)] = if cfg!(miri) {
        &[(2, 3), (1, 1)]
    } else {
        &[(2, 3), (1, 1), (5, 1031), (700, 33), (3, 1500), (1, 4096)]
    };
    for isa in Isa::available() {
        for threads in [1, 3] {
            let pool = Pool::new(threads);
            for &(rows, columns) in sizes {
                let inputs = [
                    MapInput { elements: &numbers, strides: &[columns, 1] },
                    MapInput { elements: &numbers[7..], strides: &[0, 1] },
                    MapInput { elements: &numbers[11..], strides: &[0, 0] },
                ];
                let mut outputs = vec![vec![0.0; rows * columns]; 6];
                let mut slices: Vec<_> =
                    outputs.iter_mut().map(|output| output.as_mut_slice()).collect();
                map(isa, &pool, &program, &[rows, columns], &inputs, &mut slices);
                for at in 0..rows * columns {
                    let (x, bias) = (numbers[at], numbers[7 + at % columns]);
                    let uniform = numbers[11] + 4.0;
                    let product = uniform * (x + bias) + 2.0;
                    let activated = if product < 0.0 { 0.25 * product } else { product };
                    let rounded = half::f16::from_f32(activated).to_f32();
                    let last = uniform.abs() - if x > bias { uniform } else { rounded };
                    // A fused multiply-add may round to an adjacent half.
                    let near = |a: f32, b: f32| (a - b).abs() <= 2e-3 * b.abs().max(1.0);
                    assert!(near(outputs[0][at], rounded), "{isa} {rows} {columns} {at}");
                    assert!(near(outputs[1][at], last), "{isa} {rows} {columns} {at}");
                    assert_eq!(outputs[2][at], x);
                    assert_eq!(outputs[3][at], outputs[0][at]);
                    assert!(close(outputs[4][at], uniform.abs()));
                    assert_eq!(outputs[5][at], 2.0);
                }
            }
        }
    }
}

#[test]
fn computes_broadcast_strides() {
    assert_eq!(broadcast_strides(&[3, 1], &[2, 3, 4]), Some(vec![0, 1, 0]));
    assert_eq!(broadcast_strides(&[2, 3, 4], &[2, 3, 4]), Some(vec![12, 4, 1]));
    assert_eq!(broadcast_strides(&[], &[5]), Some(vec![0]));
    assert_eq!(broadcast_strides(&[2], &[3]), None);
    assert_eq!(broadcast_strides(&[1, 3], &[3]), None);
}

#[test]
#[should_panic(expected = "too few elements")]
fn rejects_strides_out_of_bounds() {
    let mut program = MapProgram::new();
    let x = program.input(0);
    program.output(x);
    let input = MapInput { elements: &[0.0; 5], strides: &[3, 1] };
    map(Isa::Portable, &Pool::new(1), &program, &[2, 3], &[input], &mut [&mut [0.0; 6]]);
}
