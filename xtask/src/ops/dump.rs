//! The compiled op table as JSON, for the test that compares it with coremltools' registry.

use coremill_mil::ops::{Accepts, DefaultValue, OpKind, OpRow, Parameter};
use serde_json::{Value, json};

/// Version of the format, increased when readers must be changed.
const FORMAT: u32 = 1;

pub(super) fn table() -> Value {
    let operation = |kind: OpKind| {
        json!({
            "name": kind.name(),
            "family": kind.family(),
            "rows": kind.rows().iter().map(row).collect::<Vec<_>>(),
        })
    };
    json!({
        "format": FORMAT,
        "operations": OpKind::ALL.into_iter().map(operation).collect::<Vec<_>>(),
    })
}

fn row(row: &OpRow) -> Value {
    json!({
        "opset": row.since.tag(),
        "parameters": row.parameters.iter().map(parameter).collect::<Vec<_>>(),
        "blocks": row.blocks,
    })
}

fn parameter(parameter: &Parameter) -> Value {
    let mut value = json!({
        "name": parameter.name,
        "required": parameter.required,
        "constant": parameter.constant,
        "accepts": match parameter.accepts {
            Accepts::Tensor { .. } => "tensor",
            Accepts::Values => "values",
            Accepts::List => "list",
            Accepts::State => "state",
            Accepts::Any => "any",
        },
        "default": default(parameter.default),
    });
    if let Accepts::Tensor { variable, dtypes } = parameter.accepts {
        value["variable"] = json!(variable);
        value["dtypes"] = dtypes.iter().map(|dtype| dtype.name()).collect();
    }
    value
}

/// The default value, or the rule that computes it. A float is the exact value of the `f32`.
fn default(default: DefaultValue) -> Value {
    match default {
        DefaultValue::Absent => Value::Null,
        DefaultValue::Bool(value) => json!({ "bool": value }),
        DefaultValue::Int(value) => json!({ "int": value }),
        DefaultValue::Float(value) => json!({ "float": f64::from(value) }),
        DefaultValue::Text(text) => json!({ "text": text }),
        DefaultValue::Ints(values) => json!({ "ints": values }),
        DefaultValue::PerSpatialDim { value, times } => {
            json!({ "per_spatial_dim": { "value": value, "times": times } })
        }
        DefaultValue::FloatByType { fp16, fp32 } => {
            json!({ "float_by_type": { "fp16": f64::from(fp16), "fp32": f64::from(fp32) } })
        }
        DefaultValue::AllAxes => json!("all_axes"),
        DefaultValue::IndexPerBox => json!("index_per_box"),
        DefaultValue::ZeroPerOutput => json!("zero_per_output"),
    }
}
