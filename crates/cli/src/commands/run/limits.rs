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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_machine_is_the_default() {
        assert_eq!(memory(Some(7)), 7);
        assert!(memory(None) > 1 << 28);
    }
}
