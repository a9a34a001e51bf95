//! Tests the crate's calls of Core ML with the stand-ins of `standin.m`. No object may outlive a test.

use std::ffi::c_long;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use coremill_cache::Store;
use coremill_coreml::{
    Cache, Cancel, ComputeUnits, DeviceKind, ErrorKind, LoadOptions, Model, Output, OwnedTensor,
    Reshapes, Shapes, Specialization, State, Tensor, TensorMut, ane_available, availability,
    chip_info, compile, devices, plan,
};
use coremill_tensor::DType;

unsafe extern "C" {
    fn standin_alive() -> c_long;
    fn standin_made() -> c_long;
}

/// Runs a test exclusively, and checks for leaked objects.
fn without_leaks(test: impl FnOnce(&Path)) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone: MutexGuard<'_, ()> = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: it reads a counter.
    let alive = || unsafe { standin_alive() };
    // SAFETY: as above.
    let created = || unsafe { standin_made() };
    let before = alive();
    let directory = tempfile::tempdir().expect("a scratch directory");
    test(directory.path());
    // Threads of Core ML release their objects slightly later.
    let until = Instant::now() + Duration::from_secs(5);
    while alive() != before && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    let leaked = alive() - before;
    println!("{leaked} objects leaked; {} were created", created());
    assert_eq!(leaked, 0, "objects are leaked");
}

const AFFINE: &str = "functions = { main = { does = affine;
    inputs = ({ name = x; type = fp32; shape = (2, 3); });
    outputs = ({ name = y; type = fp32; shape = (2, 3); }); }; };";

/// A package in the stand-ins' format.
fn package(directory: &Path, plist: &str) -> PathBuf {
    let path = directory.join("model.mlpackage");
    fs::create_dir_all(&path).expect("made");
    fs::write(path.join("model.plist"), format!("{{ {plist} }}")).expect("written");
    path
}

fn compiled(directory: &Path, plist: &str) -> PathBuf {
    let to = directory.join("model.mlmodelc");
    compile(&package(directory, plist), &to, &LoadOptions::default()).expect("compiles");
    to
}

fn loaded(directory: &Path, plist: &str) -> Model {
    Model::load(&compiled(directory, plist), &LoadOptions::default()).expect("loads")
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// An output that shows whether Core ML wrote directly to its memory.
struct WatchedOutput {
    bytes: Vec<u8>,
    shape: Vec<usize>,
    requests: usize,
}

impl Output for WatchedOutput {
    fn name(&self) -> &str {
        "y"
    }

    fn dtype(&self) -> DType {
        DType::Fp32
    }

    fn memory(&mut self, shape: &[usize]) -> Result<TensorMut<'_>, String> {
        self.requests += 1;
        self.shape = shape.to_vec();
        TensorMut::contiguous(DType::Fp32, &self.shape, &mut self.bytes)
            .map_err(|error| error.to_string())
    }
}

#[test]
fn predicts_from_and_into_caller_memory() {
    without_leaks(|directory| {
        availability().expect("the stand-in for Core ML is available");
        let options = LoadOptions {
            compute_units: ComputeUnits::CpuAndNeuralEngine,
            reshapes: Some(Reshapes::Infrequent),
            specialization: Some(Specialization::FastPrediction),
            ..LoadOptions::default()
        };
        let model = Model::load(&compiled(directory, &format!("pads = 4; {AFFINE}")), &options)
            .expect("loads");
        assert_eq!(model.inputs()[0].name, "x");
        assert_eq!(
            (&*model.outputs()[0].shape, &model.outputs()[0].shapes),
            (&[2, 3][..], &Shapes::Fixed)
        );
        let input = floats(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let expected = floats(&[3.0, 5.0, 7.0, 9.0, 11.0, 13.0]);
        let x = Tensor::contiguous(DType::Fp32, &[2, 3], &input).expect("fits");
        let mut y = WatchedOutput { bytes: vec![0; 24], shape: Vec::new(), requests: 0 };
        model.predict(&[("x", x)], &mut [&mut y], None).expect("runs");
        assert_eq!((y.requests, &y.bytes), (1, &expected), "Core ML wrote to our memory");
        // A result of another type is padded, and copied according to its strides.
        let mut y = OwnedTensor::new("y", DType::Fp64);
        model.predict(&[("x", x)], &mut [&mut y], None).expect("runs");
        assert_eq!(y.shape, [2, 3]);
        let doubles: Vec<u8> =
            [3.0f64, 5.0, 7.0, 9.0, 11.0, 13.0].iter().flat_map(|y| y.to_le_bytes()).collect();
        assert_eq!(y.bytes, doubles);
        // Transposed inputs are read in place; others are converted.
        let strided = Tensor::strided(DType::Fp32, &[2, 3], &[1, 2], &input).expect("fits");
        let mut y = OwnedTensor::new("y", DType::Fp32);
        model.predict(&[("x", strided)], &mut [&mut y], None).expect("runs");
        assert_eq!(y.bytes, floats(&[3.0, 7.0, 11.0, 5.0, 9.0, 13.0]));
        let integers: Vec<u8> = (1i64..=6).flat_map(|value| value.to_le_bytes()).collect();
        let integers = Tensor::contiguous(DType::Int64, &[2, 3], &integers).expect("fits");
        model.predict(&[("x", integers)], &mut [&mut y], None).expect("runs");
        assert_eq!(y.bytes, expected);
        // Core ML does not use unaligned memory.
        let mut odd = vec![0];
        odd.extend(&input);
        let odd = Tensor::contiguous(DType::Fp32, &[2, 3], &odd[1..]).expect("fits");
        model.predict(&[("x", odd)], &mut [&mut y], None).expect("runs");
        assert_eq!(y.bytes, expected);
    });
}

#[test]
fn copies_outputs_when_core_ml_refuses_memory() {
    without_leaks(|directory| {
        let model = loaded(directory, &format!("refuses = 1; {AFFINE}"));
        let input = floats(&[0.0; 6]);
        let x = Tensor::contiguous(DType::Fp32, &[2, 3], &input).expect("fits");
        for requests in [2, 1] {
            let mut y = WatchedOutput { bytes: vec![0; 24], shape: Vec::new(), requests: 0 };
            model.predict(&[("x", x)], &mut [&mut y], None).expect("runs");
            assert_eq!(
                (y.requests, y.bytes),
                (requests, floats(&[1.0; 6])),
                "the second run does not offer the memory to Core ML again"
            );
        }
    });
}

#[test]
fn rejects_mismatched_inputs_and_outputs() {
    without_leaks(|directory| {
        let plist = AFFINE.replacen("type = fp32", "type = int32", 1);
        let model = loaded(directory, &plist);
        let mut y = OwnedTensor::new("y", DType::Fp32);
        let mut error_of = |inputs: &[(&str, Tensor<'_>)]| {
            let error = model.predict(inputs, &mut [&mut y], None).expect_err("refused");
            assert_eq!(error.kind(), ErrorKind::Input);
            error.to_string()
        };
        assert_eq!(error_of(&[]), "the input `x` is missing");
        let input = floats(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.5]);
        let x = Tensor::contiguous(DType::Fp32, &[2, 3], &input).expect("fits");
        assert_eq!(
            error_of(&[("x", x)]),
            "input `x`: element [1, 2] of type `fp32` is 6.5, which `int32` cannot hold"
        );
        assert_eq!(error_of(&[("x", x), ("z", x)]).split(':').next(), Some("input `x`"));
        let flat = Tensor::contiguous(DType::Fp32, &[6], &input).expect("fits");
        assert_eq!(error_of(&[("x", flat)]), "input `x`: the shape must be [2, 3], got [6]");
        let mut other = OwnedTensor::new("other", DType::Fp32);
        let error = model.predict(&[("x", x)], &mut [&mut other], None).expect_err("refused");
        assert_eq!(error.to_string(), "unknown output `other`; the outputs are `y`");
        let mut narrow = OwnedTensor::new("y", DType::Int8);
        let large = [100i32; 6].map(i32::to_le_bytes).concat();
        let large = Tensor::contiguous(DType::Int32, &[2, 3], &large).expect("fits");
        let error = model.predict(&[("x", large)], &mut [&mut narrow], None).expect_err("refused");
        assert_eq!(
            error.to_string(),
            "output `y`: element [0, 0] of type `fp32` is 201, which `int8` cannot hold"
        );
    });
}

#[test]
fn compile_and_load_failures_return_errors() {
    without_leaks(|directory| {
        let failing = |step: &str, how: &str, seconds: f64| {
            let folder = directory.join(format!("{step}-{how}"));
            let package = package(&folder, &format!("{step} = {how}; {AFFINE}"));
            let timeout = Duration::from_secs_f64(seconds);
            let options = LoadOptions { timeout, ..LoadOptions::default() };
            let to = folder.join("model.mlmodelc");
            let _ = fs::remove_dir_all(&to);
            let outcome = compile(&package, &to, &options)
                .and_then(|()| Model::load(&to, &options).map(|_| ()));
            outcome.map_err(|error| (error.kind(), error.to_string()))
        };
        let failed = |kind, text: &str| Err((kind, text.to_owned()));
        assert_eq!(
            failing("compile", "error", 60.0),
            failed(
                ErrorKind::Compile,
                "Core ML cannot compile the model: the model is not valid (com.apple.CoreML 7)"
            )
        );
        assert_eq!(
            failing("load", "error", 60.0),
            failed(
                ErrorKind::Load,
                "Core ML cannot load the model: the model does not load (com.apple.CoreML 7)"
            )
        );
        for (step, text) in [("compile", "cannot compile this"), ("load", "cannot load this")] {
            let (kind, message) = failing(step, "raise", 60.0).expect_err("it fails");
            assert_eq!(kind, ErrorKind::Exception);
            assert!(message.contains(text), "{message}");
            let slow = failing(step, "slow", 0.05).expect_err("it fails");
            assert_eq!(slow.0, ErrorKind::Timeout);
            assert!(slow.1.starts_with("Core ML took longer than 0.05 s to "), "{}", slow.1);
            assert_eq!(failing(step, "slow", 60.0), Ok(()));
            // Core ML releases the completion handler without calling it.
            assert_eq!(
                failing(step, "silent", 60.0).expect_err("it fails").0,
                ErrorKind::Exception
            );
        }
        let nowhere = Model::load(&directory.join("nowhere"), &LoadOptions::default());
        assert_eq!(nowhere.map(|_| ()).expect_err("it fails").kind(), ErrorKind::Io);
        // A slow compilation whose caller has stopped waiting leaves no files.
        std::thread::sleep(Duration::from_millis(1500));
    });
}

#[test]
fn prediction_failures_return_errors() {
    without_leaks(|directory| {
        let input = floats(&[0.0; 6]);
        let x = Tensor::contiguous(DType::Fp32, &[2, 3], &input).expect("fits");
        for (does, kind, text) in [
            ("error", ErrorKind::Predict, "the prediction failed (com.apple.CoreML 7)"),
            ("raise", ErrorKind::Exception, "the features are odd"),
        ] {
            let model = loaded(&directory.join(does), &AFFINE.replace("affine", does));
            let mut y = OwnedTensor::new("y", DType::Fp32);
            for _ in 0..3 {
                let error = model.predict(&[("x", x)], &mut [&mut y], None).expect_err("it fails");
                assert_eq!(error.kind(), kind);
                assert!(error.to_string().contains(text), "{error}");
            }
        }
    });
}

#[test]
fn loads_functions_by_name() {
    without_leaks(|directory| {
        let plist = "functions = {
            main = { does = affine; inputs = ({ name = a; shape = (1); }); outputs = ({ name = b; shape = (1); }); };
            other = { does = affine; inputs = ({ name = c; shape = (1); }, { name = picture; type = image; });
                outputs = ({ name = d; shape = (1); }); }; };";
        let path = compiled(directory, plist);
        let load = |function: &str| {
            let function = Some(function.to_owned());
            Model::load(&path, &LoadOptions { function, ..LoadOptions::default() })
        };
        let other = load("other").expect("loads");
        assert_eq!(other.inputs().len(), 1, "image inputs are not listed as arrays");
        // Core ML functions pass a scalar as an array of one element.
        let c = Tensor::contiguous(DType::Fp32, &[], &[0; 4]).expect("fits");
        let mut d = OwnedTensor::new("d", DType::Fp32);
        other.predict(&[("c", c)], &mut [&mut d], None).expect("runs");
        assert_eq!((d.bytes, d.shape), (floats(&[1.0]), vec![1]));
        let error = load("third").map(|_| ()).expect_err("the function does not exist");
        assert!(error.to_string().contains("no function third"), "{error}");
    });
}

#[test]
fn states_are_independent_readable_and_writable() {
    without_leaks(|directory| {
        let plist = "functions = { main = { does = add;
            inputs = ({ name = x; shape = (2, 2); }); outputs = ({ name = y; shape = (2, 2); });
            states = ({ name = total; type = fp16; shape = (2, 2); }); }; };";
        let model = loaded(directory, plist);
        assert_eq!((&*model.states()[0].name, model.states()[0].dtype), ("total", DType::Fp16));
        let input = floats(&[1.0, 2.0, 3.0, 4.0]);
        let x = Tensor::contiguous(DType::Fp32, &[2, 2], &input).expect("fits");
        let mut states = [model.new_state().expect("made"), model.new_state().expect("made")];
        let mut y = OwnedTensor::new("y", DType::Fp32);
        let mut step = |state: &mut State| {
            model.predict(&[("x", x)], &mut [&mut y], Some(state)).expect("runs");
            y.bytes.clone()
        };
        step(&mut states[0]);
        assert_eq!(step(&mut states[0]), floats(&[2.0, 4.0, 6.0, 8.0]));
        assert_eq!(step(&mut states[1]), input, "states are independent");
        let total = states[0].read("total").expect("read");
        let halves: Vec<u8> = [2.0, 4.0, 6.0, 8.0]
            .iter()
            .flat_map(|value| half::f16::from_f32(*value).to_le_bytes())
            .collect();
        assert_eq!((&total.shape[..], &total.bytes), (&[2, 2][..], &halves));
        states[1].write("total", total.tensor().expect("fits")).expect("written");
        assert_eq!(step(&mut states[1]), floats(&[3.0, 6.0, 9.0, 12.0]));
        states[1].reset().expect("reset");
        assert_eq!(step(&mut states[1]), input);
        let large = floats(&[1e6; 4]);
        let large = Tensor::contiguous(DType::Fp32, &[2, 2], &large).expect("fits");
        let error = states[0].write("total", large).expect_err("too large");
        assert!(error.to_string().starts_with("state `total`: element [0, 0]"), "{error}");
        assert_eq!(
            states[0].read("none").expect_err("unknown state").to_string(),
            "unknown state `none`; the states are `total`"
        );
    });
}

#[test]
fn accepts_enumerated_and_ranged_shapes() {
    without_leaks(|directory| {
        let plist = "pads = 2; functions = { main = { does = affine;
            inputs = ({ name = x; shape = (1, 2); enumerated = ((1, 2), (3, 2)); },
                { name = z; shape = (1, 2); ranges = ((1, 4), (2, 2)); });
            outputs = ({ name = y; shape = (1, 2); ranges = ((1, 4), (2, 2)); }); }; };";
        let model = loaded(directory, plist);
        assert_eq!(model.inputs()[0].shapes, Shapes::Enumerated(vec![vec![1, 2], vec![3, 2]]));
        assert_eq!(model.inputs()[1].shapes, Shapes::Ranges(vec![1..=4, 2..=2]));
        let (one, three, input) = ([1, 2], [3, 2], floats(&[0.5; 6]));
        let x = Tensor::contiguous(DType::Fp32, &three, &input).expect("fits");
        let z = Tensor::contiguous(DType::Fp32, &one, &input).expect("fits");
        let mut y = OwnedTensor::new("y", DType::Fp32);
        model.predict(&[("x", x), ("z", z)], &mut [&mut y], None).expect("runs");
        assert_eq!((&y.shape[..], &y.bytes), (&three[..], &floats(&[2.0; 6])));
        let wrong = Tensor::contiguous(DType::Fp32, &[2, 2], &input).expect("fits");
        let error =
            model.predict(&[("x", wrong), ("z", z)], &mut [&mut y], None).expect_err("refused");
        assert_eq!(error.to_string(), "input `x`: the shape must be [1, 2], [3, 2], got [2, 2]");
    });
}

#[test]
fn predict_batch_returns_one_result_per_item() {
    without_leaks(|directory| {
        let model = loaded(directory, &format!("pads = 1; {AFFINE}"));
        let inputs: Vec<Vec<u8>> = (0..3).map(|item| floats(&[item as f32; 6])).collect();
        let batch: Vec<_> = inputs
            .iter()
            .map(|input| {
                vec![("x", Tensor::contiguous(DType::Fp32, &[2, 3], input).expect("fits"))]
            })
            .collect();
        let results = model.predict_batch(&batch).expect("runs");
        for (item, results) in results.iter().enumerate() {
            assert_eq!(results[0].bytes, floats(&[2.0 * item as f32 + 1.0; 6]));
        }
        assert_eq!(results.len(), 3);
        let error = model.predict_batch(&[batch[0].clone(), Vec::new()]).expect_err("refused");
        assert_eq!(error.to_string(), "item 1: the input `x` is missing");
    });
}

#[test]
fn model_load_can_be_awaited_cancelled_or_dropped() {
    without_leaks(|directory| {
        let path = compiled(directory, &format!("load = slow; {AFFINE}"));
        let mut loading = Model::load_async(&path, &LoadOptions::default()).expect("begun");
        assert!(loading.wait_for(Duration::from_millis(10)).is_none());
        loading.wait().expect("loaded");
        let cancel = Cancel::default();
        let options = LoadOptions { cancel: Some(cancel.clone()), ..LoadOptions::default() };
        let begin = Instant::now();
        let error = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| Model::load(&path, &options).map(|_| ()));
            std::thread::sleep(Duration::from_millis(50));
            cancel.cancel();
            waiting.join().expect("no panic").expect_err("cancelled")
        });
        assert_eq!(error.kind(), ErrorKind::Cancelled);
        assert!(begin.elapsed() < Duration::from_millis(800), "it did not wait for Core ML");
        drop(Model::load_async(&path, &LoadOptions::default()).expect("begun"));
        std::thread::sleep(Duration::from_millis(1500));
    });
}

#[test]
fn cache_compiles_model_once() {
    without_leaks(|directory| {
        let store = Store::open(directory.join("store"), &Default::default()).expect("opens");
        let options = LoadOptions::default();
        // The compilation takes a second.
        let package = package(directory, &format!("compile = slow; {AFFINE}"));
        let cache = Cache::new(&store);
        let begin = Instant::now();
        cache.compiled(&package, &options).expect("compiles").load(&options).expect("loads");
        assert!(begin.elapsed() >= Duration::from_secs(1));
        let begin = Instant::now();
        cache.compiled(&package, &options).expect("found").load(&options).expect("loads");
        assert!(begin.elapsed() < Duration::from_millis(500), "the compiled model is cached");
        // Other compute units use a separate cache entry, and damage is detected.
        let other = LoadOptions { compute_units: ComputeUnits::CpuOnly, ..options.clone() };
        let found = cache.compiled(&package, &other).expect("compiles");
        assert_eq!(store.list().expect("listed").len(), 2);
        fs::write(found.path().join("coremldata.bin"), "damaged").expect("written");
        let again = cache.compiled(&package, &other).expect("compiles again");
        assert_eq!(fs::read(again.path().join("coremldata.bin")).expect("read"), b"compiled");
        // A compiled model is not copied, and Core ML's errors are returned unchanged.
        let kept = cache.compiled(&again.path(), &options).expect("kept");
        kept.load(&options).expect("loads");
        fs::write(package.join("model.plist"), "{ compile = error; }").expect("written");
        let error = cache.compiled(&package, &options).map(|_| ()).expect_err("it fails");
        assert_eq!(error.kind(), ErrorKind::Compile);
    });
}

#[test]
fn reports_devices_chip_and_compute_plan() {
    without_leaks(|directory| {
        let kinds: Vec<_> =
            devices().expect("listed").iter().map(|device| (device.kind, device.cores)).collect();
        assert_eq!(kinds, [(DeviceKind::Cpu, None), (DeviceKind::NeuralEngine, Some(16))]);
        assert!(ane_available());
        let chip = chip_info().expect("known");
        assert_eq!(
            (&*chip.name, &*chip.model, &*chip.build),
            ("Stand-in M0", "Standin1,1", "24A335")
        );
        assert_eq!(chip.neural_engine_cores, 16);
        let plan = plan(&compiled(directory, AFFINE), &LoadOptions::default()).expect("planned");
        let found: Vec<_> = plan
            .operations
            .iter()
            .map(|op| {
                (&*op.operator, op.cost, op.preferred, op.supported.len(), op.outputs[0].as_str())
            })
            .collect();
        assert_eq!(
            found,
            [
                ("while_loop", None, Some(DeviceKind::Cpu), 1, "sum"),
                ("ios17.add", Some(0.75), Some(DeviceKind::NeuralEngine), 2, "sum"),
            ]
        );
    });
}

#[test]
fn one_model_serves_several_threads() {
    without_leaks(|directory| {
        let model = loaded(directory, &format!("pads = 1; {AFFINE}"));
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let model = &model;
                scope.spawn(move || {
                    for round in 0..50 {
                        let value = (thread * 100 + round) as f32;
                        let input = floats(&[value; 6]);
                        let x = Tensor::contiguous(DType::Fp32, &[2, 3], &input).expect("fits");
                        let mut y = OwnedTensor::new("y", DType::Fp32);
                        model.predict(&[("x", x)], &mut [&mut y], None).expect("runs");
                        assert_eq!(y.bytes, floats(&[2.0 * value + 1.0; 6]));
                    }
                });
            }
        });
    });
}
