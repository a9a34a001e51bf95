//! One-dimensional k-means.
//!
//! Clusters of sorted numbers are ranges. Dynamic programming therefore finds the best division
//! into `k` clusters exactly, but is slow for many numbers. It is first applied to some hundred
//! bins. Later rounds only try boundaries near the ones found so far, with step sizes that decrease
//! to single numbers.

/// Distinct numbers in ascending order, with weights.
#[derive(Clone, Debug, Default)]
pub(super) struct Distribution {
    pub(super) values: Vec<f32>,
    pub(super) weights: Vec<f64>,
}

/// Maximum number of positions in the first division.
const FEW: usize = 256;

/// Maximum number of steps that a boundary moves in one round.
const REACH: usize = 12;

/// Maximum number of rounds with the same step sizes.
const MAX_DIVISIONS: usize = 12;

/// Minimum relative gain for another round with the same step sizes.
const LEAST_GAIN: f64 = 1e-9;

impl Distribution {
    /// Creates a distribution of numbers with equal weight.
    pub(super) fn of(numbers: &mut [f32]) -> Distribution {
        numbers.sort_unstable_by(f32::total_cmp);
        let mut distribution = Distribution::default();
        for &mut number in numbers {
            distribution.push(number, 1.0);
        }
        distribution
    }

    /// Appends a number that is not less than the last.
    pub(super) fn push(&mut self, value: f32, weight: f64) {
        match (self.values.last(), self.weights.last_mut()) {
            (Some(&last), Some(held)) if last == value => *held += weight,
            _ => {
                self.values.push(value);
                self.weights.push(weight);
            }
        }
    }
}

/// Clusters numbers by their values: the at most `count` centers with the least sum of squared differences, in ascending order.
/// Sorts the numbers.
pub fn kmeans(numbers: &mut [f32], count: usize) -> Vec<f32> {
    centroids(&Distribution::of(numbers), count)
}

/// The at most `count` centers with the least sum of squared differences, in ascending order.
pub(super) fn centroids(distribution: &Distribution, count: usize) -> Vec<f32> {
    let n = distribution.values.len();
    if n <= count {
        return distribution.values.clone();
    }
    let sums = Sums::of(distribution);
    let places = match n <= FEW.max(2 * count) {
        true => (0..=n).collect(),
        false => bins(distribution, &sums, count),
    };
    let inner = vec![places.clone(); count - 1];
    let (mut bounds, mut best) = divide(&sums, &inner);
    // Step size around each boundary.
    let mut steps: Vec<usize> = bounds[1..count]
        .iter()
        .map(|&bound| {
            let at = places.partition_point(|&place| place < bound);
            let (before, after) = (at.saturating_sub(1), (at + 1).min(places.len() - 1));
            2 * (bound - places[before]).max(places[after] - bound)
        })
        .collect();
    while steps.iter().any(|&step| step > 1) {
        steps.iter_mut().for_each(|step| *step = step.div_ceil(REACH));
        for _ in 0..MAX_DIVISIONS {
            let near = |(&bound, &step): (&usize, &usize)| {
                let (down, up) = ((bound / step).min(REACH), ((n - bound) / step).min(REACH));
                (0..=down + up).map(|at| bound + at * step - down * step).collect()
            };
            let inner: Vec<Vec<usize>> = bounds[1..count].iter().zip(&steps).map(near).collect();
            let (divided, found) = divide(&sums, &inner);
            let gain = found - best;
            if gain > 0.0 {
                (bounds, best) = (divided, found);
            }
            if gain <= LEAST_GAIN * best {
                break;
            }
        }
    }
    sums.means(&bounds)
}

/// Prefix sums of weights and weighted numbers. Numbers are relative to the middle one to keep
/// precision when all are far from 0.
struct Sums {
    middle: f64,
    weights: Vec<f64>,
    firsts: Vec<f64>,
}

impl Sums {
    fn of(distribution: &Distribution) -> Sums {
        let n = distribution.values.len();
        let middle = f64::from(distribution.values[n / 2]);
        let (mut weights, mut firsts) = (vec![0.0; n + 1], vec![0.0; n + 1]);
        let (mut weight, mut first) = (0.0, 0.0);
        let to = weights[1..].iter_mut().zip(&mut firsts[1..]);
        let pairs = distribution.values.iter().zip(&distribution.weights);
        for ((to_weight, to_first), (&value, &w)) in to.zip(pairs) {
            weight += w;
            first += w * (f64::from(value) - middle);
            (*to_weight, *to_first) = (weight, first);
        }
        Sums { middle, weights, firsts }
    }

    fn begin(&self, at: usize, gain: f64) -> DpEntry {
        DpEntry { at, weight: self.weights[at], first: self.firsts[at], gain }
    }

    fn means(&self, bounds: &[usize]) -> Vec<f32> {
        let ranges = bounds.windows(2).filter(|pair| pair[0] < pair[1]);
        let mean = |pair: &[usize]| {
            let weight = self.weights[pair[1]] - self.weights[pair[0]];
            ((self.firsts[pair[1]] - self.firsts[pair[0]]) / weight + self.middle) as f32
        };
        ranges.map(mean).collect()
    }
}

/// Finds the best division into ranges, and its gain. `inner` contains the ascending candidates of
/// each inner boundary.
///
/// The optimal start of the last range increases monotonically with its end. The start found for
/// the middle end therefore bounds the starts of all others.
fn divide(sums: &Sums, inner: &[Vec<usize>]) -> (Vec<usize>, f64) {
    let n = sums.weights.len() - 1;
    let last = [n];
    let mut chosen = Vec::with_capacity(inner.len() + 1);
    let mut room = Vec::new();
    let mut begins: Vec<DpEntry> = vec![sums.begin(0, 0.0)];
    for ends in inner.iter().map(Vec::as_slice).chain([&last[..]]) {
        let found = vec![(f64::NEG_INFINITY, 0); ends.len()];
        let mut layer = Layer { sums, begins: &begins, ends, found, room };
        layer.fill(0, ends.len(), 0, begins.len());
        let Layer { found, room: left, .. } = layer;
        begins = ends.iter().zip(&found).map(|(&at, &(gain, _))| sums.begin(at, gain)).collect();
        (room, _) = (left, chosen.push(found));
    }
    let (mut bounds, mut at) = (vec![n], 0);
    for (index, found) in chosen.iter().enumerate().rev() {
        at = found[at].1;
        bounds.push(index.checked_sub(1).map_or(0, |before| inner[before][at]));
    }
    bounds.reverse();
    (bounds, begins[0].gain)
}

/// A candidate start of a range: the sums up to it and the gain of the ranges before it.
struct DpEntry {
    at: usize,
    weight: f64,
    first: f64,
    gain: f64,
}

/// One layer of the dynamic program: all candidates of one range.
struct Layer<'a> {
    sums: &'a Sums,
    begins: &'a [DpEntry],
    /// Candidate ends. `found` is the best gain up to each end, and the index of its start.
    ends: &'a [usize],
    found: Vec<(f64, usize)>,
    /// Scratch memory for the gain of each start.
    room: Vec<f64>,
}

impl Layer<'_> {
    /// Finds the best start among `least..most` for the ends `from..to`.
    fn fill(&mut self, from: usize, to: usize, least: usize, most: usize) {
        if from >= to {
            return;
        }
        let middle = usize::midpoint(from, to);
        let end = self.ends[middle];
        let mut begins = &self.begins[least..most];
        if begins.last().is_some_and(|begin| begin.at > end) {
            begins = &begins[..begins.partition_point(|begin| begin.at <= end)];
        }
        let (weight, first) = (self.sums.weights[end], self.sums.firsts[end]);
        let gain = |begin: &DpEntry| {
            let first = first - begin.first;
            // Both sums of an empty range are 0.
            begin.gain + first * first / (weight - begin.weight).max(f64::MIN_POSITIVE)
        };
        self.room.clear();
        self.room.extend(begins.iter().map(gain));
        let mut best = (f64::NEG_INFINITY, least);
        for (at, &gain) in self.room.iter().enumerate() {
            if gain > best.0 {
                best = (gain, least + at);
            }
        }
        self.found[middle] = best;
        // An end before all starts has no solution and no bound for others.
        let (below, above) = match best.0.is_finite() {
            true => (best.1 + 1, best.1),
            false => (most, least),
        };
        self.fill(from, middle, least, below);
        self.fill(middle + 1, to, above, most);
    }
}

/// Initial candidates of boundaries, denser where a good division is finer.
fn bins(distribution: &Distribution, sums: &Sums, count: usize) -> Vec<usize> {
    let values = &distribution.values;
    let n = values.len();
    let bins = FEW.max(4 * count).min(n);
    // Group neighbours, except at the ends, where outliers may be single numbers.
    let step = n.div_ceil(8 * bins);
    let inner = (step..n - step).step_by(step);
    let parts: Vec<usize> = (0..step).chain(inner).chain(n - step..=n).collect();
    // The optimal density of clusters is the cube root of the density of numbers.
    let share = |pair: &[usize]| {
        let (from, to) = (pair[0], pair[1]);
        let width = values[to.min(n - 1)] - values[from.saturating_sub(1)];
        let root = cube_root(width);
        f64::from(cube_root((sums.weights[to] - sums.weights[from]) as f32) * root * root)
    };
    let shares: Vec<f64> = parts.windows(2).map(share).collect();
    let total: f64 = shares.iter().sum();
    let (mut edges, mut filled) = (vec![0], 0.0);
    for (pair, share) in parts.windows(2).zip(shares) {
        filled += share * bins as f64 / total;
        // As many as the share requires, but at most the number of elements.
        let (start, length) = (pair[0], pair[1] - pair[0]);
        let more = (filled as usize + 1).saturating_sub(edges.len()).min(length);
        edges.extend((1..=more).map(|part| start + length * part / more));
    }
    edges.pop_if(|&mut edge| edge == n);
    edges.push(n);
    if edges.len() <= count + 1 {
        // Nearly all numbers are equal, so uniform bins suffice.
        edges = (0..=bins).map(|bin| bin * n / bins).collect();
    }
    edges
}

/// Cube root of a non-negative number with an error of a few thousandths: a third of the exponent
/// and a Newton step.
fn cube_root(number: f32) -> f32 {
    let guess = f32::from_bits(number.to_bits() / 3 + 0x2a51_4067);
    (2.0 * guess + number / (guess * guess)) / 3.0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(count: usize, seed: u64) -> Vec<f32> {
        let mut state = seed;
        let mut uniform = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1u64 << 24) as f32
        };
        // Sums of uniform numbers are approximately normal.
        (0..count).map(|_| (0..6).map(|_| uniform()).sum::<f32>() - 3.0).collect()
    }

    fn error(distribution: &Distribution, centroids: &[f32]) -> f64 {
        let values = distribution.values.iter().zip(&distribution.weights);
        values
            .map(|(&value, weight)| {
                let nearest = centroids.iter().map(|&centroid| f64::from(value - centroid).powi(2));
                weight * nearest.fold(f64::INFINITY, f64::min)
            })
            .sum()
    }

    /// Weighted sum of squared differences from the middle value.
    fn square(distribution: &Distribution) -> f64 {
        let middle = distribution.values[distribution.values.len() / 2];
        let pairs = distribution.values.iter().zip(&distribution.weights);
        pairs.map(|(&value, &weight)| weight * (f64::from(value) - f64::from(middle)).powi(2)).sum()
    }

    /// Minimum error of all divisions into at most `count` clusters. Slow for many numbers.
    fn exhaustive(distribution: &Distribution, count: usize) -> f64 {
        let sums = Sums::of(distribution);
        let n = sums.weights.len() - 1;
        let gain = |start: usize, end: usize| {
            let weight = sums.weights[end] - sums.weights[start];
            let first = sums.firsts[end] - sums.firsts[start];
            if weight > 0.0 { first * first / weight } else { 0.0 }
        };
        let mut gains: Vec<f64> = (0..=n).map(|end| gain(0, end)).collect();
        for _ in 1..count {
            gains = (0..=n)
                .map(|end| {
                    let before = (0..=end).map(|begin| gains[begin] + gain(begin, end));
                    before.fold(0.0, f64::max)
                })
                .collect();
        }
        square(distribution) - gains[n]
    }

    #[test]
    fn few_distinct_values_become_centroids() {
        let distribution = Distribution::of(&mut [3.0, 1.0, 3.0, -2.0]);
        assert_eq!(distribution.weights, [1.0, 1.0, 2.0]);
        assert_eq!(centroids(&distribution, 4), [-2.0, 1.0, 3.0]);
    }

    #[test]
    fn kmeans_matches_exhaustive_optimum() {
        for (seed, count) in [(1, 2), (2, 4), (3, 8), (4, 16)] {
            // With more than `FEW` numbers, the first division is made between bins.
            let distribution = Distribution::of(&mut random(600, seed));
            let best = exhaustive(&distribution, count);
            let found = error(&distribution, &centroids(&distribution, count));
            assert!(
                found <= best * (1.0 + 1e-6),
                "{count} clusters of 600 numbers: error {found}; optimum {best}"
            );
            let few = Distribution::of(&mut random(200, seed));
            let best = exhaustive(&few, count);
            let found = error(&few, &centroids(&few, count));
            assert!(
                found <= best * (1.0 + 1e-6),
                "{count} clusters of 200 numbers: error {found}; optimum {best}"
            );
        }
    }

    #[test]
    fn kmeans_is_near_optimal_with_outliers() {
        let mut numbers = random(5000, 9);
        numbers.extend(std::iter::repeat_n(0.0, 20_000));
        numbers.extend([500.0, -700.0, 501.0]);
        let distribution = Distribution::of(&mut numbers);
        let best = exhaustive_bound(&distribution);
        let found = error(&distribution, &centroids(&distribution, 8));
        assert!(found <= best * 1.0001, "error {found}; bound {best}");
    }

    /// Bound of the error: separate clusters for the outliers, and the best division of the rest into six clusters.
    fn exhaustive_bound(distribution: &Distribution) -> f64 {
        let mut rest = Distribution::default();
        for (&value, &weight) in distribution.values.iter().zip(&distribution.weights) {
            if value.abs() < 100.0 {
                rest.push(value, weight);
            }
        }
        let sums = Sums::of(&rest);
        let (_, gain) = divide(&sums, &vec![(0..=rest.values.len()).collect(); 5]);
        square(&rest) - gain + 0.5
    }
}
