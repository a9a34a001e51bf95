//! The package that coremill writes for a graph, read with the types of `rlx-coreml`.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::ops::RangeInclusive;
use std::path::Path;

use coremill_rlx::{CoremlExecutable, Device};
use peer::proto;
use prost::Message as _;
use proto::array_feature_type::{ArrayDataType, ShapeFlexibility};
use rlx_ir::shape::Dim;
use rlx_ir::{DType, Graph, Op};

use crate::{CoremlError, Result};

pub type TypedParams = HashMap<String, (Vec<u8>, DType)>;

/// The storage of blocks of one bit in `rlx-coreml`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Q1Mode {
    F32,
    Lut,
}

/// The settings of `rlx-coreml`. Only the precision has a counterpart in coremill.
#[derive(Clone, Copy, Debug)]
pub struct LowerOptions {
    pub float_dtype: DType,
    pub flexible_inputs: bool,
    pub ondevice_dequant: bool,
    pub q1_mode: Option<Q1Mode>,
}

impl Default for LowerOptions {
    fn default() -> LowerOptions {
        LowerOptions {
            float_dtype: DType::F32,
            flexible_inputs: false,
            ondevice_dequant: false,
            q1_mode: None,
        }
    }
}

/// An input or output as declared in the package.
#[derive(Clone, Debug)]
pub struct IoTensor {
    pub ir_name: String,
    pub dims: Vec<i64>,
    pub dtype: DType,
    pub flex_dims: Vec<bool>,
}

/// A package in memory.
pub struct LoweredProgram {
    pub model: proto::Model,
    pub inputs: Vec<IoTensor>,
    pub outputs: Vec<IoTensor>,
    pub blob: Vec<u8>,
}

pub fn lower_graph(
    graph: &Graph,
    params: &HashMap<String, Vec<f32>>,
    typed: &TypedParams,
) -> Result<LoweredProgram> {
    lower_graph_with_options(graph, params, typed, &LowerOptions::default())
}

pub fn lower_graph_with_options(
    graph: &Graph,
    params: &HashMap<String, Vec<f32>>,
    typed: &TypedParams,
    options: &LowerOptions,
) -> Result<LoweredProgram> {
    let mut executable =
        CoremlExecutable::compile_for(graph.clone(), Device::Host, options.precision())?;
    for (name, elements) in params {
        executable.set_param(name, elements)?;
    }
    for (name, (bytes, dtype)) in typed {
        executable.set_param_typed(name, bytes, *dtype)?;
    }
    let directory = tempfile::tempdir().map_err(unread)?;
    let package = directory.path().join("model.mlpackage");
    match open_dimensions(graph) {
        sizes if options.flexible_inputs && !sizes.is_empty() => {
            executable.save_flexible(&package, &sizes)?;
        }
        _ => executable.save(&package)?,
    }
    read(&package)
}

/// The dynamic dimensions of a graph, with the sizes that the tests of `rlx-coreml` use.
fn open_dimensions(graph: &Graph) -> Vec<(u32, RangeInclusive<usize>)> {
    let inputs = graph.nodes().iter().filter(|node| matches!(node.op, Op::Input { .. }));
    let dims = inputs.flat_map(|node| node.shape.dims().to_vec());
    let symbols: BTreeSet<u32> = dims
        .filter_map(|dim| match dim {
            Dim::Dynamic(symbol) => Some(symbol),
            Dim::Static(_) => None,
        })
        .collect();
    symbols.into_iter().map(|symbol| (symbol, 1..=512)).collect()
}

fn read(package: &Path) -> Result<LoweredProgram> {
    let data = package.join("Data/com.apple.CoreML");
    let bytes = fs::read(data.join("model.mlmodel")).map_err(unread)?;
    let model = proto::Model::decode(&bytes[..]).map_err(unread)?;
    let weights = data.join("weights/weight.bin");
    let blob = if weights.exists() { fs::read(weights).map_err(unread)? } else { Vec::new() };
    let description = model.description.clone().unwrap_or_default();
    let tensors = |features: &[proto::FeatureDescription]| features.iter().map(tensor).collect();
    let (inputs, outputs) = (tensors(&description.input), tensors(&description.output));
    Ok(LoweredProgram { model, inputs, outputs, blob })
}

fn tensor(feature: &proto::FeatureDescription) -> IoTensor {
    let array = match feature.r#type.as_ref().and_then(|kind| kind.r#type.as_ref()) {
        Some(proto::feature_type::Type::MultiArrayType(array)) => array.clone(),
        other => panic!("`{}` is not an array: {other:?}", feature.name),
    };
    let flexible = match &array.shape_flexibility {
        Some(ShapeFlexibility::ShapeRange(range)) => {
            let sizes = range.size_ranges.iter();
            sizes.map(|size| size.upper_bound as u64 != size.lower_bound).collect()
        }
        _ => vec![false; array.shape.len()],
    };
    let dims = array.shape.iter().zip(&flexible);
    IoTensor {
        ir_name: feature.name.clone(),
        dims: dims.map(|(&extent, &open)| if open { -1 } else { extent }).collect(),
        dtype: match array.data_type() {
            ArrayDataType::Float16 => DType::F16,
            ArrayDataType::Int32 => DType::I32,
            _ => DType::F32,
        },
        flex_dims: flexible,
    }
}

fn unread(error: impl std::fmt::Display) -> CoremlError {
    CoremlError::Unsupported(format!("the package cannot be read back: {error}"))
}
