//! Tests that planning and running take linear time in the number of operations.

use std::fmt::Write;
use std::time::Duration;

use coremill_engine::{Array, Engine, LoadOptions};
use coremill_mil::{model, text};
use coremill_tensor::DType;
use coremill_verify as verify;

/// Maximum ratio of times for four times as many operations; 16 would be quadratic.
const MOST: f64 = 9.0;

/// A chain of operations.
fn chain(count: usize) -> String {
    let mut body = String::new();
    let mut last = "x".to_owned();
    for at in 0..count {
        let operation = if at % 2 == 0 { "cos" } else { "sin" };
        writeln!(body, "tensor<fp32, [8]> v{at} = {operation}(x = {last});").expect("it is text");
        last = format!("v{at}");
    }
    format!(
        "program(1.3)\n{{\n func main<ios17>(tensor<fp32, [8]> x) {{\n{body} }} -> ({last});\n}}"
    )
}

/// Operations on the same operand, with all results alive until they are concatenated.
fn side_by_side(count: usize) -> String {
    let mut body = String::new();
    for at in 0..count {
        writeln!(body, "tensor<fp32, [8]> v{at} = sin(x = x);").expect("it is text");
    }
    let values: Vec<String> = (0..count).map(|at| format!("v{at}")).collect();
    writeln!(
        body,
        "tensor<fp32, [{}]> y = concat(values = ({}), axis = int32(0), interleave = bool(false));",
        8 * count,
        values.join(", ")
    )
    .expect("it is text");
    format!("program(1.3)\n{{\n func main<ios17>(tensor<fp32, [8]> x) {{\n{body} }} -> (y);\n}}")
}

/// CPU time of this thread, which other processes do not affect.
#[cfg(unix)]
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

#[cfg(not(unix))]
fn processor_time() -> Duration {
    static START: std::sync::LazyLock<std::time::Instant> =
        std::sync::LazyLock::new(std::time::Instant::now);
    START.elapsed()
}

/// CPU time to plan and run a program: the minimum of five runs, each with a new engine, since
/// engines cache plans.
fn time(program: &str) -> Duration {
    let program = text::parse(program, &text::NoWeights).expect("it is MIL");
    let model = model::describe(program).expect("it is complete");
    let verified = verify::verify(&model).expect("it is sound");
    let options = LoadOptions { threads: 1, ..LoadOptions::default() };
    let once = || {
        let engine = Engine::load(&verified, &options).expect("it loads");
        let mut session = engine.session("main").expect("there is a function");
        let x = Array::floats(DType::Fp32, [8], vec![0.5; 8]);
        let start = processor_time();
        session.run(&[("x", x)]).expect("it runs");
        processor_time().saturating_sub(start)
    };
    (0..5).map(|_| once()).min().expect("five times")
}

#[test]
fn plan_and_run_time_is_linear_in_op_count() {
    for (name, program) in [("chain", chain as fn(usize) -> String), ("side by side", side_by_side)]
    {
        let [some, more] = [4_200, 16_800].map(|count| time(&program(count)).as_secs_f64());
        let ratio = more / some;
        println!("{name}: {:.0} and {:.0} ms, {ratio:.1}", some * 1e3, more * 1e3);
        assert!(ratio < MOST, "{name}: four times the operations take {ratio:.1} times as long");
    }
}
