//! Sums, products and comparisons.

use coremill_pt2::{Argument, Meta};

use crate::portable::call::{Call, Results};
use crate::portable::table::{Row, by, to};

pub(crate) const ROWS: &[Row] = &[
    by(
        with_numbers,
        &[
            "aten.add.Tensor",
            "aten.sub.Tensor",
            "aten.mul.Tensor",
            "aten.div.Tensor",
            "aten.eq.Tensor",
            "aten.ne.Tensor",
            "aten.lt.Tensor",
            "aten.le.Tensor",
            "aten.gt.Tensor",
            "aten.ge.Tensor",
            "aten.remainder.Tensor",
            "aten.fmod.Tensor",
            "aten.bitwise_and.Tensor",
            "aten.bitwise_or.Tensor",
            "aten.bitwise_xor.Tensor",
        ],
    ),
    to("aten.mul.Tensor", &["aten.multiply.Tensor"]),
    to("aten.sub.Tensor", &["aten.subtract.Tensor"]),
    to("aten.div.Tensor", &["aten.divide.Tensor", "aten.true_divide.Tensor"]),
];

/// A number in the place of the second tensor has a kernel of its own.
fn with_numbers(call: &mut Call<'_>) -> Results {
    let operator = call.node.target.to_string();
    let second = call.argument("other")?;
    let is_tensor = matches!(second, Argument::Value(id)
        if matches!(call.frame.graph.value(*id).meta, Meta::Tensor(_)));
    if is_tensor {
        return call.renamed(&operator);
    }
    call.renamed(&operator.replace(".Tensor", ".Scalar"))
}
