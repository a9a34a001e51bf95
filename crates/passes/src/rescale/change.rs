//! Applies the exponents to a function.

use std::collections::HashMap;

use coremill_tensor::{Buffer, DType};

use super::role::{Role, is_underflow_safe, saturates};
use super::solve::{Solution, floats};
use super::{ScaledGroup, Sizes};
use crate::affine::{scaled_weight, weight_shape};
use crate::{Editor, KeepFp32};
use coremill_mil::ir::{Binding, Constant, Op, OpId, ValueId};
use coremill_mil::ops::OpKind;

/// Larger numbers are intended as infinity.
const INFINITE: f32 = 1e30;
/// Constants with more elements are scaled when they are written.
const FEW: u64 = 1 << 16;

/// Changes the function. Returns the scaled groups for a report, and the exponent of each value by name.
pub(super) fn change(
    editor: &mut Editor<'_>,
    sizes: &Sizes<'_>,
    solution: &Solution,
    keep: &mut KeepFp32,
) -> (Vec<ScaledGroup>, Vec<(String, i32)>) {
    if solution.own.values().all(|&exponent| exponent == 0)
        && solution.shared.values().all(|&exponent| exponent == 0)
        && !solution.own.keys().any(|&value| sizes.are_out(editor, value))
    {
        return (Vec::new(), Vec::new());
    }
    let outputs = editor.function().outputs().to_vec();
    let mut scaled = Rewriter {
        editor,
        sizes,
        solution,
        keep,
        forms: HashMap::new(),
        constants: HashMap::new(),
        groups: Vec::new(),
    };
    for id in scaled.editor.ops() {
        scaled.op(id);
        for output in floats(scaled.editor, id) {
            scaled.note(output);
            if outputs.contains(&output) {
                scaled.give(id, output);
            }
        }
    }
    // The scaled form of a function output has another name.
    let own = solution.own.iter().filter(|(_, exponent)| **exponent != 0);
    let named = own.map(|(&value, &exponent)| {
        let holder = scaled.forms.get(&(value, exponent)).copied().unwrap_or(value);
        (scaled.editor.name(holder).to_owned(), exponent)
    });
    let mut exponents: Vec<_> = named.collect();
    exponents.sort();
    let mut groups: Vec<ScaledGroup> = scaled.groups.into_iter().map(|(_, group)| group).collect();
    groups.retain(|group| group.exponent != 0 || group.added > 0 || !group.in_fp32.is_empty());
    (groups, exponents)
}

struct Rewriter<'e, 'f, 'm> {
    editor: &'e mut Editor<'f>,
    sizes: &'e Sizes<'m>,
    solution: &'e Solution,
    keep: &'e mut KeepFp32,
    /// Scaled copies of a value by exponent, created by inserted operations.
    forms: HashMap<(ValueId, i32), ValueId>,
    /// Constants scaled by powers of two.
    constants: HashMap<(ValueId, i32), ValueId>,
    /// Report entries by group.
    groups: Vec<(ValueId, ScaledGroup)>,
}

impl Rewriter<'_, '_, '_> {
    /// Records a value in the report of its group.
    fn note(&mut self, value: ValueId) {
        let exponent = match self.solution.own(value) {
            0 => return,
            exponent => exponent,
        };
        let name = self.editor.name(value).to_owned();
        let magnitude = self.sizes.of(self.editor, value);
        let group = self.group(value, exponent);
        group.values.push(name);
        if let Some(magnitude) = magnitude {
            group.largest = group.largest.max(magnitude.max);
            if magnitude.rms > 0.0 {
                group.smallest = group.smallest.min(magnitude.rms);
            }
        }
    }

    fn group(&mut self, value: ValueId, exponent: i32) -> &mut ScaledGroup {
        let root = self.solution.group.get(&value).copied().unwrap_or(value);
        let found = self.groups.iter().position(|(group, _)| *group == root);
        let at = found.unwrap_or_else(|| {
            let new = ScaledGroup {
                values: Vec::new(),
                exponent,
                largest: 0.0,
                smallest: f64::INFINITY,
                added: 0,
                in_fp32: Vec::new(),
            };
            self.groups.push((root, new));
            self.groups.len() - 1
        });
        let group = &mut self.groups[at].1;
        if group.exponent == 0 {
            group.exponent = exponent;
        }
        group
    }

    /// A value scaled by an exponent, as operand of an operation.
    fn at(&mut self, value: ValueId, wanted: i32, before: OpId) -> ValueId {
        let own = self.solution.own(value);
        let held = self.forms.get(&(value, own)).copied().unwrap_or(value);
        if own == wanted {
            return held;
        }
        if let Some(&known) = self.forms.get(&(value, wanted)) {
            return known;
        }
        let label = format!("{}_scaled", self.editor.name(value));
        let op = times(Binding::Value(held), wanted - own);
        let Ok(made) = self.editor.insert(before, op, &label) else { return held };
        // A copy inside a nested block is not visible elsewhere.
        if self.editor.block_of(before) == Some(self.editor.function().body) {
            self.forms.insert((value, wanted), made[0]);
        }
        let name = self.editor.name(made[0]).to_owned();
        // A value beyond the range is produced in `fp32`, so it is also scaled in `fp32`.
        let is_wide = own == 0 && self.sizes.are_out(self.editor, value);
        let exponent = if own == 0 { wanted } else { own };
        let group = self.group(value, exponent);
        group.added += 1;
        if is_wide {
            group.in_fp32.push(name.clone());
            self.keep.names.insert(name);
        }
        made[0]
    }

    /// Inserts an operation that restores the unscaled output of the function.
    fn give(&mut self, id: OpId, output: ValueId) {
        let own = self.solution.own(output);
        if own == 0 {
            return;
        }
        let Some(op) = self.editor.op(id).cloned() else { return };
        let name = self.editor.name(output).to_owned();
        let op = Op { outputs: Vec::new(), ..op };
        let Ok(made) = self.editor.insert(id, op, &format!("{name}_scaled")) else { return };
        if self.editor.rewrite(id, times(Binding::Value(made[0]), -own)).is_err() {
            return;
        }
        self.forms.insert((output, own), made[0]);
        self.forms.insert((output, 0), output);
        let is_wide = self.sizes.are_out(self.editor, output);
        let group = self.group(output, own);
        group.added += 1;
        if is_wide {
            group.in_fp32.push(name.clone());
            self.keep.names.insert(name);
        }
    }

    fn op(&mut self, id: OpId) {
        let Some(role) = self.solution.roles.get(&id).cloned() else { return };
        let Some(op) = self.editor.op(id).cloned() else { return };
        if op.kind().is_none_or(|kind| kind == OpKind::Const || kind.is_constexpr()) {
            return;
        }
        let output = floats(self.editor, id).first().copied();
        let mut new = Op { outputs: Vec::new(), ..op.clone() };
        let done = match &role {
            Role::Same { except } => self.same(id, &mut new, except),
            Role::Weight { x, weight } => self.weight(id, &mut new, x, weight, output),
            Role::Norm { .. } => self.norm(id, &mut new, output),
            Role::Power { times, parts } => self.power(id, &mut new, *times, *parts),
            Role::Product { divides } => self.product(id, &mut new, *divides, output),
            Role::Fixed => self.fixed(id, &mut new),
        };
        if done.is_some() && new.inputs != op.inputs || new.kind() != op.kind() {
            let _ = self.editor.rewrite(id, new);
        }
    }

    /// Binds a parameter to a scaled value.
    fn bind(&mut self, id: OpId, new: &mut Op, name: &str, wanted: i32) -> Option<()> {
        let value = self.editor.argument(id, name)?;
        let bound = self.at(value, wanted, id);
        new.set_input(name.to_owned().into(), vec![Binding::Value(bound)]);
        Some(())
    }

    fn same(&mut self, id: OpId, new: &mut Op, except: &[&str]) -> Option<()> {
        let op = self.editor.op(id)?.clone();
        let of_output = floats(self.editor, id).first().copied();
        let member = of_output.or_else(|| {
            let taken = super::role::operands(self.editor, id);
            taken.into_iter().find(|(name, _)| !except.contains(&name.as_str())).map(|(_, v)| v)
        })?;
        let exponent = self.solution.of_group(member);
        for input in &op.inputs {
            let name = input.name.to_string();
            let is_apart = except.contains(&name.as_str());
            let mut bound = Vec::with_capacity(input.bindings.len());
            for binding in &input.bindings {
                bound.push(match binding {
                    Binding::Value(value) if self.editor.constant(*value).is_none() => {
                        let is_float = self.editor.dtype(*value) == Some(DType::Fp32);
                        let wanted = if is_apart { 0 } else { exponent };
                        Binding::Value(if is_float { self.at(*value, wanted, id) } else { *value })
                    }
                    binding if is_apart || exponent == 0 => binding.clone(),
                    binding => self.scaled(id, binding, exponent),
                });
            }
            new.set_input(input.name.clone(), bound);
        }
        if exponent != 0 && op.kind() == Some(OpKind::Relu6) {
            let most = Constant::fp32(6.0 * power(exponent));
            *new = Op::new(OpKind::Clip)
                .with("x", new.binding("x")?.clone())
                .with("alpha", Binding::Literal(Constant::fp32(0.0)))
                .with("beta", Binding::Literal(most));
        }
        Some(())
    }

    fn weight(
        &mut self,
        id: OpId,
        new: &mut Op,
        x: &str,
        weight: &'static str,
        output: Option<ValueId>,
    ) -> Option<()> {
        let (given, output) = (self.editor.argument(id, x)?, output?);
        let (before, behind) = (self.solution.own(given), self.solution.own(output));
        self.bind(id, new, x, before)?;
        let shift = behind - before;
        if shift != 0 {
            let kind = self.editor.op(id)?.kind()?;
            let by = if kind == OpKind::RealDiv { -shift } else { shift };
            let binding = self.editor.op(id)?.binding(weight)?.clone();
            let is_stored = matches!(&binding, Binding::Value(value)
                if self.editor.constant(*value).is_none());
            let binding =
                if is_stored { self.stored(id, by)? } else { self.scaled(id, &binding, by) };
            new.set_input(weight.into(), vec![binding]);
        }
        if behind != 0
            && let Some(bias) = self.editor.op(id)?.binding("bias").cloned()
        {
            let bias = self.scaled(id, &bias, behind);
            new.set_input("bias".into(), vec![bias]);
        }
        Some(())
    }

    /// A quantized weight, scaled by a power of two.
    fn stored(&mut self, id: OpId, by: i32) -> Option<Binding> {
        let shape = weight_shape(self.editor, id)?;
        let axis = usize::from(self.editor.op(id)?.kind()? == OpKind::ConvTranspose);
        let factors = vec![power(by); usize::try_from(*shape.get(axis)?).ok()?];
        let op = scaled_weight(self.editor, id, axis, &factors)?;
        let label = format!("{}_weight", self.editor.name(self.editor.op(id)?.outputs[0]));
        Some(Binding::Value(self.editor.insert(id, op, &label).ok()?[0]))
    }

    fn norm(&mut self, id: OpId, new: &mut Op, output: Option<ValueId>) -> Option<()> {
        let (given, output) = (self.editor.argument(id, "x")?, output?);
        let (before, behind) = (self.solution.own(given), self.solution.own(output));
        self.bind(id, new, "x", before)?;
        let kind = self.editor.op(id)?.kind()?;
        if kind == OpKind::BatchNorm {
            return self.batch_norm(id, new, before, behind);
        }
        if before != 0 {
            let usual = if kind == OpKind::L2Norm { 1e-6 } else { 1e-5 };
            let epsilon = self.editor.number(id, "epsilon").unwrap_or(usual);
            let epsilon = epsilon * f64::from(2 * before).exp2();
            let epsilon = Constant::fp32(epsilon.clamp(6e-8, 65504.0) as f32);
            new.set_input("epsilon".into(), vec![Binding::Literal(epsilon)]);
        }
        for name in ["gamma", "beta"] {
            if behind != 0
                && let Some(binding) = self.editor.op(id)?.binding(name).cloned()
            {
                let binding = self.scaled(id, &binding, behind);
                new.set_input(name.into(), vec![binding]);
            }
        }
        Some(())
    }

    /// Rescales a batch norm to a variance of 1, with the complete scale in gamma.
    fn batch_norm(&mut self, id: OpId, new: &mut Op, before: i32, behind: i32) -> Option<()> {
        let vector = |name: &str| {
            let constant = self.editor.constant_argument(id, name)?;
            Some(numbers(constant)?.into_iter().map(f64::from).collect::<Vec<f64>>())
        };
        let (mean, variance) = (vector("mean")?, vector("variance")?);
        let limit = f64::from(super::MOST).exp2();
        let sound = variance.iter().all(|&it| it < limit && it > 1.0 / limit);
        if before == 0 && behind == 0 && sound {
            return None;
        }
        let gamma = vector("gamma").unwrap_or_else(|| vec![1.0; mean.len()]);
        let beta = vector("beta").unwrap_or_else(|| vec![0.0; mean.len()]);
        let epsilon = self.editor.number(id, "epsilon").unwrap_or(1e-5);
        let (before, behind) = (f64::from(before).exp2(), f64::from(behind).exp2());
        let factor = |at: usize| {
            gamma[at] * ((1.0 + epsilon) / (variance[at] + epsilon)).sqrt() * behind / before
        };
        let vectors: [(&'static str, Vec<f64>); 4] = [
            ("mean", mean.iter().map(|mean| mean * before).collect()),
            ("variance", vec![1.0; mean.len()]),
            ("gamma", (0..mean.len()).map(factor).collect()),
            ("beta", beta.iter().map(|beta| beta * behind).collect()),
        ];
        for (name, vector) in vectors {
            let numbers: Vec<f32> = vector.into_iter().map(|number| number as f32).collect();
            let constant = vector_of(&[mean.len() as u64], &numbers);
            let constant = self.editor.constant_before(id, constant, name);
            new.set_input(name.into(), vec![Binding::Value(constant)]);
        }
        Some(())
    }

    fn power(&mut self, id: OpId, new: &mut Op, times: i32, parts: i32) -> Option<()> {
        let own = self.solution.own(self.editor.argument(id, "x")?);
        // The exponent must be divisible.
        let taken = own.div_euclid(parts) * parts;
        self.bind(id, new, "x", taken)?;
        if self.editor.op(id)?.kind() == Some(OpKind::Mul) {
            self.bind(id, new, "y", taken)?;
        }
        let default = match self.editor.op(id)?.kind()? {
            OpKind::Rsqrt => 1e-12,
            OpKind::Inverse => 1e-4,
            _ => 0.0,
        };
        if taken != 0 && times < 0 && default > 0.0 {
            let epsilon = self.editor.number(id, "epsilon").unwrap_or(default);
            let epsilon = Constant::fp32((epsilon * f64::from(taken).exp2()) as f32);
            new.set_input("epsilon".into(), vec![Binding::Literal(epsilon)]);
        }
        Some(())
    }

    fn product(
        &mut self,
        id: OpId,
        new: &mut Op,
        divides: bool,
        output: Option<ValueId>,
    ) -> Option<()> {
        let own = |name: &str| Some(self.solution.own(self.editor.argument(id, name)?));
        let (x, y, wanted) = (own("x")?, own("y")?, self.solution.own(output?));
        let natural = if divides { x - y } else { x + y };
        self.bind(id, new, "x", x + wanted - natural)?;
        self.bind(id, new, "y", y)
    }

    fn fixed(&mut self, id: OpId, new: &mut Op) -> Option<()> {
        let op = self.editor.op(id)?.clone();
        let kind = op.kind()?;
        let given = super::role::operands(self.editor, id);
        let results = floats(self.editor, id);
        let is_small = results.iter().any(|&value| self.sizes.are_out(self.editor, value));
        let hurts = |value: &ValueId| {
            let Some(magnitude) = self.sizes.of(self.editor, *value) else { return false };
            magnitude.is_too_large() && !saturates(kind)
                || magnitude.is_too_small() && !is_underflow_safe(kind)
        };
        let is_wide = op.blocks.is_empty() && (is_small || given.iter().any(|(_, it)| hurts(it)));
        let mut added = Vec::new();
        for input in &op.inputs {
            let mut bound = Vec::with_capacity(input.bindings.len());
            for binding in &input.bindings {
                bound.push(match binding {
                    Binding::Value(value) if given.iter().any(|(_, it)| it == value) => {
                        let taken = self.at(*value, 0, id);
                        if taken != *value {
                            added.push(self.editor.name(taken).to_owned());
                        }
                        Binding::Value(taken)
                    }
                    binding => binding.clone(),
                });
            }
            new.set_input(input.name.clone(), bound);
        }
        if is_wide && let Some(&output) = op.outputs.first() {
            let name = self.editor.name(output).to_owned();
            let about = given.first().map_or(output, |(_, value)| *value);
            let exponent = self.solution.own(about);
            let group = self.group(about, exponent);
            group.in_fp32.push(name.clone());
            group.in_fp32.extend(added.iter().cloned());
            self.keep.names.extend(added);
            self.keep.names.insert(name);
        }
        Some(())
    }

    /// A constant scaled by a power of two; masks are left unchanged.
    fn scaled(&mut self, id: OpId, binding: &Binding, by: i32) -> Binding {
        if by == 0 {
            return binding.clone();
        }
        if let Binding::Value(value) = binding
            && let Some(&known) = self.constants.get(&(*value, by))
        {
            return Binding::Value(known);
        }
        let Some(constant) = self.editor.function().bound_constant(binding) else {
            return binding.clone();
        };
        let Some(product) = product_of(constant, by) else { return binding.clone() };
        match binding {
            Binding::Literal(_) => Binding::Literal(product),
            Binding::Value(value) => {
                let label = format!("{}_scaled", self.editor.name(*value));
                let made = self.editor.constant_before(id, product, &label);
                self.constants.insert((*value, by), made);
                Binding::Value(made)
            }
        }
    }
}

fn power(exponent: i32) -> f32 {
    f64::from(exponent).exp2() as f32
}

/// Multiplication by a power of two.
fn times(value: Binding, exponent: i32) -> Op {
    Op::new(OpKind::Mul)
        .with("x", value)
        .with("y", Binding::Literal(Constant::fp32(power(exponent))))
}

/// Elements of an `fp32` constant.
fn numbers(constant: &Constant) -> Option<Vec<f32>> {
    let ty = constant.tensor_type().filter(|ty| ty.dtype == DType::Fp32)?;
    let elements = constant.elements()?;
    ty.element_count().filter(|&count| count <= FEW)?;
    let bytes = elements.with_window(0..elements.len(), <[u8]>::to_vec).ok()?;
    let (raw, _) = bytes.as_chunks::<4>();
    Some(raw.iter().map(|&raw| f32::from_le_bytes(raw)).collect())
}

fn vector_of(shape: &[u64], numbers: &[f32]) -> Constant {
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    Constant::by_size(DType::Fp32, shape, Buffer::from(bytes))
}

/// An `fp32` constant scaled by a power of two.
fn product_of(constant: &Constant, by: i32) -> Option<Constant> {
    let ty = constant.tensor_type().filter(|ty| ty.dtype == DType::Fp32)?;
    let shape = ty.known_shape()?;
    if let Some(mut numbers) = numbers(constant) {
        let factor = power(by);
        let within = numbers.iter_mut().filter(|number| number.abs() < INFINITE);
        within.for_each(|number| *number *= factor);
        return Some(match shape.is_empty() {
            true => Constant::fp32(numbers[0]),
            false => vector_of(&shape, &numbers),
        });
    }
    Some(Constant::of_recipe(&constant.recipe()?.scale(0, &[power(by)]).ok()?))
}
