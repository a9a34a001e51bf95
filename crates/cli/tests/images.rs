//! Tests that `run` writes image outputs as PNG files.

#[path = "support/scratch.rs"]
mod scratch;

use std::path::Path;
use std::process::{Command, Output};

use coremill_mil::ir::Type;
use coremill_mil::model::{ColorSpace, FeatureDescription, FeatureType, ImageSizes, ImageType};
use coremill_session::{Array, FeatureSpec, arrays, images};
use coremill_tensor::DType;

use scratch::Scratch;

/// The picture's negative, its first channel, and the mean of each channel.
const MODEL: &str = "program(1.3) {
    func main<ios17>(tensor<fp32, [1, 3, 4, 6]> x) {
        tensor<fp32, [1, 3, 4, 6]> negative = sub(x = fp32(255), y = x);
        tensor<fp32, [1, 1, 4, 6]> first = slice_by_size(x = x, begin = tensor<int32, [4]>([0, 0, 0, 0]), size = tensor<int32, [4]>([1, 1, 4, 6]));
        tensor<fp32, [1, 3]> mean = reduce_mean(x = x, axes = tensor<int32, [2]>([2, 3]), keep_dims = bool(false));
    } -> (negative, first, mean);
}";

fn run(scratch: &Scratch, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_coremill"));
    command.args(arguments).current_dir(scratch.path()).output().expect("the command starts")
}

fn succeed(scratch: &Scratch, arguments: &[&str]) {
    let output = run(scratch, arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Creates models with image inputs and outputs, using `coremill edit`.
fn place() -> Scratch {
    let scratch = Scratch::new();
    std::fs::write(scratch.path().join("filter.mil"), MODEL).expect("a file");
    let images = ["--image", "x=rgb", "--image", "negative=bgr", "--image", "first=grayscale"];
    let edit = ["edit", "filter.mil", "-o", "Filter.mlpackage"];
    succeed(&scratch, &[&edit[..], &images].concat());
    let one = ["edit", "Filter.mlpackage", "-o", "Negative.mlpackage", "--drop", "first"];
    succeed(&scratch, &[&one[..], &["--drop", "mean"]].concat());
    scratch
}

/// The pixels of a file, channel by channel.
fn pixels(path: &Path, color_space: ColorSpace) -> Vec<f32> {
    let channels = color_space.channels().expect("known");
    let image = ImageType { width: 6, height: 4, color_space, sizes: ImageSizes::Fixed };
    let spec = FeatureSpec {
        name: "x".to_owned(),
        ty: Type::tensor(DType::Fp32, &[1, channels, 4, 6]),
        description: Some(FeatureDescription::new("x", FeatureType::Image(image))),
    };
    let array = images::read(path, &spec, None).expect("a picture");
    array.as_floats().expect("floats").to_vec()
}

/// Bit depth and color type in the header of a PNG file.
fn format(path: &Path) -> (u8, u8) {
    let bytes = std::fs::read(path).expect("a file");
    assert!(bytes.starts_with(b"\x89PNG"));
    (bytes[24], bytes[25])
}

#[test]
fn writes_image_output_as_png() {
    let scratch = place();
    let path = |name: &str| scratch.path().join(name);
    let given = pixels(&path("files/picture.png"), ColorSpace::Rgb);
    // The model takes red first, and its result has blue first: reading it as RGB swaps the channels.
    let swapped = [&given[48..], &given[24..48], &given[..24]].concat();
    let negative: Vec<f32> = swapped.iter().map(|pixel| 255.0 - pixel).collect();
    let call = ["run", "Negative.mlpackage", "--image", "x=files/picture.png", "-o"];
    succeed(&scratch, &[&call[..], &["out.png"]].concat());
    assert_eq!(pixels(&path("out.png"), ColorSpace::Rgb), negative);
    assert_eq!(format(&path("out.png")), (8, 2));
    // A `.npz` file contains the arrays that the model returns.
    succeed(&scratch, &[&call[..], &["out.npz"]].concat());
    let found = arrays::read_npz(path("out.npz")).expect("arrays");
    let expected: Vec<f32> = given.iter().map(|pixel| 255.0 - pixel).collect();
    assert_eq!(found[0].1.as_floats(), Some(&*expected));
}

#[test]
fn output_directory_holds_one_file_per_output() {
    let scratch = place();
    let path = |name: &str| scratch.path().join(name);
    let given = pixels(&path("files/picture.png"), ColorSpace::Rgb);
    let call = ["run", "Filter.mlpackage", "--image", "x=files/picture.png", "-o", "out/"];
    succeed(&scratch, &call);
    let mut names: Vec<_> = (std::fs::read_dir(path("out")).expect("a directory"))
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"))
        .collect();
    names.sort();
    assert_eq!(names, ["first.png", "mean.npy", "negative.png"]);
    assert_eq!(pixels(&path("out/first.png"), ColorSpace::Grayscale), given[..24]);
    assert_eq!(format(&path("out/first.png")), (8, 0));
    let mean = arrays::read_npy(path("out/mean.npy")).expect("an array");
    assert_eq!(mean.shape(), [1, 3]);
    // Each step has its own files.
    let x = Array::floats(DType::Fp32, [1, 3, 4, 6], vec![100.0; 72]);
    arrays::write_npz(path("in.npz"), &[("x".to_owned(), x)]).expect("a file");
    std::fs::create_dir(path("steps")).expect("a directory");
    let steps = ["run", "Filter.mlpackage", "-i", "in.npz", "-i", "in.npz", "-o", "steps"];
    succeed(&scratch, &steps);
    for name in ["first@0.png", "first@1.png", "first.png", "mean@1.npy"] {
        assert!(path("steps").join(name).is_file(), "{name}");
    }
}

#[test]
fn grayscale_fp16_output_is_16_bit_png() {
    let scratch = Scratch::new();
    let text = "program(1.3) {
        func main<ios17>(tensor<fp16, [1, 1, 4, 6]> x) {
            tensor<fp16, [1, 1, 4, 6]> y = mul(x = x, y = fp16(0.5));
        } -> (y);
    }";
    std::fs::write(scratch.path().join("half.mil"), text).expect("a file");
    let images = ["--image", "x=grayscale-fp16", "--image", "y=grayscale-fp16"];
    let edit = ["edit", "half.mil", "-o", "Half.mlpackage"];
    succeed(&scratch, &[&edit[..], &images].concat());
    let call = ["run", "Half.mlpackage", "--image", "x=files/picture.png", "-o", "out.png"];
    succeed(&scratch, &call);
    let out = scratch.path().join("out.png");
    assert_eq!(format(&out), (16, 0));
    let given = pixels(&scratch.path().join("files/picture.png"), ColorSpace::GrayscaleFloat16);
    for (found, given) in pixels(&out, ColorSpace::GrayscaleFloat16).iter().zip(given) {
        assert!((found - given / 2.0).abs() < 1e-3, "{found} and {given}");
    }
}

#[test]
fn png_output_rejects_multiple_or_non_image_outputs() {
    let scratch = place();
    let image = ["--image", "x=files/picture.png", "-o"];
    for (call, expected) in [
        (
            &["run", "Filter.mlpackage", "out.png"][..],
            "error: a `.png` file holds one image, got `negative`, `first`, `mean`",
        ),
        (&["run", "Mean.mlpackage", "out.png"], "error: output `mean` is not an image"),
    ] {
        let [drop, rest] = [["--drop", "negative"], ["--drop", "first"]];
        let edit = ["edit", "Filter.mlpackage", "-o", "Mean.mlpackage"];
        succeed(&scratch, &[&edit[..], &drop, &rest].concat());
        let output = run(&scratch, &[&call[..2], &image, &call[2..]].concat());
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert!(message.contains(expected), "{message}");
        assert!(!scratch.path().join("out.png").exists());
    }
}
