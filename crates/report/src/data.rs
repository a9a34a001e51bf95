//! What the page shows, as data. The page's script reads it as JSON; its form is this module.

use serde::{Deserialize, Serialize};

/// The version of the form of [`Report`].
pub const FORMAT_VERSION: u32 = 1;

/// Everything that a page shows.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// [`FORMAT_VERSION`].
    pub format_version: u32,
    /// What the page is about.
    pub title: String,
    /// What made the page.
    pub generator: String,
    /// The summary.
    pub facts: Vec<Fact>,
    /// What a reader must know first.
    pub findings: Vec<Finding>,
    /// The models.
    pub models: Vec<Model>,
    /// The ExecuTorch program around them, if there is one.
    pub program: Option<Program>,
    /// How far values lie from a reference.
    pub drift: Option<Drift>,
    /// How long operations take.
    pub timing: Option<Timing>,
    /// What differs between the first model and the second.
    pub changes: Option<Changes>,
    /// Inputs and outputs of the run that are pictures.
    pub pictures: Vec<Picture>,
}

/// A line of the summary.
#[derive(Clone, Debug, Serialize)]
pub struct Fact {
    /// What it is about.
    pub label: String,
    /// What it says.
    pub value: String,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Worth knowing.
    #[default]
    Note,
    /// The model runs, but slower or less exactly than its author may expect.
    Warning,
    /// The model does not run, or gives wrong numbers.
    Error,
}

/// What a reader must know.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What it is, in a line.
    pub title: String,
    /// The details and the remedy.
    pub detail: String,
    /// The operation that it concerns.
    pub place: Option<Place>,
}

/// An operation of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Place {
    /// The position of the model.
    pub model: usize,
    /// The position of the function.
    pub function: usize,
    /// The position of the operation.
    pub op: usize,
}

/// A model.
#[derive(Clone, Debug, Serialize)]
pub struct Model {
    /// Its name in the report.
    pub name: String,
    /// The summary.
    pub facts: Vec<Fact>,
    /// The functions.
    pub functions: Vec<Function>,
    /// The weights, largest first.
    pub weights: Vec<Weight>,
    /// The machine whose compute plan says where operations run; none where that is an estimate.
    pub planned: Option<String>,
}

/// A function.
#[derive(Clone, Debug, Serialize)]
pub struct Function {
    /// The name.
    pub name: String,
    /// The opset.
    pub opset: &'static str,
    /// What it takes: name and type.
    pub inputs: Vec<Feature>,
    /// What it gives.
    pub outputs: Vec<Feature>,
    /// What it keeps.
    pub states: Vec<Feature>,
    /// By the position of an input of the program, its position among inputs and then states.
    pub input_order: Vec<usize>,
    /// The operations that compute, in order; those of nested blocks follow the block that holds their operation.
    pub ops: Vec<Op>,
    /// The bytes of activations that are needed after each operation, 0 where a shape is unknown.
    pub live_bytes: Vec<u64>,
}

/// An input, an output or a state.
#[derive(Clone, Debug, Serialize)]
pub struct Feature {
    /// The name.
    pub name: String,
    /// The type.
    #[serde(rename = "type")]
    pub ty: String,
    /// The position of the operation that computes it.
    pub op: Option<usize>,
}

/// An operation.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Op {
    /// What it does, `conv` for instance.
    #[serde(rename = "type")]
    pub kind: String,
    /// The first value that it gives.
    pub name: String,
    /// Where the page files it: the path of the module, or what the name says of it.
    pub module: String,
    /// The operation whose block holds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<usize>,
    /// What it takes: an operation's position, or −1 − an input's.
    pub from: Vec<i64>,
    /// The types that it gives.
    pub types: Vec<String>,
    /// Its arguments: parameter and text.
    pub arguments: Vec<(String, String)>,
    /// The weights that it takes, by their positions in the model.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub weights: Vec<usize>,
    /// The ATen operator that it was made for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operator: Option<String>,
    /// The line of Python that it comes from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The code of that line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// An estimate of the floating-point operations, a multiply-add counted as two.
    #[serde(skip_serializing_if = "is_zero")]
    pub flops: u64,
    /// The bytes of what it gives.
    #[serde(skip_serializing_if = "is_zero")]
    pub bytes: u64,
    /// Why it leaves the Neural Engine: an estimate, unless there is a plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leaves: Option<String>,
    /// Where Core ML runs it, by the plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<Device>,
    /// The share of the whole cost that Core ML estimates, by the plan.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
    /// The step of the method that runs it, for ExecuTorch programs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<usize>,
    /// Diagnostics: severity and text.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub marks: Vec<(Severity, String)>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A weight.
#[derive(Clone, Debug, Serialize)]
pub struct Weight {
    /// The value that holds it.
    pub name: String,
    /// The type that it expands to.
    #[serde(rename = "type")]
    pub ty: String,
    /// `dense`, or the operation that expands it.
    pub form: String,
    /// The bytes that it takes.
    pub bytes: u64,
    /// How many elements it has.
    pub elements: u64,
    /// Its elements; none if they are not at hand.
    pub histogram: Option<Histogram>,
}

/// How elements are distributed.
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
    /// How many are NaN or infinite.
    pub non_finite: usize,
    /// How many elements were looked at.
    pub sampled: usize,
    /// Counts in equal ranges from `min` to `max`.
    pub counts: Vec<u32>,
}

/// An ExecuTorch program.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Program {
    /// The methods.
    pub methods: Vec<Method>,
}

/// A method of a program.
#[derive(Clone, Debug, Serialize)]
pub struct Method {
    /// The name.
    pub name: String,
    /// Its steps in order: delegates and the kernels between them.
    pub steps: Vec<Step>,
    /// What crosses from one step to another.
    pub crossings: Vec<CrossingValue>,
}

/// A value that crosses from one step to another.
#[derive(Clone, Debug, Serialize)]
pub struct CrossingValue {
    /// The value.
    pub value: String,
    /// Its type.
    #[serde(rename = "type")]
    pub ty: String,
    /// Its bytes at its largest.
    pub bytes: u64,
    /// The step that it leaves; none for inputs of the method.
    pub from: Option<usize>,
    /// The step that it enters; none for outputs of the method.
    pub to: Option<usize>,
}

/// A part of a method.
#[derive(Clone, Debug, Serialize)]
pub struct Step {
    /// `delegate` or `kernels`.
    pub kind: &'static str,
    /// What is called.
    pub label: String,
    /// How many instructions it stands for.
    pub calls: usize,
    /// The model that a delegate runs.
    pub model: Option<usize>,
    /// The bytes of what a delegate is made from.
    pub stored: u64,
}

/// How far values lie from a reference.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Drift {
    /// The reference.
    pub reference: String,
    /// What was compared with it.
    pub other: String,
    /// The outputs.
    pub outputs: Vec<DriftRow>,
    /// The values in between, in the order in which they are computed.
    pub values: Vec<DriftRow>,
    /// What the values are in each: how many the reference and the other compute.
    pub computed: [usize; 2],
}

/// How far a value lies from a reference.
#[derive(Clone, Debug, Serialize)]
pub struct DriftRow {
    /// The value.
    pub name: String,
    /// What computes it.
    pub op: String,
    /// Signal to noise in decibels; none if nothing differs.
    pub snr: Option<f64>,
    /// The largest distance.
    pub max_absolute: f64,
    /// The largest distance in parts of the largest element.
    pub max_relative: f64,
    /// How many elements are NaN or infinite in one of the two alone.
    pub unlike: usize,
    /// How many elements there are.
    pub elements: usize,
    /// Why it could not be compared.
    pub problem: Option<String>,
    /// The operation.
    pub place: Option<Place>,
    /// Pictures of outputs that are pictures: the reference's and the other's.
    pub pictures: Vec<Picture>,
    /// Errors of an output's elements.
    pub errors: Option<Histogram>,
}

/// A grey or coloured picture, brought to bytes.
#[derive(Clone, Debug, Serialize)]
pub struct Picture {
    /// What it shows.
    pub label: String,
    /// Columns.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// Three bytes a pixel, row by row, in base 64.
    pub rgb: String,
}

/// How long operations take.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Timing {
    /// Where they ran.
    pub where_: String,
    /// The milliseconds of a run.
    pub total: f64,
    /// Steps in order.
    pub spans: Vec<SpanRow>,
}

/// A step of a run.
#[derive(Clone, Debug, Serialize)]
pub struct SpanRow {
    /// What was done.
    pub label: String,
    /// The first value that it gives.
    pub value: String,
    /// When it began, in milliseconds.
    pub start: f64,
    /// How long it took without the steps inside it, in milliseconds.
    pub own: f64,
    /// How long it took, in milliseconds.
    pub elapsed: f64,
    /// The operation.
    pub place: Option<Place>,
}

/// What differs between two models. Its JSON form is stable: fields are only added while `format_version` stays.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Changes {
    /// The version of this form.
    pub format_version: u32,
    /// Facts about the whole models that differ: label, before, after.
    pub facts: Vec<(String, String, String)>,
    /// The functions.
    pub functions: Vec<FunctionChanges>,
}

/// What differs between two functions.
#[derive(Clone, Debug, Default, Serialize)]
pub struct FunctionChanges {
    /// The name.
    pub name: String,
    /// The operations before and after; none where there is no such function.
    pub operations: [Option<usize>; 2],
    /// How many operations are the same.
    pub same: usize,
    /// What differs, in the order of the new function.
    pub changes: Vec<Change>,
}

/// Something that differs.
#[derive(Clone, Debug, Serialize)]
pub struct Change {
    /// What became of it.
    pub kind: ChangeKind,
    /// What it is: an operation's kind, `input`, `output` or `state`.
    pub what: String,
    /// Its name, the new one if it has two.
    pub name: String,
    /// The module of an operation.
    pub module: String,
    /// What differs: label, before, after.
    pub differences: Vec<(String, String, String)>,
    /// The position of the operation before.
    pub before: Option<usize>,
    /// The position of the operation after.
    pub after: Option<usize>,
}

/// What became of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ChangeKind {
    /// It is only in the old model.
    Removed,
    /// It is only in the new model.
    Added,
    /// It is in both.
    Changed,
}

impl Changes {
    /// Whether nothing differs.
    pub fn is_empty(&self) -> bool {
        let same = |function: &FunctionChanges| {
            function.changes.is_empty() && function.operations.iter().all(Option::is_some)
        };
        self.facts.is_empty() && self.functions.iter().all(same)
    }
}

/// What computes models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Device {
    /// The processor.
    Cpu,
    /// The graphics processor.
    Gpu,
    /// The Neural Engine.
    NeuralEngine,
    /// One that is newer than this crate.
    #[serde(other)]
    Other,
}

impl Device {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Device::Cpu => "CPU",
            Device::Gpu => "GPU",
            Device::NeuralEngine => "Neural Engine",
            Device::Other => "another device",
        }
    }
}
