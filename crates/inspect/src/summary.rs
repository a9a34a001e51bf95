//! Summary of a model.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use coremill_mil::ir::{
    Binding, Constant, ConstantData, Dim, Function, Op, Opset, Type, ValueId, WeightPlace,
};
use coremill_mil::model::{
    ArrayType, ColorSpace, FeatureDescription, FeatureType, ImageSizes, KeyType, Model,
    ShapeFlexibility, SizeRange,
};
use coremill_mil::ops::OpKind;
use coremill_tensor::DType;
use serde::Serialize;

/// Summary of a model. The JSON form is stable: for the same `format_version`, fields are only
/// added.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Version of the JSON form.
    pub format_version: u32,
    /// Kind of model, always `mlProgram`.
    pub kind: &'static str,
    /// Version of the model format.
    pub specification_version: i32,
    /// First release of each system that runs the model.
    pub availability: Vec<Release>,
    /// The function that runs if the caller names none.
    pub default_function: String,
    /// Functions of the model.
    pub functions: Vec<FunctionSummary>,
    /// Weights of the model.
    pub weights: WeightSummary,
    /// Metadata of the model.
    pub metadata: MetadataSummary,
}

/// A release of an operating system.
#[derive(Clone, Debug, Serialize)]
pub struct Release {
    /// Name of the system, such as `iOS`.
    pub system: &'static str,
    /// Version of the release.
    pub version: &'static str,
}

/// Summary of a function.
#[derive(Clone, Debug, Serialize)]
pub struct FunctionSummary {
    /// Name of the function.
    pub name: String,
    /// Opset, such as `CoreML8`.
    pub opset: &'static str,
    /// Inputs of the function.
    pub inputs: Vec<FeatureSummary>,
    /// Outputs of the function.
    pub outputs: Vec<FeatureSummary>,
    /// States of the function.
    pub states: Vec<FeatureSummary>,
    /// Number of operations, without constants.
    pub operations: usize,
    /// Number of constants, including compressed ones.
    pub constants: usize,
    /// Number of each operation, without constants, most frequent first.
    pub histogram: Vec<OperationCount>,
    /// Number of computed values of each element type, most frequent first.
    pub computed_dtypes: Vec<DTypeCount>,
}

/// Count of an operation.
#[derive(Clone, Debug, Serialize)]
pub struct OperationCount {
    /// Name of the operation.
    pub op: String,
    /// Number of occurrences.
    pub count: usize,
}

/// Count of an element type.
#[derive(Clone, Debug, Serialize)]
pub struct DTypeCount {
    /// Name of the element type.
    pub dtype: &'static str,
    /// Number of values.
    pub count: usize,
}

/// An input, output or state.
#[derive(Clone, Debug, Serialize)]
pub struct FeatureSummary {
    /// Name of the feature.
    pub name: String,
    /// Kind of value: `multiArray`, `image`, `string`, `int64`, `double`, `dictionary`, `sequence`,
    /// `state`; `value` if the description does not specify it.
    pub kind: &'static str,
    /// Element type of an array, color space of an image, or key type of a dictionary.
    pub dtype: Option<String>,
    /// Shape. If several are allowed, the default.
    pub shape: Option<Vec<DimensionSize>>,
    /// Allowed shapes, if there are several.
    pub accepts: Option<AcceptedShapes>,
    /// Whether the input is optional.
    pub optional: bool,
    /// Description from the model.
    pub description: String,
}

/// Size of a dimension: a number in JSON, or an object with the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum DimensionSize {
    /// The size.
    Fixed(u64),
    /// The limits of a size that is not fixed.
    Open(SizeLimits),
}

/// Limits of a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SizeLimits {
    /// The smallest size.
    pub min: u64,
    /// The largest size; `None` if unbounded.
    pub max: Option<u64>,
}

/// Shapes that an input accepts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AcceptedShapes {
    /// Each accepted shape.
    Shapes(Vec<Vec<u64>>),
    /// The limits of each dimension. Sequences have the limits of their length.
    Ranges(Vec<SizeLimits>),
}

impl fmt::Display for DimensionSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DimensionSize::Fixed(size) => size.fmt(f),
            DimensionSize::Open(_) => f.write_str("?"),
        }
    }
}

impl fmt::Display for SizeLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.max {
            Some(max) if max == self.min => max.fmt(f),
            Some(max) => write!(f, "{}…{max}", self.min),
            None => write!(f, "{}…", self.min),
        }
    }
}

impl fmt::Display for AcceptedShapes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AcceptedShapes::Shapes(shapes) => {
                let shapes: Vec<_> = shapes.iter().map(|shape| times(shape)).collect();
                f.write_str(&shapes.join(", "))
            }
            AcceptedShapes::Ranges(ranges) => f.write_str(&times(ranges)),
        }
    }
}

/// Formats sizes with multiplication signs.
///
/// ```
/// assert_eq!(coremill_inspect::summary::times(&[1, 3, 224]), "1 × 3 × 224");
/// ```
pub fn times(sizes: &[impl ToString]) -> String {
    sizes.iter().map(ToString::to_string).collect::<Vec<_>>().join(" × ")
}

/// Summary of the weights. Weights that functions share count once.
#[derive(Clone, Debug, Serialize)]
pub struct WeightSummary {
    /// Number of elements after decompression.
    pub parameters: u64,
    /// Stored bytes.
    pub bytes: u64,
    /// Stored elements by element type, most bytes first.
    pub by_dtype: Vec<DTypeBytes>,
    /// All weights, largest first.
    pub largest: Vec<WeightEntry>,
    /// Weight files.
    pub files: Vec<String>,
}

/// Stored elements of one type.
#[derive(Clone, Debug, Serialize)]
pub struct DTypeBytes {
    /// Name of the element type.
    pub dtype: &'static str,
    /// Number of stored elements.
    pub elements: u64,
    /// Stored bytes.
    pub bytes: u64,
}

/// A weight.
#[derive(Clone, Debug, Serialize)]
pub struct WeightEntry {
    /// Name of the value.
    pub name: String,
    /// First function that uses the weight.
    pub function: String,
    /// Type of the value in MIL text.
    pub ty: String,
    /// Element type of the value.
    pub dtype: Option<&'static str>,
    /// Shape of the value.
    pub shape: Option<Vec<DimensionSize>>,
    /// `dense`, or the operation that decompresses the weight.
    pub storage: String,
    /// Stored bytes.
    pub bytes: u64,
}

/// Metadata of a model.
#[derive(Clone, Debug, Default, Serialize)]
pub struct MetadataSummary {
    /// Description of the model.
    pub description: String,
    /// Version assigned by the author.
    pub version: String,
    /// Author of the model.
    pub author: String,
    /// License of the model.
    pub license: String,
    /// Other entries.
    pub user_defined: BTreeMap<String, String>,
}

/// Minimum number of elements of a weight. Smaller tensors are arguments.
const SMALLEST_WEIGHT: u64 = 10;

/// Summarizes a model.
pub fn summarize(model: &Model) -> Summary {
    let mut weights = Weights::default();
    let functions = model.program.functions.iter();
    let functions = functions.map(|function| summarize_function(model, function, &mut weights));
    Summary {
        format_version: 2,
        kind: "mlProgram",
        specification_version: model.specification_version,
        availability: availability(model),
        default_function: model.default_function_name().to_owned(),
        functions: functions.collect(),
        weights: weights.finish(),
        metadata: metadata(model),
    }
}

/// The newer of the declared release and the release that the functions require.
fn availability(model: &Model) -> Vec<Release> {
    let opsets = model.program.functions.iter().map(|function| function.opset);
    let declared = Opset::from_specification_version(model.specification_version);
    let releases = declared.into_iter().chain(opsets).max().map(Opset::availability);
    let releases = releases.into_iter().flatten();
    releases.map(|(system, version)| Release { system, version }).collect()
}

fn metadata(model: &Model) -> MetadataSummary {
    let Some(metadata) = &model.description.metadata else { return MetadataSummary::default() };
    MetadataSummary {
        description: metadata.short_description.clone(),
        version: metadata.version.clone(),
        author: metadata.author.clone(),
        license: metadata.license.clone(),
        user_defined: metadata.user_defined.iter().cloned().collect(),
    }
}

fn summarize_function(
    model: &Model,
    function: &Function,
    weights: &mut Weights,
) -> FunctionSummary {
    let mut histogram: BTreeMap<&str, usize> = BTreeMap::new();
    let mut dtypes: BTreeMap<DType, usize> = BTreeMap::new();
    let mut constants = 0;
    let parts = operands_of_constexprs(function);
    for (_, op) in function.all_ops() {
        if op.is_constant() {
            constants += 1;
            weights.add(function, op, &parts);
            continue;
        }
        *histogram.entry(op.type_name()).or_default() += 1;
        for &output in &op.outputs {
            if let Some(tensor) = function.value(output).ty.as_tensor() {
                *dtypes.entry(tensor.dtype).or_default() += 1;
            }
        }
    }
    let signature = model.signature(&function.name);
    let (inputs, outputs, states) = match signature {
        Some(signature) => (
            signature.inputs.iter().map(describe_feature).collect(),
            signature.outputs.iter().map(describe_feature).collect(),
            signature.states.iter().map(describe_feature).collect(),
        ),
        None => undescribed(function),
    };
    let histogram =
        histogram.into_iter().map(|(op, count)| OperationCount { op: op.into(), count });
    let mut histogram: Vec<_> = histogram.collect();
    histogram.sort_by_key(|entry| std::cmp::Reverse(entry.count));
    let dtypes = dtypes.into_iter().map(|(dtype, count)| DTypeCount { dtype: dtype.name(), count });
    let mut computed_dtypes: Vec<_> = dtypes.collect();
    computed_dtypes.sort_by_key(|entry| std::cmp::Reverse(entry.count));
    FunctionSummary {
        name: function.name.clone(),
        opset: function.opset.name(),
        inputs,
        outputs,
        states,
        operations: histogram.iter().map(|entry| entry.count).sum(),
        constants,
        histogram,
        computed_dtypes,
    }
}

/// Inputs, outputs and states from the function's signature, for models without a description.
fn undescribed(
    function: &Function,
) -> (Vec<FeatureSummary>, Vec<FeatureSummary>, Vec<FeatureSummary>) {
    let feature = |name: &str, ty: &Type| {
        let tensor = ty.unwrap_state().as_tensor();
        FeatureSummary {
            name: name.to_owned(),
            kind: if matches!(ty, Type::State(_)) { "state" } else { "value" },
            dtype: tensor.map(|tensor| tensor.dtype.name().to_owned()),
            shape: tensor.map(|tensor| tensor.shape.iter().map(dimension).collect()),
            accepts: None,
            optional: false,
            description: String::new(),
        }
    };
    let features = |ids: &[_]| -> Vec<FeatureSummary> {
        let values = ids.iter().map(|&id| function.value(id));
        values.map(|value| feature(&value.name, &value.ty)).collect()
    };
    let (states, inputs) =
        features(function.inputs()).into_iter().partition(|feature| feature.kind == "state");
    (inputs, features(function.outputs()), states)
}

fn describe_feature(feature: &FeatureDescription) -> FeatureSummary {
    let mut summary = FeatureSummary {
        name: feature.name.clone(),
        kind: "value",
        dtype: None,
        shape: None,
        accepts: None,
        optional: feature.is_optional,
        description: feature.short_description.clone(),
    };
    match &feature.ty {
        FeatureType::Unspecified => {}
        FeatureType::Int64 => summary.kind = "int64",
        FeatureType::Double => summary.kind = "double",
        FeatureType::String => summary.kind = "string",
        FeatureType::Image(image) => {
            summary.kind = "image";
            summary.dtype = Some(color_space(image.color_space));
            summary.shape = Some(sizes(&[image.height, image.width]));
            summary.accepts = match &image.sizes {
                ImageSizes::Fixed => None,
                ImageSizes::Enumerated(sizes) => {
                    let sizes = sizes.iter().map(|size| vec![size.height, size.width]);
                    Some(AcceptedShapes::Shapes(sizes.collect()))
                }
                ImageSizes::Ranged { width, height } => {
                    Some(AcceptedShapes::Ranges(vec![limits(*height), limits(*width)]))
                }
            };
        }
        FeatureType::MultiArray(array) => {
            summary.kind = "multiArray";
            describe_array(array, &mut summary);
        }
        FeatureType::State(array) => {
            summary.kind = "state";
            describe_array(array, &mut summary);
        }
        FeatureType::Dictionary(key) => {
            summary.kind = "dictionary";
            summary.dtype = key.map(key_name);
        }
        FeatureType::Sequence(sequence) => {
            summary.kind = "sequence";
            summary.dtype = sequence.element.map(key_name);
            summary.accepts =
                sequence.length.map(|length| AcceptedShapes::Ranges(vec![limits(length)]));
        }
    }
    summary
}

fn describe_array(array: &ArrayType, summary: &mut FeatureSummary) {
    let dtype = array.data_type.dtype();
    summary.dtype =
        Some(dtype.map_or_else(|| array.data_type.to_string(), |dtype| dtype.to_string()));
    // Outputs whose shape depends on the inputs have no shape.
    summary.shape = (!array.shape.is_empty()).then(|| sizes(&array.shape));
    summary.accepts = match &array.flexibility {
        ShapeFlexibility::Fixed => None,
        ShapeFlexibility::Enumerated(shapes) => {
            let shapes = shapes.iter().map(|shape| shape.iter().copied().map(size).collect());
            Some(AcceptedShapes::Shapes(shapes.collect()))
        }
        ShapeFlexibility::Ranged(ranges) => {
            Some(AcceptedShapes::Ranges(ranges.iter().copied().map(limits).collect()))
        }
    };
}

/// A size in a description. Negative sizes, which the verifier rejects, count as 0.
fn size(size: i64) -> u64 {
    u64::try_from(size).unwrap_or(0)
}

fn sizes(shape: &[i64]) -> Vec<DimensionSize> {
    shape.iter().map(|&extent| DimensionSize::Fixed(size(extent))).collect()
}

fn dimension(dim: &Dim) -> DimensionSize {
    match dim.known() {
        Some(size) => DimensionSize::Fixed(size),
        None => DimensionSize::Open(SizeLimits { min: 0, max: None }),
    }
}

fn limits(range: SizeRange) -> SizeLimits {
    SizeLimits { min: range.lower, max: range.upper_bound() }
}

fn key_name(key: KeyType) -> String {
    match key {
        KeyType::Int64 => "int64".to_owned(),
        KeyType::String => "string".to_owned(),
    }
}

fn color_space(color_space: ColorSpace) -> String {
    match color_space {
        ColorSpace::Grayscale => "grayscale".to_owned(),
        ColorSpace::GrayscaleFloat16 => "grayscale fp16".to_owned(),
        ColorSpace::Rgb => "RGB".to_owned(),
        ColorSpace::Bgr => "BGR".to_owned(),
        ColorSpace::Other(code) => format!("color space {code}"),
    }
}

/// Weights found so far.
#[derive(Default)]
struct Weights {
    seen: HashSet<WeightPlace>,
    parameters: u64,
    stored: BTreeMap<DType, (u64, u64)>,
    entries: Vec<WeightEntry>,
}

impl Weights {
    /// Counts the weight of an operation, if it contains one.
    fn add(&mut self, function: &Function, op: &Op, parts: &HashSet<ValueId>) {
        let Some(&output) = op.outputs.first() else { return };
        let value = function.value(output);
        let count = value.ty.as_tensor().and_then(|tensor| tensor.element_count()).unwrap_or(0);
        let is_const = op.kind() == Some(OpKind::Const);
        let bytes: u64 = op.constants().map(|constant| self.store(constant)).sum();
        // A `const` that only feeds a compressed constant counts as part of it.
        let part = is_const && parts.contains(&output);
        if bytes == 0 || count < SMALLEST_WEIGHT {
            return;
        }
        if !part {
            self.parameters += count;
        }
        self.entries.push(WeightEntry {
            name: value.name.clone(),
            function: function.name.clone(),
            ty: value.ty.to_string(),
            dtype: value.ty.as_tensor().map(|tensor| tensor.dtype.name()),
            shape: value.ty.as_tensor().map(|tensor| tensor.shape.iter().map(dimension).collect()),
            storage: if is_const { "dense".to_owned() } else { op.type_name().to_owned() },
            bytes,
        });
    }

    /// Bytes of a constant. 0 if it was counted before.
    fn store(&mut self, constant: &Constant) -> u64 {
        let Some(tensor) = constant.tensor_type() else { return 0 };
        let (Some(count), Some(bytes)) = (tensor.element_count(), tensor.storage_bytes()) else {
            return 0;
        };
        if let ConstantData::Weight(weight) = &constant.data
            && let Some(place) = &weight.place
            && !self.seen.insert(place.clone())
        {
            return 0;
        }
        if count >= SMALLEST_WEIGHT {
            let stored = self.stored.entry(tensor.dtype).or_default();
            *stored = (stored.0 + count, stored.1 + bytes);
        }
        bytes
    }

    fn finish(mut self) -> WeightSummary {
        self.entries.sort_by_key(|entry| std::cmp::Reverse(entry.bytes));
        let by_dtype = self.stored.into_iter();
        let by_dtype = by_dtype.map(|(dtype, (elements, bytes))| DTypeBytes {
            dtype: dtype.name(),
            elements,
            bytes,
        });
        let mut by_dtype: Vec<_> = by_dtype.collect();
        by_dtype.sort_by_key(|entry| std::cmp::Reverse(entry.bytes));
        let mut files: Vec<_> = self.seen.into_iter().map(|place| place.file.to_string()).collect();
        files.sort();
        files.dedup();
        WeightSummary {
            parameters: self.parameters,
            bytes: by_dtype.iter().map(|entry| entry.bytes).sum(),
            by_dtype,
            largest: self.entries,
            files,
        }
    }
}

/// Values that only compressed constants use.
fn operands_of_constexprs(function: &Function) -> HashSet<ValueId> {
    let mut taken: HashMap<ValueId, bool> = HashMap::new();
    for (_, op) in function.all_ops() {
        let expands = op.kind().is_some_and(OpKind::is_constexpr);
        for (_, binding) in op.all_bindings() {
            if let Binding::Value(value) = binding {
                *taken.entry(*value).or_insert(true) &= expands;
            }
        }
    }
    taken.into_iter().filter_map(|(value, only)| only.then_some(value)).collect()
}
