//! HTML reports about a model: its operations, devices, costs and accuracy.
//!
//! A [`Report`] collects models, diagnostics, comparisons, durations and changes.
//! [`Report::to_html`] writes a self-contained page.
//!
//! ```
//! use coremill_mil::text;
//! use coremill_report::Report;
//!
//! let source = "
//!     program(1.3) {
//!         func main<ios17>(tensor<fp32, [2, 3]> x) {
//!             tensor<fp32, [2, 3]> y = add(x = x, y = x);
//!         } -> (y);
//!     }";
//! let program = text::parse(source, &text::NoWeights).expect("it is MIL");
//! let model = coremill_mil::model::describe(program).expect("it is complete");
//! let mut report = Report::new("twice.mil");
//! report.add_model("twice", &model, None);
//! assert!(report.to_html().contains("twice.mil"));
//! ```
//!
//! | module | contents |
//! |---|---|
//! | `data` | what the page shows, as data; the page reads it as JSON |
//! | `graph` | a function's operations, what connects them, their costs and a forecast of where they run |
//! | `weights` | weights with histograms of their elements |
//! | `check` | diagnostics as findings and marks on operations |
//! | `drift` | how far values lie from a reference |
//! | `timing` | how long operations take |
//! | `devices` | devices of operations, by a plan |
//! | `plan` | compute plans, recorded or forecast |
//! | `pictures` | inputs and outputs that are pictures |
//! | `program` | ExecuTorch programs: delegates and the kernels between them |
//! | `changes` | comparison of two models |
//! | `description` | fields of a description as text |
//! | `page` | the HTML page, assembled from `page/*.js` and `page/style.css` |

mod changes;
mod check;
pub mod data;
pub mod description;
mod devices;
mod drift;
mod graph;
mod page;
mod pictures;
mod plan;
mod program;
mod timing;
mod weights;

pub use changes::changes;
pub use data::{Change, ChangeKind, Changes, Device, FunctionChanges, MovedOperation};
pub use drift::Output;

pub use coremill::inspect::placement::{ComputePlan, PlannedOperation};
use coremill_compiler::SourceMap;
use coremill_mil::model::Model;

use data::{Fact, Finding, Severity};

/// A report under construction.
#[derive(Clone, Debug)]
pub struct Report {
    /// Data of the page.
    pub data: data::Report,
}

impl Report {
    /// Creates an empty report.
    pub fn new(title: impl Into<String>) -> Report {
        let generator = format!("coremill {}", env!("CARGO_PKG_VERSION"));
        let data = data::Report {
            format_version: data::FORMAT_VERSION,
            title: title.into(),
            generator,
            ..data::Report::default()
        };
        Report { data }
    }

    /// Adds an entry to the summary at the top.
    pub fn fact(&mut self, label: impl Into<String>, value: impl Into<String>) {
        self.data.facts.push(Fact { label: label.into(), value: value.into() });
    }

    /// Adds a finding. The page lists findings by severity, worst first.
    pub fn finding(&mut self, finding: Finding) {
        self.data.findings.push(finding);
    }

    /// Adds a model with its diagnostics and a forecast of where its operations run; returns its position.
    ///
    /// `calls` maps values to the calls of the PyTorch program that the model was converted from.
    pub fn add_model(&mut self, name: &str, model: &Model, calls: Option<&SourceMap>) -> usize {
        let index = self.data.models.len();
        let mut described = graph::model(name, model, calls);
        let findings = check::attach(&mut described, index, &coremill::check(model));
        self.data.findings.extend(findings);
        self.data.models.push(described);
        index
    }

    /// The report as an HTML page.
    pub fn to_html(&self) -> String {
        let mut data = self.data.clone();
        data.findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        let all_well = data.findings.iter().all(|finding| finding.severity == Severity::Note);
        if all_well && !data.models.is_empty() {
            let title = "no errors and no warnings".to_owned();
            data.findings.insert(0, Finding { title, ..Finding::default() });
        }
        page::render(&data)
    }
}
