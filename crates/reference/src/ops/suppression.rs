//! Reference kernel of non-maximum suppression.

use std::cmp::Ordering;

use crate::array::{Array, View};
use crate::call::{Call, Results};
use crate::error::{Result, fail};

/// The score of a box is its highest class score, and its class is that class. With
/// `per_class_suppression`, only boxes of the same class suppress each other. If no box reaches the
/// score threshold, the best one is returned, as in Core ML. Unused outputs are 0, or -1 for
/// indices.
///
/// Up to iOS16 the coordinates and scores of each box are contiguous, there is a score threshold,
/// and the number of selected boxes is an output. From iOS17 on, coordinate `i` of all boxes is
/// contiguous.
pub(in crate::ops) fn non_maximum_suppression(call: &Call) -> Results {
    let (boxes, scores) = (call.tensor("boxes")?, call.tensor("scores")?);
    let rows = call.row.parameter("score_threshold").is_some();
    let (values, places) = if rows { (2, 1) } else { (1, 2) };
    if boxes.rank() != 3
        || scores.rank() != 3
        || boxes.shape[values] != 4
        || boxes.shape[0] != scores.shape[0]
        || boxes.shape[places] != scores.shape[places]
    {
        fail!(
            "`boxes` has shape {:?} and `scores` has shape {:?}, which do not match",
            boxes.shape,
            scores.shape
        );
    }
    let most = call.int("max_boxes")?;
    let Ok(most) = usize::try_from(most) else {
        fail!("`max_boxes` must be at least 0, got {most}");
    };
    let (batch, count, classes) = (boxes.shape[0], boxes.shape[places], scores.shape[values]);
    let choice = Choice {
        iou_threshold: call.float("iou_threshold")?,
        score_threshold: if rows { Some(call.float("score_threshold")?) } else { None },
        most,
        per_class: call.bool("per_class_suppression")?,
    };
    let shape = |width| if rows { [batch, most, width] } else { [batch, width, most] };
    let mut indices = vec![-1; call.count(&[batch, most])?];
    let mut counts = Vec::with_capacity(batch);
    call.count(&shape(4))?;
    call.count(&shape(classes))?;
    for image in 0..batch {
        let numbers = |of: View, width: usize| -> Result<Vec<f32>> {
            let numbers = &of.floats()?[image * count * width..][..count * width];
            Ok(if rows { numbers.to_vec() } else { turned(numbers, width, count) })
        };
        let candidates = candidates(&numbers(boxes, 4)?, &numbers(scores, classes)?, classes);
        let chosen = choice.of(candidates);
        counts.push(chosen.len() as i32);
        for (index, chosen) in indices[image * most..].iter_mut().zip(chosen) {
            *index = chosen as i32;
        }
    }
    let taken = |of: View, width: usize| -> Result<Array> {
        let numbers = of.floats()?;
        let mut taken = vec![0.0; batch * most * width];
        for (at, &index) in indices.iter().enumerate() {
            let Ok(index) = usize::try_from(index) else { continue };
            let (image, at) = (at / most, at % most);
            for value in 0..width {
                let (from, to) = if rows {
                    (index * width + value, at * width + value)
                } else {
                    (value * count + index, value * most + at)
                };
                taken[image * most * width + to] = numbers[image * count * width + from];
            }
        }
        Ok(Array::floats(of.dtype, shape(width), taken))
    };
    let mut outputs = vec![taken(boxes, 4)?, taken(scores, classes)?];
    outputs.push(Array::ints(call.dtypes[2], [batch, most], indices));
    if rows {
        outputs.push(Array::ints(call.dtypes[3], [batch], counts));
    }
    Ok(outputs)
}

/// Transposes a matrix.
fn turned(numbers: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    let column = |column: usize| (0..rows).map(move |row| numbers[row * columns + column]);
    (0..columns).flat_map(column).collect()
}

struct Candidate {
    index: usize,
    class: usize,
    score: f32,
    /// Left, top, right, bottom.
    sides: [f32; 4],
}

/// Converts boxes from center and size to sides, and sorts them by descending score.
fn candidates(boxes: &[f32], scores: &[f32], classes: usize) -> Vec<Candidate> {
    let candidate =
        |(index, coordinates): (usize, &[f32])| {
            let scores = scores[index * classes..][..classes].iter().enumerate();
            let (class, score) = scores.fold((0, f32::NEG_INFINITY), |best, (class, &score)| {
                if score > best.1 { (class, score) } else { best }
            });
            let [x, y] = [coordinates[0], coordinates[1]];
            // Boxes of negative size overlap no other, as in torch: coremltools' tests have such boxes.
            let [width, height] = [0.5 * coordinates[2], 0.5 * coordinates[3]];
            Candidate { index, class, score, sides: [x - width, y - height, x + width, y + height] }
        };
    let boxes = boxes.as_chunks::<4>().0.iter().map(<[f32; 4]>::as_slice);
    let mut candidates: Vec<Candidate> = boxes.enumerate().map(candidate).collect();
    // Scores cannot be NaN: NaN is never greater than the initial score.
    candidates.sort_by(|x, y| y.score.partial_cmp(&x.score).unwrap_or(Ordering::Equal));
    candidates
}

struct Choice {
    iou_threshold: f32,
    score_threshold: Option<f32>,
    most: usize,
    per_class: bool,
}

impl Choice {
    /// Selects among candidates sorted by score. Returns their indices.
    fn of(&self, candidates: Vec<Candidate>) -> Vec<usize> {
        let reaches = |score: f32| self.score_threshold.is_none_or(|threshold| score >= threshold);
        let mut chosen: Vec<&Candidate> = Vec::new();
        for candidate in candidates.iter().take_while(|candidate| reaches(candidate.score)) {
            if chosen.len() == self.most {
                break;
            }
            let stands_back = chosen.iter().any(|other| {
                (!self.per_class || other.class == candidate.class)
                    && overlap(&other.sides, &candidate.sides) > self.iou_threshold
            });
            if !stands_back {
                chosen.push(candidate);
            }
        }
        if chosen.is_empty() {
            chosen.extend(candidates.first().filter(|_| self.most > 0));
        }
        chosen.into_iter().map(|candidate| candidate.index).collect()
    }
}

/// Intersection over union of two boxes.
fn overlap(x: &[f32; 4], y: &[f32; 4]) -> f32 {
    let area = |sides: &[f32; 4]| (sides[2] - sides[0]) * (sides[3] - sides[1]);
    let side = |low: usize| (x[low + 2].min(y[low + 2]) - x[low].max(y[low])).max(0.0);
    let shared = side(0) * side(1);
    if shared > 0.0 { shared / (area(x) + area(y) - shared) } else { 0.0 }
}
