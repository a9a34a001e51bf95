//! Cache of compiled models, which are compiled once per machine.

use std::fs;
use std::path::{Path, PathBuf};

use coremill_cache::{Entry, Key, Store, hash_file};

use crate::error::{Error, ErrorKind, Result};
use crate::machine::{Model, compile, system_build};
use crate::options::LoadOptions;
use crate::tree::{copy_tree, visit};

/// Directory of the compiled model inside its entry.
const COMPILED: &str = "model.mlmodelc";

/// Kind of entries that are compiled models.
const KIND: &str = "model";

/// Compiled models in a store. The key consists of the model's content, the compute units, and the build of the
/// system.
pub struct Cache<'s> {
    store: &'s Store,
}

/// A compiled model in a store, which is not evicted while this is held.
#[derive(Debug)]
pub struct CompiledModel {
    entry: Entry,
}

impl<'s> Cache<'s> {
    /// Opens the cache in a store.
    pub fn new(store: &'s Store) -> Cache<'s> {
        Cache { store }
    }

    /// The compiled form of a package, a model file or a compiled model, identified by content.
    pub fn compiled(&self, model: &Path, options: &LoadOptions) -> Result<CompiledModel> {
        let content = hash_tree(model)?;
        let label = model.file_name().unwrap_or(model.as_os_str()).to_string_lossy();
        self.compiled_as(&content, &label, options, |_| Ok(model.to_owned()))
    }

    /// Whether a model is compiled and cached for these options and the current build of the system.
    pub fn contains(&self, model: &Path, options: &LoadOptions) -> Result<bool> {
        let key = key(&hash_tree(model)?, options)?;
        Ok(self.store.get(&key).map_err(of_store)?.is_some())
    }

    /// The compiled form of a model identified by `content`. If it is not cached, `files` writes the model to the
    /// given directory, or returns its location.
    pub fn compiled_as(
        &self,
        content: &[u8],
        label: &str,
        options: &LoadOptions,
        files: impl FnOnce(&Path) -> Result<PathBuf>,
    ) -> Result<CompiledModel> {
        let key = key(content, options)?;
        let make = |place: &Path| {
            let source = place.join("source");
            fs::create_dir(&source).map_err(|error| Error::of_files("create", &source, &error))?;
            let model = files(&source)?;
            let to = place.join(COMPILED);
            if is_compiled(&model) {
                copy_tree(&model, &to)?;
            } else {
                compile(&model, &to, options)?;
            }
            fs::remove_dir_all(&source).map_err(|error| Error::of_files("remove", &source, &error))
        };
        let entry = self.store.get_or_insert(&key, KIND, label, make);
        entry.map(|entry| CompiledModel { entry }).map_err(of_store)
    }
}

/// Key of a compiled model for the current build of the system.
fn key(content: &[u8], options: &LoadOptions) -> Result<Key> {
    let build = system_build()?;
    let units = options.compute_units.name();
    Ok(Key::new([b"compiled", content, units.as_bytes(), build.as_bytes()]))
}

impl CompiledModel {
    /// The directory of the compiled model.
    pub fn path(&self) -> PathBuf {
        self.entry.path().join(COMPILED)
    }

    /// Loads the compiled model. Keep `self` only as long as its files must stay on disk.
    pub fn load(&self, options: &LoadOptions) -> Result<Model> {
        Model::load(&self.path(), options)
    }
}

/// Converts an error of the store. An error of this crate that passed through it is returned unchanged.
fn of_store(error: coremill_cache::Error) -> Error {
    use std::error::Error as _;
    let ours = error.source().and_then(|source| source.downcast_ref::<Error>());
    ours.cloned().unwrap_or_else(|| {
        let text = Error::new(ErrorKind::Io, error.to_string());
        match error.hint() {
            Some(hint) => text.with_hint(hint),
            None => text,
        }
    })
}

fn is_compiled(model: &Path) -> bool {
    model.join("coremldata.bin").exists() || model.join("model.mil").exists()
}

/// Hash of all files under a path and their names.
fn hash_tree(path: &Path) -> Result<Vec<u8>> {
    let mut hashes = Vec::new();
    visit(path, Path::new(""), &mut |file, relative| {
        let hash = hash_file(file).map_err(|error| Error::of_files("read", file, &error))?;
        // In a platform-independent form.
        let name: Vec<_> = relative.iter().map(|part| part.to_string_lossy()).collect();
        hashes.push((name.join("/"), hash));
        Ok(())
    })?;
    hashes.sort();
    let parts = hashes.iter().flat_map(|(name, hash)| [name.as_bytes(), &hash[..]]);
    Ok(Key::new(parts).to_string().into_bytes())
}
