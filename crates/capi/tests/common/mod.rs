//! Models for the tests, and helpers that call the C interface.
#![expect(unsafe_code, reason = "calls a C function")]
#![allow(
    dead_code,
    clippy::allow_attributes,
    reason = "each test uses only some of these functions"
)]

use std::ffi::{CStr, CString};
use std::path::{Path, PathBuf};

use coremill_capi::error::*;
use coremill_capi::method::*;
use coremill_capi::model::*;
use coremill_capi::*;
use coremill_mil::{model, text};
use coremill_mlpackage::package;
use coremill_verify as verify;

#[path = "../../../../fuzz/src/payloads.rs"]
pub(crate) mod payloads;
pub(crate) use payloads::*;

/// Writes a program as a package.
pub(crate) fn package(folder: &Path, program: &str) -> PathBuf {
    let path = folder.join("model.mlpackage");
    let program = text::parse(program, &text::NoWeights).expect("it is MIL");
    let model = model::describe(program).expect("it is complete");
    let verified = verify::verify(&model).expect("it is sound");
    package::write(&path, &verified, &Default::default()).expect("it can be written");
    path
}

/// Bytes that need no release.
pub(crate) fn bytes(of: &[u8]) -> CoremillBytes {
    CoremillBytes {
        data: of.as_ptr().cast(),
        length: of.len(),
        release: None,
        context: std::ptr::null_mut(),
    }
}

pub(crate) fn message() -> String {
    // SAFETY: the text is valid and NUL-terminated.
    unsafe { CStr::from_ptr(coremill_error_message()) }.to_str().expect("UTF-8").to_owned()
}

/// Message of a failed call.
#[track_caller]
pub(crate) fn fails(status: CoremillStatus, expected: CoremillStatus) -> String {
    assert_eq!(status, expected, "{}", message());
    message()
}

#[track_caller]
pub(crate) fn ok(status: CoremillStatus) {
    assert_eq!(status, CoremillStatus::Ok, "{}", message());
}

#[track_caller]
pub(crate) fn load(of: &[u8]) -> CoremillModel {
    let mut model = CoremillModel { id: 0 };
    // SAFETY: the bytes outlive the model in every test.
    ok(unsafe {
        coremill_model_load_bytes(bytes(of), std::ptr::null(), std::ptr::null(), 0, &mut model)
    });
    model
}

#[track_caller]
pub(crate) fn load_file(path: &Path) -> CoremillModel {
    let path = CString::new(path.to_str().expect("UTF-8")).expect("no zero");
    let mut model = CoremillModel { id: 0 };
    // SAFETY: the text is NUL-terminated.
    ok(unsafe { coremill_model_load_file(path.as_ptr(), std::ptr::null(), 0, &mut model) });
    model
}

#[track_caller]
pub(crate) fn method(model: CoremillModel) -> CoremillMethod {
    let mut method = CoremillMethod { id: 0 };
    // SAFETY: the name may be null.
    ok(unsafe { coremill_method_load(model, std::ptr::null(), &mut method) });
    method
}

/// A tensor in the memory of `elements`.
pub(crate) fn tensor<T>(elements: &mut [T], scalar_type: i32, sizes: &[u64]) -> CoremillTensor {
    let mut tensor = CoremillTensor {
        data: elements.as_mut_ptr().cast(),
        length: size_of_val(elements),
        scalar_type,
        rank: sizes.len() as u32,
        sizes: [0; 16],
        dim_order: [0; 16],
    };
    tensor.sizes[..sizes.len()].copy_from_slice(sizes);
    tensor
}

pub(crate) const FLOAT: i32 = 6;
pub(crate) const HALF: i32 = 5;
pub(crate) const INT: i32 = 3;
pub(crate) const LONG: i32 = 4;

pub(crate) fn run(
    method: CoremillMethod,
    inputs: &[CoremillTensor],
    outputs: &mut [CoremillTensor],
) -> CoremillStatus {
    run_with(method, inputs, outputs, None)
}

pub(crate) fn run_with(
    method: CoremillMethod,
    inputs: &[CoremillTensor],
    outputs: &mut [CoremillTensor],
    hooks: Option<&CoremillHooks>,
) -> CoremillStatus {
    let hooks = hooks.map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the arrays and the memory of their tensors are valid.
    unsafe {
        coremill_method_execute(
            method,
            inputs.as_ptr(),
            inputs.len(),
            outputs.as_mut_ptr(),
            outputs.len(),
            hooks,
        )
    }
}
