//! Invalid input results in errors: damaged models, invalid handles, arbitrary options.
//!
//! `COREMILL_CALLS_SECONDS` extends the random calls beyond the time available in CI.
#![expect(unsafe_code, reason = "calls a C function")]

mod common;
#[path = "../../../fuzz/src/interface.rs"]
mod interface;
#[path = "../../../fuzz/src/seeds.rs"]
mod seeds;

use std::ffi::CString;
use std::time::{Duration, Instant};

use common::*;
use coremill_capi::error::CoremillStatus as Status;
use coremill_capi::method::*;
use coremill_capi::model::*;
use coremill_capi::options::coremill_options_check;
use coremill_capi::{CoremillOption, CoremillTensor};

/// Deterministic random numbers.
struct Random(u64);

impl Random {
    fn next(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % below
    }
}

fn try_load(bytes_of: &[u8]) -> Result<CoremillModel, Status> {
    let mut model = CoremillModel { id: 0 };
    // SAFETY: the bytes outlive the model: the caller frees it.
    let status = unsafe {
        coremill_model_load_bytes(
            bytes(bytes_of),
            std::ptr::null(),
            std::ptr::null(),
            0,
            &mut model,
        )
    };
    if status == Status::Ok { Ok(model) } else { Err(status) }
}

/// Runs a damaged model if it can be loaded.
fn exercise(bytes: &[u8]) -> Status {
    let model = match try_load(bytes) {
        Ok(model) => model,
        Err(status) => return status,
    };
    let mut method = CoremillMethod { id: 0 };
    // SAFETY: the name may be null.
    let mut status = unsafe { coremill_method_load(model, std::ptr::null(), &mut method) };
    if status == Status::Ok {
        let (mut x, mut y) = ([1.0f32; 8], [0.0f32; 8]);
        let inputs: Vec<CoremillTensor> = vec![tensor(&mut x, FLOAT, &[2, 3])];
        status = run(method, &inputs, &mut [tensor(&mut y, FLOAT, &[2, 3])]);
        ok(coremill_method_free(method));
    }
    ok(coremill_model_free(model));
    status
}

#[test]
fn interface_fuzz_seeds_do_not_panic() {
    seeds::run(env!("CARGO_MANIFEST_DIR"), "interface", |data| {
        interface::calls(data);
    });
}

#[test]
fn random_call_sequences_do_not_panic() {
    let mut random = Random(5);
    let seconds =
        std::env::var("COREMILL_CALLS_SECONDS").map_or(0, |text| text.parse().expect("a number"));
    let until = Instant::now() + Duration::from_secs(seconds);
    let (mut runs, mut rounds) = (0, 0);
    while rounds < 400 || Instant::now() < until {
        let data: Vec<u8> = (0..240).map(|_| random.next(256) as u8).collect();
        runs += interface::calls(&data);
        rounds += 1;
    }
    println!("{rounds} sequences of calls, in which {runs} runs succeed");
    assert!(runs > rounds / 10, "only {runs} runs succeed: the test must reach kernels");
}

#[test]
fn corrupt_models_never_cause_internal_error() {
    let whole = payload(TWICE);
    assert_eq!(exercise(&whole), Status::Ok);
    let mut random = Random(7);
    let mut rejected = 0;
    for round in 0..600 {
        let mut bytes = whole.clone();
        match round % 3 {
            0 => bytes.truncate(random.next(whole.len())),
            // The end of the payload contains the description.
            1 => {
                let from = whole.len() - 600.min(whole.len());
                let at = from + random.next(whole.len() - from);
                bytes[at] = random.next(256) as u8;
            }
            _ => {
                for _ in 0..1 + random.next(8) {
                    let at = random.next(bytes.len());
                    bytes[at] ^= 1 << random.next(8);
                }
            }
        }
        let status = exercise(&bytes);
        assert_ne!(status, Status::Internal, "{}", message());
        rejected += usize::from(status != Status::Ok);
    }
    assert!(rejected > 300, "only {rejected} of 600 damaged models were rejected");
    let references: [&[u8]; 4] = [
        b"CMJR",
        b"CMJR{\"version\": 1, \"key\": \"k\", \"functionName\": \"f\"}",
        b"CMJR{\"version\": 9, \"key\": \"k\", \"functionName\": \"f\"}",
        b"\0\0\0\0ET12\0\0\0\0",
    ];
    for bytes in references {
        assert!(matches!(try_load(bytes), Err(Status::InvalidModel | Status::NotFound)));
    }
}

#[test]
fn rejects_invalid_handles_and_null_pointers() {
    let payload = payload(TWICE);
    let model = load(&payload);
    let real = method(model);
    let mut random = Random(11);
    let ids = (0..200).map(|_| ((random.next(1 << 31) as u64) << 32) | random.next(1 << 31) as u64);
    for id in ids.chain([0, u64::MAX, model.id, real.id + (1 << 20)]) {
        if id != real.id {
            let method = CoremillMethod { id };
            fails(run(method, &[], &mut []), Status::InvalidHandle);
            fails(coremill_method_free(method), Status::InvalidHandle);
            fails(coremill_method_states_copy(method, real), Status::InvalidHandle);
        }
        if id != model.id {
            let mut count = 0;
            // SAFETY: the pointer refers to a number.
            let status = unsafe { coremill_model_method_count(CoremillModel { id }, &mut count) };
            fails(status, Status::InvalidHandle);
        }
    }
    ok(coremill_method_free(real));
    let error = fails(coremill_method_free(real), Status::InvalidHandle);
    assert_eq!(
        error,
        format!("{} is not the handle of a method, or the handle was freed", real.id)
    );
    // Null for required arguments.
    // SAFETY: null pointers are rejected before use.
    unsafe {
        let status = coremill_model_method_count(model, std::ptr::null_mut());
        fails(status, Status::InvalidArgument);
        let status = coremill_method_load(model, std::ptr::null(), std::ptr::null_mut());
        fails(status, Status::InvalidArgument);
        let status =
            coremill_model_load_file(std::ptr::null(), std::ptr::null(), 0, std::ptr::null_mut());
        assert_eq!(fails(status, Status::InvalidArgument), "`path` is null");
        let status = coremill_options_check(std::ptr::null(), 3);
        fails(status, Status::InvalidArgument);
    }
    ok(coremill_model_free(model));
}

#[test]
fn options_check_rejects_invalid_keys_and_values() {
    let check = |key: &str, value: &str| {
        let (key, value) =
            (CString::new(key).expect("no NUL"), CString::new(value).expect("no NUL"));
        let option = CoremillOption { key: key.as_ptr(), value: value.as_ptr() };
        // SAFETY: both strings are NUL-terminated.
        unsafe { coremill_options_check(&option, 1) }
    };
    for (key, value) in [
        ("compute_unit", "cpu_and_ne"),
        ("cache_dir", "/somewhere"),
        ("threads", "4"),
        ("precision", "faithful"),
    ] {
        ok(check(key, value));
    }
    let invalid = [
        (
            "compute_unit",
            "gpu",
            "must be `cpu_only`, `cpu_and_gpu`, `cpu_and_ne` or `all`, got `gpu`",
        ),
        ("cache_dir", "", "must be a directory, got ``"),
        ("threads", "-1", "must be from 0 to 4096, got `-1`"),
        ("threads", "99999999999999999999", "must be from 0 to 4096"),
        ("precision", "fp16", "must be `fast`, `rounded`, `ane` or `coreml-cpu`, got `fp16`"),
        ("colour", "blue", "unknown option `colour`; the options are `compute_unit`, `cache_dir`"),
    ];
    for (key, value, expected) in invalid {
        let error = fails(check(key, value), Status::InvalidArgument);
        assert!(error.contains(expected), "{error}");
    }
    let mut random = Random(3);
    for _ in 0..300 {
        let text = |random: &mut Random| -> String {
            (0..random.next(40)).map(|_| char::from(1 + random.next(126) as u8)).collect()
        };
        let (key, value) = (text(&mut random), text(&mut random));
        fails(check(&key, &value), Status::InvalidArgument);
    }
    let not_text = [0xffu8, 0xfe, 0];
    let option = CoremillOption { key: not_text.as_ptr().cast(), value: c"1".as_ptr() };
    // SAFETY: both strings are NUL-terminated.
    let status = unsafe { coremill_options_check(&option, 1) };
    assert_eq!(fails(status, Status::InvalidArgument), "`key` is not UTF-8");
}
