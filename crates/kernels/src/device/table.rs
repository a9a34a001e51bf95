//! Functions as the Neural Engine computes them: tables of 33 half-precision points and linear interpolation.
//!
//! The grids and the exact values of most tables were read from programs that Apple's compiler made for the M6. Those of
//! `gelu` and `silu` hold fitted values that are not published; here they are the least-squares fit on the same grid.
//! The precision of the interpolation is unknown too; here it is `f32`.

use std::f64::consts::{FRAC_PI_2, LN_2, LOG2_E};
use std::sync::OnceLock;

use half::f16;

/// Intervals of a table.
const INTERVALS: usize = 32;

/// A function that the Neural Engine looks up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Function {
    /// Exact values at −8, −7.5, … 8, and constant outside.
    Sigmoid,
    /// Exact values at 0, 0.125, … 4; odd; ±1 outside.
    Tanh,
    /// Exact values at 0, 1/16, … 2; odd; ±1 outside.
    Erf,
    /// Exact values at 0, π/64, … π/2; the rest by symmetry.
    Sin,
    /// The sine of a quarter period later.
    Cos,
    /// 2^(i/32); the integer part goes to the exponent.
    Exp,
    /// The same to the base 2.
    Exp2,
    /// The binary logarithm of the significand at 0.5, 0.5 + 1/64, …, plus the exponent, times ln 2.
    Log,
    /// At 0.5, 0.5625, …, by the parity of the exponent.
    Sqrt,
    /// The same.
    Rsqrt,
    /// 1/m at 0.5, 0.5 + 1/64, ….
    Inverse,
    /// Fitted values at −4, −3.75, … 4, for all modes.
    Gelu,
    /// Fitted values at −8, −7.5, … 8.
    Silu,
}

impl Function {
    /// All of them.
    pub const ALL: [Function; 13] = [
        Function::Sigmoid,
        Function::Tanh,
        Function::Erf,
        Function::Sin,
        Function::Cos,
        Function::Exp,
        Function::Exp2,
        Function::Log,
        Function::Sqrt,
        Function::Rsqrt,
        Function::Inverse,
        Function::Gelu,
        Function::Silu,
    ];

    /// The function of a number that [`read`](super::number::read) gave, not yet rounded to half precision.
    pub fn of(self, x: f32) -> f32 {
        let tables = tables();
        match self {
            Function::Sigmoid => match x {
                x if x < -8.0 => 0.0,
                x if x > 8.0 => 1.0,
                x => tables.sigmoid.at(x),
            },
            Function::Tanh => odd(x, 4.0, &tables.tanh),
            Function::Erf => odd(x, 2.0, &tables.erf),
            Function::Sin => sine(x.abs(), 0) * 1.0f32.copysign(x),
            Function::Cos => sine(x, 1),
            Function::Exp => exp2((f64::from(x) * LOG2_E) as f32),
            Function::Exp2 => exp2(x),
            Function::Log => log(x),
            Function::Sqrt => match x {
                x if x > 0.0 => {
                    let (significand, exponent) = by_parity(x);
                    tables.sqrt.at(significand) * 2.0f32.powi(exponent)
                }
                _ => 0.0,
            },
            Function::Rsqrt => match x {
                0.0 => f32::INFINITY,
                x if x > 0.0 => {
                    let (significand, exponent) = by_parity(x);
                    tables.rsqrt.at(significand) * 2.0f32.powi(-exponent)
                }
                _ => 0.0,
            },
            Function::Inverse => match x {
                0.0 => f32::INFINITY,
                x => {
                    let (significand, exponent) = split(x.abs());
                    (tables.inverse.at(significand) * 2.0f32.powi(-exponent)).copysign(x)
                }
            },
            Function::Gelu => beyond(x, 4.0, &tables.gelu),
            Function::Silu => beyond(x, 8.0, &tables.silu),
        }
    }
}

/// 33 values at equal distances.
struct Table {
    first: f32,
    step: f32,
    values: [f32; INTERVALS + 1],
}

impl Table {
    fn exact(first: f64, last: f64, f: impl Fn(f64) -> f64) -> Table {
        let step = (last - first) / INTERVALS as f64;
        let values = std::array::from_fn(|index| f(first + step * index as f64));
        Table::of(first, step, &values)
    }

    /// Values of which the broken line through them is nearest to the function, by least squares.
    fn fitted(first: f64, last: f64, f: impl Fn(f64) -> f64) -> Table {
        const SAMPLES: usize = 64;
        let step = (last - first) / INTERVALS as f64;
        // The normal equations of broken lines are tridiagonal.
        let (mut diagonal, mut beside) = ([0.0; INTERVALS + 1], [0.0; INTERVALS]);
        let mut right = [0.0; INTERVALS + 1];
        for interval in 0..INTERVALS {
            for sample in 0..SAMPLES {
                let high = (sample as f64 + 0.5) / SAMPLES as f64;
                let low = 1.0 - high;
                let value = f(first + step * (interval as f64 + high));
                diagonal[interval] += low * low;
                diagonal[interval + 1] += high * high;
                beside[interval] += low * high;
                right[interval] += low * value;
                right[interval + 1] += high * value;
            }
        }
        for index in 0..INTERVALS {
            let factor = beside[index] / diagonal[index];
            diagonal[index + 1] -= factor * beside[index];
            right[index + 1] -= factor * right[index];
        }
        let mut values = right;
        values[INTERVALS] /= diagonal[INTERVALS];
        for index in (0..INTERVALS).rev() {
            values[index] = (right[index] - beside[index] * values[index + 1]) / diagonal[index];
        }
        Table::of(first, step, &values)
    }

    fn of(first: f64, step: f64, values: &[f64; INTERVALS + 1]) -> Table {
        let values = values.map(|value| f16::from_f64(value).to_f32());
        Table { first: first as f32, step: step as f32, values }
    }

    /// The value at a number within the table's ends.
    fn at(&self, x: f32) -> f32 {
        let place = ((x - self.first) / self.step).clamp(0.0, INTERVALS as f32);
        let index = (place as usize).min(INTERVALS - 1);
        let (low, high) = (self.values[index], self.values[index + 1]);
        low + (place - index as f32) * (high - low)
    }
}

struct Tables {
    sigmoid: Table,
    tanh: Table,
    erf: Table,
    sine: Table,
    exp2: Table,
    log2: Table,
    sqrt: Table,
    rsqrt: Table,
    inverse: Table,
    gelu: Table,
    silu: Table,
}

fn tables() -> &'static Tables {
    static TABLES: OnceLock<Tables> = OnceLock::new();
    let logistic = |x: f64| 1.0 / (1.0 + (-x).exp());
    let gelu = |x: f64| 0.5 * x * (1.0 + error_function(x * std::f64::consts::FRAC_1_SQRT_2));
    TABLES.get_or_init(|| Tables {
        sigmoid: Table::exact(-8.0, 8.0, logistic),
        tanh: Table::exact(0.0, 4.0, f64::tanh),
        erf: Table::exact(0.0, 2.0, error_function),
        sine: Table::exact(0.0, FRAC_PI_2, f64::sin),
        exp2: Table::exact(0.0, 1.0, f64::exp2),
        log2: Table::exact(0.5, 1.0, f64::log2),
        // A grid of 1/16 from 0.5 has 33 points up to 2.5; significands end at 2.
        sqrt: Table::exact(0.5, 2.5, f64::sqrt),
        rsqrt: Table::exact(0.5, 2.5, |x| 1.0 / x.sqrt()),
        inverse: Table::exact(0.5, 1.0, |x| 1.0 / x),
        gelu: Table::fitted(-4.0, 4.0, gelu),
        silu: Table::fitted(-8.0, 8.0, |x| x * logistic(x)),
    })
}

/// The error function by its series, for |x| up to 3.
fn error_function(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    let mut step = 0.0;
    while term.abs() > 1e-17 * sum.abs() {
        step += 1.0;
        term *= -x * x / step;
        sum += term / (2.0 * step + 1.0);
    }
    sum * std::f64::consts::FRAC_2_SQRT_PI
}

fn odd(x: f32, last: f32, table: &Table) -> f32 {
    let magnitude = x.abs();
    let value = if magnitude > last { 1.0 } else { table.at(magnitude) };
    value.copysign(x)
}

/// A function that is 0 before its table and the identity after it.
fn beyond(x: f32, last: f32, table: &Table) -> f32 {
    match x {
        x if x < -last => 0.0,
        x if x > last => x,
        x => table.at(x),
    }
}

fn sine(x: f32, quarters_later: i64) -> f32 {
    let quarters = f64::from(x) / FRAC_PI_2;
    let whole = quarters.floor();
    let rest = ((quarters - whole) * FRAC_PI_2) as f32;
    let table = &tables().sine;
    match (whole as i64 + quarters_later).rem_euclid(4) {
        0 => table.at(rest),
        1 => table.at(FRAC_PI_2 as f32 - rest),
        2 => -table.at(rest),
        _ => -table.at(FRAC_PI_2 as f32 - rest),
    }
}

fn exp2(x: f32) -> f32 {
    let whole = x.floor();
    if whole > 16.0 {
        return f32::INFINITY;
    }
    if whole < -30.0 {
        return 0.0;
    }
    tables().exp2.at(x - whole) * 2.0f32.powi(whole as i32)
}

/// Logarithm, with the value of zero that the Neural Engine was observed to return.
fn log(x: f32) -> f32 {
    const OF_ZERO: f32 = -45440.0;
    match x {
        0.0 => OF_ZERO,
        x if x > 0.0 => {
            let (significand, exponent) = split(x);
            ((f64::from(tables().log2.at(significand)) + f64::from(exponent)) * LN_2) as f32
        }
        _ => 0.0,
    }
}

/// A positive number as a significand from 0.5 to 1 and an exponent.
fn split(x: f32) -> (f32, i32) {
    let exponent = (x.to_bits() >> 23) as i32 - 126;
    (f32::from_bits(x.to_bits() & 0x007f_ffff | 126 << 23), exponent)
}

/// A positive number as a significand from 0.5 to 2 and half of an even exponent.
fn by_parity(x: f32) -> (f32, i32) {
    let (significand, exponent) = split(x);
    match exponent.rem_euclid(2) {
        0 => (significand, exponent / 2),
        _ => (significand * 2.0, (exponent - 1) / 2),
    }
}

#[cfg(test)]
mod tests {
    use super::super::number::round_away;
    use super::*;

    /// Every half-precision number within bounds.
    fn halves(low: f32, high: f32) -> impl Iterator<Item = f32> {
        let all = (0..=u16::MAX).map(|bits| f16::from_bits(bits).to_f32());
        all.filter(move |x| (low..=high).contains(x))
    }

    fn largest_error(function: Function, low: f32, high: f32, exact: fn(f64) -> f64) -> f64 {
        let error = |x: f32| {
            let found = f64::from(round_away(function.of(super::super::number::read(x))));
            (found - exact(f64::from(x))).abs()
        };
        halves(low, high).map(error).fold(0.0, f64::max)
    }

    fn logistic(x: f64) -> f64 {
        1.0 / (1.0 + (-x).exp())
    }

    fn gelu(x: f64) -> f64 {
        // For large numbers the series of the error function loses precision.
        let error = if x.abs() > 5.0 { x.signum() } else { error_function(x / 2.0f64.sqrt()) };
        0.5 * x * (1.0 + error)
    }

    /// The largest errors that the study measured on devices, each with the fraction of it that the table's error must exceed: a
    /// smaller error would be more exact than the hardware.
    #[test]
    fn ane_table_errors_match_measurements() {
        let cases: [(Function, f32, f32, fn(f64) -> f64, f64, f64); 7] = [
            (Function::Sigmoid, -10.0, 10.0, logistic, 3.4e-3, 0.85),
            (Function::Tanh, -6.0, 6.0, f64::tanh, 1.6e-3, 0.85),
            (Function::Erf, -2.0, 2.0, error_function, 8.6e-4, 0.5),
            (Function::Sin, -6.0, 6.0, f64::sin, 6.3e-4, 0.7),
            (Function::Log, 1e-4, 60000.0, f64::ln, 6.6e-3, 0.3),
            // Apple's fit of these tables is unknown; ours has a smaller error.
            (Function::Gelu, -3.9, 3.9, gelu, 6.2e-3, 0.5),
            (Function::Silu, -7.9, 7.9, |x| x * logistic(x), 1.5e-2, 0.4),
        ];
        for (function, low, high, exact, measured, least_fraction) in cases {
            let found = largest_error(function, low, high, exact);
            assert!(
                found < measured * 1.15 && found > measured * least_fraction,
                "{function:?}: {found}"
            );
        }
    }

    #[test]
    fn ane_table_relative_errors_stay_within_bounds() {
        let cases: [(Function, fn(f64) -> f64, f64); 4] = [
            (Function::Exp, f64::exp, 9.1),
            (Function::Sqrt, f64::sqrt, 1.25),
            (Function::Rsqrt, |x| 1.0 / x.sqrt(), 2.7),
            (Function::Inverse, |x| 1.0 / x, 13.5),
        ];
        for (function, exact, bound) in cases {
            for x in halves(6.2e-5, 11.0) {
                let wanted = exact(f64::from(x));
                let found = f64::from(round_away(function.of(x)));
                let spacing = 2.0f64.powi(wanted.log2().floor() as i32 - 10);
                assert!((found - wanted).abs() <= bound * spacing, "{function:?}({x}) = {found}");
            }
        }
    }

    #[test]
    fn ane_tables_match_recorded_edge_values() {
        let of = |function: Function, x| round_away(function.of(x));
        assert_eq!(of(Function::Sqrt, -1.0), 0.0);
        assert_eq!(of(Function::Rsqrt, -1.0), 0.0);
        assert_eq!(of(Function::Log, -1.0), 0.0);
        assert_eq!(of(Function::Log, 0.0), -45440.0);
        assert_eq!(of(Function::Inverse, 0.0), f32::INFINITY);
        assert_eq!(of(Function::Gelu, 60000.0), 60000.0);
        assert_eq!(of(Function::Exp, 12.0), f32::INFINITY);
        assert_eq!(of(Function::Exp, -65536.0), 0.0);
        assert_eq!(of(Function::Tanh, 65536.0), 1.0);
        assert_eq!(of(Function::Sigmoid, -65536.0), 0.0);
    }

    #[test]
    fn ane_tables_are_symmetric_and_exact_at_grid_points() {
        for function in [Function::Tanh, Function::Erf, Function::Sin] {
            for x in [0.3f32, 1.7, 3.2, 5.0] {
                assert_eq!(function.of(-x), -function.of(x), "{function:?}({x})");
            }
        }
        assert_eq!(Function::Sigmoid.of(0.5), f16::from_f64(logistic(0.5)).to_f32());
        assert_eq!(Function::Cos.of(0.0), 1.0);
        assert_eq!(Function::Exp2.of(3.0), 8.0);
        assert_eq!(Function::Inverse.of(-4.0), -0.25);
        assert_eq!(Function::Sqrt.of(4.0), 2.0);
    }
}
