//! Checks of the fuzz targets for ExecuTorch's files: no reader panics, and rewritten programs are read as equal.

use coremill_pte::coreml::{Description, Directory, Payload, Reference};
use coremill_pte::{ByteRope, ExternalData, from_buffer, to_data};
use coremill_tensor::Buffer;

pub(crate) fn program(data: &[u8]) {
    let Ok(program) = from_buffer(&Buffer::from(data.to_vec())) else { return };
    for delegate in program.plans.iter().flat_map(|plan| &plan.delegates) {
        if let Ok(payload) = Payload::of(&program, delegate) {
            let _ = (
                payload.interface().is_ok(),
                payload.model().is_ok(),
                payload.debug_info().is_ok(),
            );
        }
    }
    // Unknown fields that may contain references cannot be written.
    let Ok(written) = to_data(&program) else { return };
    let again = from_buffer(&written.to_buffer()).expect("written data is valid");
    // Programs may contain NaN, which is not equal to itself, so bytes are compared.
    assert!(
        to_data(&again).expect("written data can be written again") == written,
        "it reads the same"
    );
}

pub(crate) fn payload(data: &[u8]) {
    let data = Buffer::from(data.to_vec());
    if let Ok(Some(reference)) = Reference::read(&data) {
        let again = Reference::read(&Buffer::from(reference.to_bytes()));
        assert_eq!(again.expect("written data is valid"), Some(reference));
    }
    let data = ByteRope::from(data);
    let Ok(directory) = Directory::read(&data) else { return };
    let _ = Description::of(&directory).is_ok();
    let written = directory.to_data().expect("data that was read can be written");
    let again = Directory::read(&written).expect("written data is valid");
    assert_eq!(again, directory);
    if let Ok(payload) = Payload::read(&data) {
        let _ =
            (payload.interface().is_ok(), payload.model().is_ok(), payload.debug_info().is_ok());
        let metadata = Buffer::from(payload.metadata.to_bytes());
        let again = coremill_pte::coreml::Metadata::read(&metadata);
        assert_eq!(again.expect("written data is valid"), payload.metadata);
    }
}

pub(crate) fn external(data: &[u8]) {
    let Ok(read) = ExternalData::from_buffer(&Buffer::from(data.to_vec())) else { return };
    let Ok(written) = read.to_data() else { return };
    let again = ExternalData::from_buffer(&written.to_buffer()).expect("written data is valid");
    assert!(
        again.to_data().expect("written data can be written again") == written,
        "it reads the same"
    );
}
