//! Parts of a text by their timestamps, as transformers finds them.

/// Seconds between two timestamps.
pub(crate) const STEP: f64 = 0.02;

/// Part of a text with its time.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Segment {
    /// Start in seconds.
    pub start: f64,
    /// End in seconds.
    pub end: f64,
    /// The text.
    pub text: String,
    /// Its tokens, with timestamps.
    pub tokens: Vec<u32>,
}

/// Segments of a window of audio, and the number of frames after which the next window starts.
pub(crate) struct Segments {
    /// Start and end in timestamps from the start of the window, and tokens.
    pub(crate) segments: Vec<(f64, f64, Vec<u32>)>,
    pub(crate) frames: usize,
}

/// Cuts the tokens of a window of `frames` frames, `frames_per_step` for each timestamp. Timestamps start at `first`.
pub(crate) fn segments(
    tokens: &[u32],
    first: u32,
    frames: usize,
    frames_per_step: usize,
) -> Segments {
    let is_timestamp = |token: &u32| *token >= first;
    let steps = |token: u32| f64::from(token.saturating_sub(first));
    // A part ends with a timestamp that another one follows.
    let mut ends: Vec<usize> = (1..tokens.len())
        .filter(|&at| is_timestamp(&tokens[at - 1]) && is_timestamp(&tokens[at]))
        .collect();
    let Some(&last_end) = ends.last() else {
        let last = tokens.iter().rev().find(|token| is_timestamp(token));
        let end = match last.filter(|&&token| token != first) {
            Some(&token) => steps(token),
            None => (frames / frames_per_step.max(1)) as f64,
        };
        return Segments { segments: vec![(0.0, end, tokens.to_vec())], frames };
    };
    // A single timestamp at the end: no speech follows it.
    let is_complete = match tokens {
        [.., before, last] => !is_timestamp(before) && is_timestamp(last),
        _ => false,
    };
    let mut next = frames;
    if is_complete {
        ends.push(tokens.len());
    } else {
        // What follows the last end is cut off by the window: the next one starts there.
        next = tokens[last_end - 1].saturating_sub(first) as usize * frames_per_step;
        // The timestamp after the last end is of the segment, as in transformers.
        if let Some(end) = ends.last_mut() {
            *end += 1;
        }
    }
    let mut segments = Vec::with_capacity(ends.len());
    let mut start = 0;
    for (index, &end) in ends.iter().enumerate() {
        let part = &tokens[start..end];
        let is_cut = index + 1 == ends.len() && !is_complete;
        let last = part.len().checked_sub(if is_cut { 2 } else { 1 });
        let last = last.map_or(first, |last| part[last]);
        segments.push((steps(part.first().copied().unwrap_or(first)), steps(last), part.to_vec()));
        start = end;
    }
    Segments { segments, frames: next }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(tokens: &[u32]) -> (Vec<(f64, f64, usize)>, usize) {
        let Segments { segments, frames } = segments(tokens, 100, 60, 2);
        let parts = segments.into_iter().map(|(start, end, tokens)| (start, end, tokens.len()));
        (parts.collect(), frames)
    }

    #[test]
    fn splits_tokens_into_segments_at_timestamps() {
        assert_eq!(found(&[7, 8]), (vec![(0.0, 30.0, 2)], 60));
        assert_eq!(found(&[]), (vec![(0.0, 30.0, 0)], 60));
        assert_eq!(found(&[100, 7, 112]), (vec![(0.0, 12.0, 3)], 60));
        // After a single final timestamp, the next window starts after all 60 frames. Otherwise, it starts where the last finished
        // segment ends.
        let parts = vec![(0.0, 5.0, 3), (6.0, 9.0, 3)];
        assert_eq!(found(&[100, 7, 105, 106, 8, 109]), (parts, 60));
        assert_eq!(found(&[100, 7, 105, 106, 8, 8]), (vec![(0.0, 5.0, 4)], 10));
        let parts = vec![(0.0, 5.0, 3), (6.0, 9.0, 4)];
        assert_eq!(found(&[100, 7, 105, 106, 8, 109, 109]), (parts, 18));
    }
}
