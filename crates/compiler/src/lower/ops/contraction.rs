//! Sums of products over any axes: `einsum`, `tensordot`, bilinear forms.
//!
//! Two tensors at a time: axes that both have and the result has too are a batch, those that both have and
//! nothing else has are summed over. Put in order, that is a product of matrices, or an elementwise one if
//! nothing is summed over.

use coremill_mil::ir::ValueId;
use coremill_mil::ops::OpKind;
use coremill_pt2::Argument;

use super::linear::product;
use crate::bounds::{At, back};
use crate::error::{Refusal, refuse};
use crate::lower::builder::Builder;
use crate::lower::call::{Call, Results, normalized};
use crate::lower::row::{Row, all, some};
use crate::lower::value::Int;

pub(crate) const ROWS: &[Row] =
    &[some("aten.einsum", &["default"], einsum), all("aten._trilinear", trilinear)];

/// A name for an axis.
type Label = u32;

/// A tensor whose axes have names.
#[derive(Clone, Debug)]
struct Labelled {
    value: ValueId,
    labels: Vec<Label>,
}

impl Labelled {
    fn has(&self, label: Label) -> bool {
        self.labels.contains(&label)
    }

    fn axis(&self, label: Label) -> Option<usize> {
        self.labels.iter().position(|&own| own == label)
    }

    fn extent(&self, builder: &Builder, label: Label) -> Option<u64> {
        builder.extents(self.value).get(self.axis(label)?).copied().flatten()
    }

    fn dim(&self, builder: &mut Builder, label: Label) -> Result<Int, Refusal> {
        match self.axis(label) {
            Some(axis) => builder.dim(self.value, axis),
            None => Ok(Int::Known(1)),
        }
    }

    /// Sums over axes.
    fn without(&self, builder: &mut Builder, labels: &[Label]) -> Result<Labelled, Refusal> {
        let axes: Vec<_> = labels.iter().filter_map(|&label| self.axis(label)).collect();
        if axes.is_empty() {
            return Ok(self.clone());
        }
        let ones = axes.iter().all(|&axis| builder.extents(self.value).get(axis) == Some(&Some(1)));
        let value = if ones {
            let axes: Vec<_> = axes.iter().map(|&axis| axis as i32).collect();
            builder.squeeze(self.value, &axes)?
        } else {
            builder.reduced(OpKind::ReduceSum, self.value, &axes, false)?
        };
        let kept = self.labels.iter().copied().filter(|label| !labels.contains(label));
        Ok(Labelled { value, labels: kept.collect() })
    }

    /// The axes in another order.
    fn ordered(&self, builder: &mut Builder, labels: &[Label]) -> Result<ValueId, Refusal> {
        let order: Option<Vec<_>> = labels.iter().map(|&label| self.axis(label)).collect();
        match order {
            Some(order) => builder.transpose(self.value, &order),
            None => refuse!("an axis of the result is in none of the tensors"),
        }
    }

    /// An axis that comes twice, where both have the same index.
    fn diagonal(&self, builder: &mut Builder) -> Result<Labelled, Refusal> {
        let mut this = self.clone();
        loop {
            let twice =
                this.labels.iter().enumerate().find_map(|(at, &label)| {
                    Some((this.axis(label).filter(|&first| first < at)?, at))
                });
            let Some((first, second)) = twice else { return Ok(this) };
            let label = *this.labels.at(first)?;
            let rank = this.labels.len();
            let mut order: Vec<_> =
                (0..rank).filter(|&axis| axis != first && axis != second).collect();
            order.extend([first, second]);
            let square = builder.transpose(this.value, &order)?;
            let Some(extent) = *builder.extents(square).at(back(rank, 1)?)? else {
                refuse!("a diagonal of an axis whose size is not known is not lowered");
            };
            let mut sizes = builder.dims(square)?.part(..back(rank, 2)?)?.to_vec();
            sizes.push(Int::Known((extent * extent) as i64));
            let flat = builder.reshape(square, &sizes)?;
            let value = builder.strided_slice(flat, back(rank, 2)?, 0, None, extent as i64 + 1)?;
            let mut labels = Vec::with_capacity(back(rank, 1)?);
            for &axis in order.part(..back(rank, 2)?)? {
                labels.push(*this.labels.at(axis)?);
            }
            labels.push(label);
            this = Labelled { value, labels };
        }
    }
}

/// Which axes a pair of tensors has, and what becomes of them.
struct Roles {
    /// In both, and kept.
    batch: Vec<Label>,
    /// In the left one alone.
    rows: Vec<Label>,
    /// In the right one alone.
    columns: Vec<Label>,
    /// In both, and summed over.
    depth: Vec<Label>,
}

/// The sum of the products of tensors, with these axes.
fn contract(
    builder: &mut Builder,
    operands: Vec<Labelled>,
    output: &[Label],
) -> Result<ValueId, Refusal> {
    let mut prepared = Vec::with_capacity(operands.len());
    for operand in operands {
        prepared.push(operand.diagonal(builder)?);
    }
    let mut rest = prepared.into_iter();
    let Some(mut left) = rest.next() else { refuse!("there is nothing to multiply") };
    while let Some(right) = rest.next() {
        let needed = |label: Label| {
            output.contains(&label) || rest.as_slice().iter().any(|later| later.has(label))
        };
        let last = rest.as_slice().is_empty();
        left = pair(builder, left, right, needed, if last { Some(output) } else { None })?;
    }
    let summed: Vec<_> =
        left.labels.iter().copied().filter(|label| !output.contains(label)).collect();
    left.without(builder, &summed)?.ordered(builder, output)
}

fn pair(
    builder: &mut Builder,
    left: Labelled,
    right: Labelled,
    needed: impl Fn(Label) -> bool,
    output: Option<&[Label]>,
) -> Result<Labelled, Refusal> {
    // An axis of one element beside one of more has nothing to say.
    let alone = |builder: &Builder, one: &Labelled, other: &Labelled| -> Vec<Label> {
        let labels = one.labels.iter().copied();
        let is_alone = |&label: &Label| {
            let single = one.extent(builder, label) == Some(1);
            let useless = !other.has(label) && !needed(label);
            useless || (single && other.has(label) && other.extent(builder, label) != Some(1))
        };
        labels.filter(is_alone).collect()
    };
    let (of_left, of_right) = (alone(builder, &left, &right), alone(builder, &right, &left));
    let left = left.without(builder, &of_left)?;
    let right = right.without(builder, &of_right)?;

    // The tensor whose own axes come first in the result stands on the left.
    let first_of = |tensor: &Labelled, other: &Labelled| {
        output.and_then(|output| {
            output.iter().position(|&label| tensor.has(label) && !other.has(label))
        })
    };
    let (left, right) = match (first_of(&left, &right), first_of(&right, &left)) {
        (Some(one), Some(other)) if other < one => (right, left),
        _ => (left, right),
    };

    let both = left.labels.iter().copied().filter(|&label| right.has(label));
    let (batch, depth): (Vec<_>, Vec<_>) = both.partition(|&label| needed(label));
    let rows = left.labels.iter().copied().filter(|&label| !right.has(label)).collect();
    let columns = right.labels.iter().copied().filter(|&label| !left.has(label)).collect();
    let mut roles = Roles { batch, rows, columns, depth };
    // A batch in the order of the result needs no transposition afterwards.
    if let Some(output) = output {
        for labels in [&mut roles.batch, &mut roles.rows, &mut roles.columns] {
            labels.sort_by_key(|label| output.iter().position(|own| own == label));
        }
    }
    if roles.depth.is_empty() || (roles.rows.is_empty() && roles.columns.is_empty()) {
        return elementwise(builder, &left, &right, roles);
    }
    matrices(builder, &left, &right, roles)
}

/// A product element by element, then a sum.
fn elementwise(
    builder: &mut Builder,
    left: &Labelled,
    right: &Labelled,
    roles: Roles,
) -> Result<Labelled, Refusal> {
    let Roles { batch, rows, columns, depth } = roles;
    let labels: Vec<_> = [batch, rows, columns, depth.clone()].concat();
    let mut factors = Vec::with_capacity(2);
    for tensor in [left, right] {
        let own: Vec<_> = labels.iter().copied().filter(|&label| tensor.has(label)).collect();
        let value = tensor.ordered(builder, &own)?;
        let absent = labels.iter().enumerate().filter(|(_, label)| !tensor.has(**label));
        let axes: Vec<_> = absent.map(|(axis, _)| axis as i32).collect();
        factors.push(builder.expand_dims(value, &axes)?);
    }
    let value = builder.binary(OpKind::Mul, *factors.at(0)?, *factors.at(1)?)?;
    Labelled { value, labels }.without(builder, &depth)
}

/// A product of matrices, for which axes with the same role are joined.
fn matrices(
    builder: &mut Builder,
    left: &Labelled,
    right: &Labelled,
    roles: Roles,
) -> Result<Labelled, Refusal> {
    let mut sizes = Vec::new();
    let mut labels = Vec::new();
    for (group, from) in [(&roles.batch, left), (&roles.rows, left), (&roles.columns, right)] {
        for &label in group {
            sizes.push(from.dim(builder, label)?);
            labels.push(label);
        }
    }
    let (x, transpose_x) = matrix(builder, left, &roles, &roles.rows, false)?;
    let (y, transpose_y) = matrix(builder, right, &roles, &roles.columns, true)?;
    let mut value = product(builder, x, y, transpose_x, transpose_y)?;
    let joined = roles.rows.len() != 1 || roles.columns.len() != 1 || !is_batch_kept(&roles);
    if joined {
        value = builder.reshape(value, &sizes)?;
    }
    Ok(Labelled { value, labels })
}

/// Whether the axes of a batch stay as they are: there are five dimensions at most.
fn is_batch_kept(roles: &Roles) -> bool {
    roles.batch.len() <= 3
}

/// A tensor as a matrix for each item of the batch, and whether its last two axes are exchanged.
fn matrix(
    builder: &mut Builder,
    tensor: &Labelled,
    roles: &Roles,
    own: &[Label],
    is_right: bool,
) -> Result<(ValueId, bool), Refusal> {
    let (depth, batch) = (&roles.depth, &roles.batch);
    let straight = if is_right { [depth.as_slice(), own] } else { [own, depth.as_slice()] };
    let exchanged = [straight[1], straight[0]];
    let whole = |groups: [&[Label]; 2]| [batch.as_slice(), groups[0], groups[1]].concat();
    // Whichever needs no transposition.
    let is_exchanged = tensor.labels == whole(exchanged) && tensor.labels != whole(straight);
    let groups = if is_exchanged { exchanged } else { straight };
    let mut value = tensor.ordered(builder, &whole(groups))?;
    if groups.iter().any(|group| group.len() != 1) || !is_batch_kept(roles) {
        let mut sizes = Vec::new();
        if is_batch_kept(roles) {
            for &label in batch {
                sizes.push(tensor.dim(builder, label)?);
            }
        } else {
            sizes.push(joined(builder, tensor, batch)?);
        }
        for group in groups {
            sizes.push(joined(builder, tensor, group)?);
        }
        value = builder.reshape(value, &sizes)?;
    }
    Ok((value, is_exchanged))
}

/// How many elements axes have together.
fn joined(builder: &mut Builder, tensor: &Labelled, labels: &[Label]) -> Result<Int, Refusal> {
    let mut known = 1i64;
    let mut computed = None;
    for &label in labels {
        match tensor.dim(builder, label)? {
            Int::Known(extent) => known *= extent,
            Int::Computed(extent) => {
                computed = Some(match computed {
                    None => extent,
                    Some(other) => builder.binary(OpKind::Mul, other, extent)?,
                });
            }
        }
    }
    Ok(match computed {
        None => Int::Known(known),
        Some(value) if known == 1 => Int::Computed(value),
        Some(value) => {
            let known = crate::lower::builder::int32(known)?;
            Int::Computed(builder.binary(OpKind::Mul, value, known)?)
        }
    })
}

fn einsum(call: &mut Call<'_, '_>) -> Results {
    let Argument::Text(equation) = call.argument("equation")? else {
        refuse!("`equation` is not a text");
    };
    let dtype = call.result_dtype()?;
    let tensors = call.tensors("tensors")?;
    let mut values = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        values.push(call.cast_to(tensor.value, dtype)?);
    }
    let ranks: Vec<_> = values.iter().map(|&value| call.rank(value)).collect();
    let (inputs, output) = labels_of(equation, &ranks)?;
    let operands = values.into_iter().zip(inputs);
    let operands = operands.map(|(value, labels)| Labelled { value, labels }).collect();
    let y = contract(call, operands, &output)?;
    call.give(y)
}

/// The labels of each tensor and of the result. Dots stand for axes that have no letter, aligned at the
/// end.
fn labels_of(equation: &str, ranks: &[usize]) -> Result<(Vec<Vec<Label>>, Vec<Label>), Refusal> {
    let equation: String = equation.chars().filter(|letter| !letter.is_whitespace()).collect();
    let (inputs, output) = match equation.split_once("->") {
        Some((inputs, output)) => (inputs, Some(output)),
        None => (equation.as_str(), None),
    };
    let terms: Vec<_> = inputs.split(',').collect();
    if terms.len() != ranks.len() {
        refuse!("`{equation}` is about {} tensors, but there are {}", terms.len(), ranks.len());
    }
    // Axes without a letter count down from the largest label.
    let unnamed = |count: usize| (0..count as Label).rev().map(|at| Label::MAX - at);
    let labels = |term: &str, dots: usize| -> Vec<Label> {
        match term.split_once("...") {
            None => term.chars().map(Label::from).collect(),
            Some((before, after)) => {
                let before = before.chars().map(Label::from);
                before.chain(unnamed(dots)).chain(after.chars().map(Label::from)).collect()
            }
        }
    };
    let mut all = Vec::with_capacity(terms.len());
    let mut most = 0;
    for (term, &rank) in terms.iter().zip(ranks) {
        let letters = term.chars().filter(|letter| letter.is_alphabetic()).count();
        let dots = if term.contains("...") { rank.saturating_sub(letters) } else { 0 };
        most = most.max(dots);
        let labels = labels(term, dots);
        if labels.len() != rank {
            refuse!("`{term}` names {} axes of a tensor of rank {rank}", labels.len());
        }
        all.push(labels);
    }
    let output = match output {
        Some(output) => labels(output, most),
        None => {
            let letters = all.iter().flatten().copied();
            let mut once: Vec<_> = letters.filter(|label| *label < Label::MAX - 64).collect();
            once.sort_unstable();
            let single =
                once.iter().filter(|label| once.iter().filter(|other| other == label).count() == 1);
            unnamed(most).chain(single.copied()).collect()
        }
    };
    Ok((all, output))
}

/// A sum of products of three tensors, which have axes of one element put in.
fn trilinear(call: &mut Call<'_, '_>) -> Results {
    let mut operands = Vec::with_capacity(3);
    let mut whole = 0;
    for (tensor, expand) in [("i1", "expand1"), ("i2", "expand2"), ("i3", "expand3")] {
        let value = call.tensor(tensor)?.value;
        let put_in = call.known_ints(expand)?;
        let rank = call.rank(value) + put_in.len();
        whole = whole.max(rank);
        let put_in: Vec<_> =
            put_in.into_iter().map(|axis| normalized(axis, rank)).collect::<Result<_, _>>()?;
        let labels = (0..rank).filter(|axis| !put_in.contains(axis)).map(|axis| axis as Label);
        operands.push(Labelled { value, labels: labels.collect() });
    }
    let summed = call.known_ints("sumdim")?;
    let summed: Vec<_> =
        summed.into_iter().map(|axis| normalized(axis, whole)).collect::<Result<_, _>>()?;
    let output = (0..whole).filter(|axis| !summed.contains(axis)).map(|axis| axis as Label);
    let y = contract(call, operands, &output.collect::<Vec<_>>())?;
    call.give(y)
}
