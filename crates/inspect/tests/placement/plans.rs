//! Recorded plans and forecasts.

use coremill_inspect::placement::{
    ComputePlan, Device, ForecastOptions, Reason, forecast, recorded,
};
use coremill_mil::text;

use super::{on, read};

/// Analytics as Core ML writes them to its cache, with made-up numbers.
const ANALYTICS: &str = r#"program(1.3)
{
    func main<ios18>(tensor_buffer<fp16, shape=[1, 16], strides=[32, 1], interleave_factors=[1, 1]> x) {
        tensor<fp16, [1, 16]> t = tensor_buffer_to_tensor<ios17>(input = x)[BackendSupport = list<string, 5>(["unsupported", "unsupported", "bnns", "classic_cpu", "ane"]), EstimatedRuntime = dict<string, fp64>({{"ane", 0}, {"bnns", 0}, {"classic_cpu", 0}}), SelectedBackend = string("ane")];
        tensor<fp16, [1, 16]> a = relu(x = t)[BackendSupport = list<string, 5>(["unsupported", "unsupported", "bnns", "classic_cpu", "ane"]), EstimatedRuntime = dict<string, fp64>({{"ane", 0.25}, {"bnns", 0.5}, {"classic_cpu", 0.75}}), SelectedBackend = string("ane")];
        tensor<fp16, [1, 16]> b = tan(x = a)[BackendSupport = list<string, 5>(["unsupported", "unsupported", "bnns", "classic_cpu", "unsupported"]), EstimatedRuntime = dict<string, fp64>({{"bnns", 0.75}}), SelectedBackend = string("bnns"), ValidationMessage = dict<string, string>({{"ane", "Error: the unary function is not supported"}})];
        tensor<fp16, [1, 16]> y = abs(x = b)[BackendSupport = list<string, 5>(["unsupported", "unsupported", "bnns", "classic_cpu", "ane"]), EstimatedRuntime = dict<string, fp64>({{"ane", 0.5}, {"classic_cpu", 0.0}}), SelectedBackend = string("classic_cpu")];
    } -> (y);
}
"#;

#[test]
fn reads_recorded_plan_from_core_ml_analytics() {
    let program = text::parse(ANALYTICS, &text::NoWeights).expect("it is MIL");
    let plan = recorded(&program).expect("a recorded plan");
    assert_eq!(plan.origin(), "recorded on a Mac");
    let found: Vec<_> = plan
        .operations
        .iter()
        .map(|operation| {
            (&*operation.outputs[0], operation.preferred, operation.reason, operation.cost)
        })
        .collect();
    assert_eq!(
        found,
        [
            ("t", Some(Device::NeuralEngine), None, Some(0.0)),
            ("a", Some(Device::NeuralEngine), None, Some(0.25)),
            ("b", Some(Device::Cpu), Some(Reason::Limit), Some(0.75)),
            ("y", Some(Device::Cpu), Some(Reason::NotWorthIt), Some(0.0)),
        ]
    );
    assert_eq!(plan.operations[2].detail.as_deref(), Some("the unary function is not supported"));
    assert_eq!(plan.operations[1].supported, [Device::Cpu, Device::NeuralEngine]);
    assert_eq!(plan.neural_engine_share(), 0.5);
    let plain = text::parse(
        "program(1.3) { func main<ios18>(tensor<fp16, [4]> x) { tensor<fp16, [4]> y = relu(x = x); } -> (y); }",
        &text::NoWeights,
    );
    assert_eq!(recorded(&plain.expect("it is MIL")), None);
}

#[test]
fn forecast_is_labelled_and_round_trips_json() {
    let model = read(
        "tensor<fp16, [4]> x, tensor<int32, [2]> i",
        "tensor<fp16, [?]> y = gather(x = x, indices = i, axis = int32(0), validate_indices = bool(false));",
    );
    let plan = on("iphone17pro", &model);
    assert_eq!(plan.origin(), "forecast for A19 Pro");
    assert!(plan.forecast.as_ref().is_some_and(|note| note.accuracy.contains("440 of 482")));
    let gather = &plan.operations[0];
    assert_eq!((gather.preferred, gather.reason), (Some(Device::Cpu), Some(Reason::NoPath)));
    assert!(gather.advice.as_deref().is_some_and(|advice| advice.contains("outside the model")));
    let json = serde_json::to_string(&plan).expect("it is JSON");
    assert_eq!(ComputePlan::from_json(&json), Ok(plan));
}

#[test]
fn disabled_neural_engine_gets_no_operations() {
    let model = read("tensor<fp16, [4]> x", "tensor<fp16, [?]> y = relu(x = x);");
    let options = ForecastOptions { neural_engine: false, ..ForecastOptions::default() };
    let plan = forecast(&model, &options);
    assert_eq!(plan.operations[0].reason, Some(Reason::NotAllowed));
    assert_eq!(plan.neural_engine_share(), 0.0);
}

#[test]
fn while_loop_operations_stay_off_neural_engine() {
    let body = "fp16 limit = const()[val = fp16(0x1p+3)];
        tensor<fp16, [1]> y = while_loop(loop_vars = (x))
            (tensor<fp16, [1]> a) {
                tensor<bool, [1]> less_0 = less(x = a, y = limit);
                bool more = squeeze(axes = tensor<int32, [1]>([0]), x = less_0);
            } -> (more)
            (tensor<fp16, [1]> b) {
                tensor<fp16, [1]> next = add(x = b, y = limit);
            } -> (next);";
    let plan = on("m4", &read("tensor<fp16, [1]> x", body));
    let found: Vec<_> =
        plan.operations.iter().map(|operation| (&*operation.operator, operation.reason)).collect();
    let expected = ["while_loop", "less", "squeeze", "add"].map(|name| format!("ios18.{name}"));
    let expected: Vec<_> = expected.iter().map(|name| (&**name, Some(Reason::NoPath))).collect();
    assert_eq!(found, expected);
}
