//! Tests of packages whose graphs have dynamic dimensions.

use coremill_graph::{Array, DType as MilType, Device, Session};
use coremill_rlx::CoremlExecutable;
use rlx_ir::op::{Activation, BinaryOp, ReduceOp};
use rlx_ir::shape::Dim;
use rlx_ir::{DType, Graph, NodeId, Op, Shape};

/// A shape whose first dimension is dynamic.
fn open(last: usize) -> Shape {
    Shape::from_dims(&[Dim::Dynamic(0), Dim::Static(last)], DType::F32)
}

fn fixed(dims: &[usize]) -> Shape {
    Shape::new(dims, DType::F32)
}

/// Pseudorandom numbers from -1.5 to 1.5.
fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state as f32 / u32::MAX as f32 - 0.5) * 3.0
    };
    (0..count).map(|_| next()).collect()
}

fn input(graph: &mut Graph, name: &str, shape: Shape) -> NodeId {
    graph.add_node(Op::Input { name: name.into() }, vec![], shape)
}

fn param(graph: &mut Graph, name: &str, dims: &[usize]) -> NodeId {
    graph.add_node(Op::Param { name: name.into() }, vec![], fixed(dims))
}

/// Two linear layers, a norm, a residual connection, a reshape to attention heads and back, and a sum over
/// the dynamic dimension.
fn network() -> Graph {
    let mut graph = Graph::new("open");
    let x = input(&mut graph, "x", open(8));
    let (w, b) = (param(&mut graph, "w", &[8, 8]), param(&mut graph, "b", &[8]));
    let (gamma, beta) = (param(&mut graph, "gamma", &[8]), param(&mut graph, "beta", &[8]));
    let product = graph.add_node(Op::MatMul, vec![x, w], open(8));
    let biased = graph.add_node(Op::Binary(BinaryOp::Add), vec![product, b], open(8));
    let active = graph.add_node(Op::Activation(Activation::Gelu), vec![biased], open(8));
    let residual = graph.add_node(Op::Binary(BinaryOp::Add), vec![active, x], open(8));
    let norm = Op::LayerNorm { axis: -1, eps: 1e-5 };
    let normal = graph.add_node(norm, vec![residual, gamma, beta], open(8));
    let heads = [Dim::Dynamic(0), Dim::Static(2), Dim::Static(4)];
    let heads = Shape::from_dims(&heads, DType::F32);
    let split =
        graph.add_node(Op::Reshape { new_shape: vec![-1, 2, 4] }, vec![normal], heads.clone());
    let weights = graph.add_node(Op::Softmax { axis: -1 }, vec![split], heads);
    let flat = graph.add_node(Op::Reshape { new_shape: vec![-1, 8] }, vec![weights], open(8));
    let sum = Op::Reduce { op: ReduceOp::Sum, axes: vec![0], keep_dim: false };
    let sum = graph.add_node(sum, vec![flat], fixed(&[8]));
    graph.set_outputs(vec![flat, sum]);
    graph
}

#[test]
fn flexible_package_runs_every_size_in_range() {
    let params = [("w", 64), ("b", 8), ("gamma", 8), ("beta", 8)];
    let mut model = CoremlExecutable::compile(network()).expect("open dimensions are accepted");
    for (seed, (name, count)) in (1..).zip(params) {
        model.set_param(name, &numbers(count, seed)).expect("it is a parameter");
    }
    let refused = model.save("never.mlpackage").expect_err("sizes are missing").to_string();
    assert!(refused.contains("`bind`") && refused.contains("`save_flexible`"), "{refused}");

    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("open.mlpackage");
    model.save_flexible(&path, &[(0, 1..=12)]).expect("it is written");
    let mut read = Session::new(Device::Host).open(&path).expect("it is read");
    for size in [1, 2, 7, 12] {
        let x = numbers(size * 8, 20 + size as u32);
        let wanted = model.run(&[("x", &x)]).expect("it runs for this size");
        let shaped = Array::floats(MilType::Fp32, [size, 8], x);
        let found = read.run(&[("x", &shaped)]).expect("the package runs");
        for (at, wanted) in wanted.iter().enumerate() {
            let found = found.array(&format!("output_{at}")).expect("an output");
            let found = found.as_floats().expect("floats");
            assert_eq!(found.len(), wanted.len(), "{size}");
            for (found, wanted) in found.iter().zip(wanted) {
                assert!((found - wanted).abs() < 1e-5, "{size}: {found} {wanted}");
            }
        }
    }
    let x = Array::floats(MilType::Fp32, [13, 8], numbers(13 * 8, 3));
    let refused = read.run(&[("x", &x)]).expect_err("the size is beyond the range").to_string();
    assert!(refused.contains("12"), "{refused}");
}

#[test]
fn save_flexible_errors_name_operation_and_fix() {
    let square = Shape::from_dims(&[Dim::Dynamic(0), Dim::Dynamic(0)], DType::F32);
    let mut graph = Graph::new("lower half");
    let x = input(&mut graph, "x", square.clone());
    let lower = Op::Trilu { upper: false, diagonal: 0 };
    let y = graph.add_node(lower, vec![x], square);
    graph.set_outputs(vec![y]);
    let model = CoremlExecutable::compile(graph).expect("open dimensions are accepted");
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("lower.mlpackage");
    for (sizes, words) in [
        (&[(0, 1..=4)][..], ["`Trilu`", "fixed shape", "`bind`"]),
        (&[(1, 1..=4)], ["`Input`", "open dimension 0", "sizes"]),
        (
            &[(0, std::ops::RangeInclusive::new(4, 1))],
            ["`Input`", "sizes 4..=1;", "a non-empty range"],
        ),
    ] {
        let refused =
            model.save_flexible(&path, sizes).expect_err("the sizes are not supported").to_string();
        for word in words {
            assert!(refused.contains(word), "{word}: {refused}");
        }
        assert!(!path.exists());
    }
    let mut fixed = Graph::new("fixed");
    let x = input(&mut fixed, "x", Shape::new(&[2], DType::F32));
    let y = fixed.add_node(Op::Activation(Activation::Relu), vec![x], Shape::new(&[2], DType::F32));
    fixed.set_outputs(vec![y]);
    let fixed = CoremlExecutable::compile(fixed).expect("it compiles");
    let refused = fixed.save_flexible(&path, &[]).expect_err("no dimension is open").to_string();
    assert!(refused.contains("no open dimensions"), "{refused}");
}

#[test]
fn inputs_may_share_dynamic_dimension() {
    let mut graph = Graph::new("shared");
    let (x, y) = (input(&mut graph, "x", open(3)), input(&mut graph, "y", open(3)));
    let sum = graph.add_node(Op::Binary(BinaryOp::Add), vec![x, y], open(3));
    let concat = Op::Concat { axis: 1 };
    let both = graph.add_node(concat, vec![sum, x], open(6));
    graph.set_outputs(vec![both]);
    let mut model = CoremlExecutable::compile(graph).expect("open dimensions are accepted");
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("shared.mlpackage");
    model.save_flexible(&path, &[(0, 1..=9)]).expect("it is written");
    let mut read = Session::new(Device::Host).open(&path).expect("it is read");
    for size in [1, 5, 9] {
        let (x, y) = (numbers(size * 3, 5), numbers(size * 3, 6));
        let wanted = model.run(&[("x", &x), ("y", &y)]).expect("it runs for this size");
        let [x, y] = [x, y].map(|all| Array::floats(MilType::Fp32, [size, 3], all));
        let found = read.run(&[("x", &x), ("y", &y)]).expect("the package runs");
        let found = found.array("output_0").and_then(|array| array.as_floats()).expect("floats");
        assert_eq!(found, wanted[0]);
    }
}
