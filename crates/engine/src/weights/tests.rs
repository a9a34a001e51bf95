use std::fs;
use std::path::Path;

use coremill_kernels::Numerics;
use coremill_kernels::Pool;
use coremill_kernels::matmul::{Order, PanelSource};
use coremill_kernels::stored::StoredPanels;
use coremill_mil::infer::analyze;
use coremill_mil::ir::{Binding, Constant, Function, Op, Type};
use coremill_mil::ops::OpKind;
use coremill_mil::text::{self, NoWeights};
use coremill_reference::limits::Limits;
use coremill_simd::Isa;
use coremill_tensor::{Buffer, DType, packed};

use super::*;
use crate::plan::{CpuContext, FunctionContext, PlanKey, plan};

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
fn weights_expand_like_reference_kernels() {
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
                let known = source.known(op.outputs[0]).expect("a constant");
                let expected = known.array(&source).expect("an array");
                let Some(weights) = Weights::of(&function, op.outputs[0], numerics) else {
                    assert!(
                        expected.view().is_empty(),
                        "{id}: `Weights` does not support `{}`",
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
                panels.expect("matching sizes").fill(0..columns, 0..rows, rows, &mut panel);
                let transposed: Vec<f32> =
                    (0..rows * columns).map(|at| wanted[at % rows * columns + at / rows]).collect();
                assert!(same(&panel, &transposed), "{id}: {panel:?} {transposed:?}");
            }
        }
    }
    assert!(
        described > 500 && taken > 150,
        "only {described} constants became `Weights`, and {taken} of them are supported by kernels"
    );
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
fn partial_rows_expand_like_full_rows() {
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
fn folds_block_scales_into_palettes() {
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
    let known = source.known(scaled).expect("a constant");
    let weights = Weights::of(&function, scaled, Numerics::Fast).expect("supported weights");
    assert_eq!(weights.expand(), *known.array(&source).expect("an array"));
    assert!(weights.stored(4).is_some());
}

/// Adds operations for compressed constants with deterministic bytes.
struct Chains {
    function: Function,
    state: u32,
}

impl Chains {
    fn literal(&mut self, dtype: DType, shape: &[u64]) -> Binding {
        let count = dtype.storage_bytes(shape.iter().product()).expect("a fixed width");
        let bytes: Vec<u8> = (0..count)
            .map(|_| {
                self.state = self.state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (self.state >> 24) as u8
            })
            .collect();
        let bytes = match dtype {
            // Numbers of moderate size.
            DType::Fp16 => {
                bytes.chunks(2).flat_map(|pair| [pair[0], 0x2c | pair[1] & 0x83]).collect()
            }
            _ => bytes,
        };
        Binding::Literal(Constant::weight(dtype, shape, bytes))
    }

    fn add(&mut self, op: Op, dtype: DType, shape: &[u64]) -> Binding {
        let name = format!("v{}", self.function.value_count());
        let body = self.function.body;
        let op = self.function.add_op(body, op, [(name, Type::tensor(dtype, shape))]);
        Binding::Value(self.function.op(op).outputs[0])
    }

    fn table(&mut self, indices: DType, shape: &[u64], entries: &[i8]) -> Binding {
        let bytes = entries.iter().map(|&entry| entry as u8).collect::<Vec<_>>();
        let lut = [&vec![1; shape.len()][..], &[entries.len() as u64, 1]].concat();
        let indices = self.literal(indices, shape);
        let op = Op::new(OpKind::ConstexprLutToDense)
            .with("indices", indices)
            .with("lut", Binding::Literal(Constant::weight(DType::Int8, &lut, bytes)));
        self.add(op, DType::Int8, shape)
    }

    fn floats(&mut self, shape: &[u64], entries: [f32; 2]) -> Binding {
        let bytes: Vec<u8> =
            entries.iter().flat_map(|&entry| half::f16::from_f32(entry).to_le_bytes()).collect();
        let lut = [&vec![1; shape.len()][..], &[2, 1]].concat();
        let indices = self.literal(DType::UInt1, shape);
        let op = Op::new(OpKind::ConstexprLutToDense)
            .with("indices", indices)
            .with("lut", Binding::Literal(Constant::weight(DType::Fp16, &lut, bytes)));
        self.add(op, DType::Fp16, shape)
    }

    /// 5-bit codes as a product: an odd number from 1 to 31 (4-bit table) times -0.5 or 0.5 (1-bit table).
    fn five_bits(&mut self, shape: &[u64]) -> Binding {
        let odd: Vec<i8> = (0..16).map(|at| 2 * at + 1).collect();
        let odd = self.table(DType::UInt4, shape, &odd);
        let signs = self.floats(shape, [-0.5, 0.5]);
        self.scaled(shape, odd, signs, None)
    }

    fn scaled(
        &mut self,
        shape: &[u64],
        data: Binding,
        scale: Binding,
        offset: Option<Binding>,
    ) -> Binding {
        let op = Op::new(OpKind::ConstexprBlockwiseShiftScale).with("data", data);
        let op = op.with("scale", scale);
        let op = match offset {
            Some(offset) => op.with("offset", offset),
            None => op,
        };
        self.add(op, DType::Fp16, shape)
    }
}

#[test]
fn kernels_decode_gguf_style_nested_weights() {
    let (rows, columns) = (6u64, 96u64);
    let whole = [rows, columns];
    for group in [16, 32] {
        let groups = [rows, columns / group];
        let units = [rows, 1];
        type Build = fn(&mut Chains, [u64; 2], [u64; 2], [u64; 2]) -> Binding;
        // As GGUF files store Q4_1, Q4_K, Q5_1, Q5_K, Q3_K and Q6_K.
        let chains: [(&str, Build); 6] = [
            ("offsets", |it, whole, groups, _| {
                let (data, scale) =
                    (it.literal(DType::UInt4, &whole), it.literal(DType::Fp16, &groups));
                let products = it.scaled(&whole, data, scale, None);
                let (ones, offset) =
                    (it.floats(&groups, [1.0; 2]), it.literal(DType::Fp16, &groups));
                it.scaled(&whole, products, ones, Some(offset))
            }),
            ("nested offsets", |it, whole, groups, units| {
                let six: Vec<i8> = (0..64).collect();
                let mut factors = || {
                    let (steps, unit) =
                        (it.table(DType::UInt6, &groups, &six), it.literal(DType::Fp16, &units));
                    it.scaled(&groups, steps, unit, None)
                };
                let (scale, offset) = (factors(), factors());
                let data = it.literal(DType::UInt4, &whole);
                let products = it.scaled(&whole, data, scale, None);
                let ones = it.floats(&groups, [1.0; 2]);
                it.scaled(&whole, products, ones, Some(offset))
            }),
            ("five bits", |it, whole, groups, _| {
                let data = it.five_bits(&whole);
                let (scale, shift) =
                    (it.literal(DType::Fp16, &groups), it.floats(&groups, [-15.5; 2]));
                let products = it.scaled(&whole, data, scale, Some(shift));
                let (ones, offset) =
                    (it.floats(&groups, [1.0; 2]), it.literal(DType::Fp16, &groups));
                it.scaled(&whole, products, ones, Some(offset))
            }),
            ("five bits without offsets", |it, whole, groups, _| {
                let data = it.five_bits(&whole);
                let (scale, shift) =
                    (it.literal(DType::Fp16, &groups), it.floats(&groups, [0.5; 2]));
                it.scaled(&whole, data, scale, Some(shift))
            }),
            ("three bits", |it, whole, groups, units| {
                let six: Vec<i8> = (-32..32).collect();
                let (steps, unit) =
                    (it.table(DType::UInt6, &groups, &six), it.literal(DType::Fp16, &units));
                let scale = it.scaled(&groups, steps, unit, None);
                let data = it.table(DType::UInt3, &whole, &[-4, -3, -2, -1, 0, 1, 2, 3]);
                it.scaled(&whole, data, scale, None)
            }),
            ("six bits", |it, whole, groups, units| {
                let (steps, unit) =
                    (it.literal(DType::Int8, &groups), it.literal(DType::Fp16, &units));
                let scale = it.scaled(&groups, steps, unit, None);
                let six: Vec<i8> = (-32..32).collect();
                let data = it.table(DType::UInt6, &whole, &six);
                it.scaled(&whole, data, scale, None)
            }),
        ];
        for (name, make) in chains {
            let function = Function::new("main", coremill_mil::ir::Opset::Ios18);
            let mut chains = Chains { function, state: group as u32 };
            let Binding::Value(value) = make(&mut chains, whole, groups, units) else { continue };
            let function = chains.function;
            let (analysis, problems) = analyze(&function);
            assert!(problems.is_empty(), "{name}: {problems:?}");
            for numerics in [Numerics::Fast, Numerics::Rounded] {
                let source = FunctionContext::new(
                    function.clone(),
                    analysis.clone(),
                    numerics,
                    Limits::default(),
                );
                let known = source.known(value).expect("a constant");
                let expected = known.array(&source).expect("an array");
                let weights = Weights::of(&function, value, numerics).expect("supported weights");
                assert_eq!(weights.expand().to_bytes(), expected.to_bytes(), "{name}");
                let Some(stored) = weights.stored(rows as usize) else {
                    assert_eq!(
                        numerics,
                        Numerics::Rounded,
                        "{name}: kernels do not support the weights"
                    );
                    continue;
                };
                let (rows, columns) = (rows as usize, columns as usize);
                let mut panel = vec![0.0; rows * columns];
                for isa in Isa::available() {
                    let panels = StoredPanels::new(isa, stored.clone(), Order::InputsFirst);
                    panels.fill(0..rows, 0..columns, columns, &mut panel);
                    let wanted = expected.as_floats().expect("floats");
                    assert!(same(&panel, wanted), "{name} {isa}: {panel:?} {wanted:?}");
                }
            }
        }
    }
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
            let (input_type, width) = match kind {
                OpKind::Linear => (Type::tensor(DType::Fp16, &[2, columns]), rows),
                OpKind::Matmul => (Type::tensor(DType::Fp16, &[2, rows]), columns),
                _ => (Type::tensor(DType::Int32, &[2]), columns),
            };
            let x = function.add_input(body, "x", input_type);
            let [input_name, weight_name] = match kind {
                OpKind::Linear => ["x", "weight"],
                OpKind::Matmul => ["x", "y"],
                _ => ["indices", "x"],
            };
            let op = Op::new(kind)
                .with(input_name, Binding::Value(x))
                .with(weight_name, Binding::Value(weight));
            let ty = Type::tensor(DType::Fp16, &[2, width]);
            let op = function.add_op(body, op, [("y".to_owned(), ty)]);
            let output = function.op(op).outputs[0];
            function.block_mut(body).outputs.push(output);

            let (analysis, problems) = analyze(&function);
            assert!(problems.is_empty(), "{problems:?}");
            let limits = Limits::default();
            let source = FunctionContext::new(function.clone(), analysis, Numerics::Fast, limits);
            let known = source.known(weight).expect("a constant");
            let shape = source.analysis.ty(x).and_then(Type::as_tensor).expect("a tensor");
            let shape = shape.known_shape().expect("a shape");
            let shapes = vec![shape.into_iter().map(|extent| extent as usize).collect()];
            let machine = CpuContext { pool: Pool::new(1), isa: Isa::detect() };
            plan(&source, &machine, &PlanKey { shapes, observed: false }).expect("a plan");
            assert!(known.expanded().is_none(), "planning `{}` expanded its weight", kind.name());
        }
    }
}

#[test]
fn weights_share_buffer_with_program() {
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
    assert!(weights.expect("supported weights").codes.data.same_place(&data));
}

#[test]
fn declines_weights_with_inconsistent_sizes() {
    let accepts = |op: Op, shape: &[u64]| {
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
    assert!(accepts(blockwise(bytes(DType::Int8, &[2, 3], 6), scale()), &[2, 3]));
    // Too few bytes, blocks that do not divide the shape, and sizes beyond the address space.
    assert!(!accepts(blockwise(bytes(DType::Int8, &[2, 3], 5), scale()), &[2, 3]));
    assert!(!accepts(blockwise(bytes(DType::Int8, &[3, 2], 6), scale()), &[3, 2]));
    let wide = [0, 1 << 40, 1 << 40];
    let empty = || bytes(DType::Fp32, &wide, 0);
    assert!(!accepts(blockwise(bytes(DType::Int8, &wide, 0), empty()), &wide));
    // A mask with more set bits than nonzero elements.
    let sparse = |count: usize| {
        Op::new(OpKind::ConstexprSparseToDense)
            .with("nonzero_data", bytes(DType::Int8, &[count as u64], count))
            .with("mask", bytes(DType::UInt1, &[11], 2))
    };
    assert!(accepts(sparse(11), &[11]));
    assert!(!accepts(sparse(10), &[11]));
}
