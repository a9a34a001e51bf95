//! Models derived from MIL text.

use coremill_mil::model::{self, Model};
use coremill_mil::text::{self, NoWeights, PrintOptions};

/// Describes a program, and checks that its text with the attached shapes equals the input.
fn described(text: &str) -> Model {
    let program =
        text::parse(text, &NoWeights).unwrap_or_else(|error| panic!("{}", error.render("")));
    let model = model::describe(program).expect("a description");
    for function in &model.program.functions {
        assert!(function.attributes.get(model::shapes::ATTRIBUTE).is_none());
    }
    let attached = model::shapes::attach(&model).expect("shapes");
    assert_eq!(text::print(&attached, &PrintOptions::default()).text, text.trim_end());
    model
}

fn refused(text: &str) -> String {
    let program =
        text::parse(text, &NoWeights).unwrap_or_else(|error| panic!("{}", error.render("")));
    let error = model::describe(program).expect_err("no description");
    format!("{}; {}", error, error.hint().expect("there is a hint"))
}

/// Formats the features, one per line.
fn shown(features: &[model::FeatureDescription]) -> Vec<String> {
    let show = |feature: &model::FeatureDescription| {
        let ty = match &feature.ty {
            model::FeatureType::MultiArray(array) => {
                format!("{} {:?} {:?}", array.data_type, array.shape, array.flexibility)
            }
            model::FeatureType::State(array) => {
                format!("state {} {:?} {:?}", array.data_type, array.shape, array.flexibility)
            }
            other => format!("{other:?}"),
        };
        format!("{}: {ty}", feature.name)
    };
    features.iter().map(show).collect()
}

#[test]
fn describes_fixed_shapes_and_scalars() {
    let model = described(
        r#"program(1.3)
{
    func forward<ios16>(tensor<fp32, [1, 4]> x, int32 n) {
            tensor<fp32, [1, 4]> y = relu(x = x);
            fp32 z = reduce_sum(keep_dims = bool(false), x = x);
        } -> (y, z);
}"#,
    );
    assert_eq!(model.specification_version, 7);
    let description = &model.description;
    assert!(description.functions.is_empty() && description.default_function.is_empty());
    assert_eq!(shown(&description.inputs), ["x: float32 [1, 4] Fixed", "n: int32 [1] Fixed"]);
    assert_eq!(shown(&description.outputs), ["y: float32 [1, 4] Fixed", "z: float32 [1] Fixed"]);
}

#[test]
fn reads_shape_ranges_from_attribute() {
    let model = described(
        r#"program(1.3)
{
    func main<ios17>(tensor<fp32, [3, 2]> data, tensor<int32, [?, ?]> indices) [FlexibleShapeInformation = tuple<tuple<string, dict<string, tensor<int32, [?]>>>, tuple<string, dict<string, list<tensor<int32, [2]>, ?>>>>((("DefaultShapes", {{"indices", [2, 4]}}), ("RangeDims", {{"indices", [[0, 2], [1, -1]]}})))] {
            tensor<fp32, [?, ?, 2]> y = gather(axis = int32(0), indices = indices, x = data);
        } -> (y);
}"#,
    );
    assert_eq!(
        shown(&model.description.inputs),
        [
            "data: float32 [3, 2] Fixed",
            "indices: int32 [2, 4] Ranged([SizeRange { lower: 0, upper: 2 }, \
             SizeRange { lower: 1, upper: -1 }])"
        ]
    );
    assert_eq!(shown(&model.description.outputs), ["y: float32 [] Fixed"]);
    assert_eq!(model.specification_version, 8);
}

#[test]
fn reads_enumerated_shapes_from_attribute() {
    // Apple's compiler writes other keys for the shapes, but any keys are accepted.
    let model = described(
        r#"program(1.3)
{
    func main<ios18>(tensor<fp32, [?]> a, tensor<fp32, [?, 2]> b) [FlexibleShapeInformation = tuple<tuple<string, dict<string, tensor<int32, [?]>>>, tuple<string, dict<string, dict<string, tensor<int32, [?]>>>>>((("DefaultShapes", {{"a", [4]}, {"b", [4, 2]}}), ("EnumeratedShapes", {{"00000000", {{"a", [1]}, {"b", [1, 2]}}}, {"00000001", {{"a", [4]}, {"b", [4, 2]}}}})))] {
            tensor<fp32, [?]> y = relu(x = a);
        } -> (y);
}"#,
    );
    assert_eq!(
        shown(&model.description.inputs),
        ["a: float32 [4] Enumerated([[1], [4]])", "b: float32 [4, 2] Enumerated([[1, 2], [4, 2]])"]
    );
}

#[test]
fn describes_states_and_multiple_functions() {
    let model = described(
        r#"program(1.3)
{
    func prompt<ios18>(tensor<fp16, [1, 4]> x) {
            tensor<fp16, [1, 4]> y = relu(x = x);
        } -> (y);
    func main<ios18>(state<tensor<fp16, [1, 4]>> cache, tensor<fp16, [1, 4]> x) {
            tensor<fp16, [1, 4]> y = read_state(input = cache);
        } -> (y);
}"#,
    );
    let description = &model.description;
    assert_eq!(model.specification_version, 9);
    assert_eq!(description.default_function, "main");
    assert_eq!(description.functions.len(), 2);
    let main = model.signature("main").expect("main");
    assert_eq!(shown(main.states), ["cache: state float16 [1, 4] Fixed"]);
    assert_eq!(shown(main.inputs), ["x: float16 [1, 4] Fixed"]);
    assert!(model.signature("prompt").expect("prompt").states.is_empty());
}

#[test]
fn describes_classifier_outputs() {
    let model = described(
        r#"program(1.3)
{
    func main<ios15>(tensor<fp32, [1, 2]> p) {
            string label, dict<string, fp32> label_probs = classify(classes = list<string, 2>(["cat", "dog"]), probabilities = p);
        } -> (label, label_probs);
}"#,
    );
    let description = &model.description;
    assert_eq!(description.predicted_feature_name, "label");
    assert_eq!(description.predicted_probabilities_name, "label_probs");
    assert_eq!(
        shown(&description.outputs),
        ["label: String", "label_probs: Dictionary(Some(String))"]
    );
}

#[test]
fn rejects_undescribable_input_and_output_types() {
    let function = |input: &str, output: &str| {
        format!(
            "program(1.3)\n{{\n    func main<ios17>({input} x) {{\n            {output} y = f(x = x);\n        }} -> (y);\n}}"
        )
    };
    for (input, output, message) in [
        (
            "tensor<fp32, [?]>",
            "fp32",
            "input `x` of function `main` has an unknown dimension; declare its shapes in the function's FlexibleShapeInformation attribute",
        ),
        (
            "bool",
            "fp32",
            "input `x` of function `main` holds `bool`; arrays of inputs and outputs must be fp32, int32, fp16 (from iOS 16 on) or int8 (from iOS 26 on): add a cast",
        ),
        (
            "state<tensor<fp16, [?]>>",
            "fp32",
            "input `x` of function `main` has an unknown dimension; states have fixed shapes",
        ),
        (
            "list<fp32, 2>",
            "fp32",
            "input `x` of function `main` has type `list<fp32, 2>`; use a tensor or a state",
        ),
        (
            "fp32",
            "tensor<string, [2]>",
            "output `y` of function `main` holds `string`; arrays of inputs and outputs must be fp32, int32, fp16 (from iOS 16 on) or int8 (from iOS 26 on): add a cast",
        ),
        (
            "fp32",
            "tuple<fp32>",
            "output `y` of function `main` has type `tuple<fp32>`; use a tensor",
        ),
    ] {
        assert_eq!(refused(&function(input, output)), message);
    }
}
