//! Graphs with one operation each, and inputs on which wrong results are detected. `oracle/dumps/rlx` runs them
//! with `rlx-cpu` and writes the results to `expected.txt`; the tests compare this crate with them.

mod found;
mod gradients;
mod layers;
mod matrices;
mod numbers;
mod sequences;
mod shapes;
mod stored;

use rlx_ir::{DType, Graph, NodeId, Op, Shape};

/// A graph with its inputs.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) graph: Graph,
    pub(crate) inputs: Vec<(String, Vec<f32>)>,
    /// Parameters that are bytes: names and contents.
    pub(crate) blocks: Vec<(String, Vec<u8>)>,
    /// Maximum error relative to the largest result of `rlx-cpu`.
    pub(crate) tolerance: f32,
    /// Whether only magnitudes are determined, as for eigenvectors.
    pub(crate) magnitudes: bool,
}

impl Case {
    pub(crate) fn within(mut self, tolerance: f32) -> Case {
        self.tolerance = tolerance;
        self
    }

    pub(crate) fn magnitudes(mut self) -> Case {
        self.magnitudes = true;
        self
    }
}

/// All cases.
pub(crate) fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    numbers::add(&mut cases);
    shapes::add(&mut cases);
    layers::add(&mut cases);
    gradients::add(&mut cases);
    sequences::add(&mut cases);
    matrices::add(&mut cases);
    stored::add(&mut cases);
    found::add(&mut cases);
    for (at, case) in cases.iter_mut().enumerate() {
        case.name = format!("{at:03}_{}", case.name);
    }
    cases
}

/// An operand.
#[derive(Clone)]
pub(crate) struct OperandCase {
    pub(crate) shape: Vec<usize>,
    pub(crate) dtype: DType,
    pub(crate) elements: Vec<f32>,
    /// The bytes of a parameter, instead of elements.
    pub(crate) bytes: Option<Vec<u8>>,
}

/// Pseudorandom numbers between -1 and 1.
pub(crate) fn noise(count: usize, salt: u64) -> Vec<f32> {
    let mut state = salt.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x1234_5678_9abc_def1);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count + 8).map(|_| next()).skip(8).collect()
}

pub(crate) fn given(shape: &[usize], elements: Vec<f32>) -> OperandCase {
    OperandCase { shape: shape.to_vec(), dtype: DType::F32, elements, bytes: None }
}

/// Pseudorandom numbers of a shape.
pub(crate) fn x(shape: &[usize], salt: u64) -> OperandCase {
    given(shape, noise(shape.iter().product(), salt))
}

/// Pseudorandom numbers in a range.
pub(crate) fn between(shape: &[usize], salt: u64, low: f32, high: f32) -> OperandCase {
    let of = |x: f32| low + (x + 1.0) / 2.0 * (high - low);
    given(shape, noise(shape.iter().product(), salt).into_iter().map(of).collect())
}

/// Pseudorandom integers below a number.
pub(crate) fn indices(shape: &[usize], salt: u64, below: usize) -> OperandCase {
    let of = |x: f32| (((x + 1.0) / 2.0 * below as f32) as usize).min(below - 1) as f32;
    given(shape, noise(shape.iter().product(), salt).into_iter().map(of).collect())
}

pub(crate) fn list(elements: &[f32]) -> OperandCase {
    given(&[elements.len()], elements.to_vec())
}

pub(crate) fn typed(mut given: OperandCase, dtype: DType) -> OperandCase {
    given.dtype = dtype;
    given
}

/// A parameter of bytes.
pub(crate) fn packed(bytes: Vec<u8>) -> OperandCase {
    OperandCase {
        shape: vec![bytes.len()],
        dtype: DType::U8,
        elements: Vec::new(),
        bytes: Some(bytes),
    }
}

/// Symmetric positive definite matrices.
pub(crate) fn definite(batch: usize, size: usize, salt: u64) -> Vec<f32> {
    let noise = noise(batch * size * size, salt);
    let mut all = Vec::new();
    for matrix in noise.chunks(size * size) {
        for row in 0..size {
            for column in 0..size {
                let dot = |at: usize| matrix[row * size + at] * matrix[column * size + at];
                let sum: f32 = (0..size).map(dot).sum();
                // The eigenvalues are distinct.
                let more = if row == column { 0.5 + 0.4 * row as f32 } else { 0.0 };
                all.push(sum + more);
            }
        }
    }
    all
}

/// An operation on operands.
pub(crate) fn op(op: Op, operands: &[OperandCase], shape: &[usize]) -> Case {
    typed_op(op, operands, shape, DType::F32)
}

pub(crate) fn typed_op(op: Op, operands: &[OperandCase], shape: &[usize], dtype: DType) -> Case {
    let name = format!("{:?}", op.kind());
    graph(&name, operands, |graph, ids| graph.add_node(op, ids.to_vec(), Shape::new(shape, dtype)))
}

/// A graph of operands and a result computed from them.
pub(crate) fn graph(
    name: &str,
    operands: &[OperandCase],
    build: impl FnOnce(&mut Graph, &[NodeId]) -> NodeId,
) -> Case {
    let mut graph = Graph::new(name);
    let (mut ids, mut inputs, mut blocks) = (Vec::new(), Vec::new(), Vec::new());
    for (at, operand) in operands.iter().enumerate() {
        let name = format!("x{at}");
        let shape = Shape::new(&operand.shape, operand.dtype);
        let op = match &operand.bytes {
            Some(bytes) => {
                blocks.push((name.clone(), bytes.clone()));
                Op::Param { name }
            }
            None => {
                inputs.push((name.clone(), operand.elements.clone()));
                Op::Input { name }
            }
        };
        ids.push(graph.add_node(op, vec![], shape));
    }
    let result = build(&mut graph, &ids);
    graph.set_outputs(vec![result]);
    let name = name.to_owned();
    Case { name, graph, inputs, blocks, tolerance: 1e-4, magnitudes: false }
}
