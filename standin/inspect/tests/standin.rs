//! Records a model on the stand-ins for Core ML, and compares the record with the forecast and the engine.

use std::time::Duration;

use coremill_coreml::ComputeUnits;
use coremill_engine::{Array, Numerics};
use coremill_inspect::placement::Device;
use coremill_inspect::record::{self, RecordOptions, agreement};
use coremill_mil::model::{self, Model};
use coremill_mil::text;
use coremill_tensor::Buffer;
use coremill_verify as verify;

/// The stand-ins compute 2 x + 1 in `main`, and sums in `total`. Their plan has the operation `sum` in each function.
const STANDIN: &str = "{ load = slow; functions = {
    main = { does = affine; inputs = ({ name = x; shape = (1, 2); enumerated = ((1, 2), (3, 2)); });
        outputs = ({ name = sum; shape = (1, 2); ranges = ((1, 4), (2, 2)); }); };
    total = { does = add; inputs = ({ name = x; shape = (2, 2); }); outputs = ({ name = sum; shape = (2, 2); });
        states = ({ name = kept; type = fp16; shape = (2, 2); }); }; }; }";

/// The same model for the engine. In `main`, it computes 2 x + 1.
const PROGRAM: &str = "program(1.3) {
    func main<ios18>(tensor<fp32, [?, 2]> x) [FlexibleShapeInformation = tuple<tuple<string, dict<string, tensor<int32, [?]>>>, tuple<string, dict<string, dict<string, tensor<int32, [2]>>>>>(((\"DefaultShapes\", {{\"x\", [1, 2]}}), (\"EnumeratedShapes\", {{\"a\", {{\"x\", [1, 2]}}}, {\"b\", {{\"x\", [3, 2]}}}})))] {
        tensor<fp32, [?, 2]> twice = add(x = x, y = x);
        tensor<fp32, [?, 2]> sum = add(x = twice, y = fp32(1));
    } -> (sum);
    func total<ios18>(tensor<fp32, [2, 2]> x, state<tensor<fp16, [2, 2]>> kept) {
        tensor<fp16, [2, 2]> before = read_state(input = kept);
        tensor<fp16, [2, 2]> half = cast(x = x, dtype = string(\"fp16\"));
        tensor<fp16, [2, 2]> after = add(x = before, y = half);
        write_state(data = after, input = kept);
        tensor<fp32, [2, 2]> sum = cast(x = after, dtype = string(\"fp32\"));
    } -> (sum);
}";

fn model() -> Model {
    let program = text::parse(PROGRAM, &text::NoWeights).expect("MIL");
    model::describe(program).expect("it is complete")
}

#[test]
fn stand_in_record_agrees_with_engine() {
    // SAFETY: this is the only test of the process.
    unsafe { std::env::set_var("COREMILL_STANDIN_MODEL", STANDIN) };
    let model = model();
    let verified = verify::verify(&model).expect("it is sound");
    let directory = tempfile::tempdir().expect("a directory");
    let options = RecordOptions {
        units: vec![ComputeUnits::CpuOnly, ComputeUnits::All],
        seed: 7,
        repeat: 3,
        include_model: true,
        cache: Some(directory.path().join("cache")),
    };
    let mut steps = Vec::new();
    let watch = &mut |step: &str| steps.push(step.to_owned());
    let record =
        record::record(&verified, "model.mlpackage", &options, watch).expect("it is recorded");
    assert_eq!(steps[0], "compiling for cpu_only");
    assert_eq!(steps.last().map(String::as_str), Some("running `total` for all"));

    let bytes = record::to_bytes(&record).expect("it is written");
    let record = record::from_bytes(Buffer::from(bytes)).expect("it is read");
    let machine = &record.machine;
    assert_eq!((&*machine.chip, &*machine.system), ("Stand-in M0", "24A335"));
    assert_eq!((&*machine.model, machine.neural_engine_cores), ("Standin1,1", 16));
    let cases: Vec<_> =
        record.cases.iter().map(|case| (&*case.function, case.inputs[0].1.shape())).collect();
    assert_eq!(cases, [("main", &[1, 2][..]), ("main", &[3, 2]), ("total", &[2, 2])]);
    for device in &record.devices {
        assert_eq!(device.plan_error, None);
        let slow = |milliseconds: &f64| *milliseconds >= 1000.0;
        assert!(device.load_ms.values().all(slow), "loading takes a second: {:?}", device.load_ms);
        for run in &device.runs {
            assert_eq!(run.repeat_ms.len(), 3);
            let inputs = &record.cases[run.case].inputs;
            let (x, y) = (floats(&inputs[0].1), floats(&run.outputs[0].1));
            // States start at zero in each case.
            let expected: Vec<f32> = match run.case {
                2 => x.clone(),
                _ => x.iter().map(|x| 2.0 * x + 1.0).collect(),
            };
            let near = |(y, expected): (&f32, &f32)| (y - expected).abs() < 1e-3;
            assert!(y.len() == x.len() && y.iter().zip(&expected).all(near), "{y:?} {expected:?}");
        }
    }

    let included = record.included_model().expect("it is read").expect("it is included");
    let found = agreement(&record, &included).expect("it is compared");
    // Each function has an operation `sum` on the Neural Engine inside a loop on the CPU.
    let plan = &found.plans[0];
    assert_eq!((plan.units, plan.operations, plan.unmatched), (ComputeUnits::All, 4, 0));
    assert!(plan.assumed_chip);
    let differing: Vec<_> = plan
        .disagreements
        .iter()
        .map(|one| (&*one.function, &*one.operator, one.recorded, one.forecast))
        .collect();
    let add = |function| (function, "ios17.add", Device::NeuralEngine, Device::Cpu);
    assert_eq!(differing, [add("main"), add("total")], "small models are forecast on the CPU");
    let compared: Vec<_> =
        found.numerics.iter().map(|one| (one.units, one.case, one.numerics)).collect();
    let (cpu, all) = (ComputeUnits::CpuOnly, ComputeUnits::All);
    let expected = [(cpu, Numerics::CoremlCpu), (all, Numerics::Ane), (all, Numerics::CoremlCpu)]
        .into_iter()
        .flat_map(|(units, numerics)| (0..3).map(move |case| (units, case, numerics)));
    assert_eq!(compared, expected.collect::<Vec<_>>());
    for one in &found.numerics {
        let (_, metrics) = &one.outputs[0];
        assert!(metrics.elements > 0 && metrics.max_absolute < 2e-3, "{one}");
    }
    assert!(
        record
            .devices
            .iter()
            .all(|one| one.compile_ms < Duration::from_secs(60).as_secs_f64() * 1e3)
    );
}

fn floats(array: &Array) -> Vec<f32> {
    array.as_floats().expect("floats").to_vec()
}
