//! Tests that `coremill record` shows records on every system, and rejects models on systems without Core ML.

#[path = "support/scratch.rs"]
mod scratch;

use std::fs;
use std::process::{Command, Output};

use coremill::engine::{Array, Numerics};
use coremill::inspect::placement::{ForecastOptions, forecast};
use coremill::inspect::record::{
    self, Case, DeviceRecord, Machine, Record, RecordedModel, RecordedRun,
};
use coremill::session::{self, RunOptions, inputs, random};
use scratch::Scratch;

fn run(scratch: &Scratch, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_coremill"));
    command.args(arguments).current_dir(scratch.path()).output().expect("the command starts")
}

/// A record of `files/convs.mil`. The engine computes the outputs, and the plan is a forecast.
fn record_of_convolutions(scratch: &Scratch) -> Record {
    let model = coremill::open(scratch.path().join("files/convs.mil")).expect("it is read");
    let verified = coremill::verify(&model).expect("it is sound");
    let options = RunOptions { numerics: Numerics::Ane, ..RunOptions::default() };
    let executable = session::load(&verified, &options).expect("it loads");
    let mut session = executable.default_session().expect("a session");
    let arrays: Vec<(String, Array)> = session
        .inputs()
        .iter()
        .map(|spec| {
            let shape = spec.default_shape().expect("a shape");
            let vocabulary = executable.vocabulary("main", &spec.name);
            (spec.name.clone(), random(spec, shape, 1, vocabulary).expect("an array"))
        })
        .collect();
    let outputs = session.run(&inputs(&arrays)).expect("it runs").0.into_iter();
    let outputs = outputs.map(|(name, value)| (name, value.as_array().expect("an array").clone()));
    let run = RecordedRun {
        case: 0,
        first_ms: 2.0,
        repeat_ms: vec![1.0, 1.5, 1.25],
        outputs: outputs.collect(),
    };
    let device = DeviceRecord {
        units: "cpu_and_ne".to_owned(),
        compile_ms: 40.0,
        load_ms: [("main".to_owned(), 30.0)].into(),
        plan: Some(forecast(&model, &ForecastOptions::default())),
        plan_error: None,
        runs: vec![run],
    };
    Record {
        format_version: 1,
        coremill: "0.1.0".to_owned(),
        machine: Machine {
            chip: "Apple M4".to_owned(),
            model: "Mac0,0".to_owned(),
            system: "25A354".to_owned(),
            neural_engine_cores: 16,
        },
        model: RecordedModel {
            name: "convs.mil".to_owned(),
            hash: record::hash(&verified).expect("it is hashed"),
            included: false,
        },
        seed: 1,
        cases: vec![Case { function: "main".to_owned(), inputs: arrays }],
        devices: vec![device],
        files: None,
    }
}

#[test]
fn shows_record_and_compares_it_with_model() {
    let scratch = Scratch::new();
    let record = record_of_convolutions(&scratch);
    record::write(&scratch.path().join("record.zip"), &record).expect("it is written");
    let output = run(&scratch, &["record", "record.zip"]);
    let (text, stderr) = texts(&output);
    assert!(output.status.success(), "{stderr}");
    assert!(text.starts_with("convs.mil on Apple M4 (Mac0,0), system 25A354\n"), "{text}");
    assert!(
        text.contains("cpu_and_ne  main, case 0  1.250 ms  load 30.0 ms, first 2.000 ms"),
        "{text}"
    );
    assert!(stderr.contains("hint: pass `--model MODEL`"), "{stderr}");

    let output = run(&scratch, &["record", "record.zip", "--model", "files/convs.mil"]);
    let (text, stderr) = texts(&output);
    assert!(output.status.success() && stderr.is_empty(), "{stderr}");
    assert!(text.contains("forecast for M4, cpu_and_ne: 5 of 5 operations agree"), "{text}");
    assert!(text.contains("numerics `ane`, cpu_and_ne, main, case 0: `y` equal"), "{text}");

    let output = run(&scratch, &["record", "record.zip", "--model", "files/fewer_convs.mil"]);
    let (_, stderr) = texts(&output);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("the record is for a model with the hash"), "{stderr}");

    let output = run(&scratch, &["record", "record.zip", "-o", "again.zip"]);
    assert!(texts(&output).1.contains("record.zip is already a record"), "{}", texts(&output).1);
}

#[test]
fn record_rejects_invalid_arguments_and_files() {
    let scratch = Scratch::new();
    let mut later = coremill_zip::Writer::new(Vec::new());
    later.add("record.json", &[br#"{"format_version": 2}"#]).expect("added");
    fs::write(scratch.path().join("later.zip"), later.finish().expect("finished"))
        .expect("written");
    for (arguments, expected) in [
        (&["record", "nothing.mlpackage", "-o", "r.zip"][..], "nothing.mlpackage: no such file"),
        (&["record", "files/small.mil"], "a record of a model needs an output file"),
        (&["record", "files/small.mil", "-o", "r.zip", "--units", "gpu"], "use `all`, `cpu_only`"),
        (&["record", "nothing.zip"], "nothing.zip: no such file"),
        (&["record", "files/one.npz"], "not a Core ML model"),
        (&["record", "files/rubbish.npz"], "not a Core ML model"),
        (&["record", "later.zip"], "`format_version` must be 1, got 2"),
    ] {
        let output = run(&scratch, arguments);
        let stderr = texts(&output).1;
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains(expected), "{stderr}");
    }
    if cfg!(not(target_vendor = "apple")) {
        let output = run(&scratch, &["record", "files/small.mil", "-o", "r.zip"]);
        let stderr = texts(&output).1;
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(
            stderr
                .starts_with("error: this system has no Core ML\nhint: run this command on a Mac"),
            "{stderr}"
        );
    }
    // A zip archive that is not a record, and a truncated record.
    let record = record_of_convolutions(&scratch);
    let bytes = record::to_bytes(&record).expect("it is written");
    fs::write(scratch.path().join("cut.zip"), &bytes[..bytes.len() / 2]).expect("written");
    for path in ["files/one.npz", "cut.zip"] {
        let output = run(&scratch, &["record", path, "-o", "r.zip"]);
        assert_eq!(output.status.code(), Some(1), "{}", texts(&output).1);
    }
    assert!(!scratch.path().join("r.zip").exists());
}

/// `check --plan` computes the share from the plan alone, so the plan must belong to the model.
#[test]
fn check_rejects_plan_of_another_model() {
    let scratch = Scratch::new();
    let output = run(&scratch, &["plan", "files/convs.mil", "-o", "plan.json"]);
    assert!(output.status.success(), "{}", texts(&output).1);
    let check =
        |model: &str| run(&scratch, &["check", model, "--ane-share", "0.5", "--plan", "plan.json"]);
    let output = check("files/convs.mil");
    assert!(output.status.success(), "{}", texts(&output).1);
    let output = check("files/small.mil");
    let stderr = texts(&output).1;
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("plan.json is a plan of another model"), "{stderr}");
}

/// Standard output and standard error.
fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}
