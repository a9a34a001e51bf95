//! Calls of the C interface, generated from bytes: valid and invalid models, options, handles and tensors.
//!
//! Memory that the caller must provide is valid; every description of it may be wrong. Every call returns a status,
//! which is never `Internal`, since that means a defect.
#![allow(unsafe_code, clippy::allow_attributes, reason = "calls a C function")]

use std::ffi::{CString, c_void};
use std::sync::OnceLock;

use coremill_capi::error::{CoremillStatus as Status, coremill_error_message};
use coremill_capi::method::*;
use coremill_capi::model::*;
use coremill_capi::options::coremill_options_check;
use coremill_capi::{
    CoremillHooks, CoremillOperation, CoremillOption, CoremillPort, CoremillTensor,
};

use super::payloads::{COUNTER, ROWS, TWICE, TWO, WHOLE, payload};

/// Size of the tensors' memory in bytes.
const MEMORY: usize = 2048;

/// Maximum number of calls.
const CALLS: usize = 48;

/// Decisions that are read from bytes until these are used up.
struct Choices<'a>(&'a [u8]);

impl Choices<'_> {
    fn byte(&mut self) -> u8 {
        match self.0.split_first() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => 0,
        }
    }

    fn below(&mut self, count: usize) -> usize {
        usize::from(self.byte()) % count.max(1)
    }

    /// Mostly small, occasionally far too large.
    fn size(&mut self) -> u64 {
        match self.byte() {
            0xff => u64::MAX,
            0xfe => 1 << 62,
            0xfd => 1 << 32,
            byte => u64::from(byte % 8),
        }
    }

    fn text(&mut self) -> CString {
        const TEXTS: [&str; 16] = [
            "main",
            "other",
            "forward",
            "total",
            "x",
            "compute_unit",
            "cpu_only",
            "cache_dir",
            "threads",
            "precision",
            "faithful",
            "1",
            "4096",
            "-1",
            "",
            "/",
        ];
        match self.below(20) {
            at @ 0..16 => CString::new(TEXTS[at]).unwrap_or_default(),
            length => {
                let letters = (0..length - 14).map(|_| self.byte().max(1)).collect::<Vec<u8>>();
                CString::new(letters).unwrap_or_default()
            }
        }
    }
}

/// Valid models.
fn bases() -> &'static [Vec<u8>] {
    static BASES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    BASES.get_or_init(|| [TWICE, COUNTER, ROWS, WHOLE, TWO].map(payload).to_vec())
}

/// The results of earlier calls, released or not.
struct Session<'a> {
    choices: Choices<'a>,
    memory: Vec<u64>,
    models: Vec<u64>,
    methods: Vec<u64>,
    runs: usize,
}

extern "C" fn release(context: *mut c_void, _: *const c_void, _: usize) {
    // SAFETY: the context is the box that was passed with the bytes, and this is called once.
    drop(unsafe { Box::from_raw(context.cast::<Vec<u8>>()) });
}

/// Bytes that the library releases.
fn lend(bytes: Vec<u8>) -> CoremillBytes {
    let held = Box::new(bytes);
    let (data, length) = (held.as_ptr().cast(), held.len());
    CoremillBytes { data, length, release: Some(release), context: Box::into_raw(held).cast() }
}

extern "C" fn find(
    context: *mut c_void,
    _: *const std::ffi::c_char,
    found: *mut CoremillBytes,
) -> i32 {
    // SAFETY: the context is the index of the model to return, or an invalid one; `found` points to memory for bytes.
    let (at, found) = unsafe { (*context.cast::<usize>(), &mut *found) };
    let Some(base) = bases().get(at) else { return Status::NotFound as i32 };
    *found = lend(base.clone());
    Status::Ok as i32
}

/// Memory for outputs of dynamic size, and how the caller misreports it.
struct Room {
    memory: Vec<u64>,
    lies: u8,
}

extern "C" fn resize(context: *mut c_void, _: usize, tensor: *mut CoremillTensor) -> i32 {
    // SAFETY: the context is the `Room` of the run; the tensor is valid.
    let (room, tensor) = unsafe { (&mut *context.cast::<Room>(), &mut *tensor) };
    room.memory = vec![0; MEMORY / 8];
    (tensor.data, tensor.length) = (room.memory.as_mut_ptr().cast(), MEMORY);
    match room.lies % 4 {
        1 => tensor.sizes[0] = u64::MAX,
        2 => tensor.length = 1,
        3 => return Status::InvalidArgument as i32,
        _ => {}
    }
    Status::Ok as i32
}

extern "C" fn look(_: *mut c_void, operation: *const CoremillOperation) {
    assert!(!operation.is_null());
}

extern "C" fn see(
    _: *mut c_void,
    operation: *const CoremillOperation,
    value: *const CoremillTensor,
) {
    assert!(!operation.is_null() && !value.is_null());
}

impl Session<'_> {
    fn model(&mut self) -> CoremillModel {
        let at = self.choices.below(self.models.len() + 1);
        let id = self.models.get(at).copied().unwrap_or_else(|| self.choices.size());
        CoremillModel { id }
    }

    fn method(&mut self) -> CoremillMethod {
        let at = self.choices.below(self.methods.len() + 1);
        let id = self.methods.get(at).copied().unwrap_or_else(|| self.choices.size());
        CoremillMethod { id }
    }

    /// A model as it is, changed in some bytes, truncated, replaced by a reference, or random.
    fn bytes(&mut self) -> Vec<u8> {
        let base = &bases()[self.choices.below(bases().len())];
        let mut bytes = base.clone();
        match self.choices.below(8) {
            0..4 => {}
            4 => {
                for _ in 0..1 + self.choices.below(4) {
                    // The end contains the description.
                    let back = usize::from(self.choices.byte()) * (1 + self.choices.below(4));
                    let at = bytes.len() - 1 - back.min(bytes.len() - 1);
                    bytes[at] = self.choices.byte();
                }
            }
            5 => bytes.truncate(usize::from(self.choices.byte()) * 16),
            6 => {
                const REFERENCE: &str = "CMJR{\"version\": 1, \"key\": \"k\", \"functionName\": \"";
                let name = self.choices.text();
                bytes = [REFERENCE.as_bytes(), name.as_bytes(), b"\"}"].concat();
            }
            _ => bytes = (0..self.choices.below(64)).map(|_| self.choices.byte()).collect(),
        }
        bytes
    }

    fn tensor(&mut self) -> CoremillTensor {
        let usual = self.choices.below(4) != 0;
        let start = if usual { 256 * self.choices.below(8) } else { self.choices.below(MEMORY) };
        let scalar_type =
            if usual { [6, 5, 3, 4][self.choices.below(4)] } else { self.choices.byte().into() };
        let rank =
            if usual { 1 + self.choices.below(2) as u32 } else { self.choices.size() as u32 };
        let mut sizes = [0; 16];
        let mut order = [0; 16];
        for at in 0..(rank as usize).min(16) {
            sizes[at] = self.choices.size();
            order[at] = if usual { at as u8 } else { self.choices.byte() % 17 };
        }
        // SAFETY: the offset is within the memory.
        let data = unsafe { self.memory.as_mut_ptr().cast::<u8>().add(start) };
        let length = (MEMORY - start).min(if usual { 256 } else { self.choices.below(300) });
        let data = if self.choices.below(32) == 31 { std::ptr::null_mut() } else { data.cast() };
        CoremillTensor { data, length, scalar_type, rank, sizes, dim_order: order }
    }

    /// A tensor that fits the description of a port.
    fn fitting(&mut self, port: &CoremillPort, at: usize) -> CoremillTensor {
        let mut sizes = [0; 16];
        for (size, least) in sizes.iter_mut().zip(port.least).take(port.rank as usize) {
            *size = least.max(1);
        }
        // SAFETY: the offset is within the memory.
        let data = unsafe { self.memory.as_mut_ptr().cast::<u8>().add(256 * at % MEMORY) };
        let (scalar_type, rank) = (port.scalar_type, port.rank);
        CoremillTensor {
            data: data.cast(),
            length: 256,
            scalar_type,
            rank,
            sizes,
            dim_order: [0; 16],
        }
    }

    fn ports(&mut self, method: CoremillMethod, kind: i32) -> Vec<CoremillPort> {
        let mut count = 0;
        // SAFETY: the pointer is valid for a number.
        if unsafe { coremill_method_port_count(method, kind, &mut count) } != Status::Ok {
            return Vec::new();
        }
        let port = |index| {
            let mut port = CoremillPort::default();
            // SAFETY: the pointer is valid for a port.
            check(unsafe { coremill_method_port(method, kind, index, &mut port) }).then_some(port)
        };
        (0..count).filter_map(port).collect()
    }

    fn execute(&mut self) {
        let method = self.method();
        let usual = self.choices.below(3) != 0;
        let [inputs, outputs] = [0, 1].map(|kind| self.ports(method, kind));
        let mut tensors = Vec::new();
        for (at, port) in inputs.iter().chain(&outputs).enumerate() {
            tensors.push(if usual { self.fitting(port, at) } else { self.tensor() });
        }
        while !usual && tensors.len() < inputs.len() + self.choices.below(4) {
            let tensor = self.tensor();
            tensors.push(tensor);
        }
        let split = inputs.len().min(tensors.len());
        let (inputs, outputs) = tensors.split_at_mut(split);
        let mut room = Room { memory: Vec::new(), lies: self.choices.byte() };
        let which = self.choices.byte();
        let hooks = CoremillHooks {
            context: (&raw mut room).cast(),
            operation: (which & 1 != 0).then_some(look),
            value: (which & 2 != 0).then_some(see),
            resize: (which & 4 != 0).then_some(resize),
        };
        let hooks = if which & 8 != 0 { std::ptr::null() } else { &raw const hooks };
        // SAFETY: the arrays have the passed lengths, and the tensors' memory is valid.
        let status = unsafe {
            let (inputs, input_count) = (inputs.as_ptr(), inputs.len());
            coremill_method_execute(
                method,
                inputs,
                input_count,
                outputs.as_mut_ptr(),
                outputs.len(),
                hooks,
            )
        };
        self.runs += usize::from(check(status));
    }

    fn call(&mut self) {
        match self.choices.below(12) {
            0 => {
                let bytes = lend(self.bytes());
                let (key, value) = (self.choices.text(), self.choices.text());
                let option = CoremillOption { key: key.as_ptr(), value: value.as_ptr() };
                let count = usize::from(self.choices.below(4) == 0);
                let mut at = self.choices.below(8);
                let lookup = CoremillLookup { context: (&raw mut at).cast(), find: Some(find) };
                let mut model = CoremillModel { id: 0 };
                // SAFETY: the bytes live until they are released; all other pointers are valid.
                if check(unsafe {
                    coremill_model_load_bytes(bytes, &lookup, &option, count, &mut model)
                }) {
                    self.models.push(model.id);
                }
            }
            1 | 2 => {
                let (model, name) = (self.model(), self.choices.text());
                let name =
                    if self.choices.below(2) == 0 { std::ptr::null() } else { name.as_ptr() };
                let mut method = CoremillMethod { id: 0 };
                // SAFETY: the text is terminated by zero, and the pointer is valid for a handle.
                if check(unsafe { coremill_method_load(model, name, &mut method) }) {
                    self.methods.push(method.id);
                }
            }
            3 => {
                let (method, kind) = (self.method(), i32::from(self.choices.byte()) - 2);
                self.ports(method, kind);
            }
            4..7 => self.execute(),
            7 => {
                let (method, name, mut tensor) =
                    (self.method(), self.choices.text(), self.tensor());
                // SAFETY: the text is terminated by zero; the tensor's memory is valid.
                check(match self.choices.below(2) {
                    0 => unsafe { coremill_method_state_read(method, name.as_ptr(), &mut tensor) },
                    _ => unsafe { coremill_method_state_write(method, name.as_ptr(), &tensor) },
                });
            }
            8 => {
                let (from, to) = (self.method(), self.method());
                check(coremill_method_states_copy(from, to));
                check(coremill_method_states_reset(from));
            }
            9 => {
                let (model, index) = (self.model(), self.choices.below(4));
                let (mut count, mut name) = (0, std::ptr::null());
                // SAFETY: the pointers are valid for a number and a pointer.
                unsafe {
                    check(coremill_model_method_count(model, &mut count));
                    check(coremill_model_method_name(model, index, &mut name));
                }
            }
            10 => {
                let (key, value) = (self.choices.text(), self.choices.text());
                let option = CoremillOption { key: key.as_ptr(), value: value.as_ptr() };
                // SAFETY: both texts are terminated by zero.
                check(unsafe { coremill_options_check(&option, 1) });
            }
            _ => {
                // Released handles stay in the lists, so that later calls use them.
                let (model, method) = (self.model(), self.method());
                check(match self.choices.below(3) {
                    0 => coremill_model_free(model),
                    _ => coremill_method_free(method),
                });
            }
        }
    }
}

/// Whether a call succeeded; panics if it reports a defect.
fn check(status: Status) -> bool {
    // SAFETY: the text lives until the next failing call of this thread.
    let message = || unsafe { std::ffi::CStr::from_ptr(coremill_error_message()) };
    assert_ne!(status, Status::Internal, "{:?}", message());
    assert!(status == Status::Ok || !message().is_empty());
    status == Status::Ok
}

/// Performs the calls. Returns the number of successful runs of methods.
pub(crate) fn calls(data: &[u8]) -> usize {
    let memory = vec![0x3f80_0000_3f80_0000; MEMORY / 8];
    let (models, methods) = (Vec::new(), Vec::new());
    let mut session = Session { choices: Choices(data), memory, models, methods, runs: 0 };
    for _ in 0..CALLS {
        if session.choices.0.is_empty() {
            break;
        }
        session.call();
    }
    for id in std::mem::take(&mut session.methods) {
        check(coremill_method_free(CoremillMethod { id }));
    }
    for id in std::mem::take(&mut session.models) {
        check(coremill_model_free(CoremillModel { id }));
    }
    session.runs
}
