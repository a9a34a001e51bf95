//! Tests the text of edited models, and that the models pass verification.

use coremill_edit::{
    Classifier, Edit, ElementType, ImageEdit, Labels, RangeEdit, ShapeEdit, apply, function, merge,
};
use coremill_mil::model::{self, FeatureType, ImageSizes, Model, ShapeFlexibility, SizeRange};
use coremill_mil::text::{self, NoWeights, PrintOptions};
use coremill_verify::verify;

fn described(body: &str) -> Model {
    let text = format!("program(1.3) {{ {body} }}");
    let program =
        text::parse(&text, &NoWeights).unwrap_or_else(|error| panic!("{}", error.render("")));
    model::describe(program).expect("a description")
}

fn edited(body: &str, edits: &[Edit]) -> Model {
    let mut model = described(body);
    apply(&mut model, edits, None).unwrap_or_else(|error| panic!("{error}"));
    if let Err(report) = verify(&model) {
        panic!("{report:?}\n{}", printed(&model));
    }
    model
}

/// The error of an invalid edit, with its hint.
fn edit_error(body: &str, edit: Edit) -> String {
    let mut model = described(body);
    let before = model.clone();
    let error = apply(&mut model, &[edit], None).expect_err("an invalid edit");
    assert_eq!(model, before, "an invalid edit must not change the model");
    match error.hint() {
        Some(hint) => format!("{error}; {hint}"),
        None => error.to_string(),
    }
}

fn printed(model: &Model) -> String {
    text::print(&model.program, &PrintOptions::default()).text
}

/// The operations of the program, without types.
fn operations(model: &Model) -> Vec<String> {
    let text = printed(model);
    let lines =
        text.lines().map(str::trim).filter(|line| line.contains(" = ") && line.ends_with(';'));
    lines
        .map(|line| {
            let (left, right) = line.split_once(" = ").expect("filtered");
            let name = left.rsplit(' ').next().unwrap_or(left);
            format!("{name} = {}", right.trim_end_matches(';'))
        })
        .collect()
}

/// Sets the shapes of `x`.
fn shapes(shapes: &[[u64; 2]], default: &[u64]) -> Edit {
    let shapes = shapes.iter().map(|shape| shape.to_vec()).collect();
    Edit::Shapes(ShapeEdit { name: "x".to_owned(), shapes, default: default.to_vec() })
}

fn image(text: &str) -> Edit {
    Edit::Image(text.parse().unwrap_or_else(|error| panic!("{error}")))
}

const NETWORK: &str = "func main<ios16>(tensor<fp32, [1, 3, 4, 6]> x) {
    tensor<fp16, [1, 3, 4, 6]> h = cast(x = x, dtype = string(\"fp16\"));
    tensor<fp16, [1, 3, 4, 6]> r = relu(x = h);
    tensor<fp32, [1, 3, 4, 6]> y = cast(x = r, dtype = string(\"fp32\"));
} -> (y);";

const SCORES: &str = "func main<ios15>(tensor<fp32, [1, 3]> x) {
    tensor<fp32, [1, 3]> h = relu(x = x);
    tensor<fp32, [1, 3]> y = softmax(x = h, axis = int32(1));
} -> (y);";

#[test]
fn image_scale_and_bias_precede_first_operation() {
    let model = edited(NETWORK, &[image("x=bgr,scale=1/255,bias=-1:-2:-3")]);
    let operations = operations(&model);
    let names: Vec<_> = operations.iter().filter_map(|line| line.split(" = ").next()).collect();
    let position = |name: &str| names.iter().position(|it| *it == name).expect("an operation");
    assert!(position("x_scaled") < position("x_biased") && position("x_biased") < position("h"));
    let line = |name: &str| operations[position(name)].clone();
    assert!(line("x_scaled").contains("x = x") && line("x_biased").contains("x = x_scaled"));
    assert!(line("h").contains("x = x_biased"), "{}", line("h"));
    let FeatureType::Image(image) = &model.description.inputs[0].ty else { panic!("an image") };
    assert_eq!((image.width, image.height, image.color_space.code()), (6, 4, 30));
    assert_eq!(image.sizes, ImageSizes::Fixed);
}

#[test]
fn array_edit_reverts_image_input() {
    let edits = [image("x=rgb"), image("y=rgb"), Edit::Array { name: "x".to_owned() }];
    let model = edited(NETWORK, &edits);
    assert_eq!(model.description.inputs, described(NETWORK).description.inputs);
    assert!(matches!(model.description.outputs[0].ty, FeatureType::Image(_)));
}

#[test]
fn retype_does_not_stack_casts() {
    let name = || "x".to_owned();
    let fp16 = |name: &str| Edit::Retype { name: name.to_owned(), dtype: ElementType::Fp16 };
    let model = edited(NETWORK, &[fp16("x"), fp16("y")]);
    assert_eq!(operations(&model), ["y = relu(x = x)"]);
    let fp32 = |name: &str| Edit::Retype { name: name.to_owned(), dtype: ElementType::Fp32 };
    let model = edited(NETWORK, &[fp16("x"), fp16("y"), fp32("x"), fp32("y")]);
    assert_eq!(model.description.inputs, described(NETWORK).description.inputs);
    assert_eq!(model.description.outputs, described(NETWORK).description.outputs);
    let int32 = Edit::Retype { name: name(), dtype: ElementType::Int32 };
    let model = edited(SCORES, &[int32]);
    assert_eq!(
        model.description.inputs[0].ty.array().expect("an array").data_type.to_string(),
        "int32"
    );
}

#[test]
fn classify_outputs_label_then_probabilities() {
    let labels = Labels::from_lines("cat\ndog\neel\n");
    let classify = |labels, output| Edit::Classify(Classifier { labels, output, name: None });
    let model = edited(SCORES, &[classify(labels.clone(), None)]);
    let outputs: Vec<_> = model.description.outputs.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(outputs, ["classLabel", "classLabel_probs"]);
    assert_eq!(model.description.predicted_feature_name, "classLabel");
    assert_eq!(model.description.predicted_probabilities_name, "classLabel_probs");
    // If the scores are another value, the output `y` stays.
    let model = edited(SCORES, &[classify(Labels::Ints(vec![7, 8, 9]), Some("h".to_owned()))]);
    let outputs: Vec<_> = model.description.outputs.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(outputs, ["classLabel", "classLabel_probs", "y"]);
    // Scores in fp16 are cast.
    let flat = NETWORK.replace("[1, 3, 4, 6]", "[1, 3]");
    let fp16 = Edit::Retype { name: "y".to_owned(), dtype: ElementType::Fp16 };
    edited(&flat, &[fp16, classify(labels.clone(), None)]);
    let two = Labels::Texts(vec!["cat".to_owned(), "dog".to_owned()]);
    assert_eq!(
        edit_error(SCORES, classify(two, None)),
        "`y` has 3 scores; the number of labels must be equal, got 2; pass one label for each score, in order"
    );
}

#[test]
fn dropping_class_label_restores_scores_output() {
    let labels = || Labels::from_lines("cat\ndog\neel\n");
    let classify = |output| Edit::Classify(Classifier { labels: labels(), output, name: None });
    let drop = |name: &str| Edit::DropOutput { name: name.to_owned() };
    let model = edited(SCORES, &[classify(None), drop("classLabel")]);
    assert_eq!(model.description.outputs, described(SCORES).description.outputs);
    assert_eq!(model.description.predicted_feature_name, "");
    assert_eq!(model.description.predicted_probabilities_name, "");
    assert_eq!(operations(&model), operations(&described(SCORES)));
    // Dropping the class label makes its scores an output, in addition to `y`.
    let model = edited(SCORES, &[classify(Some("h".to_owned())), drop("classLabel")]);
    let outputs: Vec<_> = model.description.outputs.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(outputs, ["y", "h"]);
    // Labels can be replaced.
    edited(SCORES, &[classify(None), drop("classLabel"), classify(None)]);
    let mut classifier = edited(SCORES, &[classify(None)]);
    let drop = drop("classLabel_probs");
    let error = apply(&mut classifier, &[drop], None).expect_err("an invalid edit");
    assert_eq!(error.to_string(), "`classLabel_probs` holds the scores of the classifier");
}

#[test]
fn rename_updates_program_and_description() {
    let rename = |from: &str, to: &str| Edit::Rename { from: from.to_owned(), to: to.to_owned() };
    // An internal value with the new name is renamed.
    let model = edited(SCORES, &[rename("x", "h"), rename("y", "scores")]);
    assert_eq!(model.description.inputs[0].name, "h");
    assert_eq!(model.description.outputs[0].name, "scores");
    let labels = Labels::from_lines("cat\ndog\neel\n");
    let classify = Edit::Classify(Classifier { labels, output: None, name: None });
    let model = edited(SCORES, &[classify, rename("classLabel", "animal")]);
    assert_eq!(model.description.predicted_feature_name, "animal");
    assert_eq!(
        edit_error(SCORES, rename("x", "1x")),
        "`1x` is not a valid name in Core ML; `var_1x` is valid"
    );
    assert_eq!(
        edit_error(SCORES, rename("x", "y")),
        "the model already has an input or output `y`"
    );
    assert!(edit_error(SCORES, rename("z", "a")).starts_with("unknown name `z`"));
}

#[test]
fn exposes_and_drops_outputs() {
    let expose = Edit::ExposeOutput { name: "r".to_owned() };
    let model = edited(NETWORK, &[expose.clone(), Edit::DropOutput { name: "y".to_owned() }]);
    assert_eq!(model.description.outputs.len(), 1);
    assert_eq!(operations(&model).len(), 2, "{:?}", operations(&model));
    let older = NETWORK.replace("ios16", "ios15");
    let model = edited(&older, &[expose]);
    let exposed = model.description.outputs[1].ty.array().expect("an array");
    assert_eq!(exposed.data_type.to_string(), "float32");
    assert_eq!(
        edit_error(SCORES, Edit::DropOutput { name: "y".to_owned() }),
        "`y` is the only output; expose another value first"
    );
}

/// Core ML rejects programs with unused inputs.
#[test]
fn edits_keep_dummy_use_of_unused_inputs() {
    let unused = "func main<ios16>(tensor<fp32, [2]> x, tensor<fp32, [2]> z) {
        tensor<fp32, [2]> z_unused = identity(x = z);
        tensor<fp32, [2]> y = relu(x = x);
    } -> (y);";
    let fp16 = |name: &str| Edit::Retype { name: name.to_owned(), dtype: ElementType::Fp16 };
    let model = edited(unused, &[fp16("y")]);
    assert_eq!(operations(&model)[0], "z_unused = identity(x = z)");
    for edits in [vec![fp16("z")], vec![fp16("z"), fp16("y"), fp16("x")]] {
        assert_eq!(edited(unused, &edits).description.inputs.len(), 2);
    }
}

#[test]
fn shape_edit_reruns_shape_inference() {
    let model = edited(SCORES, &[shapes(&[[1, 3], [5, 3]], &[])]);
    let input = model.description.inputs[0].ty.array().expect("an array");
    assert_eq!(input.flexibility, ShapeFlexibility::Enumerated(vec![vec![1, 3], vec![5, 3]]));
    assert_eq!(input.shape, [1, 3]);
    assert!(model.description.outputs[0].ty.array().expect("an array").shape.is_empty());
    let model = edited(SCORES, &[shapes(&[[1, 3], [5, 3]], &[]), shapes(&[[5, 3]], &[])]);
    assert_eq!(model.description.outputs[0].ty.array().expect("an array").shape, [5, 3]);
}

#[test]
fn shape_edit_accepts_any_allowed_default() {
    let model = edited(SCORES, &[shapes(&[[1, 3], [5, 3]], &[5, 3])]);
    let input = model.description.inputs[0].ty.array().expect("an array");
    assert_eq!(input.flexibility, ShapeFlexibility::Enumerated(vec![vec![1, 3], vec![5, 3]]));
    assert_eq!(input.shape, [5, 3]);
    assert_eq!(
        edit_error(SCORES, shapes(&[[1, 3], [5, 3]], &[2, 3])),
        "the default shape [2, 3] of `x` is not allowed; choose one of the allowed shapes"
    );
}

#[test]
fn merges_and_extracts_functions() {
    let later = SCORES.replace("ios15", "ios18");
    let merged = merge(vec![
        ("first".to_owned(), described(&later)),
        ("second".to_owned(), described(&later)),
    ]);
    let merged = merged.expect("two functions");
    verify(&merged).expect("the merged model is valid");
    assert_eq!(merged.default_function_name(), "first");
    let mut alone = function(&merged, Some("second")).expect("a function");
    "main".clone_into(&mut alone.program.functions[0].name);
    assert_eq!(alone.description, described(&later).description);
    let twice = vec![("f".to_owned(), described(&later)), ("f".to_owned(), described(&later))];
    assert_eq!(
        merge(twice).expect_err("a duplicate name").to_string(),
        "two functions would be named `f`"
    );
}

#[test]
fn range_edit_sets_bounds_of_dynamic_dimensions() {
    let open = shapes(&[[2, 3], [5, 3]], &[]);
    let with_default = |ranges: &[(u64, Option<u64>)], default: &[u64]| {
        let (ranges, default) = (ranges.to_vec(), default.to_vec());
        Edit::Ranges(RangeEdit { name: "x".to_owned(), ranges, default })
    };
    let ranges = |ranges: &[(u64, Option<u64>)]| with_default(ranges, &[]);
    let fixed = SizeRange { lower: 3, upper: 3 };
    for (lower, upper, written) in [(0, None, -1), (1, Some(7), 7)] {
        let edits = [open.clone(), ranges(&[(lower, upper), (3, Some(3))])];
        let model = edited(SCORES, &edits);
        let input = model.description.inputs[0].ty.array().expect("an array");
        let expected = vec![SizeRange { lower, upper: written }, fixed];
        assert_eq!(input.flexibility, ShapeFlexibility::Ranged(expected));
    }
    let edits = [open.clone(), with_default(&[(1, None), (3, Some(3))], &[4, 3])];
    let model = edited(SCORES, &edits);
    assert_eq!(model.description.inputs[0].ty.array().expect("an array").shape, [4, 3]);
    let mut model = edited(SCORES, &[open]);
    let mut range_error = |default: &[u64]| {
        let edit = with_default(&[(3, Some(7)), (3, Some(3))], default);
        apply(&mut model, &[edit], None).expect_err("an invalid edit").to_string()
    };
    assert_eq!(range_error(&[8, 3]), "the range of dimension 0 of `x` excludes its default 8");
    assert!(range_error(&[4]).contains("expected 2 default sizes, got 1"));
    let error = apply(&mut model, &[ranges(&[(8, None), (3, Some(3))])], None)
        .expect_err("an invalid edit");
    assert_eq!(error.to_string(), "the range of dimension 0 of `x` excludes its default 2");
    assert!(edit_error(SCORES, ranges(&[(1, None)])).contains("ranges, got 1"));
    assert_eq!(
        edit_error(SCORES, ranges(&[(1, Some(2)), (3, Some(3))])),
        "dimension 0 of `x` has the fixed size 1; export the program again, with dynamic shapes"
    );
}

#[test]
fn rejects_incompatible_image_and_dtype_edits() {
    let edit = |text: &str| image(text);
    assert!(edit_error(SCORES, edit("x=rgb")).contains("an image must have rank 4"));
    assert!(
        edit_error(NETWORK, edit("x=grayscale"))
            .contains("an image must be `[1, 1, height, width]`")
    );
    assert!(
        edit_error(NETWORK, edit("x=rgb,scale=1:2")).contains("3 channels, but 2 `scale` values")
    );
    let fp16 = Edit::Retype { name: "x".to_owned(), dtype: ElementType::Fp16 };
    assert_eq!(
        edit_error(SCORES, fp16),
        "the edit requires iOS16; the model targets iOS15; convert the program for iOS16"
    );
    for text in ["x", "=rgb", "x=cmyk", "x=rgb,scale=a", "x=rgb,gamma=2", "x=rgb,scale=1/0"] {
        assert!(text.parse::<ImageEdit>().is_err(), "{text}");
    }
}

#[test]
fn parses_edits_from_json() {
    let edits = coremill_edit::from_json(
        r#"[{"edit":"image","name":"x","layout":"grayscale_fp16","scale":[0.5]},
            {"edit":"classify","labels":["a","b"],"output":"y"},
            {"edit":"classify","labels":[1,2]},
            {"edit":"retype","name":"y","dtype":"fp16"},
            {"edit":"shapes","name":"x","shapes":[[1,2]]},
            {"edit":"ranges","name":"x","ranges":[[1,null],[2,2]]}]"#,
    );
    assert_eq!(edits.expect("edits").len(), 6);
    assert!(coremill_edit::from_json(r#"[{"edit":"paint"}]"#).is_err());
}

/// A state that is read and written twice.
const COUNTER: &str = "func main<ios18>(tensor<fp16, [2]> x, state<tensor<fp16, [2]>> s) {
    tensor<fp16, [2]> a = read_state(input = s);
    tensor<fp16, [2]> b = add(x = a, y = x);
    write_state(input = s, data = b);
    tensor<fp16, [2]> c = read_state(input = s);
    tensor<fp16, [2]> y = mul(x = c, y = x);
    write_state(input = s, data = y);
} -> (y);";

#[test]
fn exposed_state_becomes_input_and_output() {
    let expose = |name: &str| Edit::ExposeState { name: name.to_owned() };
    let model = edited(COUNTER, &[expose("s")]);
    let expected = ["b = add(x = s, y = x)", "y = mul(x = b, y = x)", "new_s = identity(x = y)"];
    assert_eq!(operations(&model), expected);
    let names = |features: &[model::FeatureDescription]| -> Vec<String> {
        features.iter().map(|feature| feature.name.clone()).collect()
    };
    let description = &model.description;
    assert!(description.states.is_empty() && names(&description.inputs) == ["x", "s"]);
    assert_eq!(names(&description.outputs), ["y", "new_s"]);
    // An internal value is renamed and needs no `identity`. An input cannot be an output, so it needs one.
    let written = |data: &str| {
        COUNTER.replace(
            "write_state(input = s, data = y);",
            &format!("write_state(input = s, data = {data});"),
        )
    };
    let last = |data: &str| operations(&edited(&written(data), &[expose("s")])).last().cloned();
    assert_eq!(
        operations(&edited(&written("b"), &[expose("s")])),
        ["new_s = add(x = s, y = x)", "y = mul(x = new_s, y = x)"]
    );
    assert_eq!(last("x").as_deref(), Some("new_s = identity(x = x)"));
    let read = COUNTER
        .replace("write_state(input = s, data = b);", "")
        .replace("write_state(input = s, data = y);", "");
    let last = operations(&edited(&read, &[expose("s")])).last().cloned();
    assert_eq!(last.as_deref(), Some("new_s = identity(x = s)"));
    assert_eq!(edit_error(COUNTER, expose("x")), "`x` is not a state");
    let taken = COUNTER
        .replace("y = mul", "new_s = mul")
        .replace("data = y", "data = new_s")
        .replace("-> (y)", "-> (new_s)");
    assert_eq!(
        edit_error(&taken, expose("s")),
        "the model already has an input or output `new_s`; rename it first"
    );
}
