//! `FlexibleShapeInformation`: the attribute of a function with the allowed shapes of its inputs.
//!
//! A package has this information in its description. Apple's compiler copies it into the text:
//!
//! ```text
//! (("DefaultShapes", {{"x", [1, 4]}}), ("RangeDims", {{"x", [[1, 1], [1, 8]]}}))
//! (("DefaultShapes", {{"x", [4]}}), ("EnumeratedShapes", {{"543d0f94", {{"x", [1]}}}, ...}))
//! ```
//!
//! The attribute contains only inputs with more than one shape, sorted by name. Programs read from a package
//! or a compiled model do not have the attribute in memory, because it would duplicate the description.
//! [`attach`] adds it for the text, and [`detach`] removes it.

use std::collections::BTreeMap;

use coremill_io::ErrorDetail;
use coremill_tensor::DType;

use super::{FeatureType, ImageSizes, Model, ModelDescription, ShapeFlexibility, Signature};
use crate::ir::{Constant, ConstantData, Dim, Function, Program, TensorType, Type};

/// Name of the attribute.
pub const ATTRIBUTE: &str = "FlexibleShapeInformation";

/// Parsed value of the attribute.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlexibleShapes {
    /// The default shape of each input, sorted by name.
    pub defaults: Vec<(String, Vec<i32>)>,
    /// The smallest and largest size of each dimension of each input, sorted by name. The largest size is −1
    /// if unbounded.
    pub ranges: Vec<(String, Vec<[i32; 2]>)>,
    /// Enumerated shapes: each set contains one shape for each input, sorted by input name. The sets are in
    /// the order of the description or of the attribute.
    pub enumerated: Vec<Vec<(String, Vec<i32>)>>,
}

/// Returns the program of a model, with the attribute added to each function that has inputs with several
/// shapes.
///
/// Errors name the input.
pub fn attach(model: &Model) -> Result<Program, ErrorDetail> {
    let mut program = model.program.clone();
    for (name, shapes) in described(model)? {
        if let Some(function) = program.functions.iter_mut().find(|found| found.name == name) {
            function.attributes.insert(ATTRIBUTE, shapes);
        }
    }
    Ok(program)
}

/// Returns the attribute's value for each function that has inputs with several shapes.
///
/// Errors name the input.
pub fn described(model: &Model) -> Result<BTreeMap<String, Constant>, ErrorDetail> {
    let mut all = BTreeMap::new();
    for signature in model.signatures() {
        if let Some(shapes) = FlexibleShapes::of(&signature)? {
            all.insert(signature.name.to_owned(), shapes.to_constant());
        }
    }
    Ok(all)
}

/// Removes the attribute from functions whose description contains the same shapes.
pub fn detach(model: &mut Model) {
    let described: Vec<_> = model
        .signatures()
        .iter()
        .map(|signature| (signature.name.to_owned(), FlexibleShapes::of(signature)))
        .collect();
    for function in &mut model.program.functions {
        let stated = FlexibleShapes::on(function);
        let Some(stated) = stated else { continue };
        let known = described.iter().any(|(name, shapes)| {
            *name == function.name
                && matches!(shapes, Ok(Some(shapes)) if shapes.says_the_same(&stated))
        });
        if known {
            function.attributes.remove(ATTRIBUTE);
        }
    }
}

impl FlexibleShapes {
    /// Reads the allowed shapes from a description; `None` if every input has one shape.
    ///
    /// Errors name the input.
    pub fn of(signature: &Signature<'_>) -> Result<Option<FlexibleShapes>, ErrorDetail> {
        let mut shapes = FlexibleShapes::default();
        let mut enumerated: Vec<(String, Vec<Vec<i32>>)> = Vec::new();
        for feature in signature.inputs {
            let refuse = |what: &str| -> ErrorDetail {
                ErrorDetail::new(format!("input `{}` has {what}", feature.name))
            };
            let extent = |value: i128| {
                i32::try_from(value)
                    .map_err(|_| refuse(&format!("a size of {value}, which exceeds 32 bits")))
            };
            let all = |values: &[i64]| -> Result<Vec<i32>, ErrorDetail> {
                values.iter().map(|&value| extent(value.into())).collect()
            };
            let bounds = |range: &super::SizeRange| -> Result<[i32; 2], ErrorDetail> {
                Ok([extent(range.lower.into())?, extent(range.upper.max(-1).into())?])
            };
            match &feature.ty {
                FeatureType::MultiArray(array) => match &array.flexibility {
                    ShapeFlexibility::Fixed => {}
                    ShapeFlexibility::Ranged(ranges) => {
                        // An array may have only ranges; the lower bounds are then its default shape.
                        let lower: Vec<i64> =
                            ranges.iter().map(|range| range.lower as i64).collect();
                        let default = if array.shape.is_empty() { &lower } else { &array.shape };
                        shapes.defaults.push((feature.name.clone(), all(default)?));
                        let ranges = ranges.iter().map(bounds).collect::<Result<_, _>>()?;
                        shapes.ranges.push((feature.name.clone(), ranges));
                    }
                    ShapeFlexibility::Enumerated(choices) => {
                        let first =
                            choices.first().ok_or_else(|| refuse("no enumerated shapes"))?;
                        let default = if array.shape.is_empty() { first } else { &array.shape };
                        shapes.defaults.push((feature.name.clone(), all(default)?));
                        let choices = choices.iter().map(|shape| all(shape));
                        enumerated.push((feature.name.clone(), choices.collect::<Result<_, _>>()?));
                    }
                },
                FeatureType::Image(image) => {
                    // Images are tensors `[1, channels, height, width]`.
                    let channels = image.color_space.channels().unwrap_or(3) as i32;
                    let whole = |height: i128, width: i128| -> Result<Vec<i32>, ErrorDetail> {
                        Ok(vec![1, channels, extent(height)?, extent(width)?])
                    };
                    let default = whole(image.height.into(), image.width.into());
                    match &image.sizes {
                        ImageSizes::Fixed => {}
                        ImageSizes::Ranged { width, height } => {
                            shapes.defaults.push((feature.name.clone(), default?));
                            let ranges =
                                vec![[1, 1], [channels; 2], bounds(height)?, bounds(width)?];
                            shapes.ranges.push((feature.name.clone(), ranges));
                        }
                        ImageSizes::Enumerated(sizes) => {
                            shapes.defaults.push((feature.name.clone(), default?));
                            let choices = sizes
                                .iter()
                                .map(|size| whole(size.height.into(), size.width.into()));
                            enumerated
                                .push((feature.name.clone(), choices.collect::<Result<_, _>>()?));
                        }
                    }
                }
                _ => {}
            }
        }
        if let [(first, choices), others @ ..] = enumerated.as_slice() {
            // The n-th shapes of all inputs belong together.
            for (other, found) in others {
                if found.len() != choices.len() {
                    return Err(ErrorDetail::new(format!(
                        "input `{first}` has {} enumerated shapes, but input `{other}` has {}; the numbers must be equal",
                        choices.len(),
                        found.len()
                    )));
                }
            }
            for index in 0..choices.len() {
                let set = enumerated.iter().map(|(name, all)| (name.clone(), all[index].clone()));
                shapes.enumerated.push(set.collect());
            }
        }
        shapes.sort();
        Ok((!shapes.defaults.is_empty()).then_some(shapes))
    }

    /// Reads the attribute of a function; `None` if it is missing or malformed.
    pub fn on(function: &Function) -> Option<FlexibleShapes> {
        FlexibleShapes::from_constant(function.attributes.get(ATTRIBUTE)?)
    }

    fn from_constant(constant: &Constant) -> Option<FlexibleShapes> {
        let ConstantData::Sequence(parts) = &constant.data else { return None };
        let mut shapes = FlexibleShapes::default();
        for part in parts {
            let ConstantData::Sequence(part) = &part.data else { return None };
            let [name, value] = part.as_slice() else { return None };
            match name.as_str()? {
                "DefaultShapes" => shapes.defaults = named(value, integers)?,
                "RangeDims" => {
                    shapes.ranges = named(value, |ranges| {
                        let ConstantData::Sequence(ranges) = &ranges.data else { return None };
                        ranges.iter().map(|range| integers(range)?.try_into().ok()).collect()
                    })?;
                }
                "EnumeratedShapes" => {
                    let sets = named(value, |set| named(set, integers))?;
                    shapes.enumerated = sets.into_iter().map(|(_, set)| set).collect();
                }
                _ => return None,
            }
        }
        shapes.sort();
        Some(shapes)
    }

    /// The attribute's value.
    pub fn to_constant(&self) -> Constant {
        let shape = Type::Tensor(TensorType { dtype: DType::Int32, shape: vec![Dim::Unknown] });
        let range = Type::List(Box::new(Type::tensor(DType::Int32, &[2])), Dim::Unknown);
        let defaults = self.defaults.iter().map(|(name, dims)| (name, Constant::int32s(dims)));
        let mut parts = vec![("DefaultShapes", dictionary(shape.clone(), defaults))];
        if !self.enumerated.is_empty() {
            let sets = self.enumerated.iter().enumerate().map(|(index, set)| {
                let entries = set.iter().map(|(name, dims)| (name, Constant::int32s(dims)));
                (key_of(index), dictionary(shape.clone(), entries))
            });
            let sets: Vec<(String, Constant)> = sets.collect();
            let ty = Type::Dictionary(Box::new(Type::scalar(DType::String)), Box::new(shape));
            let sets = sets.iter().map(|(key, set)| (key, set.clone()));
            parts.push(("EnumeratedShapes", dictionary(ty, sets)));
        }
        if !self.ranges.is_empty() {
            let ranges = self.ranges.iter().map(|(name, ranges)| {
                let ranges = ranges.iter().map(|bounds| Constant::int32s(bounds)).collect();
                (name, Constant { ty: range.clone(), data: ConstantData::Sequence(ranges) })
            });
            parts.push(("RangeDims", dictionary(range.clone(), ranges)));
        }
        let parts: Vec<Constant> = parts
            .into_iter()
            .map(|(name, value)| {
                let name = Constant::string(name);
                let ty = Type::Tuple(vec![name.ty.clone(), value.ty.clone()]);
                Constant { ty, data: ConstantData::Sequence(vec![name, value]) }
            })
            .collect();
        let ty = Type::Tuple(parts.iter().map(|part| part.ty.clone()).collect());
        Constant { ty, data: ConstantData::Sequence(parts) }
    }

    fn sort(&mut self) {
        self.defaults.sort();
        self.ranges.sort();
        self.enumerated.iter_mut().for_each(|set| set.sort());
    }

    /// Whether both allow the same shapes, ignoring the order of the enumerated sets.
    fn says_the_same(&self, other: &FlexibleShapes) -> bool {
        let sorted = |sets: &[Vec<(String, Vec<i32>)>]| {
            let mut sets = sets.to_vec();
            sets.sort();
            sets.dedup();
            sets
        };
        self.defaults == other.defaults
            && self.ranges == other.ranges
            && sorted(&self.enumerated) == sorted(&other.enumerated)
    }
}

/// The key of a set of shapes. Apple's compiler writes eight hexadecimal digits, a hash of unknown origin,
/// and sorts the sets by them. This function uses the index instead, so that the sets stay in the order of
/// the description.
fn key_of(index: usize) -> String {
    format!("{index:08x}")
}

fn dictionary<N: AsRef<str>>(
    value: Type,
    entries: impl Iterator<Item = (N, Constant)>,
) -> Constant {
    let ty = Type::Dictionary(Box::new(Type::scalar(DType::String)), Box::new(value));
    let entries = entries.map(|(name, value)| (Constant::string(name.as_ref()), value)).collect();
    Constant { ty, data: ConstantData::Entries(entries) }
}

fn named<T>(
    constant: &Constant,
    read: impl Fn(&Constant) -> Option<T>,
) -> Option<Vec<(String, T)>> {
    let ConstantData::Entries(entries) = &constant.data else { return None };
    entries.iter().map(|(name, value)| Some((name.as_str()?.to_owned(), read(value)?))).collect()
}

fn integers(constant: &Constant) -> Option<Vec<i32>> {
    let tensor = constant.tensor_type()?;
    if tensor.dtype != DType::Int32 || tensor.rank() != 1 {
        return None;
    }
    let bytes = constant.elements()?.as_bytes().chunks_exact(4);
    Some(bytes.map(|word| i32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect())
}

impl ModelDescription {
    /// Whether the description has several functions.
    pub fn is_multifunction(&self) -> bool {
        !self.functions.is_empty()
    }
}
