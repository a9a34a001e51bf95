//! Pooling: windows over the one to three spatial dimensions of `[batch, channels, ...]`.

use super::expect;
use super::window::{Padding, Window, check_pad_type};
use crate::infer::{InferContext, InferError, InferredValue, Rule};
use crate::ir::Dim;

pub(super) fn avg_pool(site: &InferContext) -> Rule {
    pool(site, 5)
}

pub(super) fn l2_pool(site: &InferContext) -> Rule {
    pool(site, 4)
}

pub(super) fn max_pool(site: &InferContext) -> Rule {
    pool(site, 5)
}

fn pool(site: &InferContext, most: usize) -> Rule {
    let x = expect::ranked(site, "x", 3, most)?;
    let spatial = x.rank() - 2;
    let sizes = expect::positive_per_spatial_dim(site, "kernel_sizes", spatial)?;
    let strides = expect::positive_per_spatial_dim(site, "strides", spatial)?;
    let pads = expect::per_spatial_dim(site, "pad", spatial, 2)?;
    let known = ["valid", "same", "same_lower", "custom"];
    let pad_type = expect::choice_in_any_case(site, "pad_type", &known)?;
    check_pad_type(site, pad_type)?;
    let same = matches!(pad_type, "same" | "same_lower");

    let rounded_up = site.bool("ceil_mode")?;
    if rounded_up {
        let refusal = |message: &str| InferError::new(message).of("ceil_mode");
        if spatial > 2 {
            return Err(refusal("needs two spatial dimensions; `x` has three"));
        }
        if same {
            return Err(refusal("is true, but `pad_type` is one of `same` and `same_lower`")
                .hint("leave `ceil_mode` out: `same` padding already rounds up"));
        }
        if pads.chunks(2).any(|pads| pads[0] != pads[1]) {
            return Err(refusal("is true, but `pad` differs before and after a dimension")
                .hint("pad with `pad` first, and pool without padding"));
        }
    }
    let pads = if pad_type == "custom" { pads } else { vec![0; 2 * spatial] };
    let padding = match (same, rounded_up) {
        (true, _) => Padding::Same,
        (false, true) => Padding::ByRoundedUp(pads),
        (false, false) => Padding::By(pads),
    };
    // The kernel sizes are positive, so their absolute values are their values.
    let kernel = sizes.iter().map(|size| Dim::Known(size.unsigned_abs())).collect();
    let window = Window { kernel, strides, dilations: vec![1; spatial], padding };
    let mut shape = x.shape[..2].to_vec();
    shape.extend(window.output(site, &x.shape[2..])?);
    Ok(vec![InferredValue::tensor(x.dtype, shape)])
}
