#![no_main]

#[path = "../src/interface.rs"]
mod interface;
#[path = "../src/payloads.rs"]
mod payloads;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    interface::calls(data);
});
