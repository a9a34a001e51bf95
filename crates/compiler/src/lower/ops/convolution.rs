//! Convolutions.

use coremill_mil::ops::OpKind;

use crate::error::refuse;
use crate::lower::call::{Call, Results};
use crate::lower::table::{Row, some};

pub(crate) const ROWS: &[Row] = &[
    some("aten.conv1d", &["default", "padding"], convolution),
    some("aten.conv2d", &["default", "padding"], convolution),
    some("aten.conv3d", &["default", "padding"], convolution),
];

fn convolution(call: &mut Call<'_, '_>) -> Results {
    let x = call.tensor("input")?.value;
    let weight = call.tensor("weight")?.value;
    let bias = call.optional_tensor("bias")?.map(|bias| bias.value);
    let spatial = call.rank(weight) - 2;
    let strides = call.per_dimension("stride", spatial)?;
    let dilations = call.per_dimension("dilation", spatial)?;
    let groups = call.known_int("groups")? as i32;
    let (kind, pad) = match call.text("padding") {
        Ok(Some("same")) => ("same", vec![0; 2 * spatial]),
        Ok(Some("valid")) => ("valid", vec![0; 2 * spatial]),
        Ok(Some(other)) => refuse!("padding `{other}` is none that is known"),
        Ok(None) | Err(_) => {
            let padding = call.per_dimension("padding", spatial)?;
            let pad: Vec<_> = padding.iter().flat_map(|&pad| [pad, pad]).collect();
            if pad.iter().all(|&pad| pad == 0) { ("valid", pad) } else { ("custom", pad) }
        }
    };
    let y = call.emit(
        OpKind::Conv,
        [
            ("x", x.into()),
            ("weight", weight.into()),
            ("bias", bias.into()),
            ("strides", strides.as_slice().into()),
            ("dilations", dilations.as_slice().into()),
            ("groups", groups.into()),
            ("pad_type", kind.into()),
            ("pad", pad.as_slice().into()),
        ],
    )?;
    call.give(y)
}
