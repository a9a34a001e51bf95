//! Forged arrays and images are refused before memory is allocated for their claimed size.
//!
//! A test writes the file and restarts itself to read it, so that only the reader's memory is measured.

use std::path::Path;
use std::process::Command;

use coremill_mil::ir::Type;
use coremill_session::FeatureSpec;
use coremill_session::arrays::{from_npz, from_npz_for};
use coremill_tensor::{Buffer, DType};

/// Maximum peak memory of a child process, which refuses a file.
const MAX_KILOBYTES: u64 = 64 << 10;

/// Environment variable with the path of the file that a child process reads.
const FILE: &str = "COREMILL_FORGED_FILE";

/// Runs the calling test, whose name is `test`, in a child process that reads the written file. Asserts that the peak memory of
/// that process is below the limit, and returns the error of `read`.
#[expect(clippy::print_stdout, reason = "the child process reports to its parent")]
fn refusal(test: &str, write: impl FnOnce() -> Vec<u8>, read: impl Fn(&Path) -> String) -> String {
    if let Some(path) = std::env::var_os(FILE) {
        println!("refused: {}", read(Path::new(&path)));
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        println!("{}", status.lines().find(|line| line.starts_with("VmHWM:")).unwrap_or_default());
        std::process::exit(0);
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("forged");
    std::fs::write(&path, write()).expect("written");
    let output = Command::new(std::env::current_exe().expect("a path"))
        .args(["--exact", test, "--nocapture"])
        .env(FILE, &path)
        .output()
        .expect("the child ran");
    let printed = String::from_utf8_lossy(&output.stdout);
    let line = |name: &str| printed.lines().find_map(|line| line.split_once(name));
    if cfg!(target_os = "linux") {
        let (_, peak) = line("VmHWM:").expect("Linux reports the peak");
        let peak: u64 = peak.trim().trim_end_matches(" kB").parse().expect("kilobytes");
        assert!(peak < MAX_KILOBYTES, "peak memory of {peak} kB");
    }
    line("refused: ").unwrap_or_else(|| panic!("{printed}")).1.to_owned()
}

/// A `.npz` file with one compressed array of `size` zeros, and the given type and shape.
fn npz(name: &str, descr: &str, shape: &str, size: usize) -> Vec<u8> {
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n");
    let length = (header.len() as u16).to_le_bytes();
    let entry = [b"\x93NUMPY\x01\x00", &length[..], header.as_bytes(), &vec![0; size]].concat();
    let name = format!("{name}.npy");
    let compressed = miniz_oxide::deflate::compress_to_vec(&entry, 6);
    let u16s = |values: &[u16]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let u32s = |values: &[u32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let sizes = u32s(&[crc32fast::hash(&entry), compressed.len() as u32, entry.len() as u32]);
    let names = u16s(&[name.len() as u16, 0]);
    let local =
        [b"PK\x03\x04", &u16s(&[20, 0, 8, 0, 0x21])[..], &sizes, &names, name.as_bytes()].concat();
    let central = [
        b"PK\x01\x02",
        &u16s(&[20, 20, 0, 8, 0, 0x21])[..],
        &sizes,
        &names,
        &[0; 14],
        name.as_bytes(),
    ]
    .concat();
    let end = [
        b"PK\x05\x06",
        &u16s(&[0, 0, 1, 1])[..],
        &u32s(&[central.len() as u32, (local.len() + compressed.len()) as u32]),
        &[0; 2],
    ]
    .concat();
    [local, compressed, central, end].concat()
}

fn port(shape: &[u64]) -> FeatureSpec {
    FeatureSpec { name: "x".to_owned(), ty: Type::tensor(DType::Fp32, shape), description: None }
}

fn map(path: &Path) -> Buffer {
    Buffer::map(path).expect("mapped")
}

#[test]
fn rejects_array_larger_than_its_shape_without_inflating() {
    let error = refusal(
        "rejects_array_larger_than_its_shape_without_inflating",
        || npz("x", "<f4", "(2, 2)", 256 << 20),
        |path| from_npz(map(path)).expect_err("refused").to_string(),
    );
    let expected =
        "`x`: an array of type `<f4` and shape [2, 2] does not match its 268435456 bytes of data";
    assert_eq!(error, expected);
}

#[test]
fn rejects_array_of_wrong_shape_without_inflating() {
    let error = refusal(
        "rejects_array_of_wrong_shape_without_inflating",
        || npz("x", "<f4", "(8192, 8192)", 256 << 20),
        |path| from_npz_for(map(path), &[port(&[2, 2])]).expect_err("refused").to_string(),
    );
    assert_eq!(error, "the shape of `x` must be [2, 2], got [8192, 8192]");
}

#[test]
fn rejects_array_matching_no_input_without_inflating() {
    let error = refusal(
        "rejects_array_matching_no_input_without_inflating",
        || npz("y", "<f4", "(8192, 8192)", 256 << 20),
        |path| from_npz_for(map(path), &[port(&[2, 2])]).expect_err("refused").to_string(),
    );
    assert_eq!(error, "no input accepts the shape [8192, 8192] of `y`");
}

#[test]
fn reads_matching_and_small_mismatched_arrays() {
    let large = npz("x", "<f4", "(1024, 1024)", 4 << 20);
    let large = from_npz_for(Buffer::from(large), &[port(&[1024, 1024])]);
    assert_eq!(large.expect("accepted")[0].1.shape(), [1024, 1024]);
    let small = from_npz_for(Buffer::from(npz("z", "<f4", "(3,)", 12)), &[port(&[2, 2])]);
    assert_eq!(small.expect("read")[0].0, "z");
}

#[cfg(feature = "images")]
mod pictures {
    use coremill_mil::model::{ColorSpace, FeatureDescription, FeatureType, ImageSizes, ImageType};
    use coremill_session::images::{Resize, read};

    use super::*;

    /// Start of a PNG image with a palette.
    fn png(width: u32, height: u32) -> Vec<u8> {
        let chunk = |kind: &[u8], data: &[u8]| {
            let body = [kind, data].concat();
            let crc = crc32fast::hash(&body).to_be_bytes();
            [&(data.len() as u32).to_be_bytes()[..], &body, &crc].concat()
        };
        let size = [width.to_be_bytes(), height.to_be_bytes()].concat();
        let header = chunk(b"IHDR", &[&size[..], &[8, 3, 0, 0, 0]].concat());
        let pixels = miniz_oxide::deflate::compress_to_vec_zlib(&[0; 1 << 16], 6);
        let parts = [chunk(b"PLTE", &[1, 2, 3]), chunk(b"IDAT", &pixels), chunk(b"IEND", &[])];
        [b"\x89PNG\r\n\x1a\n", &header[..], &parts.concat()].concat()
    }

    fn port() -> FeatureSpec {
        let image = ImageType {
            width: 2,
            height: 2,
            color_space: ColorSpace::Rgb,
            sizes: ImageSizes::Fixed,
        };
        FeatureSpec {
            name: "picture".to_owned(),
            ty: Type::tensor(DType::Fp32, &[1, 3, 2, 2]),
            description: Some(FeatureDescription::new("picture", FeatureType::Image(image))),
        }
    }

    #[test]
    fn rejects_image_of_wrong_size_without_decoding() {
        let error = refusal(
            "pictures::rejects_image_of_wrong_size_without_decoding",
            || png(32768, 32768),
            |path| read(path, &port(), None).expect_err("refused").to_string(),
        );
        let expected = "the image has 32768 × 32768 pixels; input `picture` accepts [1, 3, 2, 2]";
        assert!(error.ends_with(expected), "{error}");
    }

    #[test]
    fn rejects_gigabyte_image_for_resize_without_decoding() {
        let error = refusal(
            "pictures::rejects_gigabyte_image_for_resize_without_decoding",
            || png(32768, 32768),
            |path| read(path, &port(), Some(Resize::Crop)).expect_err("refused").to_string(),
        );
        assert!(error.ends_with("bytes, got 3221225472"), "{error}");
    }
}
