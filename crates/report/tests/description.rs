//! Tests that comparisons report every field of a description that differs.

use coremill_mil::ir::{Constant, UnknownFields};
use coremill_mil::model::{
    self, ArrayDataType, ArrayType, ColorSpace, DefaultElement, ExtraFile, FeatureDescription,
    FeatureType, ImageSize, ImageSizes, ImageType, KeyType, ManifestItem, Metadata, Model,
    SequenceType, ShapeFlexibility, SizeRange,
};
use coremill_mil::text;
use coremill_tensor::Buffer;

use coremill_report::changes;
use coremill_report::description::lost_in_text;

fn base() -> Model {
    let source = "program(1.3) {
        func main<ios18>(tensor<fp32, [1, 3, 8, 8]> x, state<tensor<fp16, [2]>> s) {
            tensor<fp16, [2]> held = read_state(input = s);
            tensor<fp32, [1, 3, 8, 8]> y = relu(x = x);
        } -> (y);
    }";
    let program = text::parse(source, &text::NoWeights).expect("it is MIL");
    let mut model = model::describe(program).expect("it is complete");
    model.description.metadata =
        Some(Metadata { author: "somebody".to_owned(), ..Metadata::default() });
    model
}

fn image(change: impl Fn(&mut ImageType)) -> FeatureType {
    let mut image =
        ImageType { width: 8, height: 8, color_space: ColorSpace::Rgb, sizes: ImageSizes::Fixed };
    change(&mut image);
    FeatureType::Image(image)
}

fn array(change: impl Fn(&mut ArrayType)) -> FeatureType {
    let mut array = ArrayType::fixed(ArrayDataType::Float32, &[1, 3, 8, 8]);
    change(&mut array);
    FeatureType::MultiArray(array)
}

/// Feature types, all different.
fn types() -> Vec<FeatureType> {
    let range = |lower| SizeRange { lower, upper: 9 };
    let size = |width| ImageSizes::Enumerated(vec![ImageSize { width, height: 8 }]);
    let sequence = |element, length| FeatureType::Sequence(SequenceType { element, length });
    vec![
        FeatureType::Unspecified,
        FeatureType::Int64,
        FeatureType::Double,
        FeatureType::String,
        image(|_| {}),
        image(|image| image.width = 9),
        image(|image| image.height = 9),
        image(|image| image.color_space = ColorSpace::Bgr),
        image(|image| image.sizes = size(8)),
        image(|image| image.sizes = size(9)),
        image(|image| image.sizes = ImageSizes::Ranged { width: range(1), height: range(1) }),
        image(|image| image.sizes = ImageSizes::Ranged { width: range(2), height: range(1) }),
        image(|image| image.sizes = ImageSizes::Ranged { width: range(1), height: range(2) }),
        array(|_| {}),
        array(|array| array.shape = vec![1, 3, 8, 9]),
        array(|array| array.data_type = ArrayDataType::Float16),
        array(|array| array.flexibility = ShapeFlexibility::Ranged(vec![range(1)])),
        array(|array| array.flexibility = ShapeFlexibility::Ranged(vec![range(2)])),
        array(|array| array.flexibility = ShapeFlexibility::Enumerated(vec![vec![1]])),
        array(|array| array.default = Some(DefaultElement::Int(1))),
        array(|array| array.default = Some(DefaultElement::Float(1.0))),
        FeatureType::Dictionary(None),
        FeatureType::Dictionary(Some(KeyType::Int64)),
        FeatureType::Dictionary(Some(KeyType::String)),
        sequence(None, None),
        sequence(Some(KeyType::Int64), None),
        sequence(None, Some(range(1))),
        FeatureType::State(ArrayType::fixed(ArrayDataType::Float32, &[1, 3, 8, 8])),
    ]
}

#[test]
fn changes_distinguish_every_feature_type() {
    let models = types().into_iter().map(|ty| {
        let mut model = base();
        model.description.inputs[0].ty = ty;
        model
    });
    let models: Vec<Model> = models.collect();
    for (at, before) in models.iter().enumerate() {
        for (other, after) in models.iter().enumerate() {
            let found = changes(before, after);
            assert_eq!(found.is_empty(), at == other, "feature types {at} and {other}: {found:?}");
        }
    }
}

type Mutation = (&'static str, fn(&mut Model));

/// Changes of a single field. `src/description.rs` destructures every struct without `..`, so that no field is missed.
const MUTATIONS: &[Mutation] = &[
    ("specification version", |model| model.specification_version += 1),
    ("updatable", |model| model.is_updatable = true),
    ("unknown fields of the model", |model| model.unknown = UnknownFields(vec![1])),
    ("unknown fields of the description", |model| {
        model.description.unknown = UnknownFields(vec![1]);
    }),
    ("unknown fields of the program", |model| model.program.unknown = UnknownFields(vec![1])),
    ("documentation", |model| model.program.documentation = "text".to_owned()),
    ("attribute note of the program", |model| {
        model.program.attributes.insert("note", Constant::string("text"));
    }),
    ("default function", |model| model.description.default_function = "other".to_owned()),
    ("description", |model| metadata(model).short_description = "text".to_owned()),
    ("version", |model| metadata(model).version = "2".to_owned()),
    ("author", |model| metadata(model).author = "somebody else".to_owned()),
    ("author", |model| model.description.metadata = None),
    ("license", |model| metadata(model).license = "MIT".to_owned()),
    ("metadata key", |model| metadata(model).set_user_defined("key", "value")),
    ("metadata key", |model| metadata(model).set_user_defined("key", "")),
    ("metadata long", |model| metadata(model).set_user_defined("long", "x".repeat(1 << 16))),
    ("unknown fields of the metadata", |model| {
        metadata(model).unknown = UnknownFields(vec![1]);
    }),
    ("file notes.txt", |model| {
        let content = Buffer::from(b"text".to_vec());
        model.extra.files.push(ExtraFile { path: "notes.txt".to_owned(), content });
    }),
    ("manifest item id", |model| {
        let identifier = "id".to_owned();
        model.extra.items.push(ManifestItem { identifier, ..ManifestItem::default() });
    }),
    ("attribute note of the function", |model| {
        let function = &mut model.program.functions[0];
        function.attributes.insert("note", Constant::string("text"));
    }),
    ("unknown fields of the function", |model| {
        model.program.functions[0].unknown = UnknownFields(vec![1]);
    }),
    ("class label", |model| model.description.predicted_feature_name = "y".to_owned()),
    ("class probabilities", |model| {
        model.description.predicted_probabilities_name = "y".to_owned();
    }),
    ("description", |model| {
        model.description.inputs[0].short_description = "text".to_owned();
    }),
    ("optional", |model| model.description.outputs[0].is_optional = true),
    ("unknown fields of the feature", |model| {
        model.description.states[0].unknown = UnknownFields(vec![1]);
    }),
    ("size", |model| model.description.inputs[0].ty = image(|_| {})),
    ("kind", |model| model.description.outputs[0].ty = FeatureType::Double),
    ("elements", |model| {
        let float32 = ArrayType::fixed(ArrayDataType::Float32, &[2]);
        model.description.states[0].ty = FeatureType::State(float32);
    }),
    ("described", |model| drop(model.description.inputs.pop())),
    ("described", |model| {
        let feature = FeatureDescription::new("another", FeatureType::Double);
        model.description.outputs.push(feature);
    }),
];

fn metadata(model: &mut Model) -> &mut Metadata {
    model.description.metadata.get_or_insert_default()
}

#[test]
fn changes_report_every_differing_field() {
    let before = base();
    assert!(changes(&before, &before.clone()).is_empty());
    for (label, mutate) in MUTATIONS {
        let mut after = base();
        mutate(&mut after);
        for (one, two) in [(&before, &after), (&after, &before)] {
            let found = changes(one, two);
            let facts = found.facts.iter().map(|(label, ..)| label);
            let functions = found.functions.iter().flat_map(|function| &function.changes);
            let differences =
                functions.flat_map(|change| &change.differences).map(|(label, ..)| label);
            assert!(facts.chain(differences).any(|found| found == label), "{label}: {found:?}");
        }
    }
}

#[test]
fn lists_description_fields_lost_in_text() {
    let mut model = base();
    model.description.metadata = None;
    assert_eq!(lost_in_text(&model, &model.program), [""; 0]);
    metadata(&mut model).author = "somebody".to_owned();
    metadata(&mut model).set_user_defined("com.github.apple.coremltools.version", "9.0");
    model.description.inputs[0].ty = image(|_| {});
    let lost = lost_in_text(&model, &model.program);
    assert_eq!(lost[0], "author");
    assert!(lost[1].starts_with("input `x` (") && lost[1].contains("color space"), "{lost:?}");
    assert_eq!(lost.len(), 2);
}
