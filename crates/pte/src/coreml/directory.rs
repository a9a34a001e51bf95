use std::collections::{BTreeMap, BTreeSet};
use std::io;

use serde::{Deserialize, Serialize};

use crate::ByteRope;
use crate::error::{Error, escape_truncated};
use crate::limits;

type Result<T> = std::result::Result<T, Error>;

/// Number of bytes read per step when looking for the description.
const CHUNK: usize = 4096;

/// A directory serialized to one blob: the contents of its files, followed by a description, which is stored in
/// reverse byte order.
///
/// Paths are relative with `/` as separator and must stay inside the directory; others are rejected.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Directory {
    /// Name of the directory itself.
    pub name: String,
    files: BTreeMap<String, ByteRope>,
    /// Empty directories; other directories follow from the paths of files.
    empty: BTreeSet<String>,
}

/// An entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Entry<'d> {
    /// A file.
    File(&'d ByteRope),
    /// An empty directory.
    EmptyDirectory,
}

/// The description as JSON.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Description {
    pub(super) nodes: Vec<Node>,
}

/// A file or directory, listed after its children.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Node {
    pub(super) children: BTreeMap<String, usize>,
    pub(super) data_region: Region,
    pub(super) kind: u8,
    pub(super) name: String,
}

/// Location of a file's bytes.
#[derive(Clone, Copy, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Region {
    pub(super) offset: u64,
    pub(super) size: u64,
}

/// Values of `Node::kind`.
pub(super) mod kind {
    pub(crate) const FILE: u8 = 0;
    pub(crate) const DIRECTORY: u8 = 1;
}

impl Directory {
    /// An empty directory.
    pub fn new(name: impl Into<String>) -> Directory {
        Directory { name: name.into(), ..Directory::default() }
    }

    /// Name of the directory.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Parses a directory. Files share the data without copies.
    pub fn read(data: &ByteRope) -> Result<Directory> {
        let within = |error: Error| error.within("a serialized directory");
        let description = describe(data).map_err(within)?;
        assemble(description, data).map_err(within)
    }

    /// Adds or replaces a file.
    pub fn insert(&mut self, path: impl Into<String>, content: impl Into<ByteRope>) -> Result<()> {
        let path = path.into();
        check_path(&path)?;
        let below = format!("{path}/");
        let parents = path.match_indices('/').map(|(at, _)| &path[..at]);
        let is_parent = self
            .files
            .range(below.clone()..)
            .next()
            .is_some_and(|(found, _)| found.starts_with(&below));
        if is_parent
            || self.empty.contains(&path)
            || parents.clone().any(|at| self.files.contains_key(at))
        {
            let message = format!("`{}` is both a file and a directory", escape_truncated(&path));
            return Err(Error::malformed(message));
        }
        for parent in parents {
            self.empty.remove(parent);
        }
        self.files.insert(path, content.into());
        Ok(())
    }

    /// Adds a directory unless it exists.
    pub fn insert_directory(&mut self, path: impl Into<String>) -> Result<()> {
        let path = path.into();
        check_path(&path)?;
        if self.files.contains_key(&path) {
            let message = format!("`{}` is both a file and a directory", escape_truncated(&path));
            return Err(Error::malformed(message));
        }
        let below = format!("{path}/");
        let first = self.files.range(below.clone()..).next();
        if first.is_none_or(|(found, _)| !found.starts_with(&below)) {
            self.empty.insert(path);
        }
        Ok(())
    }

    /// A file.
    pub fn file(&self, path: &str) -> Option<&ByteRope> {
        self.files.get(path)
    }

    /// All files and empty directories, sorted by path.
    pub fn entries(&self) -> impl Iterator<Item = (&str, Entry<'_>)> {
        let files = self.files.iter().map(|(path, data)| (path.as_str(), Entry::File(data)));
        let empty = self.empty.iter().map(|path| (path.as_str(), Entry::EmptyDirectory));
        let mut all: Vec<_> = files.chain(empty).collect();
        all.sort_by_key(|(path, _)| *path);
        all.into_iter()
    }

    /// Files inside a directory, by relative path.
    pub fn below(&self, path: &str) -> Vec<(&str, &ByteRope)> {
        let start = format!("{path}/");
        let found = self.files.range(start.clone()..);
        found.map_while(|(path, data)| Some((path.strip_prefix(&start)?, data))).collect()
    }

    /// Empty directories inside a directory, by relative path.
    pub fn empty_below(&self, path: &str) -> Vec<&str> {
        let start = format!("{path}/");
        let found = self.empty.range(start.clone()..);
        found.map_while(|path| path.strip_prefix(&start)).collect()
    }
}

/// Rejects paths that are absolute, leave the directory, or are not portable.
fn check_path(path: &str) -> Result<()> {
    let parts = path.split('/').count();
    if parts > limits::DIRECTORY_DEPTH {
        let limit = limits::DIRECTORY_DEPTH;
        let message =
            format!("`{}` has {parts} components; the maximum is {limit}", escape_truncated(path));
        return Err(Error::limit(message));
    }
    path.split('/').try_for_each(check_name)
}

fn check_name(name: &str) -> Result<()> {
    let problem = if name.is_empty() {
        "is empty"
    } else if matches!(name, "." | "..") {
        "is not a valid file name"
    } else if name.contains(['/', '\\', ':']) || name.contains(char::is_control) {
        "contains a character that is not portable in file names"
    } else if name.len() > limits::NAME_BYTES {
        "is too long"
    } else {
        return Ok(());
    };
    Err(Error::malformed(format!("the name `{}` {problem}", escape_truncated(name))))
}

/// Finds the description at the end of the bytes.
fn describe(data: &ByteRope) -> Result<Description> {
    let mut end = data.len();
    let mut chunk = [0; CHUNK];
    // Writers of large directories pad the last page with zeros.
    let last = loop {
        let start = end.saturating_sub(CHUNK);
        let chunk = &mut chunk[..end - start];
        data.read_at(start, chunk).map_err(|error| Error::io("read the description", error))?;
        let is_filling = |byte: &u8| *byte == 0 || byte.is_ascii_whitespace();
        if let Some(at) = chunk.iter().rposition(|byte| !is_filling(byte)) {
            end = start + at + 1;
            break chunk[at];
        }
        if start == 0 {
            return Err(Error::malformed("the data has no directory description at its end"));
        }
        end = start;
    };
    if last != b'{' {
        return Err(Error::malformed("the data does not end with a directory description"));
    }
    let reader = ReverseReader { data, end, left: limits::DIRECTORY_JSON_BYTES };
    let reader = io::BufReader::with_capacity(CHUNK, reader);
    let mut deserializer = serde_json::Deserializer::from_reader(reader);
    Description::deserialize(&mut deserializer).map_err(|error| {
        Error::malformed(format!("cannot parse the directory description: {error}"))
    })
}

/// Reads bytes in reverse order.
struct ReverseReader<'d> {
    data: &'d ByteRope,
    end: usize,
    left: usize,
}

impl io::Read for ReverseReader<'_> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let length = target.len().min(self.end);
        if length > self.left {
            let limit = limits::DIRECTORY_JSON_BYTES;
            return Err(io::Error::other(format!("it has more than {limit} bytes")));
        }
        let target = &mut target[..length];
        self.data.read_at(self.end - length, target)?;
        target.reverse();
        self.end -= length;
        self.left -= length;
        Ok(length)
    }
}

/// Builds a directory from its description.
fn assemble(description: Description, data: &ByteRope) -> Result<Directory> {
    let nodes = description.nodes;
    if nodes.len() > limits::DIRECTORY_ENTRIES {
        let limit = limits::DIRECTORY_ENTRIES;
        return Err(Error::limit(format!(
            "the directory has {} entries; the maximum is {limit}",
            nodes.len()
        )));
    }
    let Some(root) = nodes.last() else {
        return Err(Error::malformed("the directory description has no root"));
    };
    check_name(&root.name)?;
    let mut directory = Directory::new(&*root.name);
    let mut regions = Vec::new();
    // Each entry follows its children, so paths are resolved from the last entry backwards.
    let mut paths: Vec<Option<String>> = vec![None; nodes.len()];
    for (index, node) in nodes.iter().enumerate().rev() {
        let is_root = index + 1 == nodes.len();
        let Some(path) = paths[index].take().or(is_root.then(String::new)) else {
            let message =
                format!("the entry `{}` is not in a directory", escape_truncated(&node.name));
            return Err(Error::malformed(message));
        };
        match node.kind {
            kind::FILE if !is_root && node.children.is_empty() => {
                let Region { offset, size } = node.data_region;
                let end = offset.checked_add(size).and_then(|end| usize::try_from(end).ok());
                let content = end.and_then(|end| data.slice(offset as usize..end));
                let content = content.ok_or_else(|| {
                    let length = data.len();
                    let path = escape_truncated(&path);
                    let message = format!("`{path}` has {size} bytes at offset {offset}, beyond the end of the data at {length}");
                    Error::malformed(message)
                })?;
                regions.push((offset, size));
                directory.insert(path, content)?;
            }
            kind::DIRECTORY => {
                if node.children.is_empty() && !is_root {
                    directory.insert_directory(path)?;
                    continue;
                }
                for (name, &child) in &node.children {
                    check_name(name)?;
                    let found =
                        nodes.get(child).filter(|found| child < index && found.name == *name);
                    if found.is_none() || paths[child].is_some() {
                        let name = escape_truncated(name);
                        let message = format!(
                            "`{name}` is listed as entry {child}, which is missing, already used or named differently"
                        );
                        return Err(Error::malformed(message));
                    }
                    let path =
                        if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
                    check_path(&path)?;
                    paths[child] = Some(path);
                }
            }
            kind::FILE => {
                let name = escape_truncated(&node.name);
                let problem =
                    if is_root { "must not be the root" } else { "must not have entries" };
                return Err(Error::malformed(format!("the file `{name}` {problem}")));
            }
            other => {
                let name = escape_truncated(&node.name);
                return Err(Error::unsupported(format!(
                    "the entry `{name}` has unknown kind {other}"
                )));
            }
        }
    }
    check_apart(regions)?;
    Ok(directory)
}

/// Rejects files that share bytes, which could expand to a directory of any size.
fn check_apart(mut regions: Vec<(u64, u64)>) -> Result<()> {
    regions.retain(|(_, size)| *size > 0);
    regions.sort_unstable();
    match regions.windows(2).find(|pair| pair[0].0 + pair[0].1 > pair[1].0) {
        Some(pair) => {
            let message = format!("the files at offsets {} and {} overlap", pair[0].0, pair[1].0);
            Err(Error::malformed(message))
        }
        None => Ok(()),
    }
}
