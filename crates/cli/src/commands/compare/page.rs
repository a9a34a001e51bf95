//! A comparison as a page.

use coremill_engine::{Array, Hooks, Precision, Value};
use coremill_report::{NotFinite, Output, Report, changes};

use super::{Comparison, Content, Side};
use crate::output::Failure;

impl<'a> Comparison<'a> {
    /// Two sides that were not run.
    pub(in crate::commands) fn unrun(reference: Side<'a>, other: Side<'a>) -> Comparison<'a> {
        let sides = [reference, other];
        Comparison {
            sides,
            inputs: Vec::new(),
            expected: Vec::new(),
            found: Vec::new(),
            steps: Vec::new(),
            per_op: None,
        }
    }

    /// The page: both models, what changed between them, and where their numbers drift apart.
    pub(in crate::commands) fn page(&self) -> Result<Report, Failure> {
        let [reference, other] = &self.sides;
        let names = [reference, other].map(|side| side.path.display().to_string());
        let mut report = Report::new(format!("{} and {}", names[0], names[1]));
        // Names of values tell which calls they come from on both sides, if they do on one.
        let calls = [other, reference].into_iter().find_map(|side| match &side.content {
            Content::Program(program) => program.calls.as_ref(),
            Content::Method(_) | Content::Arrays(_) => None,
        });
        for side in [reference, other] {
            report.fact(
                if std::ptr::eq(side, reference) { "reference" } else { "candidate" },
                side.what(),
            );
            let name = side.path.display().to_string();
            match &side.content {
                Content::Program(program) => {
                    report.add_model(&name, &program.opened.model, calls);
                }
                Content::Method(method) => {
                    let added = report.add_program(&name, method.runner.program());
                    added.map_err(|error| crate::commands::failure(&error))?;
                }
                Content::Arrays(_) => {}
            }
        }
        if let (Content::Program(reference), Content::Program(other)) =
            (&reference.content, &other.content)
            && reference.archive.is_none()
            && other.archive.is_none()
        {
            report.data.changes = Some(changes(&reference.opened.model, &other.opened.model));
        }
        if !self.steps.is_empty() {
            self.add_drift(&mut report);
        }
        Ok(report)
    }

    /// Adds how far the outputs of the last step lie apart, and every value that was compared.
    pub(in crate::commands) fn add_drift(&self, report: &mut Report) {
        let [expected, found] =
            [&self.expected, &self.found].map(|steps| steps.last().map_or(&[][..], Vec::as_slice));
        fn find<'a>(arrays: &'a [(String, Array)], name: &str) -> Option<&'a Array> {
            arrays.iter().find(|(known, _)| known == name).map(|(_, array)| array)
        }
        let rows = self.steps.last().into_iter().flatten();
        let outputs: Vec<_> = rows
            .map(|row| Output {
                name: &row.name,
                reference: find(expected, &row.name),
                other: find(found, &row.name),
                figures: &row.figures,
            })
            .collect();
        let given = self.inputs.last().into_iter().flatten();
        report.add_pictures("input", given.map(|(name, array)| (&**name, array)));
        let [reference, other] = self.sides.each_ref().map(Side::what);
        let first = self.first_not_finite();
        report.add_drift([&reference, &other], &outputs, self.per_op.as_ref(), first.as_ref());
    }

    /// The first value of the candidate with NaN or infinite elements; passes may have left no counterpart to it in the
    /// reference.
    fn first_not_finite(&self) -> Option<NotFinite> {
        let Content::Program(program) = &self.sides[1].content else { return None };
        let mut session = program.engine.session(&program.function).ok()?;
        let mut first = None;
        for step in &self.inputs {
            let mut watch = |op: &str, name: &str, value: &Value| {
                let elements = value.as_array().and_then(Array::as_floats);
                let Some(elements) = elements.filter(|_| first.is_none()) else { return };
                let count = elements.iter().filter(|element| !element.is_finite()).count();
                if count > 0 {
                    let (op, name) = (op.to_owned(), name.to_owned());
                    first = Some(NotFinite { op, name, count, elements: elements.len() });
                }
            };
            let mut hooks = Hooks { observe: Some(&mut watch), ..Hooks::default() };
            let given: Vec<_> = step.iter().map(|(name, array)| (&**name, array.clone())).collect();
            session.run_with(&given, &mut hooks).ok()?;
        }
        first
    }
}

impl Side<'_> {
    /// What runs, and in which precision.
    fn what(&self) -> String {
        let path = self.path.display();
        let Some(takes) = self.takes() else { return path.to_string() };
        let made_here =
            matches!(&self.content, Content::Program(program) if program.archive.is_some());
        match (takes.precision(), made_here) {
            (Precision::Fast, true) => format!("{path} in fp32"),
            (Precision::Faithful, true) => {
                format!("{path}, converted and rounded as on the device")
            }
            (Precision::Fast, false) => format!("{path}, computed in fp32"),
            (Precision::Faithful, false) => format!("{path}, rounded as on the device"),
        }
    }
}
