//! From nodes to tensors.

use std::collections::HashMap;

use coremill_graph::{DType, Error, ErrorKind, Graph, Opset, Scheme, Tensor};
use rlx_ir::{DType as RlxType, Node, NodeId, Op};

use crate::support::{Support, support};
use crate::{arithmetic, backward, network, shape};

pub(crate) struct Lowered {
    pub(crate) graph: Graph,
    pub(crate) inputs: Vec<(String, RlxType)>,
    pub(crate) outputs: Vec<String>,
    pub(crate) blocks: HashMap<String, (Scheme, Vec<u64>)>,
}

/// A node with what it takes.
pub(crate) struct Site<'a, 'g> {
    pub(crate) graph: &'g Graph,
    pub(crate) node: &'a Node,
    pub(crate) args: Vec<Tensor<'g>>,
    /// The shape that the node declares.
    pub(crate) shape: Vec<usize>,
}

impl<'g> Site<'_, 'g> {
    /// An operand.
    pub(crate) fn arg(&self, at: usize) -> Result<Tensor<'g>, Error> {
        self.args.get(at).copied().ok_or_else(|| {
            refusal(self.node, format!("takes an operand {at}, and has {}", self.args.len()))
        })
    }

    /// An operand that holds indices, which `rlx` passes as floats, too.
    pub(crate) fn indices(&self, at: usize) -> Result<Tensor<'g>, Error> {
        let arg = self.arg(at)?;
        Ok(if arg.dtype() == DType::Int32 { arg } else { arg.cast(DType::Int32) })
    }

    /// A refusal of the node.
    pub(crate) fn refuse<T>(&self, message: impl Into<String>) -> Result<T, Error> {
        Err(refusal(self.node, message))
    }
}

fn refusal(node: &Node, message: impl Into<String>) -> Error {
    let kind = node.op.kind();
    Error::custom(ErrorKind::Graph, format!("node {} (`{kind:?}`) {}", node.id, message.into()))
}

pub(crate) fn check(holds: bool, message: impl FnOnce() -> String) -> Result<(), Error> {
    if holds { Ok(()) } else { Err(Error::custom(ErrorKind::Graph, message())) }
}

/// The element type as Core ML's files have it.
pub(crate) fn element_type(dtype: RlxType) -> Result<DType, Error> {
    Ok(match dtype {
        RlxType::F32 => DType::Fp32,
        RlxType::F16 => DType::Fp16,
        RlxType::BF16 => DType::Bf16,
        RlxType::F64 => DType::Fp64,
        RlxType::I8 => DType::Int8,
        RlxType::I16 => DType::Int16,
        RlxType::I32 => DType::Int32,
        RlxType::I64 => DType::Int64,
        RlxType::U8 => DType::UInt8,
        RlxType::U32 => DType::UInt32,
        RlxType::Bool => DType::Bool,
        other => {
            let message = format!("Core ML has no tensors of `{other:?}`");
            return Err(Error::custom(ErrorKind::Graph, message));
        }
    })
}

pub(crate) fn lower(source: &rlx_ir::Graph, target: Opset) -> Result<Lowered, Error> {
    let graph = Graph::for_target(target);
    let (mut inputs, mut outputs, mut blocks) = (Vec::new(), Vec::new(), HashMap::new());
    {
        let mut values: HashMap<NodeId, Tensor<'_>> = HashMap::new();
        nodes(source, &graph, &mut values, &mut inputs, &mut blocks)?;
        for (at, output) in source.outputs.iter().enumerate() {
            let name = source.output_name(at).map_or_else(|| format!("output_{at}"), str::to_owned);
            let Some(&tensor) = values.get(output) else { continue };
            graph.output(&name, tensor);
            outputs.push(name);
        }
    }
    graph.check()?;
    Ok(Lowered { graph, inputs, outputs, blocks })
}

/// Lowers all nodes of a graph whose inputs may be there already, as those of branches are.
pub(crate) fn nodes<'g>(
    source: &rlx_ir::Graph,
    graph: &'g Graph,
    values: &mut HashMap<NodeId, Tensor<'g>>,
    inputs: &mut Vec<(String, RlxType)>,
    blocks: &mut HashMap<String, (Scheme, Vec<u64>)>,
) -> Result<(), Error> {
    // Blocks are parameters of bytes; how they are used says what they hold.
    let packed = network::packed_params(source)?;
    for node in source.nodes() {
        if values.contains_key(&node.id) {
            continue;
        }
        if packed.bytes.contains(&node.id) {
            continue;
        }
        if let Support::Refused(reason) = support(node.op.kind()) {
            return Err(refusal(node, reason));
        }
        let dims: Option<Vec<usize>> = node
            .shape
            .dims()
            .iter()
            .map(|dim| if dim.is_static() { Some(dim.unwrap_static()) } else { None })
            .collect();
        let Some(dims) = dims else {
            return Err(refusal(node, "has dimensions that are open; bind them before compiling"));
        };
        element_type(node.shape.dtype())
            .map_err(|error| refusal(node, format!("cannot be lowered: {error}")))?;
        let args = node.inputs.iter().filter_map(|id| values.get(id).copied()).collect();
        let site = Site { graph, node, args, shape: dims };
        let tensor = match &node.op {
            Op::Input { name } => {
                let dtype = node.shape.dtype();
                inputs.push((name.clone(), dtype));
                let passed = if dtype.is_float() { DType::Fp32 } else { DType::Int32 };
                let declared = if site.shape.is_empty() { vec![1] } else { site.shape.clone() };
                graph.input(name, passed, declared).view(site.shape.clone())
            }
            Op::Param { name } => graph.param(name, site.shape.clone()),
            _ => match packed.uses.get(&node.id) {
                Some(packed) => network::packed_matmul(&site, packed, blocks)?,
                None => operation(&site)?,
            },
        };
        values.insert(node.id, settled(&site, tensor));
    }
    Ok(())
}

/// The value in the element type and the shape that the node declares.
fn settled<'g>(site: &Site<'_, 'g>, tensor: Tensor<'g>) -> Tensor<'g> {
    if !tensor.is_valid() {
        return tensor;
    }
    let dtype = site.node.shape.dtype();
    let wanted = match dtype {
        RlxType::Bool => DType::Bool,
        _ if dtype.is_float() => DType::Fp32,
        _ => DType::Int32,
    };
    let tensor = if tensor.dtype() == wanted { tensor } else { tensor.cast(wanted) };
    if tensor.shape() == site.shape { tensor } else { tensor.view(site.shape.clone()) }
}

fn operation<'g>(site: &Site<'_, 'g>) -> Result<Tensor<'g>, Error> {
    for family in [arithmetic::lower, shape::lower, network::lower, backward::lower] {
        if let Some(tensor) = family(site)? {
            return Ok(tensor);
        }
    }
    site.refuse("is not lowered with these settings")
}
