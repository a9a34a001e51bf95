//! What Core ML says about a model and a machine.

use std::ops::RangeInclusive;

use coremill_tensor::DType;

/// An input, an output or a state of a model that is an array.
#[derive(Clone, Debug, PartialEq)]
pub struct ArrayFeature {
    /// The name.
    pub name: String,
    /// The type of the elements.
    pub dtype: DType,
    /// The default shape; empty where Core ML does not say.
    pub shape: Vec<usize>,
    /// Which others there may be.
    pub shapes: Shapes,
    /// Whether it may be left out.
    pub optional: bool,
}

/// The shapes that an array may have.
#[derive(Clone, Debug, PartialEq)]
pub enum Shapes {
    /// The default one.
    Fixed,
    /// One of several.
    Enumerated(Vec<Vec<usize>>),
    /// Each dimension within its range.
    Ranges(Vec<RangeInclusive<usize>>),
}

impl ArrayFeature {
    /// Whether it may have a shape.
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

    /// The shapes that it may have, for people.
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

/// Something that computes models.
#[derive(Clone, Debug, PartialEq)]
pub struct Device {
    /// What it is.
    pub kind: DeviceKind,
    /// How many cores it has, where Core ML says so: of the Neural Engine.
    pub cores: Option<usize>,
}

/// What computes models.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceKind {
    /// The processor.
    Cpu,
    /// The graphics processor.
    Gpu,
    /// The Neural Engine.
    NeuralEngine,
    /// One that is newer than this crate.
    Other,
}

/// Which devices Core ML means to run a model's operations on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// The operations of all functions, in order, those of inner blocks behind the operation that they belong to.
    pub operations: Vec<PlannedOperation>,
}

/// An operation of a [`Plan`].
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedOperation {
    /// The function.
    pub function: String,
    /// The operator, as in `ios17.conv`.
    pub operator: String,
    /// The names of its results.
    pub outputs: Vec<String>,
    /// The share of the whole cost that Core ML estimates; none for constants.
    pub cost: Option<f64>,
    /// Where it is to run; none for constants.
    pub preferred: Option<DeviceKind>,
    /// Where it could run.
    pub supported: Vec<DeviceKind>,
}

/// The machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Chip {
    /// The processor's name, as in `Apple M3 Pro`; the machine's on iOS, as in `iPhone16,1`.
    pub name: String,
    /// The machine's model, as in `Mac15,6`.
    pub model: String,
    /// The build of the system, as in `24A335`.
    pub build: String,
    /// Cores of the Neural Engine; 0 if there is none.
    pub neural_engine_cores: usize,
}
