use std::cmp::Reverse;
use std::fmt;

use super::codes::Code;
use super::severity::Severity;
use crate::ir::{Definition, Function, Op, OpId, Opset, ValueId};

/// Something that is wrong with a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// Which rule was broken.
    pub code: Code,
    /// What was found and what is accepted.
    pub message: String,
    /// Where.
    pub location: Location,
    /// What to do; [`CodeRow::remedy`](super::CodeRow::remedy) unless there is more to say. None if
    /// the message says it all.
    pub hint: Option<String>,
}

/// Where in a model something is wrong. What is not concerned is none; all none is the model itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Location {
    /// A weight file, as the program names it.
    pub file: Option<String>,
    /// A feature of the model's description.
    pub feature: Option<FeaturePlace>,
    /// A function.
    pub function: Option<FunctionPlace>,
    /// An operation of it.
    pub op: Option<OpPlace>,
    /// A value of it: an input of a block, or what the operation gives.
    pub value: Option<ValuePlace>,
    /// A parameter or an attribute of the operation.
    pub parameter: Option<String>,
}

/// A feature of a description.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeaturePlace {
    /// What it is for the function.
    pub role: FeatureRole,
    /// The name.
    pub name: String,
}

/// What a feature is for a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FeatureRole {
    /// Callers pass it in.
    Input,
    /// It keeps its content between predictions.
    State,
    /// Callers get it.
    Output,
}

/// A function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionPlace {
    /// The position in [`Program::functions`](crate::ir::Program::functions).
    pub index: usize,
    /// The name.
    pub name: String,
}

/// An operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpPlace {
    /// The operation.
    pub id: OpId,
    /// What it does, `conv` for instance.
    pub operator: String,
    /// What it gives first; its attribute `name` if it gives nothing.
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

/// A function of a program under check.
#[derive(Clone, Copy)]
pub(super) struct FunctionContext<'p> {
    pub(super) index: usize,
    pub(super) function: &'p Function,
    /// The release that it is made for.
    pub(super) target: Opset,
}

/// All that is wrong with a model, in the order of its program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// What is wrong: the model first, then its description, then function by function, operation by
    /// operation. At most [`MAX_DIAGNOSTICS`] of each severity.
    pub diagnostics: Vec<Diagnostic>,
    /// Errors beyond the limit.
    pub omitted_errors: usize,
    /// Warnings beyond the limit.
    pub omitted_warnings: usize,
    /// Whether a function is too broken to be printed: ids that lead nowhere, blocks without end.
    pub(super) is_unprintable: bool,
}

/// How many diagnostics of each severity a report keeps: enough for whoever mends a model, and a
/// bound on what a file made to be wrong can cost.
pub const MAX_DIAGNOSTICS: usize = 500;

/// How many bytes of a message or a name a report keeps: names in files can be long.
const MAX_TEXT: usize = 1024;

impl Diagnostic {
    /// A diagnostic with the hint that its rule has.
    pub fn new(code: Code, location: Location, message: impl Into<String>) -> Diagnostic {
        let hint = code.row().remedy.map(str::to_owned);
        Diagnostic { code, message: message.into(), location, hint }
    }

    /// The same with another hint.
    pub fn hint(mut self, hint: impl Into<String>) -> Diagnostic {
        self.hint = Some(hint.into());
        self
    }

    /// How bad it is.
    pub fn severity(&self) -> Severity {
        self.code.row().severity
    }

    /// Everything in it that comes from the file.
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
    /// The model as a whole.
    pub fn model() -> Location {
        Location::default()
    }

    /// A weight file.
    pub fn file(name: impl Into<String>) -> Location {
        Location { file: Some(name.into()), ..Location::default() }
    }

    /// The same place, of a feature of a description.
    pub fn feature(mut self, role: FeatureRole, name: impl Into<String>) -> Location {
        self.feature = Some(FeaturePlace { role, name: name.into() });
        self
    }

    /// The same place, of a parameter or an attribute.
    pub fn parameter(mut self, name: impl Into<String>) -> Location {
        self.parameter = Some(name.into());
        self
    }
}

impl FunctionContext<'_> {
    /// The function.
    pub(super) fn place(self) -> Location {
        let function = FunctionPlace { index: self.index, name: self.function.name.clone() };
        Location { function: Some(function), ..Location::default() }
    }

    /// An operation.
    pub(super) fn op(self, id: OpId) -> Location {
        let op = self.function.op(id);
        let place = OpPlace { id, operator: op.type_name().to_owned(), name: self.op_name(op) };
        Location { op: Some(place), ..self.place() }
    }

    /// A value, and the operation that gives it.
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
    /// Whether nothing is wrong that Core ML would refuse.
    pub fn is_sound(&self) -> bool {
        self.error_count() == 0
    }

    /// The number of errors, those beyond the limit included.
    pub fn error_count(&self) -> usize {
        self.of(Severity::Error).count() + self.omitted_errors
    }

    /// The number of warnings, those beyond the limit included.
    pub fn warning_count(&self) -> usize {
        self.of(Severity::Warning).count() + self.omitted_warnings
    }

    /// The diagnostics of a severity.
    pub fn of(&self, severity: Severity) -> impl Iterator<Item = &Diagnostic> {
        self.diagnostics.iter().filter(move |diagnostic| diagnostic.severity() == severity)
    }

    /// One line: `2 errors, 1 warning`.
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

/// What the checks find, as they find it.
#[derive(Default)]
pub(super) struct Findings {
    found: Vec<Diagnostic>,
    errors: usize,
    warnings: usize,
    is_unprintable: bool,
    /// For each function the rank of each operation in the text, by [`OpId::index`].
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

    /// Says in which order the operations of a function stand.
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
        // The sort is stable: what the checks found about one place stays in their order.
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

/// `function \`main\`, \`conv\` \`y\`, \`weight\``; nothing for the model as a whole.
impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        // What is wrong with a file is said where it is referred to.
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

/// One line without the hint.
impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]: ", self.severity(), self.code)?;
        if self.location != Location::default() {
            write!(f, "{}: ", self.location)?;
        }
        f.write_str(&self.message)
    }
}

/// A line for each diagnostic and one for the sum.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for diagnostic in &self.diagnostics {
            writeln!(f, "{diagnostic}")?;
        }
        f.write_str(&self.summary())
    }
}

impl std::error::Error for Report {}
