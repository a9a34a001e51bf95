//! Calls outside delegates are converted to calls with kernels, and every value is defined before it is used.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use coremill_compiler::out_variants::{kernel, to_out_variants};
use coremill_pt2::{ExportedProgram, Target};

/// Archives of the tests of `coremill-pt2`.
fn archives() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../pt2/tests/archives");
    let entries = directory.read_dir().expect("the directory can be read");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "pt2"));
    paths.sort();
    assert!(!paths.is_empty());
    paths
}

/// Checks that every value is defined once, and before it is used.
fn check_definitions(program: &ExportedProgram) {
    let mut known = HashSet::new();
    for input in &program.graph.inputs {
        input.for_each_value(&mut |id| assert!(known.insert(id), "duplicate graph input"));
    }
    for node in &program.graph.nodes {
        node.for_each_use(&mut |id| {
            assert!(known.contains(&id), "{} uses value {id} before its definition", node.name);
        });
        for id in node.defined() {
            assert!(known.insert(id), "{id} is defined twice");
        }
    }
    for output in &program.graph.outputs {
        output
            .for_each_value(&mut |id| assert!(known.contains(&id), "output {id} is never defined"));
    }
    assert_eq!(program.inputs.len(), program.graph.inputs.len());
}

/// Converts the calls outside delegates and checks the result.
fn check_conversion(program: &ExportedProgram, is_outside: impl Fn(usize) -> bool) {
    let outside: Vec<bool> = (0..program.graph.nodes.len()).map(is_outside).collect();
    let done = to_out_variants(program.clone(), &outside).expect("every call has a decomposition");
    let nodes = &done.program.graph.nodes;
    assert_eq!(done.sources.len(), nodes.len());
    assert!(done.sources.is_sorted());
    check_definitions(&done.program);
    for (node, source) in nodes.iter().zip(&done.sources) {
        let before = &program.graph.nodes[*source];
        if outside[*source] {
            let stays = matches!(node.target, Target::HigherOrder(_));
            assert!(stays || kernel(&node.target).is_some(), "{} has no kernel", node.target);
        } else {
            assert_eq!((&node.target, &node.name), (&before.target, &before.name));
            assert!(node.defined().eq(before.defined()));
        }
    }
    let kept = (0..outside.len()).filter(|index| !outside[*index]);
    for index in kept {
        assert_eq!(done.sources.iter().filter(|source| **source == index).count(), 1);
    }
}

#[test]
fn any_undelegated_subset_converts_to_out_variants() {
    for path in archives() {
        let program = coremill_pt2::read(&path).expect("the archive is read");
        let program =
            coremill_prepare::prepare(program).expect("the program can be functionalized");
        check_definitions(&program);
        check_conversion(&program, |_| true);
        check_conversion(&program, |_| false);
        for step in 2..5 {
            for offset in 0..step {
                check_conversion(&program, |index| index % step == offset);
            }
        }
    }
}
