//! Tests of the operation kinds against formulas and against `rlx-cpu`, and the table of the kinds that are
//! lowered.

mod cases;

use std::collections::{BTreeMap, BTreeSet};

use coremill_rlx::{CoremlExecutable, KINDS, Support, support};
use rlx_ir::op::{
    Activation, AdaNormKind, BinaryOp, CmpOp, MaskKind, PadMode, ReduceOp, ScatterNdReduction,
};
use rlx_ir::quant::QuantScheme;
use rlx_ir::{DType, Graph, Op, OpKind, Shape};

type OperandCase<'a> = (&'a [usize], Vec<f32>);

/// Deterministic numbers from -1 to 1; `salt` selects where the sequence starts.
fn ramp(count: usize, salt: usize) -> Vec<f32> {
    (0..count).map(|at| ((at * 37 + salt * 17 + 5) % 83) as f32 / 41.0 - 1.0).collect()
}

/// Runs a graph of one operation on float inputs and returns its output.
fn run(op: Op, inputs: &[OperandCase<'_>], shape: &[usize]) -> Vec<f32> {
    let kind = op.kind();
    let mut graph = Graph::new("one");
    let names: Vec<String> = (0..inputs.len()).map(|at| format!("x{at}")).collect();
    let mut ids = Vec::new();
    for (name, (dims, _)) in names.iter().zip(inputs) {
        let node = Op::Input { name: name.clone() };
        ids.push(graph.add_node(node, vec![], Shape::new(dims, DType::F32)));
    }
    let y = graph.add_node(op, ids, Shape::new(shape, DType::F32));
    graph.set_outputs(vec![y]);
    let mut executable = CoremlExecutable::compile(graph)
        .unwrap_or_else(|error| panic!("{kind:?} is not compiled: {error}"));
    let given: Vec<(&str, &[f32])> =
        names.iter().zip(inputs).map(|(name, (_, data))| (name.as_str(), &data[..])).collect();
    executable
        .run(&given)
        .unwrap_or_else(|error| panic!("{kind:?} does not run: {error}"))
        .remove(0)
}

fn check(op: Op, inputs: &[OperandCase<'_>], shape: &[usize], expected: &[f32]) {
    let kind = op.kind();
    let found = run(op, inputs, shape);
    assert_eq!(found.len(), expected.len(), "{kind:?}");
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        let near = (found - expected).abs() <= 1e-4 * expected.abs().max(1.0);
        assert!(near, "{kind:?}: element {at} is {found}, expected {expected}");
    }
}

fn map(x: &[f32], of: impl Fn(f32) -> f32) -> Vec<f32> {
    x.iter().map(|&x| of(x)).collect()
}

fn zip(x: &[f32], y: &[f32], of: impl Fn(f32, f32) -> f32) -> Vec<f32> {
    x.iter().zip(y).map(|(&x, &y)| of(x, y)).collect()
}

fn product(x: &[f32], y: &[f32], [rows, inner, columns]: [usize; 3]) -> Vec<f32> {
    let cell = |row: usize, column: usize| -> f32 {
        (0..inner).map(|k| x[row * inner + k] * y[k * columns + column]).sum()
    };
    (0..rows * columns).map(|at| cell(at / columns, at % columns)).collect()
}

fn rows(x: &[f32], width: usize, of: impl Fn(&[f32]) -> Vec<f32>) -> Vec<f32> {
    x.chunks(width).flat_map(of).collect()
}

fn softmax(row: &[f32]) -> Vec<f32> {
    let total: f32 = row.iter().map(|x| x.exp()).sum();
    map(row, |x| x.exp() / total)
}

fn normal(row: &[f32]) -> Vec<f32> {
    let mean = row.iter().sum::<f32>() / row.len() as f32;
    let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / row.len() as f32;
    map(row, |x| (x - mean) / (variance + 1e-5).sqrt())
}

fn root_mean(row: &[f32]) -> Vec<f32> {
    let square = row.iter().map(|x| x * x).sum::<f32>() / row.len() as f32;
    map(row, |x| x / (square + 1e-5).sqrt())
}

/// The stored results of `rlx-cpu` for each case.
fn expected() -> BTreeMap<&'static str, Vec<f32>> {
    let lines = include_str!("expected.txt").lines();
    lines
        .map(|line| {
            let (name, numbers) = line.split_once(": ").expect("a case has a name");
            let numbers = numbers.split(' ').map(|x| x.parse().expect("numbers are floats"));
            (name, numbers.collect())
        })
        .collect()
}

/// The largest difference from the results of `rlx-cpu`, relative to their largest magnitude.
fn drift(case: cases::Case, expected: &[f32]) -> Result<f32, String> {
    let mut executable =
        CoremlExecutable::compile(case.graph).map_err(|error| error.to_string())?;
    for (name, bytes) in &case.blocks {
        executable.set_param_typed(name, bytes, DType::U8).map_err(|error| error.to_string())?;
    }
    let inputs: Vec<(&str, &[f32])> =
        case.inputs.iter().map(|(name, elements)| (name.as_str(), &elements[..])).collect();
    let found = executable.run(&inputs).map_err(|error| error.to_string())?.remove(0);
    if found.len() != expected.len() {
        return Err(format!("{} elements, expected {}", found.len(), expected.len()));
    }
    let of = |x: f32| if case.magnitudes { x.abs() } else { x };
    let largest = expected.iter().fold(0.0f32, |most, x| most.max(x.abs())).max(1e-6);
    let differences = found.iter().zip(expected).map(|(&x, &y)| (of(x) - of(y)).abs() / largest);
    let drift =
        differences.fold(0.0, |most: f32, x| if x.is_nan() { f32::INFINITY } else { most.max(x) });
    if drift <= case.tolerance {
        Ok(drift)
    } else {
        Err(format!("differs by {drift:e}: {found:?}, expected {expected:?}"))
    }
}

/// Kinds without a case. The tests below compare them with formulas, or use them together with other kinds.
const BY_FORMULA: [OpKind; 8] = [
    OpKind::Input,
    OpKind::Param,
    OpKind::Sample,
    OpKind::RngNormal,
    OpKind::RngUniform,
    OpKind::DotGeneral,
    OpKind::FusedMatMulResidual,
    OpKind::SynthReconstruct,
];

#[test]
fn every_op_kind_matches_rlx_cpu() {
    let expected = expected();
    let mut checked: BTreeMap<String, (usize, f32)> = BTreeMap::new();
    let mut faults = Vec::new();
    let mut seen = BTreeSet::new();
    for case in cases::all() {
        let kinds: Vec<String> =
            case.graph.nodes().iter().map(|node| format!("{:?}", node.op.kind())).collect();
        let name = case.name.clone();
        let Some(expected) = expected.get(name.as_str()) else {
            faults.push(format!("{name}: expected.txt has no `rlx-cpu` result"));
            continue;
        };
        seen.insert(name.clone());
        match drift(case, expected) {
            Ok(drift) => kinds.into_iter().for_each(|kind| {
                let entry = checked.entry(kind).or_default();
                *entry = (entry.0 + 1, entry.1.max(drift));
            }),
            Err(fault) => faults.push(format!("{name}: {fault}")),
        }
    }
    let (mut lowered, mut divided) = (0, 0);
    for kind in KINDS {
        match support(kind) {
            Support::Lowered => {
                lowered += 1;
                match checked.get(&format!("{kind:?}")) {
                    Some((count, drift)) => {
                        println!(
                            "| {kind:?} | lowered | {count} cases within {drift:.0e} of rlx-cpu |"
                        );
                    }
                    None => {
                        println!("| {kind:?} | lowered | checked against a formula |");
                        if !BY_FORMULA.contains(&kind) && kind != OpKind::FftPocketFft {
                            faults.push(format!("{kind:?}: no case"));
                        }
                    }
                }
            }
            Support::Divided(reason) => {
                divided += 1;
                println!("| {kind:?} | divided | {reason} |");
            }
        }
    }
    println!(
        "{lowered} of {} kinds are lowered, {divided} divided; {} cases",
        KINDS.len(),
        seen.len()
    );
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    assert_eq!((lowered, divided), (186, 5));
}

#[test]
fn elementwise_ops_and_gradients_match_formulas() {
    // The offset keeps every element away from a kink.
    let (x, y) = (map(&ramp(12, 1), |x| x + 0.012), ramp(12, 2));
    let s: &[usize] = &[3, 4];
    let both = || [(s, x.clone()), (s, y.clone())];
    for (op, of) in [
        (BinaryOp::Add, (|x, y| x + y) as fn(f32, f32) -> f32),
        (BinaryOp::Sub, |x, y| x - y),
        (BinaryOp::Mul, |x, y| x * y),
        (BinaryOp::Div, |x, y| x / y),
        (BinaryOp::Max, f32::max),
        (BinaryOp::Min, f32::min),
        (BinaryOp::Atan2, f32::atan2),
    ] {
        check(Op::Binary(op), &both(), s, &zip(&x, &y, of));
    }
    for (op, of) in [
        (CmpOp::Lt, (|x, y| x < y) as fn(f32, f32) -> bool),
        (CmpOp::Ge, |x, y| x >= y),
        (CmpOp::Ne, |x, y| x != y),
    ] {
        check(Op::Compare(op), &both(), s, &zip(&x, &y, |x, y| f32::from(u8::from(of(x, y)))));
    }
    let sigmoid = |x: f32| 1.0 / (1.0 + (-x).exp());
    let functions: [(Activation, Box<dyn Fn(f32) -> f32>); 13] = [
        (Activation::Relu, Box::new(|x| x.max(0.0))),
        (Activation::Silu, Box::new(move |x| x * sigmoid(x))),
        (Activation::Sigmoid, Box::new(sigmoid)),
        (Activation::Tanh, Box::new(f32::tanh)),
        (Activation::Exp, Box::new(f32::exp)),
        (Activation::Neg, Box::new(|x| -x)),
        (Activation::Recip, Box::new(|x| 1.0 / x)),
        (Activation::Softplus, Box::new(|x| (1.0 + x.exp()).ln())),
        (Activation::Mish, Box::new(|x| x * (1.0 + x.exp()).ln().tanh())),
        (Activation::HardSigmoid, Box::new(|x| (x / 6.0 + 0.5).clamp(0.0, 1.0))),
        (Activation::HardSwish, Box::new(|x| x * (x + 3.0).clamp(0.0, 6.0) / 6.0)),
        (Activation::LogSigmoid, Box::new(move |x| sigmoid(x).ln())),
        (Activation::Softsign, Box::new(|x| x / (1.0 + x.abs()))),
    ];
    for (activation, of) in functions {
        check(Op::Activation(activation), &[(s, x.clone())], s, &map(&x, &of));
        if activation == Activation::Recip {
            continue;
        }
        // The gradient must equal the difference quotient.
        let expected = zip(&x, &y, |x, y| {
            let (x, step) = (f64::from(x), 1e-2);
            let at = |x: f64| f64::from(of(x as f32));
            ((at(x + step) - at(x - step)) / (2.0 * step)) as f32 * y
        });
        let found = run(Op::ActivationBackward { kind: activation }, &both(), s);
        for (found, expected) in found.iter().zip(&expected) {
            assert!((found - expected).abs() < 2e-3, "{activation:?}: {found}, {expected}");
        }
    }
    let z = ramp(12, 3);
    let three = [(s, x.clone()), (s, y.clone()), (s, z.clone())];
    check(Op::Fma, &three, s, &zip(&zip(&x, &y, |x, y| x * y), &z, |p, z| p + z));
    check(
        Op::Clamp { min: -0.3, max: 0.4 },
        &[(s, x.clone())],
        s,
        &map(&x, |x| x.clamp(-0.3, 0.4)),
    );
    check(Op::ReluBackward, &both(), s, &zip(&x, &y, |x, y| if x > 0.0 { y } else { 0.0 }));
}

#[test]
fn reduce_scan_and_sort_ops_match_formulas() {
    let x = ramp(12, 4);
    let s: &[usize] = &[3, 4];
    for (op, of) in [
        (ReduceOp::Sum, (|row: &[f32]| row.iter().sum()) as fn(&[f32]) -> f32),
        (ReduceOp::Mean, |row| row.iter().sum::<f32>() / row.len() as f32),
        (ReduceOp::Max, |row| row.iter().copied().fold(f32::MIN, f32::max)),
        (ReduceOp::Min, |row| row.iter().copied().fold(f32::MAX, f32::min)),
        (ReduceOp::Prod, |row| row.iter().product()),
    ] {
        let op = Op::Reduce { op, axes: vec![1], keep_dim: false };
        check(op, &[(s, x.clone())], &[3], &rows(&x, 4, |row| vec![of(row)]));
    }
    check(Op::Softmax { axis: -1 }, &[(s, x.clone())], s, &rows(&x, 4, softmax));
    let running = |row: &[f32]| {
        let mut total = 0.0;
        row.iter()
            .map(|x| {
                total += x;
                total
            })
            .collect::<Vec<f32>>()
    };
    check(Op::Cumsum { axis: 1, exclusive: false }, &[(s, x.clone())], s, &rows(&x, 4, running));
    let backwards =
        |row: &[f32]| -> Vec<f32> { (0..row.len()).map(|at| row[at..].iter().sum()).collect() };
    let op = Op::CumsumBackward { axis: 1, exclusive: false };
    check(op, &[(s, x.clone())], s, &rows(&x, 4, backwards));
    let order = |row: &[f32]| {
        let mut order: Vec<usize> = (0..row.len()).collect();
        order.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
        order
    };
    let best = rows(&x, 4, |row| vec![order(row)[0] as f32]);
    check(Op::ArgMax { axis: 1, keep_dim: false }, &[(s, x.clone())], &[3], &best);
    let worst = rows(&x, 4, |row| vec![order(row)[3] as f32]);
    check(Op::ArgMin { axis: 1, keep_dim: true }, &[(s, x.clone())], &[3, 1], &worst);
    let two = rows(&x, 4, |row| order(row)[..2].iter().map(|&at| at as f32).collect());
    check(Op::TopK { k: 2 }, &[(s, x.clone())], &[3, 2], &two);
    let sorted = rows(&x, 4, |row| order(row).iter().map(|&at| row[at]).collect());
    check(Op::Sort { axis: 1, descending: true }, &[(s, x.clone())], s, &sorted);
    let indices = rows(&x, 4, |row| order(row).iter().rev().map(|&at| at as f32).collect());
    check(Op::ArgSort { axis: 1, descending: false }, &[(s, x.clone())], s, &indices);
    let counts = [1.0, 0.0, 2.0, 1.0];
    let given = vec![-5.0, 0.0, 0.6, 0.5, 1.0];
    check(Op::Histogram { bins: 4, min: 0.0, max: 1.0 }, &[(&[5], given)], &[4], &counts);
}

#[test]
fn data_movement_ops_match_definitions() {
    let x: Vec<f32> = (0..12).map(|at| at as f32).collect();
    let s: &[usize] = &[3, 4];
    let one = || [(s, x.clone())];
    let pick = |indices: &[usize]| indices.iter().map(|&at| x[at]).collect::<Vec<f32>>();
    check(
        Op::Transpose { perm: vec![1, 0] },
        &one(),
        &[4, 3],
        &pick(&[0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11]),
    );
    check(Op::Narrow { axis: 1, start: 1, len: 2 }, &one(), &[3, 2], &pick(&[1, 2, 5, 6, 9, 10]));
    check(
        Op::Slice { axis: 1, start: 0, len: 2, step: 2 },
        &one(),
        &[3, 2],
        &pick(&[0, 2, 4, 6, 8, 10]),
    );
    check(
        Op::Slice { axis: 1, start: 3, len: 2, step: -2 },
        &one(),
        &[3, 2],
        &pick(&[3, 1, 7, 5, 11, 9]),
    );
    check(Op::Reverse { axes: vec![0] }, &one(), s, &pick(&[8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3]));
    check(
        Op::Roll { shifts: vec![1], dims: vec![1] },
        &one(),
        s,
        &pick(&[3, 0, 1, 2, 7, 4, 5, 6, 11, 8, 9, 10]),
    );
    let upper = [0., 1., 2., 3., 0., 5., 6., 7., 0., 0., 10., 11.];
    check(Op::Trilu { upper: true, diagonal: 0 }, &one(), s, &upper);
    let pads = vec![[0, 0], [1, 2]];
    let reflect = pick(&[1, 0, 1, 2, 3, 2, 1, 5, 4, 5, 6, 7, 6, 5, 9, 8, 9, 10, 11, 10, 9]);
    check(Op::Pad { pads: pads.clone(), mode: PadMode::Reflect }, &one(), &[3, 7], &reflect);
    let circular = pick(&[3, 0, 1, 2, 3, 0, 1, 7, 4, 5, 6, 7, 4, 5, 11, 8, 9, 10, 11, 8, 9]);
    check(Op::Pad { pads, mode: PadMode::Circular }, &one(), &[3, 7], &circular);
    let row = [(&[1usize, 4][..], vec![1., 2., 3., 4.])];
    let twice = [1., 2., 3., 4., 1., 2., 3., 4.];
    check(Op::Expand { target_shape: vec![2, 4] }, &row, &[2, 4], &twice);
    check(Op::Tile { reps: vec![2, 1] }, &row, &[2, 4], &twice);
    let gathered = [(s, x.clone()), (&[2][..], vec![2.0, 0.0])];
    check(Op::Gather { axis: 0 }, &gathered, &[2, 4], &pick(&[8, 9, 10, 11, 0, 1, 2, 3]));
    let elements = [(s, x.clone()), (&[3, 1][..], vec![3.0, 0.0, 1.0])];
    check(Op::GatherElements { axis: 1 }, &elements, &[3, 1], &pick(&[3, 4, 9]));
    let updates = [(&[3, 1][..], vec![1.0, 2.0, 4.0]), (&[3][..], vec![1.0, 0.0, 1.0])];
    check(Op::ScatterAdd { axis: 0 }, &updates, &[2, 1], &[2.0, 5.0]);
    let nd = [
        (&[4][..], vec![1.0, 1.0, 1.0, 1.0]),
        (&[2, 1][..], vec![3.0, 0.0]),
        (&[2][..], vec![5.0, 7.0]),
    ];
    check(Op::ScatterNd { reduction: ScatterNdReduction::None }, &nd, &[4], &[7.0, 1.0, 1.0, 5.0]);
    let table = [(&[2, 2][..], vec![1., 2., 3., 4.]), (&[2][..], vec![2.0, 2.0])];
    check(Op::GatherBackward { axis: 0 }, &table, &[3, 2], &[0., 0., 0., 0., 4., 6.]);
    let cache = [(&[1, 3][..], vec![1., 2., 3.]), (&[1, 1][..], vec![9.])];
    check(Op::KvAppend { axis: 1, pos: 1 }, &cache, &[1, 2], &[1., 9.]);
    let update =
        [(&[1, 3][..], vec![1., 2., 3.]), (&[1, 2][..], vec![8., 9.]), (&[1][..], vec![7.0])];
    check(Op::DynamicUpdateSlice { axis: 1 }, &update, &[1, 3], &[1., 8., 9.]);
}

#[test]
fn matmul_norm_and_loss_ops_match_formulas() {
    let (x, w) = (ramp(6, 1), ramp(12, 2));
    let plain = product(&x, &w, [2, 3, 4]);
    let two = [(&[2, 3][..], x.clone()), (&[3, 4][..], w.clone())];
    check(Op::MatMul, &two, &[2, 4], &plain);
    let bias = ramp(4, 3);
    let three = [two[0].clone(), two[1].clone(), (&[4][..], bias.clone())];
    let sum: Vec<f32> =
        plain.iter().enumerate().map(|(at, y)| (y + bias[at % 4]).max(0.0)).collect();
    check(Op::FusedMatMulBiasAct { activation: Some(Activation::Relu) }, &three, &[2, 4], &sum);
    let rest = ramp(8, 5);
    let residual = [two[0].clone(), two[1].clone(), (&[2, 4][..], rest.clone())];
    check(Op::FusedMatMulResidual, &residual, &[2, 4], &zip(&plain, &rest, |x, y| x + y));
    let (a, b) = (ramp(3, 6), ramp(4, 7));
    let low = product(&product(&x, &a, [2, 3, 1]), &b, [2, 1, 4]);
    let lora = [two[0].clone(), two[1].clone(), (&[3, 1][..], a), (&[1, 4][..], b)];
    check(Op::LoraMatMul { scale: 0.5 }, &lora, &[2, 4], &zip(&plain, &low, |x, y| x + y * 0.5));
    let experts = ramp(24, 8);
    let grouped = [two[0].clone(), (&[2, 3, 4][..], experts.clone()), (&[2][..], vec![1.0, 0.0])];
    let expected =
        [product(&x[..3], &experts[12..], [1, 3, 4]), product(&x[3..], &experts[..12], [1, 3, 4])];
    check(Op::GroupedMatMul, &grouped, &[2, 4], &expected.concat());

    let (x, gamma, beta) = (ramp(8, 9), ramp(4, 10), ramp(4, 11));
    let s: &[usize] = &[2, 4];
    let affine = |normal: Vec<f32>| -> Vec<f32> {
        normal.iter().enumerate().map(|(at, x)| x * gamma[at % 4] + beta[at % 4]).collect()
    };
    let given = [(s, x.clone()), (&[4][..], gamma.clone()), (&[4][..], beta.clone())];
    check(Op::LayerNorm { axis: -1, eps: 1e-5 }, &given, s, &affine(rows(&x, 4, normal)));
    check(Op::RmsNorm { axis: -1, eps: 1e-5 }, &given, s, &affine(rows(&x, 4, root_mean)));
    let modulated = |normal: Vec<f32>| -> Vec<f32> {
        normal.iter().enumerate().map(|(at, x)| x * (1.0 + gamma[at % 4]) + beta[at % 4]).collect()
    };
    let ada = Op::AdaLayerNorm { norm: AdaNormKind::RmsNorm, eps: 1e-5 };
    check(ada, &given, s, &modulated(rows(&x, 4, root_mean)));
    let other = ramp(8, 12);
    let added = zip(&x, &other, |x, y| x + y);
    let fused = [given[0].clone(), (s, other), given[1].clone(), given[2].clone()];
    let op = Op::FusedResidualLN { has_bias: false, eps: 1e-5 };
    check(op, &fused, s, &affine(rows(&added, 4, normal)));
    let silu = |x: f32| x / (1.0 + (-x).exp());
    let gated = rows(&x, 4, |row| vec![silu(row[0]) * row[2], silu(row[1]) * row[3]]);
    check(Op::FusedSwiGLU { cast_to: None, gate_first: true }, &given[..1], &[2, 2], &gated);

    // The gradient as a difference quotient.
    let dy = ramp(8, 13);
    let loss = |x: &[f32]| -> f64 {
        let normal = rows(x, 4, normal);
        normal.iter().enumerate().map(|(at, n)| f64::from(n * gamma[at % 4] * dy[at])).sum()
    };
    let slope: Vec<f32> = (0..8)
        .map(|at| {
            let shifted = |by: f32| {
                let mut x = x.clone();
                x[at] += by;
                loss(&x)
            };
            ((shifted(1e-2) - shifted(-1e-2)) / 2e-2) as f32
        })
        .collect();
    let given = [(s, x.clone()), (&[4][..], gamma.clone()), (s, dy.clone())];
    let found = run(Op::LayerNormBackwardInput { axis: -1, eps: 1e-5 }, &given, s);
    for (found, expected) in found.iter().zip(&slope) {
        assert!((found - expected).abs() < 5e-3, "{found}, {expected}");
    }
    let labels = [(s, x.clone()), (&[2][..], vec![2.0, 0.0])];
    let probabilities = rows(&x, 4, softmax);
    let losses = [-probabilities[2].ln(), -probabilities[4].ln()];
    check(Op::SoftmaxCrossEntropyWithLogits, &labels, &[2], &losses);
    let scaled = [labels[0].clone(), labels[1].clone(), (&[2][..], vec![2.0, 3.0])];
    let mut slopes = probabilities.clone();
    (slopes[2], slopes[4]) = (slopes[2] - 1.0, slopes[4] - 1.0);
    let slopes: Vec<f32> =
        slopes.iter().enumerate().map(|(at, x)| x * [2.0, 3.0][at / 4]).collect();
    check(Op::SoftmaxCrossEntropyBackward, &scaled, s, &slopes);
}

#[test]
fn causal_attention_detects_head_axis() {
    let (batch, length, heads, width) = (1, 3, 2, 4);
    let [q, k, v] = [1, 2, 3].map(|salt| ramp(length * heads * width, salt));
    let at = |x: &[f32], position: usize, head: usize| {
        x[(position * heads + head) * width..][..width].to_vec()
    };
    let mut expected = vec![0.0; q.len()];
    for head in 0..heads {
        for query in 0..length {
            let scores: Vec<f32> = (0..=query)
                .map(|key| {
                    zip(&at(&q, query, head), &at(&k, key, head), |a, b| a * b).iter().sum::<f32>()
                        / 2.0
                })
                .collect();
            for (key, weight) in softmax(&scores).into_iter().enumerate() {
                for (element, value) in at(&v, key, head).into_iter().enumerate() {
                    expected[(query * heads + head) * width + element] += weight * value;
                }
            }
        }
    }
    let s: &[usize] = &[batch, length, heads, width];
    let op = Op::Attention {
        num_heads: heads,
        head_dim: width,
        v_head_dim: None,
        mask_kind: MaskKind::Causal,
        score_scale: None,
        attn_logit_softcap: None,
    };
    check(op, &[(s, q), (s, k), (s, v)], s, &expected);
}

#[test]
fn convolution_pooling_and_resize_match_formulas() {
    let x = ramp(16, 1);
    let w = ramp(4, 2);
    let s: &[usize] = &[1, 1, 4, 4];
    let windows = |of: &dyn Fn([f32; 4]) -> f32, step: usize| -> Vec<f32> {
        let offsets: Vec<usize> = (0..=2).step_by(step).filter(|at| at + 2 <= 4).collect();
        let mut out = Vec::new();
        for &row in &offsets {
            for &column in &offsets {
                let at = |r: usize, c: usize| x[(row + r) * 4 + column + c];
                out.push(of([at(0, 0), at(0, 1), at(1, 0), at(1, 1)]));
            }
        }
        out
    };
    let conv = Op::Conv {
        kernel_size: vec![2, 2],
        stride: vec![1, 1],
        padding: vec![0, 0],
        dilation: vec![1, 1],
        groups: 1,
    };
    let dot = |window: [f32; 4]| window.iter().zip(&w).map(|(x, w)| x * w).sum();
    check(conv, &[(s, x.clone()), (&[1, 1, 2, 2], w.clone())], &[1, 1, 3, 3], &windows(&dot, 1));
    let pool =
        |kind| Op::Pool { kind, kernel_size: vec![2, 2], stride: vec![2, 2], padding: vec![0, 0] };
    let largest = |window: [f32; 4]| window.into_iter().fold(f32::MIN, f32::max);
    check(pool(ReduceOp::Max), &[(s, x.clone())], &[1, 1, 2, 2], &windows(&largest, 2));
    let mean = |window: [f32; 4]| window.iter().sum::<f32>() / 4.0;
    check(pool(ReduceOp::Mean), &[(s, x.clone())], &[1, 1, 2, 2], &windows(&mean, 2));
    let large = (0..64).map(|at| x[(at / 16) * 4 + (at % 8) / 2]).collect::<Vec<f32>>();
    check(Op::ResizeNearest2x, &[(s, x.clone())], &[1, 1, 8, 8], &large);
}

#[test]
fn fft_is_not_normalized() {
    let x = ramp(8, 3);
    let mut expected = vec![0.0f32; 8];
    for k in 0..4 {
        for n in 0..4 {
            let (sin, cos) = (-std::f32::consts::TAU * (n * k) as f32 / 4.0).sin_cos();
            expected[k] += x[n] * cos - x[4 + n] * sin;
            expected[4 + k] += x[n] * sin + x[4 + n] * cos;
        }
    }
    let op = |inverse| Op::Fft { inverse, norm: Default::default(), algo: Default::default() };
    check(op(false), &[(&[8], x.clone())], &[8], &expected);
    check(op(true), &[(&[8], expected)], &[8], &map(&x, |x| x * 4.0));
}

#[test]
fn dequant_matmul_multiplies_gguf_blocks() {
    let mut graph = Graph::new("blocks");
    let f32s = |dims: &[usize]| Shape::new(dims, DType::F32);
    let x = graph.add_node(Op::Input { name: "x".into() }, vec![], f32s(&[1, 32]));
    let w = graph.add_node(Op::Param { name: "w".into() }, vec![], Shape::new(&[68], DType::U8));
    let op = Op::DequantMatMul { scheme: QuantScheme::GgufQ8_0 };
    let y = graph.add_node(op, vec![x, w], f32s(&[1, 2]));
    graph.set_outputs(vec![y]);
    let mut executable = CoremlExecutable::compile(graph).expect("it compiles");
    // Two rows of 32 weights, with the scales 0.5 and 1.
    let mut bytes = vec![0x00, 0x38];
    bytes.extend((0..32).map(|at| at as u8));
    bytes.extend([0x00, 0x3c]);
    bytes.extend((0..32).map(|at| (-at as i8) as u8));
    executable.set_param_typed("w", &bytes, DType::U8).expect("it is set");
    let ones = [1.0; 32];
    assert_eq!(executable.run(&[("x", &ones)]).expect("it runs"), [[248.0, -496.0]]);
    let short = executable.set_param_typed("w", &bytes[..60], DType::U8).expect_err("too short");
    assert!(short.to_string().contains("do not fill"), "{short}");
}

#[test]
fn dot_general_codebook_and_cumprod_match_formulas() {
    let (x, y) = (ramp(24, 1), ramp(40, 2));
    // The operands are `[batch, k, m, l]` and `[n, l, batch, k]`; the sum runs over `k` and `l`.
    let [batch, k, m, l, n] = [2, 2, 3, 2, 5];
    let mut expected = Vec::new();
    for b in 0..batch {
        for row in 0..m {
            for column in 0..n {
                let mut sum = 0.0;
                for at in 0..k {
                    for to in 0..l {
                        sum += x[((b * k + at) * m + row) * l + to]
                            * y[((column * l + to) * batch + b) * k + at];
                    }
                }
                expected.push(sum);
            }
        }
    }
    let op = Op::DotGeneral {
        lhs_contracting: vec![1, 3],
        rhs_contracting: vec![3, 1],
        lhs_batch: vec![0],
        rhs_batch: vec![2],
    };
    check(op, &[(&[2, 2, 3, 2], x), (&[5, 2, 2, 2], y)], &[2, 3, 5], &expected);
    // The elements of a codebook entry are consecutive in a column.
    let book = ramp(6, 4);
    let codes = [2.0, 0.0, 1.0, 1.0, 0.0, 2.0];
    let kind = rlx_ir::op::SynthKind::Codebook { entry_dim: 2, num_entries: 3 };
    let expected: Vec<f32> = (0..12)
        .map(|at| (at / 3, at % 3))
        .map(|(row, column)| book[codes[column * 2 + row / 2] as usize * 2 + row % 2])
        .collect();
    let given = [(&[3usize, 2][..], codes.to_vec()), (&[3, 2], book)];
    check(Op::SynthReconstruct { kind }, &given, &[4, 3], &expected);
    let x: Vec<f32> = ramp(6, 3);
    let running = [x[0], x[1], x[0] * x[2], x[1] * x[3], x[0] * x[2] * x[4], x[1] * x[3] * x[5]];
    check(Op::CumProd { axis: 0, exclusive: false }, &[(&[3, 2], x)], &[3, 2], &running);
}

#[test]
fn scan_checkpoints_are_trajectory_rows() {
    let mut body = Graph::new("body");
    let shape = || Shape::new(&[1], DType::F32);
    let carry = body.add_node(Op::Input { name: "carry".into() }, vec![], shape());
    let x = body.add_node(Op::Input { name: "x".into() }, vec![], shape());
    let next = body.add_node(Op::Binary(BinaryOp::Add), vec![carry, x], shape());
    body.set_outputs(vec![next]);
    for length in [5usize, 10] {
        let op = Op::Scan {
            body: Box::new(body.clone()),
            length: length as u32,
            save_trajectory: true,
            num_bcast: 0,
            num_xs: 1,
            num_checkpoints: 2,
        };
        let x: Vec<f32> = (1..=length).map(|x| x as f32).collect();
        let sum = |count: usize| (count * (count + 1) / 2) as f32;
        let expected = [sum(length.div_ceil(2)), sum(length)];
        check(op, &[(&[1], vec![0.0]), (&[length, 1], x)], &[2, 1], &expected);
    }
}

#[test]
fn random_ops_match_their_distributions() {
    let shape: &[usize] = &[4000];
    let op = Op::RngNormal { mean: 2.0, scale: 0.5, key: 1, op_seed: None };
    let found = run(op, &[], shape);
    let mean = found.iter().sum::<f32>() / 4000.0;
    let deviation = (found.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / 4000.0).sqrt();
    assert!((mean - 2.0).abs() < 0.05 && (deviation - 0.5).abs() < 0.05, "{mean}, {deviation}");
    let op = Op::RngUniform { low: -1.0, high: 3.0, key: 1, op_seed: None };
    let found = run(op, &[], shape);
    let mean = found.iter().sum::<f32>() / 4000.0;
    assert!((mean - 1.0).abs() < 0.1 && found.iter().all(|x| (-1.0..=3.0).contains(x)), "{mean}");
    // With `top_k` 1, only the largest logit remains.
    let op = Op::Sample { top_k: 1, top_p: 1.0, temperature: 0.7, seed: 3 };
    check(op, &[(&[2, 4], vec![0., 3., 1., 2., 9., 3., 1., 2.])], &[2], &[1.0, 0.0]);
}

#[test]
fn dynamic_dimensions_follow_input_sizes() {
    use rlx_ir::shape::Dim;
    let open = |last: usize| Shape::from_dims(&[Dim::Dynamic(0), Dim::Static(last)], DType::F32);
    let mut graph = Graph::new("open");
    let x = graph.add_node(Op::Input { name: "x".into() }, vec![], open(2));
    let w = graph.add_node(Op::Param { name: "w".into() }, vec![], Shape::new(&[2, 3], DType::F32));
    let y = graph.add_node(Op::MatMul, vec![x, w], open(3));
    graph.set_outputs(vec![y]);
    let mut model = CoremlExecutable::compile(graph).expect("open dimensions are accepted");
    let (x, w) = (ramp(8, 1), ramp(6, 2));
    model.set_param("w", &w).expect("it is set");
    for rows in [1, 4, 1] {
        let found = model.run(&[("x", &x[..2 * rows])]).expect("it runs");
        for (found, expected) in found[0].iter().zip(product(&x, &w, [rows, 2, 3])) {
            assert!((found - expected).abs() < 1e-5);
        }
        assert_eq!(found[0].len(), 3 * rows);
    }
    let odd = model.run(&[("x", &x[..3])]).expect_err("three elements do not fill rows of two");
    assert!(odd.to_string().contains("divisible"), "{odd}");
    model.bind(&[(0, 4)]).expect("dimension 0 is dynamic");
    assert_eq!(model.run(&[("x", &x)]).expect("it runs")[0].len(), 12);
}

#[test]
fn graphs_split_at_host_callbacks() {
    use coremill_rlx::{Device, HostCallbacks, Precision};
    let shape = || Shape::new(&[2], DType::F32);
    let build = || {
        let mut graph = Graph::new("divided");
        let x = graph.add_node(Op::Input { name: "x".into() }, vec![], shape());
        let w = graph.add_node(Op::Param { name: "w".into() }, vec![], shape());
        let sum = graph.add_node(Op::Binary(BinaryOp::Add), vec![x, w], shape());
        let op = Op::Custom { name: "swap".into(), num_inputs: 2, attrs: vec![7] };
        let swapped = graph.add_node(op, vec![sum, w], shape());
        let scaled = graph.add_node(Op::Binary(BinaryOp::Mul), vec![swapped, w], shape());
        let difference = graph.add_node(Op::Binary(BinaryOp::Sub), vec![scaled, sum], shape());
        graph.set_outputs(vec![difference, x, swapped]);
        graph
    };
    let refused =
        CoremlExecutable::compile(build()).expect_err("no callback is registered for `swap`");
    assert!(refused.to_string().contains("Hosts::custom"), "{refused}");
    let hosts = HostCallbacks::new().custom("swap", |call| {
        let Op::Custom { attrs, .. } = call.op else { unreachable!() };
        let (x, w) = (call.inputs[0].1, call.inputs[1].1);
        Ok(vec![x[1] + f32::from(attrs[0]), x[0] * w[0]])
    });
    let mut model = CoremlExecutable::compile_with(build(), Device::Host, Precision::Fp32, hosts)
        .expect("it compiles");
    model.set_param("w", &[2.0, 3.0]).expect("`w` is a parameter");
    // `sum` is [3, 5], `swapped` is [12, 6], and `scaled` is [24, 18].
    let found = model.run(&[("x", &[1.0, 2.0])]).expect("it runs");
    assert_eq!(found, [vec![21.0, 13.0], vec![1.0, 2.0], vec![12.0, 6.0]]);
    assert!(model.save("never.mlpackage").is_err());
    let short = HostCallbacks::new().custom("swap", |_| Ok(vec![1.0]));
    let mut model = CoremlExecutable::compile_with(build(), Device::Host, Precision::Fp32, short)
        .expect("it compiles");
    model.set_param("w", &[2.0, 3.0]).expect("`w` is a parameter");
    let short = model.run(&[("x", &[1.0, 2.0])]).expect_err("one element is missing");
    assert!(short.to_string().contains("returned 1 elements"), "{short}");
}

#[test]
fn returns_errors_where_rlx_coreml_panics() {
    let mut graph = Graph::new("blocks");
    let f32s = |dims: &[usize]| Shape::new(dims, DType::F32);
    let shape = || Shape::new(&[2], DType::F32);
    let x = graph.add_node(Op::Input { name: "x".into() }, vec![], f32s(&[1, 256]));
    let w = graph.add_node(Op::Param { name: "w".into() }, vec![], Shape::new(&[50], DType::U8));
    let op = Op::DequantMatMul { scheme: QuantScheme::GgufIQ1S };
    let y = graph.add_node(op, vec![x, w], f32s(&[1, 1]));
    graph.set_outputs(vec![y]);
    let mut executable = CoremlExecutable::compile(graph).expect("it compiles");
    let error =
        executable.set_param_typed("w", &[0; 49], DType::U8).expect_err("a byte is missing");
    assert!(error.to_string().contains("49 bytes are not a valid `gguf_iq1_s`"), "{error}");

    let mut graph = Graph::new("complex");
    let complex = || Shape::new(&[2], DType::C64);
    let x = graph.add_node(Op::Input { name: "x".into() }, vec![], complex());
    let y = graph.add_node(Op::Softmax { axis: -1 }, vec![x], complex());
    graph.set_outputs(vec![y]);
    let error =
        CoremlExecutable::compile(graph).expect_err("softmax does not support complex numbers");
    assert!(error.to_string().contains("complex"), "{error}");

    let mut graph = Graph::new("missing");
    let w = graph.add_node(Op::Param { name: "w".into() }, vec![], shape());
    let x = graph.add_node(Op::Input { name: "x".into() }, vec![], shape());
    let y = graph.add_node(Op::Binary(BinaryOp::Add), vec![x, w], shape());
    graph.set_outputs(vec![y]);
    let mut executable = CoremlExecutable::compile(graph).expect("it compiles");
    let error = executable.run(&[("x", &[1.0, 2.0])]).expect_err("`w` is not set");
    assert!(error.to_string().contains("`w`"), "{error}");
    assert!(executable.set_param("w", &[1.0]).is_err());
    // Integer codes cannot be set on a parameter that no operation dequantizes.
    let error = executable.set_param_typed("w", &[1, 2], DType::I8).expect_err("`w` has floats");
    assert!(error.to_string().contains("dequantizes codes of `I8`"), "{error}");
}
