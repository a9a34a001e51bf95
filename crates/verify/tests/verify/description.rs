//! Rules about the model description.

use coremill_mil::model::{
    ArrayDataType, ArrayType, ColorSpace, DefaultElement, FeatureDescription, FeatureType,
    FunctionDescription, ImageSize, ImageSizes, ImageType, Model, ShapeFlexibility, SizeRange,
};
use coremill_verify::{Code, RenderOptions, check};

use crate::cases::{Case, main, model, relu, undescribed};

fn changed(mut model: Model, change: impl FnOnce(&mut Model)) -> Model {
    change(&mut model);
    model
}

fn with_input(mut model: Model, change: impl FnOnce(&mut FeatureDescription)) -> Model {
    change(&mut model.description.inputs[0]);
    model
}

fn array(feature: &mut FeatureDescription) -> &mut ArrayType {
    match &mut feature.ty {
        FeatureType::MultiArray(array) | FeatureType::State(array) => array,
        other => panic!("{other:?} is not an array"),
    }
}

/// A model in which the first dimension of `x` is dynamic.
fn open(flexibility: ShapeFlexibility) -> Model {
    let text =
        main("ios17", "tensor<fp16, [?, 4]> x", "tensor<fp16, [?, 4]> y = relu(x = x);", "y");
    let mut model = undescribed(&text);
    let x = ArrayType { flexibility, ..ArrayType::fixed(ArrayDataType::Float16, &[2, 4]) };
    let y = ArrayType::fixed(ArrayDataType::Float16, &[]);
    model.description.inputs = vec![FeatureDescription::new("x", FeatureType::MultiArray(x))];
    model.description.outputs = vec![FeatureDescription::new("y", FeatureType::MultiArray(y))];
    model
}

fn ranged(lower: u64, upper: i64) -> Model {
    open(ShapeFlexibility::Ranged(vec![SizeRange { lower, upper }, SizeRange::exactly(4)]))
}

fn enumerated(shapes: &[&[i64]]) -> Model {
    open(ShapeFlexibility::Enumerated(shapes.iter().map(|shape| shape.to_vec()).collect()))
}

/// A model with two inputs that have enumerated shapes; `second` is the number of shapes of the second.
fn enumerated_twice(opset: &str, second: usize) -> Model {
    let text = main(
        opset,
        "tensor<fp16, [?, 4]> a, tensor<fp16, [?, 4]> b",
        "tensor<fp16, [?, 4]> y = relu(x = a);\ntensor<fp16, [?, 4]> z = relu(x = b);",
        "y, z",
    );
    let mut model = undescribed(&text);
    let input = |name: &str, count: usize| {
        let shapes = (0..count as i64).map(|extent| vec![extent + 1, 4]).collect();
        let array = ArrayType {
            flexibility: ShapeFlexibility::Enumerated(shapes),
            ..ArrayType::fixed(ArrayDataType::Float16, &[1, 4])
        };
        FeatureDescription::new(name, FeatureType::MultiArray(array))
    };
    let output = |name: &str| {
        let array = ArrayType::fixed(ArrayDataType::Float16, &[]);
        FeatureDescription::new(name, FeatureType::MultiArray(array))
    };
    model.description.inputs = vec![input("a", 2), input("b", second)];
    model.description.outputs = vec![output("y"), output("z")];
    model
}

fn image(color_space: ColorSpace, channels: u64, sizes: ImageSizes) -> Model {
    let spatial = if sizes == ImageSizes::Fixed { "8, 6" } else { "?, ?" };
    let ty = format!("tensor<fp16, [1, {channels}, {spatial}]>");
    let text = main("ios17", &format!("{ty} x"), &format!("{ty} y = relu(x = x);"), "y");
    let mut model = undescribed(&text);
    let image = ImageType { width: 6, height: 8, color_space, sizes };
    let y = ArrayType::fixed(ArrayDataType::Float16, &[]);
    model.description.inputs = vec![FeatureDescription::new("x", FeatureType::Image(image))];
    model.description.outputs = vec![FeatureDescription::new("y", FeatureType::MultiArray(y))];
    model
}

fn sizes(all: &[(u64, u64)]) -> ImageSizes {
    let sizes = all.iter().map(|&(width, height)| ImageSize { width, height });
    ImageSizes::Enumerated(sizes.collect())
}

fn functions() -> Model {
    let function = |name: &str| {
        format!(
            "func {name}<ios18>(tensor<fp16, [4]> x) {{\ntensor<fp16, [4]> y = relu(x = x);\n}} -> (y);\n"
        )
    };
    model(&format!("program(1.3)\n{{\n{}{}}}\n", function("main"), function("other")))
}

fn classifier() -> Model {
    model(&main(
        "ios17",
        "tensor<fp32, [2]> p",
        r#"string label, dict<string, fp64> label_probs = classify(probabilities = p, classes = list<string, 2>(["cat", "dog"]));"#,
        "label, label_probs",
    ))
}

pub(crate) fn cases() -> Vec<Case> {
    let optional = |default| {
        with_input(relu(), |feature| {
            feature.is_optional = true;
            array(feature).default = default;
        })
    };
    let whole_number = |default| {
        let text =
            main("ios17", "tensor<int32, [4]> x", "tensor<int32, [4]> y = identity(x = x);", "y");
        with_input(model(&text), |feature| {
            feature.is_optional = true;
            array(feature).default = Some(default);
        })
    };
    let range = |lower, upper| SizeRange { lower, upper };
    let mut cases = vec![
        Case::new(
            Code::OpsetTooNew,
            changed(relu(), |model| model.specification_version = 7),
            relu(),
        ),
        Case::new(
            Code::SpecificationVersion,
            changed(relu(), |model| model.specification_version = 5),
            changed(relu(), |model| model.specification_version = 9),
        ),
        Case::new(
            Code::FunctionsTooNew,
            changed(functions(), |model| model.specification_version = 8),
            functions(),
        )
        .with(&[Code::OpsetTooNew]),
        Case::new(
            Code::DefaultFunction,
            changed(functions(), |model| model.description.default_function = "best".into()),
            functions(),
        ),
        Case::new(
            Code::DescriptionFunction,
            changed(functions(), |model| {
                model.description.functions.push(FunctionDescription {
                    name: "third".into(),
                    ..FunctionDescription::default()
                });
            }),
            functions(),
        ),
        Case::new(
            Code::DescriptionFunction,
            changed(functions(), |model| drop(model.description.functions.pop())),
            functions(),
        ),
        Case::new(
            Code::FeatureMissing,
            changed(relu(), |model| model.description.outputs.clear()),
            relu(),
        ),
        Case::new(
            Code::FeatureUnknown,
            with_input(relu(), |feature| feature.name = "image".into()),
            relu(),
        )
        .with(&[Code::FeatureMissing]),
        Case::new(
            Code::FeatureDuplicate,
            changed(relu(), |model| {
                let input = model.description.inputs[0].clone();
                model.description.inputs.push(input);
            }),
            relu(),
        ),
        Case::new(
            Code::FeatureType,
            with_input(relu(), |feature| array(feature).data_type = ArrayDataType::Float32),
            relu(),
        ),
        Case::new(
            Code::FeatureType,
            with_input(relu(), |feature| array(feature).shape = vec![5]),
            relu(),
        ),
        Case::new(
            Code::FeatureType,
            with_input(relu(), |feature| feature.ty = FeatureType::Double),
            relu(),
        ),
        Case::new(
            Code::FeatureType,
            image(ColorSpace::Rgb, 1, ImageSizes::Fixed),
            image(ColorSpace::Rgb, 3, ImageSizes::Fixed),
        ),
        Case::new(
            Code::FeatureType,
            with_input(image(ColorSpace::Grayscale, 1, ImageSizes::Fixed), |feature| {
                if let FeatureType::Image(image) = &mut feature.ty {
                    image.width = 8;
                }
            }),
            image(ColorSpace::Grayscale, 1, ImageSizes::Fixed),
        ),
        Case::new(Code::FeatureShape, ranged(3, 8), ranged(2, 8)),
        Case::new(Code::FeatureShape, ranged(8, 2), ranged(1, -1)),
        Case::new(
            Code::FeatureShape,
            open(ShapeFlexibility::Ranged(vec![range(1, 8), range(1, 8)])),
            open(ShapeFlexibility::Ranged(vec![range(1, 8), range(4, 4)])),
        ),
        Case::new(
            Code::FeatureShape,
            open(ShapeFlexibility::Ranged(vec![range(1, 8)])),
            ranged(1, 8),
        ),
        Case::new(Code::FeatureShape, enumerated(&[]), enumerated(&[&[2, 4]])),
        Case::new(Code::FeatureShape, enumerated(&[&[3, 4]]), enumerated(&[&[3, 4], &[2, 4]])),
        Case::new(
            Code::FeatureShape,
            enumerated(&[&[2, 4], &[2, 5]]),
            enumerated(&[&[2, 4], &[5, 4]]),
        ),
        Case::new(
            Code::FeatureShape,
            enumerated(&[&[2, 4], &[2, 4]]),
            enumerated(&[&[2, 4], &[1, 4]]),
        ),
        Case::new(
            Code::FeatureShape,
            image(ColorSpace::Bgr, 3, sizes(&[(8, 8)])),
            image(ColorSpace::Bgr, 3, sizes(&[(8, 8), (6, 8)])),
        ),
        Case::new(
            Code::FeatureShape,
            image(
                ColorSpace::Bgr,
                3,
                ImageSizes::Ranged { width: range(7, -1), height: range(1, 9) },
            ),
            image(
                ColorSpace::Bgr,
                3,
                ImageSizes::Ranged { width: range(6, -1), height: range(1, 9) },
            ),
        ),
        Case::new(Code::FeatureShape, enumerated_twice("ios18", 3), enumerated_twice("ios18", 2)),
        Case::new(
            Code::EnumeratedTooNew,
            enumerated_twice("ios17", 2),
            enumerated_twice("ios18", 2),
        ),
        Case::new(Code::FeatureDefault, optional(None), optional(Some(DefaultElement::Float(1.0)))),
        Case::new(
            Code::FeatureDefault,
            whole_number(DefaultElement::Float(0.5)),
            whole_number(DefaultElement::Float(3.0)),
        ),
    ];
    let classifier_faults: [fn(&mut Model); 4] = [
        |model| model.description.predicted_feature_name = "label_probs".into(),
        |model| model.description.predicted_feature_name = String::new(),
        |model| model.description.outputs[0].ty = FeatureType::Int64,
        |model| model.description.outputs[1].ty = FeatureType::String,
    ];
    let faults = classifier_faults.into_iter();
    cases.extend(
        faults.map(|fault| Case::new(Code::Classifier, changed(classifier(), fault), classifier())),
    );
    cases.push(Case::new(
        Code::Classifier,
        changed(relu(), |model| model.description.predicted_feature_name = "label".into()),
        changed(relu(), |model| model.description.predicted_feature_name = "y".into()),
    ));
    cases
}

#[test]
fn reports_description_errors_before_program_errors() {
    let broken = changed(relu(), |model| {
        model.specification_version = 7;
        array(&mut model.description.inputs[0]).shape = vec![1, 2];
    });
    let report = check(&broken);
    let codes: Vec<_> = report.diagnostics.iter().map(|found| found.code).collect();
    assert_eq!(codes, [Code::FeatureType, Code::OpsetTooNew], "{report}");
    let rendered = report.render(&broken.program, &RenderOptions::default());
    let marked =
        "3 | func main<ios17>(tensor<fp16, [4]> x) {\n  |                  ^^^^^^^^^^^^^^^^^^^\n";
    assert!(rendered.contains(marked), "{rendered}");
    let json = serde_json::to_value(report.to_json()).expect("plain data");
    assert_eq!(json["format_version"], 1);
    assert_eq!(json["diagnostics"][0]["feature"], "x");
    assert_eq!(json["diagnostics"][0]["feature_role"], "input");
    assert_eq!(json["diagnostics"][0]["code"], "feature-type");
    assert_eq!(json["diagnostics"][1].get("feature"), None);
}
