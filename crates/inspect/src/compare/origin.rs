//! Origin of a value: the call in the exported program, and the name for the option that keeps it
//! in `fp32`.

#[cfg(feature = "compiler")]
use coremill_compiler::SourceMap;
#[cfg(feature = "compiler")]
use coremill_passes::without_precision;
use serde::Serialize;

#[cfg(feature = "compiler")]
use super::per_op::base;

/// The call that a value comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ValueOrigin {
    /// Name of the value for the option `fp32_values`.
    pub fp32_value: String,
    /// The operator, such as `aten.linear.default`. `None` if a pass created the value or the
    /// program is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operator: Option<String>,
    /// Path of the calling module.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
    /// Source location of the call: `model.py:12`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The source line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
}

#[cfg(feature = "compiler")]
impl ValueOrigin {
    /// Looks up the origin of a value. The name of a repeated value is `NAME@1`.
    pub fn of(value: &str, calls: Option<&SourceMap>) -> ValueOrigin {
        let name = value.split_once('@').map_or(value, |(name, _)| name);
        let call = calls.and_then(|calls| calls.of(name).or_else(|| calls.of(&base(name))));
        let origin = call.map(|(_, origin)| origin);
        let line = origin.and_then(|origin| origin.model_source().or_else(|| origin.source()));
        let module = origin.and_then(|origin| origin.module_path()).filter(|path| !path.is_empty());
        ValueOrigin {
            fp32_value: without_precision(name).to_owned(),
            operator: call.map(|(operator, _)| operator.to_owned()),
            module: module.map(str::to_owned),
            source: line.map(|line| format!("{}:{}", line.file, line.line)),
            code: line.and_then(|line| line.code).map(str::to_owned),
        }
    }
}
