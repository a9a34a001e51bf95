#![no_main]

#[path = "../src/draw.rs"]
mod draw;
#[path = "../src/operators.rs"]
mod operators;

use std::sync::OnceLock;

use coremill_pt2::Schema;
use draw::Draw;

static OPERATORS: OnceLock<Vec<Schema>> = OnceLock::new();

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let operators = OPERATORS.get_or_init(operators::operators);
    let mut draw = Draw::new(data, data.len() as u64);
    let at = draw.below(256) << 8 | draw.below(256);
    operators::call(&operators[at % operators.len()], &mut draw);
});
