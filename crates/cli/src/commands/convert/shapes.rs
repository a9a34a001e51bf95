//! Shapes of an input: `x=1,3,224,224;1,3,448,448`.

use std::collections::BTreeMap;
use std::str::FromStr;

/// Allowed shapes of an input.
#[derive(Clone, Debug)]
pub(crate) struct InputShapes {
    pub(in crate::commands) name: String,
    pub(in crate::commands) shapes: Vec<Vec<u64>>,
}

impl FromStr for InputShapes {
    type Err = String;

    fn from_str(text: &str) -> Result<InputShapes, String> {
        const FORM: &str = "expects `NAME=1,3,224,224`, with `;` between several shapes";
        let (name, list) = text.split_once('=').ok_or(FORM)?;
        let name = name.trim();
        if name.is_empty() || list.trim().is_empty() {
            return Err(FORM.to_owned());
        }
        let shapes = list.split(';').map(shape).collect::<Result<Vec<_>, _>>()?;
        if let Some(shape) = shapes.iter().find(|shape| shape.len() != shapes[0].len()) {
            return Err(format!(
                "the shapes of an input must have the same rank, got {:?} and {shape:?}",
                shapes[0]
            ));
        }
        Ok(InputShapes { name: name.to_owned(), shapes })
    }
}

fn shape(text: &str) -> Result<Vec<u64>, String> {
    let extents = text.split(',').map(|extent| {
        let extent = extent.trim();
        match extent.parse::<u64>() {
            Ok(size) if (1..=i32::MAX as u64).contains(&size) => Ok(size),
            _ => Err(format!("`{extent}` is not a size from 1 to {}", i32::MAX)),
        }
    });
    extents.collect()
}

/// The shapes by input. Duplicate inputs are an error.
pub(super) fn by_name(given: &[InputShapes]) -> Result<BTreeMap<String, Vec<Vec<u64>>>, String> {
    let mut shapes = BTreeMap::new();
    for InputShapes { name, shapes: stated } in given {
        if shapes.insert(name.clone(), stated.clone()).is_some() {
            return Err(format!(
                "the shapes of `{name}` are specified twice; separate them with `;`"
            ));
        }
    }
    Ok(shapes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_input_shapes_and_rejects_invalid_ones() {
        let parse = |text: &str| text.parse::<InputShapes>().map(|found| found.shapes);
        assert_eq!(parse("x=1,3;2, 3"), Ok(vec![vec![1, 3], vec![2, 3]]));
        for (text, part) in [
            ("x", "expects"),
            ("=1", "expects"),
            ("x=", "expects"),
            ("x=1,;2", "`` is not a size"),
            ("x=0", "`0` is not a size"),
            ("x=-1", "`-1` is not a size"),
            ("x=4294967296", "is not a size"),
            ("x=1;1,2", "the same rank"),
        ] {
            let error = parse(text).expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
        let twice = ["x=1".parse().expect("a shape"), "x=2".parse().expect("a shape")];
        assert!(by_name(&twice).is_err());
    }
}
