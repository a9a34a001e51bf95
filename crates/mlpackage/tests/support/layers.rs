//! A model that consists mostly of weights.

use std::path::Path;

use coremill_mil::ir::{Binding, Constant, Function, Op, Opset, Type};
use coremill_mil::model::{ArrayDataType, ArrayType, FeatureDescription, FeatureType, Model};
use coremill_mil::ops::OpKind;
use coremill_mlpackage::package::{self, WriteOptions};
use coremill_tensor::{Buffer, DType};
use coremill_verify::verify;

/// Consecutive linear layers, each with a square matrix of fp16 weights.
pub(crate) fn model(width: u64, weights: impl IntoIterator<Item = Buffer>) -> Model {
    let mut function = Function::new("main", Opset::Ios18);
    let body = function.body;
    let ty = Type::tensor(DType::Fp16, &[1, width]);
    let mut value = function.add_input(body, "x", ty.clone());
    let mut last = String::new();
    for (layer, weight) in weights.into_iter().enumerate() {
        let weight = Constant::weight(DType::Fp16, &[width, width], weight);
        let weight_ty = weight.ty.clone();
        let weight =
            function.add_op(body, Op::constant(weight), [(format!("w{layer}"), weight_ty)]);
        let weight = function.op(weight).outputs[0];
        let op = Op::new(OpKind::Linear)
            .with("x", Binding::Value(value))
            .with("weight", Binding::Value(weight));
        last = format!("y{layer}");
        let op = function.add_op(body, op, [(last.clone(), ty.clone())]);
        value = function.op(op).outputs[0];
    }
    function.block_mut(body).outputs.push(value);

    let feature = |name: &str| {
        let array = ArrayType::fixed(ArrayDataType::Float16, &[1, width.cast_signed()]);
        FeatureDescription::new(name, FeatureType::MultiArray(array))
    };
    let mut model = Model { specification_version: 9, ..Model::default() };
    model.program.functions.push(function);
    model.description.inputs.push(feature("x"));
    model.description.outputs.push(feature(&last));
    model
}

/// Writes a package of a valid model.
pub(crate) fn write(path: &Path, model: &Model) {
    let verified = verify(model).unwrap_or_else(|report| panic!("{}", report.summary()));
    package::write(path, &verified, &WriteOptions::default()).expect("written");
}
