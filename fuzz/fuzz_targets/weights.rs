#![no_main]

#[path = "../src/checks.rs"]
#[allow(dead_code, reason = "each target uses one check of them")]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::weights(data));
