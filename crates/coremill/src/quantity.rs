//! Formatting and parsing of byte sizes and counts.
//!
//! ```
//! use coremill::quantity;
//!
//! assert_eq!(quantity::bytes(6_974_528), "6.97 MB");
//! assert_eq!(quantity::parse_bytes("1.5GiB")?, 3 << 29);
//! # Ok::<(), coremill::Error>(())
//! ```

use crate::error::Error;

/// Units of [`parse_bytes`], with their bytes. A unit precedes the units that are suffixes of it.
const UNITS: [(&str, u64); 13] = [
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("k", 1 << 10),
    ("m", 1 << 20),
    ("g", 1 << 30),
    ("t", 1 << 40),
    ("b", 1),
];

/// Parses a number of bytes with an optional unit. Letter case is ignored. `KB` and `MB` are powers
/// of 1000; `KiB`, `MiB` and the single letters `K` and `M` are powers of 1024.
pub fn parse_bytes(text: &str) -> Result<u64, Error> {
    let wrong = || {
        Error::new(
            "expected a number of bytes with an optional unit, as in `500MB`, `1.5GiB` or `800M`",
        )
    };
    let text = text.trim().to_ascii_lowercase();
    let known = UNITS.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, *bytes)));
    let (number, unit) = known.unwrap_or((&text, 1));
    let number = number.trim();
    // Parse integers exactly: `f64` would round numbers beyond 2^53.
    if let Ok(number) = number.parse::<u64>() {
        return number.checked_mul(unit).ok_or_else(wrong);
    }
    let is_decimal = number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let number: f64 = number.parse().ok().filter(|_| is_decimal).ok_or_else(wrong)?;
    let bytes = number * unit as f64;
    if bytes < u64::MAX as f64 { Ok(bytes as u64) } else { Err(wrong()) }
}

/// Formats a number of bytes with three digits and a unit that is a power of 1000.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KB", "MB", "GB", "TB", "PB", "EB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    match unit {
        0 => format!("{count} B"),
        _ => format!("{} {}", three_digits(value), UNITS[unit]),
    }
}

/// Formats a count. Above 10,000 it has three digits and a letter for the power of 1000.
pub fn count(count: u64) -> String {
    const LETTERS: [&str; 6] = ["k", "M", "G", "T", "P", "E"];
    if count < 10_000 {
        return count.to_string();
    }
    let mut value = count as f64 / 1e3;
    let mut letter = 0;
    while value >= 999.5 && letter + 1 < LETTERS.len() {
        value /= 1000.0;
        letter += 1;
    }
    format!("{} {}", three_digits(value), LETTERS[letter])
}

fn three_digits(value: f64) -> String {
    match value {
        value if value < 9.995 => format!("{value:.2}"),
        value if value < 99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_bytes_and_counts_with_three_digits() {
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(1_000), "1.00 KB");
        assert_eq!(bytes(999_499), "999 KB");
        assert_eq!(bytes(999_500), "1.00 MB");
        assert_eq!(bytes(25_557_032), "25.6 MB");
        assert_eq!(bytes(u64::MAX), "18.4 EB");
        assert_eq!(count(9_999), "9999");
        assert_eq!(count(25_557_032), "25.6 M");
        assert_eq!(count(7_000_000_000), "7.00 G");
    }

    #[test]
    fn parses_byte_sizes_with_units() {
        for (text, bytes) in [
            ("0", 0),
            ("100", 100),
            ("500B", 500),
            ("500MB", 500_000_000),
            ("12.5 kb", 12_500),
            ("1.5GiB", 3 << 29),
            ("2k", 2048),
            ("800M", 800 << 20),
            ("4G", 4 << 30),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_bytes(text).ok(), Some(bytes), "{text}");
        }
        for text in [
            "",
            "GB",
            "-1",
            "2XB",
            "NaN",
            "inf",
            "1e3",
            "99999999TB",
            "1e99TB",
            "18446744073709551616",
        ] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }
}
