#![no_main]

#[path = "../src/archive.rs"]
mod archive;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    archive::archive(data);
});
