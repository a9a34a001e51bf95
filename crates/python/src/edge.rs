//! Functions for ExecuTorch's partitioner and backend, used by `coremill.executorch`.

use coremill_compiler::{
    CompileSpec, EdgeDivision, EdgeProgram, LowerOptions, MethodProgram, PreprocessResult as Made,
};
use coremill_pte::coreml::Reference;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::bytes::PyBytesWriter;
use crate::error;
use crate::exported::{self, Extent};
use crate::options::constants;
use crate::program::Program;
use crate::work;

/// Compile specs: keys and values.
type Specs = Vec<(String, Vec<u8>)>;

/// A call that cannot be lowered: torch's name, operator, reason, hint, first release that supports
/// it, and the complete message.
type RefusedCall = (String, String, String, Option<String>, Option<&'static str>, String);

/// Result of preprocessing a partition.
#[pyclass(frozen, get_all, module = "coremill._native", name = "Preprocessed")]
pub(crate) struct PreprocessResult {
    data: Py<PyBytes>,
    identifier: String,
    /// Specification version of the release that the model needs.
    specification_version: i32,
    /// Maps names of operations to the debug handles of their calls.
    debug_handle_map: Option<Py<PyDict>>,
    /// Key of the data, if methods share it.
    key: String,
    /// By method, the delegate's reference to the data.
    references: Py<PyDict>,
}

/// Partitions a program. Returns the nodes of each partition, buffers that become states, calls
/// that cannot be lowered, and the names of all calls.
#[pyfunction]
#[pyo3(signature = (
    program, specs, outside, *, take_over_mutable_buffer, take_over_constant_data, lower_full_graph
))]
pub(crate) fn edge_partition(
    py: Python<'_>,
    program: &Bound<'_, PyAny>,
    specs: Specs,
    outside: Vec<String>,
    take_over_mutable_buffer: bool,
    take_over_constant_data: bool,
    lower_full_graph: bool,
) -> PyResult<(Vec<Vec<String>>, Vec<String>, Vec<RefusedCall>, Vec<String>)> {
    let options = options(py, specs, lower_full_graph)?;
    let options = LowerOptions { take_over_mutable_buffer, take_over_constant_data, ..options };
    let taken = work::held(py, || exported::take(program, Extent::Divided))?;
    let division = work::run(py, move |stage| {
        stage.set("partitioning");
        Ok(coremill_compiler::edge_partition(taken.program, &options, &outside)?)
    })?;
    let refused = refused(&division);
    let states = division.parts.iter().flat_map(|part| part.states.iter().cloned()).collect();
    let parts = division.parts.into_iter().map(|part| part.nodes).collect();
    Ok((parts, states, refused, division.calls))
}

/// Tries to lower every call of a program. Returns the calls that cannot be lowered, and the names
/// of all calls.
#[pyfunction]
#[pyo3(signature = (
    program, specs, *, take_over_mutable_buffer, take_over_constant_data, lower_full_graph
))]
pub(crate) fn edge_refused(
    py: Python<'_>,
    program: &Bound<'_, PyAny>,
    specs: Specs,
    take_over_mutable_buffer: bool,
    take_over_constant_data: bool,
    lower_full_graph: bool,
) -> PyResult<(Vec<RefusedCall>, Vec<String>)> {
    let options = options(py, specs, lower_full_graph)?;
    let options = LowerOptions { take_over_mutable_buffer, take_over_constant_data, ..options };
    let taken = work::held(py, || exported::take(program, Extent::Calls))?;
    let division = work::run(py, move |stage| {
        stage.set("partitioning");
        Ok(coremill_compiler::refused_calls(taken.program, &options)?)
    })?;
    Ok((refused(&division), division.calls))
}

/// Converts a partition, which is an edge-dialect program, to a model.
#[pyfunction]
pub(crate) fn edge_preprocess(
    py: Python<'_>,
    program: &Bound<'_, PyAny>,
    specs: Specs,
) -> PyResult<PreprocessResult> {
    let part = part(py, String::new(), program, specs)?;
    let made = work::run(py, move |stage| {
        stage.set("lowering");
        Ok(coremill_compiler::preprocess(part, PyBytesWriter::of)?)
    })?;
    preprocessed(py, made, Vec::new(), true)
}

/// Converts the partitions of several methods to one model: `(method, program, specs)`. `at` is
/// their index.
#[pyfunction]
pub(crate) fn edge_preprocess_multimethod(
    py: Python<'_>,
    parts: Vec<(String, Bound<'_, PyAny>, Specs)>,
    at: usize,
) -> PyResult<PreprocessResult> {
    let parts = parts.into_iter().map(|(method, program, specs)| part(py, method, &program, specs));
    let parts = parts.collect::<PyResult<Vec<EdgeProgram>>>()?;
    let methods = parts.iter().map(|part| part.method.clone()).collect();
    let made = work::run(py, move |stage| {
        stage.set("lowering");
        Ok(coremill_compiler::preprocess_methods(parts, at, PyBytesWriter::of)?)
    })?;
    preprocessed(py, made, methods, false)
}

/// A method of a program: its name, the program, compile specs, the operators that stay outside, whether buffers and
/// constants are taken over, and whether the full graph is lowered.
type Method<'py> = (String, Bound<'py, PyAny>, Specs, Vec<String>, bool, bool, bool);

/// Lowers exported programs to an ExecuTorch program, without ExecuTorch's own passes.
#[pyfunction]
pub(crate) fn edge_lower(
    py: Python<'_>,
    methods: Vec<Method<'_>>,
    constant_methods: &Bound<'_, PyDict>,
) -> PyResult<Program> {
    let constant_methods = constants(constant_methods)?;
    let mut lent = Vec::new();
    let mut programs = Vec::with_capacity(methods.len());
    for (name, program, specs, skip_ops, buffers, constants, full_graph) in methods {
        let options = LowerOptions {
            skip_ops,
            take_over_mutable_buffer: buffers,
            take_over_constant_data: constants,
            constant_methods: constant_methods.clone(),
            ..options(py, specs, full_graph)?
        };
        let taken = work::held(py, || exported::take(&program, Extent::Whole))?;
        lent.extend(taken.lent);
        programs.push((name, taken.program, options));
    }
    let lowered = work::run(py, move |stage| {
        stage.set("lowering");
        let mut options = Vec::with_capacity(programs.len());
        let mut named = Vec::with_capacity(programs.len());
        for (name, program, own) in programs {
            options.push(own);
            named.push((name, program));
        }
        let methods = named.into_iter().zip(&options);
        let methods =
            methods.map(|((name, program), options)| MethodProgram { name, program, options });
        Ok(coremill_compiler::lower_methods(methods.collect())?)
    })?;
    Ok(Program::new(lowered.program, lent, lowered.reports))
}

fn options(py: Python<'_>, specs: Specs, full_graph: bool) -> PyResult<LowerOptions> {
    let specs = specs.into_iter().map(|(key, value)| CompileSpec { key, value });
    let mut options = LowerOptions { full_graph, ..LowerOptions::default() };
    let applied = options.apply_specs(&specs.collect::<Vec<_>>());
    applied.map_err(|refusal| error::of_refusal(py, &refusal))?;
    Ok(options)
}

fn part(
    py: Python<'_>,
    method: String,
    program: &Bound<'_, PyAny>,
    specs: Specs,
) -> PyResult<EdgeProgram> {
    let taken = work::held(py, || exported::take(program, Extent::Whole))?;
    // A partition is lowered as a whole.
    Ok(EdgeProgram { method, program: taken.program, options: options(py, specs, true)? })
}

fn preprocessed(
    py: Python<'_>,
    made: Made<PyBytesWriter>,
    methods: Vec<String>,
    has_handles: bool,
) -> PyResult<PreprocessResult> {
    let key = format!("coreml_{}", made.identifier);
    let references = PyDict::new(py);
    for function in methods {
        let reference = Reference { key: key.clone(), function: function.clone() };
        references.set_item(function, PyBytes::new(py, &reference.to_bytes()))?;
    }
    let handles = PyDict::new(py);
    for (symbol, of) in made.handles {
        handles.set_item(symbol, pyo3::types::PyTuple::new(py, of)?)?;
    }
    Ok(PreprocessResult {
        data: made.data.into_bytes(),
        identifier: made.identifier,
        specification_version: made.specification_version,
        debug_handle_map: has_handles.then(|| handles.unbind()),
        key,
        references: references.unbind(),
    })
}

fn refused(division: &EdgeDivision) -> Vec<RefusedCall> {
    let calls = division.refused.iter().map(|call| {
        let refusal = &call.refusal;
        let needs = refusal.needs.map(|opset| opset.tag());
        let told = call.to_string();
        (
            call.node.clone(),
            call.operator.clone(),
            refusal.reason.clone(),
            refusal.hint.clone(),
            needs,
            told,
        )
    });
    calls.collect()
}
