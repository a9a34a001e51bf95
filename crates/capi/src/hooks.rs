//! Callbacks of a run.

use std::collections::HashMap;
use std::ffi::{CString, c_char, c_void};

use coremill_pte::coreml::DebugInfo;

use crate::error::c_text;
use crate::tensor::CoremillTensor;

/// An operation that ran. All of it belongs to the library and goes when the callback returns.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CoremillOperation {
    /// What was done: an operation of Core ML, or several of them in one.
    pub kind: *const c_char,
    /// The value that came about.
    pub name: *const c_char,
    /// How the debug information of the model calls it: `name:operation`.
    pub symbol: *const c_char,
    /// The nodes of the exported graph that it comes from, if the model tells.
    pub debug_handles: *const i64,
    /// How many.
    pub debug_handle_count: usize,
    /// Nanoseconds from the begin of the run to that of the operation.
    pub start: u64,
    /// Nanoseconds that it took.
    pub duration: u64,
    /// Floating-point operations, a multiply-add counted as two; 0 where nobody counts them.
    pub floating_point_operations: u64,
    /// Bytes read and written; 0 where nobody counts them.
    pub bytes: u64,
    /// Whether the time holds that of operations that were reported before: of a branch or a loop.
    pub nested: bool,
}

/// Who looks on while a method runs. Callbacks come from the thread that runs the method, which must not run it again
/// meanwhile; they must not throw. Those that are null are not called.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CoremillHooks {
    /// Passed to each callback.
    pub context: *mut c_void,
    /// Called for each operation once the run is over, in order.
    pub operation: Option<extern "C" fn(context: *mut c_void, operation: *const CoremillOperation)>,
    /// Called with each value of the model when it is computed, and with its inputs, whose `kind` is `input`.
    /// Operations run one by one then, which takes longer. Floats are shown in 32 bits.
    pub value: Option<
        extern "C" fn(
            context: *mut c_void,
            operation: *const CoremillOperation,
            value: *const CoremillTensor,
        ),
    >,
    /// Called before an output is written whose sizes differ from those given, with the sizes that it will have. It sets
    /// `data` and `length` to memory for them, and gives a `CoremillStatus`.
    pub resize: Option<
        extern "C" fn(context: *mut c_void, output: usize, tensor: *mut CoremillTensor) -> i32,
    >,
}

/// How the debug information of a model calls what its operations give.
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
