//! Numbers that stand for others: k-means in one dimension.
//!
//! Clusters of sorted numbers are ranges of them, so the best division into `k` is found by dynamic programming
//! exactly. On all numbers that takes long: the programme first divides some hundred bins, a descent on all numbers
//! follows, and the programme then divides again with boundaries near those that the descent found.

/// Numbers with weights, ascending and distinct.
#[derive(Clone, Debug, Default)]
pub(super) struct Distribution {
    pub(super) values: Vec<f32>,
    pub(super) weights: Vec<f64>,
}

/// So many numbers are divided without a first guess.
const FEW: usize = 384;

/// How far from its guess a boundary may move in one division.
const REACH: usize = 48;

/// How often divisions near a guess are repeated, while they find better ones.
const MAX_DIVISIONS: usize = 8;

/// How often a descent moves the boundaries, at most.
const MAX_STEPS: usize = 60;

impl Distribution {
    /// Numbers in any order, each of the same weight.
    pub(super) fn of(mut numbers: Vec<f32>) -> Distribution {
        numbers.sort_unstable_by(f32::total_cmp);
        let mut distribution = Distribution::default();
        for number in numbers {
            distribution.push(number, 1.0);
        }
        distribution
    }

    /// Adds a number that is not below the last.
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

/// At most `count` numbers, ascending, that stand for others with the least sum of squared differences.
pub(super) fn centroids(distribution: &Distribution, count: usize) -> Vec<f32> {
    let n = distribution.values.len();
    if n <= count {
        return distribution.values.clone();
    }
    let sums = Sums::of(distribution);
    let all = |_: usize| (0, n);
    if n <= FEW.max(2 * count) {
        return sums.means(&divide(&sums, count, &all).0);
    }
    let mut bounds = descend(distribution, &sums, guess(distribution, &sums, count));
    let mut cost = sums.total(&bounds);
    for _ in 0..MAX_DIVISIONS {
        let near = |index: usize| {
            let at = bounds[index];
            (at.saturating_sub(REACH), (at + REACH).min(n))
        };
        let (divided, found) = divide(&sums, count, &near);
        if found >= cost * (1.0 - 1e-12) {
            break;
        }
        (bounds, cost) = (divided, found);
    }
    sums.means(&bounds)
}

/// Sums over the first numbers, for any range of them in no time.
struct Sums {
    weights: Vec<f64>,
    firsts: Vec<f64>,
    squares: Vec<f64>,
}

impl Sums {
    fn of(distribution: &Distribution) -> Sums {
        let n = distribution.values.len() + 1;
        let room = || Vec::with_capacity(n);
        let mut sums = Sums { weights: room(), firsts: room(), squares: room() };
        let (mut weight, mut first, mut square) = (0.0, 0.0, 0.0);
        sums.push(weight, first, square);
        for (&value, &w) in distribution.values.iter().zip(&distribution.weights) {
            let value = f64::from(value);
            weight += w;
            first += w * value;
            square += w * value * value;
            sums.push(weight, first, square);
        }
        sums
    }

    fn push(&mut self, weight: f64, first: f64, square: f64) {
        self.weights.push(weight);
        self.firsts.push(first);
        self.squares.push(square);
    }

    /// The sum of squared differences from the mean of a range.
    fn cost(&self, start: usize, end: usize) -> f64 {
        let weight = self.weights[end] - self.weights[start];
        if weight <= 0.0 {
            return 0.0;
        }
        let first = self.firsts[end] - self.firsts[start];
        (self.squares[end] - self.squares[start] - first * first / weight).max(0.0)
    }

    fn mean(&self, start: usize, end: usize) -> f64 {
        let weight = self.weights[end] - self.weights[start];
        (self.firsts[end] - self.firsts[start]) / weight
    }

    fn total(&self, bounds: &[usize]) -> f64 {
        bounds.windows(2).map(|pair| self.cost(pair[0], pair[1])).sum()
    }

    fn means(&self, bounds: &[usize]) -> Vec<f32> {
        let ranges = bounds.windows(2).filter(|pair| pair[0] < pair[1]);
        ranges.map(|pair| self.mean(pair[0], pair[1]) as f32).collect()
    }
}

/// The best division into ranges whose ends lie where `within` allows them, as the `count + 1` boundaries, and its cost.
///
/// Where the best last range of a longer row begins, the best of a shorter one does not begin later: so the boundary
/// of the middle row bounds those of all others.
fn divide(
    sums: &Sums,
    count: usize,
    within: &dyn Fn(usize) -> (usize, usize),
) -> (Vec<usize>, f64) {
    let n = sums.weights.len() - 1;
    let range = |index: usize| match index {
        0 => (0, 0),
        index if index == count => (n, n),
        index => within(index),
    };
    // By range, the first end that is allowed, and by end the cost up to it and where the range begins.
    let mut starts: Vec<(usize, Vec<usize>)> = Vec::with_capacity(count);
    let (mut low, mut costs) = (0, vec![0.0]);
    for index in 1..=count {
        let (first, last) = range(index);
        let mut layer =
            Layer { sums, low, costs: &costs, first, next: Vec::new(), begins: Vec::new() };
        layer.next = vec![f64::INFINITY; last - first + 1];
        layer.begins = vec![low; last - first + 1];
        layer.fill(first, last, low, low + costs.len() - 1);
        let Layer { next, begins, .. } = layer;
        starts.push((first, begins));
        (low, costs) = (first, next);
    }
    let mut bounds = vec![n; count + 1];
    for index in (1..=count).rev() {
        let (first, begins) = &starts[index - 1];
        bounds[index - 1] = begins[bounds[index] - first];
    }
    (bounds, costs[costs.len() - 1])
}

struct Layer<'a> {
    sums: &'a Sums,
    /// The first end of the ranges before, and the costs up to each of them.
    low: usize,
    costs: &'a [f64],
    /// The first end of these ranges, and what is found for each.
    first: usize,
    next: Vec<f64>,
    begins: Vec<usize>,
}

impl Layer<'_> {
    /// Finds the best begins for ends from `from` to `to`, which lie between two places.
    fn fill(&mut self, from: usize, to: usize, least: usize, most: usize) {
        if from > to {
            return;
        }
        let middle = usize::midpoint(from, to);
        let mut best = (f64::INFINITY, least.min(middle));
        for begin in least..=most.min(middle) {
            let cost = self.costs[begin - self.low] + self.sums.cost(begin, middle);
            if cost < best.0 {
                best = (cost, begin);
            }
        }
        (self.next[middle - self.first], self.begins[middle - self.first]) = best;
        // Ends before all begins have none, and tell nothing of others.
        let bound = if best.0.is_finite() { best.1 } else { least };
        if middle > from {
            let most = if best.0.is_finite() { best.1 } else { most };
            self.fill(from, middle - 1, least, most);
        }
        self.fill(middle + 1, to, bound, most);
    }
}

/// Boundaries to begin with: the best ones between bins, more of which lie where a good division is finer.
fn guess(distribution: &Distribution, sums: &Sums, count: usize) -> Vec<usize> {
    let (values, weights) = (&distribution.values, &distribution.weights);
    let n = values.len();
    let bins = FEW.max(4 * count).min(n);
    // The best density of ranges is the cube root of that of numbers.
    let share = |at: usize| {
        let (before, after) = (values[at.saturating_sub(1)], values[(at + 1).min(n - 1)]);
        let root = cube_root(after - before);
        cube_root(weights[at] as f32) * root * root
    };
    let shares: Vec<f32> = (0..n).map(share).collect();
    let total: f64 = shares.iter().map(|&share| f64::from(share)).sum();
    let (mut edges, mut filled) = (vec![0], 0.0);
    for (at, share) in shares.into_iter().enumerate() {
        filled += f64::from(share);
        if filled * bins as f64 >= total * edges.len() as f64 && at + 1 < n {
            edges.push(at + 1);
        }
    }
    edges.push(n);
    edges.dedup();
    if edges.len() <= count + 1 {
        // Nearly all lies in one place; any bins will do.
        edges = (0..=bins).map(|bin| bin * n / bins).collect();
    }
    let pick = |of: &[f64]| edges.iter().map(|&edge| of[edge]).collect();
    let coarse = Sums {
        weights: pick(&sums.weights),
        firsts: pick(&sums.firsts),
        squares: pick(&sums.squares),
    };
    let (bounds, _) = divide(&coarse, count, &|_| (0, edges.len() - 1));
    bounds.into_iter().map(|bound| edges[bound]).collect()
}

/// The cube root of a number from 0 on, to a few thousandths: a third of the exponent, and a step of Newton's.
fn cube_root(number: f32) -> f32 {
    let guess = f32::from_bits(number.to_bits() / 3 + 0x2a51_4067);
    (2.0 * guess + number / (guess * guess)) / 3.0
}

/// Moves boundaries between the means of their ranges until none moves.
fn descend(distribution: &Distribution, sums: &Sums, mut bounds: Vec<usize>) -> Vec<usize> {
    let values = &distribution.values;
    for _ in 0..MAX_STEPS {
        let before = bounds.clone();
        for index in 1..bounds.len() - 1 {
            let (start, at, end) = (before[index - 1], before[index], before[index + 1]);
            if start < at && at < end {
                let middle = (sums.mean(start, at) + sums.mean(at, end)) / 2.0;
                let near = &values[start..end];
                bounds[index] = start + near.partition_point(|&value| f64::from(value) <= middle);
            }
        }
        for index in 1..bounds.len() {
            bounds[index] = bounds[index].max(bounds[index - 1]);
        }
        if bounds == before {
            break;
        }
    }
    bounds
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
        // Sums of uniform numbers: a bell.
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

    /// All divisions of few numbers.
    fn exhaustive(sums: &Sums, count: usize) -> f64 {
        let n = sums.weights.len() - 1;
        let mut costs: Vec<f64> = (0..=n).map(|end| sums.cost(0, end)).collect();
        for _ in 1..count {
            costs = (0..=n)
                .map(|end| {
                    let before = (0..=end).map(|begin| costs[begin] + sums.cost(begin, end));
                    before.fold(f64::INFINITY, f64::min)
                })
                .collect();
        }
        costs[n]
    }

    #[test]
    fn few_numbers_stand_for_themselves() {
        let distribution = Distribution::of(vec![3.0, 1.0, 3.0, -2.0]);
        assert_eq!(distribution.weights, [1.0, 1.0, 2.0]);
        assert_eq!(centroids(&distribution, 4), [-2.0, 1.0, 3.0]);
    }

    #[test]
    fn divisions_are_the_best() {
        for (seed, count) in [(1, 2), (2, 4), (3, 8), (4, 16)] {
            // More than are divided without a guess.
            let distribution = Distribution::of(random(600, seed));
            let sums = Sums::of(&distribution);
            let best = exhaustive(&sums, count);
            let found = error(&distribution, &centroids(&distribution, count));
            assert!(found <= best * (1.0 + 1e-6), "{count}: {found} instead of {best}");
            let few = Distribution::of(random(200, seed));
            let best = exhaustive(&Sums::of(&few), count);
            let found = error(&few, &centroids(&few, count));
            assert!(found <= best * (1.0 + 1e-6), "{count} of few: {found} instead of {best}");
        }
    }

    #[test]
    fn outliers_and_gaps_are_found() {
        let mut numbers = random(5000, 9);
        numbers.extend(std::iter::repeat_n(0.0, 20_000));
        numbers.extend([500.0, -700.0, 501.0]);
        let distribution = Distribution::of(numbers);
        let best = exhaustive_bound(&distribution);
        let found = error(&distribution, &centroids(&distribution, 8));
        assert!(found <= best * 1.0001, "{found} instead of {best}");
    }

    /// The error with the outliers by themselves and the best division of the rest.
    fn exhaustive_bound(distribution: &Distribution) -> f64 {
        let mut rest = Distribution::default();
        for (&value, &weight) in distribution.values.iter().zip(&distribution.weights) {
            if value.abs() < 100.0 {
                rest.push(value, weight);
            }
        }
        let n = rest.values.len();
        let (_, cost) = divide(&Sums::of(&rest), 6, &|_| (0, n));
        cost + 0.5
    }
}
