//! Packages and compiled models that the C interface loads on the stand-ins for Core ML, as in an app without the
//! engine and the MIL reader.

use std::ffi::{CStr, CString};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use coremill_cache::Store;
use coremill_capi::error::{CoremillStatus, coremill_error_message};
use coremill_capi::method::*;
use coremill_capi::model::*;
use coremill_capi::prewarm::*;
use coremill_capi::{CoremillOption, CoremillPort, CoremillTensor};

/// Configuration of the stand-ins: inputs and outputs correspond in the order of their names.
const MODEL: &str = "{ functions = {
    main = { does = affine; inputs = ({ name = a; shape = (2); }, { name = z; shape = (2); });
        outputs = ({ name = p; shape = (2); }, { name = q; shape = (2); }); };
    sum = { does = add; inputs = ({ name = x; shape = (2); }); outputs = ({ name = y; shape = (2); });
        states = ({ name = total; type = fp32; shape = (2); }); }; }; }";

/// A field of a protobuf message.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let tag = u16::from(number) << 3 | 2;
    let tag = [tag as u8 & 0x7f | if tag > 0x7f { 0x80 } else { 0 }, (tag >> 7) as u8];
    let length = u8::try_from(content.len()).expect("it is short");
    assert!(length < 0x80, "the length fits in one byte");
    let mut bytes = tag[..if tag[1] > 0 { 2 } else { 1 }].to_vec();
    bytes.push(length);
    bytes.extend(content);
    bytes
}

/// The functions in a model file; their inputs are not sorted by name.
fn description() -> Vec<u8> {
    let function = |name: &str, inputs: &[&str], outputs: &[&str]| {
        let names = |number: u8, names: &[&str]| -> Vec<u8> {
            names.iter().flat_map(|name| field(number, &field(1, name.as_bytes()))).collect()
        };
        let parts = [field(1, name.as_bytes()), names(2, inputs), names(3, outputs)];
        field(20, &parts.concat())
    };
    let (main, sum) = (function("main", &["z", "a"], &["q", "p"]), function("sum", &["x"], &["y"]));
    [sum, main, field(21, b"main")].concat()
}

fn package(folder: &Path) -> PathBuf {
    package_with(folder, MODEL)
}

/// A package whose stand-in has another configuration.
fn package_with(folder: &Path, standin: &str) -> PathBuf {
    const MANIFEST: &str = r#"{"rootModelIdentifier": "id", "itemInfoEntries": {"id": {"path": "com.apple.CoreML/model.mlmodel"}}}"#;
    let path = folder.join("model.mlpackage");
    let inner = path.join("Data/com.apple.CoreML");
    fs::create_dir_all(inner.join("weights")).expect("made");
    fs::write(path.join("Manifest.json"), MANIFEST).expect("written");
    fs::write(path.join("model.plist"), standin).expect("written");
    fs::write(inner.join("model.mlmodel"), field(2, &description())).expect("written");
    fs::write(inner.join("weights/weight.bin"), vec![7; 3 << 20]).expect("written");
    path
}

fn compiled(folder: &Path) -> PathBuf {
    let path = folder.join("model.mlmodelc");
    fs::create_dir_all(&path).expect("made");
    let description = description();
    let length = (description.len() as u64).to_le_bytes();
    let data = [&[0xf6, 1, 0, 0][..], &[0; 24], &7u64.to_le_bytes(), b"generic", &[0; 32], &length]
        .concat();
    fs::write(path.join("coremldata.bin"), [data, description].concat()).expect("written");
    fs::write(path.join("model.plist"), MODEL).expect("written");
    path
}

#[track_caller]
fn ok(status: CoremillStatus) {
    // SAFETY: the text is valid and terminated by zero.
    let message = unsafe { CStr::from_ptr(coremill_error_message()) };
    assert_eq!(status, CoremillStatus::Ok, "{}", message.to_string_lossy());
}

fn load(path: &Path, cache: &Path, name: Option<&CStr>) -> CoremillMethod {
    let [path, cache] = [path, cache]
        .map(|path| CString::new(path.to_str().expect("UTF-8")).expect("there is no zero"));
    let option = |key: &'static CStr, value: &CStr| CoremillOption {
        key: key.as_ptr(),
        value: value.as_ptr(),
    };
    let options = [option(c"cache_dir", &cache), option(c"compute_unit", c"cpu_only")];
    let (mut model, mut method) = (CoremillModel { id: 0 }, CoremillMethod { id: 0 });
    let mut count = 0;
    // SAFETY: texts are terminated by zero, and the result pointers are valid.
    unsafe {
        ok(coremill_model_load_file(path.as_ptr(), options.as_ptr(), 2, &mut model));
        ok(coremill_model_method_count(model, &mut count));
        ok(coremill_method_load(model, name.map_or(std::ptr::null(), CStr::as_ptr), &mut method));
    }
    assert_eq!(count, 2);
    ok(coremill_model_free(model));
    method
}

/// The names of a method's inputs, outputs or states.
fn names(method: CoremillMethod, kind: i32) -> Vec<String> {
    let mut count = 0;
    // SAFETY: the pointer is valid for a number.
    ok(unsafe { coremill_method_port_count(method, kind, &mut count) });
    let name = |index| {
        let mut port = CoremillPort::default();
        // SAFETY: the pointer is valid for a port, whose name is terminated by zero.
        let name = unsafe {
            ok(coremill_method_port(method, kind, index, &mut port));
            CStr::from_ptr(port.name)
        };
        assert_eq!((port.scalar_type, port.rank, port.largest[0]), (6, 1, 2));
        name.to_string_lossy().into_owned()
    };
    (0..count).map(name).collect()
}

fn tensor(elements: &mut [f32; 2]) -> CoremillTensor {
    let mut sizes = [0; 16];
    sizes[0] = 2;
    let data = elements.as_mut_ptr().cast();
    CoremillTensor { data, length: 8, scalar_type: 6, rank: 1, sizes, dim_order: [0; 16] }
}

fn run(method: CoremillMethod, inputs: &mut [[f32; 2]]) -> Vec<[f32; 2]> {
    let mut results = vec![[0.0; 2]; inputs.len()];
    let inputs: Vec<_> = inputs.iter_mut().map(tensor).collect();
    let mut outputs: Vec<_> = results.iter_mut().map(tensor).collect();
    let (given, wanted) = (inputs.as_ptr(), outputs.as_mut_ptr());
    let (inputs, outputs) = (inputs.len(), outputs.len());
    // SAFETY: the tensors and their memory are valid.
    ok(unsafe {
        coremill_method_execute(method, given, inputs, wanted, outputs, std::ptr::null())
    });
    results
}

#[test]
fn packages_and_compiled_models_run() {
    let folder = tempfile::tempdir().expect("a scratch directory");
    let cache = folder.path().join("cache");
    for path in [package(folder.path()), compiled(folder.path())] {
        let main = load(&path, &cache, None);
        assert_eq!(
            (names(main, 0), names(main, 1)),
            (vec!["z".into(), "a".into()], vec!["q".into(), "p".into()])
        );
        let results = run(main, &mut [[1.0, 2.0], [10.0, 20.0]]);
        assert_eq!(results, [[3.0, 5.0], [21.0, 41.0]]);

        let sums = [load(&path, &cache, Some(c"sum")), load(&path, &cache, Some(c"sum"))];
        assert_eq!(
            (names(sums[0], 0), names(sums[0], 2)),
            (vec!["x".into()], vec!["total".into()])
        );
        assert_eq!(run(sums[0], &mut [[1.0, 2.0]]), [[1.0, 2.0]]);
        assert_eq!(run(sums[0], &mut [[1.0, 2.0]]), [[2.0, 4.0]]);
        assert_eq!(
            run(sums[1], &mut [[5.0, 5.0]]),
            [[5.0, 5.0]],
            "method instances have separate states"
        );
        ok(coremill_method_states_copy(sums[0], sums[1]));
        assert_eq!(run(sums[1], &mut [[0.0, 1.0]]), [[2.0, 5.0]]);
        for method in [main, sums[0], sums[1]] {
            ok(coremill_method_free(method));
        }
    }
    let store = Store::open(&cache, &Default::default()).expect("opens");
    assert_eq!(store.list().expect("listed").len(), 2, "each is compiled once");
    let entries = std::fs::read_dir(cache.join("values")).expect("read").count();
    assert_eq!(entries, 2, "files that did not change are not read again");
}

/// A prewarm handle that is freed on drop.
struct Preparation(CoremillPrewarm);

impl Drop for Preparation {
    fn drop(&mut self) {
        ok(coremill_prewarm_free(self.0));
        assert_eq!(coremill_prewarm_cancel(self.0), CoremillStatus::InvalidHandle);
    }
}

/// Calls a function with the options for a cache directory and all compute units.
fn with_options<T>(cache: &Path, call: impl FnOnce(&[CoremillOption]) -> T) -> T {
    let cache = CString::new(cache.to_str().expect("UTF-8")).expect("there is no zero");
    let option = |key: &'static CStr, value: &CStr| CoremillOption {
        key: key.as_ptr(),
        value: value.as_ptr(),
    };
    call(&[option(c"cache_dir", &cache), option(c"compute_unit", c"all")])
}

fn start(path: &Path, cache: &Path, functions: &[&CStr]) -> Result<Preparation, String> {
    let path = CString::new(path.to_str().expect("UTF-8")).expect("there is no zero");
    let functions: Vec<_> = functions.iter().map(|name| name.as_ptr()).collect();
    let mut prewarm = CoremillPrewarm { id: 0 };
    let status = with_options(cache, |options| {
        let (count, functions) = (functions.len(), functions.as_ptr());
        let (path, length) = (path.as_ptr(), options.len());
        // SAFETY: texts are terminated by zero, and the counts are right.
        unsafe {
            coremill_prewarm_start(path, functions, count, options.as_ptr(), length, &mut prewarm)
        }
    });
    if status == CoremillStatus::Ok { Ok(Preparation(prewarm)) } else { Err(message()) }
}

fn message() -> String {
    // SAFETY: the text is valid and terminated by zero.
    unsafe { CStr::from_ptr(coremill_error_message()) }.to_string_lossy().into_owned()
}

fn is_cached(path: &Path, cache: &Path) -> bool {
    let path = CString::new(path.to_str().expect("UTF-8")).expect("there is no zero");
    let mut cached = 7;
    with_options(cache, |options| {
        let (path, length) = (path.as_ptr(), options.len());
        // SAFETY: texts are terminated by zero, and the count is right.
        ok(unsafe { coremill_prewarm_is_cached(path, options.as_ptr(), length, &mut cached) });
    });
    assert!(cached == 0 || cached == 1, "{cached}");
    cached == 1
}

fn progress(prewarm: &Preparation) -> CoremillPrewarmProgress {
    let mut found = CoremillPrewarmProgress { stage: -1, answering: -1, done: 0, total: 0 };
    // SAFETY: the pointer is valid for the progress.
    ok(unsafe { coremill_prewarm_progress(prewarm.0, &mut found) });
    found
}

/// Runs a function. Returns the compute units that answered, and the results.
fn answer(
    prewarm: &Preparation,
    function: Option<&CStr>,
    inputs: &mut [[f32; 2]],
) -> Result<(i32, Vec<[f32; 2]>), CoremillStatus> {
    let mut results = vec![[0.0; 2]; inputs.len()];
    let mut units = -1;
    let inputs: Vec<_> = inputs.iter_mut().map(tensor).collect();
    let mut outputs: Vec<_> = results.iter_mut().map(tensor).collect();
    let function = function.map_or(std::ptr::null(), CStr::as_ptr);
    let (given, wanted) = (inputs.as_ptr(), outputs.as_mut_ptr());
    // SAFETY: the tensors and their memory are valid.
    let status = unsafe {
        coremill_prewarm_execute(
            prewarm.0,
            function,
            given,
            inputs.len(),
            wanted,
            outputs.len(),
            &mut units,
        )
    };
    if status == CoremillStatus::Ok { Ok((units, results)) } else { Err(status) }
}

const GPU: i32 = CoremillComputeUnits::CpuAndGpu as i32;
const ALL: i32 = CoremillComputeUnits::All as i32;
const LONG: u64 = 20_000;

#[test]
fn prewarm_runs_in_background_and_switches_once() {
    let folder = tempfile::tempdir().expect("a scratch directory");
    let cache = folder.path().join("cache");
    let slow = MODEL.replacen('{', "{ compile = slow; load = slow;", 1);
    let path = package_with(folder.path(), &slow);
    assert!(!is_cached(&path, &cache));
    let begin = Instant::now();
    let prewarm = start(&path, &cache, &[c"main"]).expect("it starts");
    assert!(begin.elapsed() < Duration::from_millis(500), "{:?}", begin.elapsed());
    assert_eq!(coremill_prewarm_wait(prewarm.0, 10), CoremillStatus::Timeout);
    let mut stages = vec![progress(&prewarm)];
    // Inputs and outputs are in the order of the description, not sorted by name.
    let mut seen = Vec::new();
    while seen.last() != Some(&ALL) {
        let (units, results) =
            answer(&prewarm, None, &mut [[1.0, 2.0], [10.0, 20.0]]).expect("an answer");
        assert_eq!(results, [[3.0, 5.0], [21.0, 41.0]]);
        seen.push(units);
        let mut current = *stages.last().expect("a stage");
        // SAFETY: the pointer is valid for the progress.
        ok(unsafe { coremill_prewarm_wait_for_change(prewarm.0, 50, &mut current) });
        stages.push(current);
        assert!(begin.elapsed() < Duration::from_secs(20), "it never switches: {current:?}");
    }
    assert_eq!(seen[0], GPU, "the fallback answers first");
    assert_eq!(seen.iter().filter(|units| **units == ALL).count(), 1, "{seen:?}");
    assert!(stages.is_sorted_by_key(|one| one.stage), "{stages:?}");
    ok(coremill_prewarm_wait(prewarm.0, LONG));
    let end = progress(&prewarm);
    assert_eq!((end.stage, end.answering), (CoremillPrewarmStage::Ready as i32, ALL));
    assert_eq!((end.done, end.total), (1, 1));

    // A method with the same options finds the compiled model.
    assert!(is_cached(&path, &cache));
    let text = CString::new(path.to_str().expect("UTF-8")).expect("there is no zero");
    let mut model = CoremillModel { id: 0 };
    let mut method = CoremillMethod { id: 0 };
    with_options(&cache, |options| {
        // SAFETY: texts are terminated by zero, and the count is right.
        unsafe {
            ok(coremill_model_load_file(
                text.as_ptr(),
                options.as_ptr(),
                options.len(),
                &mut model,
            ));
            ok(coremill_method_load(model, c"sum".as_ptr(), &mut method));
        }
    });
    assert_eq!(run(method, &mut [[1.0, 2.0]]), [[1.0, 2.0]]);
    ok(coremill_method_free(method));
    ok(coremill_model_free(model));
    let store = Store::open(&cache, &Default::default()).expect("opens");
    assert_eq!(store.list().expect("listed").len(), 1, "it is compiled once");
    fs::write(path.join("Data/com.apple.CoreML/more"), "changed").expect("written");
    assert!(!is_cached(&path, &cache), "the changed model is not cached");
}

#[test]
fn prewarm_cancels_immediately() {
    let folder = tempfile::tempdir().expect("a scratch directory");
    let slow = MODEL.replacen('{', "{ load = slow;", 1);
    let path = package_with(folder.path(), &slow);
    // Cancel before and after the fallback is loaded.
    for (pause, answering) in [(200, CoremillComputeUnits::None as i32), (1500, GPU)] {
        let prewarm = start(&path, &folder.path().join("cache"), &[c"main"]).expect("it starts");
        std::thread::sleep(Duration::from_millis(pause));
        let begin = Instant::now();
        ok(coremill_prewarm_cancel(prewarm.0));
        assert_eq!(coremill_prewarm_wait(prewarm.0, LONG), CoremillStatus::Cancelled);
        assert!(begin.elapsed() < Duration::from_millis(100), "{:?}", begin.elapsed());
        let end = progress(&prewarm);
        assert_eq!((end.stage, end.answering), (CoremillPrewarmStage::Cancelled as i32, answering));
        let found = answer(&prewarm, None, &mut [[1.0, 2.0], [10.0, 20.0]]);
        let expected = (GPU, vec![[3.0, 5.0], [21.0, 41.0]]);
        match answering == GPU {
            true => assert_eq!(found, Ok(expected), "the fallback still answers"),
            false => assert_eq!(found, Err(CoremillStatus::Cancelled)),
        }
    }
}

#[test]
fn prewarm_failures_and_misuse_return_errors() {
    let folder = tempfile::tempdir().expect("a scratch directory");
    let cache = folder.path().join("cache");
    for (how, status) in [
        ("compile = error;", CoremillStatus::InvalidModel),
        ("load = error;", CoremillStatus::InvalidModel),
        ("load = silent;", CoremillStatus::ExecutionFailed),
    ] {
        let broken = MODEL.replacen('{', &format!("{{ {how}"), 1);
        let path = package_with(&folder.path().join(how), &broken);
        let prewarm = start(&path, &cache, &[]).expect("it starts");
        assert_eq!(coremill_prewarm_wait(prewarm.0, LONG), status, "{how}: {}", message());
        assert_eq!(progress(&prewarm).stage, CoremillPrewarmStage::Failed as i32, "{how}");
        assert_eq!(answer(&prewarm, None, &mut [[1.0; 2]; 2]), Err(status), "{how}");
    }
    let path = package(folder.path());
    let missing = start(&folder.path().join("nothing"), &cache, &[]).err().expect("refused");
    assert!(missing.contains("nothing") && missing.contains("No such file"), "{missing}");
    let other = start(folder.path(), &cache, &[]).err().expect("refused");
    assert!(other.ends_with("this is neither a package nor a compiled model"), "{other}");
    let unknown = start(&path, &cache, &[c"third"]).err().expect("refused");
    assert!(unknown.starts_with("unknown function `third`"), "{unknown}");
    let prewarm = start(&path, &cache, &[c"sum"]).expect("it starts");
    for (function, inputs, expected) in [
        (None, 1, "the default function is not prepared; name a function"),
        (Some(c"main"), 2, "unknown function `main`; the only function is `sum`"),
        (Some(c"sum"), 2, "function `sum` has 1 inputs, got 2"),
    ] {
        answer(&prewarm, function, &mut vec![[1.0; 2]; inputs]).expect_err("refused");
        assert_eq!(message(), expected);
    }
}
