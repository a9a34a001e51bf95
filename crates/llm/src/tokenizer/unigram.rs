//! Unigram vocabularies: the division of a text into tokens with the highest sum of scores, as in SentencePiece.

use std::sync::Arc;

/// Added to the lowest score for characters that the vocabulary lacks.
const UNKNOWN_PENALTY: f32 = 10.0;

/// Scores of tokens.
#[derive(Debug)]
pub(super) struct Scores {
    /// The score of each token; NaN for tokens that are not found in texts, such as the end of a text.
    pub(super) scores: Vec<f32>,
    /// The score of unknown characters.
    unknown: f32,
    /// Most bytes of a token.
    longest: usize,
}

/// The best division of the text up to a place.
#[derive(Clone, Copy)]
struct Step {
    score: f32,
    /// Start of the last token, and its id; `None` for an unknown character.
    start: usize,
    id: Option<u32>,
}

impl Scores {
    pub(super) fn new(tokens: &[Arc<str>], scores: Vec<f32>) -> Scores {
        let known = scores.iter().copied().filter(|score| score.is_finite());
        let least = known.fold(f32::INFINITY, f32::min);
        let found = tokens.iter().zip(&scores).filter(|(_, score)| score.is_finite());
        let longest = found.map(|(token, _)| token.len()).max().unwrap_or(0);
        let least = if least.is_finite() { least } else { 0.0 };
        Scores { unknown: least - UNKNOWN_PENALTY, scores, longest }
    }

    /// Tokens of a piece as their starts, ends and ids, which a function looks up.
    pub(super) fn divide(
        &self,
        piece: &str,
        id_of: impl Fn(&str) -> Option<u32>,
    ) -> Vec<(usize, usize, Option<u32>)> {
        let mut steps: Vec<Option<Step>> = vec![None; piece.len() + 1];
        steps[0] = Some(Step { score: 0.0, start: 0, id: None });
        let improve = |steps: &mut [Option<Step>], end: usize, step: Step| {
            if steps[end].is_none_or(|best| step.score > best.score) {
                steps[end] = Some(step);
            }
        };
        for (start, character) in piece.char_indices() {
            let Some(Step { score: before, .. }) = steps[start] else { continue };
            let single = start + character.len_utf8();
            let mut has_single = false;
            let rest = &piece[start..];
            for (at, next) in rest.char_indices() {
                let length = at + next.len_utf8();
                if length > self.longest {
                    break;
                }
                let Some(id) = id_of(&rest[..length]) else { continue };
                let score = self.scores.get(id as usize).copied().unwrap_or(f32::NAN);
                if score.is_finite() {
                    has_single |= start + length == single;
                    let step = Step { score: before + score, start, id: Some(id) };
                    improve(&mut steps, start + length, step);
                }
            }
            if !has_single {
                let step = Step { score: before + self.unknown, start, id: None };
                improve(&mut steps, single, step);
            }
        }
        let mut tokens = Vec::new();
        let mut end = piece.len();
        while end > 0 {
            let Some(step) = steps[end] else { break };
            tokens.push((step.start, end, step.id));
            end = step.start;
        }
        tokens.reverse();
        tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picks_segmentation_with_highest_total_score() {
        let tokens = ["<unk>", "</s>", "a", "b", "ab", "abc"].map(Arc::from);
        let scores = Scores::new(&tokens, vec![f32::NAN, f32::NAN, -1.0, -1.0, -1.5, -9.0]);
        let ids = |text: &str| -> Vec<Option<u32>> {
            let id = |part: &str| tokens.iter().position(|token| **token == *part);
            let divided = scores.divide(text, |part| id(part).map(|id| id as u32));
            divided.into_iter().map(|(_, _, id)| id).collect()
        };
        assert_eq!(ids("abba"), [Some(4), Some(3), Some(2)]);
        // Even a token with a low score is preferred to an unknown character.
        assert_eq!(ids("abc"), [Some(5)]);
        assert_eq!(ids("ax"), [Some(2), None]);
        assert_eq!(ids("</s>"), [None; 4]);
    }
}
