//! Windows: constants.

use std::f64::consts::PI;

use crate::error::refuse;
use crate::lower::call::{Call, Results};
use crate::lower::table::{Row, all};

pub(crate) const ROWS: &[Row] = &[
    all("aten.hann_window", |call| cosines(call, 0.5, 0.5, 0.0)),
    all("aten.hamming_window", |call| {
        let alpha = if call.has("alpha") { call.float("alpha")? } else { 0.54 };
        let beta = if call.has("beta") { call.float("beta")? } else { 0.46 };
        cosines(call, alpha, beta, 0.0)
    }),
    all("aten.blackman_window", |call| cosines(call, 0.42, 0.5, 0.08)),
    all("aten.bartlett_window", |call| window(call, |place| 1.0 - (2.0 * place - 1.0).abs())),
    all("aten.kaiser_window", |call| {
        let beta = if call.has("beta") { call.float("beta")? } else { 12.0 };
        window(call, |place| {
            let reach = (1.0 - (2.0 * place - 1.0).powi(2)).max(0.0).sqrt();
            bessel(beta * reach) / bessel(beta)
        })
    }),
];

/// `a − b · cos + c · cos of the double angle`.
fn cosines(call: &mut Call<'_, '_>, a: f64, b: f64, c: f64) -> Results {
    window(call, |place| a - b * (2.0 * PI * place).cos() + c * (4.0 * PI * place).cos())
}

/// A window of which the value is given at places from 0 to 1.
fn window(call: &mut Call<'_, '_>, value: impl Fn(f64) -> f64) -> Results {
    let length = call.known_int("window_length")?;
    if !(0..=1 << 24).contains(&length) {
        refuse!("a window of {length} elements is none; up to 2²⁴ are accepted");
    }
    let periodic = !call.has("periodic") || call.flag("periodic")?;
    let intervals = if periodic { length } else { length - 1 };
    let at = |index: i64| match length {
        1 => 1.0,
        _ => value(index as f64 / intervals as f64) as f32,
    };
    let values: Vec<f32> = (0..length).map(at).collect();
    let y = call.float_constant(&[length as u64], &values);
    call.give(y)
}

/// The modified Bessel function of the first kind and of order zero, by its series.
fn bessel(x: f64) -> f64 {
    let (mut term, mut sum, mut step) = (1.0, 1.0, 0.0);
    while term > 1e-17 * sum {
        step += 1.0;
        term *= (x / (2.0 * step)).powi(2);
        sum += term;
    }
    sum
}
