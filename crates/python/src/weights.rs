//! Weights of models for `coremill.coremltools`: their elements and users, and tables that Python computed.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use coremill::OpenedModel;
use coremill::compress::{self as library, ActivationRule, IndexedWeight, TrainedParameter};
use coremill_mil::ir::{Binding, Constant, Function, Op, OpId, ValueId};
use coremill_mil::ops::OpKind;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde::Serialize;

use crate::model::{Model, json};
use crate::{error, work};

/// A constant and the operations that use it.
#[derive(Serialize)]
struct Weight<'m> {
    function: &'m str,
    /// Name of the operation; it may differ from the value's name.
    name: &'m str,
    value: &'m str,
    dtype: String,
    shape: Vec<u64>,
    users: Vec<User<'m>>,
}

#[derive(Serialize)]
struct User<'m> {
    op: &'static str,
    name: &'m str,
    /// Names of constants by parameter.
    parameters: BTreeMap<&'m str, &'m str>,
}

/// The constant tensors of a model and their users, as JSON.
#[pyfunction]
pub(crate) fn weights(py: Python<'_>, model: &Bound<'_, Model>) -> PyResult<String> {
    let opened = model.get().opened();
    let mut found = Vec::new();
    for function in &opened.model.program.functions {
        let mut users: HashMap<ValueId, Vec<OpId>> = HashMap::new();
        for (id, op) in function.all_ops() {
            for (_, binding) in op.all_bindings() {
                if let Binding::Value(value) = binding {
                    let users = users.entry(*value).or_default();
                    if users.last() != Some(&id) {
                        users.push(id);
                    }
                }
            }
        }
        for (_, op) in function.all_ops() {
            let Some((value, constant)) = constant(op) else { continue };
            let Some(ty) = constant.tensor_type() else { continue };
            let Some(shape) = ty.known_shape() else { continue };
            let ids = users.get(&value).into_iter().flatten();
            found.push(Weight {
                function: &function.name,
                name: name(function, op),
                value: &function.value(value).name,
                dtype: ty.dtype.to_string(),
                shape,
                users: ids.filter_map(|&id| user(function, function.op(id))).collect(),
            });
        }
    }
    json(py, &found)
}

fn constant(op: &Op) -> Option<(ValueId, &Constant)> {
    let is_constant = op.kind() == Some(OpKind::Const);
    is_constant.then(|| Some((*op.outputs.first()?, op.attributes.get("val")?)))?
}

/// The name attribute of an operation, or the name of its first result.
fn name<'f>(function: &'f Function, op: &'f Op) -> &'f str {
    let stated = op.attributes.get("name").and_then(Constant::as_str);
    let first = || op.outputs.first().map_or("", |&value| &function.value(value).name);
    stated.unwrap_or_else(first)
}

fn user<'f>(function: &'f Function, op: &'f Op) -> Option<User<'f>> {
    let mut parameters = BTreeMap::new();
    for (parameter, binding) in op.all_bindings() {
        let Binding::Value(value) = binding else { continue };
        let coremill_mil::ir::Definition::Output(producer, _) = function.value(*value).definition
        else {
            continue;
        };
        let producer = function.op(producer);
        if producer.kind() == Some(OpKind::Const) {
            parameters.insert(parameter, name(function, producer));
        }
    }
    Some(User { op: op.kind()?.name(), name: name(function, op), parameters })
}

/// The centers of clusters of fp32 numbers, at most `count`, in ascending order.
#[pyfunction]
pub(crate) fn kmeans(py: Python<'_>, numbers: &[u8], count: usize) -> Vec<f32> {
    let mut numbers: Vec<f32> =
        numbers.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
    py.detach(|| coremill_compress::kmeans(&mut numbers, count))
}

/// The elements of a constant by the name of its value.
#[pyfunction]
pub(crate) fn weight<'py>(
    py: Python<'py>,
    model: &Bound<'py, Model>,
    function: &str,
    value: &str,
) -> PyResult<Bound<'py, PyBytes>> {
    let opened = model.get().opened();
    let functions = &opened.model.program.functions;
    let elements = functions.iter().filter(|found| found.name == function).find_map(|function| {
        function.all_ops().find_map(|(_, op)| {
            let (id, constant) = constant(op)?;
            (function.value(id).name == value).then(|| constant.elements().cloned())?
        })
    });
    let Some(elements) = elements else {
        return Err(error::option(py, format!("`{value}` is not a weight of the model"), None));
    };
    let mut read = Ok(());
    let bytes = PyBytes::new_with(py, elements.len(), |target| {
        read = elements.read_at(0, target);
        Ok(())
    })?;
    read?;
    Ok(bytes)
}

/// Function, value, bits, sizes and elements of the tables, indices, and the axis of vectors.
type Given = (String, String, u32, Vec<usize>, Vec<f32>, Vec<u8>, Option<usize>);

/// A model whose weights are indices and lookup tables that Python computed.
#[pyfunction]
pub(crate) fn with_indices(
    py: Python<'_>,
    model: &Bound<'_, Model>,
    weights: Vec<Given>,
) -> PyResult<Model> {
    let model = model.get();
    let opened = model.opened();
    let weights: Vec<IndexedWeight> = weights
        .into_iter()
        .map(|(function, name, bits, shape, elements, indices, vector_axis)| {
            let entries = TrainedParameter { shape, elements };
            IndexedWeight { function, name, bits, entries, indices, vector_axis }
        })
        .collect();
    let made = work::run(py, move |_| {
        let mut made = opened.model.clone();
        library::replace_by_indices(&mut made, &weights)?;
        Ok(OpenedModel::made(made, Path::new("model")))
    })?;
    Ok(Model::new(made, model.lent(py), None))
}

/// A model with 8-bit activations, by rules in JSON. `samples` are `.npz` files, or folders.
#[pyfunction]
pub(crate) fn quantize_activations(
    py: Python<'_>,
    model: &Bound<'_, Model>,
    samples: Vec<PathBuf>,
    rules: &str,
) -> PyResult<Model> {
    let model = model.get();
    let rules: Vec<ActivationRule> = serde_json::from_str(rules)
        .map_err(|failure| error::option(py, format!("cannot parse a rule: {failure}"), None))?;
    let opened = model.opened();
    let made = work::run(py, move |stage| {
        stage.set("running samples".to_owned());
        let mut made = opened.model.clone();
        library::quantize_activations(&mut made, &samples, &rules)?;
        Ok(OpenedModel::made(made, Path::new("model")))
    })?;
    Ok(Model::new(made, model.lent(py), None))
}
