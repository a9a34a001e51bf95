#![no_main]

#[path = "../src/language.rs"]
#[allow(dead_code, reason = "each target uses only one of these checks")]
mod language;

libfuzzer_sys::fuzz_target!(|data: &[u8]| language::gguf(data));
