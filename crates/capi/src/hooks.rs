//! Callbacks of a run.

use std::collections::HashMap;
use std::ffi::{CString, c_char, c_void};

use coremill_pte::coreml::DebugInfo;

use crate::error::c_text;
use crate::tensor::CoremillTensor;

/// An operation that ran. All data belongs to the library and is valid until the callback returns.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CoremillOperation {
    /// Kind of the operation: a Core ML operation, or several fused ones.
    pub kind: *const c_char,
    /// Name of the computed value.
    pub name: *const c_char,
    /// Symbol of the operation in the model's debug information: `name:operation`.
    pub symbol: *const c_char,
    /// Numbers of the exported graph's nodes that the operation comes from, if the model contains them.
    pub debug_handles: *const i64,
    /// Number of debug handles.
    pub debug_handle_count: usize,
    /// Start of the operation in nanoseconds since the start of the run.
    pub start: u64,
    /// Duration in nanoseconds.
    pub duration: u64,
    /// Floating-point operations; a multiply-add counts as two. 0 if unknown.
    pub floating_point_operations: u64,
    /// Bytes read and written; 0 if unknown.
    pub bytes: u64,
    /// Whether the duration includes operations that were reported before, as for a branch or a loop.
    pub nested: bool,
}

/// Observer of a run. Callbacks are called by the thread that runs the method. They must not run the method again,
/// and must not throw. Callbacks that are null are not called.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CoremillHooks {
    /// Passed to each callback.
    pub context: *mut c_void,
    /// Called for each operation after the run, in order.
    pub operation: Option<extern "C" fn(context: *mut c_void, operation: *const CoremillOperation)>,
    /// Called with each computed value of the model, and with its inputs, whose `kind` is `input`. Each operation is
    /// then executed separately, so the run takes longer. Floats are passed in 32 bits.
    pub value: Option<
        extern "C" fn(
            context: *mut c_void,
            operation: *const CoremillOperation,
            value: *const CoremillTensor,
        ),
    >,
    /// Called before an output is written whose sizes differ from the given ones; `tensor` has the new sizes. The
    /// callback sets `data` and `length` to sufficient memory, and returns a `CoremillStatus`.
    pub resize: Option<
        extern "C" fn(context: *mut c_void, output: usize, tensor: *mut CoremillTensor) -> i32,
    >,
}

/// Symbols of a model's operations in its debug information, by value name.
#[derive(Debug, Default)]
pub(crate) struct Symbols(HashMap<String, (CString, Vec<i64>)>);

impl Symbols {
    pub(crate) fn new(info: &DebugInfo) -> Symbols {
        let handles = info.debug_symbol_to_handles.iter();
        let entry = |(symbol, handles): (&String, &Vec<i64>)| {
            let (name, _) = symbol.rsplit_once(':')?;
            Some((name.to_owned(), (c_text(symbol), handles.clone())))
        };
        Symbols(handles.filter_map(entry).collect())
    }

    /// Calls `show` with an operation, without times.
    pub(crate) fn describe(&self, kind: &str, name: &str, show: impl FnOnce(CoremillOperation)) {
        let own;
        let (symbol, handles) = match self.0.get(name) {
            Some((symbol, handles)) => (symbol, handles.as_slice()),
            None => {
                own = c_text(&format!("{name}:{kind}"));
                (&own, &[][..])
            }
        };
        let (kind, name) = (c_text(kind), c_text(name));
        show(CoremillOperation {
            kind: kind.as_ptr(),
            name: name.as_ptr(),
            symbol: symbol.as_ptr(),
            debug_handles: handles.as_ptr(),
            debug_handle_count: handles.len(),
            start: 0,
            duration: 0,
            floating_point_operations: 0,
            bytes: 0,
            nested: false,
        });
    }
}
