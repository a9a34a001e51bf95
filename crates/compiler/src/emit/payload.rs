//! What a delegate is given: a model, and what ExecuTorch's backend wants to know of it.

use coremill_mil::model::{FeatureDescription, Model, Signature};
use coremill_mil::verify::verify;
use coremill_mil::{compiled, package};
use coremill_pte::Data;
use coremill_pte::coreml::{
    COMPILED, Directory, Interface, METADATA, Metadata, Methods, PACKAGE, identifier,
};

use crate::error::{Error, Refusal};

/// The form of the model that a delegate is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ModelType {
    /// A package, which the device compiles when it loads it first.
    #[default]
    Model,
    /// A compiled model.
    CompiledModel,
}

/// A payload.
pub(crate) struct Payload {
    /// Derived from the content.
    pub(crate) identifier: String,
    pub(crate) data: Data,
}

/// The payload of a model. With several functions it is described by method.
pub(crate) fn payload(model: &Model, kind: ModelType, name: &str) -> Result<Payload, Error> {
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
    Ok(Payload { identifier: metadata.identifier, data: directory.to_data().map_err(fault)? })
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
