//! Test cases of passes: a file in `passes/`, named after its pass, contains a program and the expected result,
//! separated by a line `// becomes`. `BLESS=1` rewrites the second part.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use coremill_mil::text::{self, NoWeights, PrintOptions};
use coremill_passes::{self as pass, AnalyzedFunction, Editor, KeepFp32, Magnitude};
use coremill_verify as verify;

const SEPARATOR: &str = "// becomes\n";

/// Runs the pass with this name.
fn run(name: &str, mut draft: AnalyzedFunction) -> AnalyzedFunction {
    match name {
        "to_fp16" => {
            let keep = KeepFp32 {
                ops: vec!["exp".to_owned()],
                prefixes: vec!["kept_".to_owned()],
                names: HashSet::from(["wide".to_owned()]),
            };
            return pass::to_fp16(&draft, &keep).expect("a valid program");
        }
        "rescale" => {
            // Names determine the magnitudes of values.
            let sizes = [("large", 1e6), ("huge", 1e12), ("small", 1e-8), ("sound", 1.0)];
            let magnitude = |name: &str| {
                let (_, size) = sizes.iter().find(|(start, _)| name.starts_with(start))?;
                Some((name.to_owned(), Magnitude { max: *size, rms: size / 4.0 }))
            };
            let function = &draft.function;
            let values = function.all_ops().flat_map(|(_, op)| &op.outputs);
            let values = values.chain(function.inputs());
            let magnitudes = values.filter_map(|&id| magnitude(&function.value(id).name)).collect();
            let mut keep = KeepFp32::default();
            let done = pass::rescale(&mut draft, &magnitudes, &mut keep);
            let named = done.scaled.iter().flat_map(|scaled| &scaled.in_fp32);
            assert!(named.clone().all(|name| keep.names.contains(name)));
            Editor::new(&mut draft).sweep_all();
            return draft;
        }
        "reparameterize_conv_branches" => {
            pass::reparameterize_conv_branches(&mut draft);
            Editor::new(&mut draft).sweep_all();
            return draft;
        }
        "materialize_literals" => {
            pass::materialize_literals(&mut draft);
            return draft;
        }
        _ => {}
    }
    let pass = pass::PASSES.iter().find(|pass| pass.name == name);
    let pass = pass.unwrap_or_else(|| panic!("there is no pass `{name}`"));
    let mut editor = Editor::new(&mut draft);
    (pass.run)(&mut editor);
    editor.sweep_all();
    draft
}

#[test]
fn passes_produce_expected_programs() {
    let bless = std::env::var_os("BLESS").is_some();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/passes");
    let mut failures = Vec::new();
    let mut count = 0;
    for directory in sorted(&root) {
        let name =
            directory.file_name().expect("entries have names").to_string_lossy().into_owned();
        for path in sorted(&directory) {
            count += 1;
            let file = fs::read_to_string(&path).expect("the case can be read");
            let (before, wanted) = file.split_once(SEPARATOR).unwrap_or((&file, ""));
            let mut program = match text::parse(before, &NoWeights) {
                Ok(program) => program,
                Err(error) => panic!("{}: {error}", path.display()),
            };
            verify::verify_program(&program).expect("a valid case");
            let function = program.functions.remove(0);
            let draft = run(&name, AnalyzedFunction::new(function).expect("a valid case"));
            program.functions.push(draft.function);
            verify::verify_program(&program).expect("a valid program after the pass");
            let printed = text::print(&program, &PrintOptions::default());
            let found = format!("{}\n", printed.text.trim_end());
            if bless {
                let text = format!("{}\n{SEPARATOR}{found}", before.trim_end());
                fs::write(&path, text).expect("the case can be written");
            } else if found != wanted {
                failures.push(format!("{}:\nfound\n{found}\nexpected\n{wanted}", path.display()));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(count > 0, "there are no cases");
    for pass in pass::PASSES {
        assert!(root.join(pass.name).is_dir(), "the pass `{}` has no cases", pass.name);
    }
}

fn sorted(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("the directory can be read");
    let mut paths: Vec<_> =
        entries.map(|entry| entry.expect("the entry can be read").path()).collect();
    paths.sort();
    paths
}
