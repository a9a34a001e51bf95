use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use coremill_io::create_directories_below;
use coremill_tensor::{Buffer, Fingerprint};

use super::files::{check_header, record};
use super::{ALIGNMENT, DEFAULT_FILE, HEADER_BYTES, MODEL_PATH, Record, code, header, stream};
use crate::package::directory;
use crate::package::error::{Error, ErrorKind, shortened};
use coremill_mil::ir::{Binding, Constant, ConstantData, Program, TensorType, Weight, WeightPlace};

type Result<T> = std::result::Result<T, Error>;

/// Maximum number of bytes in memory during a copy.
const WINDOW: usize = 1 << 20;

/// Number of bytes compared at the beginning, in the middle and at the end of weights, which distinguish most
/// weights.
const SAMPLE: usize = 64;

/// Locations of all weights of a program in the files to be written.
///
/// If all weights of a file come unchanged from one source file, that file is copied with the same offsets.
/// Otherwise weights are stored in the order of the program, and equal weights are stored once. A weight is
/// written to the file from which it was read, or to `@model_path/weights/weight.bin`.
pub struct Layout<'p> {
    files: Vec<PlannedWeight>,
    /// Locations of the weights, by their address in the borrowed program.
    places: HashMap<*const Weight, WeightPlace>,
    program: std::marker::PhantomData<&'p Program>,
}

struct PlannedWeight {
    /// Path relative to `@model_path`.
    path: String,
    content: Content,
}

enum Content {
    /// A copy of the whole file behind this buffer.
    Unchanged(Buffer),
    /// Records with ascending offsets.
    Fresh(Vec<(u64, Record, Buffer)>),
}

/// A written file.
pub(crate) struct WrittenFile {
    /// Path relative to `@model_path`.
    pub(crate) path: String,
    /// Hash of the contents.
    pub(crate) hash: blake3::Hash,
}

type Group<'p> = Vec<(&'p Weight, &'p TensorType)>;

impl<'p> Layout<'p> {
    /// Assigns locations to the weights of a program.
    pub fn plan(program: &'p Program) -> Result<Layout<'p>> {
        Layout::plan_all([program])
    }

    /// Assigns locations to the weights of several programs that share weight files.
    pub(crate) fn plan_all(programs: impl IntoIterator<Item = &'p Program>) -> Result<Layout<'p>> {
        let mut groups: BTreeMap<Arc<str>, Group<'p>> = BTreeMap::new();
        let default: Arc<str> = DEFAULT_FILE.into();
        for program in programs {
            for_each_weight(program, &mut |weight, ty| {
                let file = weight.place.as_ref().map_or(&default, |place| &place.file);
                groups.entry(Arc::clone(file)).or_default().push((weight, ty));
                Ok(())
            })?;
        }
        let mut layout =
            Layout { files: Vec::new(), places: HashMap::new(), program: std::marker::PhantomData };
        for (file, group) in groups {
            let path = file.strip_prefix(MODEL_PATH).unwrap_or_default();
            if let Err(problem) = directory::check_path(path) {
                let shown = shortened(&file);
                let message = format!(
                    "a weight is stored in the file `{shown}`, whose path under `{MODEL_PATH}` {problem}"
                );
                return Err(Error::new(ErrorKind::Unwritable, message));
            }
            let content = match unchanged(&group) {
                Some(source) => {
                    for (weight, _) in group {
                        if let Some(place) = &weight.place {
                            layout.places.insert(weight, place.clone());
                        }
                    }
                    Content::Unchanged(source)
                }
                None => layout.fresh(&file, group)?,
            };
            layout.files.push(PlannedWeight { path: path.to_owned(), content });
        }
        Ok(layout)
    }

    /// The location of a weight of the program.
    pub fn place(&self, weight: &Weight) -> Option<WeightPlace> {
        self.places.get(&std::ptr::from_ref(weight)).cloned()
    }

    /// Paths, relative to `@model_path`, of the files to write.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.files.iter().map(|file| file.path.as_str())
    }

    /// Writes the files below a directory, which `@model_path` refers to.
    pub fn write(&self, directory: &Path) -> Result<()> {
        self.write_and_hash(directory, false).map(|_| ())
    }

    pub(crate) fn write_and_hash(
        &self,
        directory: &Path,
        durable: bool,
    ) -> Result<Vec<WrittenFile>> {
        let mut written = Vec::new();
        for planned in &self.files {
            let path = directory.join(&planned.path);
            let failed = |error| Error::io(format!("write {}", planned.path), error);
            if let Some(parent) = Path::new(&planned.path).parent() {
                create_directories_below(directory, parent).map_err(failed)?;
            }
            let file = File::create_new(&path).map_err(failed)?;
            let hash = match &planned.content {
                Content::Unchanged(source) => copy_and_hash(source, &file),
                Content::Fresh(records) => write_records(records, &file),
            };
            let hash = hash.map_err(failed)?;
            if durable {
                file.sync_all().map_err(failed)?;
            }
            written.push(WrittenFile { path: planned.path.clone(), hash });
        }
        Ok(written)
    }

    /// The contents of each file, without copying weights.
    pub(crate) fn join(&self) -> Vec<Vec<Buffer>> {
        let joined = |planned: &PlannedWeight| match &planned.content {
            Content::Unchanged(source) => vec![source.clone()],
            Content::Fresh(records) => join(records),
        };
        self.files.iter().map(joined).collect()
    }

    /// The hashes of the files. This reads all weights.
    pub(crate) fn hash(&self) -> Result<Vec<WrittenFile>> {
        self.hashed(|_, length, fill| stream::hash_of(length, fill))
    }

    /// Writes each file to memory at the offset for its path, and returns the hashes.
    pub(crate) fn write_to(
        &self,
        target: &mut [u8],
        place: &dyn Fn(&str) -> Option<Range<usize>>,
    ) -> Result<Vec<WrittenFile>> {
        self.hashed(|path, length, fill| {
            let target = place(path).and_then(|place| target.get_mut(place));
            match target.filter(|target| target.len() as u64 == length) {
                Some(target) => stream::write_to(target, fill),
                None => Err(io::Error::other(format!(
                    "the target does not have {length} bytes for this file"
                ))),
            }
        })
    }

    fn hashed(
        &self,
        mut hash: impl FnMut(&str, u64, &stream::Fill<'_>) -> io::Result<blake3::Hash>,
    ) -> Result<Vec<WrittenFile>> {
        let mut written = |planned: &PlannedWeight| {
            let path = planned.path.clone();
            let hash = match &planned.content {
                Content::Unchanged(source) => {
                    hash(&path, source.len() as u64, &|offset, window| {
                        source.read_at(offset as usize, window)
                    })
                }
                Content::Fresh(records) => {
                    hash(&path, length_of(records), &|offset, window| fill(records, offset, window))
                }
            };
            let failed = |error| Error::io(format!("read the contents of {path}"), error);
            Ok(WrittenFile { hash: hash.map_err(failed)?, path })
        };
        self.files.iter().map(&mut written).collect()
    }

    fn fresh(&mut self, file: &Arc<str>, group: Group<'p>) -> Result<Content> {
        let mut described = Vec::new();
        for (weight, ty) in group {
            let fail = |message: String| Error::new(ErrorKind::Unwritable, message);
            let record = ty.element_count().and_then(|count| Record::of(ty.dtype, count, 0));
            let Some(record) = record else {
                return Err(fail(format!("a `{ty}` cannot be stored in a weight file")));
            };
            let Some(data) = &weight.data else {
                let message = format!("a weight of type `{ty}` was read without its elements");
                return Err(fail(message));
            };
            if data.len() as u64 != record.bytes {
                let message = format!(
                    "a weight of type `{ty}` requires {} bytes, got {}",
                    record.bytes,
                    data.len()
                );
                return Err(fail(message));
            }
            described.push((weight, record, data));
        }

        let equal = equal_ones(&described).map_err(|error| Error::io("read a weight", error))?;
        let mut offsets: Vec<Option<u64>> = vec![None; described.len()];
        let mut records = Vec::new();
        let mut end = HEADER_BYTES as u64;
        for (index, (weight, record, data)) in described.into_iter().enumerate() {
            let offset = match offsets[equal[index]] {
                Some(known) => known,
                None => {
                    let too_large = || {
                        Error::new(ErrorKind::Unwritable, format!("`{file}` exceeds 2^64 bytes"))
                    };
                    let offset = end.checked_next_multiple_of(ALIGNMENT).ok_or_else(too_large)?;
                    let data_offset =
                        offset.checked_add(HEADER_BYTES as u64).ok_or_else(too_large)?;
                    end = data_offset.checked_add(record.bytes).ok_or_else(too_large)?;
                    records.push((offset, Record { data: data_offset, ..record }, data.clone()));
                    offsets[equal[index]] = Some(offset);
                    offset
                }
            };
            self.places.insert(weight, WeightPlace { file: Arc::clone(file), offset });
        }
        if u32::try_from(records.len()).is_err() {
            let message = format!("`{file}` would hold 2^32 weights or more");
            return Err(Error::new(ErrorKind::Unwritable, message));
        }
        Ok(Content::Fresh(records))
    }
}

/// Code of the element type, number of bytes, and number of padding bits in the last byte.
type Size = (u32, u64, u64);

/// For each weight, the index of the first equal weight, which is often the weight itself.
///
/// Comparing lazily computed elements is expensive. Weights computed in the same way are equal, and weights
/// with different samples are not. Only the others are hashed, and compared if the hashes are equal.
fn equal_ones(described: &[(&Weight, Record, &Buffer)]) -> io::Result<Vec<usize>> {
    let mut equal: Vec<usize> = (0..described.len()).collect();
    let mut sizes: HashMap<Size, Vec<usize>> = HashMap::new();
    for (index, (_, record, _)) in described.iter().enumerate() {
        let size = (record.code, record.bytes, record.padding_bits);
        sizes.entry(size).or_default().push(index);
    }
    for mut indices in sizes.into_values().filter(|indices| indices.len() > 1) {
        let mut alike: HashMap<Fingerprint, usize> = HashMap::new();
        indices.retain(|&index| match alike.entry(described[index].2.identity()) {
            Entry::Occupied(known) => {
                equal[index] = *known.get();
                false
            }
            Entry::Vacant(vacant) => {
                vacant.insert(index);
                true
            }
        });
        if alike.len() == 1 {
            continue;
        }
        let mut groups = vec![indices];
        for place in samples(described[groups[0][0]].2.len()) {
            let mut sampled: HashMap<(usize, Vec<u8>), Vec<usize>> = HashMap::new();
            for (group, indices) in groups.into_iter().enumerate() {
                for index in indices {
                    let mut sample = vec![0; place.len()];
                    described[index].2.read_at(place.start, &mut sample)?;
                    sampled.entry((group, sample)).or_default().push(index);
                }
            }
            groups = sampled.into_values().filter(|indices| indices.len() > 1).collect();
        }
        for indices in groups {
            let mut hashes: HashMap<blake3::Hash, usize> = HashMap::new();
            for index in indices {
                let hash = stream::hash(described[index].2)?;
                let known = *hashes.entry(hash).or_insert(index);
                if known != index && described[known].2 == described[index].2 {
                    equal[index] = known;
                }
            }
        }
    }
    // Weights computed in the same way follow one that was found to equal an earlier weight.
    for index in 0..equal.len() {
        equal[index] = equal[equal[index]];
    }
    Ok(equal)
}

/// Ranges of sample bytes; all bytes if there are few.
fn samples(length: usize) -> impl Iterator<Item = Range<usize>> {
    let starts: &[usize] = match length {
        0..=SAMPLE => &[0],
        _ => &[0, 1, 2],
    };
    starts.iter().map(move |&at| {
        let start = at * length.saturating_sub(SAMPLE) / 2;
        start..length.min(start + SAMPLE)
    })
}

/// The file from which a group of weights was read, if they are its complete contents at unchanged offsets.
fn unchanged(group: &Group<'_>) -> Option<Buffer> {
    let source = group.first()?.0.data.as_ref()?;
    let file = source.file_span()?.file;
    let whole = source.whole_file()?;
    let mut seen: HashMap<u64, Record> = HashMap::new();
    for (weight, ty) in group {
        let span = weight.data.as_ref()?.file_span()?;
        let offset = weight.place.as_ref()?.offset;
        if !std::ptr::eq(span.file, file) {
            return None;
        }
        let found = match seen.entry(offset) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(vacant) => *vacant.insert(record(&whole, offset).ok()?),
        };
        let expected = Record::of(ty.dtype, ty.element_count()?, 0)?;
        let expected = Record { data: span.offset, ..expected };
        if found != expected || span.length != expected.bytes || code(ty.dtype) != Some(found.code)
        {
            return None;
        }
    }
    let records = check_header(&whole).ok()?;
    (records as usize == seen.len()).then_some(whole)
}

/// Calls `visit` for every weight of every reachable block, with functions sorted by name.
fn for_each_weight<'p>(
    program: &'p Program,
    visit: &mut impl FnMut(&'p Weight, &'p TensorType) -> Result<()>,
) -> Result<()> {
    let mut functions: Vec<_> = program.functions.iter().collect();
    functions.sort_by(|left, right| left.name.cmp(&right.name));
    for function in functions {
        for (block, _) in function.blocks_in_order() {
            let block = function.block(block);
            for &op in &block.ops {
                let op = function.op(op);
                for (_, binding) in op.all_bindings() {
                    if let Binding::Literal(constant) = binding {
                        weights_of(constant, visit)?;
                    }
                }
                op.attributes.iter().try_for_each(|(_, constant)| weights_of(constant, visit))?;
            }
            block.attributes.iter().try_for_each(|(_, constant)| weights_of(constant, visit))?;
        }
        function.attributes.iter().try_for_each(|(_, constant)| weights_of(constant, visit))?;
    }
    program.attributes.iter().try_for_each(|(_, constant)| weights_of(constant, visit))
}

fn weights_of<'p>(
    constant: &'p Constant,
    visit: &mut impl FnMut(&'p Weight, &'p TensorType) -> Result<()>,
) -> Result<()> {
    match &constant.data {
        ConstantData::Weight(weight) => match constant.ty.as_tensor() {
            Some(ty) => visit(weight, ty),
            None => {
                let message = format!("a `{}` cannot be stored in a weight file", constant.ty);
                Err(Error::new(ErrorKind::Unwritable, message))
            }
        },
        ConstantData::Sequence(parts) => {
            parts.iter().try_for_each(|part| weights_of(part, &mut *visit))
        }
        ConstantData::Entries(entries) => entries.iter().try_for_each(|(key, value)| {
            weights_of(key, &mut *visit)?;
            weights_of(value, &mut *visit)
        }),
        ConstantData::Bytes(_) | ConstantData::Strings(_) => Ok(()),
    }
}

/// Copies a file and hashes its contents at the same time.
fn copy_and_hash(source: &Buffer, to: &File) -> io::Result<blake3::Hash> {
    std::thread::scope(|scope| {
        let hash = scope.spawn(|| stream::hash(source));
        let copied = copy_file(source, to);
        let hash = hash.join().unwrap_or_else(|_| Err(io::Error::other("hashing panicked")));
        copied.and(hash)
    })
}

/// Copies bytes; in the kernel if they come from a file.
pub(crate) fn copy_file(source: &Buffer, mut to: &File) -> io::Result<()> {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    if let Some(span) = source.file_span() {
        let (mut from_offset, mut left) = (span.offset, span.length);
        while left > 0 {
            let length = usize::try_from(left).unwrap_or(usize::MAX).min(1 << 30);
            match rustix::fs::copy_file_range(span.file, Some(&mut from_offset), to, None, length) {
                Ok(copied @ 1..) => left -= copied as u64,
                // Not all pairs of file systems support this. If nothing was copied yet, fall back to a
                // normal copy.
                Ok(_) | Err(_) if left == span.length => break,
                Ok(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) => return Err(error.into()),
            }
        }
        if left == 0 {
            return Ok(());
        }
    }
    source.for_each_window(0..source.len(), WINDOW, &mut |bytes| to.write_all(bytes))
}

/// Writes a file of records and hashes its contents at the same time.
fn write_records(records: &[(u64, Record, Buffer)], file: &File) -> io::Result<blake3::Hash> {
    let fill = |offset: u64, window: &mut [u8]| fill(records, offset, window);
    stream::write(file, length_of(records), &fill)
}

fn length_of(records: &[(u64, Record, Buffer)]) -> u64 {
    records.last().map_or(HEADER_BYTES as u64, |(_, last, _)| last.data + last.bytes)
}

/// The parts of a file of records: metadata and elements alternately.
fn join(records: &[(u64, Record, Buffer)]) -> Vec<Buffer> {
    let count = u32::try_from(records.len()).unwrap_or(u32::MAX);
    let mut before = header(count).to_vec();
    let mut start = 0;
    let mut parts = Vec::with_capacity(2 * records.len());
    for (at, record, data) in records {
        before.resize((at - start) as usize, 0);
        before.extend(record.to_bytes());
        parts.push(Buffer::from(std::mem::take(&mut before)));
        parts.push(data.clone());
        start = record.data + record.bytes;
    }
    if !before.is_empty() {
        parts.push(Buffer::from(before));
    }
    parts
}

/// Fills a window with the contents of a file of records at an offset.
fn fill(records: &[(u64, Record, Buffer)], offset: u64, window: &mut [u8]) -> io::Result<()> {
    let end = offset + window.len() as u64;
    let count = u32::try_from(records.len()).unwrap_or(u32::MAX);
    let mut filled = 0;
    // The gaps between records are zeros, and so is the unfilled rest after each piece.
    let mut piece = |at: u64, length: u64, write: &mut Piece<'_>| -> io::Result<()> {
        let (start, stop) = (at.max(offset), (at + length).min(end));
        if start >= stop {
            return Ok(());
        }
        let place = (start - offset) as usize..(stop - offset) as usize;
        window[filled..place.start].fill(0);
        filled = place.end;
        write((start - at) as usize, &mut window[place])
    };
    let mut head = header(count);
    piece(0, HEADER_BYTES as u64, &mut |from, to| copy_part(&head, from, to))?;
    let first = records.partition_point(|(_, record, _)| record.data + record.bytes <= offset);
    for (at, record, data) in &records[first..] {
        if *at >= end {
            break;
        }
        head = record.to_bytes();
        piece(*at, HEADER_BYTES as u64, &mut |from, to| copy_part(&head, from, to))?;
        piece(record.data, record.bytes, &mut |from, to| data.read_at(from, to))?;
    }
    window[filled..].fill(0);
    Ok(())
}

/// Writes the contents of a piece, starting at an offset in it.
type Piece<'p> = dyn FnMut(usize, &mut [u8]) -> io::Result<()> + 'p;

fn copy_part(whole: &[u8], from: usize, to: &mut [u8]) -> io::Result<()> {
    to.copy_from_slice(&whole[from..from + to.len()]);
    Ok(())
}
