use crate::package::wire::Writer;
use coremill_mil::model::{
    ArrayType, DefaultElement, FeatureDescription, FeatureType, FunctionDescription, ImageSizes,
    ImageType, KeyType, Metadata, ModelDescription, ShapeFlexibility, SizeRange,
};

pub(super) fn model(writer: &mut Writer, description: &ModelDescription) {
    features(writer, 1, &description.inputs);
    features(writer, 10, &description.outputs);
    writer.string(11, &description.predicted_feature_name);
    writer.string(12, &description.predicted_probabilities_name);
    features(writer, 13, &description.states);
    for described in &description.functions {
        writer.message(20, |writer| function(writer, described));
    }
    writer.string(21, &description.default_function);
    if let Some(notes) = &description.metadata {
        writer.message(100, |writer| metadata(writer, notes));
    }
    writer.raw(&description.unknown.0);
}

fn function(writer: &mut Writer, function: &FunctionDescription) {
    writer.string(1, &function.name);
    features(writer, 2, &function.inputs);
    features(writer, 3, &function.outputs);
    writer.string(4, &function.predicted_feature_name);
    writer.string(5, &function.predicted_probabilities_name);
    features(writer, 6, &function.states);
    writer.raw(&function.unknown.0);
}

fn metadata(writer: &mut Writer, metadata: &Metadata) {
    writer.string(1, &metadata.short_description);
    writer.string(2, &metadata.version);
    writer.string(3, &metadata.author);
    writer.string(4, &metadata.license);
    let mut sorted: Vec<&(String, String)> = metadata.user_defined.iter().collect();
    sorted.sort_by(|left, right| left.0.cmp(&right.0));
    for (key, value) in sorted {
        writer.message(100, |writer| {
            writer.bytes_always(1, key.as_bytes());
            writer.bytes_always(2, value.as_bytes());
        });
    }
    writer.raw(&metadata.unknown.0);
}

fn features(writer: &mut Writer, number: u32, features: &[FeatureDescription]) {
    for feature in features {
        writer.message(number, |writer| {
            writer.string(1, &feature.name);
            writer.string(2, &feature.short_description);
            writer.message(3, |writer| {
                feature_type(writer, &feature.ty);
                writer.bool(1000, feature.is_optional);
            });
            writer.raw(&feature.unknown.0);
        });
    }
}

fn feature_type(writer: &mut Writer, ty: &FeatureType) {
    match ty {
        FeatureType::Unspecified => {}
        FeatureType::Int64 => writer.message(1, |_| {}),
        FeatureType::Double => writer.message(2, |_| {}),
        FeatureType::String => writer.message(3, |_| {}),
        FeatureType::Image(ty) => writer.message(4, |writer| image(writer, ty)),
        FeatureType::MultiArray(ty) => writer.message(5, |writer| array(writer, ty)),
        FeatureType::Dictionary(key) => writer.message(6, |writer| match key {
            Some(KeyType::Int64) => writer.message(1, |_| {}),
            Some(KeyType::String) => writer.message(2, |_| {}),
            None => {}
        }),
        FeatureType::Sequence(sequence) => writer.message(7, |writer| {
            match sequence.element {
                Some(KeyType::Int64) => writer.message(1, |_| {}),
                Some(KeyType::String) => writer.message(3, |_| {}),
                None => {}
            }
            if let Some(length) = sequence.length {
                size_range(writer, 101, length);
            }
        }),
        FeatureType::State(ty) => writer.message(8, |writer| {
            writer.message(1, |writer| array(writer, ty));
        }),
    }
}

fn image(writer: &mut Writer, image: &ImageType) {
    writer.int64(1, image.width);
    writer.int64(2, image.height);
    writer.int64(3, i64::from(image.color_space.code()));
    match &image.sizes {
        ImageSizes::Fixed => {}
        ImageSizes::Enumerated(sizes) => writer.message(21, |writer| {
            for size in sizes {
                writer.message(1, |writer| {
                    writer.uint64(1, size.width);
                    writer.uint64(2, size.height);
                });
            }
        }),
        ImageSizes::Ranged { width, height } => writer.message(31, |writer| {
            size_range(writer, 1, *width);
            size_range(writer, 2, *height);
        }),
    }
}

fn array(writer: &mut Writer, array: &ArrayType) {
    writer.int64s(1, array.shape.iter().copied());
    writer.int64(2, i64::from(array.data_type.code()));
    match &array.flexibility {
        ShapeFlexibility::Fixed => {}
        ShapeFlexibility::Enumerated(shapes) => writer.message(21, |writer| {
            for shape in shapes {
                writer.message(1, |writer| writer.int64s(1, shape.iter().copied()));
            }
        }),
        ShapeFlexibility::Ranged(ranges) => writer.message(31, |writer| {
            for &range in ranges {
                size_range(writer, 1, range);
            }
        }),
    }
    match array.default {
        None => {}
        Some(DefaultElement::Int(value)) => {
            writer.uint64_always(41, i64::from(value).cast_unsigned());
        }
        Some(DefaultElement::Float(value)) => writer.float_always(51, value),
        Some(DefaultElement::Double(value)) => writer.double_always(61, value),
    }
}

fn size_range(writer: &mut Writer, number: u32, range: SizeRange) {
    writer.message(number, |writer| {
        writer.uint64(1, range.lower);
        writer.int64(2, range.upper);
    });
}
