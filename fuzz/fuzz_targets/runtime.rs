#![no_main]

#[path = "../src/methods.rs"]
mod methods;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    match data.split_first() {
        Some((0..8, rest)) => methods::program(rest),
        Some((_, rest)) => methods::methods(rest),
        None => false,
    };
});
