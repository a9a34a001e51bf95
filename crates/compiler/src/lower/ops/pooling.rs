//! Pools.

use coremill_mil::ops::OpKind;

use crate::error::refuse;
use crate::lower::call::{Call, Results};
use crate::lower::table::{Row, all};

pub(crate) const ROWS: &[Row] = &[all("aten.adaptive_avg_pool2d", adaptive_average)];

fn adaptive_average(call: &mut Call<'_, '_>) -> Results {
    let x = call.tensor("self")?.value;
    let sizes = call.known_ints("output_size")?;
    if sizes.iter().any(|&size| size != 1) {
        refuse!("output sizes {sizes:?} are not lowered yet");
    }
    let y = call.emit(
        OpKind::ReduceMean,
        [("x", x.into()), ("axes", [-2, -1].into()), ("keep_dims", true.into())],
    )?;
    call.give(y)
}
