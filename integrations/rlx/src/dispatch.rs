//! Lowers graphs to tensors, by calling the lowering family of each node.

use std::collections::HashMap;

use coremill_graph::{DType, Error, Graph, Opset, Tensor};
use rlx_ir::shape::Dim;
use rlx_ir::{DType as RlxType, NodeId, Op};

use crate::element::{element_type, is_complex, is_float};
use crate::error::refusal;
use crate::site::{Blocks, Context, NodeContext, Sizes};
use crate::support::{Support, support};
use crate::{
    arithmetic, attention, backward, complex, control, formats, gradients, linalg, network, packed,
    quantized, recurrent, shape, spectral, windows,
};

pub(crate) struct LoweredGraph {
    pub(crate) graph: Graph,
    pub(crate) inputs: Vec<(String, RlxType)>,
    pub(crate) outputs: Vec<String>,
    pub(crate) blocks: Blocks,
}

/// Lowers a graph. `sizes` are the allowed sizes of its dynamic dimensions.
pub(crate) fn lower(
    source: &rlx_ir::Graph,
    target: Opset,
    sizes: &Sizes,
) -> Result<LoweredGraph, Error> {
    let graph = Graph::for_target(target);
    let (inputs, blocks) = Default::default();
    let context = Context { graph: &graph, sizes, inputs, blocks, lower: nodes };
    let mut values: HashMap<NodeId, Tensor<'_>> = HashMap::new();
    nodes(source, &context, &mut values)?;
    let mut outputs = Vec::with_capacity(source.outputs.len());
    for (at, output) in source.outputs.iter().enumerate() {
        let name = source.output_name(at).map_or_else(|| format!("output_{at}"), str::to_owned);
        let Some(&tensor) = values.get(output) else { continue };
        let is_half = source.node(*output).shape.dtype() == RlxType::F16;
        graph.output(&name, if is_half { tensor.cast(DType::Fp16) } else { tensor });
        outputs.push(name);
    }
    let (inputs, blocks) = (context.inputs.take(), context.blocks.take());
    graph.check()?;
    Ok(LoweredGraph { graph, inputs, outputs, blocks })
}

/// Lowers all nodes of a graph except those that already have values.
fn nodes<'g>(
    source: &rlx_ir::Graph,
    context: &Context<'g>,
    values: &mut HashMap<NodeId, Tensor<'g>>,
) -> Result<(), Error> {
    let graph = context.graph;
    let packed = packed::params(source);
    for node in source.nodes() {
        // Blocks become a parameter at their use, which determines their contents.
        if values.contains_key(&node.id) || packed.contains(&node.id) {
            continue;
        }
        if let Support::Divided(reason) = support(node.op.kind()) {
            return Err(refusal(node, reason));
        }
        let mut dims = node.shape.dims().to_vec();
        let dtype = node.shape.dtype();
        if is_complex(dtype) {
            dims.push(Dim::Static(2));
        } else {
            element_type(dtype)
                .map_err(|error| refusal(node, format!("cannot be lowered: {error}")))?;
        }
        let args = node.inputs.iter().filter_map(|id| values.get(id).copied()).collect();
        let shape = dims.iter().map(|dim| fixed(*dim)).collect();
        let site = NodeContext { graph, node, source, args, dims, shape, context };
        let tensor = match &node.op {
            Op::Input { name } => {
                context.inputs.borrow_mut().push((name.clone(), dtype));
                let passed = match dtype {
                    RlxType::F16 => DType::Fp16,
                    _ if is_float(dtype) => DType::Fp32,
                    _ => DType::Int32,
                };
                match &site.shape {
                    Some(shape) => {
                        let declared = if shape.is_empty() { &[1] } else { &shape[..] };
                        graph.input(name, passed, declared).view(shape)
                    }
                    None => graph.flexible_input(name, passed, &ranges(&site, context.sizes)?),
                }
            }
            Op::Param { name } => graph.param(name, site.shape()?),
            _ => operation(&site)?,
        };
        values.insert(node.id, settled(&site, tensor)?);
        if !context.sizes.is_empty() {
            graph.check().map_err(|error| {
                refusal(
                    node,
                    format!("cannot be lowered with open dimensions ({error}): call `bind`"),
                )
            })?;
        }
    }
    Ok(())
}

/// The allowed sizes of an input.
fn ranges(site: &NodeContext<'_, '_>, sizes: &Sizes) -> Result<Vec<(i64, i64)>, Error> {
    let extents = site.dims.iter().map(|dim| match *dim {
        Dim::Static(extent) => Ok((extent as i64, extent as i64)),
        Dim::Dynamic(symbol) => {
            let known = sizes.iter().find(|(open, _)| *open == symbol);
            let Some((_, sizes)) = known else {
                return site.refuse(format!("has an open dimension {symbol}, for which no sizes are specified"));
            };
            let bounds = (i64::try_from(*sizes.start()), i64::try_from(*sizes.end()));
            match bounds {
                (Ok(low @ 1..), Ok(high)) if low <= high && high <= i64::from(i32::MAX) => {
                    Ok((low, high))
                }
                _ => site.refuse(format!(
                    "has an open dimension {symbol} with sizes {sizes:?}; expected a non-empty range from 1 to 2^31 - 1"
                )),
            }
        }
    });
    extents.collect()
}

fn fixed(dim: Dim) -> Option<usize> {
    match dim {
        Dim::Static(extent) => Some(extent),
        Dim::Dynamic(_) => None,
    }
}

/// Converts a value to the element type and the shape that the node declares.
fn settled<'g>(site: &NodeContext<'_, 'g>, tensor: Tensor<'g>) -> Result<Tensor<'g>, Error> {
    if !tensor.is_valid() {
        return Ok(tensor);
    }
    let dtype = site.node.shape.dtype();
    let wanted = match dtype {
        RlxType::Bool => DType::Bool,
        _ if is_float(dtype) => DType::Fp32,
        _ => DType::Int32,
    };
    let tensor = if tensor.dtype() == wanted { tensor } else { tensor.cast(wanted) };
    let (found, declared) = (tensor.dims(), &site.dims);
    let agrees = found.len() == declared.len()
        && found
            .iter()
            .zip(declared)
            .all(|(found, declared)| found.known() == fixed(*declared).map(|extent| extent as u64));
    if agrees { Ok(tensor) } else { site.viewed(tensor) }
}

fn operation<'g>(site: &NodeContext<'_, 'g>) -> Result<Tensor<'g>, Error> {
    for family in [
        complex::lower,
        arithmetic::lower,
        shape::lower,
        network::lower,
        attention::lower,
        windows::lower,
        recurrent::lower,
        packed::lower,
        quantized::lower,
        formats::lower,
        spectral::lower,
        linalg::lower,
        backward::lower,
        gradients::lower,
        control::lower,
    ] {
        if let Some(tensor) = family(site)? {
            return Ok(tensor);
        }
    }
    site.refuse("is not supported with these settings")
}
