use coremill_device::{END_MS, SEGMENT_MS, SWITCH_MS};

/// Sums of costs that differ by less are the same.
const ROUNDING_MS: f64 = 1e-9;

/// Times of an operation in milliseconds; `None` if the engine does not run it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Times {
    pub(super) cpu: f64,
    pub(super) neural_engine: Option<f64>,
}

/// By operation, in program order, whether the cheapest path runs it on the Neural Engine. Of paths of the same cost,
/// the path that ends on the Neural Engine is chosen, which leaves a final cast there.
pub(super) fn cheapest(times: &[Times]) -> Vec<bool> {
    // The least cost of the operations so far that ends on the CPU, and on the Neural Engine; and for each operation, whether
    // the one before it was on the Neural Engine on these paths.
    let (mut on_cpu, mut on_engine) = (0.0_f64, f64::INFINITY);
    let mut before: Vec<[bool; 2]> = Vec::with_capacity(times.len());
    for (index, time) in times.iter().enumerate() {
        let leave = on_engine + SWITCH_MS;
        // The first operation changes no engine.
        let enter = on_cpu + SEGMENT_MS + if index == 0 { 0.0 } else { SWITCH_MS };
        let to_cpu = if leave < on_cpu { (leave, true) } else { (on_cpu, false) };
        let to_engine = if on_engine <= enter { (on_engine, true) } else { (enter, false) };
        before.push([to_cpu.1, to_engine.1]);
        on_cpu = to_cpu.0 + time.cpu;
        on_engine = time.neural_engine.map_or(f64::INFINITY, |time| to_engine.0 + time);
    }
    let mut at_engine = on_engine + END_MS <= on_cpu + ROUNDING_MS;
    let mut path = vec![false; times.len()];
    for (index, before) in before.into_iter().enumerate().rev() {
        path[index] = at_engine;
        at_engine = before[usize::from(at_engine)];
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cost of a path in milliseconds.
    fn cost(times: &[Times], path: &[bool]) -> f64 {
        let mut total = 0.0;
        for (index, (time, &here)) in times.iter().zip(path).enumerate() {
            let changes = index > 0 && path[index - 1] != here;
            total += if changes { SWITCH_MS } else { 0.0 };
            total += if here && (changes || index == 0) { SEGMENT_MS } else { 0.0 };
            total += if here { time.neural_engine.unwrap_or(f64::INFINITY) } else { time.cpu };
        }
        total + if path.last() == Some(&true) { END_MS } else { 0.0 }
    }

    /// A path with one letter for each operation: `n` on the Neural Engine, `c` on the CPU.
    fn shown(path: &[bool]) -> String {
        path.iter().map(|&engine| if engine { 'n' } else { 'c' }).collect()
    }

    fn times(savings: &[Option<f64>]) -> Vec<Times> {
        let time = |saving: &Option<f64>| Times {
            cpu: saving.map_or(0.01, |saving| saving + 0.01),
            neural_engine: saving.map(|_| 0.01),
        };
        savings.iter().map(time).collect()
    }

    #[test]
    fn segment_must_save_more_than_switch_cost() {
        let found = |savings: &[Option<f64>]| shown(&cheapest(&times(savings)));
        // The whole graph must save 0.25 ms.
        assert_eq!(found(&[Some(0.24)]), "c");
        assert_eq!(found(&[Some(0.26)]), "n");
        // A segment must save 0.25 ms at the beginning, and 0.375 ms in the middle.
        assert_eq!(found(&[Some(0.26), None]), "nc");
        assert_eq!(found(&[Some(0.24), None]), "cc");
        assert_eq!(found(&[None, Some(0.37), None]), "ccc");
        assert_eq!(found(&[None, Some(0.38), None]), "cnc");
        // Two segments that save enough, with an operation between them that only the CPU supports. The last operation
        // is equally fast on both, and stays on the Neural Engine.
        assert_eq!(found(&[Some(0.3), None, Some(0.4), Some(0.0)]), "ncnn");
        assert_eq!(found(&[]), "");
    }

    /// A 3×3 convolution saves 0.095 ms. One alone and two around a reduction stay on the CPU; four run on the Neural Engine.
    #[test]
    fn placement_matches_published_graphs() {
        let convolution = Times { cpu: 0.100_06, neural_engine: Some(0.004_67) };
        let reduction = Times { cpu: 0.004_31, neural_engine: Some(0.003_59) };
        assert_eq!(shown(&cheapest(&[convolution])), "c");
        assert_eq!(shown(&cheapest(&[convolution; 4])), "nnnn");
        assert_eq!(shown(&cheapest(&[convolution, reduction, convolution])), "ccc");
    }

    #[test]
    fn cheapest_path_matches_brute_force() {
        let mut seed = 7_u64;
        let mut random = || {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as f64 / f64::from(1_u32 << 31)
        };
        for _ in 0..300 {
            let count = 1 + (random() * 8.0) as usize;
            let times: Vec<_> = (0..count)
                .map(|_| Times {
                    cpu: random() * 0.5,
                    neural_engine: (random() > 0.25).then(|| random() * 0.2),
                })
                .collect();
            let paths = (0..1_usize << count)
                .map(|bits| (0..count).map(|at| bits >> at & 1 == 1).collect::<Vec<_>>());
            let least = paths.map(|path| cost(&times, &path)).fold(f64::INFINITY, f64::min);
            let found = cost(&times, &cheapest(&times));
            assert!(
                (found - least).abs() < 2.0 * ROUNDING_MS,
                "the path costs {found} ms; the cheapest costs {least} ms"
            );
        }
    }
}
