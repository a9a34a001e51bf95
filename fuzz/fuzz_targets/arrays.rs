#![no_main]

#[path = "../src/arrays.rs"]
mod arrays;

libfuzzer_sys::fuzz_target!(|data: &[u8]| arrays::arrays(data));
