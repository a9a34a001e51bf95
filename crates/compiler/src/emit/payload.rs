//! What a delegate is given: a model, and what ExecuTorch's backend wants to know of it.

use std::collections::HashMap;

use coremill_mil::ir::Operator;
use coremill_mil::model::{FeatureDescription, Model, Signature};
use coremill_mil::verify::verify;
use coremill_mil::{compiled, package};
use coremill_pte::Data;
use coremill_pte::coreml::{
    COMPILED, DEBUG_INFO, DebugInfo, Directory, Interface, METADATA, Metadata, Methods, PACKAGE,
    PathPart, identifier,
};

use crate::error::{Error, Refusal};
use crate::options::ModelType;

/// A payload.
pub(crate) struct Payload {
    /// Derived from the content.
    pub(crate) identifier: String,
    pub(crate) data: Data,
    /// By the name of an operation the numbers of the calls that it comes from.
    pub(crate) handles: Vec<(String, Vec<i64>)>,
}

/// The payload of a model. With several functions it is described by method.
///
/// `origins` says by the name of a value the number of the call that it was made for.
pub(crate) fn payload(
    model: &Model,
    kind: ModelType,
    name: &str,
    origins: Option<&HashMap<String, i64>>,
) -> Result<Payload, Error> {
    let verified = verify(model).map_err(|report| {
        let first = report.diagnostics.first();
        Error::Fault(first.map_or_else(String::new, |diagnostic| diagnostic.message.clone()))
    })?;
    let unwritable = |error: package::Error| Error::Program(Refusal::new(error.to_string()));
    let (root, tree) = match kind {
        ModelType::Model => (PACKAGE, package::to_tree(&verified)),
        ModelType::CompiledModel => (COMPILED, compiled::to_tree(&verified, "model")),
    };
    let tree = tree.map_err(unwritable)?;
    let metadata = Metadata {
        identifier: identifier(&tree.content),
        methods: methods(model),
        unknown: Default::default(),
    };
    let fault = |error: coremill_pte::Error| Error::Fault(error.to_string());
    let mut directory = Directory::new(name);
    directory.insert(METADATA, metadata.to_bytes()).map_err(fault)?;
    for file in tree.files {
        let content: Data = file.parts.into_iter().collect();
        directory.insert(format!("{root}/{}", file.path), content).map_err(fault)?;
    }
    for path in tree.empty_directories {
        directory.insert_directory(format!("{root}/{path}")).map_err(fault)?;
    }
    let mut handles = Vec::new();
    if let Some(origins) = origins {
        let info = debug_info(model, origins);
        directory.insert(DEBUG_INFO, info.to_bytes()).map_err(fault)?;
        handles.extend(info.debug_symbol_to_handles);
    }
    let data = directory.to_data().map_err(fault)?;
    Ok(Payload { identifier: metadata.identifier, data, handles })
}

/// Which calls the operations come from.
fn debug_info(model: &Model, origins: &HashMap<String, i64>) -> DebugInfo {
    let mut info =
        DebugInfo { version_info: env!("CARGO_PKG_VERSION").to_owned(), ..DebugInfo::default() };
    for function in &model.program.functions {
        let path = vec![PathPart::Program, PathPart::Function(function.name.clone())];
        let mut pending = vec![(path, function.body)];
        while let Some((mut path, block)) = pending.pop() {
            path.push(PathPart::Block);
            for &op in &function.block(block).ops {
                let op = function.op(op);
                let Some(&first) = op.outputs.first() else { continue };
                let output = function.value(first).name.clone();
                let origin = origins.get(&output).copied();
                let operator = match &op.operator {
                    Operator::Known(kind) => kind.name().to_owned(),
                    Operator::Unknown(name) => name.clone(),
                };
                let mut path = path.clone();
                path.push(PathPart::Operation { operator, output });
                if let Some(handle) = origin {
                    info.insert(&path, vec![handle]);
                }
                pending.extend(op.blocks.iter().map(|&inner| (path.clone(), inner)));
            }
        }
    }
    info
}

fn methods(model: &Model) -> Methods {
    let names = |features: &[FeatureDescription]| {
        features.iter().map(|feature| feature.name.clone()).collect()
    };
    let interface = |signature: &Signature<'_>| Interface {
        inputs: names(signature.inputs),
        outputs: names(signature.outputs),
    };
    let signatures = model.signatures();
    match signatures.as_slice() {
        [only] if model.description.functions.is_empty() => Methods::One(interface(only)),
        several => Methods::Several(
            several.iter().map(|one| (one.name.to_owned(), interface(one))).collect(),
        ),
    }
}
