//! Runs the checks of the fuzz targets on the seeds in the repository, including every input that ever failed them.

#[path = "../../../fuzz/src/language.rs"]
mod language;
#[path = "../../../fuzz/src/seeds.rs"]
mod seeds;

#[test]
fn gguf_seeds_do_not_panic() {
    seeds::run(env!("CARGO_MANIFEST_DIR"), "gguf", language::gguf);
}

#[test]
fn tokenizer_seeds_do_not_panic() {
    seeds::run(env!("CARGO_MANIFEST_DIR"), "tokenizer", language::tokenizer);
}

#[test]
fn chat_template_seeds_do_not_panic() {
    seeds::run(env!("CARGO_MANIFEST_DIR"), "template", language::template);
}
