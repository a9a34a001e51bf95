//! Type inference on hostile programs. Inference may reject them, but must not panic, take long, or use much
//! memory, for any shapes and constants.

#[path = "support/random.rs"]
mod random;

use coremill_mil::infer::{KnownElements, Scalar, analyze};
use coremill_mil::ir::{
    Binding, Constant, ConstantData, Dim, Function, Op, Opset, TensorType, Type, Weight,
};
use coremill_mil::ops::{Accepts, OpKind, Parameter};
use coremill_tensor::DType;

use self::random::Draw;

/// Number of programs for each operation in each opset.
const ROUNDS: usize = 60;

const EXTENTS: [u64; 12] = [0, 1, 1, 2, 3, 4, 5, 16, 1 << 31, 1 << 40, i64::MAX as u64, u64::MAX];

const INTEGERS: [i64; 16] =
    [0, 1, 1, 2, 3, 4, 5, 7, -1, -2, -3, 100, i32::MAX as i64, i32::MIN as i64, i64::MAX, i64::MIN];

const FLOATS: [f64; 8] = [0.0, 1.0, 0.5, -2.5, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 3.0e38];

const TEXTS: [&str; 24] = [
    "",
    "valid",
    "same",
    "same_lower",
    "custom",
    "constant",
    "reflect",
    "bilinear",
    "LINEAR",
    "DEFAULT",
    "CORNERS_HEIGHT_FIRST",
    "unnormalized",
    "normalized_minus_one_to_one",
    "forward",
    "bidirectional",
    "tanh",
    "nchw,nwhu->nchu",
    "chw,whr->chr",
    "->,->",
    "fp32",
    "int32",
    "int8",
    "logits",
    "add",
];

#[test]
fn inference_of_random_programs_does_not_panic() {
    let mut draw = Draw(0x9e37_79b9_7f4a_7c15);
    let mut accepted = 0;
    for opset in Opset::ALL {
        for kind in OpKind::ALL {
            for _ in 0..ROUNDS {
                let function = program(kind, opset, &mut draw);
                let (_, problems) = analyze(&function);
                accepted += usize::from(problems.is_empty());
            }
        }
    }
    // The test is useful only if enough programs are accepted.
    assert!(accepted > 1000, "{accepted}");
}

/// Inference analyzes the body of each nested loop only a few times, even if the body changes every dimension.
#[test]
fn nested_loops_do_not_take_exponential_time() {
    let mut function = Function::new("main", Opset::Ios18);
    let body = function.body;
    let open = |dims: usize| {
        Type::Tensor(TensorType { dtype: DType::Fp32, shape: vec![Dim::Unknown; dims] })
    };
    let x = function.add_input(body, "x", open(2));
    let (mut block, mut value) = (body, x);
    let mut levels = Vec::new();
    for depth in 0..40 {
        let mut op = Op::new(OpKind::WhileLoop).with("loop_vars", Binding::Value(value));
        let (condition, inner) = (function.add_block(), function.add_block());
        function.add_input(condition, format!("c{depth}"), open(2));
        value = function.add_input(inner, format!("x{depth}"), open(2));
        let yes = Op::constant(Constant::bool(true));
        let output = (format!("yes{depth}"), Type::scalar(DType::Bool));
        let yes = function.add_op(condition, yes, [output]);
        function.block_mut(condition).outputs = function.op(yes).outputs.clone();
        op.blocks = vec![condition, inner];
        levels.push((block, op, inner));
        block = inner;
    }
    let perm = Binding::Literal(Constant::int32s(&[1, 0]));
    let turn = Op::new(OpKind::Transpose).with("x", Binding::Value(value)).with("perm", perm);
    let turn = function.add_op(block, turn, [("turned".to_owned(), open(2))]);
    let mut given = function.op(turn).outputs.clone();
    for (depth, (outer, op, inner)) in levels.into_iter().enumerate().rev() {
        function.block_mut(inner).outputs = given;
        let id = function.add_op(outer, op, [(format!("loop{depth}"), open(2))]);
        given = function.op(id).outputs.clone();
    }
    function.block_mut(body).outputs = given;
    let (_, problems) = analyze(&function);
    assert_eq!(problems, []);
}

fn program(kind: OpKind, opset: Opset, draw: &mut Draw) -> Function {
    let mut function = Function::new("main", opset);
    let body = function.body;
    let mut op = Op::new(kind);
    let row = kind.rows().last().expect("a definition");
    let row = kind.row(opset).unwrap_or(row);
    // Operands with a common rank are more often valid.
    let rank = draw.below(7);
    for parameter in row.parameters {
        if !parameter.required && draw.below(3) == 0 {
            continue;
        }
        let bindings = match parameter.accepts {
            Accepts::Values => {
                let count = draw.below(4);
                (0..count).map(|_| binding(&mut function, parameter, rank, draw)).collect()
            }
            _ => vec![binding(&mut function, parameter, rank, draw)],
        };
        match (kind.is_constexpr() && draw.below(2) == 0, bindings.as_slice()) {
            (true, [Binding::Literal(constant)]) => {
                op.attributes.insert(parameter.name, constant.clone());
            }
            _ => op = op.with_list(parameter.name, bindings),
        }
    }
    if matches!(kind, OpKind::Const | OpKind::ConstSymbolic) {
        op.attributes.insert("val", constant(draw.of(&DType::ALL), rank, draw));
    }
    for role in 0..row.blocks.len() {
        let block = function.add_block();
        for input in 0..draw.below(3) {
            let ty = Type::Tensor(tensor(draw.of(&DType::ALL), rank, draw));
            function.add_input(block, format!("b{role}_{input}"), ty);
        }
        let mut outputs = function.block(block).inputs.clone();
        outputs.extend(function.inputs().iter().copied().take(draw.below(3)));
        function.block_mut(block).outputs = outputs;
        op.blocks.push(block);
    }
    let outputs = match kind {
        OpKind::Split | OpKind::Lstm => draw.below(6),
        OpKind::WriteState => 0,
        OpKind::Gru | OpKind::Rnn | OpKind::Topk | OpKind::Classify => 2,
        OpKind::NonMaximumSuppression => 3 + draw.below(2),
        _ => 1,
    };
    let outputs = (0..outputs).map(|at| (format!("y{at}"), Type::scalar(DType::Fp32)));
    function.add_op(body, op, outputs.collect::<Vec<_>>());
    function
}

fn binding(
    function: &mut Function,
    parameter: &Parameter,
    rank: usize,
    draw: &mut Draw,
) -> Binding {
    let dtypes = match parameter.accepts {
        Accepts::Tensor { dtypes, .. } => dtypes,
        _ => &[DType::Fp32, DType::Fp32, DType::Int32, DType::String],
    };
    let dtype = draw.of(dtypes);
    let name = format!("x{}", function.value_count());
    let body = function.body;
    let ty = match parameter.accepts {
        Accepts::List => {
            let length = Dim::Known(draw.of(&EXTENTS));
            Type::List(Box::new(Type::Tensor(tensor(dtype, rank.min(4), draw))), length)
        }
        Accepts::State => Type::State(Box::new(Type::Tensor(tensor(dtype, rank, draw)))),
        _ if parameter.constant || dtype == DType::String || draw.below(3) == 0 => {
            // Parameters are scalars and vectors; weights have the rank of their operand.
            let rank = match draw.below(4) {
                _ if dtype == DType::String => draw.below(8) / 7,
                0 => rank,
                1 => 2,
                _ => draw.below(2),
            };
            return Binding::Literal(constant(dtype, rank, draw));
        }
        _ => Type::Tensor(tensor(dtype, rank, draw)),
    };
    Binding::Value(function.add_input(body, name, ty))
}

fn tensor(dtype: DType, rank: usize, draw: &mut Draw) -> TensorType {
    let rank = if draw.below(8) == 0 { draw.below(8) } else { rank };
    // Half of the tensors are small, so that some programs are valid.
    let known = if draw.below(2) == 0 { &EXTENTS[1..7] } else { &EXTENTS[..] };
    let mut dim = || match draw.below(8) {
        0 => Dim::Unknown,
        _ => Dim::Known(draw.of(known)),
    };
    TensorType { dtype, shape: (0..rank).map(|_| dim()).collect() }
}

fn constant(dtype: DType, rank: usize, draw: &mut Draw) -> Constant {
    if dtype == DType::String {
        let text = draw.of(&TEXTS);
        return match rank {
            0 => Constant::string(text),
            _ => Constant {
                ty: Type::tensor(dtype, &[1]),
                data: ConstantData::Strings(vec![text.to_owned()]),
            },
        };
    }
    if draw.below(8) == 0 {
        let shape: Vec<u64> = (0..rank).map(|_| draw.of(&EXTENTS)).collect();
        let data = match draw.below(3) {
            0 => ConstantData::Weight(Weight { data: None, place: None }),
            // The number of elements does not match the shape.
            _ => return Constant::bytes(dtype, &shape, vec![0xa5; draw.below(40)]),
        };
        return Constant { ty: Type::tensor(dtype, &shape), data };
    }
    let shape: Vec<u64> = (0..rank.min(4)).map(|_| draw.of(&EXTENTS[1..7])).collect();
    let count: u64 = shape.iter().product();
    let mut element = || match dtype {
        DType::Bool => Scalar::Bool(draw.below(2) == 0),
        _ if dtype.is_float() => Scalar::Float(draw.of(&FLOATS)),
        _ => {
            let value = i128::from(draw.of(&INTEGERS));
            let (least, most) = dtype.integer_range().expect("an integer type");
            Scalar::Int(value.clamp(least, most.min(i128::from(i64::MAX))) as i64)
        }
    };
    let elements = (0..count).map(|_| element()).collect();
    let folded = KnownElements::new(dtype, shape, elements).expect("few elements");
    folded.to_constant().unwrap_or_else(|| Constant::bytes(dtype, &[], vec![0; 8]))
}
