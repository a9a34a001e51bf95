//! Execution plan of a graph with static shapes: packages and functions of the caller in order.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use coremill_graph::{Array, Device, Error, Executable, Input, Opset, Param, Precision, Session};
use rlx_ir::{DType, Graph, NodeId, Op, OpKind};

use crate::dispatch::lower;
use crate::divide::{HostCallbacks, HostNode, Part, Segment, divide, is_divided};
use crate::element::{element_type, is_float};
use crate::error::failure;
use crate::site::{Blocks, Sizes};

/// Target release of lowering: the first with blockwise compressed constants.
const TARGET: Opset = Opset::Ios18;

/// Compile options of graphs.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) device: Device,
    pub(crate) precision: Precision,
    pub(crate) hosts: HostCallbacks,
}

#[derive(Debug)]
pub(crate) struct Plan {
    steps: Vec<Step>,
    /// Inputs of the graph by name.
    inputs: HashMap<String, NodeId>,
    outputs: Vec<NodeId>,
}

enum Step {
    Package(Box<Package>),
    Host(HostNode),
}

impl std::fmt::Debug for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Step::Package(package) => f.debug_tuple("Package").field(&package.names).finish(),
            Step::Host(host) => f.debug_tuple("Host").field(&host.id()).finish(),
        }
    }
}

struct Package {
    executable: Executable,
    /// Names, element types and nodes of the inputs.
    inputs: Vec<(String, DType, NodeId)>,
    /// Names and nodes of the outputs.
    names: Vec<String>,
    outputs: Vec<NodeId>,
    blocks: Blocks,
    /// Parameters that are only numbers; in these, bytes of codes are not allowed.
    plain: HashSet<String>,
}

impl Plan {
    /// Returns a plan for a graph with static shapes.
    pub(crate) fn new(graph: &Graph, setting: &Setting) -> Result<Plan, Error> {
        let steps = if is_divided(graph, &setting.hosts) {
            let parts = divide(graph, &setting.hosts).into_iter().map(|part| match part {
                Part::Host(host) => Ok(Step::Host(host)),
                Part::Segment(Segment { graph, inputs, outputs }) => {
                    Package::build(&graph, &inputs, outputs, setting, &[])
                }
            });
            parts.collect::<Result<Vec<_>, Error>>()?
        } else {
            vec![Package::build(graph, &inputs(graph), graph.outputs.clone(), setting, &[])?]
        };
        Ok(Plan::of(graph, steps))
    }

    /// Returns a single package for all sizes of the dynamic dimensions.
    pub(crate) fn flexible(graph: &Graph, setting: &Setting, sizes: &Sizes) -> Result<Plan, Error> {
        if is_divided(graph, &setting.hosts) {
            return Err(failure("the graph has operations that run outside packages"));
        }
        let package = Package::build(graph, &inputs(graph), graph.outputs.clone(), setting, sizes)?;
        Ok(Plan::of(graph, vec![package]))
    }

    fn of(graph: &Graph, steps: Vec<Step>) -> Plan {
        let inputs = inputs(graph).into_iter().collect();
        Plan { steps, inputs, outputs: graph.outputs.clone() }
    }

    fn packages(&mut self) -> impl Iterator<Item = &mut Package> {
        self.steps.iter_mut().filter_map(|step| match step {
            Step::Package(package) => Some(&mut **package),
            Step::Host(_) => None,
        })
    }

    /// Sets a parameter at all uses, to the bytes of a stored parameter.
    pub(crate) fn set(&mut self, name: &str, stored: &Param, dtype: DType) -> Result<(), Error> {
        let bytes = stored.bytes();
        let mut known = false;
        let mut unknown = None;
        for package in self.packages() {
            match package.executable.param_shape(name) {
                Ok(shape) => {
                    if matches!(dtype, DType::I8 | DType::U8) && package.plain.contains(name) {
                        return Err(failure(format!(
                            "parameter `{name}` is declared as floats, and no operation that uses it dequantizes \
                             codes of `{dtype:?}`: pass floats, or use it in an operation that does"
                        )));
                    }
                    let param = match package.blocks.get(name) {
                        Some((scheme, shape)) => scheme.param(shape, stored)?,
                        None => Param::elements(element_type(dtype)?, shape, bytes.clone())?,
                    };
                    package.executable.set(name, param)?;
                    known = true;
                }
                Err(error) => unknown = Some(error),
            }
        }
        match unknown {
            Some(error) if !known => Err(error),
            _ => Ok(()),
        }
    }

    pub(crate) fn prepare(&mut self) -> Result<(), Error> {
        self.packages().try_for_each(|package| package.executable.prepare())
    }

    pub(crate) fn save(&mut self, path: &Path) -> Result<(), Error> {
        let count = self.steps.len();
        match &mut self.steps[..] {
            [Step::Package(package)] => package.executable.save(path),
            _ => Err(failure(format!(
                "the graph is divided into {count} parts, which cannot be saved as one package"
            ))),
        }
    }

    pub(crate) fn run(&mut self, inputs: &[(&str, &[f32])]) -> Result<Vec<Vec<f32>>, Error> {
        let mut values: HashMap<NodeId, Vec<f32>> = HashMap::new();
        for &(name, elements) in inputs {
            let Some(&id) = self.inputs.get(name) else {
                return Err(failure(format!("the graph has no input `{name}`")));
            };
            values.insert(id, elements.to_vec());
        }
        for step in &mut self.steps {
            match step {
                Step::Package(package) => package.run(&mut values)?,
                Step::Host(host) => {
                    let result = host.run(&values)?;
                    values.insert(host.id(), result);
                }
            }
        }
        let missing = || failure("an output was not computed");
        self.outputs.iter().map(|id| values.get(id).cloned().ok_or_else(missing)).collect()
    }
}

/// Inputs of a graph by name.
fn inputs(graph: &Graph) -> Vec<(String, NodeId)> {
    let nodes = graph.nodes().iter();
    nodes
        .filter_map(|node| match &node.op {
            Op::Input { name } => Some((name.clone(), node.id)),
            _ => None,
        })
        .collect()
}

/// Parameters that are declared as floats and that no operation uses as codes.
fn plain(graph: &Graph) -> HashSet<String> {
    let coded: HashSet<NodeId> = graph
        .nodes()
        .iter()
        .filter(|node| takes_codes(node.op.kind()))
        .flat_map(|node| node.inputs.iter().copied())
        .collect();
    let nodes = graph.nodes().iter();
    nodes
        .filter_map(|node| match &node.op {
            Op::Param { name } if is_float(node.shape.dtype()) && !coded.contains(&node.id) => {
                Some(name.clone())
            }
            _ => None,
        })
        .collect()
}

fn takes_codes(kind: OpKind) -> bool {
    matches!(
        kind,
        OpKind::Dequantize
            | OpKind::DequantMatMul
            | OpKind::DequantGroupedMatMul
            | OpKind::DequantGroupedMatMulMlx
            | OpKind::DequantMoEWeights
            | OpKind::QMatMul
            | OpKind::QConv2d
            | OpKind::ScaledMatMul
            | OpKind::ScaledGroupedMatMul
            | OpKind::ScaledDequantize
            | OpKind::SynthMatMul
            | OpKind::SynthMatMulBackward
            | OpKind::SynthReconstruct
            | OpKind::Custom
    )
}

impl Package {
    fn build(
        graph: &Graph,
        inputs: &[(String, NodeId)],
        outputs: Vec<NodeId>,
        setting: &Setting,
        sizes: &Sizes,
    ) -> Result<Step, Error> {
        let lowered = lower(graph, TARGET, sizes)?;
        let session = Session::new(setting.device).precision(setting.precision);
        let ids: HashMap<&str, NodeId> =
            inputs.iter().map(|(name, id)| (name.as_str(), *id)).collect();
        let inputs = lowered.inputs.into_iter().filter_map(|(name, dtype)| {
            let id = *ids.get(name.as_str())?;
            Some((name, dtype, id))
        });
        Ok(Step::Package(Box::new(Package {
            inputs: inputs.collect(),
            executable: session.compile(&lowered.graph)?,
            names: lowered.outputs,
            outputs,
            blocks: lowered.blocks,
            plain: plain(graph),
        })))
    }

    fn run(&mut self, values: &mut HashMap<NodeId, Vec<f32>>) -> Result<(), Error> {
        let mut given: Vec<(&str, Box<dyn Input + '_>)> = Vec::with_capacity(self.inputs.len());
        for (name, dtype, id) in &self.inputs {
            // The session reports missing inputs.
            let Some(elements) = values.get(id) else { continue };
            given.push(match is_float(*dtype) {
                true => (name, Box::new(elements.clone())),
                false => (name, Box::new(elements.iter().map(|&x| x as i32).collect::<Vec<i32>>())),
            });
        }
        let given: Vec<(&str, &dyn Input)> =
            given.iter().map(|(name, input)| (*name, &**input)).collect();
        let results = self.executable.run(&given)?;
        let floats = |array: &Array| match (array.as_floats(), array.as_ints()) {
            (Some(floats), _) => floats.to_vec(),
            (_, ints) => ints.unwrap_or_default().iter().map(|&x| x as f32).collect(),
        };
        for (name, id) in self.names.iter().zip(&self.outputs) {
            if let Some(array) = results.array(name) {
                values.insert(*id, floats(array));
            }
        }
        Ok(())
    }
}
