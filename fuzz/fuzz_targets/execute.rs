#![no_main]

#[path = "../src/compare.rs"]
mod compare;
#[path = "../src/draw.rs"]
mod draw;
#[path = "../src/execute.rs"]
mod execute;
#[path = "../src/flexible.rs"]
mod flexible;
#[path = "../src/programs.rs"]
mod programs;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    execute::execute(data);
});
