use coremill_mil::model::Model;
use coremill_mlpackage::{compiled, package};
use coremill_pte::coreml::{COMPILED, Directory, Entry, METADATA, Metadata, PACKAGE, identifier};
use coremill_pte::{ByteRope, Program};

use crate::error::Error;
use coremill_inspect::executorch::{DelegatedModel, models};

/// Changes each Core ML model in an ExecuTorch program once, even if several delegates share it.
/// The files are only written with the program.
pub fn for_each_model(
    program: &mut Program,
    change: &mut dyn FnMut(&str, &mut Model) -> Result<(), Error>,
) -> Result<usize, Error> {
    let found = models(program)?;
    for delegated in &found {
        let mut model = delegated.read()?;
        change(&delegated.name, &mut model)?;
        let data = directory(delegated, &model)?;
        match &delegated.payload.reference {
            Some(reference) => {
                let named = program.named_data.iter_mut().find(|named| named.key == reference.key);
                if let Some(named) = named {
                    named.data = data;
                }
            }
            None => {
                for used in &delegated.uses {
                    let plan = program.plans.iter().find(|plan| plan.name == used.method);
                    let index = plan.map(|plan| plan.delegates[used.delegate].data as usize);
                    if let Some(held) = index.and_then(|at| program.delegate_data.get_mut(at)) {
                        *held = data.clone();
                    }
                }
            }
        }
    }
    Ok(found.len())
}

/// The delegate's files, with another model.
fn directory(delegated: &DelegatedModel, model: &Model) -> Result<ByteRope, Error> {
    let failed = |error: &dyn std::fmt::Display| {
        Error::new(format!("the model `{}`: {error}", delegated.name))
    };
    let verified = coremill_verify::verify(model).map_err(|report| {
        let first = report.diagnostics.first().map(|diagnostic| diagnostic.message.clone());
        failed(&first.unwrap_or_default())
    })?;
    let (root, tree) = match delegated.is_compiled()? {
        true => (COMPILED, compiled::to_tree(&verified, "model")),
        false => (PACKAGE, package::to_tree(&verified)),
    };
    let tree = tree.map_err(|error| failed(&error))?;
    let of_pte = |error: coremill_pte::Error| failed(&error);
    let payload = &delegated.payload;
    let mut directory = Directory::new(payload.directory.name());
    let below = format!("{root}/");
    for (path, entry) in payload.directory.entries() {
        if path == METADATA || path == root || path.starts_with(&below) {
            continue;
        }
        match entry {
            Entry::File(data) => directory.insert(path, data.clone()),
            Entry::EmptyDirectory => directory.insert_directory(path),
        }
        .map_err(of_pte)?;
    }
    // Devices use the identifier as the key of compiled models.
    let metadata = Metadata { identifier: identifier(&tree.content), ..payload.metadata.clone() };
    directory.insert(METADATA, metadata.to_bytes()).map_err(of_pte)?;
    for file in tree.files {
        let content: ByteRope = file.parts.into_iter().collect();
        directory.insert(format!("{root}/{}", file.path), content).map_err(of_pte)?;
    }
    for path in tree.empty_directories {
        directory.insert_directory(format!("{root}/{path}")).map_err(of_pte)?;
    }
    directory.to_data().map_err(of_pte)
}
