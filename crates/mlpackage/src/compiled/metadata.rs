//! `metadata.json`: properties of a compiled model for Xcode and other tools. Core ML does not read it.
//!
//! Keys and layout follow format 3.0 of Apple's compiler. Apple writes the keys in the order of a hash table,
//! which differs from file to file.

use std::collections::BTreeSet;

use coremill_tensor::DType;
use serde_json::{Map, Value, json};

use super::histogram::{self, camel_case};
use crate::pipeline::Pipeline;
use coremill_mil::ir::{Binding, ConstantData, Function, Op, Opset};
use coremill_mil::model::{
    ArrayDataType, ArrayType, ColorSpace, FeatureDescription, FeatureType, ImageSizes, ImageType,
    KeyType, Model, ModelDescription, ShapeFlexibility, Signature, SizeRange,
};
use coremill_mil::ops::OpKind;

/// The text of `metadata.json`. `name` is the name of the class that Xcode would generate for the model.
pub(super) fn write(model: &Model, name: &str) -> String {
    let default_name = model.default_function_name();
    let default = model.program.function(default_name).or(model.program.functions.first());
    let functions = model.description.is_multifunction().then(|| {
        let signatures = model.signatures().into_iter();
        let entries = signatures.filter_map(|signature| {
            let function = model.program.function(signature.name)?;
            Some(function_entry(&signature, function))
        });
        (default_name, entries.collect())
    });
    let shown = Shown {
        description: &model.description,
        signature: model.signature(default_name),
        specification_version: model.specification_version,
        is_updatable: model.is_updatable,
        run: default.into_iter().collect(),
        functions,
        model_type: json!({ "name": ML_PROGRAM }),
    };
    shown.text(name)
}

/// The text of a pipeline's `metadata.json`.
pub(super) fn write_pipeline(pipeline: &Pipeline, name: &str) -> String {
    let run = pipeline
        .stages
        .iter()
        .filter_map(|stage| stage.model.program.function(stage.model.default_function_name()));
    let structure: Vec<Value> =
        pipeline.stages.iter().map(|_| json!({ "name": ML_PROGRAM })).collect();
    let shown = Shown {
        description: &pipeline.description,
        signature: Some(pipeline.description.own_signature("")),
        specification_version: pipeline.specification_version,
        is_updatable: pipeline.is_updatable,
        run: run.collect(),
        functions: None,
        model_type: json!({ "name": "MLModelType_pipeline", "structure": structure }),
    };
    shown.text(name)
}

const ML_PROGRAM: &str = "MLModelType_mlProgram";

/// Data for the text.
struct Shown<'m> {
    description: &'m ModelDescription,
    signature: Option<Signature<'m>>,
    specification_version: i32,
    is_updatable: bool,
    /// The functions whose operations are counted.
    run: Vec<&'m Function>,
    /// For a multifunction model, the default function and an entry for each function.
    functions: Option<(&'m str, Vec<Value>)>,
    model_type: Value,
}

impl Shown<'_> {
    fn text(self, name: &str) -> String {
        let mut keys = Map::new();
        keys.insert("metadataOutputVersion".into(), json!("3.0"));
        if let Some(precision) = storage_precision(&self.run) {
            keys.insert("storagePrecision".into(), json!(precision));
        }
        let metadata = self.description.metadata.as_ref();
        if let Some(metadata) = metadata {
            for (key, text) in [
                ("shortDescription", &metadata.short_description),
                ("author", &metadata.author),
                ("license", &metadata.license),
                ("version", &metadata.version),
            ] {
                if !text.is_empty() {
                    keys.insert(key.into(), json!(text));
                }
            }
        }
        let schema = |pick: fn(&Signature<'_>) -> Value| {
            self.signature.as_ref().map_or_else(|| json!([]), pick)
        };
        keys.insert("outputSchema".into(), schema(|signature| features(signature.outputs)));
        keys.insert("modelParameters".into(), json!([]));
        keys.insert("specificationVersion".into(), json!(self.specification_version));
        let (default_name, functions) = self.functions.unzip();
        if let Some(functions) = functions {
            keys.insert("functions".into(), Value::Array(functions));
        }
        let histogram = json!(histogram::of(&self.run));
        keys.insert("mlProgramOperationTypeHistogram".into(), histogram);
        keys.insert("computePrecision".into(), json!(compute_precision(&self.run)));
        keys.insert("isUpdatable".into(), json!(if self.is_updatable { "1" } else { "0" }));
        keys.insert("stateSchema".into(), schema(|signature| features(signature.states)));
        keys.insert("availability".into(), availability(self.specification_version));
        keys.insert("modelType".into(), self.model_type);
        let user_defined = metadata.into_iter().flat_map(|metadata| &metadata.user_defined);
        let user_defined: Map<_, _> =
            user_defined.map(|(key, value)| (key.clone(), json!(value))).collect();
        keys.insert("userDefinedMetadata".into(), Value::Object(user_defined));
        keys.insert("inputSchema".into(), schema(|signature| features(signature.inputs)));
        if let Some(name) = default_name {
            keys.insert("defaultFunctionName".into(), json!(name));
        }
        if let Some(label) = self.signature.and_then(|signature| signature.predicted_feature_name) {
            keys.insert("predictedFeatureName".into(), json!(label));
        }
        keys.insert("generatedClassName".into(), json!(name));
        keys.insert("method".into(), json!("predict"));

        let mut text = String::new();
        layout(&mut text, &json!([keys]), 0);
        text
    }
}

fn function_entry(signature: &Signature<'_>, function: &Function) -> Value {
    let mut keys = Map::new();
    keys.insert("computePrecision".into(), json!(compute_precision(&[function])));
    if let Some(precision) = storage_precision(&[function]) {
        keys.insert("storagePrecision".into(), json!(precision));
    }
    keys.insert("outputSchema".into(), features(signature.outputs));
    keys.insert("stateSchema".into(), features(signature.states));
    keys.insert("name".into(), json!(signature.name));
    keys.insert("mlProgramOperationTypeHistogram".into(), json!(histogram::of(&[function])));
    keys.insert("inputSchema".into(), features(signature.inputs));
    Value::Object(keys)
}

fn features(features: &[FeatureDescription]) -> Value {
    features.iter().map(feature).collect()
}

fn feature(feature: &FeatureDescription) -> Value {
    let mut keys = Map::new();
    keys.insert("isOptional".into(), json!(if feature.is_optional { "1" } else { "0" }));
    let formatted = match &feature.ty {
        FeatureType::MultiArray(array) => format!("MultiArray ({})", array_keys(array, &mut keys)),
        FeatureType::State(array) => {
            let formatted = format!("State ({})", array_keys(array, &mut keys));
            keys.remove("hasShapeFlexibility");
            formatted
        }
        FeatureType::Image(image) => image_keys(image, &mut keys),
        FeatureType::Int64 => "Int64".to_owned(),
        FeatureType::Double => "Double".to_owned(),
        FeatureType::String => "String".to_owned(),
        FeatureType::Dictionary(key) => {
            let key = key_name(*key);
            keys.insert("keyType".into(), json!(key));
            format!("Dictionary ({key} → Double)")
        }
        FeatureType::Sequence(sequence) => format!("Sequence ({})", key_name(sequence.element)),
        FeatureType::Unspecified => "Invalid".to_owned(),
    };
    let kind = formatted.split(' ').next().unwrap_or_default().to_owned();
    keys.insert("formattedType".into(), json!(formatted));
    keys.insert("type".into(), json!(kind));
    keys.insert("shortDescription".into(), json!(feature.short_description));
    keys.insert("name".into(), json!(feature.name));
    Value::Object(keys)
}

fn key_name(key: Option<KeyType>) -> &'static str {
    match key {
        Some(KeyType::Int64) => "Int64",
        Some(KeyType::String) => "String",
        None => "Invalid",
    }
}

/// Adds the keys of an array, and returns the text in the parentheses of its type.
fn array_keys(array: &ArrayType, keys: &mut Map<String, Value>) -> String {
    let data_type = match array.data_type {
        ArrayDataType::Float32 => "Float32",
        ArrayDataType::Double => "Double",
        ArrayDataType::Int32 => "Int32",
        ArrayDataType::Int8 => "Int8",
        ArrayDataType::Float16 => "Float16",
        ArrayDataType::Other(_) => "Invalid",
    };
    // An array may have only ranges; the lower bounds are then its default shape.
    let lower: Vec<i64> = match &array.flexibility {
        ShapeFlexibility::Ranged(ranges) => ranges.iter().map(|range| range.lower as i64).collect(),
        ShapeFlexibility::Enumerated(shapes) => shapes.first().cloned().unwrap_or_default(),
        ShapeFlexibility::Fixed => Vec::new(),
    };
    let shape = if array.shape.is_empty() { &lower } else { &array.shape };
    keys.insert("dataType".into(), json!(data_type));
    keys.insert("shape".into(), json!(bracketed(shape)));
    let flexibility = match &array.flexibility {
        ShapeFlexibility::Fixed => None,
        ShapeFlexibility::Ranged(all) => {
            Some(("shapeRange", ranges_bracketed(all), joined(all.iter().map(range), " × ")))
        }
        ShapeFlexibility::Enumerated(shapes) => Some((
            "enumeratedShapes",
            format!("[{}]", joined(shapes.iter().map(|shape| bracketed(shape)), ", ")),
            joined(shapes.iter().map(|shape| joined(shape, " × ")), " | "),
        )),
    };
    keys.insert("hasShapeFlexibility".into(), json!(if flexibility.is_some() { "1" } else { "0" }));
    if let Some((key, value, shown)) = flexibility {
        keys.insert("shapeFlexibility".into(), json!(shown));
        keys.insert(key.into(), json!(value));
    }
    if shape.is_empty() {
        data_type.to_owned()
    } else {
        format!("{data_type} {}", joined(shape, " × "))
    }
}

fn image_keys(image: &ImageType, keys: &mut Map<String, Value>) -> String {
    let (color_space, kind) = match image.color_space {
        ColorSpace::Rgb => ("RGB", "Color"),
        ColorSpace::Bgr => ("BGR", "Color"),
        ColorSpace::Grayscale => ("Grayscale", "Grayscale"),
        ColorSpace::GrayscaleFloat16 => ("GrayscaleFloat16", "GrayscaleFloat16"),
        ColorSpace::Other(_) => ("Invalid", "Invalid"),
    };
    keys.insert("width".into(), json!(image.width.to_string()));
    keys.insert("height".into(), json!(image.height.to_string()));
    keys.insert("colorspace".into(), json!(color_space));
    keys.insert("isColor".into(), json!(if kind == "Color" { "1" } else { "0" }));
    let flexibility = match &image.sizes {
        ImageSizes::Fixed => None,
        ImageSizes::Ranged { width, height } => Some((
            "sizeRange",
            ranges_bracketed(&[*height, *width]),
            format!("{} × {}", range(width), range(height)),
        )),
        ImageSizes::Enumerated(sizes) => {
            let pairs = sizes.iter().map(|size| format!("[{}, {}]", size.height, size.width));
            let shown = sizes.iter().map(|size| format!("{} × {}", size.width, size.height));
            Some(("enumeratedSizes", format!("[{}]", joined(pairs, ", ")), joined(shown, " | ")))
        }
    };
    keys.insert("hasSizeFlexibility".into(), json!(if flexibility.is_some() { "1" } else { "0" }));
    if let Some((key, value, shown)) = flexibility {
        keys.insert("sizeFlexibility".into(), json!(shown));
        keys.insert(key.into(), json!(value));
    }
    format!("Image ({kind} {} × {})", image.width, image.height)
}

fn bracketed(shape: &[i64]) -> String {
    format!("[{}]", joined(shape, ", "))
}

fn ranges_bracketed(ranges: &[SizeRange]) -> String {
    let ranges = ranges.iter().map(|range| format!("[{}, {}]", range.lower, range.upper));
    format!("[{}]", joined(ranges, ", "))
}

fn range(range: &SizeRange) -> String {
    match range.upper_bound() {
        Some(upper) if upper == range.lower => upper.to_string(),
        Some(upper) => format!("{}...{upper}", range.lower),
        None => format!("{}...", range.lower),
    }
}

fn joined<T: ToString>(items: impl IntoIterator<Item = T>, separator: &str) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(separator)
}

/// The first release of each system that supports the specification version.
fn availability(specification_version: i32) -> Value {
    let opset = Opset::from_specification_version(specification_version).unwrap_or(Opset::Ios26);
    let [(_, phone), (_, mac), (_, watch), (_, tv)] = opset.availability();
    let vision = match opset {
        Opset::Ios15 | Opset::Ios16 | Opset::Ios17 => "1.0",
        Opset::Ios18 => "2.0",
        Opset::Ios26 => "26.0",
    };
    json!({
        "macOS": mac,
        "tvOS": tv,
        "visionOS": vision,
        "watchOS": watch,
        "iOS": phone,
        "macCatalyst": phone,
    })
}

/// The operations of several functions, each with its function.
fn ops<'f>(functions: &[&'f Function]) -> impl Iterator<Item = (&'f Function, &'f Op)> {
    functions.iter().flat_map(|&function| function.all_ops().map(move |(_, op)| (function, op)))
}

/// The types of operands and results, except strings and booleans: a single type, or for instance `Mixed
/// (Float16, Int32)`.
fn compute_precision(functions: &[&Function]) -> String {
    let mut found = BTreeSet::new();
    for (function, op) in ops(functions) {
        if op.is_constant() {
            continue;
        }
        let operands = op.all_bindings().map(|(_, binding)| match binding {
            Binding::Value(value) => &function.value(*value).ty,
            Binding::Literal(constant) => &constant.ty,
        });
        let outputs = op.outputs.iter().map(|&output| &function.value(output).ty);
        for ty in operands.chain(outputs) {
            let tensor = ty.unwrap_state().as_tensor();
            if let Some(tensor) = tensor
                && !matches!(tensor.dtype, DType::Bool | DType::String)
            {
                found.insert(type_name(tensor.dtype));
            }
        }
    }
    mixed(found).unwrap_or_default()
}

/// The types of the weights in files; `None` if there are no such weights.
fn storage_precision(functions: &[&Function]) -> Option<String> {
    let mut found = BTreeSet::new();
    for (_, op) in ops(functions) {
        for constant in op.constants() {
            if let (ConstantData::Weight(_), Some(tensor)) =
                (&constant.data, constant.tensor_type())
            {
                found.insert(stored_as(op, tensor.dtype));
            }
        }
    }
    mixed(found)
}

/// Description of an operation's stored weights: `Palettized (4 bits)`, `Sparse`, or their type.
fn stored_as(op: &Op, dtype: DType) -> String {
    match op.kind() {
        Some(OpKind::ConstexprLutToDense | OpKind::ConstexprLutToSparse) => {
            // Up to iOS 17 indices are packed into bytes, and their width follows from the length of the
            // table.
            let named =
                op.bindings("indices").first().or(op.bindings("indices_nonzero_data").first());
            let indices = match named {
                Some(Binding::Literal(indices)) => indices.tensor_type().map(|tensor| tensor.dtype),
                _ => None,
            };
            let table = op.attributes.get("lut").and_then(|lut| lut.tensor_type()?.element_count());
            let bits = match (indices, table) {
                (Some(dtype), _) => dtype.bits().unwrap_or(8),
                (None, Some(entries)) => entries.max(2).next_power_of_two().trailing_zeros(),
                (None, None) => dtype.bits().unwrap_or(8),
            };
            format!("Palettized ({bits} bits)")
        }
        Some(OpKind::ConstexprSparseToDense | OpKind::ConstexprSparseBlockwiseShiftScale) => {
            "Sparse".to_owned()
        }
        _ => type_name(dtype),
    }
}

fn mixed(found: BTreeSet<String>) -> Option<String> {
    match found.len() {
        0 => None,
        1 => found.into_iter().next(),
        _ => Some(format!("Mixed ({})", joined(found, ", "))),
    }
}

fn type_name(dtype: DType) -> String {
    match dtype {
        DType::Fp16 => "Float16".to_owned(),
        DType::Fp32 => "Float32".to_owned(),
        DType::Fp64 => "Double".to_owned(),
        dtype => match dtype.name().strip_prefix("uint") {
            Some(bits) => format!("UInt{bits}"),
            None => camel_case(dtype.name(), true),
        },
    }
}

/// Writes JSON in the layout of Apple's serializer: a space on both sides of the colon, and a blank line in
/// empty containers.
fn layout(out: &mut String, value: &Value, indent: usize) {
    let pad = |out: &mut String, indent: usize| out.extend(std::iter::repeat_n(' ', indent));
    match value {
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                out.push_str(if index > 0 { ",\n" } else { "\n" });
                pad(out, indent + 2);
                layout(out, item, indent + 2);
            }
            out.push_str(if items.is_empty() { "\n\n" } else { "\n" });
            pad(out, indent);
            out.push(']');
        }
        Value::Object(entries) => {
            out.push('{');
            for (index, (key, entry)) in entries.iter().enumerate() {
                out.push_str(if index > 0 { ",\n" } else { "\n" });
                pad(out, indent + 2);
                out.push_str(&json!(key).to_string());
                out.push_str(" : ");
                layout(out, entry, indent + 2);
            }
            out.push_str(if entries.is_empty() { "\n\n" } else { "\n" });
            pad(out, indent);
            out.push('}');
        }
        other => out.push_str(&other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coremill_mil::ir::Type;
    use coremill_mil::model::ImageSize;

    #[test]
    fn formats_every_feature_type_and_availability() {
        let mut model = Model { specification_version: 9, ..Model::default() };
        let mut function = Function::new("main", Opset::Ios15);
        let body = function.body;
        let ty = Type::tensor(DType::Fp16, &[2]);
        let x = function.add_input(body, "x", ty.clone());
        let op = Op::new(OpKind::Relu).with("x", Binding::Value(x));
        function.add_op(body, op, [("y".to_owned(), ty)]);
        model.program.functions.push(function);
        let range = |lower, upper| SizeRange { lower, upper };
        let image = |color_space, sizes| {
            FeatureType::Image(ImageType { width: 20, height: 10, color_space, sizes })
        };
        let array = |flexibility| {
            FeatureType::MultiArray(ArrayType {
                shape: vec![1, 4],
                data_type: ArrayDataType::Int32,
                flexibility,
                default: None,
            })
        };
        let shown = [
            (
                image(ColorSpace::Rgb, ImageSizes::Fixed),
                "Image (Color 20 × 10)",
                ("colorspace", "RGB"),
            ),
            (
                image(
                    ColorSpace::Grayscale,
                    ImageSizes::Ranged { width: range(1, 5), height: range(2, -1) },
                ),
                "Image (Grayscale 20 × 10)",
                ("sizeRange", "[[2, -1], [1, 5]]"),
            ),
            (
                image(
                    ColorSpace::Bgr,
                    ImageSizes::Enumerated(vec![ImageSize { width: 3, height: 4 }]),
                ),
                "Image (Color 20 × 10)",
                ("sizeFlexibility", "3 × 4"),
            ),
            (
                array(ShapeFlexibility::Fixed),
                "MultiArray (Int32 1 × 4)",
                ("hasShapeFlexibility", "0"),
            ),
            (
                array(ShapeFlexibility::Ranged(vec![range(1, 1), range(2, -1)])),
                "MultiArray (Int32 1 × 4)",
                ("shapeFlexibility", "1 × 2..."),
            ),
            (
                array(ShapeFlexibility::Enumerated(vec![vec![1, 4], vec![1, 5]])),
                "MultiArray (Int32 1 × 4)",
                ("shapeFlexibility", "1 × 4 | 1 × 5"),
            ),
            (FeatureType::Int64, "Int64", ("type", "Int64")),
            (FeatureType::Double, "Double", ("type", "Double")),
            (FeatureType::String, "String", ("type", "String")),
            (
                FeatureType::Dictionary(Some(KeyType::String)),
                "Dictionary (String → Double)",
                ("keyType", "String"),
            ),
        ];
        model.description.outputs = shown
            .iter()
            .enumerate()
            .map(|(index, (ty, ..))| FeatureDescription::new(format!("f{index}"), ty.clone()))
            .collect();
        let metadata: Value = serde_json::from_str(&write(&model, "m")).expect("JSON");
        for (index, (_, formatted, (key, value))) in shown.iter().enumerate() {
            let feature = &metadata[0]["outputSchema"][index];
            assert_eq!(feature["formattedType"], *formatted);
            assert_eq!(feature[key], *value, "{feature}");
        }
        for (version, systems) in [
            (6, ["12.0", "15.0", "8.0"]),
            (7, ["13.0", "16.0", "9.0"]),
            (8, ["14.0", "17.0", "10.0"]),
            (9, ["15.0", "18.0", "11.0"]),
            (10, ["26.0", "26.0", "26.0"]),
        ] {
            model.specification_version = version;
            let metadata: Value = serde_json::from_str(&write(&model, "m")).expect("JSON");
            let available = &metadata[0]["availability"];
            let found = ["macOS", "iOS", "watchOS"].map(|system| available[system].as_str());
            assert_eq!(found, systems.map(Some));
        }
    }

    #[test]
    fn json_layout_puts_blank_line_in_empty_containers() {
        let mut text = String::new();
        layout(&mut text, &json!([{ "a": [], "b": {}, "c": "×\"" }]), 0);
        assert_eq!(
            text,
            "[\n  {\n    \"a\" : [\n\n    ],\n    \"b\" : {\n\n    },\n    \"c\" : \"×\\\"\"\n  }\n]"
        );
    }
}
