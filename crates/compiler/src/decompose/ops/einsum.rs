//! Einstein sums, contracting one operand after the other.
//!
//! Two tensors are contracted at a time. Dimensions of both tensors and the result are batch dimensions. Dimensions
//! of both tensors only are summed. After a permutation this is a matrix product, or an elementwise product without
//! summed dimensions.

use crate::decompose::prelude::*;

/// A dimension label of the equation. Ellipsis dimensions count from the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Label {
    Ellipsis(usize),
    Letter(char),
}

/// A tensor with a label per dimension.
#[derive(Clone)]
struct LabeledTensor {
    tensor: Tensor,
    labels: Vec<Label>,
}

impl LabeledTensor {
    fn has(&self, label: &Label) -> bool {
        self.labels.contains(label)
    }

    fn size(&self, label: &Label) -> Size {
        let at = self.labels.iter().position(|own| own == label);
        at.and_then(|at| self.tensor.sizes.get(at).cloned()).unwrap_or(Size::Fixed(1))
    }

    fn sizes(&self, labels: &[Label]) -> Vec<Size> {
        labels.iter().map(|label| self.size(label)).collect()
    }

    /// Product of the sizes of dimensions.
    fn joined(&self, labels: &[Label]) -> Size {
        size::product(&self.sizes(labels))
    }

    /// Sums over dimensions.
    fn without(self, call: &mut Call<'_>, gone: &[Label]) -> Result<LabeledTensor> {
        let labels = self.labels.iter().enumerate();
        let places: Vec<_> =
            labels.filter(|(_, label)| gone.contains(label)).map(|(at, _)| at).collect();
        if places.is_empty() {
            return Ok(self);
        }
        let labels: Vec<_> =
            self.labels.iter().copied().filter(|label| !gone.contains(label)).collect();
        let tensor = if gone.iter().all(|label| self.size(label) == Size::Fixed(1)) {
            call.view(&self.tensor, self.sizes(&labels))?
        } else {
            call.sum_as(&self.tensor, &places, false, self.tensor.dtype)?
        };
        Ok(LabeledTensor { tensor, labels })
    }

    /// Permutes the dimensions.
    fn ordered(&self, call: &mut Call<'_>, labels: &[Label]) -> TensorResult {
        let place = |label: &Label| self.labels.iter().position(|own| own == label);
        match labels.iter().map(place).collect::<Option<Vec<_>>>() {
            Some(order) => call.permute(&self.tensor, &order),
            None => refuse!("a dimension of the result is in none of the operands"),
        }
    }

    /// A letter repeated in one term selects the diagonal.
    fn without_repeats(mut self, call: &mut Call<'_>) -> Result<LabeledTensor> {
        if self.labels.len() != self.tensor.rank() {
            refuse!("the number of letters of a term must equal the rank of its tensor");
        }
        while let Some((first, second)) = repeat(&self.labels) {
            let mut sizes = self.tensor.sizes.clone();
            let length = take(&mut sizes, second)?;
            take(&mut sizes, first)?;
            sizes.push(length);
            let given = given!(self = self.tensor, dim1 = first, dim2 = second);
            let dtype = self.tensor.dtype;
            self.tensor = call.emit("aten.diagonal_copy.default", given, dtype, sizes)?;
            let label = take(&mut self.labels, second)?;
            take(&mut self.labels, first)?;
            self.labels.push(label);
        }
        Ok(self)
    }
}

fn repeat(labels: &[Label]) -> Option<(usize, usize)> {
    labels.iter().enumerate().find_map(|(second, label)| {
        let first = labels.iter().position(|one| one == label)?;
        (first < second).then_some((first, second))
    })
}

pub(crate) fn einsum(call: &mut Call<'_>) -> Results {
    let equation = call.text("equation")?.replace(' ', "");
    let tensors = call.tensors("tensors")?;
    let dtype = call.result(0)?.dtype;
    let (left, right) = match equation.split_once("->") {
        Some((left, right)) => (left, Some(right)),
        None => (equation.as_str(), None),
    };
    let terms: Vec<&str> = left.split(',').collect();
    if terms.len() != tensors.len() {
        refuse!("`{equation}` has {} terms for {} tensors", terms.len(), tensors.len());
    }
    let mut operands = Vec::with_capacity(tensors.len());
    let mut ellipsis = 0;
    for (term, tensor) in terms.into_iter().zip(&tensors) {
        let labels = labels(term, Some(tensor.rank()))?;
        let unnamed = labels.iter().filter(|label| matches!(label, Label::Ellipsis(_))).count();
        ellipsis = ellipsis.max(unnamed);
        operands.push(LabeledTensor { tensor: call.cast(tensor, dtype)?, labels });
    }
    let wanted = match right {
        Some(right) => output_labels(right, ellipsis)?,
        None => implicit(&operands, ellipsis),
    };
    one(contracted(call, operands, &wanted)?)
}

/// Sum of products of three tensors with inserted unit dimensions.
pub(crate) fn trilinear(call: &mut Call<'_>) -> Results {
    let mut operands = Vec::with_capacity(3);
    let mut whole = 0;
    for (name, expand) in [("i1", "expand1"), ("i2", "expand2"), ("i3", "expand3")] {
        let tensor = call.tensor(name)?;
        let put_in = call.ints(expand)?;
        let rank = tensor.rank() + put_in.len();
        whole = whole.max(rank);
        let put_in = put_in.into_iter().map(|at| position(at, rank));
        let put_in = put_in.collect::<Result<Vec<_>, _>>()?;
        let labels = (0..rank).filter(|at| !put_in.contains(at)).map(Label::Ellipsis).collect();
        operands.push(LabeledTensor { tensor, labels });
    }
    let summed = call.positions("sumdim", whole)?;
    let wanted: Vec<_> =
        (0..whole).filter(|at| !summed.contains(at)).map(Label::Ellipsis).collect();
    one(contracted(call, operands, &wanted)?)
}

/// Contracts pairs of dimensions of two tensors.
pub(crate) fn tensordot(call: &mut Call<'_>) -> Results {
    let (x, y) = (call.tensor("self")?, call.tensor("other")?);
    let left = call.positions("dims_self", x.rank())?;
    let right = call.positions("dims_other", y.rank())?;
    one(summed(call, x, y, &left, &right)?)
}

/// Contracts the last dimensions, or multiplies by a scalar.
pub(crate) fn inner(call: &mut Call<'_>) -> Results {
    let (x, y) = (call.tensor("self")?, call.tensor("other")?);
    let (left, right) = (x.rank().checked_sub(1), y.rank().checked_sub(1));
    let (left, right) = left.zip(right).unzip();
    one(summed(call, x, y, left.as_slice(), right.as_slice())?)
}

/// Contracts dimensions `left` of `x` with dimensions `right` of `y`.
fn summed(
    call: &mut Call<'_>,
    x: Tensor,
    y: Tensor,
    left: &[usize],
    right: &[usize],
) -> TensorResult {
    let mut of_y: Vec<_> = (0..y.rank()).map(|at| Label::Ellipsis(x.rank() + at)).collect();
    for (from, to) in left.iter().zip(right) {
        *of_y.at_mut(*to)? = Label::Ellipsis(*from);
    }
    let of_x: Vec<_> = (0..x.rank()).map(Label::Ellipsis).collect();
    let wanted = of_x.iter().filter(|label| !of_y.contains(label));
    let wanted: Vec<_> =
        wanted.chain(of_y.iter().filter(|label| !of_x.contains(label))).copied().collect();
    let both =
        vec![LabeledTensor { tensor: x, labels: of_x }, LabeledTensor { tensor: y, labels: of_y }];
    contracted(call, both, &wanted)
}

/// Labels of a term; an ellipsis covers the remaining rank.
fn labels(term: &str, rank: Option<usize>) -> Result<Vec<Label>> {
    let letters = |text: &str| -> Result<Vec<Label>> {
        if let Some(odd) = text.chars().find(|c| !c.is_ascii_alphabetic()) {
            refuse!("`{odd}` is not allowed in an equation");
        }
        Ok(text.chars().map(Label::Letter).collect())
    };
    let Some((before, after)) = term.split_once("...") else { return letters(term) };
    let (before, after) = (letters(before)?, letters(after)?);
    let named = before.len() + after.len();
    let Some(count) = rank.and_then(|rank| rank.checked_sub(named)) else {
        refuse!("a term has more letters than its tensor has dimensions");
    };
    let ellipsis = (0..count).rev().map(Label::Ellipsis);
    Ok(before.into_iter().chain(ellipsis).chain(after).collect())
}

fn output_labels(text: &str, ellipsis: usize) -> Result<Vec<Label>> {
    let named = text.replace("...", "").chars().count();
    labels(text, Some(named + ellipsis))
}

/// Result labels of an equation without an arrow: the ellipsis, then the letters that occur once, in alphabetical
/// order.
fn implicit(terms: &[LabeledTensor], ellipsis: usize) -> Vec<Label> {
    let mut letters: Vec<Label> = terms.iter().flat_map(|term| &term.labels).copied().collect();
    letters.retain(|label| matches!(label, Label::Letter(_)));
    letters.sort_unstable();
    let all = letters.clone();
    letters.retain(|label| all.iter().filter(|one| *one == label).count() == 1);
    (0..ellipsis).rev().map(Label::Ellipsis).chain(letters).collect()
}

/// Contracts tensors to a result with these labels.
fn contracted(call: &mut Call<'_>, operands: Vec<LabeledTensor>, wanted: &[Label]) -> TensorResult {
    let rest = operands.into_iter().map(|operand| operand.without_repeats(call));
    let mut rest = rest.collect::<Result<Vec<_>, _>>()?.into_iter();
    let Some(mut sum) = rest.next() else { refuse!("expected at least one term to sum") };
    while let Some(next) = rest.next() {
        let later = rest.as_slice();
        let needed =
            |label: &Label| wanted.contains(label) || later.iter().any(|one| one.has(label));
        sum = pair(call, sum, next, &needed, if later.is_empty() { wanted } else { &[] })?;
    }
    let gone: Vec<_> = sum.labels.iter().copied().filter(|own| !wanted.contains(own)).collect();
    sum.without(call, &gone)?.ordered(call, wanted)
}

fn pair(
    call: &mut Call<'_>,
    left: LabeledTensor,
    right: LabeledTensor,
    needed: &dyn Fn(&Label) -> bool,
    wanted: &[Label],
) -> Result<LabeledTensor> {
    // A unit dimension that broadcasts can be summed away.
    let alone = |one: &LabeledTensor, other: &LabeledTensor| -> Vec<Label> {
        let is_alone = |label: &Label| match other.has(label) {
            true => one.size(label) == Size::Fixed(1) && other.size(label) != Size::Fixed(1),
            false => !needed(label),
        };
        one.labels.iter().copied().filter(is_alone).collect()
    };
    let (of_left, of_right) = (alone(&left, &right), alone(&right, &left));
    let (left, right) = (left.without(call, &of_left)?, right.without(call, &of_right)?);
    // The tensor whose own dimensions come first in the result is the left operand.
    let first = |one: &LabeledTensor, other: &LabeledTensor| {
        wanted.iter().position(|label| one.has(label) && !other.has(label))
    };
    let (left, right) = match (first(&left, &right), first(&right, &left)) {
        (Some(one), Some(other)) if other < one => (right, left),
        _ => (left, right),
    };
    let both = left.labels.iter().copied().filter(|label| right.has(label));
    let (mut batch, depth): (Vec<_>, Vec<_>) = both.partition(|label| needed(label));
    let own = |one: &LabeledTensor, other: &LabeledTensor| -> Vec<Label> {
        one.labels.iter().copied().filter(|label| !other.has(label)).collect()
    };
    let (mut rows, mut columns) = (own(&left, &right), own(&right, &left));
    // With dimensions in result order no final permutation is needed.
    for labels in [&mut batch, &mut rows, &mut columns] {
        labels.sort_by_key(|label| wanted.iter().position(|own| own == label));
    }
    if depth.is_empty() || (rows.is_empty() && columns.is_empty()) {
        return elementwise(call, &left, &right, [batch, rows, columns].concat(), &depth);
    }
    // Core ML's rank is limited, so many batch dimensions are merged.
    let kept = batch.len() <= 3;
    let batch_sizes = if kept { left.sizes(&batch) } else { vec![left.joined(&batch)] };
    let matrix = |call: &mut Call<'_>, tensor: &LabeledTensor, groups: [&[Label]; 2]| {
        let [first, second] = groups;
        let turned = [second, first];
        let whole = |[first, second]: [&[Label]; 2]| [&batch, first, second].concat();
        // Prefers the orientation that needs no permutation.
        let is_turned = tensor.labels == whole(turned) && tensor.labels != whole(groups);
        let groups = if is_turned { turned } else { groups };
        let mut value = tensor.ordered(call, &whole(groups))?;
        if !kept || groups.iter().any(|group| group.len() != 1) {
            let sides = groups.map(|group| tensor.joined(group));
            value = call.view(&value, [batch_sizes.as_slice(), &sides].concat())?;
        }
        if is_turned { call.turned(&value) } else { Ok(value) }
    };
    let x = matrix(call, &left, [&rows, &depth])?;
    let y = matrix(call, &right, [&depth, &columns])?;
    let product = call.matmul(&x, &y)?;
    let sizes = [left.sizes(&batch), left.sizes(&rows), right.sizes(&columns)].concat();
    Ok(LabeledTensor {
        tensor: call.view(&product, sizes)?,
        labels: [batch, rows, columns].concat(),
    })
}

/// Elementwise product, then a sum.
fn elementwise(
    call: &mut Call<'_>,
    left: &LabeledTensor,
    right: &LabeledTensor,
    mut labels: Vec<Label>,
    depth: &[Label],
) -> Result<LabeledTensor> {
    labels.extend(depth);
    let factor = |call: &mut Call<'_>, tensor: &LabeledTensor| {
        let own: Vec<_> = labels.iter().copied().filter(|label| tensor.has(label)).collect();
        let value = tensor.ordered(call, &own)?;
        call.view(&value, tensor.sizes(&labels))
    };
    let (x, y) = (factor(call, left)?, factor(call, right)?);
    let tensor = call.multiply(&x, &y)?;
    LabeledTensor { tensor, labels }.without(call, depth)
}
