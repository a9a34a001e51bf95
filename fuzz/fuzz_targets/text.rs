#![no_main]

#[path = "../src/checks.rs"]
#[allow(dead_code, reason = "each target uses only one of these checks")]
mod checks;

libfuzzer_sys::fuzz_target!(|data: &[u8]| checks::text(data));
