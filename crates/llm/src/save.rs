//! Converted models in files.

use std::path::{Path, PathBuf};

use coremill_graph::Device;
use coremill_io::unsupported_extension;
use coremill_session::MODEL_EXTENSIONS;

use crate::anemll::META;
use crate::chunks::MANIFEST;
use crate::error::{Error, ErrorKind, Result};
use crate::files::{check_companions, save_model, write_companions};
use crate::model::{BuildOptions, LanguageModel, Layout, SavedModel};
use crate::weights::CompiledModel;

/// Key of the metadata by which swift-transformers finds the tokenizer on the Hugging Face Hub.
const HUB_NAME: &str = "co.huggingface.exporters.name";

/// Extensions of files that hold models in other forms, which a directory should not have.
const OTHER_FILES: [&str; 8] =
    ["bin", "gguf", "mil", "mlmodel", "onnx", "pt2", "safetensors", "tflite"];

/// Paths of a converted model.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Destination {
    /// Functions of the model.
    pub layout: Layout,
    /// The package, the compiled model, the ExecuTorch program, or the list of several models.
    pub model: PathBuf,
    /// The directory that holds it, and the files next to it.
    pub directory: PathBuf,
}

impl Destination {
    /// The path by which the model is opened: the directory, if there are several models.
    pub fn path(&self) -> &Path {
        if self.layout.is_chunked() { &self.directory } else { &self.model }
    }

    /// The paths for an output: a `.mlpackage`, a `.mlmodelc` or a `.pte`, or a directory for `model.mlpackage` or
    /// `model.pte`. Without a layout, a `.pte` is for ExecuTorch's `TextLLMRunner`.
    pub fn of(output: &Path, layout: Option<Layout>) -> Result<Destination> {
        let extension = output.extension().and_then(|extension| extension.to_str());
        let is_program = extension == Some("pte");
        let is_model = matches!(extension, Some("mlpackage" | "mlmodelc"));
        let usual = if is_program { Layout::ExecuTorch } else { Layout::Coremill };
        let layout = layout.unwrap_or(usual);
        if extension.is_some_and(|extension| OTHER_FILES.contains(&extension)) {
            let message = unsupported_extension(output, &MODEL_EXTENSIONS);
            let error = Error::of_kind(ErrorKind::Argument, message);
            return Err(error.with_hint("or pass a directory"));
        }
        if !is_program && !is_model {
            let name = match layout {
                Layout::Coremill | Layout::SwiftTransformers => "model.mlpackage",
                Layout::Chunks => MANIFEST,
                Layout::Anemll => META,
                _ => "model.pte",
            };
            let (model, directory) = (output.join(name), output.to_owned());
            return Ok(Destination { layout, model, directory });
        }
        if layout.is_chunked() {
            let (path, name) = (output.display(), layout.name());
            let message = format!("{path} is a single model, but the layout `{name}` has several");
            let error = Error::of_kind(ErrorKind::Argument, message);
            return Err(error.with_hint("write to a directory"));
        }
        if is_program != layout.is_program() {
            let (form, needed) = match is_program {
                true => ("an ExecuTorch program", "an ExecuTorch layout"),
                false => ("a Core ML model", "the layout `coremill` or `swift-transformers`"),
            };
            let message = format!("{} is {form}, which requires {needed}", output.display());
            let error = Error::of_kind(ErrorKind::Argument, message);
            return Err(error.with_hint("leave the option `layout` out"));
        }
        let parent = output.parent().filter(|parent| !parent.as_os_str().is_empty());
        let directory = parent.unwrap_or(Path::new(".")).to_owned();
        Ok(Destination { layout, model: output.to_owned(), directory })
    }
}

impl LanguageModel {
    /// Converts the model in the destination's layout, and writes it with the files next to it. Existing files of another
    /// model are kept, and are an error. `stage` is called with the current step.
    pub fn save(
        &self,
        destination: &Destination,
        companions: &[(&str, String)],
        options: &BuildOptions,
        durable: bool,
        stage: &mut dyn FnMut(&str),
    ) -> Result<SavedModel> {
        let Destination { layout, model: path, directory } = destination;
        check_companions(directory, companions)?;
        let options = options.clone().layout(*layout);
        stage("building the model");
        let make_directory = || {
            std::fs::create_dir_all(directory)
                .map_err(|error| Error::io("create", directory, error))
        };
        let writing = format!("writing {}", path.display());
        if layout.is_chunked() {
            make_directory()?;
            let mut saved = match layout {
                Layout::Anemll => self.save_anemll(directory, &options, durable, stage)?,
                _ => self.save_chunks(directory, &options, durable, stage)?,
            };
            saved.files.extend(write_companions(directory, companions)?);
            return Ok(saved);
        }
        let graphs = self.graphs(&options)?;
        let CompiledModel { mut executable, losses, rule_use } =
            self.compile_graphs(&graphs, Device::Host, 0, &options)?;
        if !layout.is_program() {
            let mut model = executable.model()?.clone();
            if let (Layout::SwiftTransformers, Some(name)) = (layout, self.hub_name()) {
                model.description.metadata.get_or_insert_default().set_user_defined(HUB_NAME, name);
            }
            stage(&writing);
            make_directory()?;
            save_model(path, &model, durable)?;
        } else {
            let program = self.program_of(&mut executable, &options)?;
            stage(&writing);
            make_directory()?;
            coremill_pte::write(path, &program, &coremill_pte::WriteOptions { durable })
                .map_err(|error| Error::from_source(ErrorKind::File, error))?;
        }
        let mut files = vec![path.clone()];
        files.extend(write_companions(directory, companions)?);
        Ok(SavedModel { files, losses, warnings: rule_use.warnings(&options.rules) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selects_layout_by_extension_and_rejects_mismatch() {
        let of = |path: &str, layout| Destination::of(Path::new(path), layout);
        let program = of("out/m.pte", None).expect("a destination");
        assert_eq!(program.layout, Layout::ExecuTorch);
        assert_eq!(program.directory, Path::new("out"));
        let folder = of("out", Some(Layout::ExecuTorchStatic)).expect("a destination");
        assert_eq!(folder.model, Path::new("out/model.pte"));
        let package = of("m.mlpackage", None).expect("a destination");
        assert_eq!((package.layout, package.directory), (Layout::Coremill, PathBuf::from(".")));
        let error = of("m.mlpackage", Some(Layout::ExecuTorch)).expect_err("a mismatched layout");
        assert_eq!(
            error.to_string(),
            "m.mlpackage is a Core ML model, which requires the layout `coremill` or `swift-transformers`"
        );
        assert!(of("m.pte", Some(Layout::Coremill)).is_err());
        assert!(of("m.mlpackage", Some(Layout::Chunks)).is_err());
        let swift = of("m.mlmodelc", Some(Layout::SwiftTransformers)).expect("a destination");
        assert_eq!(swift.model, Path::new("m.mlmodelc"));
        assert!(of("m.pte", Some(Layout::SwiftTransformers)).is_err());
        let folder = of("out", Some(Layout::SwiftTransformers)).expect("a destination");
        assert_eq!(folder.model, Path::new("out/model.mlpackage"));
        assert!(of("m.mlmodelc", Some(Layout::Anemll)).is_err());
        let bundle = of("out", Some(Layout::Anemll)).expect("a destination");
        assert_eq!(bundle.model, Path::new("out/meta.yaml"));
        assert_eq!(bundle.path(), Path::new("out"));
        let folder = of("out", Some(Layout::Chunks)).expect("a destination");
        assert_eq!(folder.model, Path::new("out/coremill.json"));
        assert!(of("smollm2-1.7B", None).is_ok());
        let error = of("m.onnx", None).expect_err("a file in another format");
        assert!(error.to_string().ends_with("or `.pte`, got `.onnx`"), "{error}");
    }
}
