//! How much a run may take.

/// Where the system does not say how much memory it has.
const UNKNOWN: u64 = 8 << 30;

/// What was asked for, or half of the machine's memory.
pub(super) fn memory(asked_for: Option<u64>) -> u64 {
    asked_for.unwrap_or_else(|| of_machine().unwrap_or(UNKNOWN) / 2)
}

fn of_machine() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// `4G` and the like, in powers of 1024.
pub(super) fn parse_bytes(text: &str) -> Result<u64, String> {
    let (digits, factor) = match text.trim_end_matches(['B', 'b', 'i']).char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1 << 10),
        Some((at, 'm' | 'M')) => (&text[..at], 1 << 20),
        Some((at, 'g' | 'G')) => (&text[..at], 1 << 30),
        _ => (text, 1),
    };
    let bytes = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
    bytes.ok_or_else(|| "accepted are numbers of bytes, such as `800M` and `4G`".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_units() {
        for (text, bytes) in [("100", 100), ("2k", 2048), ("800M", 800 << 20), ("4GiB", 4 << 30)] {
            assert_eq!(parse_bytes(text), Ok(bytes));
        }
        for text in ["", "G", "-1", "1T", "99999999999G"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
        assert_eq!(memory(Some(7)), 7);
        assert!(memory(None) > 1 << 28);
    }
}
