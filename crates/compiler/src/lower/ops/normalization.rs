//! Normalizations.

use coremill_mil::ops::OpKind;

use crate::error::refuse;
use crate::lower::call::{Call, Results};
use crate::lower::table::{Row, all};

pub(crate) const ROWS: &[Row] =
    &[all("aten.batch_norm", batch_norm), all("aten.layer_norm", layer_norm)];

fn batch_norm(call: &mut Call<'_, '_>) -> Results {
    if call.flag("training")? {
        refuse!("batch norm takes the statistics of the batch; export the model after `eval()`");
    }
    let x = call.tensor("input")?.value;
    let mean = call.tensor("running_mean")?.value;
    let variance = call.tensor("running_var")?.value;
    let weight = call.optional_tensor("weight")?.map(|weight| weight.value);
    let bias = call.optional_tensor("bias")?.map(|bias| bias.value);
    let epsilon = call.float("eps")? as f32;
    let y = call.emit(
        OpKind::BatchNorm,
        [
            ("x", x.into()),
            ("mean", mean.into()),
            ("variance", variance.into()),
            ("gamma", weight.into()),
            ("beta", bias.into()),
            ("epsilon", epsilon.into()),
        ],
    )?;
    call.give(y)
}

fn layer_norm(call: &mut Call<'_, '_>) -> Results {
    let x = call.tensor("input")?.value;
    let weight = call.optional_tensor("weight")?.map(|weight| weight.value);
    let bias = call.optional_tensor("bias")?.map(|bias| bias.value);
    let count = call.int_list("normalized_shape")?.len() as i32;
    let axes: Vec<_> = (-count..0).collect();
    let epsilon = call.float("eps")? as f32;
    let y = call.emit(
        OpKind::LayerNorm,
        [
            ("x", x.into()),
            ("axes", axes.as_slice().into()),
            ("gamma", weight.into()),
            ("beta", bias.into()),
            ("epsilon", epsilon.into()),
        ],
    )?;
    call.give(y)
}
