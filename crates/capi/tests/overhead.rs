//! Overhead of a call through the C interface, measured with a model of one operation.
//!
//! The limit is 20 µs, in a release build; `cargo test --release -p coremill-capi --test overhead -- --nocapture` prints
//! the measured time. Debug builds do not optimize the interface, so their limit is ten times as high.
#![expect(unsafe_code, reason = "calls a C function")]

mod common;

use std::time::{Duration, Instant};

use common::*;
use coremill_capi::method::*;
use coremill_capi::model::*;
use coremill_capi::*;

const LIMIT: Duration = Duration::from_micros(if cfg!(debug_assertions) { 200 } else { 20 });

#[test]
fn call_overhead_stays_under_limit() {
    let payload = payload(TWICE);
    let options = [CoremillOption { key: c"threads".as_ptr(), value: c"1".as_ptr() }];
    let (mut model, mut method) = (CoremillModel { id: 0 }, CoremillMethod { id: 0 });
    // SAFETY: the bytes outlive the model, and the strings are NUL-terminated.
    unsafe {
        let bytes = bytes(&payload);
        ok(coremill_model_load_bytes(bytes, std::ptr::null(), options.as_ptr(), 1, &mut model));
        ok(coremill_method_load(model, std::ptr::null(), &mut method));
    }
    let (mut x, mut y) = ([1.0f32; 6], [0.0f32; 6]);
    let input = [tensor(&mut x, FLOAT, &[2, 3])];
    let mut output = [tensor(&mut y, FLOAT, &[2, 3])];
    let mut least = Duration::MAX;
    // Take the minimum of many runs, because other processes slow down some of them.
    for _ in 0..200 {
        let start = Instant::now();
        for _ in 0..10 {
            ok(run(method, &input, &mut output));
        }
        least = least.min(start.elapsed() / 10);
    }
    println!("a call of one operation takes {least:?}; the limit is {LIMIT:?}");
    assert!(least < LIMIT, "a call takes {least:?}; the limit is {LIMIT:?}");
    assert_eq!(y, [2.0; 6]);
    ok(coremill_method_free(method));
    ok(coremill_model_free(model));
}
