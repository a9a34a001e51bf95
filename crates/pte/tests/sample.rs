//! Round trips of programs that contain every kind of item.

mod common;

use common::sample;
use coremill_pte::program::{Unknown, UnknownField, Value};
use coremill_pte::{ErrorKind, WriteOptions, from_buffer, read, to_data, write};

#[test]
fn round_trips_program_with_every_item_kind() {
    let program = sample();
    let bytes = to_data(&program).expect("written").to_buffer();
    let again = from_buffer(&bytes).expect("read");
    assert_eq!(again.plans, program.plans);
    assert_eq!(again, program);
    assert_eq!(to_data(&again).expect("written again").to_buffer(), bytes);
}

#[test]
fn durable_write_replaces_file_without_leftovers() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("model.pte");
    std::fs::write(&path, "something else").expect("written");
    let program = sample();
    write(&path, &program, &WriteOptions { durable: true }).expect("written");
    assert_eq!(read(&path).expect("read"), program);
    let names = std::fs::read_dir(directory.path()).expect("a directory");
    assert_eq!(names.count(), 1, "a temporary file is left");
    let bytes = to_data(&program).expect("bytes").to_buffer();
    assert_eq!(std::fs::read(&path).expect("a file"), bytes.as_bytes());
}

#[test]
fn segments_and_constants_are_aligned() {
    let program = sample();
    let bytes = to_data(&program).expect("written").to_buffer();
    let bytes = bytes.as_bytes();
    let word = |at: usize| u64::from_le_bytes(*bytes[at..].first_chunk().expect("8 bytes"));
    assert_eq!(&bytes[4..12], b"ET12eh00");
    assert_eq!((word(24) % 128, word(24) - word(16) < 128), (0, true));
    assert_eq!(word(24) + word(32), bytes.len() as u64);
    let at = |needle: &[u8]| {
        bytes.windows(needle.len()).position(|window| window == needle).expect("found")
    };
    assert_eq!(at(b"second constant!") % 16, 0);
    assert_eq!(at(b"what the delegate is given") % 128, 0);
    assert_eq!(at(b"named bytes") % 128, 0);
}

#[test]
fn empty_data_has_no_segment() {
    let mut program = sample();
    program.constants.clear();
    program.mutable_data.clear();
    program.named_data.clear();
    program.other_segments.clear();
    program.delegate_data = vec![coremill_pte::ByteRope::new()];
    program.plans.truncate(1);
    program.plans[0].values.truncate(8);
    for value in &mut program.plans[0].values {
        *value = Value::Int(1);
    }
    program.plans[0].chains.clear();
    program.plans[0].delegates.truncate(1);
    let bytes = to_data(&program).expect("written").to_buffer();
    assert_ne!(&bytes.as_bytes()[8..12], b"eh00");
    assert_eq!(from_buffer(&bytes).expect("read"), program);
}

#[test]
fn rejects_writing_unknown_reference_fields() {
    let mut program = sample();
    let field = UnknownField { slot: 12, bytes: vec![40, 0, 0, 0], may_refer: true };
    program.plans[0].unknown = Unknown(vec![field]);
    let error = to_data(&program).expect_err("it cannot be written");
    assert_eq!(error.kind(), ErrorKind::Unwritable);
    assert_eq!(
        error.to_string(),
        "method `forward`: the method has an unknown field 12, which may contain an offset to other \
         data in the file"
    );
}
