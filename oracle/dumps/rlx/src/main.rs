//! Runs each case with `rlx-cpu` and prints the results.
#![expect(clippy::print_stdout, reason = "the output is redirected to a file")]

#[path = "../../../../integrations/rlx/tests/cases/mod.rs"]
mod cases;

use std::panic::{AssertUnwindSafe, catch_unwind};

use rlx_cpu::arena::Arena;
use rlx_cpu::thunk::{compile_thunks, execute_thunks};
use rlx_ir::{DType, Graph, NodeId, Op, OpKind};
use rlx_opt::pass::Pass;
use rlx_opt::rlx_fusion as fusion;

fn main() {
    let only = std::env::args().nth(1);
    for case in cases::all() {
        if only.as_ref().is_some_and(|only| !case.name.contains(only.as_str())) {
            continue;
        }
        let name = case.name.clone();
        match catch_unwind(AssertUnwindSafe(|| run(case))) {
            Ok(found) => {
                let found: Vec<String> = found.iter().map(|x| format!("{x:e}")).collect();
                println!("{name}: {}", found.join(" "));
            }
            Err(_) => eprintln!("{name}: rlx-cpu does not compute it"),
        }
    }
}

fn run(case: cases::Case) -> Vec<f32> {
    // If `rlx-cpu` has no kernel for an operation, its own passes decompose it.
    let blocks =
        case.graph.nodes().iter().any(|node| node.op.kind() == OpKind::FusedAttentionBlock);
    let graph = if blocks { rlx_opt::unfuse_fused_for_autodiff(case.graph) } else { case.graph };
    let graph = fusion::LowerDotGeneral.run(graph);
    let graph = rlx_opt::rewrite_for_backend(graph, rlx_cpu::SUPPORTED_OPS);
    let graph = fusion::LowerIf.run(graph);
    let graph = rlx_cpu::prepare_graph_for_thunks(graph);
    let plan = rlx_opt::memory::plan_memory(&graph);
    let mut arena = Arena::from_plan(plan);
    for node in graph.nodes() {
        if !arena.has_buffer(node.id) {
            continue;
        }
        let bytes = match &node.op {
            Op::Input { name } => match case.inputs.iter().find(|(known, _)| known == name) {
                Some((_, elements)) => encoded(elements, node.shape.dtype()),
                None => continue,
            },
            Op::Param { name } => match case.blocks.iter().find(|(known, _)| known == name) {
                Some((_, bytes)) => bytes.clone(),
                None => continue,
            },
            Op::Constant { data } => data.clone(),
            _ => continue,
        };
        let at = arena.byte_offset(node.id);
        arena.raw_buf_mut()[at..at + bytes.len()].copy_from_slice(&bytes);
    }
    let schedule = compile_thunks(&graph, &arena);
    execute_thunks(&schedule, arena.raw_buf_mut());
    decoded(&graph, &arena, graph.outputs[0])
}

fn encoded(elements: &[f32], dtype: DType) -> Vec<u8> {
    let each = elements.iter();
    match dtype {
        DType::F32 | DType::C64 => each.flat_map(|x| x.to_le_bytes()).collect(),
        DType::F64 => each.flat_map(|&x| f64::from(x).to_le_bytes()).collect(),
        DType::I64 => each.flat_map(|&x| (x as i64).to_le_bytes()).collect(),
        DType::I32 => each.flat_map(|&x| (x as i32).to_le_bytes()).collect(),
        DType::I8 => each.map(|&x| x as i8 as u8).collect(),
        DType::U8 | DType::Bool => each.map(|&x| x as u8).collect(),
        other => panic!("no case has inputs of {other}"),
    }
}

fn decoded(graph: &Graph, arena: &Arena, id: NodeId) -> Vec<f32> {
    let shape = &graph.node(id).shape;
    let count = shape.num_elements().expect("shapes are fixed");
    let bytes = &arena.raw_buf()[arena.byte_offset(id)..];
    match shape.dtype() {
        DType::F32 => {
            bytes.as_chunks::<4>().0[..count].iter().map(|&x| f32::from_le_bytes(x)).collect()
        }
        DType::C64 => {
            bytes.as_chunks::<4>().0[..2 * count].iter().map(|&x| f32::from_le_bytes(x)).collect()
        }
        DType::F64 => bytes.as_chunks::<8>().0[..count]
            .iter()
            .map(|&x| f64::from_le_bytes(x) as f32)
            .collect(),
        DType::I32 => bytes.as_chunks::<4>().0[..count]
            .iter()
            .map(|&x| i32::from_le_bytes(x) as f32)
            .collect(),
        DType::I8 => bytes[..count].iter().map(|&x| f32::from(x as i8)).collect(),
        DType::U8 | DType::Bool => bytes[..count].iter().map(|&x| f32::from(x)).collect(),
        other => panic!("no case has outputs of {other}"),
    }
}
