//! Complex numbers as pairs of real tensors.
//!
//! Neither ExecuTorch's programs nor the edges of delegates hold complex tensors. Before a program is divided, every
//! call that takes or gives some is rewritten to calls of real ones; and so are Fourier transforms, which become
//! products with matrices. What the program stores becomes two tensors, each a view of every second element.
//!
//! | module | holds |
//! |---|---|
//! | `arithmetic` | what is done to numbers, one by one or as matrices |
//! | `apart` | what is done to both parts alike |
//! | `fourier` | transforms |

mod apart;
mod arithmetic;
mod fourier;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use coremill_pt2::{
    Argument, ExportedProgram, Graph, InputKind, Meta, Node, OutputKind, Schema, Size, Stored,
    Target, ValueId, operators,
};

use super::call::{Call, Results, Tensor, meta};
use super::dtype::is_complex;
use super::{Frame, Natives, Rewrite};
use crate::error::{Error, Refusal, Refused, refuse};
use crate::lower::{part_of, stored_parts};
use crate::portable::kernel;

/// A program without complex numbers.
#[derive(Clone, Debug)]
pub struct Paired {
    /// The program.
    pub program: ExportedProgram,
    /// For each node of the program's graph the index of the node that it was made of.
    pub sources: Vec<usize>,
}

/// What pairs are written in: any operator, as whoever performs the program takes apart what it does not have.
struct Anything;

impl Natives for Anything {
    fn has(&mut self, _: &Target) -> bool {
        true
    }

    fn lacks(&self, operator: &str) -> Refusal {
        Refusal::new(format!("`{operator}` is not known"))
    }

    fn schema(&self, target: &Target) -> Option<Arc<Schema>> {
        kernel(target)
    }
}

/// What becomes of a call, by its operator without the overload.
type Rule = fn(&mut Call<'_>) -> Results;

/// Takes complex numbers out of a program; none if it has none. Graphs nested in it are left as they are.
///
/// # Errors
/// All calls that are not written with real numbers, each with the reason.
pub fn pairs(program: &ExportedProgram) -> Result<Option<Paired>, Error> {
    let tables = [apart::RULES, arithmetic::RULES, fourier::RULES];
    let rules: HashMap<&str, Rule> = tables.into_iter().flatten().copied().collect();
    let graph = &program.graph;
    let is_involved = |node: &Node| has_complex(graph, node) || fourier::is_transform(&node.target);
    if !graph.nodes.iter().any(is_involved) {
        return Ok(None);
    }
    let mut program = program.clone();
    let symbols = std::mem::take(&mut program.symbols);
    let mut rewrite = Rewrite::new(Box::new(Anything), symbols);
    let mut all_refused = Vec::new();
    let mut given = std::mem::take(&mut program.graph);
    let nodes = std::mem::take(&mut given.nodes);
    let mut frame = Frame::of(given);
    split_weights(&mut program, &mut frame).map_err(Error::Program)?;
    let mut lost: HashSet<ValueId> = HashSet::new();
    for (index, mut node) in nodes.into_iter().enumerate() {
        frame.resolve(&mut node);
        if !is_involved_now(&frame, &node) {
            frame.push(index, vec![node]);
            continue;
        }
        // What a call that is refused would give is not there; one reason is enough.
        let mut is_lost = false;
        node.for_each_use(&mut |id| is_lost |= lost.contains(&id));
        if is_lost {
            lost.extend(node.defined());
            continue;
        }
        let mut call = Call::new(&mut rewrite, &mut frame, &node);
        let by_name = rules.get(base(&node.target).as_str()).copied();
        let made = match by_name.or_else(|| apart::rule(operators::of(&node.target))) {
            Some(rule) => rule(&mut call).and_then(|results| call.finish(results)),
            None => Err(Refusal::new(format!(
                "`{}` of complex numbers is not written with real ones, and ExecuTorch's programs hold no others",
                node.target
            ))),
        };
        match made {
            Ok(made) => frame.push(index, made),
            Err(refusal) => {
                lost.extend(node.defined());
                all_refused.push(Refused::of(&node, refusal));
            }
        }
    }
    frame.resolve_outputs();
    if all_refused.is_empty() {
        refuse_outputs(&program, &frame, &mut all_refused);
    }
    if !all_refused.is_empty() {
        return Err(Error::Refused(all_refused));
    }
    program.symbols = rewrite.into_symbols();
    let sources = std::mem::take(&mut frame.sources);
    frame.store(&mut program);
    Ok(Some(Paired { program, sources }))
}

/// The operator without its overload: `aten.add`.
fn base(target: &Target) -> String {
    match target {
        Target::Operator { namespace, name, .. } => format!("{namespace}.{name}"),
        other => other.to_string(),
    }
}

fn is_complex_value(graph: &Graph, id: ValueId) -> bool {
    matches!(&graph.value(id).meta, Meta::Tensor(meta) if is_complex(meta.dtype))
}

/// Whether a call takes or gives complex numbers.
pub(crate) fn has_complex(graph: &Graph, node: &Node) -> bool {
    let mut found = node.defined().any(|id| is_complex_value(graph, id));
    node.for_each_use(&mut |id| found |= is_complex_value(graph, id));
    found
}

fn is_involved_now(frame: &Frame, node: &Node) -> bool {
    has_complex(&frame.graph, node) || fourier::is_transform(&node.target)
}

/// Puts two real weights in the place of each complex one.
fn split_weights(program: &mut ExportedProgram, frame: &mut Frame) -> Result<(), Refusal> {
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
            ) if is_complex_value(&frame.graph, *id)
                && crate::partition::written(program, name).is_none() =>
            {
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
        let mut pair = Vec::with_capacity(2);
        for (part, ending) in parts.into_iter().zip(["real", "imaginary"]) {
            let name = format!("{name}.{ending}");
            let sizes: Vec<Size> =
                part.sizes.iter().map(|size| Size::Fixed(*size as i64)).collect();
            let dtype = part.dtype;
            let known = Meta::Tensor(meta(dtype, sizes.clone()));
            let id = frame.define(&frame.value(id).name.clone(), known)?;
            program.tensors.insert(name.clone(), Stored::Tensor(part));
            inputs.push(Argument::Value(id));
            kinds.push(InputKind::TensorConstant(name));
            pair.push(Tensor { id, dtype, sizes });
        }
        if let Ok(pair) = <[Tensor; 2]>::try_from(pair) {
            frame.pairs.insert(id, pair);
        }
    }
    frame.graph.inputs = inputs;
    program.inputs = kinds;
    Ok(())
}

/// Complex results cannot leave a program.
fn refuse_outputs(program: &ExportedProgram, frame: &Frame, refused: &mut Vec<Refused>) {
    for (output, kind) in frame.graph.outputs.iter().zip(&program.outputs) {
        let Argument::Value(id) = output else { continue };
        if !is_complex_value(&frame.graph, *id) {
            continue;
        }
        let name = &frame.value(*id).name;
        let what = match kind {
            OutputKind::User => "is complex, and a result",
            _ => "is complex, and is written to a buffer",
        };
        let reason = format!("`{name}` {what}; ExecuTorch's programs hold no complex tensors");
        let refusal = Refusal::new(reason).hint("return `torch.view_as_real` of it");
        refused.push(Refused {
            node: name.clone(),
            operator: "output".to_owned(),
            refusal,
            module: None,
            source: None,
        });
    }
}

/// A number, real or complex.
#[derive(Clone)]
struct Parts {
    real: Tensor,
    /// None for zeros.
    imaginary: Option<Tensor>,
}

impl Call<'_> {
    /// The parts of an argument; numbers become tensors.
    fn parts(&mut self, name: &str) -> Result<Parts, Refusal> {
        let argument = self.argument(name)?;
        self.parts_of(name, argument)
    }

    fn parts_of(&mut self, name: &str, argument: &Argument) -> Result<Parts, Refusal> {
        match argument {
            Argument::Value(id) if self.frame.pairs.contains_key(id) => {
                let [real, imaginary] = self.frame.pairs[id].clone();
                Ok(Parts { real, imaginary: Some(imaginary) })
            }
            Argument::Value(id) if is_complex_value(&self.frame.graph, *id) => {
                refuse!(
                    "`{}` is complex, and given to the program; ExecuTorch's programs hold no complex tensors",
                    self.frame.value(*id).name
                )
            }
            Argument::Complex(real, imaginary) => {
                let dtype = self.part_dtype();
                let mut part = |value| self.full(Vec::new(), Argument::Float(value), dtype);
                Ok(Parts { real: part(*real)?, imaginary: Some(part(*imaginary)?) })
            }
            argument => Ok(Parts { real: self.tensor_of(name, argument)?, imaginary: None }),
        }
    }

    /// Both parts of an argument.
    fn both_parts(&mut self, name: &str) -> Result<[Tensor; 2], Refusal> {
        let Parts { real, imaginary } = self.parts(name)?;
        let imaginary = match imaginary {
            Some(imaginary) => imaginary,
            None => self.zeros(&real)?,
        };
        Ok([real, imaginary])
    }

    fn zeros(&mut self, x: &Tensor) -> Result<Tensor, Refusal> {
        self.full(x.sizes.clone(), Argument::Float(0.0), x.dtype)
    }

    /// The type of the parts of the result, or of what is given if that is real.
    fn part_dtype(&self) -> coremill_pt2::ScalarType {
        let noted = self.result(0).ok().map(|noted| noted.dtype);
        let first = self.at_hand.first().map(|tensor| tensor.dtype);
        let part = noted.map(|noted| part_of(noted).unwrap_or(noted));
        part.or(first).unwrap_or(coremill_pt2::ScalarType::Float32)
    }

    /// A complex result, its parts with the sizes that torch noted.
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
        let [real, imaginary] =
            <[Tensor; 2]>::try_from(parts).map_err(|_| Refusal::new("a pair has two parts"))?;
        Ok(vec![super::call::Made::Pair(Box::new([real, imaginary]))])
    }
}
