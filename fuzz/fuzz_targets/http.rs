#![no_main]

#[path = "../src/http.rs"]
mod http;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    http::requests(data);
});
