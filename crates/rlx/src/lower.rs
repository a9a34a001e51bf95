//! From nodes to tensors.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::RangeInclusive;

use coremill_graph::{DType, Error, ErrorKind, Graph, Opset, Param, Tensor};
use rlx_ir::shape::Dim;
use rlx_ir::{DType as RlxType, Node, NodeId, Op};

use crate::gguf::Stored;
use crate::support::{Support, support};
use crate::{
    arithmetic, attention, backward, complex, control, formats, gradients, linalg, network, packed,
    quantized, recurrent, shape, spectral, windows,
};

pub(crate) struct Lowered {
    pub(crate) graph: Graph,
    pub(crate) inputs: Vec<(String, RlxType)>,
    pub(crate) outputs: Vec<String>,
    pub(crate) blocks: Blocks,
}

/// The schemes and shapes of parameters that are blocks of GGUF.
pub(crate) type Blocks = HashMap<String, (Stored, Vec<u64>)>;

/// What nodes of a graph, and of the graphs inside its nodes, are lowered into.
struct Context<'g> {
    graph: &'g Graph,
    sizes: &'g Sizes,
    inputs: RefCell<Vec<(String, RlxType)>>,
    blocks: RefCell<Blocks>,
}

impl Context<'_> {
    /// The extents that an input may have.
    fn ranges(&self, site: &Site<'_, '_>) -> Result<Vec<(i64, i64)>, Error> {
        let extents = site.dims.iter().map(|dim| match *dim {
            Dim::Static(extent) => Ok((extent as i64, extent as i64)),
            Dim::Dynamic(symbol) => {
                let known = self.sizes.iter().find(|(open, _)| *open == symbol);
                let Some((_, sizes)) = known else {
                    return site.refuse(format!("has an open dimension {symbol} without sizes"));
                };
                let bounds = (i64::try_from(*sizes.start()), i64::try_from(*sizes.end()));
                match bounds {
                    (Ok(low @ 1..), Ok(high)) if low <= high && high <= i64::from(i32::MAX) => {
                        Ok((low, high))
                    }
                    _ => site.refuse(format!(
                        "has an open dimension {symbol} of sizes {sizes:?}; accepted are 1 to 2^31 - 1, the smaller first"
                    )),
                }
            }
        });
        extents.collect()
    }
}

/// The sizes that open dimensions may have, by their symbols.
pub(crate) type Sizes = [(u32, RangeInclusive<usize>)];

/// A node with what it takes.
pub(crate) struct Site<'a, 'g> {
    pub(crate) graph: &'g Graph,
    pub(crate) node: &'a Node,
    /// The graph that holds the node.
    pub(crate) source: &'a rlx_ir::Graph,
    pub(crate) args: Vec<Tensor<'g>>,
    /// The dimensions that the node declares; complex numbers have one axis more, of 2.
    dims: Vec<Dim>,
    /// The same as numbers, unless one of them is open.
    shape: Option<Vec<usize>>,
    context: &'a Context<'g>,
}

impl<'g> Site<'_, 'g> {
    /// An operand.
    pub(crate) fn arg(&self, at: usize) -> Result<Tensor<'g>, Error> {
        self.args.get(at).copied().ok_or_else(|| {
            refusal(self.node, format!("takes an operand {at}, and has {}", self.args.len()))
        })
    }

    /// The first operands.
    pub(crate) fn operands<const N: usize>(&self) -> Result<[Tensor<'g>; N], Error> {
        if self.args.len() < N {
            return self.refuse(format!("takes {N} operands, and has {}", self.args.len()));
        }
        Ok(std::array::from_fn(|at| self.args[at]))
    }

    /// The element type that an operand is declared with.
    pub(crate) fn declared(&self, at: usize) -> Option<RlxType> {
        Some(self.source.node(*self.node.inputs.get(at)?).shape.dtype())
    }

    /// The shape that the node declares, which must not be open.
    pub(crate) fn shape(&self) -> Result<&[usize], Error> {
        let shape = self.shape.as_deref();
        shape.map_or_else(
            || self.refuse("needs a fixed shape, and has open dimensions: call `bind`"),
            Ok,
        )
    }

    /// The last extent of that shape; others may be open.
    pub(crate) fn last(&self) -> Result<usize, Error> {
        match self.dims.last() {
            Some(Dim::Static(extent)) => Ok(*extent),
            Some(Dim::Dynamic(_)) => {
                self.refuse("needs a fixed last dimension, and has an open one: call `bind`")
            }
            None => Ok(1),
        }
    }

    /// The numbers of packed data, which fill the shape that the node declares.
    pub(crate) fn numbers(&self, dtype: DType, data: &[u8]) -> Result<Vec<f32>, Error> {
        let extents: Vec<u64> = self.shape()?.iter().map(|&extent| extent as u64).collect();
        Param::elements(dtype, extents, data.to_vec())?.to_floats()
    }

    /// The elements in the shape that the node declares.
    pub(crate) fn viewed(&self, tensor: Tensor<'g>) -> Result<Tensor<'g>, Error> {
        let extents = self.dims.iter().map(|dim| match dim {
            Dim::Static(extent) => *extent as i64,
            Dim::Dynamic(_) => -1,
        });
        let extents: Vec<i64> = extents.collect();
        if extents.iter().filter(|&&extent| extent < 0).count() > 1 {
            return self.refuse("takes a shape with several open dimensions: call `bind`");
        }
        Ok(tensor.view(extents))
    }

    /// An operand that holds indices, which `rlx` passes as floats, too.
    pub(crate) fn indices(&self, at: usize) -> Result<Tensor<'g>, Error> {
        let arg = self.arg(at)?;
        Ok(if arg.dtype() == DType::Int32 { arg } else { arg.cast(DType::Int32) })
    }

    /// An operand as floats.
    pub(crate) fn float(&self, at: usize) -> Result<Tensor<'g>, Error> {
        let arg = self.arg(at)?;
        Ok(if arg.dtype() == DType::Fp32 { arg } else { arg.cast(DType::Fp32) })
    }

    /// A constant of zeros.
    pub(crate) fn zeros(&self, shape: &[usize]) -> Tensor<'g> {
        self.graph.floats(shape, &vec![0.0; shape.iter().product()])
    }

    /// Tensors along an axis.
    pub(crate) fn joined(
        &self,
        parts: impl IntoIterator<Item = Tensor<'g>>,
        axis: i32,
    ) -> Tensor<'g> {
        let parts: Vec<Tensor<'g>> = parts.into_iter().collect();
        match parts[..] {
            [only] => only,
            _ => self.graph.concat(parts, axis, Default::default()),
        }
    }

    /// Tensors one after the other in a vector, which is how `rlx` gives several results.
    pub(crate) fn packed(&self, parts: impl IntoIterator<Item = Tensor<'g>>) -> Tensor<'g> {
        self.joined(parts.into_iter().map(|part| part.view([-1])), 0)
    }

    /// Lowers a graph inside the node, its inputs in order being `given`.
    pub(crate) fn inline(
        &self,
        body: &rlx_ir::Graph,
        given: &[Tensor<'g>],
    ) -> Result<Vec<Tensor<'g>>, Error> {
        self.bound(body, given, None)
    }

    /// The same where one input is known by its name.
    pub(crate) fn inline_named(
        &self,
        body: &rlx_ir::Graph,
        given: &[Tensor<'g>],
        named: (&str, Tensor<'g>),
    ) -> Result<Vec<Tensor<'g>>, Error> {
        self.bound(body, given, Some(named))
    }

    fn bound(
        &self,
        body: &rlx_ir::Graph,
        given: &[Tensor<'g>],
        named: Option<(&str, Tensor<'g>)>,
    ) -> Result<Vec<Tensor<'g>>, Error> {
        let mut values: HashMap<NodeId, Tensor<'g>> = HashMap::new();
        let mut rest = given.iter();
        for node in body.nodes() {
            let Op::Input { name } = &node.op else { continue };
            let value = match named {
                Some((known, value)) if known == name => Some(value),
                _ => rest.next().copied(),
            };
            let Some(value) = value else {
                let given = given.len();
                return self.refuse(format!(
                    "holds a graph whose input `{name}` is not among the {given} values it is given"
                ));
            };
            values.insert(node.id, value);
        }
        nodes(body, self.context, &mut values)?;
        let outputs = body.outputs.iter().map(|output| values.get(output).copied());
        outputs
            .collect::<Option<_>>()
            .map_or_else(|| self.refuse("holds a graph whose output is missing"), Ok)
    }

    /// Declares a parameter of blocks.
    pub(crate) fn block_param(&self, name: &str, scheme: Stored, shape: &[usize]) -> Tensor<'g> {
        let extents = shape.iter().map(|&extent| extent as u64).collect();
        self.context.blocks.borrow_mut().insert(name.to_owned(), (scheme, extents));
        self.graph.param(name, shape)
    }

    /// A refusal of the node.
    pub(crate) fn refuse<T>(&self, message: impl Into<String>) -> Result<T, Error> {
        Err(refusal(self.node, message))
    }
}

fn refusal(node: &Node, message: impl Into<String>) -> Error {
    let kind = node.op.kind();
    failure(format!("node {} (`{kind:?}`) {}", node.id, message.into()))
}

/// An error about a graph.
pub(crate) fn failure(message: impl Into<String>) -> Error {
    Error::custom(ErrorKind::Graph, message)
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
            return Err(failure(message));
        }
    })
}

/// Lowers a graph; `sizes` are those that its open dimensions may have.
pub(crate) fn lower(
    source: &rlx_ir::Graph,
    target: Opset,
    sizes: &Sizes,
) -> Result<Lowered, Error> {
    let graph = Graph::for_target(target);
    let context =
        Context { graph: &graph, sizes, inputs: RefCell::default(), blocks: RefCell::default() };
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
    Ok(Lowered { graph, inputs, outputs, blocks })
}

/// Lowers all nodes of a graph but those whose values are there already.
fn nodes<'g>(
    source: &rlx_ir::Graph,
    context: &Context<'g>,
    values: &mut HashMap<NodeId, Tensor<'g>>,
) -> Result<(), Error> {
    let graph = context.graph;
    let packed = packed::params(source);
    for node in source.nodes() {
        // Blocks become a parameter where they are used, which says what they hold.
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
        let site = Site { graph, node, source, args, dims, shape, context };
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
                    None => graph.flexible_input(name, passed, &context.ranges(&site)?),
                }
            }
            Op::Param { name } => graph.param(name, site.shape()?),
            _ => operation(&site)?,
        };
        values.insert(node.id, settled(&site, tensor)?);
        if !context.sizes.is_empty() {
            graph.check().map_err(|error| {
                refusal(node, format!("is not lowered with open dimensions ({error}): call `bind`"))
            })?;
        }
    }
    Ok(())
}

fn fixed(dim: Dim) -> Option<usize> {
    match dim {
        Dim::Static(extent) => Some(extent),
        Dim::Dynamic(_) => None,
    }
}

/// Whether numbers are complex, which have an axis of real and imaginary part.
pub(crate) fn is_complex(dtype: RlxType) -> bool {
    dtype.is_complex()
}

/// Whether floats carry the type.
pub(crate) fn is_float(dtype: RlxType) -> bool {
    dtype.is_float() || is_complex(dtype)
}

/// The value in the element type and the shape that the node declares.
fn settled<'g>(site: &Site<'_, 'g>, tensor: Tensor<'g>) -> Result<Tensor<'g>, Error> {
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

fn operation<'g>(site: &Site<'_, 'g>) -> Result<Tensor<'g>, Error> {
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
    site.refuse("is not lowered with these settings")
}
