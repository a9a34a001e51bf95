//! Placement of a directory's files in a blob.

use std::collections::BTreeMap;
use std::ops::Range;

use super::directory::{Description, Directory, Entry, Node, Region, kind};
use crate::ByteRope;
use crate::error::{Error, ErrorKind};
use crate::limits;

/// In larger directories, files start at pages, so that each can be mapped separately.
const SMALL_BYTES: u64 = 1 << 30;

/// Largest page size of Apple's devices.
const PAGE: u64 = 16 << 10;

#[derive(Default)]
struct Tree<'d> {
    entries: BTreeMap<&'d str, Tree<'d>>,
    /// Path and content of a file.
    file: Option<(&'d str, &'d ByteRope)>,
}

impl<'d> Tree<'d> {
    fn insert(&mut self, path: &'d str, entry: Entry<'d>) {
        let node = path.split('/').fold(self, |tree, part| tree.entries.entry(part).or_default());
        if let Entry::File(data) = entry {
            node.file = Some((path, data));
        }
    }

    /// Size of the largest file inside.
    fn largest(&self) -> usize {
        let own = self.file.map_or(0, |(_, data)| data.len());
        self.entries.values().map(Tree::largest).fold(own, usize::max)
    }

    /// Appends the nodes, children first. The subtree with the largest file precedes the others, so that this file,
    /// normally the weights, is at the start with aligned elements.
    fn flatten(&self, name: &str, files: &mut Files<'d>, nodes: &mut Vec<Node>) -> usize {
        let mut entries: Vec<_> = self.entries.iter().collect();
        entries.sort_by_key(|(name, tree)| (std::cmp::Reverse(tree.largest()), **name));
        let child = |(name, tree): (&&str, &Tree<'d>)| {
            ((*name).to_owned(), tree.flatten(name, files, nodes))
        };
        let children = entries.into_iter().map(child).collect();
        let (kind, data_region) = match self.file {
            Some((path, data)) => (kind::FILE, files.place(path, data)),
            None => (kind::DIRECTORY, Region::default()),
        };
        nodes.push(Node { children, data_region, kind, name: name.to_owned() });
        nodes.len() - 1
    }
}

/// Files placed so far.
struct Files<'d> {
    placed: Vec<(u64, &'d str, &'d ByteRope)>,
    end: u64,
    alignment: u64,
}

impl<'d> Files<'d> {
    fn place(&mut self, path: &'d str, data: &'d ByteRope) -> Region {
        let offset = self.end.next_multiple_of(self.alignment);
        self.placed.push((offset, path, data));
        self.end = offset + data.len() as u64;
        Region { offset, size: data.len() as u64 }
    }
}

/// The blob, and the byte range of each file by path.
fn to_data(directory: &Directory) -> Result<(ByteRope, BTreeMap<&str, Range<usize>>), Error> {
    let unwritable = |message: String| Error::new(ErrorKind::Unwritable, message);
    let mut tree = Tree::default();
    directory.entries().for_each(|(path, entry)| tree.insert(path, entry));
    let lengths = directory.entries().map(|(_, entry)| match entry {
        Entry::File(data) => data.len() as u64,
        Entry::EmptyDirectory => 0,
    });
    let total = lengths.fold(0u64, u64::saturating_add);
    if total >= 1 << 62 {
        return Err(unwritable(format!("the files have {total} bytes, which is too large")));
    }
    let alignment = if total > SMALL_BYTES { PAGE } else { 1 };
    let mut files = Files { placed: Vec::new(), end: 0, alignment };
    let mut nodes = Vec::new();
    tree.flatten(&directory.name, &mut files, &mut nodes);
    if nodes.len() > limits::DIRECTORY_ENTRIES {
        let limit = limits::DIRECTORY_ENTRIES;
        return Err(unwritable(format!(
            "the directory has {} entries; the maximum is {limit}",
            nodes.len()
        )));
    }
    let description = serde_json::to_vec(&Description { nodes });
    let mut description = description.expect("names and numbers have a JSON form");
    if description.len() > limits::DIRECTORY_JSON_BYTES {
        return Err(unwritable(format!(
            "the directory description has {} bytes; the maximum is {}",
            description.len(),
            limits::DIRECTORY_JSON_BYTES
        )));
    }
    description.reverse();

    let mut whole = ByteRope::new();
    let mut append = |offset: u64, data: &ByteRope| {
        whole.push(vec![0; offset as usize - whole.len()]);
        whole.append(data);
    };
    files.placed.iter().for_each(|(offset, _, data)| append(*offset, data));
    append(files.end.next_multiple_of(alignment), &ByteRope::from(description));
    let place = |(offset, path, data): (u64, _, &ByteRope)| {
        (path, offset as usize..offset as usize + data.len())
    };
    Ok((whole, files.placed.into_iter().map(place).collect()))
}

impl Directory {
    /// Serializes the directory without copying files. Output is deterministic.
    pub fn to_data(&self) -> Result<ByteRope, Error> {
        to_data(self).map(|(data, _)| data)
    }

    /// Like [`to_data`](Self::to_data); also returns the byte range of each file by path.
    pub fn to_data_with_places(&self) -> Result<(ByteRope, BTreeMap<&str, Range<usize>>), Error> {
        to_data(self)
    }
}
