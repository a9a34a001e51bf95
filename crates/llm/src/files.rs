//! Files of a model, and those next to it: tokenizer, chat template, settings of generation.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use coremill_io::write_anew;
use coremill_mil::model::Model;
use coremill_session::SaveOptions;
use coremill_verify::verify;
use serde_json::{Value, json};

use crate::error::{Error, ErrorKind, Result, fail};
use crate::model::LanguageModel;
use crate::source::{Origin, read_json};
use crate::tokenizer::{Tokenizer, has_vocabulary};

/// Names of the files, in the order in which they are written.
pub(crate) const COMPANIONS: [&str; 4] =
    ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"];

impl LanguageModel {
    /// The files that belong next to a model, as names and contents. A model without a supported tokenizer has an error.
    pub fn companions(&self) -> Result<Companions> {
        let text = |value: &Value| format!("{value:#}\n");
        let mut files = Vec::new();
        match self.origin() {
            Origin::Folder(folder) => {
                for name in COMPANIONS {
                    let path = folder.join(name);
                    if path.is_file() {
                        files.push((name, crate::source::read_text(&path)?));
                    }
                }
                // Programs that run the model read this file only.
                let has_other = has_vocabulary(folder);
                if has_other && !files.iter().any(|(name, _)| *name == COMPANIONS[0]) {
                    files.insert(0, (COMPANIONS[0], text(&self.tokenizer()?.to_json())));
                }
                if !files.iter().any(|(name, _)| *name == "generation_config.json") {
                    files.push((COMPANIONS[3], text(&self.generation_settings()?.to_json())));
                }
            }
            Origin::Gguf(metadata) => {
                if metadata.contains_key("tokenizer.ggml.model") {
                    files.push((COMPANIONS[0], text(&self.tokenizer()?.to_json())));
                    let mut config = match self.chat_template()? {
                        Some(template) => template.to_json(),
                        None => json!({}),
                    };
                    config["tokenizer_class"] = json!("PreTrainedTokenizerFast");
                    config["clean_up_tokenization_spaces"] = json!(false);
                    config["model_max_length"] = json!(self.config().max_context);
                    files.push((COMPANIONS[1], text(&config)));
                }
                files.push((COMPANIONS[3], text(&self.generation_settings()?.to_json())));
            }
        }
        Ok(files)
    }
}

/// Files of [`LanguageModel::companions`], as names and contents.
pub type Companions = Vec<(&'static str, String)>;

/// Returns no files if the tokenizer is unsupported, and a warning if the tokenizer is unsupported or missing.
pub fn supported_companions(files: Result<Companions>) -> Result<(Companions, Option<String>)> {
    match files {
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            Ok((Vec::new(), Some(format!("the tokenizer is left out: {error}"))))
        }
        files => {
            let files = files?;
            let has_tokenizer = files.iter().any(|(name, _)| *name == COMPANIONS[0]);
            let warning = "no tokenizer was found: to run the model on text, put a `tokenizer.json` next to it";
            Ok((files, (!has_tokenizer).then(|| warning.to_owned())))
        }
    }
}

/// Refuses a directory that has other files under these names.
pub fn check_companions(directory: &Path, files: &[(&str, String)]) -> Result<()> {
    files.iter().try_for_each(|(name, content)| check_own(&directory.join(name), content))
}

/// Refuses a path that has a file with another content.
pub(crate) fn check_own(path: &Path, content: &str) -> Result<()> {
    if path.is_file() && fs::read(path).ok().as_deref() != Some(content.as_bytes()) {
        let message = format!("{} belongs to another model", path.display());
        let error = Error::of_kind(ErrorKind::Argument, message);
        return Err(error.with_hint("write to a directory of its own"));
    }
    Ok(())
}

/// Writes the files next to a model.
pub fn write_companions(directory: &Path, files: &[(&str, String)]) -> Result<Vec<PathBuf>> {
    let mut written = Vec::with_capacity(files.len());
    for (name, content) in files {
        let path = directory.join(name);
        write_text(&path, content)?;
        written.push(path);
    }
    Ok(written)
}

/// Writes a text in the place of a file.
pub(crate) fn write_text(path: &Path, content: &str) -> Result<()> {
    write_anew(path, false, |file| file.write_all(content.as_bytes()))
        .map_err(|error| Error::io("write", path, error))
}

/// Writes a package or a compiled model.
pub(crate) fn save_model(path: &Path, model: &Model, durable: bool) -> Result<()> {
    let verified = match verify(model) {
        Ok(verified) => verified,
        Err(report) => fail!(Run, "the model is not valid: {report:?}"),
    };
    coremill_session::save(path, &verified, &SaveOptions { durable })
        .map_err(|error| Error::from_source(ErrorKind::File, error))
}

/// The tokenizer next to a converted model.
pub(crate) fn tokenizer_in(directory: &Path) -> Result<Tokenizer> {
    if !directory.join("tokenizer.json").is_file() {
        let message = format!("{} has no `tokenizer.json`", directory.display());
        let error = Error::of_kind(ErrorKind::File, message);
        return Err(error
            .with_hint("keep the model and the files that were written with it in one directory"));
    }
    Tokenizer::open(directory)
}

/// The settings of generation in a directory.
pub(crate) fn settings_of(directory: &Path) -> Result<crate::GenerationSettings> {
    let path = directory.join(COMPANIONS[3]);
    let generation = if path.is_file() { read_json(&path)? } else { Value::Null };
    Ok(crate::GenerationSettings::of_json(&generation, &Value::Null))
}
