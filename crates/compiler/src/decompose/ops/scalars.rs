//! Numbers in programs, mostly sizes.

use crate::decompose::prelude::*;

pub(crate) const ROWS: &[Row] = &[
    by(
        function,
        &[
            "_operator.{add,sub,mul,floordiv,truediv,mod,neg,not_}",
            "_operator.{eq,lt,le,gt,ge}",
            "torch.sym_{max,min,float,int,not,ite}",
            "math.{ceil,trunc}",
            "builtins.{round,max,min}",
        ],
    ),
    by(different, &["_operator.ne"]),
    by(floor, &["math.floor", "_operator.floor"]),
    by(power, &["_operator.pow"]),
    by(both, &["_operator.and_", "_operator.or_"]),
    by(sum, &["torch.sym_sum"]),
    by(item, &["aten.item", "aten._local_scalar_dense"]),
];

/// Calls one of ExecuTorch's functions on numbers.
fn primitive(call: &mut Call<'_>, name: &str, operands: Vec<Argument>) -> Results {
    Ok(vec![RewriteResult::Number(call.prim(name, operands)?)])
}

fn operands(call: &Call<'_>) -> Result<Vec<Argument>> {
    if let Some(odd) = call.node.arguments.iter().find(|one| call.number_dtype(one).is_none()) {
        refuse!("`{}` requires numbers, got {odd:?}", call.node.target);
    }
    Ok(call.node.arguments.clone())
}

fn function(call: &mut Call<'_>) -> Results {
    let operands = operands(call)?;
    let name = call.name();
    let name = match name.rsplit('.').next().unwrap_or(name) {
        "not_" => "sym_not",
        "max" => "sym_max",
        "min" => "sym_min",
        name => name,
    };
    primitive(call, name, operands)
}

fn different(call: &mut Call<'_>) -> Results {
    let operands = operands(call)?;
    let same = call.prim("eq", operands)?;
    primitive(call, "sym_not", vec![same])
}

/// floor(x) = -ceil(-x).
fn floor(call: &mut Call<'_>) -> Results {
    let operands = operands(call)?;
    let opposite = call.prim("neg", operands)?;
    let above = call.prim("ceil", vec![opposite])?;
    primitive(call, "neg", vec![above])
}

fn power(call: &mut Call<'_>) -> Results {
    let operands = operands(call)?;
    let [base, Argument::Int(exponent @ 1..=8)] = operands.as_slice() else {
        refuse!("the exponent of a computed number must be from 1 to 8");
    };
    let mut product = base.clone();
    for _ in 1..*exponent {
        product = call.prim("mul", vec![product, base.clone()])?;
    }
    Ok(vec![RewriteResult::Number(product)])
}

fn both(call: &mut Call<'_>) -> Results {
    let operands = operands(call)?;
    let [left, right] = operands.as_slice() else {
        refuse!("a conjunction must have two operands")
    };
    let wants_both = call.name() == "_operator.and_";
    let (yes, no) = if wants_both { (right, left) } else { (left, right) };
    primitive(call, "sym_ite", vec![left.clone(), yes.clone(), no.clone()])
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
    Ok(vec![RewriteResult::Number(total)])
}

/// The only element of a tensor, as a number.
fn item(call: &mut Call<'_>) -> Results {
    let x = call.tensor("self")?;
    let flat = call.view(&x, Vec::new())?;
    let meta = match call.node.outputs.first() {
        Some(coremill_pt2::Output::Value(id)) => call.frame.value(*id).meta.clone(),
        _ => refuse!("the number is unused"),
    };
    let operator = "aten._local_scalar_dense.default";
    Ok(vec![RewriteResult::Number(call.emit_number(operator, given!(self = flat), meta)?)])
}
