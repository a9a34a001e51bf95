//! Grouped matrix products of mixture-of-experts layers: each row is multiplied by the matrix of its group.

use crate::decompose::prelude::*;

pub(crate) const ROWS: &[Row] = &[
    by(of_transformers, &["transformers.grouped_mm_fallback"]),
    by(of_torch, &["aten._grouped_mm"]),
];

/// A library operator without a schema; the arguments are rows, matrices and ends.
fn of_transformers(call: &mut Call<'_>) -> Results {
    let arguments: Vec<Argument> = call.node.all_arguments().cloned().collect();
    let [rows, matrices, ends] = arguments.as_slice() else {
        refuse!("expected three arguments, got {}", arguments.len());
    };
    let rows = call.tensor_of("input", rows)?;
    let matrices = call.tensor_of("weight", matrices)?;
    let ends = call.tensor_of("offs", ends)?;
    grouped(call, &rows, &matrices, &ends)
}

fn of_torch(call: &mut Call<'_>) -> Results {
    let (rows, matrices) = (call.tensor("self")?, call.tensor("mat2")?);
    if call.has("bias") || !call.has("offs") {
        refuse!("groups must be defined by `offs`, without `bias`");
    }
    let ends = call.tensor("offs")?;
    grouped(call, &rows, &matrices, &ends)
}

/// Grouped product. Rows are sorted by group; `ends` holds the end of each group.
///
/// Each row is placed in the columns of its group within a long zero row. Multiplying by all matrices stacked
/// vertically then equals multiplying by the matrix of the group.
fn grouped(call: &mut Call<'_>, x: &Tensor, weight: &Tensor, ends: &Tensor) -> Results {
    if x.rank() != 2 || weight.rank() != 3 {
        refuse!(
            "the tensors have rank {} and {}; expected rows of rank 2 and matrices of rank 3",
            x.rank(),
            weight.rank()
        );
    }
    let Some(groups) = weight.extent(0)?.fixed().filter(|groups| *groups > 0) else {
        refuse!("the number of groups is unknown at compile time");
    };
    let ends = call.cast(ends, ScalarType::Int64)?;
    let count = call.count(x.extent(0)?, ScalarType::Int64)?;
    let row = call.unsqueeze(&count, 1)?;
    // The row index is at least the end of the previous group and below the end of its own.
    let before = call.compare("lt", &row, &ends)?;
    let starts = call.slice(&ends, 0, 0, groups - 1, 1)?;
    let starts = call.pad(&starts, &[1, 0], Argument::Int(0))?;
    let after = call.compare("ge", &row, &starts)?;
    let belongs = call.logic("logical_and", &before, &after)?;
    let belongs = call.unsqueeze(&belongs, 2)?;
    let rows = call.unsqueeze(x, 1)?;
    let zero = call.number_beside(Argument::Float(0.0), x)?;
    let placed = call.choose(&belongs, &rows, &zero)?;
    let depth = size::multiply(weight.extent(0)?, weight.extent(1)?);
    let long = call.view(&placed, vec![x.extent(0)?.clone(), depth.clone()])?;
    let tall = call.view(weight, vec![depth, weight.extent(2)?.clone()])?;
    one(call.mm(&long, &tall)?)
}
