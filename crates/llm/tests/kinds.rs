//! Kinds of models, and their refusals.

use std::path::PathBuf;

use coremill_llm::{ErrorKind, ModelKind, tokenizer_of};

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../cli/tests/files").join(name)
}

#[test]
fn models_of_other_kinds_are_refused() {
    let kinds = [ModelKind::Text, ModelKind::Embedding, ModelKind::Speech];
    for (name, kind) in ["tiny", "tinybert", "tinywhisper"].into_iter().zip(kinds) {
        assert_eq!(ModelKind::of(file(name)), kind);
        for wanted in kinds {
            let checked = wanted.check(file(name));
            if wanted == kind {
                assert_eq!(checked, Ok(()));
                continue;
            }
            let error = checked.expect_err("refused");
            let expected = match kind {
                ModelKind::Text => format!("{name} is not {wanted}"),
                _ => format!("{name} is {kind}, not {wanted}"),
            };
            assert!(error.to_string().ends_with(&expected), "{error}");
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert!(error.hint().is_some());
        }
    }
}

#[test]
fn absent_files_are_left_to_readers() {
    for kind in [ModelKind::Text, ModelKind::Embedding, ModelKind::Speech] {
        assert_eq!(kind.check(file("absent.gguf")), Ok(()));
    }
}

#[test]
fn models_of_all_kinds_have_tokenizers() {
    for name in ["tiny", "tinybert", "tinywhisper"] {
        let tokenizer = tokenizer_of(file(name)).expect("a tokenizer");
        assert!(!tokenizer.encode("a cat", false).expect("ids").is_empty());
    }
}
