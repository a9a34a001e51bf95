//! Numbers that a program computes with: sizes, mostly.

use coremill_pt2::Argument;

use crate::decompose::call::{Call, Made, Results};
use crate::decompose::row::{Row, by};
use crate::error::{Refusal, refuse};

pub(crate) const ROWS: &[Row] = &[
    by(
        function,
        &[
            "_operator.add",
            "_operator.sub",
            "_operator.mul",
            "_operator.floordiv",
            "_operator.truediv",
            "_operator.mod",
            "_operator.neg",
            "_operator.eq",
            "_operator.lt",
            "_operator.le",
            "_operator.gt",
            "_operator.ge",
            "torch.sym_max",
            "torch.sym_min",
            "torch.sym_float",
            "torch.sym_int",
            "torch.sym_not",
            "torch.sym_ite",
            "math.ceil",
            "math.trunc",
            "_operator.not_",
            "builtins.round",
            "builtins.max",
            "builtins.min",
        ],
    ),
    by(different, &["_operator.ne"]),
    by(floor, &["math.floor", "_operator.floor"]),
    by(power, &["_operator.pow"]),
    by(both, &["_operator.and_", "_operator.or_"]),
    by(sum, &["torch.sym_sum"]),
    by(item, &["aten.item.default", "aten._local_scalar_dense.default"]),
];

/// A call of one of ExecuTorch's functions of numbers.
fn primitive(call: &mut Call<'_>, name: &str, operands: &[Argument]) -> Results {
    Ok(vec![Made::Number(call.prim(name, operands.to_vec())?)])
}

fn operands(call: &Call<'_>) -> Result<Vec<Argument>, Refusal> {
    if let Some(odd) = call.node.arguments.iter().find(|one| call.number_dtype(one).is_none()) {
        refuse!("`{}` of something that is not a number: {odd:?}", call.node.target);
    }
    Ok(call.node.arguments.clone())
}

fn function(call: &mut Call<'_>) -> Results {
    let operands = operands(call)?;
    let target = call.node.target.to_string();
    let name = match target.rsplit('.').next() {
        Some("not_") => "sym_not",
        Some("max") => "sym_max",
        Some("min") => "sym_min",
        Some(name) => name,
        None => refuse!("a function without a name"),
    };
    primitive(call, name, &operands)
}

fn different(call: &mut Call<'_>) -> Results {
    let operands = operands(call)?;
    let same = call.prim("eq", operands)?;
    primitive(call, "sym_not", &[same])
}

/// Minus the ceiling of what is opposite.
fn floor(call: &mut Call<'_>) -> Results {
    let operands = operands(call)?;
    let opposite = call.prim("neg", operands)?;
    let above = call.prim("ceil", vec![opposite])?;
    primitive(call, "neg", &[above])
}

fn power(call: &mut Call<'_>) -> Results {
    let operands = operands(call)?;
    let [base, Argument::Int(exponent @ 1..=8)] = operands.as_slice() else {
        refuse!("powers of numbers that the program computes are from 1 to 8");
    };
    let mut product = base.clone();
    for _ in 1..*exponent {
        product = call.prim("mul", vec![product, base.clone()])?;
    }
    Ok(vec![Made::Number(product)])
}

fn both(call: &mut Call<'_>) -> Results {
    let operands = operands(call)?;
    let [left, right] = operands.as_slice() else { refuse!("a conjunction has two operands") };
    let wants_both = call.node.target.to_string() == "_operator.and_";
    let (yes, no) = if wants_both { (right, left) } else { (left, right) };
    let operands = [left.clone(), yes.clone(), no.clone()];
    primitive(call, "sym_ite", &operands)
}

fn sum(call: &mut Call<'_>) -> Results {
    let items = match call.node.arguments.first() {
        Some(Argument::List(items)) => items.clone(),
        _ => operands(call)?,
    };
    let mut total = Argument::Int(0);
    for (index, item) in items.into_iter().enumerate() {
        total = if index == 0 { item } else { call.prim("add", vec![total, item])? };
    }
    Ok(vec![Made::Number(total)])
}

/// The only element of a tensor.
fn item(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let flat = call.view(&x, Vec::new())?;
    let meta = match call.node.outputs.first() {
        Some(coremill_pt2::Output::Value(id)) => call.frame.value(*id).meta.clone(),
        _ => refuse!("a number that nothing uses"),
    };
    let given = [("self", flat.argument())];
    Ok(vec![Made::Number(call.emit_number("aten._local_scalar_dense.default", &given, meta)?)])
}
