//! Test models, built from text.

use coremill_device::Chip;
use coremill_mil::ir::{Program, TensorType, WeightPlace};
use coremill_mil::model::{Model, describe};
use coremill_mil::text::{self, Weights};
use coremill_tensor::Buffer;
use coremill_verify::{Code, Report, check, check_on};

/// A rule, a model that violates it, and a similar model that does not.
#[derive(Clone)]
pub(crate) struct Case {
    pub(crate) code: Code,
    pub(crate) broken: Model,
    pub(crate) sound: Model,
    /// Other rules that the model also violates.
    pub(crate) also: Vec<Code>,
    /// The chip to check for; every chip if `None`.
    pub(crate) chip: Option<&'static str>,
}

impl Case {
    pub(crate) fn new(code: Code, broken: Model, sound: Model) -> Case {
        Case { code, broken, sound, also: Vec::new(), chip: None }
    }

    /// Checks for one chip.
    pub(crate) fn on(mut self, chip: &'static str) -> Case {
        self.chip = Some(chip);
        self
    }

    /// The report of one of the models.
    pub(crate) fn check(&self, model: &Model) -> Report {
        match self.chip {
            Some(name) => check_on(model, &[Chip::parse(name).expect("a chip")]),
            None => check(model),
        }
    }

    pub(crate) fn with(mut self, also: &[Code]) -> Case {
        self.also = also.to_vec();
        self
    }
}

/// Returns zeros for every weight.
pub(crate) struct Zeros;

impl Weights for Zeros {
    fn elements(&self, _: &WeightPlace, ty: &TensorType) -> Result<Option<Buffer>, String> {
        let bytes = ty.storage_bytes().ok_or("no size")?;
        Ok(Some(Buffer::from(vec![0; usize::try_from(bytes).expect("small")])))
    }
}

pub(crate) fn parsed(source: &str) -> Program {
    text::parse(source, &Zeros).unwrap_or_else(|error| panic!("{}\n{source}", error.render("case")))
}

/// Returns the model of a program in text, with the derived description.
pub(crate) fn model(source: &str) -> Model {
    described(parsed(source))
}

pub(crate) fn described(program: Program) -> Model {
    describe(program).unwrap_or_else(|error| panic!("{error}"))
}

/// Returns a program as a model without a description, for programs that cannot be described.
pub(crate) fn undescribed(source: &str) -> Model {
    let program = parsed(source);
    let version = program.functions.iter().map(|function| function.opset.specification_version());
    Model { specification_version: version.max().unwrap_or(6), program, ..Model::default() }
}

/// Text of a program with one function, `main`.
pub(crate) fn main(opset: &str, inputs: &str, body: &str, outputs: &str) -> String {
    format!(
        "program(1.3)\n{{\n    func main<{opset}>({inputs}) {{\n{body}\n}} -> ({outputs});\n}}\n"
    )
}

/// `y = relu(x)` on a vector.
pub(crate) fn relu() -> Model {
    model(&main("ios17", "tensor<fp16, [4]> x", "tensor<fp16, [4]> y = relu(x = x);", "y"))
}
