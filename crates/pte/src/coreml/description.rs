//! Names of a model's functions, inputs and outputs, read without the rest of the model.

use serde_json::Value;

use super::{COMPILED, Directory, Interface, Methods, PACKAGE, from_json};
use crate::ByteRope;
use crate::error::{Error, escape_truncated};
use crate::limits;

/// Name of the only function of a model.
const MAIN: &str = "main";

/// The functions of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Inputs and outputs of the functions. The name of a single function is not needed for calls.
    pub methods: Methods,
    /// Name of the default function.
    pub default: String,
}

impl Description {
    /// Reads the description of the package or compiled model in a directory.
    pub fn of(directory: &Directory) -> Result<Description, Error> {
        let compiled = format!("{COMPILED}/coremldata.bin");
        if let Some(file) = directory.file(&compiled) {
            let bytes = file.to_buffer();
            let message = of_compiled(bytes.as_bytes());
            return message.and_then(read).map_err(|error| error.within(format!("`{compiled}`")));
        }
        let path = model_file(directory)?;
        let within = |error: Error| error.within(format!("`{path}`"));
        let file = directory.file(&path).map(ByteRope::to_buffer);
        let file = file.ok_or_else(|| Error::malformed(format!("the package has no `{path}`")))?;
        let mut description = None;
        for field in Fields(file.as_bytes()) {
            if let (2, message) = field.map_err(within)? {
                description = Some(message);
            }
        }
        read(description.unwrap_or_default()).map_err(within)
    }
}

/// Path of the model file according to a package's manifest.
fn model_file(directory: &Directory) -> Result<String, Error> {
    let path = format!("{PACKAGE}/Manifest.json");
    let Some(manifest) = directory.file(&path) else {
        let message = "the directory is neither a package nor a compiled model: it has neither \
                       `Manifest.json` nor `coremldata.bin`";
        return Err(Error::malformed(message));
    };
    let within = |error: Error| error.within(format!("`{path}`"));
    let manifest: Value = from_json(&manifest.to_buffer()).map_err(within)?;
    let root = manifest["rootModelIdentifier"].as_str();
    let item = root.and_then(|root| manifest["itemInfoEntries"][root]["path"].as_str());
    let item = item.ok_or_else(|| {
        within(Error::malformed("the root model's item is missing or has no path"))
    })?;
    Ok(format!("{PACKAGE}/Data/{item}"))
}

/// Extracts the description from `coremldata.bin`, which starts with fixed-size numbers and a string; variable-size
/// parts are preceded by their length.
fn of_compiled(bytes: &[u8]) -> Result<&[u8], Error> {
    let ends = || Error::malformed(format!("the file is truncated after {} bytes", bytes.len()));
    let mut rest = bytes;
    let mut take = |count: u64| -> Result<&[u8], Error> {
        let count = usize::try_from(count).ok().filter(|count| *count <= rest.len());
        let (taken, left) = rest.split_at(count.ok_or_else(ends)?);
        rest = left;
        Ok(taken)
    };
    let mut message: &[u8] = &[];
    for before in [28, 32] {
        take(before)?;
        let length = take(8)?.try_into().map_err(|_| ends())?;
        message = take(u64::from_le_bytes(length))?;
    }
    Ok(message)
}

/// Parses a `ModelDescription`.
fn read(message: &[u8]) -> Result<Description, Error> {
    if message.len() > limits::DESCRIPTION_BYTES {
        let limit = limits::DESCRIPTION_BYTES;
        let found = message.len();
        return Err(Error::limit(format!(
            "the model description has {found} bytes; the maximum is {limit}"
        )));
    }
    let (mut only, mut functions, mut default) = (Interface::default(), Vec::new(), "");
    for field in Fields(message) {
        match field? {
            (1, feature) => only.inputs.push(name(feature)?.to_owned()),
            (10, feature) => only.outputs.push(name(feature)?.to_owned()),
            (20, function) => functions.push((name(function)?.to_owned(), interface(function)?)),
            (21, name) => default = text(name)?,
            _ => {}
        }
    }
    let default = if default.is_empty() { MAIN } else { default }.to_owned();
    let methods = match functions.is_empty() {
        true => Methods::One(only),
        false => Methods::Several(functions),
    };
    if let Methods::Several(functions) = &methods
        && !functions.iter().any(|(name, _)| *name == default)
    {
        let default = escape_truncated(&default);
        return Err(Error::malformed(format!("the default function `{default}` does not exist")));
    }
    Ok(Description { methods, default })
}

/// Parses a `FunctionDescription`.
fn interface(message: &[u8]) -> Result<Interface, Error> {
    let mut interface = Interface::default();
    for field in Fields(message) {
        match field? {
            (2, feature) => interface.inputs.push(name(feature)?.to_owned()),
            (3, feature) => interface.outputs.push(name(feature)?.to_owned()),
            _ => {}
        }
    }
    Ok(interface)
}

/// Name of a feature or function.
fn name(message: &[u8]) -> Result<&str, Error> {
    let mut found = "";
    for field in Fields(message) {
        if let (1, name) = field? {
            found = text(name)?;
        }
    }
    Ok(found)
}

fn text(bytes: &[u8]) -> Result<&str, Error> {
    std::str::from_utf8(bytes).map_err(|_| Error::malformed("a name is not UTF-8"))
}

/// Length-delimited fields of a protobuf message; other fields are skipped.
struct Fields<'b>(&'b [u8]);

impl<'b> Iterator for Fields<'b> {
    type Item = Result<(u32, &'b [u8]), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.0.is_empty() {
            match self.field() {
                Some((number, Some(bytes))) => return Some(Ok((number, bytes))),
                Some((_, None)) => {}
                None => {
                    self.0 = &[];
                    return Some(Err(Error::malformed(
                        "the protobuf message is truncated or corrupt",
                    )));
                }
            }
        }
        None
    }
}

impl<'b> Fields<'b> {
    fn field(&mut self) -> Option<(u32, Option<&'b [u8]>)> {
        let tag = self.number()?;
        let number = u32::try_from(tag >> 3).ok().filter(|number| *number > 0)?;
        let bytes = match tag & 7 {
            0 => self.number().map(|_| None)?,
            1 => self.take(8).map(|_| None)?,
            2 => {
                let length = self.number()?;
                Some(self.take(length)?)
            }
            5 => self.take(4).map(|_| None)?,
            _ => return None,
        };
        Some((number, bytes))
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = *self.take(1)?.first()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    fn take(&mut self, count: u64) -> Option<&'b [u8]> {
        let (taken, rest) = self.0.split_at_checked(usize::try_from(count).ok()?)?;
        self.0 = rest;
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(number: u32, content: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for mut number in [u64::from(number) << 3 | 2, content.len() as u64] {
            while number >= 0x80 {
                bytes.push(number as u8 | 0x80);
                number >>= 7;
            }
            bytes.push(number as u8);
        }
        bytes.extend(content);
        bytes
    }

    fn feature(number: u32, name: &str) -> Vec<u8> {
        // The type follows the name.
        field(number, &[field(1, name.as_bytes()), field(3, &[0x28, 1])].concat())
    }

    fn package(description: &[u8]) -> Directory {
        const MANIFEST: &str =
            r#"{"rootModelIdentifier": "r", "itemInfoEntries": {"r": {"path": "a/m.mlmodel"}}}"#;
        let mut directory = Directory::new("model");
        let model = [&[0x08, 9][..], &field(2, description), &field(502, &[0xff; 300])].concat();
        directory
            .insert(format!("{PACKAGE}/Manifest.json"), MANIFEST.as_bytes().to_vec())
            .expect("a file");
        directory.insert(format!("{PACKAGE}/Data/a/m.mlmodel"), model).expect("a file");
        directory
    }

    #[test]
    fn reads_function_and_port_names_in_order() {
        let message = [feature(1, "z"), feature(1, "a"), feature(10, "y"), feature(13, "s")];
        let found = Description::of(&package(&message.concat())).expect("a description");
        let interface = |inputs: &[&str], outputs: &[&str]| {
            let [inputs, outputs] = [inputs, outputs]
                .map(|names| names.iter().map(|name| (*name).to_owned()).collect());
            Interface { inputs, outputs }
        };
        assert_eq!(found.methods, Methods::One(interface(&["z", "a"], &["y"])));
        assert_eq!(found.default, "main");

        let function = |name: &str| {
            let parts =
                [field(1, name.as_bytes()), feature(2, "x"), feature(3, "y"), feature(6, "s")];
            field(20, &parts.concat())
        };
        let message = [function("one"), function("two"), field(21, b"two")].concat();
        let found = Description::of(&package(&message)).expect("a description");
        let methods = ["one", "two"].map(|name| (name.to_owned(), interface(&["x"], &["y"])));
        assert_eq!(found.methods, Methods::Several(methods.to_vec()));
        assert_eq!(found.default, "two");

        let message = [function("one"), field(21, b"three")].concat();
        let error = Description::of(&package(&message)).expect_err("refused").to_string();
        assert!(error.contains("`three` does not exist"), "{error}");
    }

    #[test]
    fn damaged_descriptions_do_not_panic() {
        let message = [feature(1, "x"), feature(10, "y")].concat();
        for length in 0..message.len() {
            // A message cut after a complete field is valid.
            let _ = Description::of(&package(&message[..length]));
            let mut altered = message.clone();
            altered[length] = 0xff;
            let _ = Description::of(&package(&altered));
        }
        let bytes = [&[0xf6, 1, 0, 0][..], &[0; 24], &7u64.to_le_bytes(), b"generic", &[0; 32]];
        let bytes = [&bytes.concat()[..], &(message.len() as u64).to_le_bytes(), &message].concat();
        assert_eq!(of_compiled(&bytes).expect("a complete file"), message);
        for length in 0..bytes.len() {
            assert!(of_compiled(&bytes[..length]).is_err(), "{length}");
        }
        let error = Description::of(&Directory::new("none")).expect_err("refused").to_string();
        assert!(error.contains("neither a package nor a compiled model"), "{error}");
    }
}
