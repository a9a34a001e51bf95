use std::cmp::Reverse;
use std::fmt;

use coremill_mil::ir::{Definition, Function, Op, OpId, Opset, ValueId};

use super::codes::Code;
use super::severity::Severity;

/// An error or a warning about a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// The violated rule.
    pub code: Code,
    /// The expected and the actual value.
    pub message: String,
    /// The location in the model.
    pub location: Location,
    /// Suggested fix, by default [`CodeRow::remedy`](super::CodeRow::remedy). `None` if the message describes
    /// it.
    pub hint: Option<String>,
}

/// Location in a model. Fields that do not apply are `None`; if all are `None`, the location is the whole
/// model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Location {
    /// A weight file, as named in the program.
    pub file: Option<String>,
    /// A feature of the model's description.
    pub feature: Option<FeaturePlace>,
    /// A function.
    pub function: Option<FunctionPlace>,
    /// An operation of the function.
    pub op: Option<OpPlace>,
    /// A value of the function: an input of a block, or an output of the operation.
    pub value: Option<ValuePlace>,
    /// A parameter or an attribute of the operation.
    pub parameter: Option<String>,
}

/// A feature of a description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeaturePlace {
    /// Role of the feature.
    pub role: FeatureRole,
    /// The name.
    pub name: String,
}

/// Role of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FeatureRole {
    /// Passed by callers.
    Input,
    /// Keeps its contents between predictions.
    State,
    /// Returned to callers.
    Output,
}

/// A function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionPlace {
    /// Index in [`Program::functions`](coremill_mil::ir::Program::functions).
    pub index: usize,
    /// The name.
    pub name: String,
}

/// An operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpPlace {
    /// The operation.
    pub id: OpId,
    /// Type of the operation, for instance `conv`.
    pub operator: String,
    /// Name of the first output; the attribute `name` if the operation has no outputs.
    pub name: Option<String>,
}

/// A value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValuePlace {
    /// The value.
    pub id: ValueId,
    /// The name.
    pub name: String,
}

/// A function that is being checked.
#[derive(Clone, Copy)]
pub(super) struct FunctionContext<'p> {
    pub(super) index: usize,
    pub(super) function: &'p Function,
    /// The minimum release for the function.
    pub(super) target: Opset,
}

/// All diagnostics of a model, in the order of its program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The diagnostics: of the model first, then of its description, then of each function in the order of
    /// operations. At most [`MAX_DIAGNOSTICS`] of each severity.
    pub diagnostics: Vec<Diagnostic>,
    /// Number of errors above the limit.
    pub omitted_errors: usize,
    /// Number of warnings above the limit.
    pub omitted_warnings: usize,
    /// Whether a function cannot be printed, because of invalid ids or endless blocks.
    pub(super) is_unprintable: bool,
}

/// Maximum number of diagnostics of each severity in a report. This is enough to fix a model and limits the
/// cost of a hostile file.
pub const MAX_DIAGNOSTICS: usize = 500;

/// Maximum length in bytes of a message or a name in a report, because names in files can be long.
const MAX_TEXT: usize = 1024;

impl Diagnostic {
    /// Returns a diagnostic with the hint of its rule.
    pub fn new(code: Code, location: Location, message: impl Into<String>) -> Diagnostic {
        let hint = code.row().remedy.map(str::to_owned);
        Diagnostic { code, message: message.into(), location, hint }
    }

    /// Replaces the hint.
    pub fn hint(mut self, hint: impl Into<String>) -> Diagnostic {
        self.hint = Some(hint.into());
        self
    }

    /// The severity.
    pub fn severity(&self) -> Severity {
        self.code.row().severity
    }

    /// All strings that contain text from the file.
    fn texts(&mut self) -> impl Iterator<Item = &mut String> {
        let location = &mut self.location;
        let op = location.op.as_mut();
        let op = op.map(|op| std::iter::once(&mut op.operator).chain(&mut op.name));
        [&mut self.message]
            .into_iter()
            .chain(&mut self.hint)
            .chain(&mut location.file)
            .chain(location.feature.as_mut().map(|feature| &mut feature.name))
            .chain(location.function.as_mut().map(|function| &mut function.name))
            .chain(op.into_iter().flatten())
            .chain(location.value.as_mut().map(|value| &mut value.name))
            .chain(&mut location.parameter)
    }
}

fn shorten(text: &mut String) {
    if text.len() > MAX_TEXT {
        let end = (0..=MAX_TEXT).rev().find(|&at| text.is_char_boundary(at));
        text.truncate(end.unwrap_or(0));
        text.push('…');
        text.shrink_to_fit();
    }
}

impl Location {
    /// The whole model.
    pub fn model() -> Location {
        Location::default()
    }

    /// A weight file.
    pub fn file(name: impl Into<String>) -> Location {
        Location { file: Some(name.into()), ..Location::default() }
    }

    /// Adds a feature of the description to the location.
    pub fn feature(mut self, role: FeatureRole, name: impl Into<String>) -> Location {
        self.feature = Some(FeaturePlace { role, name: name.into() });
        self
    }

    /// Adds a parameter or an attribute to the location.
    pub fn parameter(mut self, name: impl Into<String>) -> Location {
        self.parameter = Some(name.into());
        self
    }
}

impl FunctionContext<'_> {
    /// Location of the function.
    pub(super) fn place(self) -> Location {
        let function = FunctionPlace { index: self.index, name: self.function.name.clone() };
        Location { function: Some(function), ..Location::default() }
    }

    /// Location of an operation.
    pub(super) fn op(self, id: OpId) -> Location {
        let op = self.function.op(id);
        let place = OpPlace { id, operator: op.type_name().to_owned(), name: self.op_name(op) };
        Location { op: Some(place), ..self.place() }
    }

    /// Location of a value, with the operation that computes it.
    pub(super) fn value(self, id: ValueId) -> Location {
        let value = self.function.value(id);
        let location = match value.definition {
            Definition::Output(op, _) if op.index() < self.function.op_count() => self.op(op),
            Definition::Output(..) | Definition::Input(..) => self.place(),
        };
        Location { value: Some(ValuePlace { id, name: value.name.clone() }), ..location }
    }

    fn op_name(self, op: &Op) -> Option<String> {
        let first = op.outputs.first().filter(|id| id.index() < self.function.value_count());
        match first {
            Some(&first) => Some(self.function.value(first).name.clone()),
            None => op.attributes.get("name")?.as_str().map(str::to_owned),
        }
    }
}

impl Report {
    /// Whether there are no errors, so that Core ML accepts the model.
    pub fn is_sound(&self) -> bool {
        self.error_count() == 0
    }

    /// Number of errors, including those above the limit.
    pub fn error_count(&self) -> usize {
        self.of(Severity::Error).count() + self.omitted_errors
    }

    /// Number of warnings, including those above the limit.
    pub fn warning_count(&self) -> usize {
        self.of(Severity::Warning).count() + self.omitted_warnings
    }

    /// The diagnostics with a severity.
    pub fn of(&self, severity: Severity) -> impl Iterator<Item = &Diagnostic> {
        self.diagnostics.iter().filter(move |diagnostic| diagnostic.severity() == severity)
    }

    /// One-line summary, for instance `2 errors, 1 warning`.
    pub fn summary(&self) -> String {
        let counted = |count: usize, what: &str| {
            let plural = if count == 1 { "" } else { "s" };
            format!("{count} {what}{plural}")
        };
        match (self.error_count(), self.warning_count()) {
            (0, 0) => "no errors, no warnings".to_owned(),
            (errors, 0) => counted(errors, "error"),
            (0, warnings) => counted(warnings, "warning"),
            (errors, warnings) => {
                format!("{}, {}", counted(errors, "error"), counted(warnings, "warning"))
            }
        }
    }
}

/// Diagnostics in the order in which checks report them.
#[derive(Default)]
pub(super) struct Findings {
    found: Vec<Diagnostic>,
    errors: usize,
    warnings: usize,
    is_unprintable: bool,
    /// Position of each operation in the text by [`OpId::index`], for each function.
    order: Vec<Vec<u32>>,
}

impl Findings {
    pub(super) fn push(&mut self, mut diagnostic: Diagnostic) {
        let count = match diagnostic.severity() {
            Severity::Error => &mut self.errors,
            Severity::Warning => &mut self.warnings,
        };
        *count += 1;
        self.is_unprintable |= diagnostic.code.breaks_text();
        if *count <= MAX_DIAGNOSTICS {
            diagnostic.texts().for_each(shorten);
            self.found.push(diagnostic);
        }
    }

    pub(super) fn report(&mut self, code: Code, location: Location, message: impl Into<String>) {
        self.push(Diagnostic::new(code, location, message));
    }

    /// Sets the order of a function's operations.
    pub(super) fn set_order(&mut self, function: usize, ops: &[OpId], op_count: usize) {
        let mut ranks = vec![u32::MAX; op_count];
        for (rank, op) in ops.iter().enumerate() {
            ranks[op.index()] = rank as u32;
        }
        self.order.resize(self.order.len().max(function + 1), Vec::new());
        self.order[function] = ranks;
    }

    pub(super) fn errors(&self) -> usize {
        self.errors
    }

    pub(super) fn into_report(self) -> Report {
        let Findings { mut found, errors, warnings, is_unprintable, order } = self;
        let op_rank = |function: usize, op: OpId| {
            let ranks = order.get(function).map_or(&[][..], Vec::as_slice);
            ranks.get(op.index()).copied().unwrap_or(u32::MAX)
        };
        // The sort is stable, so diagnostics with the same location stay in the order of the checks.
        found.sort_by_key(|diagnostic| {
            let location = &diagnostic.location;
            let function = location.function.as_ref().map(|function| function.index);
            let op = location.op.as_ref().map(|op| op_rank(function.unwrap_or(0), op.id));
            (Reverse(location.feature.is_some() || function.is_none()), function, op)
        });
        Report {
            diagnostics: found,
            omitted_errors: errors.saturating_sub(MAX_DIAGNOSTICS),
            omitted_warnings: warnings.saturating_sub(MAX_DIAGNOSTICS),
            is_unprintable,
        }
    }
}

impl fmt::Display for FeatureRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            FeatureRole::Input => "input",
            FeatureRole::State => "state",
            FeatureRole::Output => "output",
        })
    }
}

/// Formats as `function \`main\`, \`conv\` \`y\`, \`weight\``; empty for the whole model.
impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        // An error about a file has the location of the reference to it.
        if let Some(file) = self.file.as_ref().filter(|_| self.op.is_none()) {
            parts.push(format!("file `{file}`"));
        }
        if let Some(function) = &self.function {
            parts.push(format!("function `{}`", function.name));
        }
        if let Some(feature) = &self.feature {
            parts.push(format!("{} `{}` of the description", feature.role, feature.name));
        }
        if let Some(op) = &self.op {
            parts.push(match &op.name {
                Some(name) => format!("`{}` `{name}`", op.operator),
                None => format!("`{}`", op.operator),
            });
        }
        if let Some(value) = &self.value {
            let stated = self.op.as_ref().is_some_and(|op| op.name.as_ref() == Some(&value.name));
            if !stated {
                parts.push(format!("`{}`", value.name));
            }
        }
        if let Some(parameter) = &self.parameter {
            parts.push(format!("`{parameter}`"));
        }
        f.write_str(&parts.join(", "))
    }
}

/// Formats the diagnostic on one line, without the hint.
impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]: ", self.severity(), self.code)?;
        if self.location != Location::default() {
            write!(f, "{}: ", self.location)?;
        }
        f.write_str(&self.message)
    }
}

/// Formats one line for each diagnostic, and a summary.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for diagnostic in &self.diagnostics {
            writeln!(f, "{diagnostic}")?;
        }
        f.write_str(&self.summary())
    }
}

impl std::error::Error for Report {}

/// Each diagnostic has a hint of its own.
impl coremill_io::HasHint for Report {}
