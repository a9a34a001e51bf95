//! Models: a program with the description that callers see.
//!
//! Packages and compiled models both contain a [`Model`]; `package` reads and writes it as `.mlpackage`. The
//! description declares the inputs and outputs of the program's functions as features (images, arrays, class
//! labels), while the program declares them as tensors.
//!
//! A description has one of two forms. With one function, inputs and outputs are in [`ModelDescription`]
//! itself; with several functions, they are in [`ModelDescription::functions`]. Use [`Model::signature`],
//! which handles both forms.

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
    /// The version of the format, for instance 9 for iOS 18.
    pub specification_version: i32,
    /// Whether the model can be trained on the device. No ML Program can, but the format has the field.
    pub is_updatable: bool,
    /// The description that callers see.
    pub description: ModelDescription,
    /// The program that is run.
    pub program: Program,
    /// Other contents of the package.
    pub extra: Extra,
    /// Fields of the model file that this crate does not know.
    pub unknown: UnknownFields,
}

/// Description of a model for its callers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelDescription {
    /// The inputs of the only function; empty if [`ModelDescription::functions`] is used.
    pub inputs: Vec<FeatureDescription>,
    /// The outputs of the only function.
    pub outputs: Vec<FeatureDescription>,
    /// The states of the only function.
    pub states: Vec<FeatureDescription>,
    /// Name of the output with a classifier's label; empty for other models.
    pub predicted_feature_name: String,
    /// Name of the output with a classifier's probabilities; empty for other models.
    pub predicted_probabilities_name: String,
    /// Descriptions of the functions; empty for a model with one function.
    pub functions: Vec<FunctionDescription>,
    /// The function that runs by default; empty for a model with one function.
    pub default_function: String,
    /// Author, license and other notes.
    pub metadata: Option<Metadata>,
    /// Fields of the model file that this crate does not know.
    pub unknown: UnknownFields,
}

/// Description of one function of a multifunction model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FunctionDescription {
    /// Name of the function in the program.
    pub name: String,
    /// The inputs.
    pub inputs: Vec<FeatureDescription>,
    /// The outputs.
    pub outputs: Vec<FeatureDescription>,
    /// The states, which persist between predictions.
    pub states: Vec<FeatureDescription>,
    /// Name of the output with a classifier's label; empty for other functions.
    pub predicted_feature_name: String,
    /// Name of the output with a classifier's probabilities; empty for other functions.
    pub predicted_probabilities_name: String,
    /// Fields of the model file that this crate does not know.
    pub unknown: UnknownFields,
}

/// Notes about a model for its users.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// Short description of the model's purpose.
    pub short_description: String,
    /// The author's version number of the model.
    pub version: String,
    /// The author.
    pub author: String,
    /// The license.
    pub license: String,
    /// User-defined entries such as `com.github.apple.coremltools.version`, sorted by name.
    pub user_defined: Vec<(String, String)>,
    /// Fields of the model file that this crate does not know.
    pub unknown: UnknownFields,
}

/// Contents of a package other than the model and its weights, preserved unchanged.
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
    /// Creator of the item, as a reversed domain name.
    pub author: String,
    /// Description of the item.
    pub description: String,
}

/// Inputs, outputs and states of a function, independent of the form of the description.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Signature<'m> {
    /// Name of the function in the program.
    pub name: &'m str,
    /// The inputs.
    pub inputs: &'m [FeatureDescription],
    /// The outputs.
    pub outputs: &'m [FeatureDescription],
    /// The states, which persist between predictions.
    pub states: &'m [FeatureDescription],
    /// Name of the output with a classifier's label.
    pub predicted_feature_name: Option<&'m str>,
    /// Name of the output with a classifier's probabilities.
    pub predicted_probabilities_name: Option<&'m str>,
}

/// Metadata key of the outputs that are fed back to inputs in the next step. The value is a JSON list of objects
/// with `buffer`, `input`, `output`, and `first`, the integers of the input in the first step.
pub const FED_KEY: &str = "coremill.fed";

/// The function that a description without functions refers to if the program has several functions.
const MAIN_FUNCTION: &str = "main";

impl Model {
    /// Name of the function that runs by default.
    pub fn default_function_name(&self) -> &str {
        if !self.description.default_function.is_empty() {
            return &self.description.default_function;
        }
        match self.program.functions.as_slice() {
            [only] => &only.name,
            _ => MAIN_FUNCTION,
        }
    }

    /// Inputs, outputs and states of a function; `None` if the description has no such function.
    pub fn signature(&self, function: &str) -> Option<Signature<'_>> {
        if self.description.functions.is_empty() {
            let name = self.default_function_name();
            return (name == function).then(|| self.description.own_signature(name));
        }
        let found = self.description.functions.iter().find(|found| found.name == function);
        found.map(FunctionDescription::signature)
    }

    /// Inputs, outputs and states of each described function, in the order of the description.
    pub fn signatures(&self) -> Vec<Signature<'_>> {
        if self.description.functions.is_empty() {
            return vec![self.description.own_signature(self.default_function_name())];
        }
        self.description.functions.iter().map(FunctionDescription::signature).collect()
    }
}

impl ModelDescription {
    /// The inputs, outputs and states in the description itself, as the signature of a function with this
    /// name.
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
    /// Returns the input with this name.
    pub fn input(&self, name: &str) -> Option<&FeatureDescription> {
        self.inputs.iter().find(|feature| feature.name == name)
    }

    /// Returns the output with this name.
    pub fn output(&self, name: &str) -> Option<&FeatureDescription> {
        self.outputs.iter().find(|feature| feature.name == name)
    }

    /// Returns the state with this name.
    pub fn state(&self, name: &str) -> Option<&FeatureDescription> {
        self.states.iter().find(|feature| feature.name == name)
    }
}

impl Metadata {
    /// Returns the user-defined entry with this name.
    pub fn user_defined(&self, name: &str) -> Option<&str> {
        let found = self.user_defined.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str())
    }

    /// Sets a user-defined entry.
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
    fn single_function_uses_top_level_signature() {
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
    fn each_function_has_separate_signature() {
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
    fn user_defined_metadata_is_sorted_and_unique() {
        let mut metadata = Metadata::default();
        for (name, value) in [("b", "1"), ("a", "2"), ("b", "3")] {
            metadata.set_user_defined(name, value);
        }
        assert_eq!(metadata.user_defined("b"), Some("3"));
        assert_eq!(metadata.user_defined[0].0, "a");
        assert_eq!(metadata.user_defined.len(), 2);
    }
}
