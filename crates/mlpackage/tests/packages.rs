//! Round trips of packages written by coremltools, and the handling of other files in packages.
//!
//! `oracle/corpora/make_golden.py` generates `packages/`. The oracle tests check that coremltools accepts the output.

#[path = "support/files.rs"]
mod files;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use coremill_mil::ir::{Binding, ConstantData, OpId};
use coremill_mil::model::{
    ExtraFile, FeatureType, ImageSizes, ManifestItem, Model, ShapeFlexibility,
};
use coremill_mlpackage::compiled;
use coremill_mlpackage::package::{self, ErrorKind, TreeFile, VirtualDirectory, WriteOptions};
use coremill_tensor::Buffer;
use coremill_verify::verify;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/packages").join(name)
}

fn all_golden() -> Vec<PathBuf> {
    let found = fs::read_dir(golden("")).expect("the directory of packages");
    let mut paths: Vec<PathBuf> = found.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    assert!(paths.len() >= 15, "packages are missing");
    paths
}

/// The contents of every file below a directory.
fn files(root: &Path) -> BTreeMap<String, Vec<u8>> {
    files::files(root, |bytes| bytes)
}

fn write(path: &Path, model: &Model) {
    try_write(path, model, &WriteOptions::default()).expect("written");
}

fn try_write(path: &Path, model: &Model, options: &WriteOptions) -> Result<(), package::Error> {
    let verified = verify(model).unwrap_or_else(|report| panic!("{}", report.summary()));
    package::write(path, &verified, options)
}

/// A copy of a package for tests that modify it.
fn copy(name: &str) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("temporary directory");
    let path = directory.path().join(name);
    for (name, bytes) in files(&golden(name)) {
        let file = path.join(name);
        fs::create_dir_all(file.parent().expect("below")).expect("a directory");
        fs::write(file, bytes).expect("a file");
    }
    (directory, path)
}

#[test]
fn golden_packages_round_trip() {
    let directory = tempfile::tempdir().expect("temporary directory");
    for path in all_golden() {
        let name = path.file_name().expect("a name");
        let model = package::read(&path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        let again = directory.path().join(name);
        write(&again, &model);
        assert_eq!(package::read(&again).expect("sound"), model, "{path:?}");
        // Unchanged weights keep their locations.
        let weights = "Data/com.apple.CoreML/weights/weight.bin";
        let (before, after) = (files(&path), files(&again));
        assert_eq!(before.get(weights), after.get(weights), "{path:?}");
        assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());

        // Writing the result again produces identical bytes.
        let third = directory.path().join("third.mlpackage");
        write(&third, &package::read(&again).expect("sound"));
        assert_eq!(files(&third), after, "{path:?}");
    }
}

#[test]
fn new_weight_layout_preserves_weights() {
    let directory = tempfile::tempdir().expect("temporary directory");
    for path in all_golden() {
        let mut model = package::read(&path).expect("sound");
        let before = model.clone();
        clear_weight_places(&mut model);
        let again = directory.path().join(path.file_name().expect("a name"));
        write(&again, &model);
        assert_eq!(package::read(&again).expect("sound"), before, "{path:?}");
    }
}

/// The contents of a tree's files, with their parts joined.
fn joined(tree: &VirtualDirectory) -> Vec<(String, Buffer)> {
    let join = |file: &TreeFile| {
        let parts: Vec<&[u8]> = file.parts.iter().map(Buffer::as_bytes).collect();
        (file.path.clone(), Buffer::from(parts.concat()))
    };
    tree.files.iter().map(join).collect()
}

/// The contents of a tree, in the format of [`files`].
fn bytes_of(tree: &[(String, Buffer)]) -> BTreeMap<String, Vec<u8>> {
    tree.iter().map(|(path, content)| (path.clone(), content.as_bytes().to_vec())).collect()
}

#[test]
fn virtual_trees_match_written_directories() {
    let directory = tempfile::tempdir().expect("temporary directory");
    for path in all_golden() {
        let mut model = package::read(&path).expect("sound");
        for fresh in [false, true] {
            if fresh {
                clear_weight_places(&mut model);
            }
            let verified = verify(&model).unwrap_or_else(|report| panic!("{}", report.summary()));
            let package = directory.path().join("model.mlpackage");
            package::write(&package, &verified, &WriteOptions::default()).expect("written");
            let tree = package::to_tree(&verified).expect("a tree");
            let tree_files = joined(&tree);
            assert_eq!(bytes_of(&tree_files), files(&package), "{path:?}");
            for empty in &tree.empty_directories {
                let mut entries = fs::read_dir(package.join(empty)).expect("a directory");
                assert!(entries.next().is_none(), "{path:?}: {empty}");
            }
            let read = package::from_tree(tree_files).expect("sound");
            assert_eq!(read, package::read(&package).expect("sound"), "{path:?}");

            let compiled = directory.path().join("model.mlmodelc");
            compiled::write(&compiled, &verified, &Default::default()).expect("written");
            let tree = joined(&compiled::to_tree(&verified, "model").expect("a tree"));
            assert_eq!(bytes_of(&tree), files(&compiled), "{path:?}");
            let read = compiled::from_tree(tree).expect("sound");
            assert_eq!(read, compiled::read(&compiled).expect("sound"), "{path:?}");
        }
    }
}

#[test]
fn tree_content_hash_identifies_model() {
    let content = |name: &str| {
        let model = package::read(&golden(name)).expect("sound");
        let verified = verify(&model).unwrap_or_else(|report| panic!("{}", report.summary()));
        package::to_tree(&verified).expect("a tree").content
    };
    let names: Vec<String> = all_golden()
        .iter()
        .map(|path| path.file_name().expect("a name").to_string_lossy().into_owned())
        .collect();
    let contents: Vec<_> = names.iter().map(|name| content(name)).collect();
    assert_eq!(contents[0], content(&names[0]));
    let mut distinct = contents.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), contents.len());
}

#[test]
fn rejects_trees_with_unsafe_paths() {
    for path in ["../Manifest.json", "/Manifest.json", "a//b", "C:/x", ""] {
        let files = || [(path.to_owned(), Buffer::from(Vec::new()))];
        assert_eq!(package::from_tree(files()).expect_err(path).kind(), ErrorKind::Package);
        assert_eq!(compiled::from_tree(files()).expect_err(path).kind(), ErrorKind::Package);
    }
    let error = package::from_tree([]).expect_err("an empty tree");
    assert_eq!(error.message(), "the model contains no `Manifest.json`");
    let error = compiled::from_tree([]).expect_err("an empty tree");
    assert!(error.message().starts_with("the model is not a compiled model"), "{error}");
}

/// Removes the locations of all weights, as if the weights were new.
fn clear_weight_places(model: &mut Model) {
    for function in &mut model.program.functions {
        for index in 0..function.op_count() {
            let op = function.op_mut(OpId::from_index(index));
            let literals = op.inputs.iter_mut().flat_map(|input| &mut input.bindings);
            let literals = literals.filter_map(|binding| match binding {
                Binding::Literal(constant) => Some(constant),
                Binding::Value(_) => None,
            });
            for constant in literals.chain(op.attributes.values_mut()) {
                if let ConstantData::Weight(weight) = &mut constant.data {
                    weight.place = None;
                    let data = weight.data.take().expect("read");
                    weight.data = Some(Buffer::from(data.as_bytes().to_vec()));
                }
            }
        }
    }
}

#[test]
fn reads_features_states_functions_and_metadata() {
    let read = |name: &str| package::read(&golden(name)).expect("sound");
    let state = read("accumulator-ios18.mlpackage");
    assert!(matches!(state.description.states[0].ty, FeatureType::State(_)));

    let several = read("prompt_and_step-ios18.mlpackage");
    assert!(several.signatures().len() >= 2);
    assert!(several.signature(several.default_function_name()).is_some());
    assert_eq!(several.program.functions.len(), several.signatures().len());

    let image = read("image_rgb-ios15.mlpackage");
    let image = image.description.inputs[0].ty.image().expect("an image");
    assert_eq!(image.color_space.channels(), Some(3));
    assert_eq!(image.sizes, ImageSizes::Fixed);

    let classifier = read("classifier_names-ios15.mlpackage");
    let signature = classifier.signature("main").expect("described");
    let label = signature.predicted_feature_name.expect("a classifier");
    assert_eq!(signature.output(label).expect("described").ty, FeatureType::String);

    let flexible = |name: &str| match &read(name).description.inputs[0].ty {
        FeatureType::MultiArray(array) => array.flexibility.clone(),
        other => panic!("found {other:?}"),
    };
    assert!(matches!(flexible("ranged-ios15.mlpackage"), ShapeFlexibility::Ranged(_)));
    assert!(matches!(flexible("enumerated-ios16.mlpackage"), ShapeFlexibility::Enumerated(_)));

    let metadata = read("metadata-ios17.mlpackage").description.metadata.expect("metadata");
    assert!(!metadata.author.is_empty() && !metadata.license.is_empty());
    assert!(metadata.user_defined("com.github.apple.coremltools.version").is_some());
}

#[test]
fn reads_bare_model_file_with_adjacent_weights() {
    let path = golden("convolutions-ios15.mlpackage");
    let package = package::read(&path).expect("sound");
    let file = path.join("Data/com.apple.CoreML/model.mlmodel");
    let mut bare = package::read(&file).expect("sound");
    bare.extra = package.extra.clone();
    assert_eq!(bare, package);

    // A model that is read without its weights has their locations but not their elements.
    let model = package::from_bytes(&fs::read(file).expect("a file")).expect("sound");
    assert_ne!(model.program, package.program);
    let error = package::weights::Layout::plan(&model.program).err();
    let error = error.expect("weights without elements");
    assert_eq!(error.kind(), ErrorKind::Unwritable);
    assert!(error.message().contains("read without its elements"), "{error}");
}

#[test]
fn preserves_foreign_files_and_manifest_items() {
    let (directory, path) = copy("ranged-ios15.mlpackage");
    let large = vec![3; 200_000];
    fs::create_dir_all(path.join("Data/com.example")).expect("a directory");
    fs::write(path.join("Data/com.example/large"), &large).expect("a file");
    fs::write(path.join("notes.txt"), "notes").expect("a file");
    let manifest = fs::read_to_string(path.join("Manifest.json")).expect("a manifest");
    let item = r#""itemInfoEntries": {
        "00000000-0000-4000-8000-000000000000": {"author": "com.example", "description": "d",
            "name": "n", "path": "com.example/large"},"#;
    let manifest = manifest.replace("\"itemInfoEntries\": {", item);
    fs::write(path.join("Manifest.json"), manifest).expect("a manifest");

    let model = package::read(&path).expect("sound");
    let again = directory.path().join("again.mlpackage");
    write(&again, &model);
    let written = files(&again);
    assert_eq!(written["notes.txt"], b"notes");
    assert_eq!(written["Data/com.example/large"], large);
    let manifest = String::from_utf8_lossy(&written["Manifest.json"]);
    assert!(manifest.contains("00000000-0000-4000-8000-000000000000"), "{manifest}");
    assert_eq!(package::read(&again).expect("sound"), model);
}

#[test]
fn root_identifier_depends_only_on_content() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let mut model = package::read(&golden("ranged-ios15.mlpackage")).expect("sound");
    let root = |name: &str, model: &Model| {
        let path = directory.path().join(name);
        write(&path, model);
        let manifest = fs::read(path.join("Manifest.json")).expect("a manifest");
        let manifest: serde_json::Value = serde_json::from_slice(&manifest).expect("JSON");
        manifest["rootModelIdentifier"].as_str().expect("an identifier").to_owned()
    };
    let first = root("a.mlpackage", &model);
    assert_eq!(root("b.mlpackage", &model), first);
    model.description.metadata.get_or_insert_default().author = "someone else".into();
    assert_ne!(root("c.mlpackage", &model), first);
}

#[test]
fn write_replaces_only_packages() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let model = package::read(&golden("ranged-ios15.mlpackage")).expect("sound");
    let other = package::read(&golden("image_rgb-ios15.mlpackage")).expect("sound");
    let path = directory.path().join("a.mlpackage");
    write(&path, &model);
    // Leftovers of a killed writer do not interfere and are removed.
    let leftover = directory.path().join(".a.mlpackage.coremill-new/Data");
    fs::create_dir_all(&leftover).expect("a directory");
    fs::write(leftover.join("half"), "half").expect("a file");
    write(&path, &other);
    assert_eq!(package::read(&path).expect("sound"), other);
    let left: Vec<_> = fs::read_dir(directory.path()).expect("a directory").collect();
    assert_eq!(left.len(), 1, "{left:?}");

    let error = try_write(&path.join("b/c.mlpackage"), &model, &WriteOptions::default());
    let error = error.expect_err("a missing parent directory").to_string();
    assert!(
        error.ends_with(&format!("{}: no such directory", path.join("b").display())),
        "{error}"
    );

    let documents = directory.path().join("documents");
    fs::create_dir(&documents).expect("a directory");
    fs::write(documents.join("thesis"), "years of work").expect("a file");
    for target in [documents.clone(), documents.join("thesis")] {
        let error = try_write(&target, &model, &WriteOptions::default());
        assert_eq!(error.expect_err("refused").kind(), ErrorKind::Unwritable);
    }
    assert_eq!(fs::read_to_string(documents.join("thesis")).expect("still there"), "years of work");
}

#[test]
fn overwrites_own_source_package() {
    let (_directory, path) = copy("convolutions-ios15.mlpackage");
    let mut model = package::read(&path).expect("sound");
    model.description.metadata.get_or_insert_default().version = "2".into();
    try_write(&path, &model, &WriteOptions { durable: true }).expect("written");
    assert_eq!(package::read(&path).expect("sound"), model);
}

#[test]
fn rejected_write_leaves_no_files() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let path = directory.path().join("a.mlpackage");
    let base = package::read(&golden("ranged-ios15.mlpackage")).expect("sound");
    let file = |path: &str| ExtraFile { path: path.into(), content: Buffer::from(vec![1]) };
    let mut cases: Vec<(&str, Model, &str)> = Vec::new();
    for (name, message) in [
        ("../out", "has a component `.` or `..`"),
        ("/out", "is absolute"),
        ("manifest.JSON", "would replace the manifest"),
        ("Data/com.apple.CoreML/model.mlmodel", "would replace a file of the model"),
    ] {
        let mut model = base.clone();
        model.extra.files.push(file(name));
        cases.push((name, model, message));
    }
    let mut model = base.clone();
    model.extra.items.push(ManifestItem { path: "../x".into(), ..ManifestItem::default() });
    cases.push(("item", model, "has a component `.` or `..`"));
    for (name, model, message) in cases {
        let error = try_write(&path, &model, &WriteOptions::default()).expect_err(name);
        assert_eq!(error.kind(), ErrorKind::Unwritable, "{name}");
        assert!(error.to_string().contains(message), "{name}: {error}");
        let left = fs::read_dir(directory.path()).expect("a directory").count();
        assert_eq!(left, 0, "{name}");
    }
}

#[test]
fn rejects_damaged_packages() {
    type Damage = fn(&Path);
    fn manifest(path: &Path, from: &str, to: &str) {
        let file = path.join("Manifest.json");
        let text = fs::read_to_string(&file).expect("a manifest");
        assert!(text.contains(from));
        fs::write(file, text.replace(from, to)).expect("a manifest");
    }
    fn shorten(path: &Path, by: u64) {
        let file = fs::OpenOptions::new().write(true).open(path).expect("a file");
        file.set_len(file.metadata().expect("metadata").len() - by).expect("shortened");
    }
    const MODEL: &str = "Data/com.apple.CoreML/model.mlmodel";
    const WEIGHTS: &str = "Data/com.apple.CoreML/weights/weight.bin";
    let cases: [(&str, Damage, ErrorKind, &str); 9] = [
        (
            "no manifest",
            |path| fs::remove_file(path.join("Manifest.json")).expect("removed"),
            ErrorKind::NotAModel,
            "contains no `Manifest.json`",
        ),
        (
            "a path outside the package",
            |path| manifest(path, "com.apple.CoreML/model.mlmodel", "../../model.mlmodel"),
            ErrorKind::Manifest,
            "has a component `.` or `..`",
        ),
        (
            "a missing item",
            |path| manifest(path, "com.apple.CoreML/weights", "com.apple.CoreML/elsewhere"),
            ErrorKind::Manifest,
            "the package has no file",
        ),
        (
            "a model that is a directory",
            |path| manifest(path, "com.apple.CoreML/model.mlmodel", "com.apple.CoreML"),
            ErrorKind::Manifest,
            "is a directory",
        ),
        (
            "a truncated model",
            |path| shorten(&path.join(MODEL), 1),
            ErrorKind::ModelFile,
            "bytes, but only",
        ),
        (
            "truncated weights",
            |path| shorten(&path.join(WEIGHTS), 1),
            ErrorKind::Weights,
            "outside the file",
        ),
        (
            "weights without a header",
            |path| fs::write(path.join(WEIGHTS), [0; 63]).expect("a file"),
            ErrorKind::Weights,
            "has a header of 64 bytes",
        ),
        (
            "no weights",
            |path| fs::remove_file(path.join(WEIGHTS)).expect("removed"),
            ErrorKind::Weights,
            "the package has no file `weights/weight.bin`",
        ),
        (
            "too many directories",
            |path| fs::create_dir_all(path.join("a/".repeat(40))).expect("directories"),
            ErrorKind::Limit,
            "nested deeper",
        ),
    ];
    for (name, damage, kind, message) in cases {
        let (_directory, path) = copy("convolutions-ios15.mlpackage");
        damage(&path);
        let error = package::read(&path).expect_err(name);
        assert_eq!(error.kind(), kind, "{name}: {error}");
        assert!(error.to_string().contains(message), "{name}: {error}");
    }
    let error =
        package::read(Path::new("/nonexistent/a.mlpackage")).expect_err("a missing package");
    assert_eq!(error.kind(), ErrorKind::NotAModel);
}

#[cfg(unix)]
#[test]
fn rejects_symlinks_anywhere_in_package() {
    for part in [
        "Manifest.json",
        "Data",
        "Data/com.apple.CoreML",
        "Data/com.apple.CoreML/model.mlmodel",
        "Data/com.apple.CoreML/weights",
        "Data/com.apple.CoreML/weights/weight.bin",
    ] {
        let (directory, path) = copy("convolutions-ios15.mlpackage");
        let moved = directory.path().join("moved");
        fs::rename(path.join(part), &moved).expect("moved");
        std::os::unix::fs::symlink(&moved, path.join(part)).expect("a link");
        let error = package::read(&path).expect_err(part);
        assert_eq!(error.kind(), ErrorKind::Package, "{part}");
        assert!(error.message().contains("a symbolic link"), "{part}: {error}");
        assert_eq!(error.file(), Some(part));

        // Reading only the model file does not follow a symbolic link to the weights either.
        if let Some(below) = part.strip_prefix("Data/com.apple.CoreML/weights") {
            let model = path.join("Data/com.apple.CoreML/model.mlmodel");
            let error = package::read(&model).expect_err(part);
            assert!(error.message().contains("a symbolic link"), "{below}: {error}");
        }
    }
}

#[cfg(unix)]
#[test]
fn accepts_symlink_to_package() {
    let (directory, path) = copy("ranged-ios15.mlpackage");
    let link = directory.path().join("link.mlpackage");
    std::os::unix::fs::symlink(&path, &link).expect("a link");
    assert_eq!(package::read(&link).expect("sound"), package::read(&path).expect("sound"));
}
