//! A node with its operands, as passed to lowering functions.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::RangeInclusive;

use coremill_graph::{DType, Error, Graph, Param, Tensor};
use rlx_ir::shape::Dim;
use rlx_ir::{DType as RlxType, Node, NodeId, Op};

use crate::error::refusal;
use crate::gguf::StoredWeight;

/// Schemes and shapes of parameters that are GGUF blocks.
pub(crate) type Blocks = HashMap<String, (StoredWeight, Vec<u64>)>;

/// Target of lowering for the nodes of a graph and of nested graphs.
pub(crate) struct Context<'g> {
    pub(crate) graph: &'g Graph,
    pub(crate) sizes: &'g Sizes,
    pub(crate) inputs: RefCell<Vec<(String, RlxType)>>,
    pub(crate) blocks: RefCell<Blocks>,
    /// Lowers the nodes of a graph, including nested graphs.
    pub(crate) lower: LowerNodes<'g>,
}

/// Lowers all nodes of a graph except those that already have values.
pub(crate) type LowerNodes<'g> =
    fn(&rlx_ir::Graph, &Context<'g>, &mut HashMap<NodeId, Tensor<'g>>) -> Result<(), Error>;

/// Allowed sizes of dynamic dimensions, by symbol.
pub(crate) type Sizes = [(u32, RangeInclusive<usize>)];

/// A node with its operands.
pub(crate) struct NodeContext<'a, 'g> {
    pub(crate) graph: &'g Graph,
    pub(crate) node: &'a Node,
    /// The graph that contains the node.
    pub(crate) source: &'a rlx_ir::Graph,
    pub(crate) args: Vec<Tensor<'g>>,
    /// The declared dimensions; complex numbers have an additional axis of size 2.
    pub(crate) dims: Vec<Dim>,
    /// The declared sizes; `None` if one of them is dynamic.
    pub(crate) shape: Option<Vec<usize>>,
    pub(crate) context: &'a Context<'g>,
}

impl<'g> NodeContext<'_, 'g> {
    /// Returns an operand.
    pub(crate) fn arg(&self, at: usize) -> Result<Tensor<'g>, Error> {
        self.args.get(at).copied().ok_or_else(|| {
            refusal(
                self.node,
                format!("requires operand {at}, but the number of operands is {}", self.args.len()),
            )
        })
    }

    /// Returns the first operands.
    pub(crate) fn operands<const N: usize>(&self) -> Result<[Tensor<'g>; N], Error> {
        if self.args.len() < N {
            return self.refuse(format!("requires {N} operands, got {}", self.args.len()));
        }
        Ok(std::array::from_fn(|at| self.args[at]))
    }

    /// The declared element type of an operand.
    pub(crate) fn declared(&self, at: usize) -> Option<RlxType> {
        Some(self.source.node(*self.node.inputs.get(at)?).shape.dtype())
    }

    /// The declared shape, which must be static.
    pub(crate) fn shape(&self) -> Result<&[usize], Error> {
        let shape = self.shape.as_deref();
        shape.map_or_else(
            || self.refuse("requires a fixed shape, but has open dimensions: call `bind`"),
            Ok,
        )
    }

    /// The last declared size; other sizes may be dynamic.
    pub(crate) fn last(&self) -> Result<usize, Error> {
        match self.dims.last() {
            Some(Dim::Static(extent)) => Ok(*extent),
            Some(Dim::Dynamic(_)) => {
                self.refuse("requires a fixed last dimension, but it is open: call `bind`")
            }
            None => Ok(1),
        }
    }

    /// Unpacks data to numbers for the declared shape.
    pub(crate) fn numbers(&self, dtype: DType, data: &[u8]) -> Result<Vec<f32>, Error> {
        let extents: Vec<u64> = self.shape()?.iter().map(|&extent| extent as u64).collect();
        Param::elements(dtype, extents, data.to_vec())?.to_floats()
    }

    /// Reshapes a tensor to the declared shape.
    pub(crate) fn viewed(&self, tensor: Tensor<'g>) -> Result<Tensor<'g>, Error> {
        let extents = self.dims.iter().map(|dim| match dim {
            Dim::Static(extent) => *extent as i64,
            Dim::Dynamic(_) => -1,
        });
        let extents: Vec<i64> = extents.collect();
        if extents.iter().filter(|&&extent| extent < 0).count() > 1 {
            return self.refuse(
                "has a shape with several open dimensions, which is not supported: call `bind`",
            );
        }
        Ok(tensor.view(extents))
    }

    /// An operand with indices, which `rlx` may pass as floats.
    pub(crate) fn indices(&self, at: usize) -> Result<Tensor<'g>, Error> {
        let arg = self.arg(at)?;
        Ok(if arg.dtype() == DType::Int32 { arg } else { arg.cast(DType::Int32) })
    }

    /// An operand converted to floats.
    pub(crate) fn float(&self, at: usize) -> Result<Tensor<'g>, Error> {
        let arg = self.arg(at)?;
        Ok(if arg.dtype() == DType::Fp32 { arg } else { arg.cast(DType::Fp32) })
    }

    /// A constant of zeros.
    pub(crate) fn zeros(&self, shape: &[usize]) -> Tensor<'g> {
        self.graph.floats(shape, &vec![0.0; shape.iter().product()])
    }

    /// Concatenates tensors along an axis.
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

    /// Concatenates flattened tensors to a vector, which is how `rlx` returns several results.
    pub(crate) fn packed(&self, parts: impl IntoIterator<Item = Tensor<'g>>) -> Tensor<'g> {
        self.joined(parts.into_iter().map(|part| part.view([-1])), 0)
    }

    /// Lowers a graph inside the node with the inputs `given` in order.
    pub(crate) fn inline(
        &self,
        body: &rlx_ir::Graph,
        given: &[Tensor<'g>],
    ) -> Result<Vec<Tensor<'g>>, Error> {
        self.bound(body, given, None)
    }

    /// Like [`inline`](Self::inline), with one input passed by name.
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
                    "holds a graph whose input `{name}` is not among the {given} values that are passed"
                ));
            };
            values.insert(node.id, value);
        }
        (self.context.lower)(body, self.context, &mut values)?;
        let outputs = body.outputs.iter().map(|output| values.get(output).copied());
        outputs
            .collect::<Option<_>>()
            .map_or_else(|| self.refuse("holds a graph whose output is missing"), Ok)
    }

    /// Declares a parameter with blocks.
    pub(crate) fn block_param(
        &self,
        name: &str,
        scheme: StoredWeight,
        shape: &[usize],
    ) -> Tensor<'g> {
        let extents = shape.iter().map(|&extent| extent as u64).collect();
        self.context.blocks.borrow_mut().insert(name.to_owned(), (scheme, extents));
        self.graph.param(name, shape)
    }

    /// Returns an error about the node.
    pub(crate) fn refuse<T>(&self, message: impl Into<String>) -> Result<T, Error> {
        Err(refusal(self.node, message))
    }
}
