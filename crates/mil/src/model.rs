//! Models: a program, and what callers are told about it.
//!
//! Packages and compiled models both hold a [`Model`]; `package` reads and writes it as
//! `.mlpackage`. The description says in terms of features (images, arrays, class labels) what the
//! program's functions take and give in terms of tensors.
//!
//! A description has one of two forms. With one function, inputs and outputs stand in
//! [`ModelDescription`] itself; with several, in [`ModelDescription::functions`]. Use
//! [`Model::signature`] rather than either.

mod describe;
mod feature;
pub mod shapes;

pub use describe::{DescribeError, describe};
pub use feature::{
    ArrayDataType, ArrayType, ColorSpace, DefaultElement, FeatureDescription, FeatureType,
    ImageSize, ImageSizes, ImageType, KeyType, SequenceType, ShapeFlexibility, SizeRange,
};

use coremill_tensor::Buffer;

use crate::ir::{Program, UnknownFields};

/// A model whose body is an ML Program.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Model {
    /// The version of the format, 9 for iOS 18 for instance.
    pub specification_version: i32,
    /// Whether it can be trained on the device; no ML Program can, but the field exists.
    pub is_updatable: bool,
    /// What callers are told.
    pub description: ModelDescription,
    /// What is run.
    pub program: Program,
    /// What else the package holds.
    pub extra: Extra,
    /// What the model file holds that this crate does not know.
    pub unknown: UnknownFields,
}

/// What callers of a model are told.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelDescription {
    /// The inputs of the only function; empty if [`ModelDescription::functions`] is used.
    pub inputs: Vec<FeatureDescription>,
    /// The outputs of the only function.
    pub outputs: Vec<FeatureDescription>,
    /// The states of the only function.
    pub states: Vec<FeatureDescription>,
    /// The output of a classifier that holds the label; empty for other models.
    pub predicted_feature_name: String,
    /// The output of a classifier that holds the probabilities; empty for other models.
    pub predicted_probabilities_name: String,
    /// The functions of a model with several.
    pub functions: Vec<FunctionDescription>,
    /// The function that is run when the caller names none; empty for a model with one.
    pub default_function: String,
    /// Notes for people.
    pub metadata: Option<Metadata>,
    /// What the model file holds that this crate does not know.
    pub unknown: UnknownFields,
}

/// What callers are told about one function of several.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FunctionDescription {
    /// The function of the program.
    pub name: String,
    /// What it takes.
    pub inputs: Vec<FeatureDescription>,
    /// What it gives.
    pub outputs: Vec<FeatureDescription>,
    /// What it keeps between predictions.
    pub states: Vec<FeatureDescription>,
    /// The output of a classifier that holds the label; empty for other functions.
    pub predicted_feature_name: String,
    /// The output of a classifier that holds the probabilities; empty for other functions.
    pub predicted_probabilities_name: String,
    /// What the model file holds that this crate does not know.
    pub unknown: UnknownFields,
}

/// Notes for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// What the model does.
    pub short_description: String,
    /// The model's version, in its author's counting.
    pub version: String,
    /// Who made it.
    pub author: String,
    /// Under which terms it may be used.
    pub license: String,
    /// Notes under names of their own, `com.github.apple.coremltools.version` for instance, sorted
    /// by name.
    pub user_defined: Vec<(String, String)>,
    /// What the model file holds that this crate does not know.
    pub unknown: UnknownFields,
}

/// What a package holds beside the model and its weights, kept as it was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extra {
    /// Files that the program does not refer to, sorted by path.
    pub files: Vec<ExtraFile>,
    /// Entries of the manifest other than the model's and its weights', sorted by identifier.
    pub items: Vec<ManifestItem>,
}

/// A file of a package that the program does not refer to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtraFile {
    /// The path inside the package, its parts separated by `/`.
    pub path: String,
    /// The content, usually mapped from the file.
    pub content: Buffer,
}

/// An entry of a package's manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ManifestItem {
    /// The identifier, shaped like a UUID.
    pub identifier: String,
    /// The path inside the package's `Data` directory, its parts separated by `/`.
    pub path: String,
    /// A short name.
    pub name: String,
    /// Who made the item, in the form of a reversed domain name.
    pub author: String,
    /// What the item is.
    pub description: String,
}

/// What a function takes and gives, whichever form the description has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Signature<'m> {
    /// The function of the program.
    pub name: &'m str,
    /// What it takes.
    pub inputs: &'m [FeatureDescription],
    /// What it gives.
    pub outputs: &'m [FeatureDescription],
    /// What it keeps between predictions.
    pub states: &'m [FeatureDescription],
    /// The output of a classifier that holds the label.
    pub predicted_feature_name: Option<&'m str>,
    /// The output of a classifier that holds the probabilities.
    pub predicted_probabilities_name: Option<&'m str>,
}

/// The function that a description without functions describes, if the program has several.
const MAIN_FUNCTION: &str = "main";

impl Model {
    /// The function that is run when the caller names none.
    pub fn default_function_name(&self) -> &str {
        if !self.description.default_function.is_empty() {
            return &self.description.default_function;
        }
        match self.program.functions.as_slice() {
            [only] => &only.name,
            _ => MAIN_FUNCTION,
        }
    }

    /// What the function of that name takes and gives; none if the description does not tell.
    pub fn signature(&self, function: &str) -> Option<Signature<'_>> {
        if self.description.functions.is_empty() {
            let name = self.default_function_name();
            return (name == function).then(|| self.description.own_signature(name));
        }
        let found = self.description.functions.iter().find(|found| found.name == function);
        found.map(FunctionDescription::signature)
    }

    /// What each described function takes and gives, in the order of the description.
    pub fn signatures(&self) -> Vec<Signature<'_>> {
        if self.description.functions.is_empty() {
            return vec![self.description.own_signature(self.default_function_name())];
        }
        self.description.functions.iter().map(FunctionDescription::signature).collect()
    }
}

impl ModelDescription {
    /// The inputs, outputs and states that stand in the description itself, as a function's of this name.
    pub fn own_signature<'m>(&'m self, name: &'m str) -> Signature<'m> {
        Signature {
            name,
            inputs: &self.inputs,
            outputs: &self.outputs,
            states: &self.states,
            predicted_feature_name: not_empty(&self.predicted_feature_name),
            predicted_probabilities_name: not_empty(&self.predicted_probabilities_name),
        }
    }
}

impl FunctionDescription {
    fn signature(&self) -> Signature<'_> {
        Signature {
            name: &self.name,
            inputs: &self.inputs,
            outputs: &self.outputs,
            states: &self.states,
            predicted_feature_name: not_empty(&self.predicted_feature_name),
            predicted_probabilities_name: not_empty(&self.predicted_probabilities_name),
        }
    }
}

impl Signature<'_> {
    /// The input of that name.
    pub fn input(&self, name: &str) -> Option<&FeatureDescription> {
        self.inputs.iter().find(|feature| feature.name == name)
    }

    /// The output of that name.
    pub fn output(&self, name: &str) -> Option<&FeatureDescription> {
        self.outputs.iter().find(|feature| feature.name == name)
    }

    /// The state of that name.
    pub fn state(&self, name: &str) -> Option<&FeatureDescription> {
        self.states.iter().find(|feature| feature.name == name)
    }
}

impl Metadata {
    /// The note under a name.
    pub fn user_defined(&self, name: &str) -> Option<&str> {
        let found = self.user_defined.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Sets the note under a name.
    pub fn set_user_defined(&mut self, name: impl Into<String>, value: impl Into<String>) {
        let (name, value) = (name.into(), value.into());
        match self.user_defined.binary_search_by(|(key, _)| key.cmp(&name)) {
            Ok(at) => self.user_defined[at].1 = value,
            Err(at) => self.user_defined.insert(at, (name, value)),
        }
    }
}

fn not_empty(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::{Function, Opset};

    fn feature(name: &str) -> FeatureDescription {
        FeatureDescription::new(name, FeatureType::Double)
    }

    #[test]
    fn a_description_without_functions_is_that_of_the_only_function() {
        let mut model = Model::default();
        model.program.functions.push(Function::new("forward", Opset::Ios15));
        model.description.inputs.push(feature("x"));
        assert_eq!(model.default_function_name(), "forward");
        let signature = model.signature("forward").expect("described");
        assert!(signature.input("x").is_some());
        assert_eq!(signature.predicted_feature_name, None);
        assert_eq!(model.signature("main"), None);
        assert_eq!(model.signatures(), vec![signature]);
    }

    #[test]
    fn functions_have_signatures_of_their_own() {
        let mut model = Model::default();
        for (name, input) in [("prompt", "tokens"), ("step", "token")] {
            model.program.functions.push(Function::new(name, Opset::Ios18));
            model.description.functions.push(FunctionDescription {
                name: name.into(),
                inputs: vec![feature(input)],
                ..FunctionDescription::default()
            });
        }
        assert_eq!(model.default_function_name(), "main");
        model.description.default_function = "step".into();
        assert_eq!(model.default_function_name(), "step");
        assert!(model.signature("step").expect("described").input("token").is_some());
        assert!(model.signature("prompt").expect("described").input("token").is_none());
        assert_eq!(model.signature("main"), None);
    }

    #[test]
    fn notes_stay_sorted_and_distinct() {
        let mut metadata = Metadata::default();
        for (name, value) in [("b", "1"), ("a", "2"), ("b", "3")] {
            metadata.set_user_defined(name, value);
        }
        assert_eq!(metadata.user_defined("b"), Some("3"));
        assert_eq!(metadata.user_defined[0].0, "a");
        assert_eq!(metadata.user_defined.len(), 2);
    }
}
