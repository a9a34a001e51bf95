use std::fs::File;
use std::io::Read;
use std::path::Path;

use coremill_tensor::Buffer;
use coremill_zip::Archive;

use crate::error::Error;

/// What a file holds that can be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A program of `torch.export.save`.
    Archive,
    /// A `.mlpackage`, a `.mlmodelc`, a model file or MIL text.
    Model,
    /// Arrays by name: a `.npz` file.
    Arrays,
    /// A program of ExecuTorch.
    Executorch,
}

impl Kind {
    /// What lies at a path, by its content.
    pub fn of(path: impl AsRef<Path>) -> Result<Kind, Error> {
        let path = path.as_ref();
        let metadata = std::fs::metadata(path).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                Error::new(format!("there is nothing at {}", path.display()))
            }
            _ => Error::io("read", path, &error),
        })?;
        if metadata.is_dir() {
            return Ok(Kind::Model);
        }
        if !metadata.is_file() {
            let message = format!("{} is not a regular file", path.display());
            return Err(Error::new(message).hint("write what comes through it to a file first"));
        }
        let mut start = Vec::new();
        let read = File::open(path).and_then(|file| file.take(8).read_to_end(&mut start));
        read.map_err(|error| Error::io("read", path, &error))?;
        // A flatbuffer has its identifier behind the offset of its root.
        if start.get(4..6) == Some(b"ET")
            && start.get(6..8).is_some_and(|v| v.iter().all(u8::is_ascii_digit))
        {
            return Ok(Kind::Executorch);
        }
        if !start.starts_with(b"PK") {
            // What is called so and is damaged, the reader for what it is called says best.
            return Ok(match path.extension().and_then(|extension| extension.to_str()) {
                Some("npz") => Kind::Arrays,
                Some("pt2") => Kind::Archive,
                Some("pte") => Kind::Executorch,
                _ => Kind::Model,
            });
        }
        let bytes = Buffer::map(path).map_err(|error| Error::io("read", path, &error))?;
        // What is not a whole archive, the reader of programs says best.
        let arrays = Archive::open(bytes)
            .is_ok_and(|archive| archive.names().all(|name| name.ends_with(".npy")));
        Ok(if arrays { Kind::Arrays } else { Kind::Archive })
    }
}
