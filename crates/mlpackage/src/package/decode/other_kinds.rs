//! Models other than ML Programs: their kind and contents, for error messages.

use crate::package::error::{Error, ErrorKind, shortened};
use crate::package::wire::{Field, Reader};

/// Maximum number of stages that a message lists.
const LISTED: usize = 16;

/// Name of a kind of model other than an ML Program, by its field number.
pub(super) const fn name(number: u32) -> Option<&'static str> {
    Some(match number {
        200 => "pipelineClassifier",
        201 => "pipelineRegressor",
        202 => "pipeline",
        300 => "glmRegressor",
        301 => "supportVectorRegressor",
        302 => "treeEnsembleRegressor",
        303 => "neuralNetworkRegressor",
        304 => "bayesianProbitRegressor",
        400 => "glmClassifier",
        401 => "supportVectorClassifier",
        402 => "treeEnsembleClassifier",
        403 => "neuralNetworkClassifier",
        404 => "kNearestNeighborsClassifier",
        500 => "neuralNetwork",
        501 => "itemSimilarityRecommender",
        555 => "customModel",
        556 => "linkedModel",
        560 => "classConfidenceThresholding",
        600 => "oneHotEncoder",
        601 => "imputer",
        602 => "featureVectorizer",
        603 => "dictVectorizer",
        604 => "scaler",
        606 => "categoricalMapping",
        607 => "normalizer",
        609 => "arrayFeatureExtractor",
        610 => "nonMaximumSuppression",
        900 => "identity",
        2000 => "textClassifier",
        2001 => "wordTagger",
        2002 => "visionFeaturePrint",
        2003 => "soundAnalysisPreprocessing",
        2004 => "gazetteer",
        2005 => "wordEmbedding",
        2006 => "audioFeaturePrint",
        3000 => "serializedModel",
        _ => return None,
    })
}

/// Error for a model that is not an ML Program. It describes the contents as far as they are valid.
pub(super) fn refusal(kind: &Field<'_>, version: i32) -> Error {
    let shown = name(kind.number).unwrap_or("?");
    let content = match kind.number {
        200..=202 => pipeline(kind),
        _ => content(kind).map(|content| format!(" of {content}")),
    };
    let content = content.unwrap_or_default();
    let read = match kind.number {
        200..=202 => "only pipelines of `mlProgram` are supported",
        _ => "only `mlProgram` is supported",
    };
    let message =
        format!("the model is a `{shown}`{content}, in version {version} of the format; {read}");
    let hint = "convert the original model to an ML Program (iOS 15 or later)";
    Error::new(ErrorKind::OtherModel, message).at(kind.offset).with_hint(hint)
}

/// Description of the contents of a model, if they can be counted.
fn content(kind: &Field<'_>) -> Option<String> {
    let name = name(kind.number)?;
    let mut reader = kind.message(name).ok()?;
    let plural = |count: usize, what: &str| match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    };
    match kind.number {
        303 | 403 | 500 => Some(plural(occurrences(reader, 1), "layer")),
        302 | 402 => {
            let ensemble = find(&mut reader, 1)?.message(name).ok()?;
            Some(plural(occurrences(ensemble, 1), "node"))
        }
        555 => Some(format!("class `{}`", shortened(find(&mut reader, 10)?.string(name).ok()?))),
        3000 => Some(format!("type `{}`", shortened(find(&mut reader, 1)?.string(name).ok()?))),
        _ => None,
    }
}

/// Whether a pipeline has stages and all of them are ML Programs.
pub(super) fn is_of_programs(kind: &Field<'_>) -> bool {
    let Some(mut reader) = stages_of(kind) else { return false };
    let mut stages = 0;
    while let Ok(Some(field)) = reader.next() {
        if field.number == 1 {
            stages += 1;
            let model = field.message("models");
            if !model.is_ok_and(|model| occurrences(model, super::ML_PROGRAM) > 0) {
                return false;
            }
        }
    }
    stages > 0
}

/// The message that contains the stages of a pipeline.
fn stages_of<'a>(kind: &Field<'a>) -> Option<Reader<'a>> {
    let name = name(kind.number)?;
    let mut reader = kind.message(name).ok()?;
    match kind.number {
        202 => Some(reader),
        _ => find(&mut reader, 1)?.message(name).ok(),
    }
}

/// Names, kinds and contents of the stages of a pipeline.
fn pipeline(kind: &Field<'_>) -> Option<String> {
    let mut reader = stages_of(kind)?;
    let (mut stages, mut names) = (Vec::new(), Vec::new());
    while let Ok(Some(field)) = reader.next() {
        match field.number {
            1 => stages.push(field),
            2 => names.push(field.string("names").unwrap_or_default()),
            _ => {}
        }
    }
    let mut listed: Vec<String> = Vec::new();
    for (index, stage) in stages.iter().take(LISTED).enumerate() {
        let mut model = stage.message("models").ok()?;
        let mut shown = "a model of an unknown kind".to_owned();
        while let Ok(Some(field)) = model.next() {
            if field.number == super::ML_PROGRAM {
                shown = "`mlProgram`".to_owned();
            } else if let Some(name) = name(field.number) {
                let content = content(&field).map(|content| format!(" of {content}"));
                shown = format!("`{name}`{}", content.unwrap_or_default());
            }
        }
        match names.get(index) {
            Some(name) => listed.push(format!("`{}`: {shown}", shortened(name))),
            None => listed.push(shown),
        }
    }
    if stages.len() > LISTED {
        listed.push(format!("{} more", stages.len() - LISTED));
    }
    let stages_word = if stages.len() == 1 { "stage" } else { "stages" };
    Some(format!(" of {} {stages_word} ({})", stages.len(), listed.join("; ")))
}

fn find<'a>(reader: &mut Reader<'a>, number: u32) -> Option<Field<'a>> {
    while let Ok(Some(field)) = reader.next() {
        if field.number == number {
            return Some(field);
        }
    }
    None
}

fn occurrences(mut reader: Reader<'_>, number: u32) -> usize {
    let mut count = 0;
    while let Ok(Some(field)) = reader.next() {
        count += usize::from(field.number == number);
    }
    count
}
