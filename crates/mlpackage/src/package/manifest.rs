//! `Manifest.json`: the items of a package, and which item is the model.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::Serialize;

use super::directory::check_path;
use super::error::{Error, ErrorKind, shortened};
use super::weights::WrittenFile;
use coremill_mil::limits;
use coremill_mil::model::ManifestItem;

type Result<T> = std::result::Result<T, Error>;

/// Name of the file.
pub(crate) const FILE: &str = "Manifest.json";

/// Directory of the paths in the manifest.
pub(crate) const DATA: &str = "Data";

/// Directory of the model and its weights, relative to [`DATA`].
pub(crate) const MODEL_DIRECTORY: &str = "com.apple.CoreML";

/// Name of the model file.
pub(crate) const MODEL_FILE: &str = "model.mlmodel";

/// Version of the format.
const VERSION: (u64, u64, u64) = (1, 0, 0);

/// Contents of a manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The item of the model.
    pub root: ManifestItem,
    /// The other items, sorted by identifier.
    pub items: Vec<ManifestItem>,
}

#[derive(serde::Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Document {
    file_format_version: String,
    item_info_entries: Distinct<Entry>,
    root_model_identifier: String,
}

#[derive(serde::Deserialize, serde::Serialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    author: String,
    description: String,
    name: String,
    path: String,
}

/// An object with distinct keys. Serde's maps would accept a duplicate key and keep the last value.
struct Distinct<T>(BTreeMap<String, T>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Distinct<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Object<T>(std::marker::PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Object<T> {
            type Value = Distinct<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                mut access: A,
            ) -> std::result::Result<Distinct<T>, A::Error> {
                let mut entries = BTreeMap::new();
                while let Some((key, value)) = access.next_entry::<String, T>()? {
                    if entries.len() == limits::MANIFEST_ITEMS {
                        let limit = limits::MANIFEST_ITEMS;
                        return Err(serde::de::Error::custom(format!("more than {limit} entries")));
                    }
                    let shown = shortened(&key);
                    if entries.insert(key, value).is_some() {
                        return Err(serde::de::Error::custom(format!("duplicate key `{shown}`")));
                    }
                }
                Ok(Distinct(entries))
            }
        }

        deserializer.deserialize_map(Object(std::marker::PhantomData))
    }
}

impl<T: Serialize> Serialize for Distinct<T> {
    fn serialize<S: serde::Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        to.collect_map(&self.0)
    }
}

impl Manifest {
    /// Parses a manifest. The paths of its items do not leave the package's `Data` directory; whether they
    /// exist is not checked.
    pub fn from_bytes(bytes: &[u8]) -> Result<Manifest> {
        parse(bytes)
    }
}

/// Parses a manifest. Its paths do not leave [`DATA`]; whether they exist is not checked.
pub(crate) fn parse(bytes: &[u8]) -> Result<Manifest> {
    let fail = |message: String| Error::new(ErrorKind::Manifest, message).in_file(FILE);
    let document: Document = serde_json::from_slice(bytes).map_err(|error| {
        let message = format!("the manifest is invalid: {error}");
        fail(message)
    })?;

    let version = &document.file_format_version;
    let parts: Option<Vec<u64>> = version.split('.').map(|part| part.parse().ok()).collect();
    let accepted = match parts.as_deref() {
        Some(&[major, minor, patch]) => (major, minor, patch) <= VERSION,
        _ => false,
    };
    if !accepted {
        let message =
            format!("`fileFormatVersion` must be at most `1.0.0`, got `{}`", shortened(version));
        return Err(fail(message));
    }

    let mut items = Vec::new();
    let mut root = None;
    for (identifier, entry) in document.item_info_entries.0 {
        if let Err(problem) = check_path(&entry.path) {
            let message = format!(
                "the path `{}` of the item `{}` {problem}",
                shortened(&entry.path),
                shortened(&identifier)
            );
            let error = fail(message);
            return Err(error.with_hint("paths in a manifest must be inside `Data`"));
        }
        let is_root = identifier == document.root_model_identifier;
        let item = ManifestItem {
            identifier,
            path: entry.path,
            name: entry.name,
            author: entry.author,
            description: entry.description,
        };
        if is_root {
            root = Some(item);
        } else {
            items.push(item);
        }
    }
    let root = root.ok_or_else(|| {
        let identifier = shortened(&document.root_model_identifier);
        fail(format!("`rootModelIdentifier` is `{identifier}`, which is not an item"))
    })?;
    Ok(Manifest { root, items })
}

/// Formats a manifest like coremltools: sorted keys, indented by four.
pub(crate) fn print(manifest: &Manifest) -> Vec<u8> {
    let entry = |item: &ManifestItem| Entry {
        author: item.author.clone(),
        description: item.description.clone(),
        name: item.name.clone(),
        path: item.path.clone(),
    };
    let items = manifest.items.iter().chain([&manifest.root]);
    let document = Document {
        file_format_version: "1.0.0".to_owned(),
        item_info_entries: Distinct(
            items.map(|item| (item.identifier.clone(), entry(item))).collect(),
        ),
        root_model_identifier: manifest.root.identifier.clone(),
    };
    let mut bytes = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, formatter);
    document.serialize(&mut serializer).expect("strings in memory have a JSON form");
    bytes.push(b'\n');
    bytes
}

/// The manifest of a package with this model file, these weight files, and other items.
///
/// Devices cache compiled models by the model's identifier. The identifier is derived from the contents, so
/// that a changed model is never confused with one compiled earlier.
pub(crate) fn of(model: &[u8], weights: &[WrittenFile], others: &[ManifestItem]) -> Manifest {
    let content = content(model, weights);
    let item = |path: String, name: &str, description: &str| ManifestItem {
        identifier: identifier(&content, &path),
        path,
        name: name.to_owned(),
        author: MODEL_DIRECTORY.to_owned(),
        description: description.to_owned(),
    };

    let root =
        item(format!("{MODEL_DIRECTORY}/{MODEL_FILE}"), MODEL_FILE, "CoreML Model Specification");
    let mut items = Vec::new();
    for name in weight_items(weights.iter().map(|file| file.path.as_str())) {
        items.push(item(format!("{MODEL_DIRECTORY}/{name}"), name, "CoreML Model Weights"));
    }
    for other in others {
        let path = &other.path;
        if *path != root.path && items.iter().all(|known| known.path != *path) {
            items.push(other.clone());
        }
    }
    items.sort_by(|left, right| left.identifier.cmp(&right.identifier));
    Manifest { root, items }
}

/// Hash of a model file, or of the text of a compiled model, together with its weight files.
pub(crate) fn content(model: &[u8], weights: &[WrittenFile]) -> blake3::Hash {
    let mut content = blake3::Hasher::new();
    content.update(blake3::hash(model).as_bytes());
    for file in weights {
        content.update(&(file.path.len() as u64).to_le_bytes());
        content.update(file.path.as_bytes());
        content.update(file.hash.as_bytes());
    }
    content.finalize()
}

/// Manifest items for weight files: the directories or files directly next to the model.
pub(crate) fn weight_items<'p>(paths: impl Iterator<Item = &'p str>) -> Vec<&'p str> {
    let mut names: Vec<&str> = paths.filter_map(|path| path.split('/').next()).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// An identifier in the format of a version 8 UUID, which allows arbitrary bits.
fn identifier(content: &blake3::Hash, path: &str) -> String {
    let mut hasher = blake3::Hasher::new_derive_key("coremill package item identifier");
    hasher.update(content.as_bytes());
    hasher.update(path.as_bytes());
    let mut bytes = [0; 16];
    hasher.finalize_xof().fill(&mut bytes);
    bytes[6] = bytes[6] & 0x0f | 0x80;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let mut text = String::with_capacity(36);
    for (index, byte) in bytes.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn document(entries: &str, root: &str) -> String {
        format!(
            r#"{{"fileFormatVersion": "1.0.0", "itemInfoEntries": {{{entries}}},
                "rootModelIdentifier": "{root}"}}"#
        )
    }

    fn entry(identifier: &str, path: &str) -> String {
        format!(
            r#""{identifier}": {{"author": "a", "description": "d", "name": "n", "path": "{path}"}}"#
        )
    }

    #[test]
    fn manifests_round_trip() {
        let other = ManifestItem {
            identifier: "0000".into(),
            path: "com.example/notes".into(),
            name: "notes".into(),
            author: "com.example".into(),
            description: "notes".into(),
        };
        let weights = [WrittenFile { path: "weights/weight.bin".into(), hash: blake3::hash(b"w") }];
        let manifest = of(b"model", &weights, std::slice::from_ref(&other));
        let bytes = print(&manifest);
        assert_eq!(parse(&bytes).expect("sound"), manifest);
        assert!(manifest.items.contains(&other));
        assert_eq!(manifest.root.path, "com.apple.CoreML/model.mlmodel");
        assert!(String::from_utf8(bytes).expect("text").contains("\n    \"itemInfoEntries\": {\n"));
    }

    #[test]
    fn root_identifier_depends_only_on_content() {
        let weights = |content: &[u8]| {
            [WrittenFile { path: "weights/weight.bin".into(), hash: blake3::hash(content) }]
        };
        let identifier =
            |model: &[u8], weight: &[u8]| of(model, &weights(weight), &[]).root.identifier;
        let first = identifier(b"model", b"w");
        assert_eq!(first, identifier(b"model", b"w"));
        assert_ne!(first, identifier(b"model", b"v"));
        assert_ne!(first, identifier(b"modem", b"w"));
        assert_eq!(first.len(), 36);
        assert_eq!(first.as_bytes()[14], b'8');
    }

    #[test]
    fn rejects_hostile_manifests() {
        let good = entry("i", "com.apple.CoreML/model.mlmodel");
        let cases: Vec<(&str, String, &str)> = vec![
            ("empty", String::new(), "EOF"),
            ("not an object", "[]".into(), "invalid length 0"),
            ("deep", "[".repeat(100_000), "invalid type: sequence"),
            ("no root", document(&good, "j"), "`rootModelIdentifier` is `j`, which is not an item"),
            ("twice", document(&format!("{good},{good}"), "i"), "duplicate key `i`"),
            (
                "version",
                document(&good, "i").replace("1.0.0", "1.0.1"),
                "must be at most `1.0.0`, got `1.0.1`",
            ),
            (
                "version text",
                document(&good, "i").replace("1.0.0", "one"),
                "must be at most `1.0.0`, got `one`",
            ),
            ("missing key", document(&good.replace("author", "writer"), "i"), "unknown field"),
            (
                "unknown key",
                document(&good, "i").replacen('{', "{\"signature\": 1,", 1),
                "unknown field `signature`",
            ),
            ("parent", document(&entry("i", "../model.mlmodel"), "i"), "a component `.` or `..`"),
            ("inner parent", document(&entry("i", "a/../../b"), "i"), "a component `.` or `..`"),
            ("absolute", document(&entry("i", "/etc/passwd"), "i"), "is absolute"),
            ("drive", document(&entry("i", "C:/model"), "i"), "is not portable"),
            ("backslash", document(&entry("i", "..\\\\model"), "i"), "is not portable"),
            ("no path", document(&entry("i", ""), "i"), "is empty"),
            ("empty part", document(&entry("i", "a//b"), "i"), "has an empty component"),
            (
                "many items",
                document(
                    &(0..2000).map(|i| entry(&i.to_string(), "a")).collect::<Vec<_>>().join(","),
                    "1",
                ),
                "more than 1024 entries",
            ),
        ];
        for (name, text, message) in cases {
            let error = parse(text.as_bytes()).expect_err(name);
            assert_eq!(error.kind(), ErrorKind::Manifest, "{name}");
            assert_eq!(error.file(), Some(FILE));
            assert!(error.message().contains(message), "{name}: {error}");
        }
    }
}
