//! Einstein sums: operands are contracted one after the other, each pair as one product of batches of matrices.

use coremill_pt2::{Argument, Size};

use crate::bounds::{At, take};
use crate::decompose::call::{Call, Results, Tensor, one};
use crate::decompose::size;
use crate::decompose::words::Maybe;
use crate::error::{Refusal, refuse};

/// A letter of the equation; those of an ellipsis count from the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Label {
    Ellipsis(usize),
    Letter(char),
}

/// A tensor and what its dimensions are called.
struct Labelled {
    tensor: Tensor,
    labels: Vec<Label>,
}

pub(crate) fn einsum(call: &mut Call<'_>) -> Results {
    let equation = call.text("equation")?.replace(' ', "");
    let tensors = call.tensors("tensors")?;
    let (left, right) = match equation.split_once("->") {
        Some((left, right)) => (left, Some(right)),
        None => (equation.as_str(), None),
    };
    let terms: Vec<&str> = left.split(',').collect();
    if terms.len() != tensors.len() {
        refuse!("`{equation}` has {} terms for {} tensors", terms.len(), tensors.len());
    }
    let mut all = Vec::with_capacity(tensors.len());
    for (term, tensor) in terms.into_iter().zip(&tensors) {
        all.push(labels(term, Some(tensor.rank()))?);
    }
    let in_ellipsis = |labels: &Vec<Label>| {
        labels.iter().filter(|label| matches!(label, Label::Ellipsis(_))).count()
    };
    let ellipsis = all.iter().map(in_ellipsis).max().unwrap_or(0);
    let wanted = match right {
        Some(right) => output_labels(right, ellipsis)?,
        None => implicit(&all, ellipsis),
    };
    let mut operands = Vec::with_capacity(tensors.len());
    for (labels, tensor) in all.into_iter().zip(tensors) {
        operands.push(without_repeats(call, Labelled { tensor, labels })?);
    }
    let mut rest = operands.into_iter();
    let Some(mut sum) = rest.next() else { refuse!("there is nothing to sum") };
    let rest: Vec<_> = rest.collect();
    for (index, next) in rest.iter().enumerate() {
        let later = rest.part(index + 1..)?;
        let kept = |label: &Label| {
            wanted.contains(label) || later.iter().any(|one| one.labels.contains(label))
        };
        sum = contract(call, sum, next, &kept)?;
    }
    let sum = summed(call, sum, &|label| wanted.contains(label))?;
    let mut order = Vec::with_capacity(wanted.len());
    for label in &wanted {
        match sum.labels.iter().position(|one| one == label) {
            Some(at) => order.push(at),
            None => refuse!("`{equation}` gives a dimension that no term has"),
        }
    }
    one(call.permute(&sum.tensor, &order)?)
}

/// The labels of a term; an ellipsis has as many as the rank leaves.
fn labels(term: &str, rank: Option<usize>) -> Result<Vec<Label>, Refusal> {
    let letters = |text: &str| -> Result<Vec<Label>, Refusal> {
        if let Some(odd) = text.chars().find(|c| !c.is_ascii_alphabetic()) {
            refuse!("`{odd}` is not a letter of an equation");
        }
        Ok(text.chars().map(Label::Letter).collect())
    };
    let Some((before, after)) = term.split_once("...") else { return letters(term) };
    let (before, after) = (letters(before)?, letters(after)?);
    let named = before.len() + after.len();
    let Some(count) = rank.and_then(|rank| rank.checked_sub(named)) else {
        refuse!("a term has more letters than its tensor dimensions");
    };
    let ellipsis = (0..count).rev().map(Label::Ellipsis);
    Ok(before.into_iter().chain(ellipsis).chain(after).collect())
}

fn output_labels(text: &str, ellipsis: usize) -> Result<Vec<Label>, Refusal> {
    let named = text.replace("...", "").chars().count();
    labels(text, Some(named + ellipsis))
}

/// Without an arrow the result has what occurs once, in alphabetical order, after the ellipsis.
fn implicit(terms: &[Vec<Label>], ellipsis: usize) -> Vec<Label> {
    let mut letters: Vec<Label> = terms.iter().flatten().copied().collect();
    letters.retain(|label| matches!(label, Label::Letter(_)));
    letters.sort_unstable();
    let all = letters.clone();
    letters.retain(|label| all.iter().filter(|one| *one == label).count() == 1);
    (0..ellipsis).rev().map(Label::Ellipsis).chain(letters).collect()
}

/// A letter twice in one term means the diagonal.
fn without_repeats(call: &mut Call<'_>, mut operand: Labelled) -> Result<Labelled, Refusal> {
    if operand.labels.len() != operand.tensor.rank() {
        refuse!("a term has not as many letters as its tensor dimensions");
    }
    while let Some((first, second)) = repeat(&operand.labels) {
        let Labelled { tensor, mut labels } = operand;
        let label = *labels.at(first)?;
        let mut sizes = tensor.sizes.clone();
        let length = take(&mut sizes, second)?;
        take(&mut sizes, first)?;
        sizes.push(length);
        let given = [
            ("self", tensor.argument()),
            ("dim1", Argument::Int(first as i64)),
            ("dim2", Argument::Int(second as i64)),
        ];
        let tensor = call.emit("aten.diagonal_copy.default", &given, tensor.dtype, sizes)?;
        take(&mut labels, second)?;
        take(&mut labels, first)?;
        labels.push(label);
        operand = Labelled { tensor, labels };
    }
    Ok(operand)
}

fn repeat(labels: &[Label]) -> Option<(usize, usize)> {
    labels.iter().enumerate().find_map(|(second, label)| {
        let first = labels.iter().position(|one| one == label)?;
        (first < second).then_some((first, second))
    })
}

/// The sum over all dimensions that are not kept.
fn summed(
    call: &mut Call<'_>,
    operand: Labelled,
    kept: &dyn Fn(&Label) -> bool,
) -> Result<Labelled, Refusal> {
    let labels = operand.labels.iter().enumerate();
    let places: Vec<usize> = labels.filter(|(_, label)| !kept(label)).map(|(at, _)| at).collect();
    if places.is_empty() {
        return Ok(operand);
    }
    let sum = call.sum(&operand.tensor, &places, false)?;
    let tensor = call.cast(&sum, operand.tensor.dtype)?;
    let labels = operand.labels.into_iter().filter(|label| kept(label)).collect();
    Ok(Labelled { tensor, labels })
}

fn contract(
    call: &mut Call<'_>,
    left: Labelled,
    right: &Labelled,
    kept: &dyn Fn(&Label) -> bool,
) -> Result<Labelled, Refusal> {
    let right_labels = right.labels.clone();
    let left_labels = left.labels.clone();
    let left = summed(call, left, &|label| kept(label) || right_labels.contains(label))?;
    let right = Labelled { tensor: right.tensor.clone(), labels: right.labels.clone() };
    let right = summed(call, right, &|label| kept(label) || left_labels.contains(label))?;
    let shared: Vec<Label> =
        left.labels.iter().copied().filter(|label| right.labels.contains(label)).collect();
    let (batch, inner): (Vec<Label>, Vec<Label>) = shared.iter().partition(|label| kept(label));
    let only = |one: &Labelled| -> Vec<Label> {
        one.labels.iter().copied().filter(|label| !shared.contains(label)).collect()
    };
    let (rows, columns) = (only(&left), only(&right));
    let size_of = |label: &Label| -> Size {
        let of = |one: &Labelled| {
            let mut sizes = one.labels.iter().zip(&one.tensor.sizes);
            let found = sizes.find(|(other, _)| *other == label);
            found.map_or(Size::Fixed(1), |(_, size)| size.clone())
        };
        match of(&left) {
            Size::Fixed(1) => of(&right),
            size => size,
        }
    };
    let sizes = |labels: &[Label]| -> Vec<Size> { labels.iter().map(size_of).collect() };
    let count = |labels: &[Label]| size::product(&sizes(labels));
    let x = arranged(call, &left, &[&batch, &rows, &inner], &sizes)?;
    let x = call.view(&x, vec![count(&batch), count(&rows), count(&inner)])?;
    let y = arranged(call, &right, &[&batch, &inner, &columns], &sizes)?;
    let y = call.view(&y, vec![count(&batch), count(&inner), count(&columns)])?;
    let product = call.bmm(&x, &y)?;
    let labels = [batch, rows, columns].concat();
    let tensor = call.view(&product, sizes(&labels))?;
    Ok(Labelled { tensor, labels })
}

/// The tensor with its dimensions in this order, those of 1 repeated.
fn arranged(
    call: &mut Call<'_>,
    operand: &Labelled,
    groups: &[&[Label]],
    sizes: &dyn Fn(&[Label]) -> Vec<Size>,
) -> Maybe {
    let wanted = groups.concat();
    let place = |label: &Label| operand.labels.iter().position(|one| one == label);
    let Some(order) = wanted.iter().map(place).collect::<Option<Vec<_>>>() else {
        refuse!("an operand lacks a dimension");
    };
    let turned = call.permute(&operand.tensor, &order)?;
    call.expand(&turned, sizes(&wanted))
}
