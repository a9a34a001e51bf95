//! Small graphs exported by torch, and the MIL text that each is lowered to: `graphs/NAME.pt2` and `graphs/NAME.mil`.
//! `BLESS=1` rewrites the text. `python -m oracle.corpora.small_graphs` exports the graphs from the cases of `oracle/aten`, whose
//! results are compared with torch; this test compares the text and does not need torch.

use std::fs;
use std::path::Path;

use coremill_compiler::{Options, convert};
use coremill_mil::text::{PrintOptions, print};
use coremill_verify::verify;

/// Minimum number of graphs; with fewer, the sample of operator families is incomplete.
const GRAPHS: usize = 150;

#[test]
fn graphs_lower_to_expected_mil() {
    let bless = std::env::var_os("BLESS").is_some();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/graphs");
    let entries = fs::read_dir(&folder).expect("the folder can be read");
    let paths = entries.map(|entry| entry.expect("the entry can be read").path());
    let (texts, graphs): (Vec<_>, Vec<_>) =
        paths.partition(|path| path.extension().is_some_and(|extension| extension == "mil"));
    assert!(graphs.len() >= GRAPHS, "there are {} graphs", graphs.len());
    for text in &texts {
        assert!(graphs.contains(&text.with_extension("pt2")), "{} has no graph", text.display());
    }
    let mut failures = Vec::new();
    for graph in &graphs {
        let found = lowered(graph);
        let path = graph.with_extension("mil");
        if bless {
            fs::write(&path, found).expect("the text can be written");
            continue;
        }
        let wanted = fs::read_to_string(&path).unwrap_or_default();
        if found != wanted {
            let name = graph.display();
            failures.push(format!("{name}:\nfound\n{found}\nexpected\n{wanted}"));
        }
    }
    failures.sort_unstable();
    let count = failures.len();
    assert!(
        count == 0,
        "{count} graphs differ:\n{}\n(run with BLESS=1 to update the .mil files)",
        failures.join("\n")
    );
}

/// The text of the model with default options.
fn lowered(graph: &Path) -> String {
    let name = graph.display();
    let program = coremill_pt2::read(graph).unwrap_or_else(|error| panic!("{name}: {error}"));
    let made = convert(program, &Options::default());
    let made = made.unwrap_or_else(|error| panic!("{name}: {error}"));
    if let Err(report) = verify(&made.model) {
        panic!("{name}: {report}");
    }
    format!("{}\n", print(&made.model.program, &PrintOptions::default()).text.trim_end())
}
