//! HTML report of a comparison.

use coremill::compare::NotFinite;
use coremill_compiler::SourceMap;
use coremill_engine::Numerics;
use coremill_report::{Output, Report, changes};
use coremill_session::{Array, Device, Hooks, Value, inputs};

use super::{Comparison, Side};
use crate::commands::loaded::Content;
use crate::output::Failure;

impl<'a> Comparison<'a> {
    /// A comparison without running the models.
    pub(in crate::commands) fn structural_only(
        reference: Side<'a>,
        other: Side<'a>,
    ) -> Comparison<'a> {
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

    /// The source map of the exported program that a side was converted from, if any.
    pub(super) fn calls(&self) -> Option<&SourceMap> {
        let loaded = self.sides.iter().rev().filter_map(Side::loaded);
        loaded.filter_map(|loaded| loaded.calls.as_ref()).next()
    }

    /// The report: both models, the changes between them, and the drift of their values.
    pub(in crate::commands) fn page(&self) -> Result<Report, Failure> {
        let [reference, other] = &self.sides;
        let paths = [reference, other].map(|side| side.path);
        let mut report = Report::new(crate::commands::page::title_of_two(paths));
        // The source map of one side applies to both, since value names agree.
        let loaded = [reference, other].map(Side::loaded);
        let calls = self.calls();
        for (what, side) in [("reference", reference), ("candidate", other)] {
            report.fact(what, side.what());
            let name = side.path.display().to_string();
            match side.loaded().map(|loaded| &loaded.content) {
                Some(Content::Model(opened)) => {
                    report.add_model(&name, &opened.model, calls);
                }
                Some(Content::Program(program)) => {
                    let added = report.add_program(&name, program);
                    added.map_err(|error| crate::commands::failure(&error))?;
                }
                None => {}
            }
        }
        if let [Some(reference), Some(other)] = loaded
            && let (Content::Model(one), Content::Model(two)) = (&reference.content, &other.content)
            && reference.archive.is_none()
            && other.archive.is_none()
        {
            report.data.changes = Some(changes(&one.model, &two.model));
        }
        if !self.steps.is_empty() {
            self.add_drift(&mut report);
        }
        Ok(report)
    }

    /// Adds the errors of the last step's outputs, and of all compared values.
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

    /// The first value of the candidate with NaN or infinite elements. The reference may have no
    /// corresponding value.
    pub(super) fn first_not_finite(&self) -> Option<NotFinite> {
        let mut session = self.sides[1].loaded()?.session().ok()?;
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
            session.run_with(&inputs(step), &mut hooks).ok()?;
        }
        first
    }
}

impl Side<'_> {
    /// Describes the model and its precision.
    fn what(&self) -> String {
        let path = self.path.display();
        let Some(loaded) = self.loaded() else { return path.to_string() };
        if loaded.device != Device::Host {
            return format!("{path} on {}", loaded.device);
        }
        match (loaded.numerics, loaded.archive.is_some()) {
            (Numerics::Fast, true) => format!("{path} in fp32"),
            (Numerics::Rounded, true) => {
                format!("{path}, converted and rounded as on the device")
            }
            (Numerics::Fast, false) => format!("{path}, computed in fp32"),
            (Numerics::Rounded, false) => format!("{path}, rounded as on the device"),
            (Numerics::Ane, _) => format!("{path}, computed as on the Neural Engine"),
            (Numerics::CoremlCpu, _) => format!("{path}, computed as Core ML does on the CPU"),
        }
    }
}
