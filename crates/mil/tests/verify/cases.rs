//! Models for the tests, made from text.

use coremill_mil::ir::{Program, TensorType, WeightPlace};
use coremill_mil::model::{Model, describe};
use coremill_mil::text::{self, Weights};
use coremill_mil::verify::Code;
use coremill_tensor::Buffer;

/// A rule, a model that breaks it, and one that is much the same and does not.
#[derive(Clone)]
pub(crate) struct Case {
    pub(crate) code: Code,
    pub(crate) broken: Model,
    pub(crate) sound: Model,
    /// Errors that come with it.
    pub(crate) also: Vec<Code>,
}

impl Case {
    pub(crate) fn new(code: Code, broken: Model, sound: Model) -> Case {
        Case { code, broken, sound, also: Vec::new() }
    }

    pub(crate) fn with(mut self, also: &[Code]) -> Case {
        self.also = also.to_vec();
        self
    }
}

/// Gives zeros for every weight.
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

/// A model of a program in text, described as the program has it.
pub(crate) fn model(source: &str) -> Model {
    described(parsed(source))
}

pub(crate) fn described(program: Program) -> Model {
    describe(program).unwrap_or_else(|error| panic!("{error}"))
}

/// A program as a model that says nothing about it: for programs that cannot be described.
pub(crate) fn undescribed(source: &str) -> Model {
    let program = parsed(source);
    let version = program.functions.iter().map(|function| function.opset.specification_version());
    Model { specification_version: version.max().unwrap_or(6), program, ..Model::default() }
}

/// The text of a program with one function, `main`.
pub(crate) fn main(opset: &str, inputs: &str, body: &str, outputs: &str) -> String {
    format!(
        "program(1.3)\n{{\n    func main<{opset}>({inputs}) {{\n{body}\n}} -> ({outputs});\n}}\n"
    )
}

/// `y = relu(x)` on a vector.
pub(crate) fn relu() -> Model {
    model(&main("ios17", "tensor<fp16, [4]> x", "tensor<fp16, [4]> y = relu(x = x);", "y"))
}
