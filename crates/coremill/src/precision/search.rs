//! The fewest operations that have to compute in `fp32`.

use std::collections::{HashMap, HashSet};

use coremill_compiler::Calls;
use coremill_engine::Array;
use coremill_mil::ir::Binding;
use coremill_mil::ops::OpKind;
use coremill_mil::pass::{Draft, Rescaled};

use super::{Plan, Trial, exponents, is_enough};
use crate::error::Error;
use crate::subject::Machine;

/// So many operations at the most are tried without `fp32` one by one; more go in halves.
const ONE_BY_ONE: usize = 12;

/// The operations of a program before precision is chosen.
#[derive(Clone, Debug, Default)]
pub(super) struct Graph {
    ops: Vec<Node>,
    by_name: HashMap<String, usize>,
}

#[derive(Clone, Debug)]
struct Node {
    name: String,
    module: Option<String>,
    inputs: Vec<String>,
}

impl Graph {
    /// Takes in a function.
    pub(super) fn add(&mut self, draft: &Draft, calls: &Calls) {
        let function = &draft.function;
        for (_, op) in function.all_ops() {
            let is_constant =
                op.kind().is_none_or(|kind| kind == OpKind::Const || kind.is_constexpr());
            if is_constant {
                continue;
            }
            let inputs: Vec<String> = op
                .all_bindings()
                .filter_map(|(_, binding)| match binding {
                    Binding::Value(value) => Some(function.value(*value).name.clone()),
                    Binding::Literal(_) => None,
                })
                .collect();
            for &output in &op.outputs {
                let name = function.value(output).name.clone();
                let origin = calls.of(&name).and_then(|(_, origin)| origin.module_path());
                let module = origin.filter(|path| !path.is_empty()).map(str::to_owned);
                self.by_name.insert(name.clone(), self.ops.len());
                self.ops.push(Node { name, module, inputs: inputs.clone() });
            }
        }
    }

    pub(super) fn module(&self, name: &str) -> Option<&str> {
        self.ops[*self.by_name.get(name)?].module.as_deref()
    }

    /// Values by regions, each of operations that take what others of it give, in the order of the program.
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

    /// Where in the program a value comes about.
    pub(super) fn place(&self, name: &str) -> usize {
        self.by_name.get(name).copied().unwrap_or(usize::MAX)
    }
}

/// Looks for what has to be in `fp32`.
pub(super) struct Search<'t> {
    pub(super) trial: &'t Trial,
    pub(super) reference: &'t Machine,
    pub(super) graph: &'t Graph,
}

impl Search<'_> {
    /// Adds operations to a plan until the outputs are near enough, and takes those out that did not help.
    pub(super) fn widen(&self, mut plan: Plan) -> Result<Plan, Error> {
        let wanted = self.values(self.reference)?;
        let mut next = 1;
        loop {
            let (made, rescaled) = self.trial.make(&plan)?;
            let machine = Machine::new(made.clone(), true)?;
            let outcome = self.trial.judge(made)?;
            if outcome.iter().all(|(_, found)| is_enough(*found)) {
                return self.narrow(plan);
            }
            let found = self.values(&machine)?;
            let more = self.culprits(&plan, &wanted, &found, &rescaled, next);
            if more.is_empty() || 2 * plan.wide.len() > self.graph.ops.len() {
                // Noise from everywhere: from the other end, then.
                let wide = self.graph.ops.iter().map(|op| op.name.clone()).collect();
                plan = Plan { wide, ..plan };
                // Where a power of two is moved there may be products in `fp16` still.
                plan.rescales &= self.is_enough(&plan)?;
                return self.narrow(plan);
            }
            plan.wide.extend(more);
            next *= 2;
        }
    }

    fn is_enough(&self, plan: &Plan) -> Result<bool, Error> {
        let (made, _) = self.trial.make(plan)?;
        Ok(self.trial.judge(made)?.iter().all(|(_, found)| is_enough(*found)))
    }

    /// Every value that comes about with the first sample, by its name in `fp32`.
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

    /// The operations that add most to the noise of what they are given.
    fn culprits(
        &self,
        plan: &Plan,
        wanted: &HashMap<String, Array>,
        found: &HashMap<String, Array>,
        rescaled: &Rescaled,
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
        // Infinities all have to go; of what loses digits, the worst.
        let infinite = damage.iter().take_while(|(damage, _)| damage.is_infinite()).count();
        damage.iter().take(count.max(infinite)).map(|(_, name)| (*name).to_owned()).collect()
    }

    /// Takes operations out of a plan that need not be in it.
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
                let tried = Plan { wide, ..plan };
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

/// The power of the difference in parts of that of the signal, where the found values are multiplied by a factor.
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
