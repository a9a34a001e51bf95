//! Sampling positions and weights of a resized axis, as in torch.

/// A resized axis of static size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Points {
    pub(super) input: i64,
    pub(super) output: i64,
    /// torch's scale factor, which overrides the ratio of the sizes.
    pub(super) factor: Option<f64>,
}

/// Interpolation filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Filter {
    /// Two neighbors.
    Linear,
    /// Four neighbors.
    Cubic,
    /// Triangle filter, wide enough to cover all elements (antialiased linear).
    SmoothLinear,
    /// Cubic filter (antialiased cubic).
    SmoothCubic,
    /// Windowed sinc filter (antialiased Lanczos).
    SmoothLanczos,
}

impl Points {
    /// Input distance of one output step, without aligned corners.
    fn scale(&self) -> f64 {
        match self.factor {
            Some(factor) if factor > 0.0 => 1.0 / factor,
            _ => self.input as f64 / self.output as f64,
        }
    }

    /// Whether the positions follow from the ratio of the sizes.
    pub(super) fn is_by_size(&self) -> bool {
        let by_size = self.input as f64 / self.output as f64;
        (self.scale() - by_size).abs() <= 1e-6 * by_size
    }

    /// Nearest element to each output, in torch's arithmetic.
    pub(super) fn nearest(&self, centered: bool) -> Vec<i64> {
        let scale = match self.factor {
            Some(factor) if factor > 0.0 => (1.0 / factor) as f32,
            _ => self.input as f32 / self.output as f32,
        };
        let place = |at: i64| {
            if !centered && self.output == self.input {
                return at;
            }
            if !centered && self.output == 2 * self.input {
                return at / 2;
            }
            let at = if centered { at as f32 + 0.5 } else { at as f32 };
            ((at * scale).floor() as i64).min(self.input - 1)
        };
        (0..self.output).map(place).collect()
    }

    /// The element for each output of Core ML's nearest upsampling.
    pub(super) fn repeated(&self) -> Vec<i64> {
        (0..self.output).map(|at| at * self.input / self.output).collect()
    }

    /// The element at the center of each output.
    pub(super) fn central(&self) -> Vec<i64> {
        (0..self.output).map(|at| (2 * at + 1) * self.input / (2 * self.output)).collect()
    }

    /// The matrix of weights, one row per output.
    pub(super) fn matrix(&self, filter: Filter, align_corners: bool) -> Vec<f32> {
        let mut matrix = Vec::with_capacity((self.input * self.output) as usize);
        for at in 0..self.output {
            let mut row = vec![0.0f64; self.input as usize];
            match filter {
                Filter::Linear | Filter::Cubic => {
                    self.interpolate(filter, align_corners, at, &mut row)
                }
                _ => self.smooth(filter, align_corners, at, &mut row),
            }
            matrix.extend(row.into_iter().map(|weight| weight as f32));
        }
        matrix
    }

    /// Input distance of one output step.
    fn step(&self, align_corners: bool) -> f64 {
        match (align_corners, self.output) {
            (false, _) => self.scale(),
            (true, 1) => 0.0,
            (true, output) => (self.input - 1) as f64 / (output - 1) as f64,
        }
    }

    fn interpolate(&self, filter: Filter, align_corners: bool, at: i64, row: &mut [f64]) {
        let step = self.step(align_corners);
        let mut place = match align_corners {
            true => at as f64 * step,
            false => (at as f64 + 0.5) * step - 0.5,
        };
        let last = self.input - 1;
        let mut add = |at: i64, weight: f64| {
            let nearest = row.get_mut(at.clamp(0, last.max(0)) as usize);
            nearest.into_iter().for_each(|sum| *sum += weight);
        };
        if filter == Filter::Linear {
            place = place.max(0.0);
            let low = (place.floor() as i64).min(last);
            let share = (place - low as f64).min(1.0);
            add(low, 1.0 - share);
            add(low + 1, share);
        } else {
            let low = place.floor();
            let share = place - low;
            for neighbour in -1..=2 {
                let distance = (share - neighbour as f64).abs();
                add(low as i64 + neighbour, cubic(distance, -0.75));
            }
        }
    }

    fn smooth(&self, filter: Filter, align_corners: bool, at: i64, row: &mut [f64]) {
        let scale = self.step(align_corners);
        let radius = match filter {
            Filter::SmoothLanczos => 3.0,
            Filter::SmoothCubic => 2.0,
            _ => 1.0,
        };
        let (support, shrink) =
            if scale >= 1.0 { (radius * scale, 1.0 / scale) } else { (radius, 1.0) };
        let center = scale * (at as f64 + 0.5);
        let first = ((center - support + 0.5) as i64).max(0);
        let end = ((center + support + 0.5) as i64).min(self.input);
        let weight = |at: i64| {
            let distance = ((at as f64 - center + 0.5) * shrink).abs();
            match filter {
                Filter::SmoothLanczos => lanczos(distance),
                Filter::SmoothCubic => cubic(distance, -0.5),
                _ => (1.0 - distance).max(0.0),
            }
        };
        let total: f64 = (first..end).map(weight).sum();
        for (at, place) in (0..end).zip(row).skip(first as usize) {
            *place = if total == 0.0 { 0.0 } else { weight(at) / total };
        }
    }
}

/// Keys' cubic kernel.
fn cubic(distance: f64, a: f64) -> f64 {
    let x = distance;
    if x <= 1.0 {
        ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        ((x - 5.0) * x + 8.0) * x * a - 4.0 * a
    } else {
        0.0
    }
}

fn lanczos(distance: f64) -> f64 {
    let sinc = |x: f64| {
        let x = x * std::f64::consts::PI;
        if x == 0.0 { 1.0 } else { x.sin() / x }
    };
    if distance < 3.0 { sinc(distance) * sinc(distance / 3.0) } else { 0.0 }
}
