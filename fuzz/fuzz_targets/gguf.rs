#![no_main]

#[path = "../src/language.rs"]
#[allow(dead_code, reason = "each target uses one check of them")]
mod language;

libfuzzer_sys::fuzz_target!(|data: &[u8]| language::gguf(data));
