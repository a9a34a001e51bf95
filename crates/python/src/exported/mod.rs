//! Takes a `torch.export.ExportedProgram` over in memory.
//!
//! The fx graph becomes what torch's serializer would write of it ([`wire`]), which the reader of archives then takes: one
//! reader for both. Weights are not copied: their storages are lent, and keep their Python objects alive.
//!
//! | module | holds |
//! |---|---|
//! | `torch` | the classes and functions of torch that are asked for |
//! | `graph` | nodes, and graphs nested in them |
//! | `meta` | types of values: tensors, symbolic sizes |
//! | `places` | where in the model calls come from |
//! | `tensors` | parameters, buffers, constants |
//! | `signature` | what inputs and outputs are |

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

/// A program that was taken over.
pub(crate) struct ImportedProgram {
    pub(crate) program: ExportedProgram,
    /// The tensors whose memory is lent, with the versions that they had.
    pub(crate) lent: Vec<BorrowedTensor>,
}

/// Whether this is a program of `torch.export`. Does not import torch: whoever has such a program did.
pub(crate) fn is_program(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let modules = object.py().import("sys")?.getattr("modules")?;
    let module = modules.call_method1(intern!(modules.py(), "get"), ("torch.export",))?;
    if module.is_none() {
        return Ok(false);
    }
    object.is_instance(&module.getattr(intern!(module.py(), "ExportedProgram"))?)
}

/// What is taken over.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Extent {
    /// All of a program that calls no delegates.
    Whole,
    /// What its calls are, and not how its inputs and outputs are grouped for who calls it.
    Calls,
    /// The same of a program of which parts may have been delegated.
    Divided,
}

/// Takes a program over.
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
    // A subgraph can be deep, and the reader goes as deep.
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

/// A bound of a range; infinities are none.
fn bound(value: &Bound<'_, PyAny>) -> PyResult<Option<i64>> {
    if !value
        .getattr(intern!(value.py(), "is_Integer"))
        .is_ok_and(|is| is.is_truthy().unwrap_or(false))
    {
        return Ok(None);
    }
    // What does not fit is not a bound of a size.
    Ok(value.call_method0(intern!(value.py(), "__int__"))?.extract().ok())
}

/// The items of a tuple or a list.
fn items<'py>(object: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, PyAny>>> {
    match object.cast::<PyTuple>() {
        Ok(tuple) => Ok(tuple.iter().collect()),
        Err(_) => object.try_iter()?.collect(),
    }
}
