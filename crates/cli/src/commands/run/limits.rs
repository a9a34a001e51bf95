//! Memory limit of a run.

/// Memory size if the system does not report one.
const UNKNOWN: u64 = 8 << 30;

/// The requested limit, or half of the memory available to this process.
pub(super) fn memory(asked_for: Option<u64>) -> u64 {
    asked_for.unwrap_or_else(|| {
        let bounds = [of_machine(), of_group(), of_process()];
        bounds.into_iter().flatten().min().unwrap_or(UNKNOWN) / 2
    })
}

/// Memory of the machine.
fn of_machine() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Memory limit of the container.
fn of_group() -> Option<u64> {
    std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok()?.trim().parse().ok()
}

/// Address space limit of the process (`ulimit -v`).
fn of_process() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/limits").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn explicit_memory_limit_overrides_default() {
        assert_eq!(memory(Some(7)), 7);
        assert!(memory(None) > 1 << 28);
    }
}
