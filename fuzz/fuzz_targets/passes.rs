#![no_main]

#[path = "../src/compare.rs"]
mod compare;
#[path = "../src/draw.rs"]
mod draw;
#[path = "../src/flexible.rs"]
mod flexible;
#[path = "../src/motifs.rs"]
mod motifs;
#[path = "../src/passes.rs"]
mod passes;
#[path = "../src/programs.rs"]
mod programs;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    passes::passes(data);
});
