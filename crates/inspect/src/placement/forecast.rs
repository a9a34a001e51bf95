//! Obstacles, costs and the cheapest path put together.

use coremill_device::{Chip, END_MS, Engine, SEGMENT_MS, SWITCH_MS, cost_class, costs};
use coremill_mil::infer::{Analysis, analyze};
use coremill_mil::ir::{BlockId, Function, OpId};
use coremill_mil::model::{Model, Signature};

use super::obstacle::{Context, Obstacle, obstacle, other_engines};
use super::path::{Times, cheapest};
use super::plan::{ComputePlan, Device, Estimate, ForecastNote, PlannedOperation, Reason};

/// Accuracy of the study's cost model.
pub const ACCURACY: &str = "with Core ML's own times, the cost model reproduces 440 of 482 plans recorded on M4 with \
                            macOS 27.0.1; the times here are scaled from a dozen published times";

/// Options of a forecast.
#[derive(Clone, Copy, Debug)]
pub struct ForecastOptions {
    /// The chip.
    pub chip: &'static Chip,
    /// Whether Core ML may use the Neural Engine.
    pub neural_engine: bool,
}

impl Default for ForecastOptions {
    /// The chip of the study, with its Neural Engine.
    fn default() -> ForecastOptions {
        ForecastOptions { chip: Chip::of_study(), neural_engine: true }
    }
}

/// Where Core ML would run the operations of a model: a forecast, never a record.
///
/// Times of GPUs are not published: operations that are not on the Neural Engine are forecast on the CPU.
pub fn forecast(model: &Model, options: &ForecastOptions) -> ComputePlan {
    let functions = model.program.functions.iter();
    let operations = functions.flat_map(|function| {
        let (analysis, _) = analyze(function);
        let signature = model.signature(&function.name);
        of_function(function, &analysis, signature, options)
    });
    let mut operations: Vec<_> = operations.collect();
    set_costs(&mut operations);
    let note = ForecastNote { chip: options.chip.name.to_owned(), accuracy: ACCURACY.to_owned() };
    ComputePlan { forecast: Some(note), ..ComputePlan::new("", "", operations) }
}

fn of_function(
    function: &Function,
    analysis: &Analysis,
    signature: Option<Signature<'_>>,
    options: &ForecastOptions,
) -> Vec<PlannedOperation> {
    let context = Context { function, analysis, signature, chip: options.chip };
    let mut operations = Vec::new();
    let mut times = Vec::new();
    let mut eligible = Vec::new();
    for (id, block) in in_program_order(function) {
        let op = function.op(id);
        let (engines, obstacle, time) = match op.kind() {
            None => {
                let obstacle = Obstacle::new(
                    Reason::NoPath,
                    "MIL does not declare the operation",
                    "replace it",
                );
                (vec![Engine::Cpu], obstacle, Times { cpu: 0.0, neural_engine: None })
            }
            Some(kind) => {
                let subject = context.subject(op, kind);
                if !subject.runs() {
                    continue;
                }
                let found = match (options.neural_engine, block == function.body) {
                    (false, _) => Obstacle::new(
                        Reason::NotAllowed,
                        "the compute units exclude the Neural Engine",
                        "allow the Neural Engine",
                    ),
                    (true, false) => Obstacle::new(
                        Reason::NoPath,
                        "is inside a loop or a branch",
                        "let the caller branch or loop",
                    ),
                    (true, true) => obstacle(&subject),
                };
                let (row, work) = (costs(cost_class(kind.name())), subject.work());
                let neural_engine = row.neural_engine.milliseconds(work);
                let time = Times {
                    cpu: row.cpu.milliseconds(work),
                    neural_engine: found.is_none().then_some(neural_engine),
                };
                (other_engines(&subject), found, time)
            }
        };
        let name = |&output: &_| function.value(output).name.clone();
        let supported = engines.into_iter().map(device);
        let with_engine = obstacle.is_none().then_some(Device::NeuralEngine);
        operations.push(PlannedOperation {
            function: function.name.clone(),
            operator: format!("{}.{}", function.opset.tag(), op.type_name()),
            outputs: op.outputs.iter().map(name).collect(),
            supported: supported.chain(with_engine).collect(),
            estimate: Some(Estimate { cpu: Some(time.cpu), neural_engine: time.neural_engine }),
            ..PlannedOperation::default()
        });
        times.push(time);
        eligible.push(obstacle);
    }
    place(&mut operations, &times, eligible);
    operations
}

/// Sets the device of each operation, and the reason for operations off the Neural Engine.
fn place(operations: &mut [PlannedOperation], times: &[Times], obstacles: Vec<Option<Obstacle>>) {
    let path = cheapest(times);
    let savings = savings(times, &path);
    for (index, (operation, obstacle)) in operations.iter_mut().zip(obstacles).enumerate() {
        let device = if path[index] { Device::NeuralEngine } else { Device::Cpu };
        operation.preferred = Some(device);
        let obstacle = obstacle.or_else(|| {
            (!path[index]).then(|| {
                let whole = savings[index].covers_start;
                let needed = if whole { SEGMENT_MS + END_MS } else { SEGMENT_MS + 2.0 * SWITCH_MS };
                let detail = format!(
                    "the Neural Engine would save {:.3} ms here; a segment must save {needed} ms",
                    savings[index].milliseconds
                );
                let advice = "leave it on the CPU, or increase the work per run, for instance with a larger batch";
                Obstacle::new(Reason::NotWorthIt, detail, advice)
            })?
        });
        if let Some(Obstacle { reason, detail, advice }) = obstacle {
            operation.reason = Some(reason);
            operation.detail = Some(detail);
            operation.advice = Some(advice.into_owned());
        }
    }
}

/// Time that the Neural Engine would save in a stretch of supported operations that the path leaves on the CPU.
#[derive(Clone, Copy, Default)]
struct Saving {
    milliseconds: f64,
    /// Whether the stretch begins the graph, so that no switch precedes it.
    covers_start: bool,
}

/// By operation, the saving of the stretch that it is in.
fn savings(times: &[Times], path: &[bool]) -> Vec<Saving> {
    let mut savings = vec![Saving::default(); times.len()];
    let left_out = |index: usize| times[index].neural_engine.is_some() && !path[index];
    let mut start = 0;
    while start < times.len() {
        let length = (start..times.len()).take_while(|&index| left_out(index)).count();
        let stretch = &times[start..start + length];
        let saved = |time: &Times| time.cpu - time.neural_engine.unwrap_or(time.cpu);
        let milliseconds = stretch.iter().map(saved).sum::<f64>().max(0.0);
        savings[start..start + length].fill(Saving { milliseconds, covers_start: start == 0 });
        start += length.max(1);
    }
    savings
}

/// All operations in program order, with nested blocks after the operation that runs them.
fn in_program_order(function: &Function) -> Vec<(OpId, BlockId)> {
    let ops = |block: BlockId| function.block(block).ops.iter().rev().map(move |&op| (op, block));
    let mut pending: Vec<_> = ops(function.body).collect();
    let mut ordered = Vec::new();
    while let Some((op, block)) = pending.pop() {
        ordered.push((op, block));
        for &inner in function.op(op).blocks.iter().rev() {
            pending.extend(ops(inner));
        }
    }
    ordered
}

/// Sets the share that each operation has in the estimated time of all.
fn set_costs(operations: &mut [PlannedOperation]) {
    let time = |operation: &PlannedOperation| {
        let estimate = operation.estimate?;
        match operation.preferred? {
            Device::NeuralEngine => estimate.neural_engine,
            _ => estimate.cpu,
        }
    };
    let total: f64 = operations.iter().filter_map(time).sum();
    for operation in operations {
        operation.cost = time(operation).filter(|_| total > 0.0).map(|time| time / total);
    }
}

fn device(engine: Engine) -> Device {
    match engine {
        Engine::Cpu => Device::Cpu,
        Engine::Gpu => Device::Gpu,
        Engine::NeuralEngine => Device::NeuralEngine,
    }
}
