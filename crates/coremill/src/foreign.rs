//! Files of other kinds than a reader takes: what they are, and what takes them.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use coremill_tensor::Buffer;
use coremill_zip::Archive;

use crate::error::Error;

/// A file that is of another kind than was expected.
pub(crate) struct Foreign {
    what: String,
    hint: &'static str,
}

const CONVERT: &str = "convert it first: `coremill convert MODEL.pt2 -o MODEL.mlpackage`";
const EXPORT: &str = "save the model with `torch.export.save`, then run `coremill convert MODEL.pt2 -o MODEL.mlpackage`";
const ARRAYS: &str = "pass it as an input of `coremill run`: the option `inputs=FILE`";
const SOURCE: &str = "export the PyTorch model with `torch.export.save`, and convert that";
const READ: &str =
    "`coremill` reads packages, compiled models, model files, MIL text, `.pt2` and `.pte`";

/// The beginnings of files that have a signature.
const SIGNATURES: [(&[u8], &str, &str); 12] = [
    (b"\x93NUMPY", "an array of numpy's", ARRAYS),
    (b"GGUF", "a GGUF file, weights without a program", SOURCE),
    (b"\x89HDF\r\n", "an HDF5 file", SOURCE),
    (b"\x1f\x8b", "a gzip archive", "unpack it first"),
    (b"BZh", "a bzip2 archive", "unpack it first"),
    (b"\xfd7zXZ", "an xz archive", "unpack it first"),
    (b"\x28\xb5\x2f\xfd", "a Zstandard archive", "unpack it first"),
    (
        b"\x89PNG",
        "a picture",
        "pass it as an input of `coremill run`: the option `image=NAME=FILE`",
    ),
    (
        b"\xff\xd8\xff",
        "a picture",
        "pass it as an input of `coremill run`: the option `image=NAME=FILE`",
    ),
    (b"SQLite format 3", "an SQLite database", READ),
    (b"%PDF", "a PDF document", READ),
    (b"\x7fELF", "an executable", READ),
];

impl Foreign {
    /// Whether it is a program of `torch.export`, or might have become one.
    pub(crate) fn is_program(&self) -> bool {
        self.hint == CONVERT
    }

    /// What to say where something else was expected: `a Core ML model`.
    pub(crate) fn instead_of(&self, path: &Path, expected: &str) -> Error {
        let message = format!("{} is {}, not {expected}", path.display(), self.what);
        Error::new(message).hint(self.hint)
    }
}

/// What a file is, if it is a file of a kind that is known and no Core ML model.
pub(crate) fn of_file(path: &Path) -> Option<Foreign> {
    // Reading a pipe would wait, and take what others are to read.
    if !path.is_file() {
        return None;
    }
    let mut start = Vec::new();
    File::open(path).ok()?.take(4096).read_to_end(&mut start).ok()?;
    identify(path, &start)
}

/// The same by how a file starts.
pub(crate) fn identify(path: &Path, start: &[u8]) -> Option<Foreign> {
    let known = |what: &str, hint| Some(Foreign { what: what.to_owned(), hint });
    if start.is_empty() {
        return known("empty", READ);
    }
    if let Some((_, what, hint)) = SIGNATURES.iter().find(|(bytes, ..)| start.starts_with(bytes)) {
        return known(what, hint);
    }
    match start {
        [b'P', b'K', 3 | 5, ..] => {
            let (what, hint) = zip(path);
            known(what, hint)
        }
        [0x80, 2..=5, ..] => known("a Python pickle", EXPORT),
        [_, _, _, _, b'E', b'T', b'0'..=b'9', b'0'..=b'9', ..] => known(
            "an ExecuTorch program",
            "`coremill run`, `check`, `inspect` and `compare` take it; `coremill extract` writes the models in it",
        ),
        [_, _, _, _, b'T', b'F', b'L', b'3', ..] => {
            known("a LiteRT (TensorFlow Lite) model", SOURCE)
        }
        _ if is_onnx(start) => known("an ONNX model", SOURCE),
        _ if is_safetensors(start) => {
            known("a safetensors file, weights without a program", SOURCE)
        }
        _ => match flatbuffer(start) {
            Some(identifier) => Some(Foreign {
                what: format!("a FlatBuffers file of another kind (`{identifier}`)"),
                hint: READ,
            }),
            None if is_old_pickle(start) => known("a Python pickle", EXPORT),
            None => text(start),
        },
    }
}

fn zip(path: &Path) -> (&'static str, &'static str) {
    let archive = Buffer::map(path).ok().and_then(|bytes| Archive::open(bytes).ok());
    let names: Vec<_> = archive.iter().flat_map(Archive::names).collect();
    let has = |end: &str| names.iter().any(|name| name.ends_with(end));
    if has("models/model.json") || has("serialized_exported_program.json") {
        ("an exported PyTorch program", CONVERT)
    } else if names.iter().any(|name| name.contains("/code/")) {
        ("a TorchScript archive", EXPORT)
    } else if has("data.pkl") {
        ("a PyTorch checkpoint, weights without a program", EXPORT)
    } else if !names.is_empty() && names.iter().all(|name| name.ends_with(".npy")) {
        ("an archive of arrays", ARRAYS)
    } else if has("Manifest.json") {
        ("a zip archive of a package", "unpack it first")
    } else {
        ("a zip archive", "unpack it, or pass what is in it")
    }
}

/// The first field of ONNX is the version of its format, a small number; its maker's name, the graph or the sets of
/// operators follow. In a Core ML model the description follows, which begins with inputs.
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

/// The length of a header, and the header, a JSON object.
fn is_safetensors(start: &[u8]) -> bool {
    let length = start.first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes));
    length.is_some_and(|length| length < 100 << 20) && start.get(8) == Some(&b'{')
}

/// The identifier behind the offset of the root, if that is where a table can be.
fn flatbuffer(start: &[u8]) -> Option<&str> {
    let root = u32::from_le_bytes(*start.first_chunk::<4>()?);
    let identifier = start.get(4..8)?;
    let is_name = identifier.iter().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit());
    let is_root = (8..1 << 20).contains(&root) && root % 4 == 0;
    (is_name && is_root).then(|| std::str::from_utf8(identifier).ok()).flatten()
}

/// Protocol 0, which is of text: a container, put down under a number.
fn is_old_pickle(start: &[u8]) -> bool {
    start.starts_with(b"(dp") || start.starts_with(b"(lp") || start.starts_with(b"ccopy_reg\n")
}

/// Text that is not MIL text.
fn text(start: &[u8]) -> Option<Foreign> {
    let found = match std::str::from_utf8(start) {
        Ok(text) => text,
        // Cut within a character.
        Err(error) if error.error_len().is_none() => {
            std::str::from_utf8(&start[..error.valid_up_to()]).ok()?
        }
        Err(_) => return None,
    };
    if found.chars().any(|c| c.is_control() && !c.is_whitespace()) {
        return None;
    }
    let visible = found.trim_start();
    let (what, hint) = if visible.starts_with("program(") || visible.starts_with("//") {
        ("MIL text", "`coremill pack MODEL.mil -o MODEL.mlpackage` makes a package of it")
    } else if visible.starts_with('{') {
        ("JSON", "a package is the directory that holds `Manifest.json`")
    } else {
        ("a text file", "MIL text begins with `program(1.3)`")
    };
    Some(Foreign { what: what.to_owned(), hint })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_called_what_they_are() {
        let safetensors = [&17u64.to_le_bytes()[..], b"{\"a\":{}}"].concat();
        let flatbuffer = [&16u32.to_le_bytes()[..], b"ABCD\0\0\0\0"].concat();
        let litert = [&28u32.to_le_bytes()[..], b"TFL3\0\0\0\0"].concat();
        let program = [&28u32.to_le_bytes()[..], b"ET12\0\0\0\0"].concat();
        let cases: [(&[u8], &str); 16] = [
            (b"", "empty"),
            (b"GGUF\x03\0\0\0", "a GGUF file, weights without a program"),
            (b"\x80\x04\x95", "a Python pickle"),
            (b"(dp0\nVa\np1\n", "a Python pickle"),
            (b"\x08\x0c\x12\x07pytorch\x1a", "an ONNX model"),
            (b"\x08\x0d\x3a\x10", "an ONNX model"),
            (&safetensors, "a safetensors file, weights without a program"),
            (&flatbuffer, "a FlatBuffers file of another kind (`ABCD`)"),
            (&litert, "a LiteRT (TensorFlow Lite) model"),
            (&program, "an ExecuTorch program"),
            (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
            (b"\x1f\x8b\x08\0", "a gzip archive"),
            (b"\x89PNG\r\n\x1a\n", "a picture"),
            (b"  {\"a\": 1}", "JSON"),
            ("hello w\u{f6}rld\n".as_bytes(), "a text file"),
            (b"program(1.3)\n{", "MIL text"),
        ];
        for (start, what) in cases {
            let found = identify(Path::new("no such file"), start).map(|foreign| foreign.what);
            assert_eq!(found.as_deref(), Some(what));
        }
    }

    #[test]
    fn core_ml_models_are_not_foreign() {
        // The version, and a description with an input: `\x12`, its length, `\x0a`.
        let starts: [&[u8]; 3] =
            [b"\x08\x09\x12\x20\x0a\x1e\x0a\x01x", b"\x08\x06\x12\x85\x01\x0a", b"\x12\x04\x0a"];
        for start in starts {
            assert!(identify(Path::new("no such file"), start).is_none());
        }
    }
}
