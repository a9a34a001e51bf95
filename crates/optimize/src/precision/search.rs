//! Search for the smallest set of operations that must use `fp32`.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use coremill_compiler::SourceMap;
use coremill_engine::Array;
use coremill_mil::ir::{Function, Op, Type, ValueId};
use coremill_mil::ops::OpKind;
use coremill_passes::{AnalyzedFunction, RescaleOutcome};
use coremill_tensor::{DType, Statistics};

use super::{ENOUGH_DB, Plan, Trial, exponents, is_enough};
use crate::error::Error;
use crate::trial::Machine;

/// Maximum number of operations to try one by one. Larger sets are tried in halves.
const ONE_BY_ONE: usize = 12;
/// Maximum number of bisections of the program.
const MAX_HALVES: usize = 32;

/// The operations of a program before precision is chosen.
#[derive(Clone, Debug, Default)]
pub(super) struct Graph {
    ops: Vec<Node>,
    by_name: HashMap<String, usize>,
    /// The first problem in a layer's weights, such as NaN.
    pub(super) unsound: Option<String>,
}

#[derive(Clone, Debug)]
struct Node {
    name: String,
    module: Option<String>,
    inputs: Vec<String>,
    /// Whether the operation computes with floats.
    has_floats: bool,
    /// Whether the operation only selects or moves elements, without rounding.
    is_exact: bool,
}

impl Graph {
    /// Adds the operations of a function.
    pub(super) fn add(&mut self, draft: &AnalyzedFunction, calls: &SourceMap) {
        let function = &draft.function;
        let is_float = |value: ValueId| {
            let ty = draft.analysis.ty(value).and_then(Type::as_tensor);
            ty.is_some_and(|ty| ty.dtype == DType::Fp32)
        };
        for (_, op) in function.all_ops() {
            let is_constant =
                op.kind().is_none_or(|kind| kind == OpKind::Const || kind.is_constexpr());
            if is_constant {
                continue;
            }
            self.unsound = self.unsound.take().or_else(|| unsound(function, op));
            let values: Vec<ValueId> = op.values().collect();
            let has_floats = values.iter().chain(&op.outputs).any(|&value| is_float(value));
            let name_of = |&value: &ValueId| function.value(value).name.clone();
            for output in &op.outputs {
                let name = name_of(output);
                if self.by_name.contains_key(&name) {
                    continue;
                }
                let origin = calls.of(&name).and_then(|(_, origin)| origin.module_path());
                let module = origin.filter(|path| !path.is_empty()).map(str::to_owned);
                self.by_name.insert(name.clone(), self.ops.len());
                self.ops.push(Node {
                    name,
                    module,
                    inputs: values.iter().map(name_of).collect(),
                    has_floats,
                    is_exact: op.kind().is_some_and(is_exact),
                });
            }
        }
    }

    /// Groups of operations that only help together, in program order: an operation that rounds,
    /// and the exact operations that use its result.
    fn units(&self) -> Vec<Vec<String>> {
        let mut units: Vec<Vec<String>> = Vec::new();
        let mut unit_of: HashMap<&str, usize> = HashMap::new();
        for op in self.ops.iter().filter(|op| op.has_floats) {
            let given = op.inputs.iter().filter_map(|name| unit_of.get(name.as_str())).max();
            let unit = match given.filter(|_| op.is_exact) {
                Some(&unit) => unit,
                None => {
                    units.push(Vec::new());
                    units.len() - 1
                }
            };
            units[unit].push(op.name.clone());
            unit_of.insert(&op.name, unit);
        }
        units
    }

    pub(super) fn module(&self, name: &str) -> Option<&str> {
        self.ops[*self.by_name.get(name)?].module.as_deref()
    }

    /// Groups values into connected regions, in program order.
    pub(super) fn regions<'n>(&self, names: &'n HashSet<String>) -> Vec<Vec<&'n str>> {
        let mut names: Vec<&str> = names.iter().map(String::as_str).collect();
        names.sort_by_key(|name| self.place(name));
        let mut regions: Vec<Vec<&str>> = Vec::new();
        for name in names {
            let inputs = self.by_name.get(name).map_or(&[][..], |&at| &self.ops[at].inputs[..]);
            let takes = |region: &Vec<&str>| {
                region.iter().any(|given| inputs.iter().any(|input| input == given))
            };
            let (joined, apart) = regions.into_iter().partition(takes);
            let joined: Vec<Vec<&str>> = joined;
            regions = apart;
            let mut region = joined.concat();
            region.push(name);
            region.sort_by_key(|name| self.place(name));
            regions.push(region);
        }
        regions
    }

    /// Index of the operation that computes a value.
    pub(super) fn place(&self, name: &str) -> usize {
        self.by_name.get(name).copied().unwrap_or(usize::MAX)
    }
}

/// Searches for the operations that must use `fp32`.
pub(super) struct Search<'t> {
    pub(super) trial: &'t Trial,
    pub(super) reference: &'t Machine,
    pub(super) graph: &'t Graph,
}

/// Consecutive units.
struct Part {
    range: Range<usize>,
    /// Number of operations.
    ops: usize,
    /// Noise if only this part uses `fp16`, relative to the allowed noise.
    noise: f64,
}

impl Part {
    /// Sorts parts by noise per operation, noisiest first. Returns the number of parts that must
    /// use `fp32` to keep the rest within the allowed noise.
    fn order(parts: &mut [Part]) -> usize {
        let density = |part: &Part| part.noise / part.ops as f64;
        parts.sort_by(|left, right| {
            density(right).total_cmp(&density(left)).then(left.range.start.cmp(&right.range.start))
        });
        let mut rest = 0.0;
        let quiet = parts.iter().rev().take_while(|part| {
            rest += part.noise;
            rest <= 1.0
        });
        parts.len() - quiet.count()
    }
}

impl Search<'_> {
    /// Moves operations to `fp32` until the outputs are accurate. Tries to move few.
    pub(super) fn widen(&self, base: Plan) -> Result<Plan, Error> {
        let few = self.by_culprits(base.clone())?;
        if let Some(plan) = &few
            && plan.wide.len() <= ONE_BY_ONE
        {
            return self.narrow(plan.clone());
        }
        let everything: HashSet<String> = self.graph.units().into_iter().flatten().collect();
        let all = |rescales| Plan { wide: everything.clone(), rescales, ..base.clone() };
        // If powers of two are moved, some products may still stay in `fp16`.
        let rescales = base.rescales && self.is_enough(&all(true))?;
        let many = match rescales || self.is_enough(&all(false))? {
            true => self.by_parts(&Plan { rescales, ..base })?,
            false => all(false),
        };
        Ok(match few {
            Some(few) => {
                let few = self.narrow(few)?;
                if few.wide.len() < many.wide.len() { few } else { many }
            }
            None => many,
        })
    }

    /// Repeatedly moves the operations that add most noise. Returns `None` if that does not
    /// converge.
    fn by_culprits(&self, mut plan: Plan) -> Result<Option<Plan>, Error> {
        let wanted = self.values(self.reference)?;
        let mut next = 1;
        loop {
            let (made, changes) = self.trial.make(&plan)?;
            let machine = Machine::new(made.clone(), self.trial.numerics)?;
            let outcome = self.trial.judge(made)?;
            if outcome.iter().all(|(_, found)| is_enough(*found)) {
                return Ok(Some(plan));
            }
            let found = self.values(&machine)?;
            let more = self.error_contributors(&plan, &wanted, &found, &changes.rescaled, next);
            if more.is_empty() || 4 * plan.wide.len() > self.graph.ops.len() {
                return Ok(None);
            }
            plan.wide.extend(more);
            next *= 2;
        }
    }

    /// Measures the noise of each part of the program, subdividing the noisiest parts, and moves
    /// the parts with the most noise per operation. Moving all parts is known to be sufficient.
    fn by_parts(&self, base: &Plan) -> Result<Plan, Error> {
        let units = self.graph.units();
        let part = |range: Range<usize>| -> Result<Part, Error> {
            let apart = (0..units.len()).filter(|at| !range.contains(at));
            let wide = apart.flat_map(|at| units[at].iter().cloned()).collect();
            let (made, _) = self.trial.make(&Plan { wide, ..base.clone() })?;
            let noise = noise_in_all(&self.trial.judge(made)?);
            let ops = units[range.clone()].iter().map(Vec::len).sum();
            Ok(Part { range, ops, noise })
        };
        let mut parts = vec![part(0..units.len())?];
        let mut wanted = Part::order(&mut parts);
        for _ in 0..MAX_HALVES {
            let divisible = (0..wanted).filter(|&at| parts[at].range.len() > 1);
            let Some(at) = divisible.max_by_key(|&at| (parts[at].ops, parts[at].range.start))
            else {
                break;
            };
            let Range { start, end } = parts.swap_remove(at).range;
            let middle = start.midpoint(end);
            parts.extend([part(start..middle)?, part(middle..end)?]);
            wanted = Part::order(&mut parts);
        }
        let with = |parts: &[Part]| {
            let chosen = parts.iter().flat_map(|part| &units[part.range.clone()]);
            Plan { wide: chosen.flatten().cloned().collect(), ..base.clone() }
        };
        // Noise is not exactly additive, so find the number of parts by bisection.
        let (mut few, mut enough, mut next) = (0, parts.len(), wanted);
        while few + 1 < enough {
            match self.is_enough(&with(&parts[..next]))? {
                true => enough = next,
                false => few = next,
            }
            next = few.midpoint(enough);
        }
        parts.truncate(enough);
        for at in (0..parts.len()).rev().take(ONE_BY_ONE) {
            let part = parts.remove(at);
            if !self.is_enough(&with(&parts))? {
                parts.insert(at, part);
            }
        }
        Ok(with(&parts))
    }

    fn is_enough(&self, plan: &Plan) -> Result<bool, Error> {
        let (made, _) = self.trial.make(plan)?;
        Ok(self.trial.judge(made)?.iter().all(|(_, found)| is_enough(*found)))
    }

    /// All values computed for the first sample, by their name in `fp32`.
    fn values(&self, machine: &Machine) -> Result<HashMap<String, Array>, Error> {
        let mut values = HashMap::new();
        machine.run(&self.trial.samples[0], &mut |name, array| {
            let base =
                name.strip_suffix("_fp16").filter(|base| self.graph.by_name.contains_key(*base));
            if self.graph.by_name.contains_key(name) || base.is_some() {
                values.insert(base.unwrap_or(name).to_owned(), array.clone());
            }
        })?;
        Ok(values)
    }

    /// The operations that add most noise to their operands.
    fn error_contributors(
        &self,
        plan: &Plan,
        wanted: &HashMap<String, Array>,
        found: &HashMap<String, Array>,
        rescaled: &RescaleOutcome,
        count: usize,
    ) -> Vec<String> {
        let exponents = exponents(rescaled);
        let noise = |name: &str| {
            let (wanted, found) = (wanted.get(name)?.as_floats()?, found.get(name)?.as_floats()?);
            let factor = f64::from(exponents.get(name).copied().unwrap_or(0)).exp2();
            Some(noise(wanted, found, factor))
        };
        let of_all: HashMap<&str, f64> =
            self.graph.ops.iter().filter_map(|op| Some((&*op.name, noise(&op.name)?))).collect();
        let mut damage: Vec<(f64, &str)> = Vec::new();
        for op in &self.graph.ops {
            if plan.wide.contains(&op.name) {
                continue;
            }
            let Some(&own) = of_all.get(op.name.as_str()) else { continue };
            let inputs = op.inputs.iter().filter_map(|name| of_all.get(name.as_str()));
            let given = inputs.copied().fold(0.0, f64::max);
            if own > given * 1.2 && own > 1e-9 && given.is_finite() {
                damage.push((own - given, &op.name));
            }
        }
        damage.sort_by(|left, right| right.0.total_cmp(&left.0));
        // Move all operations with infinite results, and the worst of the others.
        let infinite = damage.iter().take_while(|(damage, _)| damage.is_infinite()).count();
        damage.iter().take(count.max(infinite)).map(|(_, name)| (*name).to_owned()).collect()
    }

    /// Removes operations from a plan that do not need `fp32`.
    fn narrow(&self, mut plan: Plan) -> Result<Plan, Error> {
        let mut names: Vec<String> = plan.wide.iter().cloned().collect();
        names.sort_by_key(|name| std::cmp::Reverse(self.graph.place(name)));
        let mut part = names.len().div_ceil(2);
        let mut tries = 2 * ONE_BY_ONE;
        while part > 0 && tries > 0 {
            let mut at = 0;
            while at < names.len() && tries > 0 {
                tries -= 1;
                let end = (at + part).min(names.len());
                let out: HashSet<&String> = names[at..end].iter().collect();
                let wide = plan.wide.iter().filter(|name| !out.contains(name)).cloned().collect();
                let tried = Plan { wide, ..plan.clone() };
                if self.is_enough(&tried)? {
                    plan = tried;
                    names.drain(at..end);
                } else {
                    at = end;
                }
            }
            part /= 2;
        }
        Ok(plan)
    }
}

/// Describes a problem in a layer's weights. Other constants may be infinite, as in masks.
fn unsound(function: &Function, op: &Op) -> Option<String> {
    use OpKind::{BatchNorm, Conv, ConvTranspose, Gru, InstanceNorm, LayerNorm, Linear, Lstm, Rnn};
    let is_layer = matches!(
        op.kind()?,
        BatchNorm | Conv | ConvTranspose | Gru | InstanceNorm | LayerNorm | Linear | Lstm | Rnn
    );
    op.all_bindings().filter(|_| is_layer).find_map(|(parameter, binding)| {
        let constant = function.bound_constant(binding)?;
        let dtype = constant.tensor_type()?.dtype;
        let found = Statistics::of(constant.elements()?, dtype).ok()??;
        let held = match (found.nans, found.infinities) {
            (0, 0) => return None,
            (0, _) => "an infinite number",
            _ => "NaN",
        };
        let name = &function.value(*op.outputs.first()?).name;
        Some(format!("the `{parameter}` of `{name}` holds {held}"))
    })
}

/// Returns true for operations that only select or move elements, so that fp16 values stay exact.
fn is_exact(kind: OpKind) -> bool {
    use OpKind::{
        Abs, BandPart, Cast, Clip, Concat, Crop, DepthToSpace, ExpandDims, Flatten2d, Gather,
        GatherAlongAxis, GatherNd, Identity, MaxPool, Maximum, Minimum, Pad, PixelShuffle,
        PixelUnshuffle, ReduceMax, ReduceMin, Relu, Relu6, Reshape, ReshapeLike, Reverse, Select,
        SliceByIndex, SliceBySize, SliceUpdate, SlidingWindows, SpaceToDepth, Split, Squeeze,
        Stack, Tile, Topk, Transpose, UpsampleNearestNeighbor,
    };
    matches!(
        kind,
        Abs | BandPart
            | Cast
            | Clip
            | Concat
            | Crop
            | DepthToSpace
            | ExpandDims
            | Flatten2d
            | Gather
            | GatherAlongAxis
            | GatherNd
            | Identity
            | MaxPool
            | Maximum
            | Minimum
            | Pad
            | PixelShuffle
            | PixelUnshuffle
            | ReduceMax
            | ReduceMin
            | Relu
            | Relu6
            | Reshape
            | ReshapeLike
            | Reverse
            | Select
            | SliceByIndex
            | SliceBySize
            | SliceUpdate
            | SlidingWindows
            | SpaceToDepth
            | Split
            | Squeeze
            | Stack
            | Tile
            | Topk
            | Transpose
            | UpsampleNearestNeighbor
    )
}

/// Noise of the worst output, relative to the allowed noise.
fn noise_in_all(outcome: &[(String, Option<f64>)]) -> f64 {
    let of = |found: f64| 10f64.powf((ENOUGH_DB - found) / 10.0);
    outcome.iter().filter_map(|(_, found)| found.map(of)).fold(0.0, f64::max)
}

/// Noise power relative to signal power. `found` is scaled by `factor`.
fn noise(wanted: &[f32], found: &[f32], factor: f64) -> f64 {
    let (mut signal, mut noise) = (0f64, 0f64);
    for (&wanted, &found) in wanted.iter().zip(found) {
        let wanted = f64::from(wanted);
        if wanted.abs() >= f64::from(super::INFINITE) {
            continue;
        }
        let found = f64::from(found) / factor;
        if !found.is_finite() && wanted.is_finite() {
            return f64::INFINITY;
        }
        signal += wanted * wanted;
        noise += (wanted - found) * (wanted - found);
    }
    if noise == 0.0 { 0.0 } else { noise / signal.max(f64::MIN_POSITIVE) }
}
