//! Data of the report page. The page's script reads it as JSON.

pub use coremill::inspect::placement::Device;
use serde::Serialize;

/// Version of the JSON form of [`Report`].
pub const FORMAT_VERSION: u32 = 1;

/// Data of a report page.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// [`FORMAT_VERSION`].
    pub format_version: u32,
    /// Title of the page.
    pub title: String,
    /// Program that created the page.
    pub generator: String,
    /// Summary at the top.
    pub facts: Vec<Fact>,
    /// Findings to read first.
    pub findings: Vec<Finding>,
    /// Models in the report.
    pub models: Vec<Model>,
    /// The ExecuTorch program that contains the models.
    pub program: Option<Program>,
    /// Comparison with a reference.
    pub drift: Option<Drift>,
    /// Duration of operations.
    pub timing: Option<Timing>,
    /// Differences between the first and the second model.
    pub changes: Option<Changes>,
    /// Inputs and outputs of the run that are images.
    pub pictures: Vec<Picture>,
}

/// An entry of a summary.
#[derive(Clone, Debug, Serialize)]
pub struct Fact {
    /// Label of the entry.
    pub label: String,
    /// Text of the entry.
    pub value: String,
}

/// Severity of a finding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Information.
    #[default]
    Note,
    /// The model runs, but slower or less accurately than expected.
    Warning,
    /// The model does not run, or produces wrong numbers.
    Error,
}

/// A finding.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Finding {
    /// Severity of the finding.
    pub severity: Severity,
    /// Title in one line.
    pub title: String,
    /// Details and fix.
    pub detail: String,
    /// The operation concerned.
    pub place: Option<Place>,
}

/// Location of an operation in a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    /// Index of the model.
    pub model: usize,
    /// Index of the function.
    pub function: usize,
    /// Index of the operation.
    pub op: usize,
}

/// A model in a report.
#[derive(Clone, Debug, Serialize)]
pub struct Model {
    /// Name in the report.
    pub name: String,
    /// Summary of the model.
    pub facts: Vec<Fact>,
    /// Functions of the model.
    pub functions: Vec<Function>,
    /// Weights of the model, largest first.
    pub weights: Vec<Weight>,
    /// Machine of the compute plan that the devices come from; `None` for a forecast.
    pub planned: Option<String>,
    /// The chip of the forecast; `None` if a plan replaces it.
    pub forecast: Option<String>,
}

/// A function in a report.
#[derive(Clone, Debug, Serialize)]
pub struct Function {
    /// Name of the function.
    pub name: String,
    /// Opset of the function.
    pub opset: &'static str,
    /// Inputs of the function.
    pub inputs: Vec<Feature>,
    /// Outputs of the function.
    pub outputs: Vec<Feature>,
    /// States of the function.
    pub states: Vec<Feature>,
    /// Maps the index of an input in the program to its index among inputs followed by states.
    pub input_order: Vec<usize>,
    /// Operations without constants, in order. Operations of nested blocks follow the operation
    /// with the block.
    pub ops: Vec<Op>,
    /// Bytes of live activations after each operation. Unknown shapes count as 0.
    pub live_bytes: Vec<u64>,
}

/// An input, an output or a state.
#[derive(Clone, Debug, Serialize)]
pub struct Feature {
    /// Name of the feature.
    pub name: String,
    /// Type of the feature.
    #[serde(rename = "type")]
    pub ty: String,
    /// Index of the operation that computes it.
    pub op: Option<usize>,
}

/// An operation in a report.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Op {
    /// Kind of operation, such as `conv`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Name of the first output.
    pub name: String,
    /// Module under which the page lists it: a module path, or a guess from the name.
    pub module: String,
    /// Index of the operation with the enclosing block.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<usize>,
    /// Operands: the index of an operation, or −1 minus the index of an input.
    pub from: Vec<i64>,
    /// Types of the outputs.
    pub types: Vec<String>,
    /// Arguments: parameter and text.
    pub arguments: Vec<(String, String)>,
    /// Indices of the weights in the model.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub weights: Vec<usize>,
    /// ATen operator that the operation was lowered from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operator: Option<String>,
    /// Source location in Python.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The source line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Estimated floating-point operations; a multiply-add counts as two.
    #[serde(skip_serializing_if = "is_zero")]
    pub flops: u64,
    /// Bytes of the outputs.
    #[serde(skip_serializing_if = "is_zero")]
    pub bytes: u64,
    /// Why it is not on the Neural Engine, by the forecast or the plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leaves: Option<String>,
    /// Where Core ML runs it, by the forecast or the plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<Device>,
    /// Share of the model's cost according to the compute plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
    /// Index of the method's step that runs it, in ExecuTorch programs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<usize>,
    /// Diagnostics: severity and text.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub marks: Vec<(Severity, String)>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A weight in a report.
#[derive(Clone, Debug, Serialize)]
pub struct Weight {
    /// Name of the value.
    pub name: String,
    /// Type after decompression.
    #[serde(rename = "type")]
    pub ty: String,
    /// `dense`, or the operation that decompresses it.
    pub form: String,
    /// Stored bytes.
    pub bytes: u64,
    /// Number of elements.
    pub elements: u64,
    /// Distribution of the elements, `None` if unavailable.
    pub histogram: Option<Histogram>,
}

/// Distribution of elements.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Histogram {
    /// The smallest finite element.
    pub min: f32,
    /// The largest finite element.
    pub max: f32,
    /// The mean of the finite elements.
    pub mean: f64,
    /// The standard deviation of the finite elements.
    pub deviation: f64,
    /// The share of zeros.
    pub zeros: f64,
    /// Number of NaN and infinite elements.
    pub non_finite: usize,
    /// Number of sampled elements.
    pub sampled: usize,
    /// Counts in bins of equal width from `min` to `max`.
    pub counts: Vec<u32>,
}

/// An ExecuTorch program in a report.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Program {
    /// Methods of the program.
    pub methods: Vec<Method>,
}

/// A method of a program.
#[derive(Clone, Debug, Serialize)]
pub struct Method {
    /// Name of the method.
    pub name: String,
    /// Steps in order: delegates and the kernels between them.
    pub steps: Vec<Step>,
    /// Values passed between steps.
    pub crossings: Vec<CrossingValue>,
}

/// A value passed between steps.
#[derive(Clone, Debug, Serialize)]
pub struct CrossingValue {
    /// Name of the value.
    pub value: String,
    /// Type of the value.
    #[serde(rename = "type")]
    pub ty: String,
    /// Maximum size in bytes.
    pub bytes: u64,
    /// The step that computes it, `None` for inputs of the method.
    pub from: Option<usize>,
    /// The step that reads it, `None` for outputs of the method.
    pub to: Option<usize>,
}

/// A step of a method.
#[derive(Clone, Debug, Serialize)]
pub struct Step {
    /// `delegate` or `kernels`.
    pub kind: &'static str,
    /// Name of the delegate or kernel.
    pub label: String,
    /// Number of instructions.
    pub calls: usize,
    /// Index of the model that a delegate runs.
    pub model: Option<usize>,
    /// Bytes of a delegate's data.
    pub stored: u64,
}

/// Comparison of values with a reference.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Drift {
    /// Name of the reference.
    pub reference: String,
    /// Name of the compared model.
    pub other: String,
    /// Comparison of the outputs.
    pub outputs: Vec<DriftRow>,
    /// Comparison of intermediate values, in execution order.
    pub values: Vec<DriftRow>,
    /// Number of values that the reference and the other model compute.
    pub computed: [usize; 2],
}

/// Comparison of a value with the reference.
#[derive(Clone, Debug, Serialize)]
pub struct DriftRow {
    /// Name of the value.
    pub name: String,
    /// Operation that computes it.
    pub op: String,
    /// SNR in decibels, `None` if nothing differs.
    pub snr: Option<f64>,
    /// Maximum absolute error.
    pub max_absolute: f64,
    /// Maximum absolute error, relative to the largest element.
    pub max_relative: f64,
    /// Number of elements that are NaN or infinite in only one of the two.
    pub unlike: usize,
    /// Number of elements.
    pub elements: usize,
    /// The reason why it could not be compared.
    pub problem: Option<String>,
    /// Location of the operation.
    pub place: Option<Place>,
    /// Images of the reference and of the other output, if the output is an image.
    pub pictures: Vec<Picture>,
    /// Distribution of the errors of an output's elements.
    pub errors: Option<Histogram>,
}

/// A grayscale or color image with 8-bit channels.
#[derive(Clone, Debug, Serialize)]
pub struct Picture {
    /// Caption of the image.
    pub label: String,
    /// Number of columns.
    pub width: usize,
    /// Number of rows.
    pub height: usize,
    /// RGB pixels in row-major order, in base 64.
    pub rgb: String,
}

/// Duration of operations.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Timing {
    /// Device of the run.
    pub where_: String,
    /// Duration of the run in milliseconds.
    pub total: f64,
    /// Steps in order.
    pub spans: Vec<SpanRow>,
}

/// A step of a run.
#[derive(Clone, Debug, Serialize)]
pub struct SpanRow {
    /// Label of the step.
    pub label: String,
    /// Name of the first output.
    pub value: String,
    /// Start in milliseconds.
    pub start: f64,
    /// Duration without nested steps, in milliseconds.
    pub own: f64,
    /// Duration in milliseconds.
    pub elapsed: f64,
    /// Location of the operation.
    pub place: Option<Place>,
}

/// Differences between two models. The JSON form is stable: for the same `format_version`, fields
/// are only added.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Changes {
    /// Version of the JSON form.
    pub format_version: u32,
    /// Summary entries that differ: label, before, after.
    pub facts: Vec<(String, String, String)>,
    /// Differences of each function.
    pub functions: Vec<FunctionChanges>,
}

/// Differences between two functions.
#[derive(Clone, Debug, Default, Serialize)]
pub struct FunctionChanges {
    /// Name of the function.
    pub name: String,
    /// Number of operations before and after, `None` if the function does not exist.
    pub operations: [Option<usize>; 2],
    /// Number of unchanged operations.
    pub same: usize,
    /// Changes, in the order of the new function.
    pub changes: Vec<Change>,
    /// Operations of both that Core ML is forecast to run on other devices than before.
    pub moved: Vec<MovedOperation>,
}

/// An operation that Core ML is forecast to run on another device than before.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MovedOperation {
    /// The operation's kind.
    pub what: String,
    /// Its name after.
    pub name: String,
    /// The device before.
    pub before: Device,
    /// The device after.
    pub after: Device,
    /// Why it is not on the Neural Engine after.
    pub reason: Option<String>,
}

/// A change.
#[derive(Clone, Debug, Serialize)]
pub struct Change {
    /// Kind of change.
    pub kind: ChangeKind,
    /// Kind of the changed item: an operation's kind, `input`, `output` or `state`.
    pub what: String,
    /// Name of the item; the new one if renamed.
    pub name: String,
    /// Module of an operation.
    pub module: String,
    /// Differences: label, before, after.
    pub differences: Vec<(String, String, String)>,
    /// Index of the operation before.
    pub before: Option<usize>,
    /// Index of the operation after.
    pub after: Option<usize>,
}

/// Kind of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ChangeKind {
    /// Only in the old model.
    Removed,
    /// Only in the new model.
    Added,
    /// In both models.
    Changed,
}

impl Changes {
    /// Returns true if there are no differences.
    pub fn is_empty(&self) -> bool {
        let same = |function: &FunctionChanges| {
            function.changes.is_empty() && function.operations.iter().all(Option::is_some)
        };
        self.facts.is_empty() && self.functions.iter().all(same)
    }
}
