use std::fs;
use std::path::Path;

use coremill_kernels::Pool;
use coremill_kernels::matmul::{Order, PanelSource};
use coremill_kernels::stored::StoredPanels;
use coremill_mil::infer::analyze;
use coremill_mil::ir::{Binding, Constant, Function, Op, Type};
use coremill_mil::ops::OpKind;
use coremill_mil::text::{self, NoWeights};
use coremill_simd::Isa;
use coremill_tensor::{Buffer, DType, packed};

use super::*;
use crate::limits::Limits;
use crate::plan::{CpuContext, FunctionContext, PlanKey, plan};
use coremill_kernels::Numerics;

/// Functions of a family of test cases, by name.
fn functions(family: &str) -> Vec<(String, Function)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let lines = fs::read_to_string(folder.join(format!("{family}.jsonl"))).expect("the cases");
    let function = |line: &str| {
        let case: serde_json::Value = serde_json::from_str(line).expect("a case");
        let (id, program) = (case["id"].as_str(), case["program"].as_str());
        let program = text::parse(program.expect("a program"), &NoWeights).expect("it is MIL");
        (id.expect("a name").to_owned(), program.functions[0].clone())
    };
    lines.lines().map(function).collect()
}

#[test]
fn every_case_expands_to_what_the_reference_kernels_give() {
    let (mut described, mut taken) = (0, 0);
    for (id, function) in functions("constexpr") {
        let (analysis, problems) = analyze(&function);
        assert!(problems.is_empty(), "{id}: {problems:?}");
        for numerics in [Numerics::Fast, Numerics::Rounded] {
            let source = FunctionContext::new(
                function.clone(),
                analysis.clone(),
                numerics,
                Limits::default(),
            );
            for (_, op) in function.all_ops() {
                let dense = op.outputs.len() == 1;
                if !dense || !op.kind().is_some_and(OpKind::is_constexpr) {
                    continue;
                }
                let known = source.known(op.outputs[0]).expect("it is constant");
                let expected = known.array(&source).expect("it expands");
                let Some(weights) = Weights::of(&function, op.outputs[0], numerics) else {
                    assert!(
                        expected.view().is_empty(),
                        "{id}: `{}` is not described",
                        op.type_name()
                    );
                    continue;
                };
                described += 1;
                let found = weights.expand();
                assert_eq!(found.shape(), expected.shape(), "{id}");
                assert_eq!(found.to_bytes(), expected.to_bytes(), "{id}");
                let Some(wanted) = expected.as_floats() else { continue };
                let (rows, columns) = (weights.rows(), weights.columns());
                let mut panel = vec![0.0; rows * columns];
                if let Some(stored) = weights.stored(rows) {
                    taken += 1;
                    let panels = StoredPanels::new(Isa::Portable, stored, Order::InputsFirst);
                    panels.fill(0..rows, 0..columns, columns, &mut panel);
                    assert!(same(&panel, wanted), "{id}: {panel:?} {wanted:?}");
                }
                let panels = WeightPanels::new(weights, columns, rows, Order::OutputsFirst);
                panels.expect("as many").fill(0..columns, 0..rows, rows, &mut panel);
                let turned: Vec<f32> =
                    (0..rows * columns).map(|at| wanted[at % rows * columns + at / rows]).collect();
                assert!(same(&panel, &turned), "{id}: {panel:?} {turned:?}");
            }
        }
    }
    assert!(described > 500 && taken > 150, "{described} described, {taken} taken by kernels");
}

/// Compares with a tolerance, since kernels may multiply before they subtract.
fn same(left: &[f32], right: &[f32]) -> bool {
    left.iter().zip(right).all(|(left, right)| {
        left == right
            || (left.is_nan() && right.is_nan())
            || (left - right).abs() <= 1e-5 * right.abs().max(1.0)
    })
}

#[test]
fn parts_of_rows_are_those_of_the_whole() {
    for (id, function) in functions("constexpr") {
        let Some((_, op)) = function
            .all_ops()
            .find(|(_, op)| op.outputs.len() == 1 && op.kind().is_some_and(OpKind::is_constexpr))
        else {
            continue;
        };
        let Some(weights) = Weights::of(&function, op.outputs[0], Numerics::Fast) else {
            continue;
        };
        let (rows, columns) = (weights.rows(), weights.columns());
        let mut whole = vec![0.0; rows * columns];
        weights.expand_rows(0..rows, &mut whole);
        for row in 0..rows {
            let from = columns / 3;
            let mut part = vec![0.0; columns - from];
            weights.expand_elements(row * columns + from..(row + 1) * columns, &mut part);
            let expected = &whole[row * columns + from..(row + 1) * columns];
            let bits = |floats: &[f32]| floats.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&part), bits(expected), "{id}: row {row}");
        }
    }
}

#[test]
fn scaled_palettes_become_tables_of_their_own() {
    let mut function = Function::new("main", coremill_mil::ir::Opset::Ios18);
    let codes: Vec<i16> = (0..48).map(|at| at * 7 % 4).collect();
    let indices = packed::pack(DType::UInt2, &codes).expect("they fit");
    let body = function.body;
    let floats = |count: u16| -> Vec<u8> {
        (0..count).flat_map(|at| (0.5 + f32::from(at)).to_le_bytes()).collect()
    };
    let op = Op::new(OpKind::ConstexprLutToDense)
        .with("indices", Binding::Literal(Constant::weight(DType::UInt2, &[4, 12], indices)))
        .with("lut", Binding::Literal(Constant::weight(DType::Fp32, &[1, 3, 4, 1], floats(12))));
    let ty = Type::tensor(DType::Fp32, &[4, 12]);
    let op = function.add_op(body, op, [("dense".to_owned(), ty.clone())]);
    let dense = function.op(op).outputs[0];
    let op = Op::new(OpKind::ConstexprBlockwiseShiftScale)
        .with("data", Binding::Value(dense))
        .with("scale", Binding::Literal(Constant::weight(DType::Fp32, &[2, 1], floats(2))));
    let op = function.add_op(body, op, [("scaled".to_owned(), ty)]);
    let scaled = function.op(op).outputs[0];

    let (analysis, problems) = analyze(&function);
    assert!(problems.is_empty(), "{problems:?}");
    let source =
        FunctionContext::new(function.clone(), analysis, Numerics::Fast, Limits::default());
    let known = source.known(scaled).expect("it is constant");
    let weights = Weights::of(&function, scaled, Numerics::Fast).expect("it is described");
    assert_eq!(weights.expand(), *known.array(&source).expect("it expands"));
    assert!(weights.stored(4).is_some());
}

#[test]
fn plans_leave_weights_compressed() {
    let (rows, columns) = (96u64, 64u64);
    for sparse in [false, true] {
        for kind in [OpKind::Linear, OpKind::Matmul, OpKind::Gather] {
            let mut function = Function::new("main", coremill_mil::ir::Opset::Ios18);
            let body = function.body;
            let ty = Type::tensor(DType::Fp16, &[rows, columns]);
            let count = (rows * columns) as usize;
            let compressed = if sparse {
                let mask = Constant::weight(DType::UInt1, &[rows, columns], vec![0x55; count / 8]);
                let kept = Constant::weight(DType::Fp16, &[count as u64 / 2], vec![0x3c; count]);
                Op::new(OpKind::ConstexprSparseToDense)
                    .with("mask", Binding::Literal(mask))
                    .with("nonzero_data", Binding::Literal(kept))
            } else {
                let data = Constant::weight(DType::Int8, &[rows, columns], vec![3; count]);
                let scale = Constant::bytes(DType::Fp16, &[1, 1], vec![0, 0x3c]);
                Op::new(OpKind::ConstexprBlockwiseShiftScale)
                    .with("data", Binding::Literal(data))
                    .with("scale", Binding::Literal(scale))
            };
            let op = function.add_op(body, compressed, [("w".to_owned(), ty)]);
            let weight = function.op(op).outputs[0];
            let (taken, given) = match kind {
                OpKind::Linear => (Type::tensor(DType::Fp16, &[2, columns]), rows),
                OpKind::Matmul => (Type::tensor(DType::Fp16, &[2, rows]), columns),
                _ => (Type::tensor(DType::Int32, &[2]), columns),
            };
            let x = function.add_input(body, "x", taken);
            let [of_input, of_weight] = match kind {
                OpKind::Linear => ["x", "weight"],
                OpKind::Matmul => ["x", "y"],
                _ => ["indices", "x"],
            };
            let op = Op::new(kind)
                .with(of_input, Binding::Value(x))
                .with(of_weight, Binding::Value(weight));
            let ty = Type::tensor(DType::Fp16, &[2, given]);
            let op = function.add_op(body, op, [("y".to_owned(), ty)]);
            let output = function.op(op).outputs[0];
            function.block_mut(body).outputs.push(output);

            let (analysis, problems) = analyze(&function);
            assert!(problems.is_empty(), "{problems:?}");
            let limits = Limits::default();
            let source = FunctionContext::new(function.clone(), analysis, Numerics::Fast, limits);
            let known = source.known(weight).expect("it is constant");
            let shape = source.analysis.ty(x).and_then(Type::as_tensor).expect("a tensor");
            let shape = shape.known_shape().expect("a shape");
            let shapes = vec![shape.into_iter().map(|extent| extent as usize).collect()];
            let machine = CpuContext { pool: Pool::new(1), isa: Isa::detect() };
            plan(&source, &machine, &PlanKey { shapes, observed: false }).expect("a plan");
            assert!(known.expanded().is_none(), "`{}` expands its weight", kind.name());
        }
    }
}

#[test]
fn data_is_shared_with_the_program() {
    let data = Buffer::from(vec![7u8; 64]);
    let mut function = Function::new("main", coremill_mil::ir::Opset::Ios18);
    let body = function.body;
    let constant = Constant::weight(DType::Fp16, &[4, 8], data.clone());
    let op = function.add_op(
        body,
        Op::constant(constant),
        [("w".to_owned(), Type::tensor(DType::Fp16, &[4, 8]))],
    );
    let weights = Weights::of(&function, function.op(op).outputs[0], Numerics::Fast);
    assert!(weights.expect("it is described").codes.data.same_place(&data));
}

#[test]
fn what_does_not_fit_is_left_to_the_reference_kernels() {
    let described = |op: Op, shape: &[u64]| {
        let mut function = Function::new("main", coremill_mil::ir::Opset::Ios18);
        let body = function.body;
        let ty = Type::tensor(DType::Fp32, shape);
        let op = function.add_op(body, op, [("w".to_owned(), ty)]);
        Weights::of(&function, function.op(op).outputs[0], Numerics::Fast).is_some()
    };
    let bytes = |dtype, shape: &[u64], count| {
        Binding::Literal(Constant::bytes(dtype, shape, vec![0xff; count]))
    };
    let blockwise = |data, scale| {
        Op::new(OpKind::ConstexprBlockwiseShiftScale).with("data", data).with("scale", scale)
    };
    let scale = || bytes(DType::Fp32, &[2, 1], 8);
    assert!(described(blockwise(bytes(DType::Int8, &[2, 3], 6), scale()), &[2, 3]));
    // Too few bytes, blocks that do not divide the shape, and sizes beyond the address space.
    assert!(!described(blockwise(bytes(DType::Int8, &[2, 3], 5), scale()), &[2, 3]));
    assert!(!described(blockwise(bytes(DType::Int8, &[3, 2], 6), scale()), &[3, 2]));
    let wide = [0, 1 << 40, 1 << 40];
    let empty = || bytes(DType::Fp32, &wide, 0);
    assert!(!described(blockwise(bytes(DType::Int8, &wide, 0), empty()), &wide));
    // A mask that sets more elements than there are.
    let sparse = |count: usize| {
        Op::new(OpKind::ConstexprSparseToDense)
            .with("nonzero_data", bytes(DType::Int8, &[count as u64], count))
            .with("mask", bytes(DType::UInt1, &[11], 2))
    };
    assert!(described(sparse(11), &[11]));
    assert!(!described(sparse(10), &[11]));
}
