#![no_main]

#[path = "../src/executorch.rs"]
mod executorch;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    executorch::payload(data);
});
