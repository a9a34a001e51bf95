//! The test cases in the files, and their programs.

use std::path::Path;

use coremill_engine::Array;
use coremill_mil::ir::{Constant, Definition, Op, Program};
use coremill_mil::model::{Model, describe};
use coremill_mil::text::{self, NoWeights};
use coremill_tensor::DType;
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_json::Value as Json;

/// Maximum number of failures in a message.
const SHOWN: usize = 60;

/// A program, its inputs and the expected outputs.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Case {
    pub(crate) id: String,
    pub(crate) op: String,
    /// Other operations that the case covers.
    #[serde(default)]
    pub(crate) also: Vec<String>,
    /// For readers of the file; the program contains it, too.
    #[serde(rename = "opset")]
    _opset: String,
    program: String,
    #[serde(rename = "inputs", deserialize_with = "named")]
    pub(crate) inputs: Vec<(String, Array)>,
    /// Expected outputs. Floats are not rounded to their type.
    #[serde(deserialize_with = "arrays")]
    pub(crate) expected: Vec<Array>,
    /// Expected outputs of further runs in the same session.
    #[serde(default, deserialize_with = "lists_of_arrays")]
    pub(crate) again: Vec<Vec<Array>>,
    /// Expected outputs if every operation rounds, if they differ from the rounded `expected`.
    #[serde(default, deserialize_with = "maybe_arrays")]
    pub(crate) faithful: Option<Vec<Array>>,
    pub(crate) rel: f32,
    pub(crate) abs: f32,
}

/// The cases of all families.
pub(crate) fn all() -> Vec<Case> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .expect("the folder of cases")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "jsonl"))
        .collect();
    files.sort();
    let mut cases = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).expect("a file of cases");
        for (at, line) in text.lines().enumerate() {
            let case = serde_json::from_str(line)
                .unwrap_or_else(|error| panic!("{}:{}: {error}", file.display(), at + 1));
            cases.push(case);
        }
    }
    cases
}

/// Fails with all failures in one message.
pub(crate) fn finish(failures: &[String], count: usize) {
    let shown = &failures[..failures.len().min(SHOWN)];
    assert!(
        failures.is_empty(),
        "{} failures in {count} cases:\n{}",
        failures.len(),
        shown.join("\n")
    );
}

impl Case {
    /// Parses the program.
    pub(crate) fn program(&self) -> Result<Program, String> {
        text::parse(&self.program, &NoWeights).map_err(|error| error.render(&self.id))
    }

    /// The operations that the case covers.
    pub(crate) fn operations(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&*self.op).chain(self.also.iter().map(String::as_str))
    }
}

/// The model of a program, for a release that allows functions without inputs.
pub(crate) fn model_of(program: Program) -> Result<Model, String> {
    let mut model = describe(program).map_err(|error| error.to_string())?;
    model.specification_version = model.specification_version.max(9);
    Ok(model)
}

/// Replaces the inputs by constants. States stay.
pub(crate) fn as_constants(
    mut program: Program,
    inputs: &[(String, Array)],
) -> Result<Program, String> {
    let function = &mut program.functions[0];
    let body = function.body;
    let (mut kept, mut stated) = (Vec::new(), Vec::new());
    for input in function.inputs().to_vec() {
        let name = &function.value(input).name;
        let Some((_, array)) = inputs.iter().find(|(given, _)| given == name) else {
            kept.push(input);
            continue;
        };
        let bytes = array.to_bytes().ok_or_else(|| format!("`{name}` has no bytes"))?;
        let shape: Vec<u64> = array.shape().iter().map(|&extent| extent as u64).collect();
        let constant = Constant::bytes(array.dtype(), &shape, bytes);
        let op = function.add_op(body, Op::constant(constant), []);
        function.op_mut(op).outputs.push(input);
        function.value_mut(input).definition = Definition::Output(op, 0);
        stated.push(op);
    }
    for (position, &input) in kept.iter().enumerate() {
        function.value_mut(input).definition = Definition::Input(body, position as u32);
    }
    let block = function.block_mut(body);
    block.inputs = kept;
    // The constants were appended, but must precede their uses.
    block.ops.rotate_right(stated.len());
    Ok(program)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Tensor {
    #[serde(default)]
    name: String,
    dtype: String,
    shape: Vec<usize>,
    values: Vec<Json>,
}

impl Tensor {
    fn array(self) -> Result<Array, String> {
        let Tensor { dtype, shape, values, .. } = self;
        if dtype == "string" {
            let texts = values.iter().map(|value| value.as_str().map(str::to_owned));
            return Ok(Array::texts(shape, texts.collect::<Option<_>>().ok_or("no strings")?));
        }
        let known: DType = dtype.parse().map_err(|_| format!("no type is `{dtype}`"))?;
        if matches!(known, DType::Fp16 | DType::Fp32) {
            let floats: Option<Vec<f32>> = values.iter().map(float).collect();
            return Ok(Array::floats(known, shape, floats.ok_or("no floats")?));
        }
        let ints = values.iter().map(|value| i32::try_from(value.as_i64()?).ok());
        Ok(Array::ints(known, shape, ints.collect::<Option<_>>().ok_or("no integers")?))
    }
}

fn float(value: &Json) -> Option<f32> {
    match value {
        Json::String(text) => text.parse().ok(),
        value => value.as_f64().map(|value| value as f32),
    }
}

fn arrays<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Array>, D::Error> {
    let tensors = Vec::<Tensor>::deserialize(deserializer)?;
    tensors.into_iter().map(Tensor::array).collect::<Result<_, _>>().map_err(D::Error::custom)
}

fn maybe_arrays<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<Array>>, D::Error> {
    arrays(deserializer).map(Some)
}

fn lists_of_arrays<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<Vec<Array>>, D::Error> {
    let lists = Vec::<Vec<Tensor>>::deserialize(deserializer)?;
    let lists = lists.into_iter().map(|list| list.into_iter().map(Tensor::array).collect());
    lists.collect::<Result<_, _>>().map_err(D::Error::custom)
}

/// The inputs of a function, rounded to their type.
fn named<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<(String, Array)>, D::Error> {
    let tensors = Vec::<Tensor>::deserialize(deserializer)?;
    let named = tensors.into_iter().map(|mut tensor| {
        let name = std::mem::take(&mut tensor.name);
        let array = tensor.array()?;
        let rounded = array.to_bytes();
        let rounded = rounded.and_then(|b| Array::from_bytes(array.dtype(), array.shape(), &b));
        Ok((name, rounded.ok_or("an input of strings")?))
    });
    named.collect::<Result<_, String>>().map_err(D::Error::custom)
}
