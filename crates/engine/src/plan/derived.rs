//! Data that kernels derive from constants, recomputed when the constants change.
//!
//! A plan can keep running with new constants unless the old ones decided its structure. Data that
//! a kernel derives from a constant, such as packed weights, is stored as [`Memoized`]. Any other
//! access to the elements during planning is recorded ([`FunctionContext::note`]), and plans that
//! depend on it are rebuilt.

use std::sync::{Arc, PoisonError, RwLock, Weak};

use coremill_mil::ir::{Binding, Function, Op, OpId, ValueId};
use coremill_reference::error::Result;

use super::constant::ConstantTensor;
use super::graph::{NodeKind, Operand, Region};
use super::kernel::CpuContext;
use super::source::{ChangedConstants, Dependents, FunctionContext, Recompute};
use super::{Plan, PlanKey};

/// Data of a kernel, derived from constants alone.
pub(crate) struct Memoized<T>(Arc<CacheEntry<T>>);

struct CacheEntry<T> {
    of: Vec<Origin>,
    make: Make<T>,
    now: RwLock<Arc<T>>,
}

type Make<T> = Box<
    dyn Fn(&FunctionContext, &CpuContext, &[Arc<ConstantTensor>]) -> Result<Arc<T>> + Send + Sync,
>;

/// A constant from which data is derived.
enum Origin {
    Value(ValueId),
    /// A literal, or a constant created by a pass.
    Fixed(Arc<ConstantTensor>),
}

impl<T> Memoized<T> {
    /// The current data.
    pub(crate) fn get(&self) -> Arc<T> {
        Arc::clone(&self.0.now.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<T: Send + Sync + 'static> Memoized<T> {
    /// Data that depends on no constant of the program.
    pub(crate) fn fixed(value: T) -> Memoized<T> {
        let now = Arc::new(value);
        let kept = Arc::clone(&now);
        let make: Make<T> = Box::new(move |_, _, _| Ok(Arc::clone(&kept)));
        Memoized(Arc::new(CacheEntry { of: Vec::new(), make, now: RwLock::new(now) }))
    }
}

impl<T: Send + Sync> Recompute for CacheEntry<T> {
    fn is_of(&self, changed: &ChangedConstants) -> bool {
        self.of.iter().any(|origin| matches!(origin, Origin::Value(value) if changed.has(*value)))
    }

    fn remake(&self, source: &FunctionContext, machine: &CpuContext) -> Result<()> {
        let known = self.of.iter().map(|origin| match origin {
            Origin::Value(value) => source.known(*value),
            Origin::Fixed(known) => Ok(Arc::clone(known)),
        });
        let made = (self.make)(source, machine, &known.collect::<Result<Vec<_>>>()?)?;
        *self.now.write().unwrap_or_else(PoisonError::into_inner) = made;
        Ok(())
    }
}

impl ChangedConstants {
    /// The outputs of changed operations, and all constants that depend on them.
    fn of(source: &FunctionContext, function: &Function, ops: &[OpId]) -> ChangedConstants {
        let mut changed = vec![false; function.value_count()];
        let given = ops.iter().flat_map(|&op| &function.op(op).outputs);
        given.for_each(|output| changed[output.index()] = true);
        // Definitions come before uses.
        for (_, op) in function.all_ops() {
            let reads = op.all_bindings().any(
                |(_, binding)| matches!(binding, Binding::Value(value) if changed[value.index()]),
            );
            if reads {
                let constant = op.outputs.iter().filter(|&&output| source.is_constant(output));
                constant.for_each(|output| changed[output.index()] = true);
            }
        }
        ChangedConstants(changed)
    }
}

impl FunctionContext {
    /// Derives data from constants. It is derived again whenever one of them changes.
    pub(crate) fn derived<T: Send + Sync + 'static>(
        &self,
        machine: &CpuContext,
        of: &[&Arc<ConstantTensor>],
        make: impl Fn(&FunctionContext, &CpuContext, &[Arc<ConstantTensor>]) -> Result<Arc<T>>
        + Send
        + Sync
        + 'static,
    ) -> Result<Memoized<T>> {
        let known: Vec<_> = of.iter().map(|&known| Arc::clone(known)).collect();
        let now = RwLock::new(make(self, machine, &known)?);
        let of = known.into_iter().map(|known| match known.value {
            Some(value) => Origin::Value(value),
            None => Origin::Fixed(known),
        });
        let made = Arc::new(CacheEntry { of: of.collect(), make: Box::new(make), now });
        let remake: Arc<dyn Recompute> = Arc::<CacheEntry<T>>::clone(&made);
        let mut all = self.dependents.derived.lock().unwrap_or_else(PoisonError::into_inner);
        // Drop entries of deleted plans before the vector grows.
        if all.len() == all.capacity() {
            all.retain(|one| one.strong_count() > 0);
        }
        all.push(Arc::downgrade(&remake));
        Ok(Memoized(made))
    }

    /// Replaces operations by operations with other constants of the same types, and updates the
    /// plans. Plans that are in use are dropped. The others keep all data that does not depend on
    /// the changed constants. If a planning decision depends on them, all plans are dropped.
    pub(crate) fn update_constants(
        &mut self,
        machine: &CpuContext,
        ops: Vec<(OpId, Op)>,
        plans: Vec<(PlanKey, Arc<Plan>)>,
    ) -> Vec<(PlanKey, Plan)> {
        let ids: Vec<_> = ops.iter().map(|(id, _)| *id).collect();
        for (id, op) in ops {
            *self.function.op_mut(id) = op;
        }
        let changed = ChangedConstants::of(self, &self.function, &ids);
        self.known.lock().unwrap_or_else(PoisonError::into_inner).forget(|it| changed.has(*it));
        self.packed.forget(|value| changed.has(value));
        let looked = self.dependents.looked.lock().unwrap_or_else(PoisonError::into_inner);
        let is_decided = looked.iter().any(|&value| changed.has(value));
        drop(looked);
        if is_decided {
            return self.without_plans();
        }
        let mut kept: Vec<_> = plans
            .into_iter()
            .filter_map(|(key, plan)| Some((key, Arc::into_inner(plan)?)))
            .collect();
        // Planning again reports the error.
        match self.follow(machine, &mut kept, &changed) {
            Ok(()) => kept,
            Err(_) => self.without_plans(),
        }
    }

    fn follow(
        &self,
        machine: &CpuContext,
        plans: &mut [(PlanKey, Plan)],
        changed: &ChangedConstants,
    ) -> Result<()> {
        for (_, plan) in plans {
            self.replace(&mut plan.graph.body, changed)?;
        }
        let derived = self.dependents.derived.lock().unwrap_or_else(PoisonError::into_inner);
        let derived: Vec<_> = derived.iter().filter_map(Weak::upgrade).collect();
        let mut affected = derived.iter().filter(|one| one.is_of(changed));
        affected.try_for_each(|one| one.remake(self, machine))
    }

    fn without_plans(&mut self) -> Vec<(PlanKey, Plan)> {
        self.dependents = Dependents::default();
        Vec::new()
    }

    /// Replaces changed constants in the operands of a region's nodes.
    fn replace(&self, region: &mut Region, changed: &ChangedConstants) -> Result<()> {
        let anew = |operand: &mut Operand| -> Result<()> {
            if let Operand::Constant(known) = operand
                && let Some(value) = known.value
                && changed.has(value)
            {
                let now = self.known(value)?;
                if known.expanded().is_some() {
                    now.expand(self)?;
                }
                *known = now;
            }
            Ok(())
        };
        region.outputs.iter_mut().try_for_each(anew)?;
        for node in &mut region.nodes {
            node.inputs.iter_mut().try_for_each(anew)?;
            if let NodeKind::Cond(regions) | NodeKind::Loop(regions) = &mut node.kind {
                regions.iter_mut().try_for_each(|region| self.replace(region, changed))?;
            }
        }
        Ok(())
    }
}
