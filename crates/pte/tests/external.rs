//! Files of external data.

use coremill_pte::program::ScalarType;
use coremill_pte::{ByteRope, ErrorKind, ExternalData, ExternalEntry, TensorLayout};
use coremill_tensor::Buffer;

fn sample() -> ExternalData {
    let shared = ByteRope::from(vec![1; 24]);
    let entry = |key: &str, data: &ByteRope, sizes: &[i32]| ExternalEntry {
        key: key.to_owned(),
        data: data.clone(),
        layout: Some(TensorLayout {
            scalar_type: ScalarType::Float,
            sizes: sizes.to_vec(),
            dim_order: (0..sizes.len() as u8).rev().collect(),
        }),
        alignment: 1,
        ..ExternalEntry::default()
    };
    let plain = ExternalEntry {
        key: "plain".to_owned(),
        data: ByteRope::from(b"bytes".to_vec()),
        alignment: 1,
        ..ExternalEntry::default()
    };
    let entries = vec![entry("weight", &shared, &[2, 3]), entry("tied", &shared, &[6]), plain];
    ExternalData { entries, ..ExternalData::default() }
}

#[test]
fn round_trips_external_data() {
    let data = sample();
    let bytes = data.to_data().expect("written").to_buffer();
    assert_eq!(ExternalData::from_buffer(&bytes).expect("read"), data);
    assert_eq!(data.get("tied").map(|entry| entry.data.len()), Some(24));
    assert_eq!(data.get("other"), None);
    let ones = [1; 24];
    let found = bytes.as_bytes().windows(24).filter(|window| *window == ones).count();
    assert_eq!(found, 1, "shared data is stored once");

    let empty = ExternalData::default();
    let bytes = empty.to_data().expect("written").to_buffer();
    assert_eq!(ExternalData::from_buffer(&bytes).expect("read"), empty);

    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("weights.ptd");
    data.write(&path, &Default::default()).expect("written");
    assert_eq!(ExternalData::read(&path).expect("read"), data);
}

#[test]
fn rejects_truncated_and_invalid_external_data() {
    let bytes = sample().to_data().expect("written").to_buffer().as_bytes().to_vec();
    for length in 0..bytes.len() {
        let error = ExternalData::from_buffer(&Buffer::from(bytes[..length].to_vec()));
        error.expect_err("the file is truncated");
    }
    let mut invalid = sample();
    invalid.entries[1].key = "weight".to_owned();
    let error = invalid.to_data().expect_err("duplicate key");
    assert_eq!(error.to_string(), "`weight`: there are two entries with this name");
    let mut invalid = sample();
    invalid.entries[1].layout.as_mut().expect("a tensor").sizes[0] = 7;
    let error = invalid.to_data().expect_err("the sizes do not match the data");
    assert_eq!(error.kind(), ErrorKind::Unwritable);
    assert_eq!(error.to_string(), "`tied`: a tensor of sizes [7] has 28 bytes, got 24");
    let mut invalid = sample();
    invalid.entries[2].alignment = 24;
    let error = invalid.to_data().expect_err("24 is not a power of two");
    assert!(error.to_string().contains("must be a power of two, got 24"), "{error}");
    let mut invalid = sample();
    invalid.entries[0].layout.as_mut().expect("a tensor").dim_order = vec![0, 0];
    assert!(invalid.to_data().is_err());
}
