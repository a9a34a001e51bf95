//! Types of the JSON in archives: torch's schema of exported programs, with torch's names. Fields missing in
//! a version have defaults, additional fields are ignored, and an unknown union member is an error.
//!
//! A program that was never in an archive uses the same types, and becomes an
//! [`ExportedProgram`](crate::ExportedProgram) with [`from_parts`](crate::ExportedProgram::from_parts).
#![expect(missing_docs, reason = "torch documents its schema; the names are the same")]

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use foldhash::HashMap;
use serde::Deserialize;
use serde::de::{self, Deserializer, IgnoredAny, MapAccess, Visitor};

/// A float; a non-finite number is a string.
#[derive(Clone, Copy, Debug)]
pub struct Float(pub f64);

impl<'de> Deserialize<'de> for Float {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Float, D::Error> {
        struct Reader;

        impl Visitor<'_> for Reader {
            type Value = Float;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number, or \"Infinity\", \"-Infinity\" or \"NaN\"")
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Float, E> {
                Ok(Float(value))
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<Float, E> {
                Ok(Float(value as f64))
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Float, E> {
                Ok(Float(value as f64))
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<Float, E> {
                match value {
                    "Infinity" => Ok(Float(f64::INFINITY)),
                    "-Infinity" => Ok(Float(f64::NEG_INFINITY)),
                    "NaN" => Ok(Float(f64::NAN)),
                    other => Err(E::invalid_value(de::Unexpected::Str(other), &self)),
                }
            }
        }

        deserializer.deserialize_any(Reader)
    }
}

#[derive(Debug, Deserialize)]
pub struct ExportedProgram {
    pub graph_module: GraphModule,
    #[serde(default)]
    pub opset_version: BTreeMap<String, i64>,
    #[serde(default)]
    pub range_constraints: BTreeMap<String, RangeConstraint>,
    pub schema_version: SchemaVersion,
    #[serde(default)]
    pub verifiers: Vec<String>,
    /// Predecessor of the verifiers; ExecuTorch still writes it.
    #[serde(default)]
    pub dialect: Option<String>,
    #[serde(default)]
    pub torch_version: Option<String>,
    #[serde(default)]
    pub guards_code: Vec<String>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub struct SchemaVersion {
    pub major: u64,
    pub minor: u64,
}

#[derive(Debug, Deserialize)]
pub struct RangeConstraint {
    #[serde(default, deserialize_with = "bound")]
    pub min_val: Option<i64>,
    #[serde(default, deserialize_with = "bound")]
    pub max_val: Option<i64>,
}

/// A bound of a size. An unbounded size is absent, null or, as ExecuTorch writes it, infinite.
fn bound<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Bound {
        Whole(i64),
        Float(Float),
    }
    match Option::deserialize(deserializer)? {
        None => Ok(None),
        Some(Bound::Whole(value)) => Ok(Some(value)),
        Some(Bound::Float(Float(value))) if value.is_infinite() => Ok(None),
        Some(Bound::Float(Float(value))) => Err(de::Error::invalid_value(
            de::Unexpected::Float(value),
            &"an integer or an infinity",
        )),
    }
}

#[derive(Debug, Deserialize)]
pub struct GraphModule {
    pub graph: Graph,
    pub signature: GraphSignature,
    #[serde(default)]
    pub module_call_graph: Vec<ModuleCallEntry>,
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
    #[serde(default)]
    pub treespec_namedtuple_fields: BTreeMap<String, NamedTupleDef>,
}

#[derive(Debug, Deserialize)]
pub struct NamedTupleDef {
    pub field_names: Vec<String>,
}

#[derive(Debug, Deserialize)]
pub struct ModuleCallEntry {
    pub fqn: String,
    #[serde(default)]
    pub signature: Option<ModuleCallSignature>,
}

#[derive(Debug, Deserialize)]
pub struct ModuleCallSignature {
    pub in_spec: String,
    pub out_spec: String,
    #[serde(default)]
    pub forward_arg_names: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
pub struct Graph {
    pub inputs: Vec<Argument>,
    pub outputs: Vec<Argument>,
    pub nodes: Vec<Node>,
    #[serde(default)]
    pub tensor_values: HashMap<String, TensorMeta>,
    #[serde(default)]
    pub sym_int_values: HashMap<String, SymInt>,
    #[serde(default)]
    pub sym_float_values: HashMap<String, SymFloat>,
    #[serde(default)]
    pub sym_bool_values: HashMap<String, SymBool>,
    #[serde(default)]
    pub custom_obj_values: HashMap<String, CustomObject>,
    #[serde(default)]
    pub is_single_tensor_return: bool,
}

#[derive(Debug, Deserialize)]
pub struct Node {
    pub target: String,
    pub inputs: Vec<NamedArgument>,
    pub outputs: Vec<Argument>,
    #[serde(default)]
    pub metadata: Metadata,
    #[serde(default)]
    pub is_hop_single_tensor_return: Option<bool>,
    #[serde(default)]
    pub name: Option<String>,
}

/// torch's notes about a node. Adjacent nodes usually have the same strings, which can be shared.
#[derive(Debug, Default)]
pub struct Metadata {
    pub stack_trace: Option<Arc<str>>,
    pub nn_module_stack: Option<Arc<str>>,
    /// Other notes, by key.
    pub others: BTreeMap<String, Arc<str>>,
}

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Metadata, D::Error> {
        struct Reader;

        impl<'de> Visitor<'de> for Reader {
            type Value = Metadata;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of strings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Metadata, A::Error> {
                let mut found = Metadata::default();
                while let Some((key, Text(text))) = map.next_entry::<String, Text>()? {
                    match key.as_str() {
                        "stack_trace" => found.stack_trace = Some(text),
                        "nn_module_stack" => found.nn_module_stack = Some(text),
                        _ => drop(found.others.insert(key, text)),
                    }
                }
                Ok(found)
            }
        }

        deserializer.deserialize_map(Reader)
    }
}

/// A string that is copied only once.
struct Text(Arc<str>);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Text, D::Error> {
        struct Reader;

        impl Visitor<'_> for Reader {
            type Value = Text;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Text, E> {
                Ok(Text(text.into()))
            }
        }

        deserializer.deserialize_str(Reader)
    }
}

#[derive(Debug, Deserialize)]
pub struct NamedArgument {
    pub name: String,
    pub arg: Argument,
    #[serde(default)]
    pub kind: Option<i64>,
}

/// [`NamedArgument::kind`] of a keyword argument.
pub const KEYWORD: i64 = 2;

#[derive(Clone, Debug, Deserialize)]
pub struct NamedTarget {
    pub name: String,
}

#[derive(Debug, Deserialize)]
pub struct GraphArgument {
    pub name: String,
    pub graph: Graph,
}

#[derive(Debug, Deserialize)]
pub struct CustomObject {
    pub name: String,
    pub class_fqn: String,
}

#[derive(Debug, Deserialize)]
pub struct Complex {
    pub real: Float,
    pub imag: Float,
}

#[derive(Debug, Deserialize)]
pub struct Device {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default)]
    pub index: Option<i64>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Argument {
    AsNone(IgnoredAny),
    AsTensor(NamedTarget),
    AsTensors(Vec<NamedTarget>),
    AsInt(i64),
    AsInts(Vec<i64>),
    AsFloat(Float),
    AsFloats(Vec<Float>),
    AsString(String),
    AsStrings(Vec<String>),
    AsSymInt(SymIntArgument),
    AsSymInts(Vec<SymIntArgument>),
    AsScalarType(i64),
    AsMemoryFormat(i64),
    AsLayout(i64),
    AsDevice(Device),
    AsBool(bool),
    AsBools(Vec<bool>),
    AsSymBool(SymBoolArgument),
    AsSymBools(Vec<SymBoolArgument>),
    AsOptionalTensors(Vec<OptionalTensorArgument>),
    AsGraph(Box<GraphArgument>),
    AsCustomObj(CustomObject),
    AsOperator(String),
    AsSymFloat(SymFloatArgument),
    AsSymFloats(Vec<SymFloatArgument>),
    AsOptionalTensor(OptionalTensorArgument),
    AsComplex(Complex),
    AsNestedTensors(Vec<Vec<NamedTarget>>),
    AsIntLists(Vec<Vec<i64>>),
    AsFloatLists(Vec<Vec<Float>>),
    AsStringToArgument(BTreeMap<String, Argument>),
}

impl Argument {
    /// No value (`None` in Python).
    pub const NONE: Argument = Argument::AsNone(IgnoredAny);
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OptionalTensorArgument {
    AsTensor(NamedTarget),
    AsNone(IgnoredAny),
}

impl OptionalTensorArgument {
    /// No tensor.
    pub const NONE: OptionalTensorArgument = OptionalTensorArgument::AsNone(IgnoredAny);
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SymIntArgument {
    AsName(String),
    AsInt(i64),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SymFloatArgument {
    AsName(String),
    AsFloat(Float),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SymBoolArgument {
    AsName(String),
    AsBool(bool),
}

#[derive(Debug, Deserialize)]
pub struct SymExpr {
    pub expr_str: String,
    #[serde(default)]
    pub hint: Option<Hint>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Hint {
    AsInt(i64),
    AsBool(bool),
    AsFloat(Float),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SymInt {
    AsExpr(SymExpr),
    AsInt(i64),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SymFloat {
    AsExpr(SymExpr),
    AsFloat(Float),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SymBool {
    AsExpr(SymExpr),
    AsBool(bool),
}

#[derive(Debug, Deserialize)]
pub struct TensorMeta {
    pub dtype: i64,
    pub sizes: Vec<SymInt>,
    pub device: Device,
    pub strides: Vec<SymInt>,
    pub storage_offset: SymInt,
    pub layout: i64,
}

#[derive(Debug, Deserialize)]
pub struct GraphSignature {
    pub input_specs: Vec<InputSpec>,
    pub output_specs: Vec<OutputSpec>,
}

/// User inputs and constants are also in the graph's inputs and are read from there.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InputSpec {
    UserInput(IgnoredAny),
    Parameter { arg: NamedTarget, parameter_name: String },
    Buffer { arg: NamedTarget, buffer_name: String, persistent: Option<bool> },
    TensorConstant { arg: NamedTarget, tensor_constant_name: String },
    CustomObj { arg: CustomObject, custom_obj_name: String },
    ConstantInput { name: String },
    Token { arg: NamedTarget },
}

impl InputSpec {
    /// An input passed by the caller.
    pub const USER: InputSpec = InputSpec::UserInput(IgnoredAny);
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputSpec {
    UserOutput(IgnoredAny),
    LossOutput { arg: NamedTarget },
    BufferMutation { arg: NamedTarget, buffer_name: String },
    ParameterMutation { arg: NamedTarget, parameter_name: String },
    GradientToParameter { arg: NamedTarget, parameter_name: String },
    GradientToUserInput { arg: NamedTarget, user_input_name: String },
    UserInputMutation { arg: NamedTarget, user_input_name: String },
    Token { arg: NamedTarget },
}

impl OutputSpec {
    /// An output returned to the caller.
    pub const USER: OutputSpec = OutputSpec::UserOutput(IgnoredAny);
}

#[derive(Debug, Deserialize)]
pub struct PayloadConfig {
    pub config: BTreeMap<String, PayloadMeta>,
}

#[derive(Debug, Deserialize)]
pub struct PayloadMeta {
    pub path_name: String,
    pub is_param: bool,
    #[serde(default)]
    pub use_pickle: bool,
    #[serde(default)]
    pub tensor_meta: Option<TensorMeta>,
}

#[cfg(test)]
mod tests {
    use super::RangeConstraint;

    #[test]
    fn parses_infinite_range_constraint_bounds() -> Result<(), serde_json::Error> {
        let range: RangeConstraint =
            serde_json::from_str(r#"{"min_val": 2, "max_val": "Infinity"}"#)?;
        assert_eq!((range.min_val, range.max_val), (Some(2), None));
        let range: RangeConstraint = serde_json::from_str(r#"{"min_val": null}"#)?;
        assert_eq!((range.min_val, range.max_val), (None, None));
        assert!(serde_json::from_str::<RangeConstraint>(r#"{"min_val": 2.5}"#).is_err());
        Ok(())
    }
}
