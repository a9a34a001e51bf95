//! The verifier terminates and reports errors for any program.

use coremill_mil::ir::{Binding, BlockId, Function, Op, OpId, Opset, Program, Type, ValueId};
use coremill_mil::ops::OpKind;
use coremill_tensor::DType;
use coremill_verify::{MAX_DIAGNOSTICS, RenderOptions, check_program};

fn program(function: Function) -> Program {
    Program { functions: vec![function], ..Program::default() }
}

#[test]
fn reports_million_nested_blocks_as_deep_nesting() {
    let mut function = Function::new("main", Opset::Ios17);
    let mut outer = function.body;
    for _ in 0..1_000_000 {
        let inner = function.add_block();
        let mut op = Op::new(OpKind::Cond);
        op.blocks = vec![inner];
        function.add_op(outer, op, []);
        outer = inner;
    }
    let program = program(function);
    let report = check_program(&program);
    assert!(!report.is_sound());
    assert!(report.render(&program, &RenderOptions::default()).contains("deep-nesting"));
}

/// Blocks that share blocks have exponentially many paths through them.
#[test]
fn shared_blocks_do_not_take_exponential_time() {
    let mut function = Function::new("main", Opset::Ios17);
    let mut outer = function.body;
    for _ in 0..60 {
        let inner = function.add_block();
        for _ in 0..2 {
            let mut op = Op::new(OpKind::Cond);
            op.blocks = vec![inner, inner];
            function.add_op(outer, op, []);
        }
        outer = inner;
    }
    let report = check_program(&program(function));
    assert!(report.to_string().contains("shared-block"), "{report}");
}

/// Programs built from random ids, with a deterministic generator.
#[test]
fn programs_with_random_ids_do_not_panic() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut below = |limit: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % limit as u64) as usize
    };
    let kinds = [OpKind::Add, OpKind::Cond, OpKind::WhileLoop, OpKind::Relu, OpKind::Const];
    for _ in 0..2000 {
        let mut function = Function::new("main", Opset::Ios18);
        let body = function.body;
        for index in 0..below(4) {
            function.add_input(body, format!("x{index}"), Type::tensor(DType::Fp32, &[2]));
        }
        for _ in 0..below(3) {
            function.add_block();
        }
        for index in 0..below(6) {
            let mut op = Op::new(kinds[below(kinds.len())]);
            for name in ["x", "y", "pred", "loop_vars"] {
                if below(2) == 0 {
                    op.set_input(name.into(), vec![Binding::Value(ValueId::from_index(below(8)))]);
                }
            }
            for _ in 0..below(3) {
                op.blocks.push(BlockId::from_index(below(5)));
            }
            let block = BlockId::from_index(below(function.block_count()));
            let id = function.add_op(
                block,
                op,
                [(format!("y{index}"), Type::tensor(DType::Fp32, &[2]))],
            );
            if below(8) == 0 {
                function.op_mut(id).outputs.push(ValueId::from_index(below(9)));
            }
            if below(8) == 0 {
                function.block_mut(body).ops.push(OpId::from_index(below(7)));
            }
            function.block_mut(block).outputs.push(ValueId::from_index(below(8)));
        }
        let program = program(function);
        let report = check_program(&program);
        let rendered = report.render(&program, &RenderOptions::default());
        assert!(rendered.ends_with(&format!("{}\n", report.summary())));
    }
}

#[test]
fn report_caps_diagnostics_and_counts_omitted() {
    let mut function = Function::new("main", Opset::Ios17);
    let body = function.body;
    let x = function.add_input(body, "x", Type::tensor(DType::Fp32, &[2]));
    for index in 0..MAX_DIAGNOSTICS + 7 {
        let op = Op::new(OpKind::Relu).with("x", Binding::Value(x));
        function.add_op(body, op, [(format!("y{index}"), Type::tensor(DType::Fp32, &[3]))]);
    }
    let last = function.op(*function.block(body).ops.last().expect("many")).outputs[0];
    function.block_mut(body).outputs.push(last);
    let program = program(function);
    let report = check_program(&program);
    assert_eq!(report.error_count(), MAX_DIAGNOSTICS + 7);
    assert_eq!(report.omitted_errors, 7);
    let rendered = report.render(&program, &RenderOptions::default());
    assert!(rendered.contains("and 7 more errors\n"), "{rendered}");
    assert!(rendered.contains("program:4:13\n"), "{rendered}");
    assert_eq!(report.to_json().errors, MAX_DIAGNOSTICS + 7);
}

/// A file can contain a name once and refer to it from everywhere.
#[test]
fn repeated_long_names_do_not_inflate_report() {
    let long = "n".repeat(1 << 16);
    let mut function = Function::new("main", Opset::Ios17);
    let body = function.body;
    let x = function.add_input(body, long.clone(), Type::tensor(DType::Fp32, &[2]));
    for index in 0..10_000 {
        let op = Op::new(OpKind::Relu).with("x", Binding::Value(x));
        let name = if index == 0 { long.clone() } else { format!("y{index}") };
        function.add_op(body, op, [(name, Type::tensor(DType::Fp32, &[3]))]);
    }
    let last = function.op(*function.block(body).ops.last().expect("many")).outputs[0];
    function.block_mut(body).outputs.push(last);
    let program = program(function);
    let report = check_program(&program);
    assert!(report.to_string().contains("error[duplicate-name]"));
    let rendered = report.render(&program, &RenderOptions::default());
    assert!(rendered.len() < 1 << 20, "{} bytes", rendered.len());
}
