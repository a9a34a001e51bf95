//! Graphs that do not fit into a single package: several packages, with functions of the caller in between.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use coremill_graph::Error;
use rlx_ir::{Graph, Node, NodeId, Op, OpKind, Shape};

use crate::error::failure;

/// Arguments of a function of the caller.
#[non_exhaustive]
pub struct HostCall<'a> {
    /// The operation with its settings.
    pub op: &'a Op,
    /// Shapes and elements of the operands.
    pub inputs: &'a [(&'a Shape, &'a [f32])],
    /// Shape of the result.
    pub shape: &'a Shape,
}

type HostFn = dyn Fn(&HostCall<'_>) -> Result<Vec<f32>, Error> + Send + Sync;

/// Functions of the caller for operations that run outside packages.
///
/// ```
/// use coremill_rlx::{CoremlExecutable, Device, HostCallbacks, Precision};
/// use rlx_ir::{DType, Graph, Op, Shape};
///
/// let mut graph = Graph::new("custom");
/// let shape = || Shape::new(&[2], DType::F32);
/// let x = graph.add_node(Op::Input { name: "x".into() }, vec![], shape());
/// let op = Op::Custom { name: "triple".into(), num_inputs: 1, attrs: vec![] };
/// let y = graph.add_node(op, vec![x], shape());
/// let z = graph.add_node(Op::Activation(rlx_ir::op::Activation::Neg), vec![y], shape());
/// graph.set_outputs(vec![z]);
///
/// let hosts = HostCallbacks::new().custom("triple", |call| {
///     Ok(call.inputs[0].1.iter().map(|x| x * 3.0).collect())
/// });
/// let mut model = CoremlExecutable::compile_with(graph, Device::Host, Precision::Fp32, hosts)?;
/// assert_eq!(model.run(&[("x", &[1.0, 2.0])])?, [[-3.0, -6.0]]);
/// # Ok::<(), coremill_rlx::CoremlError>(())
/// ```
#[derive(Clone, Default)]
pub struct HostCallbacks {
    custom: HashMap<String, Arc<HostFn>>,
    kinds: HashMap<OpKind, Arc<HostFn>>,
}

impl fmt::Debug for HostCallbacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: BTreeSet<&String> = self.custom.keys().collect();
        f.debug_struct("Hosts").field("custom", &names).field("kinds", &self.kinds.keys()).finish()
    }
}

impl HostCallbacks {
    /// Returns an empty set of functions.
    pub fn new() -> HostCallbacks {
        HostCallbacks::default()
    }

    /// Registers a function for [`Op::Custom`] operations with a name.
    pub fn custom(
        mut self,
        name: impl Into<String>,
        function: impl Fn(&HostCall<'_>) -> Result<Vec<f32>, Error> + Send + Sync + 'static,
    ) -> HostCallbacks {
        self.custom.insert(name.into(), Arc::new(function));
        self
    }

    /// Registers a function for all operations of a kind, including kinds that could be lowered.
    pub fn kind(
        mut self,
        kind: OpKind,
        function: impl Fn(&HostCall<'_>) -> Result<Vec<f32>, Error> + Send + Sync + 'static,
    ) -> HostCallbacks {
        self.kinds.insert(kind, Arc::new(function));
        self
    }

    fn of(&self, op: &Op) -> Option<Arc<HostFn>> {
        let custom = match op {
            Op::Custom { name, .. } => self.custom.get(name),
            _ => None,
        };
        custom.or_else(|| self.kinds.get(&op.kind())).cloned()
    }
}

/// An operation that is replaced by a function of the caller.
pub(crate) struct HostNode {
    node: Node,
    shapes: Vec<Shape>,
    function: Arc<HostFn>,
}

impl HostNode {
    pub(crate) fn id(&self) -> NodeId {
        self.node.id
    }

    pub(crate) fn run(&self, values: &HashMap<NodeId, Vec<f32>>) -> Result<Vec<f32>, Error> {
        let missing =
            |id: &NodeId| failure(format!("operand {id} of node {} has no value", self.node.id));
        let elements: Vec<&[f32]> = self
            .node
            .inputs
            .iter()
            .map(|id| values.get(id).map(Vec::as_slice).ok_or_else(|| missing(id)))
            .collect::<Result<_, _>>()?;
        let inputs: Vec<_> = self.shapes.iter().zip(elements).collect();
        let call = HostCall { op: &self.node.op, inputs: &inputs, shape: &self.node.shape };
        let result = (self.function)(&call)?;
        let wanted = self.node.shape.num_elements().unwrap_or(result.len());
        if result.len() != wanted {
            let (found, kind) = (result.len(), self.node.op.kind());
            return Err(failure(format!(
                "the function of node {} (`{kind:?}`) returned {found} elements, but its shape has {wanted}",
                self.node.id
            )));
        }
        Ok(result)
    }
}

/// A part that becomes a package: its graph, and the nodes of its inputs and outputs.
pub(crate) struct Segment {
    pub(crate) graph: Graph,
    pub(crate) inputs: Vec<(String, NodeId)>,
    pub(crate) outputs: Vec<NodeId>,
}

/// A step of the execution.
pub(crate) enum Part {
    Segment(Segment),
    Host(HostNode),
}

/// Whether some nodes of a graph run outside packages.
pub(crate) fn is_divided(graph: &Graph, hosts: &HostCallbacks) -> bool {
    graph.nodes().iter().any(|node| hosts.of(&node.op).is_some())
}

/// Divides a graph into parts; each part uses results of earlier parts. Parameters and constants are placed
/// in the parts that use them.
pub(crate) fn divide(graph: &Graph, hosts: &HostCallbacks) -> Vec<Part> {
    let is_source =
        |node: &Node| matches!(node.op, Op::Input { .. } | Op::Param { .. } | Op::Constant { .. });
    let mut turn: HashMap<NodeId, usize> = HashMap::new();
    let mut functions = HashMap::new();
    for node in graph.nodes() {
        let own = node.inputs.iter().map(|input| {
            turn.get(input).copied().unwrap_or(0) + usize::from(functions.contains_key(input))
        });
        let own = own.max().unwrap_or(0);
        turn.insert(node.id, own);
        if let Some(function) = hosts.of(&node.op) {
            functions.insert(node.id, function);
        }
    }
    let turns = turn.values().max().map_or(0, |last| last + 1);
    let used_by = uses(graph);
    let mut parts = Vec::new();
    for at in 0..turns {
        let own = |node: &&Node| turn.get(&node.id) == Some(&at);
        let here = || graph.nodes().iter().filter(own);
        let computed: Vec<&Node> =
            here().filter(|node| !is_source(node) && !functions.contains_key(&node.id)).collect();
        // Parameters and constants that a function uses are outputs of a package as well.
        let handed =
            here().filter(|node| functions.contains_key(&node.id)).flat_map(|node| &node.inputs);
        let handed = handed
            .map(|id| graph.node(*id))
            .filter(|node| matches!(node.op, Op::Param { .. } | Op::Constant { .. }));
        let loose = graph
            .outputs
            .iter()
            .map(|id| graph.node(*id))
            .filter(|node| at == 0 && is_source(node));
        let extra: BTreeMap<NodeId, &Node> =
            handed.chain(loose).map(|node| (node.id, node)).collect();
        if !computed.is_empty() || !extra.is_empty() {
            parts.push(Part::Segment(segment(graph, &computed, &extra, &used_by)));
        }
        for node in here() {
            if let Some(function) = functions.get(&node.id) {
                let shapes = node.inputs.iter().map(|id| graph.node(*id).shape.clone()).collect();
                let function = Arc::clone(function);
                parts.push(Part::Host(HostNode { node: node.clone(), shapes, function }));
            }
        }
    }
    parts
}

/// The users of each node; `None` represents the outputs of the graph.
fn uses(graph: &Graph) -> HashMap<NodeId, Vec<Option<NodeId>>> {
    let mut uses: HashMap<NodeId, Vec<Option<NodeId>>> = HashMap::new();
    for node in graph.nodes() {
        for &input in &node.inputs {
            uses.entry(input).or_default().push(Some(node.id));
        }
    }
    for &output in &graph.outputs {
        uses.entry(output).or_default().push(None);
    }
    uses
}

fn segment(
    source: &Graph,
    computed: &[&Node],
    extra: &BTreeMap<NodeId, &Node>,
    used_by: &HashMap<NodeId, Vec<Option<NodeId>>>,
) -> Segment {
    let inside: BTreeSet<NodeId> = computed.iter().map(|node| node.id).collect();
    let mut graph = Graph::new(source.name.clone());
    let mut placed: HashMap<NodeId, NodeId> = HashMap::new();
    let mut inputs = Vec::new();
    let mut place = |graph: &mut Graph, placed: &mut HashMap<NodeId, NodeId>, id: NodeId| {
        if let Some(&known) = placed.get(&id) {
            return known;
        }
        let node = source.node(id);
        let op = match &node.op {
            Op::Param { .. } | Op::Constant { .. } => node.op.clone(),
            Op::Input { name } => {
                inputs.push((name.clone(), id));
                node.op.clone()
            }
            _ => {
                let name = format!("value_{id}").replace('%', "");
                inputs.push((name.clone(), id));
                Op::Input { name }
            }
        };
        let new = graph.add_node(op, vec![], node.shape.clone());
        placed.insert(id, new);
        new
    };
    for &id in extra.keys() {
        place(&mut graph, &mut placed, id);
    }
    for node in computed {
        let given = node.inputs.iter().map(|&id| place(&mut graph, &mut placed, id)).collect();
        let new = graph.add_node(node.op.clone(), given, node.shape.clone());
        placed.insert(node.id, new);
    }
    let leaves = |id: &NodeId| {
        let uses = used_by.get(id).map(Vec::as_slice).unwrap_or_default();
        uses.iter().any(|user| user.is_none_or(|user| !inside.contains(&user)))
    };
    let outputs: Vec<NodeId> =
        inside.iter().copied().filter(leaves).chain(extra.keys().copied()).collect();
    graph.set_outputs(outputs.iter().map(|id| placed[id]).collect());
    Segment { graph, inputs, outputs }
}
