//! Options that `convert` and `edit` share.

use std::path::Path;
use std::str::FromStr;

use coremill::edit::{Classifier, Edit, ElementType, Error, ImageEdit, Labels};
use coremill_mil::model::Metadata;

use crate::output::Failure;

/// Changes of inputs and outputs.
#[derive(clap::Args)]
pub(super) struct InterfaceArgs {
    /// Input or output to turn into an image: `rgb`, `bgr`, `grayscale` or `grayscale-fp16`, the factor S of its pixels and
    /// the bias B that is added afterwards. Numbers may be quotients, or one per channel separated by `:`
    #[arg(
        long = "image",
        value_name = "NAME=LAYOUT[,scale=S][,bias=B]",
        value_parser = parse_image,
        help_heading = "Interface"
    )]
    images: Vec<ImageEdit>,
    /// Class labels: a file with one label per line, or a comma-separated list. The model becomes a classifier
    #[arg(long, value_name = "FILE|A,B,...", help_heading = "Interface")]
    labels: Option<String>,
    /// Name of the output with the scores of a classifier [default: the last output of floats]
    #[arg(long, value_name = "NAME", requires = "labels", help_heading = "Interface")]
    scores: Option<String>,
    /// Name of the output with the label [default: classLabel]
    #[arg(long, value_name = "NAME", requires = "labels", help_heading = "Interface")]
    label_name: Option<String>,
    /// New element type of an input or output: fp16, fp32, int32 or int8
    #[arg(
        long = "type",
        value_name = "NAME=TYPE",
        value_parser = parse_type,
        help_heading = "Interface"
    )]
    types: Vec<(String, ElementType)>,
    /// Description of an input, an output or a state
    #[arg(long = "describe", value_name = "NAME=TEXT", help_heading = "Interface")]
    descriptions: Vec<Assignment>,
}

/// Author, license and other metadata of a model.
#[derive(clap::Args)]
pub(super) struct MetadataArgs {
    /// Author of the model
    #[arg(long, value_name = "TEXT", help_heading = "Metadata")]
    author: Option<String>,
    /// License of the model
    #[arg(long, value_name = "TEXT", help_heading = "Metadata")]
    license: Option<String>,
    /// Description of the model
    #[arg(long, value_name = "TEXT", help_heading = "Metadata")]
    description: Option<String>,
    /// Version of the model
    #[arg(long, value_name = "TEXT", help_heading = "Metadata")]
    model_version: Option<String>,
    /// Other metadata entry; repeatable. An empty text removes the entry
    #[arg(long, value_name = "NAME=TEXT", help_heading = "Metadata")]
    metadata: Vec<Assignment>,
}

impl MetadataArgs {
    /// Changes the metadata that the options name.
    pub(super) fn apply(&self, metadata: &mut Metadata) -> Result<(), Failure> {
        let texts = [
            (&self.author, &mut metadata.author),
            (&self.license, &mut metadata.license),
            (&self.description, &mut metadata.short_description),
            (&self.model_version, &mut metadata.version),
        ];
        for (given, held) in texts {
            if let Some(given) = given {
                held.clone_from(given);
            }
        }
        for (index, Assignment { name, text }) in self.metadata.iter().enumerate() {
            if self.metadata[..index].iter().any(|earlier| earlier.name == *name) {
                return Err(Failure::user(format_args!(
                    "the metadata entry `{name}` is specified twice"
                )));
            }
            match text.is_empty() {
                true => metadata.user_defined.retain(|(key, _)| key != name),
                false => metadata.set_user_defined(name, text),
            }
        }
        Ok(())
    }
}

/// `NAME=TEXT`.
#[derive(Clone, Debug)]
pub(super) struct Assignment {
    pub(super) name: String,
    pub(super) text: String,
}

impl FromStr for Assignment {
    type Err = String;

    fn from_str(text: &str) -> Result<Assignment, String> {
        match text.split_once('=') {
            Some((name, text)) if !name.trim().is_empty() => {
                Ok(Assignment { name: name.trim().to_owned(), text: text.to_owned() })
            }
            _ => Err("expected `NAME=TEXT`".to_owned()),
        }
    }
}

fn in_one_line(error: Error) -> String {
    match error.hint() {
        Some(hint) => format!("{error}; {hint}"),
        None => error.to_string(),
    }
}

fn parse_image(text: &str) -> Result<ImageEdit, String> {
    text.parse().map_err(in_one_line)
}

fn parse_type(text: &str) -> Result<(String, ElementType), String> {
    let Assignment { name, text } = text.parse()?;
    Ok((name, ElementType::parse(text.trim()).map_err(in_one_line)?))
}

impl InterfaceArgs {
    /// The edits that the options request.
    pub(super) fn edits(&self) -> Result<Vec<Edit>, Failure> {
        let mut edits: Vec<Edit> = self.images.iter().cloned().map(Edit::Image).collect();
        edits.extend(self.types.iter().map(|(name, dtype)| {
            let (name, dtype) = (name.clone(), *dtype);
            Edit::Retype { name, dtype }
        }));
        if let Some(labels) = &self.labels {
            edits.push(Edit::Classify(Classifier {
                labels: read_labels(labels)?,
                output: self.scores.clone(),
                name: self.label_name.clone(),
            }));
        }
        let described = self.descriptions.iter().cloned();
        edits.extend(described.map(|Assignment { name, text }| Edit::Describe { name, text }));
        Ok(edits)
    }
}

/// Labels in a file, or in the option itself.
fn read_labels(text: &str) -> Result<Labels, Failure> {
    let path = Path::new(text);
    if path.is_file() || !text.contains(',') {
        let read = std::fs::read_to_string(path);
        let read = read.map_err(|error| {
            Failure::user(format_args!("cannot read {}: {error}", path.display()))
                .hint(Some("pass a file with one label per line, or labels separated by commas"))
        })?;
        return Ok(Labels::from_lines(&read));
    }
    Ok(Labels::Texts(text.split(',').map(|label| label.trim().to_owned()).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_dtype_edits_and_label_lists() {
        assert_eq!(parse_type("x=fp16"), Ok(("x".to_owned(), ElementType::Fp16)));
        assert!(parse_type("x").unwrap_err().contains("NAME=TEXT"));
        assert!(parse_type("x=fp64").unwrap_err().contains("`fp16`, `fp32`"));
        let labels = read_labels("cat, dog").map_err(|_| ()).expect("a list");
        assert_eq!(labels, Labels::Texts(vec!["cat".to_owned(), "dog".to_owned()]));
        assert!(read_labels("missing.txt").is_err());
    }
}
