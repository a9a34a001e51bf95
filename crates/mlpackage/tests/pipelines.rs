//! Pipelines: comparison with Apple's compiler, round trips, and linking.

use std::path::{Path, PathBuf};

use coremill_mil::model::{
    ColorSpace, FeatureDescription, FeatureType, ImageSizes, ImageType, describe,
};
use coremill_mil::text::{self, NoWeights, PrintOptions};
use coremill_mlpackage::compiled::{self, ErrorKind, WriteOptions};
use coremill_mlpackage::package;
use coremill_mlpackage::pipeline::{self, Pipeline, PipelineKind, Stage};
use coremill_verify::verify;
use serde_json::Value;

const NAMES: [&str; 8] = [
    "cast",
    "dynamic",
    "dynamic-boundary",
    "indexed",
    "masked",
    "masked-int32",
    "scalar",
    "weighted",
];

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/compiled/pipeline-{name}"))
}

/// The model file of a pipeline in its own directory, with its weights at the locations it refers to.
fn source(name: &str) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("temporary directory");
    let path = directory.path().join("input.mlmodel");
    std::fs::copy(folder(name).join("input.mlmodel"), &path).expect("copied");
    let weights = folder(name).join("weights.bin");
    if weights.exists() {
        std::fs::create_dir(directory.path().join("weights")).expect("made");
        std::fs::copy(weights, directory.path().join("weights/weights.bin")).expect("copied");
    }
    (directory, path)
}

/// All files below a folder, by relative path.
fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    let mut pending = vec![folder.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in std::fs::read_dir(directory).expect("folder") {
            let path = entry.expect("entry").path();
            if path.is_dir() {
                pending.push(path);
            } else {
                let name = path.strip_prefix(folder).expect("below").to_string_lossy().into_owned();
                found.push((name, std::fs::read(path).expect("read")));
            }
        }
    }
    found.sort();
    found
}

/// The text without `buildInfo`, which names the compiler and its version.
fn without_build_info(text: &[u8]) -> String {
    let text = std::str::from_utf8(text).expect("UTF-8");
    let lines = text.lines().filter(|line| !line.starts_with("[buildInfo = "));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn compiled_pipelines_match_apple_compiler() {
    for name in NAMES {
        let (_directory, path) = source(name);
        let pipeline = package::read_pipeline(&path).expect("readable").expect("a pipeline");
        let expected = files(&folder(name).join("input.mlmodelc"));
        let analytics = &expected.iter().find(|(path, _)| path == "analytics/coremldata.bin");
        let analytics = analytics.expect("analytics").1.clone();
        // The last string of the tables is the name of the model file.
        let at = analytics.windows(9).position(|found| found == b"modelName").expect("a name") + 17;
        let file = String::from_utf8(analytics[at..].to_vec()).expect("UTF-8");
        let output = tempfile::tempdir().expect("temporary directory");
        let ours = output.path().join("ours.mlmodelc");
        let options = WriteOptions { name: Some(file), ..WriteOptions::default() };
        compiled::write_pipeline(&ours, &pipeline, &options).expect("written");
        let ours = files(&ours);
        let paths = |files: &[(String, Vec<u8>)]| -> Vec<String> {
            files.iter().map(|(path, _)| path.clone()).collect()
        };
        assert_eq!(paths(&ours), paths(&expected), "{name}");
        for ((path, ours), (_, expected)) in ours.iter().zip(&expected) {
            if path.ends_with("model.mil") {
                assert_eq!(
                    without_build_info(ours),
                    without_build_info(expected),
                    "{name}: {path}"
                );
            } else if path.ends_with("metadata.json") {
                let json = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).expect("JSON");
                assert_eq!(json(ours), json(expected), "{name}: {path}");
            } else if path == "analytics/coremldata.bin" {
                // The hash of the model file differs, because the file is encoded again.
                let hash = ours.windows(9).position(|found| found == b"modelHash").expect("hash");
                let without = |bytes: &[u8]| [&bytes[..hash + 17], &bytes[hash + 61..]].concat();
                assert_eq!(without(ours), without(expected), "{name}: {path}");
            } else {
                assert!(ours == expected, "{name}: {path}");
            }
        }
    }
}

#[test]
fn pipelines_round_trip_as_package_and_compiled() {
    for name in NAMES {
        let (_directory, path) = source(name);
        let pipeline = package::read_pipeline(&path).expect("readable").expect("a pipeline");
        let output = tempfile::tempdir().expect("temporary directory");
        let package = output.path().join("again.mlpackage");
        package::write_pipeline(&package, &pipeline, &Default::default()).expect("written");
        let again = package::read_pipeline(&package).expect("readable").expect("a pipeline");
        assert_eq!(again, pipeline, "{name}");
        let compiled = output.path().join("again.mlmodelc");
        compiled::write_pipeline(&compiled, &pipeline, &Default::default()).expect("written");
        let again = compiled::read_pipeline(&compiled).expect("readable").expect("a pipeline");
        assert_eq!(again, pipeline, "{name}");

        // All readers return the same model.
        let linked = pipeline::link(pipeline).expect("linked");
        verify(&linked).unwrap_or_else(|report| panic!("{name}: {report}"));
        assert_eq!(package::read(&package).expect("readable"), linked, "{name}");
        assert_eq!(compiled::read(&compiled).expect("readable"), linked, "{name}");
        let (listed, listing) = compiled::read_with_listing(&compiled).expect("readable");
        assert!(listed == linked && listing.is_none(), "{name}");
        let bare = compiled::read_without_weights(&compiled).expect("readable");
        assert_eq!(bare.description, linked.description, "{name}");
        let mut expected = compiled::read(&folder(name).join("input.mlmodelc")).expect("readable");
        expected.program.attributes.remove("buildInfo");
        assert_eq!(expected, linked, "{name}");
    }
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compiled/neg-0d-scalar");
    assert_eq!(package::read_pipeline(&model.join("input.mlmodel")).expect("readable"), None);
    assert_eq!(compiled::read_pipeline(&model.join("input.mlmodelc")).expect("readable"), None);
}

fn stage(name: &str, body: &str) -> Stage {
    let program = text::parse(&format!("program(1.3) {{ {body} }}"), &NoWeights);
    let program = program.unwrap_or_else(|error| panic!("{}", error.render("text")));
    Stage { name: name.to_owned(), model: describe(program).expect("complete") }
}

/// A pipeline with the inputs of its first stage and the outputs of its last stage.
fn pipeline(stages: Vec<Stage>) -> Pipeline {
    let mut pipeline = Pipeline { specification_version: 9, ..Pipeline::default() };
    let (first, last) = (&stages[0].model.description, &stages[stages.len() - 1].model.description);
    pipeline.description.inputs = first.inputs.clone();
    pipeline.description.outputs = last.outputs.clone();
    pipeline.description.predicted_feature_name = last.predicted_feature_name.clone();
    pipeline.description.predicted_probabilities_name = last.predicted_probabilities_name.clone();
    pipeline.stages = stages;
    pipeline
}

/// The body of the linked function, with one operation per line.
fn linked(pipeline: Pipeline) -> String {
    let model = pipeline::link(pipeline).expect("linked");
    verify(&model).unwrap_or_else(|report| panic!("{report}"));
    let text = text::print(&model.program, &PrintOptions::default()).text;
    let lines = text.lines().skip(2).map(str::trim).filter(|line| !line.starts_with('}'));
    lines.collect::<Vec<_>>().join("\n")
}

fn image(name: &str, color_space: ColorSpace) -> FeatureDescription {
    let ty = ImageType { width: 4, height: 2, color_space, sizes: ImageSizes::Fixed };
    FeatureDescription::new(name, FeatureType::Image(ty))
}

#[test]
fn linking_converts_images_between_stages() {
    let mut first = stage(
        "look",
        "func main<ios17>(tensor<fp32, [1, 3, 2, 4]> x) { \
         tensor<fp32, [1, 3, 2, 4]> picture = mul(x = x, y = fp32(0.3)); } -> (picture);",
    );
    first.model.description.inputs = vec![image("x", ColorSpace::Rgb)];
    first.model.description.outputs = vec![image("picture", ColorSpace::Rgb)];
    let mut second = stage(
        "think",
        "func main<ios17>(tensor<fp16, [1, 3, 2, 4]> picture) { \
         tensor<fp16, [1, 3, 2, 4]> y = relu(x = picture); } -> (y);",
    );
    second.model.description.inputs = vec![image("picture", ColorSpace::Bgr)];
    assert_eq!(
        linked(pipeline(vec![first.clone(), second.clone()])),
        "func main<ios17>(tensor<fp32, [1, 3, 2, 4]> x) {\n\
         tensor<fp32, [1, 3, 2, 4]> picture = mul(x = x, y = fp32(0x1.333334p-2));\n\
         tensor<fp32, [1, 3, 2, 4]> picture_clip = clip(alpha = fp32(0x0p+0), beta = fp32(0x1.fep+7), x = picture);\n\
         tensor<fp32, [1, 3, 2, 4]> picture_clip_round = round(x = picture_clip);\n\
         tensor<fp32, [1, 3, 2, 4]> picture_clip_round_reverse = reverse(axes = tensor<int32, [1]>([1]), x = picture_clip_round);\n\
         tensor<fp16, [1, 3, 2, 4]> picture_clip_round_reverse_cast = cast(dtype = string(\"fp16\"), x = picture_clip_round_reverse);\n\
         tensor<fp16, [1, 3, 2, 4]> y = relu(x = picture_clip_round_reverse_cast);"
    );
    second.model.description.inputs = vec![image("picture", ColorSpace::Grayscale)];
    let error = pipeline::link(pipeline(vec![first, second]))
        .expect_err("an RGB image for a grayscale input");
    assert!(error.to_string().starts_with("stage `think` expects `picture` as "), "{error}");
}

#[test]
fn linking_exposes_classifier_outputs_of_inner_stage() {
    let first = stage(
        "look",
        "func main<ios17>(tensor<fp32, [2]> x) { \
         tensor<fp32, [2]> scores = softmax(x = x, axis = int32(0)); \
         string label, dict<string, fp64> odds = classify(probabilities = scores, \
         classes = list<string, 2>([string(\"cat\"), string(\"dog\")])); } -> (scores, label, odds);",
    );
    let second = stage(
        "think",
        "func main<ios17>(tensor<fp32, [2]> scores) { \
         tensor<fp32, [2]> y = square(x = scores); } -> (y);",
    );
    let mut both = pipeline(vec![first.clone(), second]);
    both.kind = PipelineKind::Classifier;
    both.description.outputs.extend(first.model.description.outputs[1..].iter().cloned());
    both.description.predicted_feature_name = "label".to_owned();
    both.description.predicted_probabilities_name = "odds".to_owned();
    let model = pipeline::link(both.clone()).expect("linked");
    verify(&model).unwrap_or_else(|report| panic!("{report}"));
    let function = &model.program.functions[0];
    let names: Vec<_> = function.outputs().iter().map(|&id| &function.value(id).name).collect();
    assert_eq!(names, ["y", "label", "odds"]);

    // Packages support classifier pipelines; their compiled format is unknown.
    let directory = tempfile::tempdir().expect("temporary directory");
    let path = directory.path().join("both.mlpackage");
    package::write_pipeline(&path, &both, &Default::default()).expect("written");
    assert_eq!(package::read_pipeline(&path).expect("readable"), Some(both.clone()));
    let error =
        compiled::write_pipeline(&path.with_extension("mlmodelc"), &both, &Default::default());
    assert_eq!(error.expect_err("refused").kind(), ErrorKind::Unwritable);
}

#[test]
fn linking_renames_colliding_values() {
    let body = |input: &str, output: &str| {
        format!(
            "func main<ios17>(tensor<fp32, [2]> {input}) {{ \
             tensor<fp32, [2]> t = abs(x = {input}); \
             bool c = const()[val = bool(true)]; \
             tensor<fp32, [2]> {output} = cond(pred = c) \
             () {{ tensor<fp32, [2]> y = sin(x = t); }} -> (y) \
             () {{ tensor<fp32, [2]> z = cos(x = t); }} -> (z); }} -> ({output});"
        )
    };
    let stages = vec![
        stage("one", &body("x", "middle")),
        stage("two", &body("middle", "middle_2")),
        stage("", &body("middle_2", "last")),
    ];
    let text = linked(pipeline(stages));
    for line in [
        "tensor<fp32, [2]> t = abs(x = x);",
        "tensor<fp32, [2]> two_t = abs(x = middle);",
        "tensor<fp32, [2]> model2_t = abs(x = middle_2);",
        "tensor<fp32, [2]> two_y = sin(x = two_t);",
        "tensor<fp32, [2]> last = cond(pred = model2_c)",
    ] {
        assert!(text.contains(line), "{line} in\n{text}");
    }
}

#[test]
fn rejects_unlinkable_pipelines() {
    let relu = |input: &str, output: &str| {
        stage(
            "relu",
            &format!(
                "func main<ios17>(tensor<fp32, [2]> {input}) {{ \
                 tensor<fp32, [2]> {output} = relu(x = {input}); }} -> ({output});"
            ),
        )
    };
    let refused = |pipeline: Pipeline| pipeline::link(pipeline).expect_err("refused").to_string();
    assert_eq!(
        refused(pipeline(vec![relu("x", "y"), relu("z", "w")])),
        "stage `relu` requires `z`, which neither the pipeline's inputs nor earlier stages provide"
    );
    assert_eq!(
        refused(pipeline(vec![relu("x", "y"), relu("y", "x")])),
        "the pipeline has both an input and an output `x`"
    );
    let mut unknown = pipeline(vec![relu("x", "y")]);
    unknown.description.outputs[0].name = "other".to_owned();
    assert_eq!(refused(unknown), "no stage computes the pipeline's output `other`");
    assert_eq!(refused(Pipeline::default()), "the pipeline has no stages");
    let wide = stage(
        "wide",
        "func main<ios17>(tensor<fp32, [3]> y) { tensor<fp32, [3]> z = relu(x = y); } -> (z);",
    );
    assert_eq!(
        refused(pipeline(vec![relu("x", "y"), wide])),
        "stage `wide` expects `y` as `tensor<fp32, [3]>`, got `tensor<fp32, [2]>`"
    );
    let directory = tempfile::tempdir().expect("temporary directory");
    let path = directory.path().join("none.mlmodelc");
    let error = compiled::write_pipeline(&path, &Pipeline::default(), &Default::default());
    assert_eq!(error.expect_err("refused").to_string(), "the pipeline has no stages");
}
