//! Text, embedding and speech models, and the errors if a model is opened as another kind.

use std::path::{Path, PathBuf};

use coremill_graph::Device;
use coremill_llm::{
    Bundle, Destination, Embedder, EmbeddingModel, EmbeddingOptions, Error, ErrorKind, ModelKind,
    SpeechOptions, Transcriber, tokenizer_of,
};

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../cli/tests/files").join(name)
}

/// Opens a model as the given kind.
fn open_as(kind: ModelKind, path: &Path) -> Result<(), Error> {
    match kind {
        ModelKind::Embedding => {
            Embedder::open(path, Device::Host, 1, &EmbeddingOptions::default()).map(drop)
        }
        ModelKind::Speech => {
            Transcriber::open(path, Device::Host, 1, &SpeechOptions::default()).map(drop)
        }
        _ => Bundle::open(path).map(drop),
    }
}

#[test]
fn rejects_source_models_of_another_kind_with_hint() {
    let kinds = [
        ("tiny", ModelKind::Text, "generate text with it"),
        ("tinybert", ModelKind::Embedding, "compute the embeddings of texts with it"),
        ("tinywhisper", ModelKind::Speech, "transcribe audio with it"),
    ];
    for (name, kind, purpose) in kinds {
        let path = file(name);
        assert_eq!(ModelKind::of(&path), kind);
        for (_, wanted, _) in kinds {
            let opened = open_as(wanted, &path);
            if wanted == kind {
                assert_eq!(opened, Ok(()));
                continue;
            }
            let error = opened.expect_err("refused");
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.hint().is_some_and(|hint| hint.ends_with(purpose)), "{error:?}");
        }
    }
}

#[test]
fn rejects_converted_models_of_another_kind() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = EmbeddingModel::open(file("tinybert")).expect("opens");
    let embedding = folder.path().join("embedding");
    let destination = Destination::of(&embedding, None).expect("a directory");
    let options = EmbeddingOptions::default();
    let companions = model.companions(&options).expect("a tokenizer");
    model.save(&destination, &companions, &options, false).expect("saves");
    for wanted in [ModelKind::Text, ModelKind::Speech] {
        let error = open_as(wanted, &embedding).expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("is an embedding model"), "{error}");
    }
    assert_eq!(open_as(ModelKind::Embedding, &embedding), Ok(()));
    assert!(tokenizer_of(embedding.join("model.mlpackage")).is_ok());
}

#[test]
fn reports_missing_file_for_every_model_kind() {
    for kind in [ModelKind::Text, ModelKind::Embedding, ModelKind::Speech] {
        let error = open_as(kind, &file("absent.gguf")).expect_err("a missing file");
        assert_eq!(error.kind(), ErrorKind::File, "{error}");
    }
}

#[test]
fn loads_tokenizer_of_every_model_kind() {
    for name in ["tiny", "tinybert", "tinywhisper"] {
        let tokenizer = tokenizer_of(file(name)).expect("a tokenizer");
        assert!(!tokenizer.encode("a cat", false).expect("ids").is_empty());
    }
}
