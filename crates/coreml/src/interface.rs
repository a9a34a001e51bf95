//! Descriptions of models and machines, from Core ML.

use std::ops::RangeInclusive;

use coremill_tensor::DType;

/// An array input, output or state of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ArrayFeature {
    /// The name.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Default shape; empty if Core ML does not specify it.
    pub shape: Vec<usize>,
    /// Allowed shapes.
    pub shapes: Shapes,
    /// Whether the feature is optional.
    pub optional: bool,
}

/// The allowed shapes of an array.
#[derive(Clone, Debug, PartialEq)]
pub enum Shapes {
    /// Only the default shape.
    Fixed,
    /// A list of shapes.
    Enumerated(Vec<Vec<usize>>),
    /// A range of sizes for each dimension.
    Ranges(Vec<RangeInclusive<usize>>),
}

impl ArrayFeature {
    /// Whether a shape is allowed.
    pub fn allows(&self, shape: &[usize]) -> bool {
        match &self.shapes {
            Shapes::Fixed => self.shape.is_empty() || self.shape == shape,
            Shapes::Enumerated(shapes) => shapes.iter().any(|known| known == shape),
            Shapes::Ranges(ranges) => {
                let pairs = ranges.iter().zip(shape);
                ranges.len() == shape.len()
                    && pairs.into_iter().all(|(range, size)| range.contains(size))
            }
        }
    }

    /// The allowed shapes, for messages.
    pub(crate) fn accepted(&self) -> String {
        match &self.shapes {
            Shapes::Fixed => format!("{:?}", self.shape),
            Shapes::Enumerated(shapes) => {
                let shapes: Vec<String> = shapes.iter().map(|shape| format!("{shape:?}")).collect();
                shapes.join(", ")
            }
            Shapes::Ranges(ranges) => {
                let range = |range: &RangeInclusive<usize>| match (range.start(), range.end()) {
                    (start, end) if start == end => start.to_string(),
                    (start, &usize::MAX) => format!("{start}.."),
                    (start, end) => format!("{start}..={end}"),
                };
                let ranges: Vec<String> = ranges.iter().map(range).collect();
                format!("[{}]", ranges.join(", "))
            }
        }
    }
}

/// A compute device.
#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    /// Kind of the device.
    pub kind: DeviceKind,
    /// Number of cores, if known; Core ML reports it for the Neural Engine.
    pub cores: Option<usize>,
}

/// Kind of a compute device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceKind {
    /// The CPU.
    Cpu,
    /// The GPU.
    Gpu,
    /// The Neural Engine.
    NeuralEngine,
    /// A kind that is newer than this crate.
    Other,
}

/// The devices on which Core ML plans to run a model's operations.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Operations of all functions in order; operations of nested blocks follow the operation that contains them.
    pub operations: Vec<PlannedOperation>,
}

/// An operation of a [`Plan`].
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedOperation {
    /// The function.
    pub function: String,
    /// The operator, such as `ios17.conv`.
    pub operator: String,
    /// Names of its results.
    pub outputs: Vec<String>,
    /// Estimated share of the total cost; `None` for constants.
    pub cost: Option<f64>,
    /// Preferred device; `None` for constants.
    pub preferred: Option<DeviceKind>,
    /// Supported devices.
    pub supported: Vec<DeviceKind>,
}

/// Information on the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chip {
    /// Name of the processor, such as `Apple M3 Pro`; on iOS the machine's, such as `iPhone16,1`.
    pub name: String,
    /// Model of the machine, such as `Mac15,6`.
    pub model: String,
    /// Build of the operating system, such as `24A335`.
    pub build: String,
    /// Number of Neural Engine cores; 0 if there is none.
    pub neural_engine_cores: usize,
}
