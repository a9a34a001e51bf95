use super::{Budget, Result, count, missing};
use crate::package::error::Error;
use crate::package::wire::{Field, Reader, entry, map_entry, unknown_field};
use coremill_mil::ir::UnknownFields;
use coremill_mil::limits;
use coremill_mil::model::{
    ArrayDataType, ArrayType, ColorSpace, DefaultElement, FeatureDescription, FeatureType,
    FunctionDescription, ImageSize, ImageSizes, ImageType, KeyType, Metadata, ModelDescription,
    SequenceType, ShapeFlexibility, SizeRange,
};

pub(super) fn model(mut reader: Reader<'_>, budget: &mut Budget) -> Result<ModelDescription> {
    let mut description = ModelDescription::default();
    let to = &mut description;
    while let Some(field) = reader.next()? {
        match field.number {
            1 => feature(&field, "input", &mut to.inputs, budget)?,
            10 => feature(&field, "output", &mut to.outputs, budget)?,
            11 => to.predicted_feature_name = text(&field, "predictedFeatureName", budget)?,
            12 => {
                to.predicted_probabilities_name =
                    text(&field, "predictedProbabilitiesName", budget)?;
            }
            13 => feature(&field, "state", &mut to.states, budget)?,
            20 => function(&field, &mut to.functions, budget)?,
            21 => to.default_function = text(&field, "defaultFunctionName", budget)?,
            100 => {
                let reader = field.message("metadata")?;
                let value = metadata(reader, budget).map_err(|error| error.within("metadata"))?;
                field.once(&mut to.metadata, "metadata", value)?;
            }
            _ => keep(&field, &mut to.unknown, budget)?,
        }
    }
    Ok(description)
}

fn function(
    field: &Field<'_>,
    to: &mut Vec<FunctionDescription>,
    budget: &mut Budget,
) -> Result<()> {
    budget.consume_budget::<FunctionDescription>(0, field.offset)?;
    let index = to.len();
    count(&mut to.len(), limits::FUNCTIONS, "functions", field.offset)?;
    let mut reader = field.message("functions")?;
    let mut read = || {
        let mut function = FunctionDescription::default();
        while let Some(field) = reader.next()? {
            match field.number {
                1 => function.name = text(&field, "name", budget)?,
                2 => feature(&field, "input", &mut function.inputs, budget)?,
                3 => feature(&field, "output", &mut function.outputs, budget)?,
                4 => {
                    function.predicted_feature_name = text(&field, "predictedFeatureName", budget)?;
                }
                5 => {
                    function.predicted_probabilities_name =
                        text(&field, "predictedProbabilitiesName", budget)?;
                }
                6 => feature(&field, "state", &mut function.states, budget)?,
                _ => keep(&field, &mut function.unknown, budget)?,
            }
        }
        Ok(function)
    };
    to.push(read().map_err(|error: Error| error.within(entry("functions", index)))?);
    Ok(())
}

fn metadata(mut reader: Reader<'_>, budget: &mut Budget) -> Result<Metadata> {
    let mut metadata = Metadata::default();
    while let Some(field) = reader.next()? {
        match field.number {
            1 => metadata.short_description = text(&field, "shortDescription", budget)?,
            2 => metadata.version = text(&field, "versionString", budget)?,
            3 => metadata.author = text(&field, "author", budget)?,
            4 => metadata.license = text(&field, "license", budget)?,
            100 => {
                let (key, value) = map_entry(&field, "userDefined")?;
                let value = value.map_or(Ok(""), |value| value.string("userDefined"))?;
                let entries = &mut metadata.user_defined;
                count(&mut entries.len(), limits::ENTRIES, "metadata entries", field.offset)?;
                budget.consume_budget::<(String, String)>(key.len() + value.len(), field.offset)?;
                entries.push((key.to_owned(), value.to_owned()));
            }
            _ => keep(&field, &mut metadata.unknown, budget)?,
        }
    }
    // For a duplicate key the last value applies, as in all protobuf readers of maps.
    let entries = &mut metadata.user_defined;
    entries.reverse();
    entries.sort_by(|left, right| left.0.cmp(&right.0));
    entries.dedup_by(|later, first| later.0 == first.0);
    Ok(metadata)
}

fn feature(
    field: &Field<'_>,
    list: &str,
    to: &mut Vec<FeatureDescription>,
    budget: &mut Budget,
) -> Result<()> {
    budget.consume_budget::<FeatureDescription>(0, field.offset)?;
    let mut feature = FeatureDescription::new("", FeatureType::Unspecified);
    let mut reader = field.message(list)?;
    let index = to.len();
    let mut read = || {
        let mut ty = None;
        while let Some(field) = reader.next()? {
            match field.number {
                1 => feature.name = text(&field, "name", budget)?,
                2 => feature.short_description = text(&field, "shortDescription", budget)?,
                3 => field.once(&mut ty, "type", field)?,
                _ => keep(&field, &mut feature.unknown, budget)?,
            }
        }
        if let Some(field) = ty {
            (feature.ty, feature.is_optional) =
                feature_type(field.message("type")?, budget).map_err(|e| e.within("type"))?;
        }
        Ok(())
    };
    read().map_err(|error: Error| error.within(entry(list, index)))?;
    to.push(feature);
    Ok(())
}

fn feature_type(mut reader: Reader<'_>, budget: &mut Budget) -> Result<(FeatureType, bool)> {
    let (mut ty, mut is_optional) = (None, false);
    while let Some(field) = reader.next()? {
        let found = match field.number {
            1 => {
                empty(&field, "int64Type")?;
                FeatureType::Int64
            }
            2 => {
                empty(&field, "doubleType")?;
                FeatureType::Double
            }
            3 => {
                empty(&field, "stringType")?;
                FeatureType::String
            }
            4 => FeatureType::Image(
                image(field.message("imageType")?, budget).map_err(|e| e.within("imageType"))?,
            ),
            5 => FeatureType::MultiArray(array(&field, "multiArrayType", budget)?),
            6 => FeatureType::Dictionary(dictionary(field.message("dictionaryType")?)?),
            7 => FeatureType::Sequence(sequence(field.message("sequenceType")?)?),
            8 => {
                let mut inner = field.message("stateType")?;
                let mut held = None;
                while let Some(field) = inner.next()? {
                    match field.number {
                        1 => {
                            let array = array(&field, "arrayType", budget)?;
                            field.once(&mut held, "arrayType", array)?;
                        }
                        _ => return Err(unknown_field(&field, "a state's type")),
                    }
                }
                FeatureType::State(held.ok_or_else(|| missing("`arrayType`", field.offset))?)
            }
            1000 => {
                is_optional = field.bool("isOptional")?;
                continue;
            }
            _ => return Err(unknown_field(&field, "the type of a feature")),
        };
        field.once(&mut ty, "the type of a feature", found)?;
    }
    Ok((ty.unwrap_or(FeatureType::Unspecified), is_optional))
}

fn image(mut reader: Reader<'_>, budget: &mut Budget) -> Result<ImageType> {
    let mut image = ImageType {
        width: 0,
        height: 0,
        color_space: ColorSpace::Other(0),
        sizes: ImageSizes::Fixed,
    };
    let mut sizes = None;
    while let Some(field) = reader.next()? {
        match field.number {
            1 => image.width = field.int64("width")?,
            2 => image.height = field.int64("height")?,
            3 => image.color_space = ColorSpace::from_code(field.int32("colorSpace")?),
            21 => {
                let mut list = Vec::new();
                let mut inner = field.message("enumeratedSizes")?;
                while let Some(field) = inner.next()? {
                    if field.number != 1 {
                        return Err(unknown_field(&field, "`enumeratedSizes`"));
                    }
                    budget.consume_budget::<ImageSize>(0, field.offset)?;
                    list.push(image_size(field.message("sizes")?)?);
                }
                field.once(&mut sizes, "the sizes of an image", ImageSizes::Enumerated(list))?;
            }
            31 => {
                let (mut width, mut height) = (SizeRange::default(), SizeRange::default());
                let mut inner = field.message("imageSizeRange")?;
                while let Some(field) = inner.next()? {
                    match field.number {
                        1 => width = size_range(&field, "widthRange")?,
                        2 => height = size_range(&field, "heightRange")?,
                        _ => return Err(unknown_field(&field, "`imageSizeRange`")),
                    }
                }
                let ranged = ImageSizes::Ranged { width, height };
                field.once(&mut sizes, "the sizes of an image", ranged)?;
            }
            _ => return Err(unknown_field(&field, "the type of an image")),
        }
    }
    image.sizes = sizes.unwrap_or_default();
    Ok(image)
}

fn image_size(mut reader: Reader<'_>) -> Result<ImageSize> {
    let mut size = ImageSize::default();
    while let Some(field) = reader.next()? {
        match field.number {
            1 => size.width = field.uint64("width")?,
            2 => size.height = field.uint64("height")?,
            _ => return Err(unknown_field(&field, "the size of an image")),
        }
    }
    Ok(size)
}

fn array(field: &Field<'_>, name: &str, budget: &mut Budget) -> Result<ArrayType> {
    read_array(field.message(name)?, budget).map_err(|error| error.within(name))
}

fn read_array(mut reader: Reader<'_>, budget: &mut Budget) -> Result<ArrayType> {
    let mut array = ArrayType::fixed(ArrayDataType::Other(0), &[]);
    let (mut flexibility, mut default) = (None, None);
    while let Some(field) = reader.next()? {
        match field.number {
            1 => shape(&field, &mut array.shape, budget)?,
            2 => array.data_type = ArrayDataType::from_code(field.int32("dataType")?),
            21 => {
                let mut shapes = Vec::new();
                let mut inner = field.message("enumeratedShapes")?;
                while let Some(field) = inner.next()? {
                    if field.number != 1 {
                        return Err(unknown_field(&field, "`enumeratedShapes`"));
                    }
                    budget.consume_budget::<Vec<i64>>(0, field.offset)?;
                    let mut extents = Vec::new();
                    let mut inner = field.message("shapes")?;
                    while let Some(field) = inner.next()? {
                        match field.number {
                            1 => shape(&field, &mut extents, budget)?,
                            _ => return Err(unknown_field(&field, "a shape")),
                        }
                    }
                    shapes.push(extents);
                }
                let shapes = ShapeFlexibility::Enumerated(shapes);
                field.once(&mut flexibility, "the shapes of an array", shapes)?;
            }
            31 => {
                let mut ranges = Vec::new();
                let mut inner = field.message("shapeRange")?;
                while let Some(field) = inner.next()? {
                    if field.number != 1 {
                        return Err(unknown_field(&field, "`shapeRange`"));
                    }
                    rank(ranges.len() + 1, field.offset)?;
                    budget.consume_budget::<SizeRange>(0, field.offset)?;
                    ranges.push(size_range(&field, "sizeRanges")?);
                }
                let ranges = ShapeFlexibility::Ranged(ranges);
                field.once(&mut flexibility, "the shapes of an array", ranges)?;
            }
            41 => {
                let value = DefaultElement::Int(field.int32("intDefaultValue")?);
                field.once(&mut default, "the default of an array", value)?;
            }
            51 => {
                let value = DefaultElement::Float(field.float("floatDefaultValue")?);
                field.once(&mut default, "the default of an array", value)?;
            }
            61 => {
                let value = DefaultElement::Double(field.double("doubleDefaultValue")?);
                field.once(&mut default, "the default of an array", value)?;
            }
            _ => return Err(unknown_field(&field, "the type of an array")),
        }
    }
    array.flexibility = flexibility.unwrap_or_default();
    array.default = default;
    Ok(array)
}

fn shape(field: &Field<'_>, to: &mut Vec<i64>, budget: &mut Budget) -> Result<()> {
    field.int64s("shape", &mut |extent| {
        rank(to.len() + 1, field.offset)?;
        budget.consume_budget::<i64>(0, field.offset)?;
        to.push(extent);
        Ok(())
    })
}

fn rank(rank: usize, offset: u64) -> Result<()> {
    let mut before = rank - 1;
    count(&mut before, limits::RANK, "dimensions", offset)
}

fn dictionary(mut reader: Reader<'_>) -> Result<Option<KeyType>> {
    let mut key = None;
    while let Some(field) = reader.next()? {
        let found = match field.number {
            1 => KeyType::Int64,
            2 => KeyType::String,
            _ => return Err(unknown_field(&field, "the type of a dictionary")),
        };
        empty(&field, "the key of a dictionary")?;
        field.once(&mut key, "the key of a dictionary", found)?;
    }
    Ok(key)
}

fn sequence(mut reader: Reader<'_>) -> Result<SequenceType> {
    let mut sequence = SequenceType::default();
    while let Some(field) = reader.next()? {
        let found = match field.number {
            1 => KeyType::Int64,
            3 => KeyType::String,
            101 => {
                let range = size_range(&field, "sizeRange")?;
                field.once(&mut sequence.length, "sizeRange", range)?;
                continue;
            }
            _ => return Err(unknown_field(&field, "the type of a sequence")),
        };
        empty(&field, "the element of a sequence")?;
        field.once(&mut sequence.element, "the element of a sequence", found)?;
    }
    Ok(sequence)
}

fn size_range(field: &Field<'_>, name: &str) -> Result<SizeRange> {
    let mut range = SizeRange::default();
    let mut reader = field.message(name)?;
    while let Some(field) = reader.next()? {
        match field.number {
            1 => range.lower = field.uint64("lowerBound")?,
            2 => range.upper = field.int64("upperBound")?,
            _ => return Err(unknown_field(&field, &format!("`{name}`"))),
        }
    }
    Ok(range)
}

/// Checks that a message has no fields.
fn empty(field: &Field<'_>, name: &str) -> Result<()> {
    match field.message(name)?.next()? {
        None => Ok(()),
        Some(field) => Err(unknown_field(&field, name)),
    }
}

fn text(field: &Field<'_>, name: &str, budget: &mut Budget) -> Result<String> {
    let text = field.string(name)?;
    budget.consume_budget::<()>(text.len(), field.offset)?;
    Ok(text.to_owned())
}

fn keep(field: &Field<'_>, to: &mut UnknownFields, budget: &mut Budget) -> Result<()> {
    budget.consume_budget::<()>(field.raw.len(), field.offset)?;
    to.0.extend_from_slice(field.raw);
    Ok(())
}
