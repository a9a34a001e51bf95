//! Formatting of errors between arrays.

use coremill::compare::ErrorMetrics;

/// Formats an error: NaN or infinity if elements are NaN or infinite in only one array.
pub(super) fn distance(figures: &ErrorMetrics, finite: f64) -> String {
    match (figures.unlike, figures.nan) {
        (0, _) => scientific(finite),
        (_, [0, 0]) => "inf".to_owned(),
        _ => "NaN".to_owned(),
    }
}

/// Formats a number with three digits, and with an exponent if it is small or large.
pub(super) fn scientific(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        value if !value.is_finite() => value.to_string(),
        value if (1e-2..1e4).contains(&value) => {
            let decimals = (2 - value.log10().floor() as i32).clamp(0, 4) as usize;
            format!("{value:.decimals$}")
        }
        value => format!("{value:.2e}"),
    }
}

/// Formats an SNR.
pub(super) fn decibels(value: f64) -> String {
    match value {
        f64::INFINITY => "exact".to_owned(),
        f64::NEG_INFINITY => "-inf dB".to_owned(),
        value => format!("{value:.1} dB"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_errors_with_three_significant_digits() {
        for (value, text) in [
            (0.0, "0"),
            (0.5, "0.500"),
            (0.0123, "0.0123"),
            (0.00123, "1.23e-3"),
            (123.4, "123"),
            (65504.0, "6.55e4"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(scientific(value), text);
        }
        assert_eq!(decibels(f64::INFINITY), "exact");
        assert_eq!(decibels(58.26), "58.3 dB");
    }
}
