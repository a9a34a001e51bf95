//! Runs copy neither inputs nor outputs, and loads do not leak, measured by counting allocated bytes.
#![expect(unsafe_code, reason = "calls C functions, and counts allocated bytes")]

mod common;
mod counting;

use std::sync::Mutex;
use std::sync::atomic::Ordering;

use common::*;
use coremill_capi::method::*;
use coremill_capi::model::*;
use counting::{ALLOCATED, IN_USE};

/// Serializes the tests, as allocations are counted per process.
static ALONE: Mutex<()> = Mutex::new(());

/// A chain of operations with large inputs, outputs and intermediate values.
const LARGE: &str = "
    program(1.3) {
        func main<ios17>(tensor<fp32, [1024, 1024]> x) {
            tensor<fp32, [1024, 1024]> e = exp(x = x);
            tensor<fp32, [1024, 1024]> s = softmax(x = e, axis = int32(1));
            tensor<fp32, [1048576]> y = reshape(x = s, shape = tensor<int32, [1]>([1048576]));
        } -> (y);
    }
";

#[test]
fn run_does_not_copy_inputs_or_outputs() {
    let _alone = ALONE.lock();
    let payload = payload(LARGE);
    let method = method(load(&payload));
    let mut x: Vec<f32> = (0..1 << 20).map(|index| (index % 997) as f32 / 997.0).collect();
    let mut y = vec![0.0f32; 1 << 20];
    let mut output = tensor(&mut y, FLOAT, &[1 << 20]);
    let input = tensor(&mut x, FLOAT, &[1024, 1024]);
    // The first run creates a plan.
    ok(run(method, &[input], std::slice::from_mut(&mut output)));
    let before = ALLOCATED.load(Ordering::Relaxed);
    ok(run(method, &[input], std::slice::from_mut(&mut output)));
    let allocated = ALLOCATED.load(Ordering::Relaxed) - before;
    assert!(
        allocated < 512 << 10,
        "a run allocates {allocated} bytes; each tensor has {}",
        4 << 20
    );
    let sums: Vec<f32> = y.chunks(1024).map(|row| row.iter().sum()).collect();
    assert!(sums.iter().all(|sum| (sum - 1.0).abs() < 1e-4), "each row must sum to 1");
    ok(coremill_method_free(method));
}

#[test]
fn load_and_unload_cycles_do_not_leak_memory() {
    let _alone = ALONE.lock();
    let payload = payload(COUNTER);
    let cycle = || {
        let model = load(&payload);
        let method = method(model);
        let (mut x, mut y) = ([1.0f32, 2.0], [0.0f32; 2]);
        let mut output = tensor(&mut y, FLOAT, &[2]);
        ok(run(method, &[tensor(&mut x, FLOAT, &[2])], std::slice::from_mut(&mut output)));
        assert_eq!(y, x);
        ok(coremill_method_free(method));
        ok(coremill_model_free(model));
    };
    let cycles: usize =
        std::env::var("COREMILL_CYCLES").map_or(200, |cycles| cycles.parse().expect("a number"));
    (0..20).for_each(|_| cycle());
    let before = IN_USE.load(Ordering::Relaxed);
    (0..cycles).for_each(|_| cycle());
    let leaked = IN_USE.load(Ordering::Relaxed) - before;
    assert!(leaked.unsigned_abs() < 16 << 10, "{cycles} loads and unloads leak {leaked} bytes");
}
