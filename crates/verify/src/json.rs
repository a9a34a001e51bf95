use coremill_device::Hazard;
use serde::Serialize;

use super::diagnostic::{Diagnostic, Report};

/// Version of the format of [`JsonReport`]. It is increased when a field is removed or changes its meaning.
pub const JSON_VERSION: u32 = 1;

/// A report in JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct JsonReport {
    /// [`JSON_VERSION`].
    pub format_version: u32,
    /// Number of errors.
    pub errors: usize,
    /// Number of warnings.
    pub warnings: usize,
    /// Errors and warnings in the order of the program, at most
    /// [`MAX_DIAGNOSTICS`](super::MAX_DIAGNOSTICS) of each.
    pub diagnostics: Vec<JsonDiagnostic>,
}

/// A diagnostic in JSON. Fields that do not apply are omitted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct JsonDiagnostic {
    /// `error` or `warning`.
    pub severity: String,
    /// The name of the rule.
    pub code: &'static str,
    /// The expected and the actual value.
    pub message: String,
    /// Suggested fix, unless the message describes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// The weight file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// The feature of the description.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub feature: Option<String>,
    /// Role of the feature: `input`, `state` or `output`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub feature_role: Option<String>,
    /// Type of the operation, for instance `conv`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operator: Option<String>,
    /// Name of the operation's first output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// The value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// The parameter or attribute of the operation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameter: Option<String>,
    /// Evidence of a warning about devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evidence: Option<JsonEvidence>,
}

/// Evidence of a warning in JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct JsonEvidence {
    /// Affected chips, `chips before A16 and M4` for instance.
    pub chips: String,
    /// Affected engines.
    pub engines: Vec<&'static str>,
    /// Releases of the recorded cases; omitted if no source names one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub systems: Option<&'static str>,
    /// `confirmed`, `reported` or `contested`.
    pub confidence: String,
    /// Names of the sources.
    pub sources: Vec<&'static str>,
}

impl From<&Hazard> for JsonEvidence {
    fn from(hazard: &Hazard) -> JsonEvidence {
        JsonEvidence {
            chips: hazard.chips(),
            engines: hazard.engines.iter().map(|engine| engine.name()).collect(),
            systems: Some(hazard.releases).filter(|releases| !releases.is_empty()),
            confidence: hazard.confidence.to_string(),
            sources: hazard.sources.iter().map(|source| source.row().name).collect(),
        }
    }
}

impl Report {
    /// Converts the report for JSON output.
    pub fn to_json(&self) -> JsonReport {
        JsonReport {
            format_version: JSON_VERSION,
            errors: self.error_count(),
            warnings: self.warning_count(),
            diagnostics: self.diagnostics.iter().map(JsonDiagnostic::from).collect(),
        }
    }
}

impl From<&Diagnostic> for JsonDiagnostic {
    fn from(diagnostic: &Diagnostic) -> JsonDiagnostic {
        let location = diagnostic.location.clone();
        let (operator, operation) =
            location.op.map_or((None, None), |op| (Some(op.operator), op.name));
        let (feature_role, feature) = location
            .feature
            .map_or((None, None), |feature| (Some(feature.role.to_string()), Some(feature.name)));
        JsonDiagnostic {
            severity: diagnostic.severity().to_string(),
            code: diagnostic.code.name(),
            message: diagnostic.message.clone(),
            hint: diagnostic.hint.clone(),
            file: location.file,
            function: location.function.map(|function| function.name),
            feature,
            feature_role,
            operator,
            operation,
            value: location.value.map(|value| value.name),
            parameter: location.parameter,
            evidence: Hazard::of(diagnostic.code.name()).map(JsonEvidence::from),
        }
    }
}
