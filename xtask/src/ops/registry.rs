//! coremltools' registry of operations, dumped by `oracle/dumps/registry.py`.

use std::path::Path;
use std::process::{Command, Stdio};

use serde::Deserialize;

use crate::oracle;

/// Version of the format, documented in `oracle/dumps/registry.py`.
const FORMAT: u32 = 1;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Registry {
    format: u32,
    pub(super) coremltools: String,
    pub(super) operations: Vec<Operation>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Operation {
    pub(super) name: String,
    pub(super) family: String,
    pub(super) rows: Vec<Row>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Row {
    pub(super) opset: String,
    pub(super) inputs: Vec<Input>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Input {
    pub(super) name: String,
    pub(super) kind: Kind,
    pub(super) required: bool,
    #[serde(rename = "const")]
    pub(super) constant: bool,
    pub(super) variable: Option<String>,
    #[serde(default)]
    pub(super) dtypes: Vec<String>,
    pub(super) default: Option<Rule>,
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    Tensor,
    List,
    Values,
    State,
    Any,
    Block,
    Internal,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Rule {
    Bool(bool),
    Int(i32),
    Float(f32),
    Text(String),
    Ints(Vec<i32>),
    FloatByDtype { of: String, fp16: f32, fp32: f32 },
    PerSpatialDim { value: i32, times: u32 },
    AxesOf(String),
    IndicesOf(String),
    ZerosOf(String),
}

/// Dumps the registry of coremltools in the oracle's Python environment.
pub(super) fn read(root: &Path) -> Result<Registry, String> {
    let mut command = Command::new(oracle::interpreter(root)?);
    command.current_dir(root).args(["-m", "oracle.dumps.registry"]).stderr(Stdio::inherit());
    let output = command.output().map_err(|error| {
        format!("cannot start `{}`: {error}", command.get_program().to_string_lossy())
    })?;
    if !output.status.success() {
        return Err(format!("dumping coremltools' registry failed ({})", output.status));
    }
    let registry: Registry = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("the dump of coremltools' registry: {error}"))?;
    if registry.format != FORMAT {
        return Err(format!(
            "the dump of coremltools' registry has format {}; this command reads format {FORMAT}",
            registry.format
        ));
    }
    Ok(registry)
}

/// Operations of ML Programs that the registry lacks.
pub(super) fn beyond() -> Vec<Operation> {
    let input = |name: &str, kind, dtypes: &[&str]| Input {
        name: name.to_owned(),
        kind,
        required: true,
        constant: false,
        variable: None,
        dtypes: dtypes.iter().map(|&dtype| dtype.to_owned()).collect(),
        default: None,
    };
    vec![
        // This operation exists only in files: in memory, coremltools has the dialect operation
        // `coreml_update_state`, which its writer converts to `write_state` and, if the result is used,
        // `read_state`. The types are those of its `value`.
        Operation {
            name: "write_state".to_owned(),
            family: "states".to_owned(),
            rows: vec![Row {
                opset: "iOS18".to_owned(),
                inputs: vec![
                    input("input", Kind::State, &[]),
                    input(
                        "data",
                        Kind::Tensor,
                        &["bool", "fp16", "fp32", "int8", "int16", "int32", "uint8", "uint16"],
                    ),
                ],
            }],
        },
    ]
}
