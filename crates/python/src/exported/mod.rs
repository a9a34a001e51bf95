//! Import of a `torch.export.ExportedProgram` from memory.
//!
//! The fx graph is converted to the form of torch's serializer ([`wire`]), so that the archive
//! reader handles both. Weights are not copied: their storages are borrowed, which keeps the Python
//! objects alive.
//!
//! | module | contents |
//! |---|---|
//! | `torch` | classes and functions of torch |
//! | `graph` | nodes and nested graphs |
//! | `meta` | types of values: tensors, symbolic sizes |
//! | `places` | source locations of calls |
//! | `tensors` | parameters, buffers, constants |
//! | `signature` | kinds of inputs and outputs |

mod graph;
mod meta;
mod places;
mod signature;
mod tensors;
mod torch;

use std::collections::BTreeMap;

use coremill_pt2::ExportedProgram;
use coremill_pt2::wire;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use self::graph::Serializer;
pub(crate) use self::tensors::BorrowedTensor;
use self::tensors::Tensors;
use self::torch::Torch;
use crate::error;

/// An imported program.
pub(crate) struct ImportedProgram {
    pub(crate) program: ExportedProgram,
    /// Tensors whose memory is borrowed, with their versions.
    pub(crate) lent: Vec<BorrowedTensor>,
}

/// Returns true for a `torch.export` program. Does not import torch, since such a program implies
/// that it is imported.
pub(crate) fn is_program(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let modules = object.py().import("sys")?.getattr("modules")?;
    let module = modules.call_method1(intern!(modules.py(), "get"), ("torch.export",))?;
    if module.is_none() {
        return Ok(false);
    }
    object.is_instance(&module.getattr(intern!(module.py(), "ExportedProgram"))?)
}

/// Parts of a program to import.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Extent {
    /// A complete program without delegate calls.
    Whole,
    /// The calls, without the pytree structure of inputs and outputs.
    Calls,
    /// The calls of a program that may contain delegate calls.
    Divided,
}

/// Imports a program.
pub(crate) fn take(program: &Bound<'_, PyAny>, extent: Extent) -> PyResult<ImportedProgram> {
    let py = program.py();
    let torch = Torch::of(py)?;
    let mut serializer = Serializer::new(&torch, extent == Extent::Divided);
    let module = program.getattr(intern!(program.py(), "graph_module"))?;
    let graph = serializer.graph(&module)?;
    let signature = program.getattr(intern!(program.py(), "graph_signature"))?;
    let range_constraints = ranges(&program.getattr(intern!(program.py(), "range_constraints"))?)?;
    let (calls, namedtuples) = match extent {
        Extent::Whole => signature::module_calls(program)?,
        Extent::Calls | Extent::Divided => Default::default(),
    };

    let mut verifiers = Vec::new();
    for verifier in program.getattr(intern!(program.py(), "verifiers"))?.try_iter()? {
        verifiers.push(verifier?.getattr("dialect")?.extract()?);
    }
    let guards = match program.getattr_opt(intern!(program.py(), "_guards_code"))? {
        Some(guards) => guards.extract::<Option<Vec<String>>>()?.unwrap_or_default(),
        None => Vec::new(),
    };
    let written = wire::ExportedProgram {
        graph_module: wire::GraphModule {
            graph,
            signature: signature::signature(&signature)?,
            module_call_graph: calls,
            metadata: BTreeMap::new(),
            treespec_namedtuple_fields: namedtuples,
        },
        opset_version: BTreeMap::new(),
        range_constraints,
        schema_version: wire::SchemaVersion { major: 8, minor: 20 },
        verifiers,
        dialect: None,
        torch_version: Some(torch.version()?),
        guards_code: guards,
    };
    let mut tensors = Tensors::new(&torch);
    tensors.of_program(program, &written.graph_module.signature)?;
    let samples = match program.getattr_opt(intern!(program.py(), "example_inputs"))? {
        Some(samples) => tensors.samples(&samples),
        None => None,
    };
    let (stored, lent) = tensors.finish();
    // A subgraph may be deeply nested, and the reader recurses.
    let program = ExportedProgram::from_parts(written, stored, samples);
    Ok(ImportedProgram {
        program: program.map_err(|failure| error::of_archive(py, &failure))?,
        lent,
    })
}

fn ranges(constraints: &Bound<'_, PyAny>) -> PyResult<BTreeMap<String, wire::RangeConstraint>> {
    let mut ranges = BTreeMap::new();
    for pair in constraints.call_method0(intern!(constraints.py(), "items"))?.try_iter()? {
        let (key, range): (Bound<'_, PyAny>, Bound<'_, PyAny>) = pair?.extract()?;
        let range = wire::RangeConstraint {
            min_val: bound(&range.getattr(intern!(range.py(), "lower"))?)?,
            max_val: bound(&range.getattr(intern!(range.py(), "upper"))?)?,
        };
        ranges.insert(key.str()?.to_string(), range);
    }
    Ok(ranges)
}

/// A bound of a range, `None` if infinite.
fn bound(value: &Bound<'_, PyAny>) -> PyResult<Option<i64>> {
    if !value
        .getattr(intern!(value.py(), "is_Integer"))
        .is_ok_and(|is| is.is_truthy().unwrap_or(false))
    {
        return Ok(None);
    }
    // Values beyond 64 bits do not bound a size.
    Ok(value.call_method0(intern!(value.py(), "__int__"))?.extract().ok())
}

/// The items of a tuple or list.
fn items<'py>(object: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, PyAny>>> {
    match object.cast::<PyTuple>() {
        Ok(tuple) => Ok(tuple.iter().collect()),
        Err(_) => object.try_iter()?.collect(),
    }
}
