//! Packages and compiled models in memory, or inside other files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::ops::Range;
use std::path::Path;

use coremill_io::create_directories_below;
use coremill_tensor::Buffer;

use super::directory::{self, Listing, StagingDirectory, WriteOptions};
use super::error::{Error, ErrorKind, shortened};
use super::weights::{self, Layout, WeightFiles, WrittenFile};
use coremill_mil::limits;

type Result<T> = std::result::Result<T, Error>;

/// The files of a package or compiled model.
///
/// Weights are parts of their files: mapped, or computed when they are read.
#[derive(Clone, Debug, Default)]
pub struct VirtualDirectory {
    /// The files, sorted by path.
    pub files: Vec<TreeFile>,
    /// Paths of empty directories.
    pub empty_directories: Vec<String>,
    /// Hash of the program and its weights; equal hashes mean equal models.
    pub content: [u8; 32],
}

/// A file of a [`VirtualDirectory`].
#[derive(Clone, Debug, PartialEq)]
pub struct TreeFile {
    /// The path with `/` separators.
    pub path: String,
    /// The contents, in consecutive parts.
    pub parts: Vec<Buffer>,
}

/// Builds the tree from the hashes of the weights and the files.
type Finish<'m> = dyn Fn(&[WrittenFile], Files) -> Result<VirtualDirectory> + 'm;

/// A package or compiled model that is complete except for the hashes of its weights, from which identifiers
/// in other files are derived. Lazily computed weights can thereby be hashed and written in one pass.
pub struct PendingPackage<'m> {
    pub(crate) layout: Layout<'m>,
    /// Prefix of the paths of weight files.
    pub(crate) root: String,
    pub(crate) finish: Box<Finish<'m>>,
}

impl PendingPackage<'_> {
    /// Returns the files. All weights are read to compute their hashes.
    pub fn tree(&self) -> Result<VirtualDirectory> {
        self.finished(&self.layout.hash()?)
    }

    /// Returns the files with placeholder identifiers. Paths and lengths are the same as in
    /// [`tree`](Unhashed::tree).
    pub fn outline(&self) -> Result<VirtualDirectory> {
        let none = |path: &str| WrittenFile { path: path.to_owned(), hash: [0; 32].into() };
        self.finished(&self.layout.paths().map(none).collect::<Vec<_>>())
    }

    /// Returns the files. At the same time, weight files are written into `target` at the offsets that
    /// `place` returns for their paths; [`weights`](Unhashed::weights) lists these paths.
    pub fn write_to(
        &self,
        target: &mut [u8],
        place: &dyn Fn(&str) -> Option<Range<usize>>,
    ) -> Result<VirtualDirectory> {
        let place = |path: &str| place(&format!("{}{path}", self.root));
        self.finished(&self.layout.write_to(target, &place)?)
    }

    /// Paths of the weight files.
    pub fn weights(&self) -> impl Iterator<Item = String> {
        self.layout.paths().map(|path| format!("{}{path}", self.root))
    }

    fn finished(&self, written: &[WrittenFile]) -> Result<VirtualDirectory> {
        let mut files = Files::default();
        for (path, parts) in self.weights().zip(self.layout.join()) {
            files.insert(path, parts);
        }
        (self.finish)(written, files)
    }
}

impl VirtualDirectory {
    /// Writes the files into a directory. An existing model is replaced in one step.
    pub fn write(&self, path: &Path, options: &WriteOptions) -> Result<()> {
        write_files(path, &self.files, &self.empty_directories, options)
    }
}

/// Writes files and empty directories into a directory. At any time the directory contains either its old
/// contents or all files. Only a package or compiled model is replaced.
pub fn write_files(
    path: &Path,
    files: &[TreeFile],
    empty_directories: &[String],
    options: &WriteOptions,
) -> Result<()> {
    let path = &directory::destination(path)?;
    check_target(path)?;
    let paths = files.iter().map(|file| &file.path).chain(empty_directories);
    for path in paths {
        if let Err(problem) = directory::check_path(path) {
            let message = format!("the file path `{}` {problem}", shortened(path));
            return Err(Error::new(ErrorKind::Unwritable, message));
        }
    }
    let staging = StagingDirectory::new(path)?;
    for empty in empty_directories {
        let made = create_directories_below(staging.path(), empty);
        made.map_err(|error| Error::io(format!("create {empty}"), error))?;
    }
    for TreeFile { path, parts } in files {
        let write = || {
            if let Some(parent) = Path::new(path).parent() {
                create_directories_below(staging.path(), parent)?;
            }
            let file = File::create_new(staging.path().join(path))?;
            parts.iter().try_for_each(|part| weights::copy_file(part, &file))?;
            if options.durable { file.sync_all() } else { Ok(()) }
        };
        write().map_err(|error| Error::io(format!("write {path}"), error))?;
    }
    if options.durable {
        let listing = directory::list(staging.path())?;
        for path in listing.directories.iter().map(String::as_str).chain([""]) {
            let synced = directory::sync_directory(Some(&staging.path().join(path)));
            synced.map_err(|error| Error::io("sync the files to disk", error))?;
        }
    }
    staging.commit(options.durable)
}

/// Checks that an existing target is a model, so that a mistyped path never replaces another directory.
fn check_target(path: &Path) -> Result<()> {
    let Ok(found) = fs::symlink_metadata(path) else { return Ok(()) };
    let is_model = ["Manifest.json", "coremldata.bin"].iter().any(|name| path.join(name).is_file());
    let is_empty = || fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
    if found.is_dir() && (is_model || is_empty()) {
        return Ok(());
    }
    let message = format!("{} already exists and is not a model", path.display());
    let hint = "remove it, or write to another path";
    Err(Error::new(ErrorKind::Unwritable, message).with_hint(hint))
}

/// The source of a model.
pub(crate) enum Source<'s> {
    /// A directory.
    Directory(&'s Path),
    /// Files by path.
    Memory(BTreeMap<String, Buffer>),
}

impl Source<'_> {
    /// Files in memory, after checking that their paths do not leave the directory.
    pub(crate) fn in_memory<'s>(
        files: impl IntoIterator<Item = (String, Buffer)>,
    ) -> Result<Source<'s>> {
        let mut found = BTreeMap::new();
        for (path, content) in files {
            if found.len() == limits::PACKAGE_ENTRIES {
                let limit = limits::PACKAGE_ENTRIES;
                let message =
                    format!("the package contains more than {limit} files and directories");
                return Err(Error::new(ErrorKind::Limit, message));
            }
            if let Err(problem) = directory::check_path(&path) {
                let message = format!("the file path `{}` {problem}", shortened(&path));
                return Err(Error::new(ErrorKind::Package, message));
            }
            found.insert(path, content);
        }
        Ok(Source::Memory(found))
    }

    /// Name of the source in messages.
    pub(crate) fn shown(&self) -> String {
        match self {
            Source::Directory(path) => path.display().to_string(),
            Source::Memory(_) => "the model".to_owned(),
        }
    }

    pub(crate) fn list(&self) -> Result<Listing> {
        match self {
            Source::Directory(path) => directory::list(path),
            Source::Memory(files) => {
                let parents = |path: &'_ String| -> Vec<String> {
                    path.match_indices('/').map(|(at, _)| path[..at].to_owned()).collect()
                };
                let directories: BTreeSet<String> = files.keys().flat_map(parents).collect();
                let sizes =
                    files.iter().map(|(path, content)| (path.clone(), content.len() as u64));
                Ok(Listing {
                    files: sizes.collect(),
                    directories: directories.into_iter().collect(),
                })
            }
        }
    }

    /// Reads a file of at most `limit` bytes.
    pub(crate) fn read(&self, path: &str, limit: u64) -> Result<Vec<u8>> {
        match self {
            Source::Directory(root) => directory::read_whole(&root.join(path), limit),
            Source::Memory(_) => {
                let content = self.map(path)?;
                if content.len() as u64 > limit {
                    let message = format!("the file is larger than {limit} bytes");
                    return Err(Error::new(ErrorKind::Limit, message));
                }
                let mut bytes = vec![0; content.len()];
                let read = content.read_at(0, &mut bytes);
                read.map_err(|error| Error::io(format!("read {path}"), error))?;
                Ok(bytes)
            }
        }
    }

    /// The contents of a file, without a copy.
    pub(crate) fn map(&self, path: &str) -> Result<Buffer> {
        match self {
            Source::Directory(root) => directory::map(root, path),
            Source::Memory(files) => files.get(path).cloned().ok_or_else(|| {
                let message = format!("the package has no file `{}`", shortened(path));
                Error::new(ErrorKind::Package, message)
            }),
        }
    }

    /// The weight files below a directory.
    pub(crate) fn weights(&self, directory: &str) -> WeightFiles {
        match self {
            Source::Directory(root) => WeightFiles::in_directory(root.join(directory)),
            Source::Memory(files) => {
                let start =
                    if directory.is_empty() { String::new() } else { format!("{directory}/") };
                let below = files.iter().filter_map(|(path, content)| {
                    Some((path.strip_prefix(&start)?.to_owned(), content.clone()))
                });
                WeightFiles::in_memory(below)
            }
        }
    }
}

/// Files for a [`VirtualDirectory`].
#[derive(Default)]
pub(crate) struct Files(BTreeMap<String, Vec<Buffer>>);

impl Files {
    /// Adds a file; returns whether the path was new.
    pub(crate) fn insert(&mut self, path: String, parts: Vec<Buffer>) -> bool {
        self.0.insert(path, parts).is_none()
    }

    /// Whether there is a file at or below the path.
    pub(crate) fn contains(&self, path: &str) -> bool {
        let below = format!("{path}/");
        self.0.contains_key(path)
            || self
                .0
                .range(below.clone()..)
                .next()
                .is_some_and(|(found, _)| found.starts_with(&below))
    }

    pub(crate) fn into_tree(
        self,
        empty_directories: Vec<String>,
        content: [u8; 32],
    ) -> VirtualDirectory {
        let file = |(path, parts)| TreeFile { path, parts };
        VirtualDirectory {
            files: self.0.into_iter().map(file).collect(),
            empty_directories,
            content,
        }
    }
}
