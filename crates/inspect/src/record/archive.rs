//! Records as zip archives.

use std::io::{self, Write};
use std::path::Path;

use coremill_coreml::ComputeUnits;
use coremill_engine::Array;
use coremill_io::{printable_line, write_anew};
use coremill_session::arrays;
use coremill_tensor::Buffer;
use coremill_zip::{Archive, Writer};

use super::{FORMAT_VERSION, Record};
use crate::error::{Error, ErrorKind};
use crate::placement::ComputePlan;

const RECORD: &str = "record.json";
/// Prefix of the included model's files.
const MODEL: &str = "model.mlpackage/";
/// Maximum size in bytes of a JSON entry: a plan of a million operations has less.
const MAX_JSON_BYTES: u64 = 256 << 20;

/// The part of a record that all versions have.
#[derive(serde::Deserialize)]
struct Version {
    format_version: u32,
}

/// Writes a record. An existing file is replaced atomically.
pub fn write(path: &Path, record: &Record) -> Result<(), Error> {
    let written = write_anew(path, false, |file| {
        let mut to = io::BufWriter::new(file);
        write_to(&mut to, record)?;
        to.flush()
    });
    written.map_err(|error| Error::io("write", path, error))
}

/// The bytes of a record's archive.
pub fn to_bytes(record: &Record) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    write_to(&mut bytes, record)
        .map_err(|error| Error::new(format!("cannot write the record: {error}")))?;
    Ok(bytes)
}

fn write_to(to: &mut dyn Write, record: &Record) -> io::Result<()> {
    let mut writer = Writer::new(to);
    let json = |value: serde_json::Result<Vec<u8>>| value.map_err(io::Error::other);
    writer.add(RECORD, &[&json(serde_json::to_vec_pretty(record))?])?;
    for (index, case) in record.cases.iter().enumerate() {
        writer.add(&inputs_entry(index), &[&npz(&case.inputs)?])?;
    }
    for device in &record.devices {
        if let Some(plan) = &device.plan {
            writer.add(&plan_entry(&device.units), &[&json(serde_json::to_vec_pretty(plan))?])?;
        }
        for run in &device.runs {
            writer.add(&outputs_entry(&device.units, run.case), &[&npz(&run.outputs)?])?;
        }
    }
    for (path, content) in record.files.iter().flatten() {
        writer.add(&format!("{MODEL}{path}"), &[content.as_bytes()])?;
    }
    writer.finish().map(|_| ())
}

/// Whether a file is a record.
pub fn is_record(path: &Path) -> bool {
    let is_file = path.metadata().is_ok_and(|metadata| metadata.is_file());
    let archive = || Archive::open(Buffer::map(path).ok()?).ok();
    is_file && archive().is_some_and(|archive| archive.contains(RECORD))
}

/// Reads a record.
pub fn read(path: &Path) -> Result<Record, Error> {
    let bytes = Buffer::map(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Error::missing(path),
        _ => Error::io("read", path, error),
    })?;
    let record = from_bytes(bytes.clone()).map_err(|error| error.within(path));
    bytes.check().map_err(|error| Error::io("read", path, error)).and(record)
}

/// Parses a record.
pub fn from_bytes(bytes: Buffer) -> Result<Record, Error> {
    let archive = Archive::open(bytes).map_err(|error| of_zip(&error))?;
    if !archive.contains(RECORD) {
        return Err(invalid("a record must contain the entry `record.json`")
            .with_hint("records are written on a Mac"));
    }
    let json = archive.read(RECORD, MAX_JSON_BYTES).map_err(|error| of_zip(&error))?;
    let wrong = |error: serde_json::Error| invalid(&format!("`{RECORD}`: {error}"));
    // Later versions may have other fields.
    let Version { format_version: found } =
        serde_json::from_slice(json.as_bytes()).map_err(wrong)?;
    if found != FORMAT_VERSION {
        return Err(invalid(&format!("`format_version` must be {FORMAT_VERSION}, got {found}")));
    }
    let mut record: Record = serde_json::from_slice(json.as_bytes()).map_err(wrong)?;
    for (index, case) in record.cases.iter_mut().enumerate() {
        case.inputs = read_npz(&archive, &inputs_entry(index))?;
    }
    let cases = record.cases.len();
    for device in &mut record.devices {
        // The name is part of paths.
        let units = device.units.parse::<ComputeUnits>().map_err(|error| {
            invalid(&printable_line(&error.to_string())).with_hint_of(error.hint())
        })?;
        let entry = plan_entry(units.name());
        if archive.contains(&entry) {
            let json = archive.read(&entry, MAX_JSON_BYTES).map_err(|error| of_zip(&error))?;
            let text = std::str::from_utf8(json.as_bytes());
            let text = text.map_err(|error| invalid(&format!("`{entry}`: {error}")))?;
            let plan = ComputePlan::from_json(text);
            device.plan =
                Some(plan.map_err(|error| invalid(&format!("`{entry}`: {}", error.message)))?);
        }
        for run in &mut device.runs {
            if run.case >= cases {
                let case = run.case;
                return Err(invalid(&format!(
                    "case {case} is out of range; the number of cases is {cases}"
                )));
            }
            run.outputs = read_npz(&archive, &outputs_entry(units.name(), run.case))?;
        }
    }
    let mut files = Vec::new();
    for name in archive.names().filter(|_| record.model.included) {
        if let Some(path) = name.strip_prefix(MODEL) {
            let content = archive.read(name, arrays::MAX_BYTES).map_err(|error| of_zip(&error))?;
            files.push((path.to_owned(), content));
        }
    }
    record.files = record.model.included.then_some(files);
    Ok(record)
}

fn read_npz(archive: &Archive, entry: &str) -> Result<Vec<(String, Array)>, Error> {
    let bytes = archive.read(entry, arrays::MAX_BYTES).map_err(|error| of_zip(&error))?;
    arrays::from_npz(bytes)
        .map_err(|error| invalid(&format!("`{entry}`: {error}")).with_hint_of(error.hint()))
}

fn npz(arrays: &[(String, Array)]) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    arrays::to_npz(&mut bytes, arrays)?;
    Ok(bytes)
}

fn inputs_entry(case: usize) -> String {
    format!("inputs/{case}.npz")
}

fn outputs_entry(units: &str, case: usize) -> String {
    format!("outputs/{units}/{case}.npz")
}

fn plan_entry(units: &str) -> String {
    format!("plans/{units}.json")
}

fn invalid(message: &str) -> Error {
    Error::new(message).with_kind(ErrorKind::Format)
}

fn of_zip(error: &coremill_zip::Error) -> Error {
    invalid(&error.to_string()).with_hint_of(error.hint())
}
