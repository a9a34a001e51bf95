//! Tests the archive of device records, the comparison with forecasts and numerics, and every record in the repository.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use coremill_coreml::ComputeUnits;
use coremill_engine::{Array, Numerics};
use coremill_inspect::placement::{ComputePlan, Device, ForecastOptions, forecast};
use coremill_inspect::record::{
    self, Case, DeviceRecord, Machine, Record, RecordedModel, RecordedRun, agreement,
};
use coremill_mil::model::{self, Model};
use coremill_mil::text;
use coremill_mlpackage::package;
use coremill_session::{RunOptions, inputs};
use coremill_tensor::{Buffer, DType};
use coremill_verify as verify;
use coremill_zip::{Archive, Writer};

/// A model whose result differs between Core ML's CPU and the Neural Engine: 1024 + 0.25 − 1024.
const PROGRAM: &str = "program(1.3) {
    func main<ios18>(tensor<fp16, [1, 3]> x) {
        tensor<fp16, [1, 3]> w = const()[name = string(\"w\"), val = tensor<fp16, [1, 3]>([[1, 0x1p-2, -1]])];
        tensor<fp16, [1, 1]> y = linear(x = x, weight = w);
    } -> (y);
}";

fn model() -> Model {
    let program = text::parse(PROGRAM, &text::NoWeights).expect("MIL");
    model::describe(program).expect("it is complete")
}

/// A record of `PROGRAM`. The engine computes the outputs with the numerics of Core ML's CPU, and the plans are forecasts.
fn record_of(model: &Model) -> Record {
    let verified = verify::verify(model).expect("it is sound");
    let tree = package::to_tree(&verified).expect("it is written");
    let hash = tree.content.iter().map(|byte| format!("{byte:02x}")).collect();
    let x = Array::floats(DType::Fp16, [1, 3], vec![1024.0, 1.0, 1024.0]);
    let case = Case { function: "main".to_owned(), inputs: vec![("x".to_owned(), x)] };
    let options = RunOptions { numerics: Numerics::CoremlCpu, ..RunOptions::default() };
    let executable = coremill_session::load(&verified, &options).expect("it loads");
    let outputs = executable
        .session("main")
        .and_then(|mut session| session.run(&inputs(&case.inputs)))
        .expect("it runs");
    let y = outputs.get("y").and_then(|value| value.as_array()).expect("an array").clone();
    let device = |units: ComputeUnits| DeviceRecord {
        units: units.name().to_owned(),
        compile_ms: 1.5,
        load_ms: BTreeMap::from([("main".to_owned(), 2.5)]),
        plan: Some(forecast(model, &ForecastOptions::default())),
        plan_error: None,
        runs: vec![RecordedRun {
            case: 0,
            first_ms: 5.0,
            repeat_ms: vec![4.0, 3.0, 2.0],
            outputs: vec![("y".to_owned(), y.clone())],
        }],
    };
    let files = tree.files.into_iter().map(|file| {
        let bytes: Vec<u8> = file.parts.iter().flat_map(|part| part.as_bytes().to_vec()).collect();
        (file.path, Buffer::from(bytes))
    });
    Record {
        format_version: 1,
        coremill: "0.0.0".to_owned(),
        machine: Machine {
            chip: "Apple M4".to_owned(),
            model: "Mac0,0".to_owned(),
            system: "24A335".to_owned(),
            neural_engine_cores: 16,
        },
        model: RecordedModel { name: "dot.mlpackage".to_owned(), hash, included: true },
        seed: 0,
        cases: vec![case],
        devices: vec![device(ComputeUnits::CpuOnly), device(ComputeUnits::CpuAndNeuralEngine)],
        files: Some(files.collect()),
    }
}

fn reread(record: &Record) -> Record {
    let bytes = record::to_bytes(record).expect("it is written");
    record::from_bytes(Buffer::from(bytes)).expect("it is read")
}

#[test]
fn record_round_trips_through_archive() {
    let (model, directory) = (model(), tempfile::tempdir().expect("a directory"));
    let record = record_of(&model);
    let path = directory.path().join("record.zip");
    record::write(&path, &record).expect("it is written");
    assert!(record::is_record(&path) && !record::is_record(directory.path()));
    let found = record::read(&path).expect("it is read");
    assert_eq!((found.cases, &found.devices), (record.cases, &record.devices));
    assert_eq!((&found.machine, &found.model), (&record.machine, &record.model));
    let files = found.files.expect("the model");
    let names = |files: &[(String, Buffer)]| -> Vec<String> {
        let mut names: Vec<_> = files.iter().map(|(name, _)| name.clone()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&files), names(&record.files.expect("the model")));
    assert_eq!(found.devices[0].runs[0].median_ms(), 3.0);
}

#[test]
fn record_agrees_with_numerics_that_computed_it() {
    let model = model();
    let record = reread(&record_of(&model));
    let included = record.included_model().expect("it is read").expect("it is included");
    let found = agreement(&record, &included).expect("it is compared");
    assert_eq!(found.plans.len(), 1, "only one of the plans allows the Neural Engine");
    assert_eq!((found.plans[0].chip.name, found.plans[0].operations), ("M4", 1));
    assert_eq!((found.plans[0].unmatched, &found.plans[0].disagreements[..]), (0, &[][..]));
    let errors: Vec<_> = found
        .numerics
        .iter()
        .map(|one| (one.units, one.numerics, one.outputs[0].1.max_absolute))
        .collect();
    assert_eq!(
        errors,
        [
            (ComputeUnits::CpuOnly, Numerics::CoremlCpu, 0.0),
            (ComputeUnits::CpuAndNeuralEngine, Numerics::Ane, 0.25),
            (ComputeUnits::CpuAndNeuralEngine, Numerics::CoremlCpu, 0.0),
        ]
    );
    let text = found.to_string();
    assert!(text.starts_with("forecast for M4, cpu_and_ne: 1 of 1 operations agree\n"), "{text}");
    assert!(text.contains("`ane`, cpu_and_ne, main, case 0: `y` SNR"), "{text}");
    assert!(text.ends_with("`coreml-cpu`, cpu_and_ne, main, case 0: `y` equal\n"), "{text}");
}

#[test]
fn reports_placement_and_model_mismatches() {
    let model = model();
    let mut record = record_of(&model);
    let plan = record.devices[1].plan.as_mut().expect("a plan");
    let mut unknown = plan.operations[0].clone();
    for operation in &mut plan.operations {
        let moved = match operation.preferred {
            Some(Device::NeuralEngine) => Device::Gpu,
            _ => Device::NeuralEngine,
        };
        operation.preferred = operation.preferred.map(|_| moved);
    }
    unknown.outputs = vec!["fused".to_owned()];
    unknown.preferred = Some(Device::Cpu);
    plan.operations.push(unknown);
    record.machine.chip = "Unknown 9".to_owned();
    let found = agreement(&reread(&record), &model).expect("it is compared");
    assert_eq!((found.plans[0].disagreements.len(), found.plans[0].unmatched), (1, 1));
    let text = found.to_string();
    let expected = "forecast for M4, cpu_and_ne: 0 of 1 operations agree; the record's chip is unknown; 1 are not in the forecast\n  \
                    main: ios18.linear `y`: recorded on the Neural Engine, forecast on the CPU\n";
    assert!(text.starts_with(expected), "{text}");
    record.model.hash = "00".repeat(32);
    let error = agreement(&record, &model).expect_err("another model");
    assert!(
        error.to_string().starts_with("the record is for a model with the hash 0000"),
        "{error}"
    );
}

#[test]
fn rejects_damaged_records() {
    let record = record_of(&model());
    let bytes = record::to_bytes(&record).expect("it is written");
    /// The archive with one entry replaced or, without content, removed.
    fn with(bytes: &[u8], entry: &str, content: Option<&dyn Fn(&str) -> String>) -> Buffer {
        let archive = Archive::open(Buffer::from(bytes.to_vec())).expect("an archive");
        let mut writer = Writer::new(Vec::new());
        for name in archive.names() {
            let found = archive.read(name, 1 << 30).expect("it is read");
            match (name == entry, content) {
                (true, None) => {}
                (true, Some(content)) => {
                    let text = std::str::from_utf8(found.as_bytes()).expect("text");
                    writer.add(name, &[content(text).as_bytes()]).expect("memory");
                }
                (false, _) => writer.add(name, &[found.as_bytes()]).expect("memory"),
            }
        }
        Buffer::from(writer.finish().expect("memory"))
    }
    let error = |bytes: Buffer| record::from_bytes(bytes).expect_err("damaged").to_string();
    let replaced = |from: &'static str, to: &'static str| {
        with(&bytes, "record.json", Some(&|text: &str| text.replacen(from, to, 1)))
    };
    for (from, to, expected) in [
        ("\"format_version\": 1", "\"format_version\": 2", "`format_version` must be 1, got 2"),
        ("\"cpu_only\"", "\"../../x\"", "`../../x` is not a compute unit"),
        ("\"case\": 0", "\"case\": 7", "case 7 is out of range; the number of cases is 1"),
        ("\"devices\"", "\"others\"", "`record.json`: missing field `devices`"),
    ] {
        let found = error(replaced(from, to));
        assert!(found.starts_with(expected), "{found}");
    }
    let found = error(with(&bytes, "record.json", None));
    assert_eq!(found, "a record must contain the entry `record.json`");
    for entry in ["inputs/0.npz", "outputs/cpu_only/0.npz"] {
        let found = error(with(&bytes, entry, None));
        assert!(found.contains(entry), "{found}");
    }
    let rubbish = with(&bytes, "plans/cpu_only.json", Some(&|_: &str| "rubbish".to_owned()));
    assert!(error(rubbish).starts_with("`plans/cpu_only.json`: expected value"));
    // Truncated archives are errors at every length.
    for length in (0..bytes.len()).step_by(97) {
        record::from_bytes(Buffer::from(bytes[..length].to_vec())).expect_err("truncated");
    }
    // A record without a plan is valid.
    let found = record::from_bytes(with(&bytes, "plans/cpu_only.json", None)).expect("it is read");
    assert_eq!(found.devices[0].plan, None::<ComputePlan>);
}

/// The paths of the records in the repository, which are from Apple devices.
fn repository() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../devices/records");
    let entries = fs::read_dir(directory).expect("the directory of records");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "zip"));
    paths.sort();
    paths
}

/// Prints how well the forecast and the numerics agree with every record. The test fails if a record cannot be compared,
/// but not if it disagrees.
#[test]
fn compares_device_records_with_forecasts_and_numerics() {
    let paths = repository();
    println!("{} records", paths.len());
    for path in paths {
        let name = path.display();
        let record = record::read(&path).unwrap_or_else(|error| panic!("{error}"));
        let model = record.included_model().unwrap_or_else(|error| panic!("{name}: {error}"));
        let model = model.unwrap_or_else(|| panic!("{name}: record with `--include-model`"));
        let found = agreement(&record, &model).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(!found.numerics.is_empty(), "{name}: the record contains no outputs to compare");
        println!("{name}: {}\n{found}", record.title());
    }
}
