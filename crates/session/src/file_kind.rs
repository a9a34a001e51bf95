//! Detection of file formats.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use coremill_io::{quoted_choice, unsupported_extension};
use coremill_tensor::Buffer;
use coremill_zip::Archive;

use crate::error::{Error, Result};

/// Format of a file or directory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileKind {
    /// A `.mlpackage` directory.
    Package,
    /// A `.mlmodelc` directory.
    CompiledModel,
    /// A model file, with weight files in the same directory.
    ModelFile,
    /// MIL text, with weight files in the same directory.
    MilText,
    /// A program saved by `torch.export.save` (`.pt2`).
    ExportedProgram,
    /// An ExecuTorch program (`.pte`).
    ExecuTorchProgram,
    /// Named arrays (`.npz`).
    Arrays,
    /// A file in an unsupported format.
    Other(OtherFile),
}

/// A file in an unsupported format: its description and a fix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherFile {
    description: Cow<'static, str>,
    hint: &'static str,
}

/// Number of bytes read to detect a format.
const START: u64 = 4096;

const CONVERT: &str = "convert it first";
const EXPORT: &str = "save the model with `torch.export.save`, then convert it";
const ARRAYS: &str = "pass it as an input of a run: the option `inputs=FILE`";
const IMAGE: &str = "pass it as an input of a run: the option `image=NAME=FILE`";
const SOURCE: &str = "export the PyTorch model with `torch.export.save`, then convert it";
const WEIGHTS: &str = "convert the language model first";
const READ: &str =
    "supported formats: packages, compiled models, model files, MIL text, `.pt2` and `.pte` files";

/// File signatures.
const SIGNATURES: [(&[u8], &str, &str); 12] = [
    (b"\x93NUMPY", "a NumPy array", ARRAYS),
    (b"GGUF", "a GGUF file, weights without a program", WEIGHTS),
    (b"\x89HDF\r\n", "an HDF5 file", SOURCE),
    (b"\x1f\x8b", "a gzip archive", "unpack it first"),
    (b"BZh", "a bzip2 archive", "unpack it first"),
    (b"\xfd7zXZ", "an xz archive", "unpack it first"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard archive", "unpack it first"),
    (b"\x89PNG", "a PNG image", IMAGE),
    (b"\xff\xd8\xff", "a JPEG image", IMAGE),
    (b"SQLite format 3", "an SQLite database", READ),
    (b"%PDF", "a PDF document", READ),
    (b"\x7fELF", "an executable", READ),
];

impl FileKind {
    /// Detects the format of a path. If the content is unrecognized, for example damaged, the format follows from
    /// the extension, so that its reader reports the damage.
    ///
    /// ```
    /// # let directory = tempfile::tempdir().unwrap();
    /// # let path = directory.path().join("twice");
    /// std::fs::write(&path, "program(1.3) {}").unwrap();
    /// assert_eq!(coremill_session::FileKind::detect(&path)?, coremill_session::FileKind::MilText);
    /// # Ok::<(), coremill_session::Error>(())
    /// ```
    pub fn detect(path: impl AsRef<Path>) -> Result<FileKind> {
        let path = path.as_ref();
        let kind = FileKind::of_content(path)?;
        let extension = path.extension().and_then(|extension| extension.to_str());
        Ok(match (&kind, extension) {
            (FileKind::ModelFile | FileKind::Other(_), Some("npz")) => FileKind::Arrays,
            (FileKind::ModelFile | FileKind::Other(_), Some("pt2")) => FileKind::ExportedProgram,
            (FileKind::ModelFile | FileKind::Other(_), Some("pte")) => FileKind::ExecuTorchProgram,
            _ => kind,
        })
    }

    /// Detects the format from the content only.
    pub fn of_content(path: &Path) -> Result<FileKind> {
        let metadata = fs::metadata(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => Error::missing(path),
            _ => Error::io("read", path, error),
        })?;
        if metadata.is_dir() {
            return if path.join("Manifest.json").exists() {
                Ok(FileKind::Package)
            } else if path.join("coremldata.bin").exists() || path.join("model.mil").exists() {
                Ok(FileKind::CompiledModel)
            } else {
                Err(not_a_model(path))
            };
        }
        if !metadata.is_file() {
            let message = format!("{} is not a regular file", path.display());
            return Err(Error::new(message).with_hint("write its content to a file first"));
        }
        let mut start = Vec::new();
        let read = File::open(path).and_then(|file| file.take(START).read_to_end(&mut start));
        read.map_err(|error| Error::io("read", path, error))?;
        Ok(identify(path, &start))
    }

    /// The model format of an extension: a package or a compiled model.
    pub fn of_extension(path: &Path) -> Result<FileKind> {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("mlpackage") => Ok(FileKind::Package),
            Some("mlmodelc") => Ok(FileKind::CompiledModel),
            _ => Err(Error::new(unsupported_extension(path, &["mlpackage", "mlmodelc"]))),
        }
    }

    /// Error for a caller that expected another format, such as `a Core ML model`.
    pub fn instead_of(&self, path: &Path, expected: &str) -> Error {
        let (description, hint) = match self {
            FileKind::Package | FileKind::CompiledModel | FileKind::ModelFile => {
                ("a Core ML model", READ)
            }
            FileKind::MilText => ("MIL text", "pack it first"),
            FileKind::ExportedProgram => ("an exported PyTorch program", CONVERT),
            FileKind::ExecuTorchProgram => (
                "an ExecuTorch program",
                "run, check, inspect or compare it, or extract its models",
            ),
            FileKind::Arrays => ("an archive of arrays", ARRAYS),
            FileKind::Other(OtherFile { description, hint }) => (&**description, *hint),
        };
        let message = format!("{} is {description}, not {expected}", path.display());
        Error::new(message).with_hint(hint)
    }
}

/// The format of a file that starts with `start`.
fn identify(path: &Path, start: &[u8]) -> FileKind {
    let known = |description: &'static str, hint| {
        FileKind::Other(OtherFile { description: description.into(), hint })
    };
    if start.is_empty() {
        return known("empty", READ);
    }
    if looks_like_mil(start) {
        return FileKind::MilText;
    }
    if let Some((_, what, hint)) = SIGNATURES.iter().find(|(bytes, ..)| start.starts_with(bytes)) {
        return known(what, hint);
    }
    match start {
        [b'P', b'K', 3 | 5, ..] => match zip(path) {
            Ok(kind) => kind,
            Err((description, hint)) => known(description, hint),
        },
        [0x80, 2..=5, ..] => known("a Python pickle", EXPORT),
        [_, _, _, _, b'E', b'T', b'0'..=b'9', b'0'..=b'9', ..] => FileKind::ExecuTorchProgram,
        [_, _, _, _, b'T', b'F', b'L', b'3', ..] => {
            known("a LiteRT (TensorFlow Lite) model", SOURCE)
        }
        _ if is_onnx(start) => known("an ONNX model", SOURCE),
        _ if is_safetensors(start) => {
            known("a safetensors file, weights without a program", SOURCE)
        }
        _ => match flatbuffer(start) {
            Some(identifier) => {
                let description =
                    format!("an unsupported kind of FlatBuffers file (`{identifier}`)");
                FileKind::Other(OtherFile { description: description.into(), hint: READ })
            }
            None if is_old_pickle(start) => known("a Python pickle", EXPORT),
            None => match text(start) {
                Some((description, hint)) => known(description, hint),
                None => FileKind::ModelFile,
            },
        },
    }
}

/// Extensions of packages, compiled models and ExecuTorch programs.
pub const MODEL_EXTENSIONS: [&str; 3] = ["mlpackage", "mlmodelc", "pte"];

/// The packages, compiled models and ExecuTorch programs in a directory, sorted by name. A package or compiled model
/// holds none.
pub fn models_in(directory: &Path) -> Result<Vec<PathBuf>> {
    let failed = |error| Error::io("read", directory, error);
    let mut models = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let extension = path.extension().and_then(|extension| extension.to_str());
        if extension.is_some_and(|extension| MODEL_EXTENSIONS.contains(&extension)) {
            models.push(path);
        }
    }
    models.sort();
    Ok(models)
}

/// Error for a directory that is no model; the hint lists the models in it.
fn not_a_model(path: &Path) -> Error {
    let message = format!(
        "{} is neither a package nor a compiled model: it contains neither `Manifest.json` nor `coremldata.bin`",
        path.display()
    );
    let models = models_in(path).unwrap_or_default();
    let names: Vec<_> = models.iter().filter_map(|model| model.file_name()?.to_str()).collect();
    match names.as_slice() {
        [] => Error::new(message),
        names => {
            Error::new(message).with_hint(format!("pass a model in it: {}", quoted_choice(names)))
        }
    }
}

/// Text starts with comments or `program`, a model file with a protobuf tag.
fn looks_like_mil(start: &[u8]) -> bool {
    let start = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start);
    let visible = start.iter().position(|byte| !byte.is_ascii_whitespace());
    visible.is_some_and(|at| start[at..].starts_with(b"//") || start[at..].starts_with(b"program"))
}

/// The format of a zip archive, or its description and a fix. Damaged archives are left to the reader of programs.
fn zip(path: &Path) -> std::result::Result<FileKind, (&'static str, &'static str)> {
    let archive = Buffer::map(path).ok().and_then(|bytes| Archive::open(bytes).ok());
    let Some(archive) = archive else {
        let is_arrays = path.extension().is_some_and(|extension| extension == "npz");
        return Ok(if is_arrays { FileKind::Arrays } else { FileKind::ExportedProgram });
    };
    let names: Vec<_> = archive.names().collect();
    let has = |end: &str| names.iter().any(|name| name.ends_with(end));
    if has("models/model.json") || has("serialized_exported_program.json") {
        Ok(FileKind::ExportedProgram)
    } else if names.iter().any(|name| name.contains("/code/")) {
        Err(("a TorchScript archive", EXPORT))
    } else if has("data.pkl") {
        Err(("a PyTorch checkpoint, weights without a program", EXPORT))
    } else if names.iter().all(|name| name.ends_with(".npy")) {
        Ok(FileKind::Arrays)
    } else if has("Manifest.json") {
        Err(("a zip archive of a package", "unpack it first"))
    } else {
        Err(("a zip archive", "unpack it, or pass a file from it"))
    }
}

/// An ONNX file starts with a small version number, followed by the producer's name, the graph or the operator sets.
/// In a Core ML model the version is followed by the description, which starts with inputs.
fn is_onnx(start: &[u8]) -> bool {
    match start {
        [0x08, 1..=20, 0x12, length, maker @ ..] => {
            let maker = maker.get(..usize::from(*length).min(8)).unwrap_or(maker);
            !maker.is_empty()
                && maker.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_. ".contains(byte))
        }
        [0x08, 1..=20, 0x3a | 0x42, ..] => true,
        _ => false,
    }
}

/// A safetensors file starts with the length of its header, a JSON object.
fn is_safetensors(start: &[u8]) -> bool {
    let length = start.first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes));
    length.is_some_and(|length| length < 100 << 20) && start.get(8) == Some(&b'{')
}

/// The identifier of a FlatBuffers file, which follows a plausible root offset.
fn flatbuffer(start: &[u8]) -> Option<&str> {
    let root = u32::from_le_bytes(*start.first_chunk::<4>()?);
    let identifier = start.get(4..8)?;
    let is_name = identifier.iter().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit());
    let is_root = (8..1 << 20).contains(&root) && root % 4 == 0;
    (is_name && is_root).then(|| std::str::from_utf8(identifier).ok()).flatten()
}

/// Pickle protocol 0: text that starts with a container and a memo.
fn is_old_pickle(start: &[u8]) -> bool {
    start.starts_with(b"(dp") || start.starts_with(b"(lp") || start.starts_with(b"ccopy_reg\n")
}

/// Description and fix for text that is not MIL text.
fn text(start: &[u8]) -> Option<(&'static str, &'static str)> {
    let found = match std::str::from_utf8(start) {
        Ok(text) => text,
        // The last character may be truncated.
        Err(error) if error.error_len().is_none() => {
            std::str::from_utf8(&start[..error.valid_up_to()]).ok()?
        }
        Err(_) => return None,
    };
    if found.chars().any(|c| c.is_control() && !c.is_whitespace()) {
        return None;
    }
    Some(match found.trim_start().starts_with('{') {
        true => ("JSON", "a package is the directory that holds `Manifest.json`"),
        false => ("a text file", "MIL text begins with `program(1.3)`"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_error_lists_models_inside() {
        let directory = tempfile::tempdir().unwrap();
        let error = FileKind::detect(directory.path()).unwrap_err();
        assert_eq!(error.hint(), None);
        for name in ["head.mlpackage", "chunk_1.mlmodelc", "notes.txt"] {
            fs::create_dir(directory.path().join(name)).unwrap();
        }
        let error = FileKind::detect(directory.path()).unwrap_err();
        let hint = "pass a model in it: `chunk_1.mlmodelc` or `head.mlpackage`";
        assert_eq!(error.hint(), Some(hint));
    }

    #[test]
    fn identifies_formats_by_leading_bytes() {
        let safetensors = [&17u64.to_le_bytes()[..], b"{\"a\":{}}"].concat();
        let flatbuffer = [&16u32.to_le_bytes()[..], b"ABCD\0\0\0\0"].concat();
        let litert = [&28u32.to_le_bytes()[..], b"TFL3\0\0\0\0"].concat();
        let cases: [(&[u8], &str); 14] = [
            (b"", "empty"),
            (b"GGUF\x03\0\0\0", "a GGUF file, weights without a program"),
            (b"\x80\x04\x95", "a Python pickle"),
            (b"(dp0\nVa\np1\n", "a Python pickle"),
            (b"\x08\x0c\x12\x07pytorch\x1a", "an ONNX model"),
            (b"\x08\x0d\x3a\x10", "an ONNX model"),
            (&safetensors, "a safetensors file, weights without a program"),
            (&flatbuffer, "an unsupported kind of FlatBuffers file (`ABCD`)"),
            (&litert, "a LiteRT (TensorFlow Lite) model"),
            (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
            (b"\x1f\x8b\x08\0", "a gzip archive"),
            (b"\x89PNG\r\n\x1a\n", "a PNG image"),
            (b"  {\"a\": 1}", "JSON"),
            ("hello w\u{f6}rld\n".as_bytes(), "a text file"),
        ];
        for (start, expected) in cases {
            let FileKind::Other(found) = identify(Path::new("no such file"), start) else {
                panic!("identified as a supported format instead of: {expected}")
            };
            assert_eq!(found.description, expected);
        }
        let program = [&28u32.to_le_bytes()[..], b"ET12\0\0\0\0"].concat();
        let assert_kind =
            |start: &[u8], kind| assert_eq!(identify(Path::new("no such file"), start), kind);
        assert_kind(&program, FileKind::ExecuTorchProgram);
        assert_kind(b"program(1.3)\n{", FileKind::MilText);
    }

    #[test]
    fn damaged_files_fall_back_to_extension() {
        let directory = tempfile::tempdir().expect("a directory");
        let kind = |name: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, b"\x01\x02 rubbish").expect("it is written");
            FileKind::detect(&path).expect("it is read")
        };
        assert_eq!(kind("x.pte"), FileKind::ExecuTorchProgram);
        assert_eq!(kind("x.pt2"), FileKind::ExportedProgram);
        assert_eq!(kind("x.npz"), FileKind::Arrays);
        assert_eq!(kind("x"), FileKind::ModelFile);
    }

    #[test]
    fn recognizes_core_ml_protobuf_prefixes() {
        // An optional version (`\x08`), then a description (`\x12` and its length) that starts with an input (`\x0a`).
        let starts: [&[u8]; 3] =
            [b"\x08\x09\x12\x20\x0a\x1e\x0a\x01x", b"\x08\x06\x12\x85\x01\x0a", b"\x12\x04\x0a"];
        for start in starts {
            assert_eq!(identify(Path::new("no such file"), start), FileKind::ModelFile);
        }
    }
}
