//! The JSON of the archives, type by type. Fields that a version lacks have defaults, fields that it adds are ignored,
//! and a union member that is not known is an error.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, IgnoredAny, Visitor};

/// A float; what is not finite is a text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Float(pub(crate) f64);

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
pub(crate) struct ExportedProgram {
    pub(crate) graph_module: GraphModule,
    #[serde(default)]
    pub(crate) opset_version: BTreeMap<String, i64>,
    #[serde(default)]
    pub(crate) range_constraints: BTreeMap<String, RangeConstraint>,
    pub(crate) schema_version: SchemaVersion,
    #[serde(default)]
    pub(crate) verifiers: Vec<String>,
    /// Before there were verifiers; still what ExecuTorch writes.
    #[serde(default)]
    pub(crate) dialect: Option<String>,
    #[serde(default)]
    pub(crate) torch_version: Option<String>,
    #[serde(default)]
    pub(crate) guards_code: Vec<String>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct SchemaVersion {
    pub(crate) major: u64,
    pub(crate) minor: u64,
}

#[derive(Debug, Deserialize)]
pub(crate) struct RangeConstraint {
    #[serde(default, deserialize_with = "bound")]
    pub(crate) min_val: Option<i64>,
    #[serde(default, deserialize_with = "bound")]
    pub(crate) max_val: Option<i64>,
}

/// A bound of a size; none is absent, null, or, as ExecuTorch writes it, infinite.
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
            &"a whole number or an infinity",
        )),
    }
}

#[derive(Debug, Deserialize)]
pub(crate) struct GraphModule {
    pub(crate) graph: Graph,
    pub(crate) signature: GraphSignature,
    #[serde(default)]
    pub(crate) module_call_graph: Vec<ModuleCallEntry>,
    #[serde(default)]
    pub(crate) metadata: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) treespec_namedtuple_fields: BTreeMap<String, NamedTupleDef>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct NamedTupleDef {
    pub(crate) field_names: Vec<String>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct ModuleCallEntry {
    pub(crate) fqn: String,
    #[serde(default)]
    pub(crate) signature: Option<ModuleCallSignature>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct ModuleCallSignature {
    pub(crate) in_spec: String,
    pub(crate) out_spec: String,
    #[serde(default)]
    pub(crate) forward_arg_names: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Graph {
    pub(crate) inputs: Vec<Argument>,
    pub(crate) outputs: Vec<Argument>,
    pub(crate) nodes: Vec<Node>,
    #[serde(default)]
    pub(crate) tensor_values: HashMap<String, TensorMeta>,
    #[serde(default)]
    pub(crate) sym_int_values: HashMap<String, SymInt>,
    #[serde(default)]
    pub(crate) sym_float_values: HashMap<String, SymFloat>,
    #[serde(default)]
    pub(crate) sym_bool_values: HashMap<String, SymBool>,
    #[serde(default)]
    pub(crate) custom_obj_values: HashMap<String, CustomObject>,
    #[serde(default)]
    pub(crate) is_single_tensor_return: bool,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Node {
    pub(crate) target: String,
    pub(crate) inputs: Vec<NamedArgument>,
    pub(crate) outputs: Vec<Argument>,
    #[serde(default)]
    pub(crate) metadata: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) is_hop_single_tensor_return: Option<bool>,
    #[serde(default)]
    pub(crate) name: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct NamedArgument {
    pub(crate) name: String,
    pub(crate) arg: Argument,
    #[serde(default)]
    pub(crate) kind: Option<i64>,
}

/// [`NamedArgument::kind`] of what was passed by keyword.
pub(crate) const KEYWORD: i64 = 2;

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Named {
    pub(crate) name: String,
}

#[derive(Debug, Deserialize)]
pub(crate) struct GraphArgument {
    pub(crate) name: String,
    pub(crate) graph: Graph,
}

#[derive(Debug, Deserialize)]
pub(crate) struct CustomObject {
    pub(crate) name: String,
    pub(crate) class_fqn: String,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Complex {
    pub(crate) real: Float,
    pub(crate) imag: Float,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Device {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    #[serde(default)]
    pub(crate) index: Option<i64>,
}

#[derive(Debug, Deserialize)]
#[expect(clippy::enum_variant_names, reason = "the names are those of the JSON")]
#[serde(rename_all = "snake_case")]
pub(crate) enum Argument {
    AsNone(IgnoredAny),
    AsTensor(Named),
    AsTensors(Vec<Named>),
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
    AsNestedTensors(Vec<Vec<Named>>),
    AsIntLists(Vec<Vec<i64>>),
    AsFloatLists(Vec<Vec<Float>>),
    AsStringToArgument(BTreeMap<String, Argument>),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OptionalTensorArgument {
    AsTensor(Named),
    AsNone(IgnoredAny),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SymIntArgument {
    AsName(String),
    AsInt(i64),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SymFloatArgument {
    AsName(String),
    AsFloat(Float),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SymBoolArgument {
    AsName(String),
    AsBool(bool),
}

#[derive(Debug, Deserialize)]
pub(crate) struct SymExpr {
    pub(crate) expr_str: String,
    #[serde(default)]
    pub(crate) hint: Option<Hint>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[expect(clippy::enum_variant_names, reason = "the names are those of the JSON")]
#[serde(rename_all = "snake_case")]
pub(crate) enum Hint {
    AsInt(i64),
    AsBool(bool),
    AsFloat(Float),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SymInt {
    AsExpr(SymExpr),
    AsInt(i64),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SymFloat {
    AsExpr(SymExpr),
    AsFloat(Float),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SymBool {
    AsExpr(SymExpr),
    AsBool(bool),
}

#[derive(Debug, Deserialize)]
pub(crate) struct TensorMeta {
    pub(crate) dtype: i64,
    pub(crate) sizes: Vec<SymInt>,
    #[serde(default)]
    pub(crate) requires_grad: bool,
    pub(crate) device: Device,
    pub(crate) strides: Vec<SymInt>,
    pub(crate) storage_offset: SymInt,
    pub(crate) layout: i64,
}

#[derive(Debug, Deserialize)]
pub(crate) struct GraphSignature {
    pub(crate) input_specs: Vec<InputSpec>,
    pub(crate) output_specs: Vec<OutputSpec>,
}

/// User inputs and constants stand in the graph's inputs as well, and are taken from there.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum InputSpec {
    UserInput(IgnoredAny),
    Parameter { arg: Named, parameter_name: String },
    Buffer { arg: Named, buffer_name: String, persistent: Option<bool> },
    TensorConstant { arg: Named, tensor_constant_name: String },
    CustomObj { arg: CustomObject, custom_obj_name: String },
    ConstantInput { name: String },
    Token { arg: Named },
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OutputSpec {
    UserOutput(IgnoredAny),
    LossOutput { arg: Named },
    BufferMutation { arg: Named, buffer_name: String },
    ParameterMutation { arg: Named, parameter_name: String },
    GradientToParameter { arg: Named, parameter_name: String },
    GradientToUserInput { arg: Named, user_input_name: String },
    UserInputMutation { arg: Named, user_input_name: String },
    Token { arg: Named },
}

#[derive(Debug, Deserialize)]
pub(crate) struct PayloadConfig {
    pub(crate) config: BTreeMap<String, PayloadMeta>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct PayloadMeta {
    pub(crate) path_name: String,
    pub(crate) is_param: bool,
    #[serde(default)]
    pub(crate) use_pickle: bool,
    #[serde(default)]
    pub(crate) tensor_meta: Option<TensorMeta>,
}

#[cfg(test)]
mod tests {
    use super::RangeConstraint;

    #[test]
    fn bounds_may_be_infinite() -> Result<(), serde_json::Error> {
        let range: RangeConstraint =
            serde_json::from_str(r#"{"min_val": 2, "max_val": "Infinity"}"#)?;
        assert_eq!((range.min_val, range.max_val), (Some(2), None));
        let range: RangeConstraint = serde_json::from_str(r#"{"min_val": null}"#)?;
        assert_eq!((range.min_val, range.max_val), (None, None));
        assert!(serde_json::from_str::<RangeConstraint>(r#"{"min_val": 2.5}"#).is_err());
        Ok(())
    }
}
