use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use coremill_tensor::{Buffer, DType};

use super::{ALIGNMENT, HEADER_BYTES, MODEL_PATH, Record, VERSION, code, u32_at};
use crate::package::directory;
use crate::package::error::{Error, ErrorKind, shortened};
use crate::package::wire::entry;
use coremill_mil::ir::{
    Binding, Constant, ConstantData, Function, Op, OpId, Program, TensorType, WeightPlace,
};
use coremill_mil::limits;

type Result<T> = std::result::Result<T, Error>;

/// Weight files, each mapped when a program first refers to it.
///
/// The files are untrusted. A reference is valid only if there is a record of the declared type and size at
/// the offset that is within the file and does not overlap any other referenced record.
pub struct WeightFiles {
    source: Source,
    may_be_missing: bool,
    opened: Mutex<BTreeMap<String, OpenFile>>,
}

enum Source {
    /// Files below a directory, which `@model_path` refers to.
    Directory(PathBuf),
    /// Files in memory, by their path after `@model_path/`.
    Memory(BTreeMap<String, Buffer>),
}

struct OpenFile {
    /// Path after `@model_path/`.
    path: String,
    content: Buffer,
    /// The referenced records, by the offset of their metadata.
    records: BTreeMap<u64, Record>,
    /// The byte ranges of the records: start and end.
    taken: BTreeMap<u64, u64>,
}

impl WeightFiles {
    /// Returns the weight files of a program whose `@model_path` is a directory.
    pub fn in_directory(directory: impl Into<PathBuf>) -> WeightFiles {
        WeightFiles::of(Source::Directory(directory.into()))
    }

    /// Returns weight files in memory, by their path relative to `@model_path`.
    pub fn in_memory(files: impl IntoIterator<Item = (String, Buffer)>) -> WeightFiles {
        WeightFiles::of(Source::Memory(files.into_iter().collect()))
    }

    fn of(source: Source) -> WeightFiles {
        WeightFiles { source, may_be_missing: false, opened: Mutex::default() }
    }

    /// Accepts missing weight files: weights of a text then have no elements, and the verifier reports them.
    pub fn allow_missing(mut self) -> WeightFiles {
        self.may_be_missing = true;
        self
    }

    /// Whether a file is missing.
    fn is_missing(&self, name: &str) -> bool {
        let Some(path) = name.strip_prefix(MODEL_PATH) else { return false };
        match &self.source {
            _ if directory::check_path(path).is_err() => false,
            Source::Directory(root) => std::fs::symlink_metadata(root.join(path)).is_err(),
            Source::Memory(files) => !files.contains_key(path),
        }
    }

    /// Returns the elements of a weight.
    pub fn elements(&self, place: &WeightPlace, ty: &TensorType) -> Result<Buffer> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if !opened.contains_key(&*place.file) {
            if opened.len() == limits::WEIGHT_FILES {
                let message = format!("there are more than {} weight files", limits::WEIGHT_FILES);
                return Err(Error::new(ErrorKind::Limit, message));
            }
            opened.insert(place.file.to_string(), self.open(&place.file)?);
        }
        match opened.get_mut(&*place.file) {
            Some(file) => {
                let elements = file.elements(place.offset, ty);
                elements.map_err(|error| error.in_file(file.path.clone()))
            }
            None => Err(Error::new(ErrorKind::Weights, "the weight file is not open")),
        }
    }

    /// Loads the elements of all weights of a program.
    pub fn load(&self, program: &mut Program) -> Result<()> {
        for function in &mut program.functions {
            let loaded = self.load_function(function);
            loaded.map_err(|error| error.within(entry("functions", &function.name)))?;
        }
        program.attributes.values_mut().try_for_each(|constant| self.load_constant(constant))
    }

    /// Sorted paths, relative to `@model_path`, of the files that were referred to.
    pub fn opened(&self) -> Vec<String> {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let mut paths: Vec<String> = opened.values().map(|file| file.path.clone()).collect();
        paths.sort();
        paths
    }

    fn load_function(&self, function: &mut Function) -> Result<()> {
        for index in 0..function.op_count() {
            let op = OpId::from_index(index);
            let loaded = self.load_op(function.op_mut(op));
            loaded.map_err(|error| {
                let op = function.op(op);
                let output = op.outputs.first().map(|&value| &*function.value(value).name);
                error.within(format!("{} `{}`", op.type_name(), output.unwrap_or("?")))
            })?;
        }
        for (block, _) in function.blocks_in_order() {
            let attributes = &mut function.block_mut(block).attributes;
            attributes.values_mut().try_for_each(|constant| self.load_constant(constant))?;
        }
        function.attributes.values_mut().try_for_each(|constant| self.load_constant(constant))
    }

    fn load_op(&self, op: &mut Op) -> Result<()> {
        for input in &mut op.inputs {
            for binding in &mut input.bindings {
                if let Binding::Literal(constant) = binding {
                    self.load_constant(constant).map_err(|e| e.within(input.name.to_string()))?;
                }
            }
        }
        op.attributes.values_mut().try_for_each(|constant| self.load_constant(constant))
    }

    fn load_constant(&self, constant: &mut Constant) -> Result<()> {
        match (&mut constant.data, constant.ty.as_tensor()) {
            (ConstantData::Weight(weight), Some(tensor)) => {
                if let (None, Some(place)) = (&weight.data, &weight.place) {
                    weight.data = Some(self.elements(place, tensor)?);
                }
                Ok(())
            }
            (ConstantData::Weight(_), None) => {
                let message = format!("a `{}` cannot be stored in a weight file", constant.ty);
                Err(Error::new(ErrorKind::Weights, message))
            }
            (ConstantData::Sequence(parts), _) => {
                parts.iter_mut().try_for_each(|part| self.load_constant(part))
            }
            (ConstantData::Entries(entries), _) => {
                entries.iter_mut().try_for_each(|(key, value)| {
                    self.load_constant(key)?;
                    self.load_constant(value)
                })
            }
            (ConstantData::Bytes(_) | ConstantData::Strings(_), _) => Ok(()),
        }
    }

    fn open(&self, name: &str) -> Result<OpenFile> {
        let Some(path) = name.strip_prefix(MODEL_PATH) else {
            let message =
                format!("the weight file `{}` is not under `{MODEL_PATH}`", shortened(name));
            return Err(Error::new(ErrorKind::Weights, message));
        };
        directory::check_path(path).map_err(|problem| {
            let message = format!("the name of the weight file `{}` {problem}", shortened(name));
            Error::new(ErrorKind::Weights, message)
        })?;
        let content = match &self.source {
            Source::Directory(root) => directory::map(root, path)?,
            Source::Memory(files) => files.get(path).cloned().ok_or_else(|| {
                let message = format!("the package has no weight file `{}`", shortened(path));
                Error::new(ErrorKind::Weights, message)
            })?,
        };
        let within = |error: Error| error.in_file(path);
        check_header(&content).map_err(within)?;
        let (records, taken) = (BTreeMap::new(), BTreeMap::new());
        Ok(OpenFile { path: path.to_owned(), content, records, taken })
    }
}

/// Provides the weights of parsed MIL text.
impl coremill_mil::text::Weights for WeightFiles {
    fn elements(
        &self,
        place: &WeightPlace,
        ty: &TensorType,
    ) -> std::result::Result<Option<Buffer>, String> {
        if self.may_be_missing && self.is_missing(&place.file) {
            return Ok(None);
        }
        self.elements(place, ty).map(Some).map_err(|error| error.to_string())
    }
}

impl OpenFile {
    fn elements(&mut self, offset: u64, ty: &TensorType) -> Result<Buffer> {
        let fail = |message: String| Error::new(ErrorKind::Weights, message).at(offset);
        if !offset.is_multiple_of(ALIGNMENT) {
            let message =
                format!("the offset {offset} of a weight is not a multiple of {ALIGNMENT}");
            return Err(fail(message));
        }
        let record = match self.records.get(&offset) {
            Some(&record) => record,
            None => {
                let record = record(&self.content, offset)?;
                self.claim(offset, &record)?;
                self.records.insert(offset, record);
                record
            }
        };
        check_declared(&record, ty).map_err(fail)?;
        let range = usize::try_from(record.data)
            .ok()
            .and_then(|start| Some(start..start.checked_add(usize::try_from(record.bytes).ok()?)?));
        let elements = range.and_then(|range| self.content.slice(range));
        elements.ok_or_else(|| fail(outside(&record, self.content.len() as u64)))
    }

    /// Claims the bytes of a record, which must not overlap other records.
    fn claim(&mut self, offset: u64, record: &Record) -> Result<()> {
        let ranges =
            [(offset, offset + HEADER_BYTES as u64), (record.data, record.data + record.bytes)];
        for (start, end) in ranges {
            if start == end {
                continue;
            }
            let before = self.taken.range(..end).next_back();
            if let Some((&other, &other_end)) = before.filter(|&(_, &other_end)| other_end > start)
            {
                let message = format!(
                    "bytes {start} to {end} of a weight overlap bytes {other} to {other_end} of another \
                     weight"
                );
                return Err(Error::new(ErrorKind::Weights, message).at(offset));
            }
            self.taken.insert(start, end);
        }
        Ok(())
    }
}

/// Checks the header of a file and returns its number of records.
pub(super) fn check_header(content: &Buffer) -> Result<u32> {
    let mut bytes = [0; HEADER_BYTES];
    if content.len() < HEADER_BYTES {
        let message = format!(
            "a weight file has a header of {HEADER_BYTES} bytes; this file has only {} bytes",
            content.len()
        );
        return Err(Error::new(ErrorKind::Weights, message).at(0));
    }
    content.read_at(0, &mut bytes).map_err(|error| Error::io("read the weight file", error))?;
    let version = u32_at(&bytes, 4);
    if version != VERSION {
        let message = format!("the weight file must have version {VERSION}, got {version}");
        return Err(Error::new(ErrorKind::Weights, message).at(4));
    }
    Ok(u32_at(&bytes, 0))
}

/// Reads the metadata of a record and checks that the record is within the file.
pub(super) fn record(content: &Buffer, offset: u64) -> Result<Record> {
    let length = content.len() as u64;
    let fail = |message: String| Error::new(ErrorKind::Weights, message).at(offset);
    if offset.checked_add(HEADER_BYTES as u64).is_none_or(|end| end > length) {
        return Err(fail(format!(
            "the offset {offset} of a weight is beyond the file's {length} bytes"
        )));
    }
    if offset < HEADER_BYTES as u64 {
        return Err(fail(format!("the offset {offset} of a weight is inside the file's header")));
    }
    let mut bytes = [0; HEADER_BYTES];
    let start = usize::try_from(offset)
        .map_err(|_| fail(format!("the offset {offset} of a weight is too large")))?;
    content.read_at(start, &mut bytes).map_err(|error| Error::io("read the weight file", error))?;
    let record = Record::from_bytes(&bytes, offset)?;
    if !record.data.is_multiple_of(ALIGNMENT) {
        let message = format!(
            "the offset {} of a weight's elements is not a multiple of {ALIGNMENT}",
            record.data
        );
        return Err(fail(message));
    }
    let end = record.data.checked_add(record.bytes);
    if record.data < HEADER_BYTES as u64 || end.is_none_or(|end| end > length) {
        return Err(fail(outside(&record, length)));
    }
    Ok(record)
}

fn outside(record: &Record, length: u64) -> String {
    let (bytes, data) = (record.bytes, record.data);
    format!("a weight of {bytes} bytes at offset {data} is outside the file of {length} bytes")
}

/// Checks that a record matches its declaration in the program.
fn check_declared(record: &Record, ty: &TensorType) -> std::result::Result<(), String> {
    if code(ty.dtype) != Some(record.code) {
        let found = DType::ALL.into_iter().find(|&dtype| code(dtype) == Some(record.code));
        let found =
            found.map_or(format!("unknown code {}", record.code), |found| format!("`{found}`"));
        return Err(format!(
            "the model declares `{ty}`, but the weight file holds {found} elements"
        ));
    }
    let expected = ty.element_count().and_then(|count| Record::of(ty.dtype, count, 0));
    let Some(expected) = expected else {
        return Err(format!("the model declares `{ty}`, whose size cannot be determined"));
    };
    if (record.bytes, record.padding_bits) != (expected.bytes, expected.padding_bits) {
        return Err(format!(
            "the model declares `{ty}`, {} bytes with {} unused bits; the weight file holds {} bytes \
             with {} unused bits",
            expected.bytes, expected.padding_bits, record.bytes, record.padding_bits
        ));
    }
    Ok(())
}
