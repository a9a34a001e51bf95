//! Class labels: `classify` returns the label with the highest score, and the scores by label. They are added and removed.

use coremill_io::unknown_name;
use coremill_mil::ir::{Binding, Constant, ConstantData, Definition, Dim, Op, Type, ValueId};
use coremill_mil::model::{FeatureDescription, FeatureType, KeyType};
use coremill_mil::ops::OpKind;
use coremill_mil::text::identifier;
use coremill_passes::keep_unused_inputs;
use coremill_tensor::DType;
use serde::Deserialize;

use crate::error::Error;
use crate::interface::{Interface, Port};
use crate::outputs::expose_value;

/// Name of the output with the label, unless another is given.
const LABEL_NAME: &str = "classLabel";

/// The labels of a classifier.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Classifier {
    /// One label for each score, in order.
    pub labels: Labels,
    /// The output or the value with the scores; the last output of floats if `None`.
    #[serde(default)]
    pub output: Option<String>,
    /// Name of the output with the label; `classLabel` if `None`. The scores are `NAME_probs`.
    #[serde(default)]
    pub name: Option<String>,
}

/// Class labels.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Labels {
    /// Integers.
    Ints(Vec<i64>),
    /// Texts.
    Texts(Vec<String>),
}

impl Labels {
    /// The labels in a text, one a line.
    pub fn from_lines(text: &str) -> Labels {
        Labels::Texts(text.lines().map(str::to_owned).collect())
    }

    /// The number of labels.
    pub fn len(&self) -> usize {
        match self {
            Labels::Ints(labels) => labels.len(),
            Labels::Texts(labels) => labels.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The list that `classify` takes.
    fn constant(&self) -> Constant {
        let (dtype, parts): (DType, Vec<Constant>) = match self {
            Labels::Ints(labels) => {
                let label =
                    |label: &i64| Constant::bytes(DType::Int64, &[], label.to_le_bytes().to_vec());
                (DType::Int64, labels.iter().map(label).collect())
            }
            Labels::Texts(labels) => (DType::String, labels.iter().map(Constant::string).collect()),
        };
        let ty = Type::List(Box::new(Type::scalar(dtype)), Dim::Known(parts.len() as u64));
        Constant { ty, data: ConstantData::Sequence(parts) }
    }
}

/// Makes a model a classifier. The scores are no output any more, but a dictionary by label.
pub(crate) fn classify(
    interface: &mut Interface<'_>,
    classifier: &Classifier,
) -> Result<(), Error> {
    if !interface.predicted_feature.is_empty() {
        return Err(Error::new("the model is already a classifier"));
    }
    if classifier.labels.is_empty() {
        return Err(Error::new("a classifier needs at least one label"));
    }
    let scores = scores(interface, classifier.output.as_deref())?;
    let tensor = interface.tensor(scores)?.clone();
    let count = classifier.labels.len() as u64;
    if let Some(found) = tensor.element_count().filter(|found| *found != count) {
        let name = &interface.function.value(scores).name;
        let message =
            format!("`{name}` has {found} scores; the number of labels must be equal, got {count}");
        return Err(Error::new(message).with_hint("pass one label for each score, in order"));
    }
    if !tensor.dtype.is_float() {
        let name = &interface.function.value(scores).name;
        return Err(Error::new(format!("`{name}` is a `{tensor}`; expected floats")));
    }
    let name = classifier.name.as_deref().unwrap_or(LABEL_NAME);
    let names = [name.to_owned(), format!("{name}_probs")];
    for name in &names {
        if identifier(name) != *name {
            return Err(Error::new(format!("`{name}` is not a valid name in Core ML")));
        }
        if interface.port(name).is_ok() {
            return Err(Error::new(format!("the model already has an input or output `{name}`")));
        }
    }
    let position = interface.function.outputs().iter().position(|&output| output == scores);
    let body = interface.function.body;
    if let Some(at) = position {
        let name = interface.function.value(scores).name.clone();
        interface.function.block_mut(body).outputs.remove(at);
        interface.outputs.retain(|feature| feature.name != name);
    }
    let scores = match tensor.dtype {
        DType::Fp32 => scores,
        _ => {
            let (end, name) = (interface.end(), interface.function.value(scores).name.clone());
            interface.cast(end, scores, DType::Fp32, &format!("{name}_fp32"))
        }
    };
    let (class, key) = match &classifier.labels {
        Labels::Ints(_) => (DType::Int64, KeyType::Int64),
        Labels::Texts(_) => (DType::String, KeyType::String),
    };
    let class = Type::scalar(class);
    let scored = Type::Dictionary(Box::new(class.clone()), Box::new(Type::scalar(DType::Fp64)));
    let op = Op::new(OpKind::Classify)
        .with("probabilities", Binding::Value(scores))
        .with("classes", Binding::Literal(classifier.labels.constant()));
    let outputs = names.iter().cloned().zip([class, scored]);
    let op = interface.function.add_op(body, op, outputs);
    let given = interface.function.op(op).outputs.clone();
    for (&value, name) in given.iter().zip(&names) {
        interface.claim_name(value, name);
    }
    interface.function.block_mut(body).outputs.splice(0..0, given);
    let label = match key {
        KeyType::Int64 => FeatureType::Int64,
        KeyType::String => FeatureType::String,
    };
    let features = [label, FeatureType::Dictionary(Some(key))];
    let features = names.iter().zip(features).map(|(name, ty)| FeatureDescription::new(name, ty));
    interface.outputs.splice(0..0, features);
    let [name, probabilities] = names;
    *interface.predicted_feature = name;
    *interface.predicted_probabilities = probabilities;
    Ok(())
}

/// Makes a classifier return its scores as an array instead of the label and the dictionary.
pub(crate) fn declassify(interface: &mut Interface<'_>) -> Result<(), Error> {
    let label = interface.output_value(interface.predicted_feature)?;
    let function = &interface.function;
    let classify = match function.value(label).definition {
        Definition::Output(op, _) => Some(function.op(op)),
        Definition::Input(..) => None,
    };
    let classify = classify.filter(|op| op.kind() == Some(OpKind::Classify));
    let scores =
        classify.and_then(|op| op.all_bindings().find(|(name, _)| *name == "probabilities"));
    let (Some(classify), Some((_, &Binding::Value(scores)))) = (classify, scores) else {
        let name = &interface.predicted_feature;
        return Err(Error::new(format!("no `classify` operation computes the label `{name}`")));
    };
    let removed = classify.outputs.clone();
    let body = interface.function.body;
    interface.function.block_mut(body).outputs.retain(|output| !removed.contains(output));
    let names = [&*interface.predicted_feature, &*interface.predicted_probabilities];
    interface.outputs.retain(|feature| !names.contains(&&feature.name));
    interface.predicted_feature.clear();
    interface.predicted_probabilities.clear();
    if !interface.function.outputs().contains(&scores) {
        let name = interface.function.value(scores).name.clone();
        expose_value(interface, scores, &name)?;
    }
    interface.sweep();
    keep_unused_inputs(interface.function);
    Ok(())
}

/// The value with the scores.
fn scores(interface: &Interface<'_>, name: Option<&str>) -> Result<ValueId, Error> {
    let function = &interface.function;
    let Some(name) = name else {
        let is_scores = |value: &&ValueId| {
            interface.tensor(**value).is_ok_and(|tensor| tensor.dtype.is_float())
        };
        let found = function.outputs().iter().rev().find(is_scores);
        return found
            .copied()
            .ok_or_else(|| Error::new("the model has no output with float elements"));
    };
    if let Ok(Port::Output(_)) = interface.port(name) {
        return interface.output_value(name);
    }
    let body = function.block(function.body);
    let computed = body.ops.iter().flat_map(|&op| &function.op(op).outputs);
    let computed: Vec<ValueId> =
        computed.copied().filter(|&value| interface.can_be_output(value)).collect();
    let named = |value: &ValueId| function.value(*value).name.as_str();
    let found = computed.iter().find(|value| named(value) == name);
    found
        .copied()
        .ok_or_else(|| Error::new(unknown_name("output", name, computed.iter().map(named))))
}
