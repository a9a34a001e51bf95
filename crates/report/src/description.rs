//! The fields of a model's description as text, for comparisons.
//!
//! Every struct is destructured without `..`, so that new fields must be handled or ignored by
//! name.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use coremill_mil::ir::{
    Attributes, Constant, ConstantData, Function, Program, UnknownFields, Weight,
};
use coremill_mil::model::{
    self, ArrayType, Extra, ExtraFile, FeatureDescription, FeatureType, FunctionDescription,
    ImageType, ManifestItem, Metadata, Model, ModelDescription, Signature,
};

/// Field texts by label. Empty fields are absent.
pub type Fields = BTreeMap<String, String>;

/// Maximum length of a text.
const MAX_SHOWN: usize = 200;

/// The fields that belong to the model as a whole.
pub(crate) fn of_model(model: &Model) -> Fields {
    let Model { specification_version, is_updatable, description, program, extra, unknown } = model;
    let ModelDescription {
        // These belong to functions, see `of_function`.
        inputs: _,
        outputs: _,
        states: _,
        predicted_feature_name: _,
        predicted_probabilities_name: _,
        functions: _,
        default_function: _,
        metadata,
        unknown: unknown_of_description,
    } = description;
    let Program { functions: _, attributes, documentation, unknown: unknown_of_program } = program;
    let mut fields = Fields::new();
    tell(&mut fields, "specification version", specification_version);
    tell(&mut fields, "updatable", if *is_updatable { "yes" } else { "" });
    tell(&mut fields, "default function", model.default_function_name());
    tell(&mut fields, "documentation", documentation);
    tell_attributes(&mut fields, "program", attributes);
    tell_unknown(&mut fields, "the model", unknown);
    tell_unknown(&mut fields, "the description", unknown_of_description);
    tell_unknown(&mut fields, "the program", unknown_of_program);
    if let Some(metadata) = metadata {
        of_metadata(&mut fields, metadata);
    }
    let Extra { files, items } = extra;
    for ExtraFile { path, content } in files {
        let bytes = content.as_bytes();
        tell(&mut fields, &format!("file {path}"), content_of(bytes));
    }
    for item in items {
        let ManifestItem { identifier, path, name, author, description } = item;
        let text = format!("{path}, {name}, {author}, {description}");
        tell(&mut fields, &format!("manifest item {identifier}"), text);
    }
    fields
}

fn of_metadata(fields: &mut Fields, metadata: &Metadata) {
    let Metadata { short_description, version, author, license, user_defined, unknown } = metadata;
    tell(fields, "description", short_description);
    tell(fields, "version", version);
    tell(fields, "author", author);
    tell(fields, "license", license);
    for (key, value) in user_defined {
        fields.insert(format!("metadata {key}"), shortened(value));
    }
    tell_unknown(fields, "the metadata", unknown);
}

/// The fields that belong to a function, but to none of its features.
pub(crate) fn of_function(model: &Model, function: &Function) -> Fields {
    let mut fields = Fields::new();
    tell_attributes(&mut fields, "function", &function.attributes);
    tell_unknown(&mut fields, "the function", &function.unknown);
    if let Some(signature) = model.signature(&function.name) {
        tell(&mut fields, "class label", signature.predicted_feature_name.unwrap_or_default());
        let probabilities = signature.predicted_probabilities_name;
        tell(&mut fields, "class probabilities", probabilities.unwrap_or_default());
    }
    for described in &model.description.functions {
        let FunctionDescription {
            name,
            // These belong to the signature.
            inputs: _,
            outputs: _,
            states: _,
            predicted_feature_name: _,
            predicted_probabilities_name: _,
            unknown,
        } = described;
        if *name == function.name {
            tell_unknown(&mut fields, "the description", unknown);
        }
    }
    fields
}

/// The fields of an input, an output or a state.
pub(crate) fn of_feature(feature: &FeatureDescription) -> Fields {
    // The name identifies the feature.
    let FeatureDescription { name: _, short_description, ty, is_optional, unknown } = feature;
    let mut fields = Fields::new();
    tell(&mut fields, "description", short_description);
    tell(&mut fields, "optional", if *is_optional { "yes" } else { "" });
    tell_unknown(&mut fields, "the feature", unknown);
    let kind = match ty {
        FeatureType::Unspecified => "nothing",
        FeatureType::Int64 => "integer",
        FeatureType::Double => "number",
        FeatureType::String => "text",
        FeatureType::Image(image) => {
            let ImageType { width, height, color_space, sizes } = image;
            tell(&mut fields, "size", format_args!("{width} × {height}"));
            tell(&mut fields, "color space", color_space);
            tell(&mut fields, "sizes", format_args!("{sizes:?}"));
            "image"
        }
        FeatureType::MultiArray(array) => {
            of_array(&mut fields, array);
            "array"
        }
        FeatureType::Dictionary(keys) => {
            tell(&mut fields, "keys", format_args!("{keys:?}"));
            "dictionary"
        }
        FeatureType::Sequence(sequence) => {
            tell(&mut fields, "elements", format_args!("{sequence:?}"));
            "sequence"
        }
        FeatureType::State(array) => {
            of_array(&mut fields, array);
            "state"
        }
    };
    tell(&mut fields, "kind", kind);
    fields
}

fn of_array(fields: &mut Fields, array: &ArrayType) {
    let ArrayType { shape, data_type, flexibility, default } = array;
    tell(fields, "shape", format_args!("{shape:?}"));
    tell(fields, "elements", data_type);
    tell(fields, "accepts", format_args!("{flexibility:?}"));
    if let Some(default) = default {
        tell(fields, "default element", format_args!("{default:?}"));
    }
}

fn tell_attributes(fields: &mut Fields, whose: &str, attributes: &Attributes) {
    for (name, constant) in attributes.iter() {
        tell(fields, &format!("attribute {name} of the {whose}"), text_of(constant));
    }
}

fn tell_unknown(fields: &mut Fields, whose: &str, unknown: &UnknownFields) {
    let UnknownFields(bytes) = unknown;
    if !bytes.is_empty() {
        tell(fields, &format!("unknown fields of {whose}"), content_of(bytes));
    }
}

fn tell(fields: &mut Fields, label: &str, value: impl ToString) {
    let value = value.to_string();
    if !value.is_empty() {
        fields.insert(label.to_owned(), shortened(&value));
    }
}

/// Formats a constant. Different constants have different texts.
fn text_of(constant: &Constant) -> String {
    let Constant { ty, data } = constant;
    let listed = |texts: Vec<String>| format!("[{}]", texts.join(", "));
    match data {
        ConstantData::Bytes(bytes) if bytes.len() <= 16 => {
            format!("{ty} {:02x?}", bytes.as_bytes())
        }
        ConstantData::Bytes(bytes) => format!("{ty} of {}", content_of(bytes.as_bytes())),
        ConstantData::Strings(texts) => match &texts[..] {
            [only] => format!("{only:?}"),
            texts => listed(texts.iter().map(|text| format!("{text:?}")).collect()),
        },
        ConstantData::Weight(Weight { data, place }) => match data {
            Some(bytes) => format!("{ty} of {}", content_of(bytes.as_bytes())),
            None => format!("{ty} at {place:?}"),
        },
        ConstantData::Sequence(parts) => listed(parts.iter().map(text_of).collect()),
        ConstantData::Entries(entries) => {
            let entry = |(key, value): &(Constant, Constant)| {
                format!("{}: {}", text_of(key), text_of(value))
            };
            listed(entries.iter().map(entry).collect())
        }
    }
}

/// Describes bytes by length and hash.
fn content_of(bytes: &[u8]) -> String {
    format!("{} bytes, hash {:016x}", bytes.len(), hash(bytes))
}

/// Truncates a text to [`MAX_SHOWN`] characters and appends a hash.
fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_SHOWN) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}… (hash {:016x})", &text[..end], hash(text.as_bytes())),
    }
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

/// Lists the parts of a model's description that MIL text cannot represent, such as metadata and
/// kinds of features. `program` is the program with the shapes that the description allows.
///
/// Metadata that converters add about themselves is ignored.
pub fn lost_in_text(model: &Model, program: &Program) -> Vec<String> {
    // The description that would be created from the text.
    let Ok(again) = model::describe(program.clone()) else { return Vec::new() };
    let is_note = |label: &str| {
        let by_converter = ["metadata com.github.", "metadata coremill", "metadata com.coremill"];
        label != "specification version" && !by_converter.iter().any(|own| label.starts_with(own))
    };
    let differences = differing(&of_model(model), &of_model(&again));
    let labels = differences.into_iter().map(|(label, ..)| label);
    let mut lost: Vec<String> = labels.filter(|label| is_note(label)).collect();
    for signature in model.signatures() {
        let Some(told) = again.signature(signature.name) else { continue };
        let classes =
            |signature: &Signature<'_>| signature.predicted_feature_name.map(str::to_owned);
        if classes(&signature) != classes(&told) {
            lost.push("the class label".to_owned());
        }
        let pairs = [
            ("input", signature.inputs, told.inputs),
            ("output", signature.outputs, told.outputs),
            ("state", signature.states, told.states),
        ];
        for (what, features, told) in pairs {
            for feature in features {
                let Some(told) = told.iter().find(|told| told.name == feature.name) else {
                    continue;
                };
                let differences = differing(&of_feature(feature), &of_feature(told));
                let labels: Vec<_> = differences.into_iter().map(|(label, ..)| label).collect();
                if !labels.is_empty() {
                    lost.push(format!("{what} `{}` ({})", feature.name, labels.join(", ")));
                }
            }
        }
    }
    lost
}

/// Fields that differ: label, text before and text after. A missing text is empty.
pub(crate) fn differing(before: &Fields, after: &Fields) -> Vec<(String, String, String)> {
    let labels = before.keys().chain(after.keys().filter(|label| !before.contains_key(*label)));
    let text = |fields: &Fields, label: &str| fields.get(label).cloned();
    let differs = labels.filter(|label| text(before, label) != text(after, label));
    let sides = |label: &String| {
        let [before, after] = [before, after].map(|fields| text(fields, label).unwrap_or_default());
        (label.clone(), before, after)
    };
    differs.map(sides).collect()
}
