//! Tests the background preparation of models with the stand-ins of `standin.m`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use coremill_cache::Store;
use coremill_coreml::{
    Cache, ComputeUnits, ErrorKind, LoadOptions, OwnedTensor, PrewarmOptions, PrewarmStage,
    PrewarmedModel, Tensor, prewarm,
};
use coremill_tensor::DType;

const AFFINE: &str = "functions = {
    main = { does = affine; inputs = ({ name = x; type = fp32; shape = (2, 3); });
        outputs = ({ name = y; type = fp32; shape = (2, 3); }); };
    other = { does = affine; inputs = ({ name = x; type = fp32; shape = (2, 3); });
        outputs = ({ name = y; type = fp32; shape = (2, 3); }); }; };";

/// Environment variable with the directory of the child process that the test kills.
const CHILD: &str = "COREMILL_PREWARM_CHILD";

const LONG: Duration = Duration::from_secs(20);

fn package(directory: &Path, plist: &str) -> PathBuf {
    let path = directory.join("model.mlpackage");
    fs::create_dir_all(&path).expect("made");
    fs::write(path.join("model.plist"), format!("{{ {plist} }}")).expect("written");
    path
}

fn store(directory: &Path) -> Store {
    Store::open(directory.join("store"), &Default::default()).expect("a store")
}

fn start(directory: &Path, plist: &str, options: PrewarmOptions) -> PrewarmedModel {
    prewarm(store(directory), &package(directory, plist), options).expect("it starts")
}

/// Runs a function on six equal numbers; returns the compute units of the model that answered, and the result.
fn predict(
    model: &PrewarmedModel,
    function: Option<&str>,
    value: f32,
) -> Result<(ComputeUnits, Vec<f32>), coremill_coreml::Error> {
    let bytes: Vec<u8> = [value; 6].iter().flat_map(|x| x.to_ne_bytes()).collect();
    let x = Tensor::contiguous(DType::Fp32, &[2, 3], &bytes)?;
    let mut y = OwnedTensor::new("y", DType::Fp32);
    let units = model.predict(function, &[("x", x)], &mut [&mut y])?;
    let floats = y.bytes.chunks_exact(4).map(|x| f32::from_ne_bytes([x[0], x[1], x[2], x[3]]));
    Ok((units, floats.collect()))
}

#[test]
fn predictions_during_switch_use_one_model_each() {
    let directory = tempfile::tempdir().expect("a directory");
    let plist = format!("{AFFINE} compile = slow; load = slow;");
    let functions = ["main", "other"].map(str::to_owned).to_vec();
    let model =
        start(directory.path(), &plist, PrewarmOptions { functions, ..PrewarmOptions::default() });
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let threads = [Some("main"), Some("other"), None].map(|function| {
            let (model, is_over) = (&model, &is_over);
            scope.spawn(move || {
                let mut seen = Vec::new();
                for round in 0.. {
                    let value = round as f32;
                    // Predict once more after the switch.
                    let is_last = is_over.load(Ordering::Relaxed);
                    let (units, found) = predict(model, function, value).expect("an answer");
                    assert_eq!(found, [2.0 * value + 1.0; 6], "round {round}");
                    seen.push(units);
                    if is_last {
                        break;
                    }
                }
                seen
            })
        });
        model.wait(LONG).expect("it becomes ready");
        is_over.store(true, Ordering::Relaxed);
        for thread in threads {
            let seen = thread.join().expect("no panic");
            assert_eq!(seen.first(), Some(&ComputeUnits::CpuAndGpu), "the fallback answers first");
            assert_eq!(seen.last(), Some(&ComputeUnits::All), "the prewarmed model answers last");
            let switch = seen.iter().position(|units| *units == ComputeUnits::All);
            let after = &seen[switch.expect("it switched")..];
            assert!(after.iter().all(|units| *units == ComputeUnits::All), "it switches once");
        }
    });
    let progress = model.progress();
    assert_eq!((progress.stage, progress.done, progress.total), (PrewarmStage::Ready, 2, 2));
    assert_eq!(progress.answering, Some(ComputeUnits::All));
    let error = predict(&model, Some("third"), 1.0).expect_err("the function was not prewarmed");
    assert_eq!(error.kind(), ErrorKind::Input);
}

#[test]
fn progress_reports_stages_in_order() {
    let directory = tempfile::tempdir().expect("a directory");
    let plist = format!("{AFFINE} load = slow;");
    let model = start(directory.path(), &plist, PrewarmOptions::default());
    let mut seen = vec![model.progress()];
    while let Some(&last) = seen.last() {
        if last.stage.is_final() {
            break;
        }
        seen.push(model.wait_for_change(last, LONG));
    }
    let stages: Vec<_> = seen.iter().map(|progress| progress.stage).collect();
    assert!(stages.is_sorted(), "{stages:?}");
    assert_eq!(stages.last(), Some(&PrewarmStage::Ready));
    assert!(stages.contains(&PrewarmStage::LoadingFallback), "{stages:?}");
    assert!(seen.iter().all(|progress| progress.done <= progress.total), "{seen:?}");
}

#[test]
fn cancellation_is_fast_and_keeps_fallback() {
    for (how, pause) in [("compile = slow;", 200), ("load = slow;", 200), ("load = slow;", 1400)] {
        let directory = tempfile::tempdir().expect("a directory");
        let model = start(directory.path(), &format!("{AFFINE} {how}"), PrewarmOptions::default());
        std::thread::sleep(Duration::from_millis(pause));
        let begin = Instant::now();
        model.cancel();
        let error = model.wait(LONG).expect_err("it was cancelled");
        assert!(begin.elapsed() < Duration::from_millis(100), "{how}: {:?}", begin.elapsed());
        assert_eq!(error.kind(), ErrorKind::Cancelled, "{how}");
        assert_eq!(model.progress().stage, PrewarmStage::Cancelled, "{how}");
        match model.progress().answering {
            Some(units) => {
                assert_eq!(predict(&model, None, 2.0).expect("an answer"), (units, vec![5.0; 6]));
            }
            None => {
                let error = predict(&model, None, 2.0).expect_err("no model is loaded");
                assert_eq!(error.kind(), ErrorKind::Cancelled, "{how}");
            }
        }
    }
}

#[test]
fn failures_are_returned_to_waiting_threads() {
    for (how, kind) in [
        ("compile = error;", ErrorKind::Compile),
        ("compile = raise;", ErrorKind::Exception),
        ("compile = silent;", ErrorKind::Exception),
        ("load = error;", ErrorKind::Load),
        ("load = silent;", ErrorKind::Exception),
    ] {
        let directory = tempfile::tempdir().expect("a directory");
        let model = start(directory.path(), &format!("{AFFINE} {how}"), PrewarmOptions::default());
        assert_eq!(model.wait(LONG).expect_err("it fails").kind(), kind, "{how}");
        assert_eq!(model.progress().stage, PrewarmStage::Failed, "{how}");
        assert_eq!(predict(&model, None, 1.0).expect_err("it fails").kind(), kind, "{how}");
    }
}

#[test]
fn cache_contains_model_after_prewarm() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = package(directory.path(), AFFINE);
    let options = LoadOptions::default();
    let contains = || Cache::new(&store(directory.path())).contains(&path, &options);
    assert!(!contains().expect("the lookup succeeds"));
    let model = start(directory.path(), AFFINE, PrewarmOptions::default());
    model.wait(LONG).expect("it becomes ready");
    assert!(contains().expect("the lookup succeeds"));
    fs::write(path.join("more"), "changed").expect("written");
    assert!(!contains().expect("the lookup succeeds"), "the changed model is not cached");
}

/// Prepares a model in the process that [`killed_process_leaves_no_partial_cache_entry`] kills.
#[test]
fn child_process_prewarms_model() {
    let Some(directory) = std::env::var_os(CHILD) else { return };
    let directory = PathBuf::from(directory);
    let path = directory.join("model.mlpackage");
    let model = prewarm(store(&directory), &path, PrewarmOptions::default()).expect("it starts");
    let _ = model.wait(LONG);
}

#[test]
fn killed_process_leaves_no_partial_cache_entry() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = package(directory.path(), &format!("{AFFINE} compile = slow; load = slow;"));
    let options = LoadOptions::default();
    // Compilation takes a second.
    for pause in [100, 500, 900, 1000, 1050, 1100] {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "child_process_prewarms_model"])
            .env(CHILD, directory.path())
            .spawn()
            .expect("it starts");
        std::thread::sleep(Duration::from_millis(pause));
        child.kill().expect("it is killed");
        child.wait().expect("the process exits");
        let store = store(directory.path());
        if Cache::new(&store).contains(&path, &options).expect("the lookup succeeds") {
            let compiled = Cache::new(&store).compiled(&path, &options).expect("a compiled model");
            compiled.load(&options).expect("it is complete");
        }
        assert!(store.verify().expect("it is verified").damaged.is_empty(), "after {pause} ms");
    }
    let model = prewarm(store(directory.path()), &path, PrewarmOptions::default());
    model.expect("it starts").wait(LONG).expect("it becomes ready");
}

#[test]
fn prewarm_predicts_each_enumerated_shape_once() {
    let directory = tempfile::tempdir().expect("a directory");
    let plist = "functions = { main = { does = affine;
        inputs = ({ name = x; type = fp32; shape = (1, 2); enumerated = ((1, 2), (3, 2), (4, 2)); });
        outputs = ({ name = y; type = fp32; shape = (1, 2); }); }; };";
    let options = PrewarmOptions { without_fallback: true, ..PrewarmOptions::default() };
    let model = start(directory.path(), plist, options);
    model.wait(LONG).expect("it becomes ready");
    let progress = model.progress();
    assert_eq!((progress.done, progress.total), (3, 3));
}

#[test]
fn failed_first_prediction_keeps_fallback() {
    let directory = tempfile::tempdir().expect("a directory");
    let model =
        start(directory.path(), &AFFINE.replace("affine", "error"), PrewarmOptions::default());
    assert_eq!(model.wait(LONG).expect_err("it fails").kind(), ErrorKind::Predict);
    let progress = model.progress();
    assert_eq!(progress.stage, PrewarmStage::Failed);
    assert_eq!(progress.answering, Some(ComputeUnits::CpuAndGpu));
}

#[test]
fn cpu_only_prewarm_needs_no_fallback() {
    let directory = tempfile::tempdir().expect("a directory");
    let load = LoadOptions { compute_units: ComputeUnits::CpuOnly, ..LoadOptions::default() };
    let plist = format!("{AFFINE} load = slow;");
    let model =
        start(directory.path(), &plist, PrewarmOptions { load, ..PrewarmOptions::default() });
    let (units, found) = predict(&model, None, 3.0).expect("it waits for the model");
    assert_eq!((units, found), (ComputeUnits::CpuOnly, vec![7.0; 6]));
}
