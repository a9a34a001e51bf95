//! Outputs of a run: arrays for a file, and a summary as text or JSON.

use coremill_engine::{Array, Elements, Key, Outputs, Value};
use coremill_tensor::DType;
use serde::Serialize;

use crate::output::{Cell, FAINT, STRONG, Table, paint};

/// Maximum number of elements and classes in the summary.
const SHOWN: usize = 5;

/// An array to write.
pub(super) struct Entry<'o> {
    pub(super) name: String,
    /// The output of the model.
    pub(super) output: &'o str,
    pub(super) array: Array,
}

/// The arrays to write for the outputs.
pub(super) fn entries(results: &[Outputs], positional: bool) -> Vec<Entry<'_>> {
    let mut entries = Vec::new();
    for (step, outputs) in results.iter().enumerate() {
        let is_last = step + 1 == results.len();
        let suffixes = [(results.len() > 1).then(|| format!("@{step}")), is_last.then(String::new)];
        for suffix in suffixes.iter().flatten() {
            for (index, (output, value)) in outputs.0.iter().enumerate() {
                let name = if positional { format!("arr_{index}") } else { output.clone() };
                let entry = |(part, array): (String, Array)| Entry {
                    name: format!("{name}{part}{suffix}"),
                    output,
                    array,
                };
                entries.extend(parts(value).into_iter().map(entry));
            }
        }
    }
    entries
}

/// The arrays of a value, with a suffix for each.
pub(in crate::commands) fn parts(value: &Value) -> Vec<(String, Array)> {
    match value {
        Value::Array(array) => vec![(String::new(), array.clone())],
        Value::List(arrays) => {
            let arrays = arrays.iter().enumerate();
            arrays.map(|(index, array)| (format!(".{index}"), array.clone())).collect()
        }
        Value::Dictionary(classes) => {
            let scores = classes.iter().map(|(_, score)| *score).collect();
            let scores = Array::floats(DType::Fp32, [classes.len()], scores);
            vec![(".labels".to_owned(), labels(classes)), (".scores".to_owned(), scores)]
        }
    }
}

fn labels(classes: &[(Key, f32)]) -> Array {
    let count = classes.len();
    let number = |key: &Key| match key {
        Key::Int(number) => i32::try_from(*number).ok(),
        Key::Text(_) => None,
    };
    match classes.iter().map(|(key, _)| number(key)).collect::<Option<Vec<_>>>() {
        Some(numbers) => Array::ints(DType::Int64, [count], numbers),
        None => Array::texts([count], classes.iter().map(|(key, _)| label(key)).collect()),
    }
}

fn label(key: &Key) -> String {
    match key {
        Key::Text(text) => text.clone(),
        Key::Int(number) => number.to_string(),
    }
}

/// Summary of an output.
#[derive(Serialize)]
pub(super) struct OutputSummary {
    name: String,
    #[serde(flatten)]
    value: ValueSummary,
}

#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
enum ValueSummary {
    Array(ArraySummary),
    List { length: usize, elements: Vec<ArraySummary> },
    Classes { count: usize, top: Vec<Class> },
}

#[derive(Serialize)]
struct ArraySummary {
    dtype: &'static str,
    shape: Vec<usize>,
    /// Minimum of the finite elements, `None` if there are none. The same applies to `max` and
    /// `mean`.
    min: Option<f64>,
    max: Option<f64>,
    mean: Option<f64>,
    nan: usize,
    infinite: usize,
    /// The first elements as text, since JSON has no NaN.
    first: Vec<String>,
}

#[derive(Serialize)]
struct Class {
    label: String,
    score: f32,
}

/// Summarizes the outputs of a step.
pub(super) fn summarize(outputs: &Outputs) -> Vec<OutputSummary> {
    let summarize = |(name, value): &(String, Value)| OutputSummary {
        name: name.clone(),
        value: match value {
            Value::Array(array) => ValueSummary::Array(summarize_array(array)),
            Value::List(arrays) => ValueSummary::List {
                length: arrays.len(),
                elements: arrays.iter().take(SHOWN).map(summarize_array).collect(),
            },
            Value::Dictionary(classes) => {
                let mut sorted: Vec<_> = classes.iter().collect();
                sorted.sort_by(|(_, x), (_, y)| y.total_cmp(x));
                let top = sorted.into_iter().take(SHOWN);
                let top = top.map(|(key, score)| Class { label: label(key), score: *score });
                ValueSummary::Classes { count: classes.len(), top: top.collect() }
            }
        },
    };
    outputs.0.iter().map(summarize).collect()
}

fn summarize_array(array: &Array) -> ArraySummary {
    let mut summary = ArraySummary {
        dtype: array.dtype().name(),
        shape: array.shape().to_vec(),
        min: None,
        max: None,
        mean: None,
        nan: 0,
        infinite: 0,
        first: Vec::new(),
    };
    let mut finite = 0usize;
    let mut sum = 0.0;
    let mut count = |element: f64| {
        if element.is_nan() {
            summary.nan += 1;
        } else if element.is_infinite() {
            summary.infinite += 1;
        } else {
            finite += 1;
            sum += element;
            summary.min = Some(summary.min.map_or(element, |min| min.min(element)));
            summary.max = Some(summary.max.map_or(element, |max| max.max(element)));
        }
    };
    match array.elements() {
        Elements::Floats(floats) => {
            floats.iter().for_each(|&float| count(f64::from(float)));
            summary.first = floats.iter().take(SHOWN).map(|&x| number(f64::from(x))).collect();
        }
        Elements::Ints(ints) => {
            ints.iter().for_each(|&int| count(f64::from(int)));
            summary.first = ints.iter().take(SHOWN).map(ToString::to_string).collect();
        }
        Elements::Texts(texts) => summary.first = texts.iter().take(SHOWN).cloned().collect(),
    }
    summary.mean = (finite > 0).then(|| sum / finite as f64);
    summary
}

/// The summary as a table, followed by classes.
pub(super) fn render(outputs: &[OutputSummary]) -> String {
    let mut table = Table::new(2);
    let head = ["", "type", "shape", "min", "max", "mean", "first"];
    table.row(head.into_iter().enumerate().map(|(index, title)| {
        let right = (3..6).contains(&index);
        let cell = if right { Cell::number(title) } else { Cell::text(title) };
        cell.style(FAINT)
    }));
    let mut classes = String::new();
    for output in outputs {
        let name = &output.name;
        match &output.value {
            ValueSummary::Array(array) => table.row(row(name, array)),
            ValueSummary::List { length, elements } => {
                for (index, array) in elements.iter().enumerate() {
                    table.row(row(&format!("{name}.{index}"), array));
                }
                if *length > elements.len() {
                    let more = format!("… {} more", length - elements.len());
                    table.row([Cell::text(name).style(STRONG), Cell::text(more).style(FAINT)]);
                }
            }
            ValueSummary::Classes { count, top } => {
                let shown = top.len();
                let note = paint(FAINT, format!("{shown} of {count} classes"));
                classes += &format!("  {}  {note}\n", paint(STRONG, name));
                let mut listed = Table::new(4);
                for class in top {
                    let score = number(f64::from(class.score));
                    listed.row([Cell::number(score), Cell::text(&class.label)]);
                }
                classes += &listed.render();
            }
        }
    }
    if outputs.iter().any(|output| !matches!(output.value, ValueSummary::Classes { .. })) {
        table.render() + &classes
    } else {
        classes
    }
}

fn row(name: &str, array: &ArraySummary) -> Vec<Cell> {
    let figure = |value: Option<f64>| Cell::number(value.map_or_else(String::new, number));
    let count: usize = array.shape.iter().product();
    let mut first = array.first.join(" ");
    if count > array.first.len() {
        first += " …";
    }
    for (what, count) in [("NaN", array.nan), ("infinite", array.infinite)] {
        if count > 0 {
            first += &format!("  ({count} {what})");
        }
    }
    vec![
        Cell::text(name).style(STRONG),
        Cell::text(array.dtype),
        Cell::text(format!("{:?}", array.shape)),
        figure(array.min),
        figure(array.max),
        figure(array.mean),
        Cell::text(first),
    ]
}

/// Formats a number with up to five significant digits.
fn number(value: f64) -> String {
    let magnitude = value.abs();
    if value == 0.0 || !value.is_finite() {
        return value.to_string();
    }
    if !(1e-4..1e7).contains(&magnitude) {
        return format!("{value:.4e}");
    }
    let decimals = (4 - magnitude.log10().floor() as i32).clamp(0, 8) as usize;
    let text = format!("{value:.decimals$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_numbers_to_five_significant_digits() {
        for (value, text) in [
            (0.0, "0"),
            (1.0, "1"),
            (-0.001_234_56, "-0.0012346"),
            (123_456.0, "123456"),
            (0.5, "0.5"),
            (3.4e38, "3.4000e38"),
            (1e-9, "1.0000e-9"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn step_and_classifier_outputs_get_distinct_names() {
        let array = |x: f32| Value::Array(Array::floats(DType::Fp32, [1], vec![x]));
        let classes = Value::Dictionary(vec![(Key::Text("cat".into()), 0.75)]);
        let step = |x| Outputs(vec![("y".to_owned(), array(x)), ("p".to_owned(), classes.clone())]);
        let names = |results: &[Outputs], positional| {
            entries(results, positional).into_iter().map(|entry| entry.name).collect::<Vec<_>>()
        };
        assert_eq!(names(&[step(1.0)], false), ["y", "p.labels", "p.scores"]);
        assert_eq!(names(&[step(1.0)], true), ["arr_0", "arr_1.labels", "arr_1.scores"]);
        let steps = [step(1.0), step(2.0)];
        let several = entries(&steps, false);
        let find = |name: &str| {
            let found = several.iter().find(|found| found.name == name).expect(name);
            found.array.as_floats().map(|floats| floats[0])
        };
        assert_eq!((find("y@0"), find("y@1"), find("y")), (Some(1.0), Some(2.0), Some(2.0)));
    }
}
