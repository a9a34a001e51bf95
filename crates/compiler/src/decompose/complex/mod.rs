//! Complex numbers as pairs of real tensors.
//!
//! Neither Core ML nor ExecuTorch's programs have complex tensors. Before a program is lowered or partitioned, every
//! call with complex inputs or outputs is rewritten to real calls. Fourier transforms are rewritten to matrix
//! products and convolutions. A stored complex tensor becomes two strided views of the same data.
//!
//! | module | holds |
//! |---|---|
//! | `arithmetic` | arithmetic and matrix products |
//! | `apart` | operators applied to each part |
//! | `functions` | elementary functions |
//! | `fourier` | Fourier transforms |

mod apart;
mod arithmetic;
mod fourier;
mod functions;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use coremill_pt2::{
    Argument, ExportedProgram, Graph, InputKind, Meta, Node, Output, OutputKind, Schema,
    StoredValue, Target, ValueId, operators,
};

use super::call::{Call, Results, Tensor, calling, given, meta, target};
use super::dtype::is_complex;
use super::{Frame, Rewrite, TargetOps};
use crate::error::{LoweringError, Result, UnsupportedOp, refuse};
use crate::kernels::kernel;
use crate::parts::{part_of, stored_parts};

/// A program without complex arithmetic.
#[derive(Clone, Debug)]
pub struct ComplexLowered {
    /// The program. Its only complex values are outputs, created by `aten.complex` calls at the end.
    pub program: ExportedProgram,
    /// For each node of the graph, the index of the node it was derived from.
    pub sources: Vec<usize>,
    /// Errors by name of the calls that could not be rewritten. These calls, and all calls that depend on them, are
    /// left unchanged.
    pub refused: HashMap<String, LoweringError>,
}

/// Allows any operator, as unsupported ones are decomposed later.
struct AllowAll;

impl TargetOps for AllowAll {
    fn has(&mut self, _: &Target) -> bool {
        true
    }

    fn lacks(&self, operator: &str) -> LoweringError {
        LoweringError::new(format!("`{operator}` is unknown"))
    }

    fn schema(&self, target: &Target) -> Option<Arc<Schema>> {
        kernel(target)
    }
}

/// Rewrite of a call, looked up by the operator without its overload.
type Rule = fn(&mut Call<'_>) -> Results;

/// Removes complex numbers from a program and its nested graphs. Returns `None` if there are none.
pub fn pairs(program: &ExportedProgram) -> Result<Option<ComplexLowered>> {
    if !program.graph.nodes.iter().any(|node| is_involved(&program.graph, node)) {
        return Ok(None);
    }
    let mut program = program.clone();
    let tables = [apart::RULES, arithmetic::RULES, functions::RULES].into_iter().flatten();
    let rules = tables.flat_map(|(names, rule)| names.iter().map(|name| (*name, *rule)));
    let mut pairing = Pairing {
        rewrite: Rewrite::new(Box::new(AllowAll), std::mem::take(&mut program.symbols)),
        rules: rules.collect(),
        refused: HashMap::new(),
    };
    let mut graph = std::mem::take(&mut program.graph);
    let nodes = std::mem::take(&mut graph.nodes);
    let mut frame = Frame::of(graph);
    split_weights(&mut program, &mut frame)?;
    pairing.graph(&mut frame, nodes);
    pairing.join_outputs(&mut frame)?;
    let Pairing { rewrite, refused, .. } = pairing;
    program.symbols = rewrite.into_symbols();
    let sources = std::mem::take(&mut frame.sources);
    frame.store(&mut program);
    Ok(Some(ComplexLowered { program, sources, refused }))
}

struct Pairing {
    rewrite: Rewrite,
    rules: HashMap<&'static str, Rule>,
    refused: HashMap<String, LoweringError>,
}

impl Pairing {
    fn graph(&mut self, frame: &mut Frame, nodes: Vec<Node>) {
        // Results of calls that were left unchanged.
        let mut lost: HashSet<ValueId> = HashSet::new();
        for (index, mut node) in nodes.into_iter().enumerate() {
            frame.resolve(&mut node);
            if !is_involved(&frame.graph, &node) {
                frame.push(index, vec![node]);
                continue;
            }
            let mut is_lost = false;
            node.for_each_use(&mut |id| is_lost |= lost.contains(&id));
            let made = if is_lost { None } else { Some(self.node(frame, &node)) };
            let made = match made {
                Some(Ok(made)) => made,
                left => {
                    if let Some(Err(refusal)) = left {
                        self.refused.insert(node.name.clone(), refusal);
                    }
                    lost.extend(node.defined().filter(|id| is_complex_value(&frame.graph, *id)));
                    vec![node]
                }
            };
            frame.push(index, made);
        }
        frame.resolve_outputs();
    }

    /// Rewrites a call to real calls.
    fn node(&mut self, frame: &mut Frame, node: &Node) -> Result<Vec<Node>> {
        if let Target::HigherOrder(_) = node.target {
            return self.higher_order(frame, node.clone());
        }
        let by_name = self.rules.get(base(&node.target).as_str()).copied();
        let transform = || fourier::rule(&node.target);
        let by_table = || apart::rule(operators::of(&node.target));
        let Some(rule) = by_name.or_else(transform).or_else(by_table) else {
            refuse!("`{}` is not supported for complex numbers", node.target);
        };
        let mut call = Call::new(&mut self.rewrite, frame, node);
        let results = rule(&mut call)?;
        call.finish(results)
    }

    /// Passes pairs through control flow: in its operands and in the inputs and outputs of its graphs.
    fn higher_order(&mut self, frame: &mut Frame, mut node: Node) -> Result<Vec<Node>> {
        for argument in &mut node.arguments {
            match argument {
                Argument::Graph(inner) => {
                    let mut graph = std::mem::take(&mut inner.graph);
                    let nodes = std::mem::take(&mut graph.nodes);
                    let mut own = Frame::nested(graph);
                    for input in std::mem::take(&mut own.graph.inputs) {
                        let pair = match input {
                            Argument::Value(id) => own.new_pair(id)?,
                            _ => None,
                        };
                        own.graph.inputs.extend(match pair {
                            Some(parts) => parts.map(|part| part.argument()).to_vec(),
                            None => vec![input],
                        });
                    }
                    self.graph(&mut own, nodes);
                    let mut outputs = std::mem::take(&mut own.graph.outputs);
                    own.flatten(&mut outputs)?;
                    inner.graph = Graph { outputs, ..own.graph };
                }
                Argument::List(items) => frame.flatten(items)?,
                _ => {}
            }
        }
        let mut outputs = Vec::with_capacity(node.outputs.len());
        for output in std::mem::take(&mut node.outputs) {
            let pair = match &output {
                Output::Value(id) => frame.new_pair(*id)?,
                _ => None,
            };
            match pair {
                Some(parts) => outputs.extend(parts.map(|part| Output::Value(part.id))),
                None => outputs.push(output),
            }
        }
        node.outputs = outputs;
        Ok(vec![node])
    }

    /// Joins pairs that are program outputs to complex numbers.
    fn join_outputs(&mut self, frame: &mut Frame) -> Result<()> {
        for output in frame.graph.outputs.clone() {
            let Argument::Value(id) = output else { continue };
            let Some([real, imaginary]) = frame.pairs.remove(&id) else { continue };
            let makes = |node: &Node| node.defined().any(|made| made == real.id);
            let made = frame.graph.nodes.iter().position(makes);
            let schema = self.rewrite.schemas.find("aten", "complex", "default");
            let Ok(Some(schema)) = schema else {
                refuse!("the schema of `aten.complex` is missing")
            };
            let given = given!(real = real, imag = imaginary);
            let origin = made.and_then(|at| frame.graph.nodes.get(at));
            let node = Node {
                name: frame.value(id).name.clone(),
                outputs: vec![Output::Value(id)],
                origin: origin.map(|node| node.origin.clone()).unwrap_or_default(),
                ..calling(target("aten.complex.default"), schema, given)?
            };
            let source = made.and_then(|at| frame.sources.get(at)).copied().unwrap_or_default();
            frame.push(source, vec![node]);
        }
        Ok(())
    }
}

impl Frame {
    /// New values for the parts of a complex value; `None` if it is real.
    fn new_pair(&mut self, id: ValueId) -> Result<Option<[Tensor; 2]>> {
        let Meta::Tensor(known) = &self.value(id).meta else { return Ok(None) };
        let Some(dtype) = part_of(known.dtype) else { return Ok(None) };
        let (sizes, name) = (known.sizes.clone(), self.value(id).name.clone());
        let mut part = |ending: &str| -> Result<Tensor> {
            let known = Meta::Tensor(meta(dtype, sizes.clone()));
            let id = self.define(&format!("{name}_{ending}"), known)?;
            Ok(Tensor { id, dtype, sizes: sizes.clone() })
        };
        let pair = [part("real")?, part("imaginary")?];
        self.pairs.insert(id, pair.clone());
        Ok(Some(pair))
    }

    /// Replaces complex values by their parts.
    fn flatten(&self, items: &mut Vec<Argument>) -> Result<()> {
        for item in std::mem::take(items) {
            match item {
                Argument::Value(id) if is_complex_value(&self.graph, id) => {
                    let Some(parts) = self.pairs.get(&id) else {
                        return Err(given(&self.value(id).name));
                    };
                    items.extend(parts.iter().map(Tensor::argument));
                }
                item => items.push(item),
            }
        }
        Ok(())
    }
}

/// Error for a complex value without parts.
fn given(name: &str) -> LoweringError {
    LoweringError::new(format!("`{name}` is complex; Core ML and ExecuTorch have real inputs only"))
        .hint("pass the real and imaginary parts as two inputs")
}

/// Operator without overload, such as `aten.add`.
fn base(target: &Target) -> String {
    match target {
        Target::Operator { namespace, name, .. } => format!("{namespace}.{name}"),
        other => other.to_string(),
    }
}

fn is_complex_value(graph: &Graph, id: ValueId) -> bool {
    matches!(&graph.value(id).meta, Meta::Tensor(meta) if is_complex(meta.dtype))
}

/// Whether a call has complex inputs or outputs.
pub(crate) fn has_complex(graph: &Graph, node: &Node) -> bool {
    let mut found = node.defined().any(|id| is_complex_value(graph, id));
    node.for_each_use(&mut |id| found |= is_complex_value(graph, id));
    found
}

/// Whether a call or its nested graphs involve complex numbers or Fourier transforms.
fn is_involved(graph: &Graph, node: &Node) -> bool {
    let is_inside = |argument: &Argument| match argument {
        Argument::Graph(inner) => {
            inner.graph.nodes.iter().any(|node| is_involved(&inner.graph, node))
        }
        _ => false,
    };
    has_complex(graph, node)
        || fourier::rule(&node.target).is_some()
        || node.arguments.iter().any(is_inside)
}

/// Replaces each complex weight by two real weights.
fn split_weights(program: &mut ExportedProgram, frame: &mut Frame) -> Result<()> {
    let mut inputs = Vec::with_capacity(frame.graph.inputs.len());
    let mut kinds = Vec::with_capacity(program.inputs.len());
    let given = std::mem::take(&mut frame.graph.inputs);
    for (input, kind) in given.into_iter().zip(std::mem::take(&mut program.inputs)) {
        let split = match (&input, &kind) {
            (
                Argument::Value(id),
                InputKind::Parameter(name)
                | InputKind::TensorConstant(name)
                | InputKind::Buffer { name, .. },
            ) if is_complex_value(&frame.graph, *id) && program.written(name).is_none() => {
                let stored = program.tensors.get(name);
                let parts = stored.map(|stored| stored_parts(name, stored)).transpose()?;
                parts.flatten().map(|parts| (*id, name.clone(), parts))
            }
            _ => None,
        };
        let Some((id, name, parts)) = split else {
            inputs.push(input);
            kinds.push(kind);
            continue;
        };
        let Some(pair) = frame.new_pair(id)? else { continue };
        for ((stored, ending), part) in parts.into_iter().zip(["real", "imaginary"]).zip(pair) {
            let name = format!("{name}.{ending}");
            program.tensors.insert(name.clone(), StoredValue::Tensor(stored));
            inputs.push(part.argument());
            kinds.push(InputKind::TensorConstant(name));
        }
    }
    frame.graph.inputs = inputs;
    program.inputs = kinds;
    Ok(())
}

/// Errors for complex outputs, which ExecuTorch's programs cannot have.
pub(crate) fn complex_outputs(program: &ExportedProgram) -> Vec<UnsupportedOp> {
    let mut refused = Vec::new();
    for (output, kind) in program.graph.outputs.iter().zip(&program.outputs) {
        let Argument::Value(id) = output else { continue };
        if !is_complex_value(&program.graph, *id) {
            continue;
        }
        let name = &program.graph.value(*id).name;
        let what = match kind {
            OutputKind::User => "is a complex result",
            _ => "is complex and is written to a buffer",
        };
        let reason = format!("`{name}` {what}; ExecuTorch does not support complex tensors");
        refused.push(UnsupportedOp {
            node: name.clone(),
            operator: "output".to_owned(),
            refusal: LoweringError::new(reason).hint("return its `torch.view_as_real`"),
            module: None,
            source: None,
        });
    }
    refused
}

/// A real or complex number.
#[derive(Clone)]
struct Parts {
    real: Tensor,
    /// `None` for zero.
    imaginary: Option<Tensor>,
}

impl Call<'_> {
    /// Real and imaginary part of an argument; numbers become tensors.
    fn parts(&mut self, name: &str) -> Result<Parts> {
        let argument = self.argument(name)?;
        self.parts_of(name, argument)
    }

    fn parts_of(&mut self, name: &str, argument: &Argument) -> Result<Parts> {
        match argument {
            Argument::Value(id) if let Some([real, imaginary]) = self.frame.pairs.get(id) => {
                Ok(Parts { real: real.clone(), imaginary: Some(imaginary.clone()) })
            }
            Argument::Value(id) if is_complex_value(&self.frame.graph, *id) => {
                Err(given(&self.frame.value(*id).name))
            }
            Argument::Complex(real, imaginary) => {
                let dtype = self.part_dtype();
                let mut part = |value| self.full(Vec::new(), Argument::Float(value), dtype);
                Ok(Parts { real: part(*real)?, imaginary: Some(part(*imaginary)?) })
            }
            argument => Ok(Parts { real: self.tensor_of(name, argument)?, imaginary: None }),
        }
    }

    /// Real and imaginary part of an argument, with explicit zeros.
    fn both_parts(&mut self, name: &str) -> Result<[Tensor; 2]> {
        let argument = self.argument(name)?;
        self.both_parts_of(name, argument)
    }

    fn both_parts_of(&mut self, name: &str, argument: &Argument) -> Result<[Tensor; 2]> {
        let Parts { real, imaginary } = self.parts_of(name, argument)?;
        let imaginary = match imaginary {
            Some(imaginary) => imaginary,
            None => self.zeros(&real)?,
        };
        Ok([real, imaginary])
    }

    fn zeros(&mut self, x: &Tensor) -> Result<Tensor> {
        self.full(x.sizes.clone(), Argument::Float(0.0), x.dtype)
    }

    /// Element type of the parts of the result, or of the first argument if the result is unknown.
    fn part_dtype(&self) -> coremill_pt2::ScalarType {
        let noted = self.result(0).ok().map(|noted| noted.dtype);
        let first = self.at_hand.first().map(|tensor| tensor.dtype);
        let part = noted.map(|noted| part_of(noted).unwrap_or(noted));
        part.or(first).unwrap_or(coremill_pt2::ScalarType::Float32)
    }

    /// Returns a complex result with the shape that torch recorded.
    fn pair(&mut self, real: Tensor, imaginary: Tensor) -> Results {
        let dtype = self.part_dtype();
        let sizes = self.result(0)?.sizes.clone();
        let mut parts = Vec::with_capacity(2);
        for part in [real, imaginary] {
            let part = self.cast(&part, dtype)?;
            let same = part.rank() == sizes.len()
                && part.sizes.iter().zip(&sizes).all(|(own, noted)| {
                    own == noted || own.fixed().is_none() || noted.fixed().is_none()
                });
            parts.push(if same { part } else { self.expand(&part, sizes.clone())? });
        }
        let [real, imaginary] = <[Tensor; 2]>::try_from(parts)
            .map_err(|_| LoweringError::new("a pair must have two parts"))?;
        Ok(vec![super::call::RewriteResult::Pair(Box::new([real, imaginary]))])
    }
}
