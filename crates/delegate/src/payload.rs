//! Payload of a delegate: a model, and metadata for ExecuTorch's backend.

use std::collections::HashMap;

use coremill_mil::ir::Operator;
use coremill_mil::model::{FeatureDescription, Model, Signature};
use coremill_mlpackage::package::{PendingPackage, VirtualDirectory};
use coremill_mlpackage::{compiled, package};
use coremill_pte::ByteRope;
use coremill_pte::coreml::{
    COMPILED, DEBUG_INFO, DebugInfo, Directory, Interface, METADATA, Metadata, Methods, PACKAGE,
    PathPart, identifier,
};
use coremill_verify::verify;

use crate::error::Error;

/// Format of a delegate's model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ModelType {
    /// A package, which the device compiles on first load.
    #[default]
    Model,
    /// A compiled model.
    CompiledModel,
}

/// Call numbers by operation name.
pub type Handles = Vec<(String, Vec<i64>)>;

/// The payload of a model, and an identifier derived from its content. A model with several functions is described
/// per method.
///
/// `origins` maps value names to call numbers.
pub fn payload(
    model: &Model,
    kind: ModelType,
    name: &str,
    origins: Option<&HashMap<String, i64>>,
) -> Result<(ByteRope, String), Error> {
    let write =
        |unhashed: &PendingPackage<'_>, contents: &Contents<'_>| contents.deferred(unhashed);
    with_contents(model, kind, name, origins, write).map(|(made, _)| made)
}

/// Writes the payload to memory that `room` allocates once the size is known. Also returns the calls of each
/// operation.
pub fn payload_in<R: AsMut<[u8]>, E: From<Error>>(
    model: &Model,
    kind: ModelType,
    name: &str,
    origins: Option<&HashMap<String, i64>>,
    room: impl FnOnce(usize) -> Result<R, E>,
) -> Result<((R, String), Handles), E> {
    let write =
        |unhashed: &PendingPackage<'_>, contents: &Contents<'_>| contents.in_memory(unhashed, room);
    with_contents(model, kind, name, origins, write)
}

fn with_contents<T, E: From<Error>>(
    model: &Model,
    kind: ModelType,
    name: &str,
    origins: Option<&HashMap<String, i64>>,
    write: impl FnOnce(&PendingPackage<'_>, &Contents<'_>) -> Result<T, E>,
) -> Result<(T, Handles), E> {
    let verified = verify(model).map_err(|report| {
        let first = report.diagnostics.first();
        Error::fault(first.map_or_else(String::new, |diagnostic| diagnostic.message.clone()))
    })?;
    let unhashed = match kind {
        ModelType::Model => package::unhashed(&verified),
        ModelType::CompiledModel => compiled::unhashed(&verified, "model"),
    };
    let info = origins.map(|origins| debug_info(model, origins));
    let contents = Contents {
        model,
        root: if kind == ModelType::Model { PACKAGE } else { COMPILED },
        name,
        info: info.as_ref(),
    };
    let unhashed = unhashed.map_err(unwritable)?;
    let made = write(&unhashed, &contents)?;
    let handles = info.map(|info| info.debug_symbol_to_handles.into_iter().collect());
    Ok((made, handles.unwrap_or_default()))
}

fn unwritable(error: package::Error) -> Error {
    Error::model(error.to_string())
}

fn fault(error: coremill_pte::Error) -> Error {
    Error::fault(error.to_string())
}

/// Contents of a payload.
struct Contents<'m> {
    model: &'m Model,
    /// Directory of the model's files.
    root: &'static str,
    name: &'m str,
    info: Option<&'m DebugInfo>,
}

impl Contents<'_> {
    /// Builds the directory of the model's files, and the identifier.
    fn directory(&self, tree: VirtualDirectory) -> Result<(Directory, String), Error> {
        let metadata = Metadata {
            identifier: identifier(&tree.content),
            methods: methods(self.model),
            unknown: Default::default(),
        };
        let mut directory = Directory::new(self.name);
        directory.insert(METADATA, metadata.to_bytes()).map_err(fault)?;
        for file in tree.files {
            let content: ByteRope = file.parts.into_iter().collect();
            directory.insert(format!("{}/{}", self.root, file.path), content).map_err(fault)?;
        }
        for path in tree.empty_directories {
            directory.insert_directory(format!("{}/{path}", self.root)).map_err(fault)?;
        }
        if let Some(info) = self.info {
            directory.insert(DEBUG_INFO, info.to_bytes()).map_err(fault)?;
        }
        Ok((directory, metadata.identifier))
    }

    /// Creates a payload whose weights are read once for their hashes and again when the payload is read.
    fn deferred(&self, unhashed: &PendingPackage<'_>) -> Result<(ByteRope, String), Error> {
        let (directory, identifier) = self.directory(unhashed.tree().map_err(unwritable)?)?;
        Ok((directory.to_data().map_err(fault)?, identifier))
    }

    /// Writes a payload to memory that `room` allocates once the size is known. Weights are read only once.
    fn in_memory<R: AsMut<[u8]>, E: From<Error>>(
        &self,
        unhashed: &PendingPackage<'_>,
        room: impl FnOnce(usize) -> Result<R, E>,
    ) -> Result<(R, String), E> {
        let (outline, _) = self.directory(unhashed.outline().map_err(unwritable)?)?;
        let (outline, places) = outline.to_data_with_places().map_err(fault)?;
        let place = |path: &str| places.get(&*format!("{}/{path}", self.root)).cloned();
        let mut room = room(outline.len())?;
        let target = room.as_mut();
        let tree = unhashed.write_to(target, &place).map_err(unwritable)?;
        let (directory, identifier) = self.directory(tree)?;
        let data = directory.to_data().map_err(fault)?;
        let lengths = (data.len(), target.len());
        if lengths != (outline.len(), outline.len()) {
            let message =
                format!("the payload has lengths {lengths:?}, expected {} bytes", outline.len());
            return Err(Error::fault(message).into());
        }
        // Copies the bytes between the weights.
        let mut written: Vec<_> = unhashed.weights().filter_map(|path| place(&path)).collect();
        written.sort_by_key(|place| place.start);
        written.push(data.len()..data.len());
        let mut start = 0;
        for place in written {
            let read = data.read_at(start, &mut target[start..place.start]);
            read.map_err(|error| Error::model(error.to_string()))?;
            start = place.end;
        }
        Ok((room, identifier))
    }
}

/// Records the source calls of operations.
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

#[cfg(test)]
mod tests {
    use coremill_mil::ir::{TensorType, WeightPlace};
    use coremill_mil::model::describe;
    use coremill_mil::text;
    use coremill_tensor::Buffer;

    use super::*;

    /// Weights whose elements depend on the name of the weight file.
    struct Elements;

    impl text::Weights for Elements {
        fn elements(&self, at: &WeightPlace, ty: &TensorType) -> Result<Option<Buffer>, String> {
            let count = ty.element_count().unwrap_or_default() as usize;
            let seed = at.file.len();
            let number = |at: usize| half::f16::from_f32(((at * 7 + seed) % 61) as f32);
            let bytes = (0..count).flat_map(|at| number(at).to_le_bytes());
            Ok(Some(Buffer::from(bytes.collect::<Vec<u8>>())))
        }
    }

    fn model(weights: &str) -> Model {
        let source = format!(
            "program(1.3)\n{{\n    func main<ios17>(tensor<fp16, [700]> x) {{\n{weights}    }} -> (y);\n}}\n"
        );
        describe(text::parse(&source, &Elements).expect("text")).expect("described")
    }

    fn weight(name: &str, ty: &str, file: &str) -> String {
        let place = format!("BLOBFILE(path = string(\"@model_path/{file}\"), offset = uint64(64))");
        format!("        {ty} {name} = const()[val = {ty}({place})];\n")
    }

    #[test]
    fn in_memory_payload_matches_deferred_payload() {
        let large = weight("w", "tensor<fp16, [700, 700]>", "weights/weight.bin");
        let small = weight("b", "tensor<fp16, [700]>", "weights/more/b.bin");
        let call = "tensor<fp16, [700]> y";
        let both = format!("{large}{small}        {call} = linear(x = x, weight = w, bias = b);\n");
        let one = format!("{small}        {call} = add(x = x, y = b);\n");
        for source in [both, one, format!("        {call} = relu(x = x);\n")] {
            let model = model(&source);
            let origins = HashMap::from([("y".to_owned(), 3)]);
            for kind in [ModelType::Model, ModelType::CompiledModel] {
                let room = |length: usize| Ok::<_, Error>(vec![0xa5; length]);
                let ((found, named), handles) =
                    payload_in(&model, kind, "part", Some(&origins), room).expect("in memory");
                let (data, identifier) =
                    payload(&model, kind, "part", Some(&origins)).expect("deferred");
                assert!(found == data.to_buffer().as_bytes(), "{kind:?}: {source}");
                assert_eq!(named, identifier);
                assert_eq!(handles.len(), 1);
                let failed = payload_in(&model, kind, "part", None, |length| {
                    Ok::<_, Error>(vec![0; length - 1])
                });
                assert!(failed.is_err());
            }
        }
    }
}
