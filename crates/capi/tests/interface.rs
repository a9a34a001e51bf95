//! Behavior of the C interface for valid and invalid calls.
#![expect(unsafe_code, reason = "calls a C function")]

mod common;

use std::ffi::{CStr, CString, c_void};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::*;
use coremill_capi::error::CoremillStatus as Status;
use coremill_capi::method::*;
use coremill_capi::model::*;
use coremill_capi::prewarm::*;
use coremill_capi::*;
use coremill_mlpackage::compiled;
use coremill_pte::ByteRope;
use coremill_pte::coreml::{BACKEND, DEBUG_INFO, DebugInfo, Directory, PathPart};
use coremill_pte::program::{
    Chain, Delegate, ExecutionPlan, Instruction, Place, Placement, Program, ScalarType,
    Tensor as Planned, Value as Planning, ValueId,
};
use coremill_tensor::Buffer;
use coremill_verify as verify;

/// The hint of the last failure.
fn hint() -> Option<String> {
    let hint = coremill_capi::error::coremill_error_hint();
    // SAFETY: the text is NUL-terminated unless it is null.
    (!hint.is_null()).then(|| unsafe { CStr::from_ptr(hint) }.to_str().expect("UTF-8").to_owned())
}

#[test]
fn engine_error_hints_reach_c_callers() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = package(
        folder.path(),
        "program(1.3)\n{\n    func main<ios17>(tensor<fp32, [3, 2]> x, tensor<int32, [1]> p) {\n\
         tensor<fp32, [1, 2]> y = gather(x = x, indices = p, axis = int32(0));\n} -> (y);\n}\n",
    );
    let method = method(load_file(&path));
    let (mut x, mut p, mut y) = ([0.0f32; 6], [-1i32], [0.0f32; 2]);
    let inputs = [tensor(&mut x, FLOAT, &[3, 2]), tensor(&mut p, INT, &[1])];
    let mut output = [tensor(&mut y, FLOAT, &[1, 2])];
    let error = fails(run(method, &inputs, &mut output), Status::ExecutionFailed);
    assert!(error.ends_with("index -1 is outside axis 0, which has 3 elements"), "{error}");
    let expected =
        "from iOS17 on, negative indices do not count from the end; add the size of the axis";
    assert_eq!(hint().as_deref(), Some(expected));
    // The next failure has no hint.
    fails(run(method, &[], &mut output), Status::InvalidArgument);
    assert_eq!(hint(), None);
}

#[test]
fn runs_on_caller_buffers_in_any_dim_order() {
    let payload = payload(TWICE);
    let (mut x, mut y) = ([1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [0.0f32; 6]);
    let model = load(&payload);
    let method = method(model);
    ok(coremill_model_free(model));
    let (input, mut output) = (tensor(&mut x, FLOAT, &[2, 3]), tensor(&mut y, FLOAT, &[2, 3]));
    ok(run(method, &[input], std::slice::from_mut(&mut output)));
    assert_eq!(y, [2.0, 4.0, 6.0, 8.0, 10.0, 12.0]);
    assert_eq!((output.rank, &output.sizes[..2]), (2, &[2, 3][..]));

    // Another dimension order.
    let mut columns = tensor(&mut x, FLOAT, &[2, 3]);
    columns.dim_order[..2].copy_from_slice(&[1, 0]);
    ok(run(method, &[columns], std::slice::from_mut(&mut output)));
    assert_eq!(y, [2.0, 6.0, 10.0, 4.0, 8.0, 12.0]);
    ok(coremill_method_free(method));
}

#[test]
fn loads_package_functions_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = load_file(&package(folder.path(), TWO));
    let mut count = 0;
    // SAFETY: the pointer refers to a number.
    unsafe { ok(coremill_model_method_count(model, &mut count)) };
    assert_eq!(count, 2);
    let mut results = Vec::new();
    for name in [None, Some(c"main"), Some(c"other")] {
        let mut method = CoremillMethod { id: 0 };
        let name = name.map_or(std::ptr::null(), CStr::as_ptr);
        // SAFETY: names are NUL-terminated.
        ok(unsafe { coremill_method_load(model, name, &mut method) });
        let (mut x, mut y) = ([1.0f32, -2.0], [0.0f32; 2]);
        let mut output = tensor(&mut y, FLOAT, &[2]);
        ok(run(method, &[tensor(&mut x, FLOAT, &[2])], std::slice::from_mut(&mut output)));
        results.push(y);
    }
    assert_eq!(results, [[2.0, -1.0], [2.0, -1.0], [10.0, -20.0]]);
    let mut method = CoremillMethod { id: 0 };
    // SAFETY: the name is NUL-terminated.
    let status = unsafe { coremill_method_load(model, c"third".as_ptr(), &mut method) };
    assert_eq!(
        fails(status, Status::NotFound),
        "unknown method `third`; the methods are `main` and `other`"
    );
}

/// Names read from the description alone equal the names found by the complete reader, in the same order.
#[test]
fn port_names_match_golden_package_signatures() {
    let folder = tempfile::tempdir().expect("a folder");
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../mlpackage/tests/packages");
    let mut compared = 0;
    for entry in std::fs::read_dir(golden).expect("the golden packages") {
        let path = entry.expect("a directory entry").path();
        let source = coremill_mlpackage::package::read(&path).expect("it is sound");
        let compiled =
            folder.path().join(path.with_extension("mlmodelc").file_name().expect("a name"));
        let verified = verify::verify(&source).expect("it is sound");
        compiled::write(&compiled, &verified, &Default::default()).expect("it can be written");
        for path in [&path, &compiled] {
            let model = load_file(path);
            let mut count = 0;
            // SAFETY: the pointer refers to a number.
            ok(unsafe { coremill_model_method_count(model, &mut count) });
            assert_eq!(count, source.signatures().len(), "{}", path.display());
            for signature in source.signatures() {
                let function = CString::new(signature.name).expect("no NUL");
                let mut method = CoremillMethod { id: 0 };
                // SAFETY: the name is NUL-terminated.
                let status = unsafe { coremill_method_load(model, function.as_ptr(), &mut method) };
                if status != Status::Ok {
                    // Methods of classifiers cannot be loaded: they return the name of a class, not a tensor.
                    assert!(message().ends_with("expected a tensor"), "{}", message());
                    continue;
                }
                for (kind, features) in
                    [signature.inputs, signature.outputs].into_iter().enumerate()
                {
                    for (index, feature) in features.iter().enumerate() {
                        let name = port(method, kind as i32, index).name;
                        // SAFETY: the name is NUL-terminated.
                        let name = unsafe { CStr::from_ptr(name) };
                        assert_eq!(name.to_str(), Ok(&*feature.name), "{}", path.display());
                        compared += 1;
                    }
                }
                ok(coremill_method_free(method));
            }
            ok(coremill_model_free(model));
        }
    }
    assert!(compared > 40, "only {compared} port names were compared");
}

fn port(method: CoremillMethod, kind: i32, index: usize) -> CoremillPort {
    let mut port = CoremillPort::default();
    // SAFETY: the pointer refers to a port.
    ok(unsafe { coremill_method_port(method, kind, index, &mut port) });
    port
}

extern "C" fn grow(context: *mut c_void, _: usize, tensor: *mut CoremillTensor) -> i32 {
    // SAFETY: the test passes a vector, and the library passes a tensor.
    let (memory, tensor) = unsafe { (&mut *context.cast::<Vec<f32>>(), &mut *tensor) };
    memory.resize((tensor.sizes[0] * tensor.sizes[1]) as usize, 0.0);
    tensor.data = memory.as_mut_ptr().cast();
    tensor.length = memory.len() * 4;
    0
}

#[test]
fn dynamic_output_sizes_follow_inputs() {
    let payload = payload(ROWS);
    let method = method(load(&payload));
    let port = port(method, 0, 0);
    assert_eq!((port.scalar_type, port.rank), (FLOAT, 2));
    assert_eq!((&port.least[..2], &port.largest[..2]), (&[1, 4][..], &[64, 4][..]));

    let mut x: Vec<f32> = (0..20).map(|index| index as f32 / 8.0).collect();
    let expected: Vec<f32> = x.iter().map(|x| x.exp()).collect();
    let near = |found: &[f32], rows: usize| {
        found.len() >= rows * 4
            && found
                .iter()
                .zip(&expected[..rows * 4])
                .all(|(found, expected)| (found - expected).abs() < 1e-5)
    };
    // Memory for the maximum size. Each run uses a part of it.
    let mut most = vec![0.0f32; 64 * 4];
    for rows in [3, 5, 1] {
        let mut output = tensor(&mut most, FLOAT, &[64, 4]);
        let input = tensor(&mut x[..rows * 4], FLOAT, &[rows as u64, 4]);
        ok(run(method, &[input], std::slice::from_mut(&mut output)));
        assert_eq!(output.sizes[..2], [rows as u64, 4]);
        assert!(near(&most, rows));
    }
    // Memory that the callback allocates during the run.
    let mut memory: Vec<f32> = Vec::new();
    let hooks = CoremillHooks {
        context: std::ptr::from_mut(&mut memory).cast(),
        operation: None,
        value: None,
        resize: Some(grow),
    };
    let mut output = tensor::<f32>(&mut [], FLOAT, &[0, 4]);
    let input = tensor(&mut x, FLOAT, &[5, 4]);
    ok(run_with(method, &[input], std::slice::from_mut(&mut output), Some(&hooks)));
    assert!(near(&memory, 5) && memory.len() == 20);
    // Too little memory, and a shape that the model does not support.
    let mut little = [0.0f32; 8];
    let mut output = tensor(&mut little, FLOAT, &[2, 4]);
    let status = run(method, &[input], std::slice::from_mut(&mut output));
    let error = fails(status, Status::ExecutionFailed);
    assert!(error.contains("[5, 4]") && error.contains("32 bytes"), "{error}");
    let input = tensor(&mut x, FLOAT, &[4, 5]);
    let error = fails(run(method, &[input], &mut [output]), Status::ExecutionFailed);
    assert!(error.contains("[4, 5]") && error.contains("of shape [1…64, 4]"), "{error}");
}

#[test]
fn reads_writes_resets_and_copies_states() {
    let payload = payload(COUNTER);
    let model = load(&payload);
    let (first, second) = (method(model), method(model));
    let step = |method, x: [f32; 2]| {
        // The model computes in fp16. Runs convert the values to fp16 and back.
        let (mut x, mut y) = (x, [0.0f32; 2]);
        let mut output = tensor(&mut y, FLOAT, &[2]);
        ok(run(method, &[tensor(&mut x, FLOAT, &[2])], std::slice::from_mut(&mut output)));
        y
    };
    assert_eq!(step(first, [1.0, 2.0]), [1.0, 2.0]);
    assert_eq!(step(first, [1.0, 2.0]), [2.0, 4.0]);
    assert_eq!(step(second, [5.0, 5.0]), [5.0, 5.0], "each instance of a method has its own state");
    ok(coremill_method_states_copy(first, second));
    assert_eq!(step(second, [0.0, 1.0]), [2.0, 5.0]);
    ok(coremill_method_states_reset(first));
    assert_eq!(step(first, [3.0, 3.0]), [3.0, 3.0]);

    let mut halves = [0u16; 2];
    let mut state = tensor(&mut halves, HALF, &[2]);
    // SAFETY: the name is NUL-terminated, and the tensor's memory is valid.
    unsafe { ok(coremill_method_state_read(second, c"total".as_ptr(), &mut state)) };
    assert_eq!(halves, [0x4000, 0x4500], "the fp16 values 2 and 5");
    let mut halves = [0x3c00u16, 0xbc00];
    let mut state = tensor(&mut halves, HALF, &[2]);
    // SAFETY: as above.
    unsafe { ok(coremill_method_state_write(second, c"total".as_ptr(), &state)) };
    assert_eq!(step(second, [0.5, 0.5]), [1.5, -0.5], "the state was set to 1 and -1");

    // SAFETY: as above.
    let status = unsafe { coremill_method_state_write(second, c"sum".as_ptr(), &state) };
    assert_eq!(fails(status, Status::NotFound), "unknown state `sum`; the only state is `total`");
    state.scalar_type = INT;
    // SAFETY: as above.
    let status = unsafe { coremill_method_state_read(second, c"total".as_ptr(), &mut state) };
    let error = fails(status, Status::InvalidArgument);
    assert!(
        error.contains("`total`") && error.contains("Half") && error.contains("Int"),
        "{error}"
    );
}

#[test]
fn rejects_lossy_integer_conversions() {
    let payload = payload(WHOLE);
    let method = method(load(&payload));
    let call = |x: &mut [i64], y: &mut [i64]| {
        let mut output = tensor(y, LONG, &[3]);
        run(method, &[tensor(x, LONG, &[3])], std::slice::from_mut(&mut output))
    };
    let mut y = [0i64; 3];
    ok(call(&mut [-5, 0, 7], &mut y));
    assert_eq!(y, [-4, 1, 8]);
    let error = fails(call(&mut [1, 1 << 31, 2], &mut y), Status::ExecutionFailed);
    assert!(error.contains("2147483648") && error.contains("int32"), "{error}");
    // Output types narrower than the results.
    let (mut x, mut y) = ([1i32, 2, 127], [0i8; 3]);
    let mut output = tensor(&mut y, 1, &[3]);
    let status = run(method, &[tensor(&mut x, INT, &[3])], std::slice::from_mut(&mut output));
    let error = fails(status, Status::ExecutionFailed);
    assert!(error.contains("128") && error.contains("Char"), "{error}");
    x[2] = 126;
    ok(run(method, &[tensor(&mut x, INT, &[3])], std::slice::from_mut(&mut output)));
    assert_eq!(y, [2, 3, 127]);
    let mut fractions = [0.5f32, 1.0, 2.0];
    let status =
        run(method, &[tensor(&mut fractions, FLOAT, &[3])], std::slice::from_mut(&mut output));
    assert!(fails(status, Status::ExecutionFailed).contains("got the element 0.5"));
    // Float results for integer outputs.
    let floats = common::payload(TWICE);
    let method = common::method(load(&floats));
    let mut y = [0i32; 6];
    let mut output = tensor(&mut y, INT, &[2, 3]);
    for (x, expected) in
        [(0.25, "0.5 is not an integer"), (1e30, "does not fit `Int`"), (f32::NAN, "NaN is not")]
    {
        let input = tensor(&mut [x; 6], FLOAT, &[2, 3]);
        let error = fails(
            run(method, &[input], std::slice::from_mut(&mut output)),
            Status::ExecutionFailed,
        );
        assert!(error.contains(expected), "{error}");
    }
    ok(run(method, &[tensor(&mut [1.5f32; 6], FLOAT, &[2, 3])], std::slice::from_mut(&mut output)));
    assert_eq!(y, [3; 6]);
}

#[test]
fn accepts_aliased_buffers_and_rejects_bad_tensors() {
    let payload = payload(TWICE);
    let method = method(load(&payload));
    let mut x = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0];
    // The output overlaps the input, shifted by one element.
    let input = tensor(&mut x[..6], FLOAT, &[2, 3]);
    let mut output = tensor(&mut x[1..], FLOAT, &[2, 3]);
    ok(run(method, &[input], std::slice::from_mut(&mut output)));
    assert_eq!(x, [1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0]);

    let invalid = [
        (tensor(&mut x[..5], FLOAT, &[2, 3]), "requires 24 bytes, got 20"),
        (tensor(&mut x, 99, &[2, 3]), "99 is not the number of a scalar type"),
        (tensor(&mut x, FLOAT, &[u64::MAX, 2]), "are not valid: they are negative"),
        (
            CoremillTensor { rank: 17, ..tensor(&mut x, FLOAT, &[2, 3]) },
            "the rank must be at most 16, got 17",
        ),
        (
            CoremillTensor { data: std::ptr::null_mut(), ..tensor(&mut x, FLOAT, &[2, 3]) },
            "bytes at 0x0 are not a valid memory range",
        ),
    ];
    let mut y = [0.0f32; 6];
    let mut output = tensor(&mut y, FLOAT, &[2, 3]);
    for (input, expected) in invalid {
        let status = run(method, &[input], std::slice::from_mut(&mut output));
        let error = fails(status, Status::InvalidArgument);
        assert!(error.contains(expected), "{error}");
    }
    let error = fails(run(method, &[], &mut [output]), Status::InvalidArgument);
    assert_eq!(error, "method `forward` has 1 inputs, got 0");
}

static RELEASED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn count_release(_: *mut c_void, _: *const c_void, length: usize) {
    RELEASED.fetch_add(length, Ordering::SeqCst);
}

#[test]
fn model_bytes_are_released_after_last_use() {
    let payload = payload(TWICE);
    let lent = CoremillBytes { release: Some(count_release), ..bytes(&payload) };
    let mut model = CoremillModel { id: 0 };
    let none = std::ptr::null();
    // SAFETY: the bytes are valid until they are released.
    ok(unsafe { coremill_model_load_bytes(lent, std::ptr::null(), none, 0, &mut model) });
    let method = method(model);
    ok(coremill_model_free(model));
    assert_eq!(RELEASED.load(Ordering::SeqCst), 0, "the method still holds the bytes");
    ok(coremill_method_free(method));
    assert_eq!(RELEASED.load(Ordering::SeqCst), payload.len());
    // Bytes that cannot be loaded are released, too.
    let lent = CoremillBytes { length: 5, ..lent };
    // SAFETY: as above.
    let status = unsafe { coremill_model_load_bytes(lent, std::ptr::null(), none, 0, &mut model) };
    fails(status, Status::InvalidModel);
    assert_eq!(RELEASED.load(Ordering::SeqCst), payload.len() + 5);
}

#[derive(Default)]
struct ObservedRun {
    operations: Vec<String>,
    values: Vec<(String, Vec<f32>)>,
    reentered: Option<CoremillMethod>,
}

extern "C" fn see_operation(context: *mut c_void, operation: *const CoremillOperation) {
    // SAFETY: the test passes an `ObservedRun`, and the library passes an operation with valid strings.
    let (seen, symbol) =
        unsafe { (&mut *context.cast::<ObservedRun>(), CStr::from_ptr((*operation).symbol)) };
    seen.operations.push(symbol.to_str().expect("UTF-8").to_owned());
}

extern "C" fn see_value(
    context: *mut c_void,
    operation: *const CoremillOperation,
    value: *const CoremillTensor,
) {
    // SAFETY: as above, and a tensor of floats.
    let (seen, symbol, floats) = unsafe {
        let floats = std::slice::from_raw_parts((*value).data.cast::<f32>(), (*value).length / 4);
        (&mut *context.cast::<ObservedRun>(), CStr::from_ptr((*operation).symbol), floats)
    };
    seen.values.push((symbol.to_str().expect("UTF-8").to_owned(), floats.to_vec()));
    if let Some(method) = seen.reentered {
        let error = fails(coremill_method_states_reset(method), Status::InvalidArgument);
        assert_eq!(error, "a callback uses the method that calls it; use another instance");
    }
}

#[test]
fn hooks_observe_values_and_reject_reentrant_calls() {
    let payload = payload(TWICE);
    let method = method(load(&payload));
    let (mut x, mut y) = ([1.0f32; 6], [0.0f32; 6]);
    let mut output = tensor(&mut y, FLOAT, &[2, 3]);
    let mut seen = ObservedRun { reentered: Some(method), ..ObservedRun::default() };
    let hooks = CoremillHooks {
        context: std::ptr::from_mut(&mut seen).cast(),
        operation: Some(see_operation),
        value: Some(see_value),
        resize: None,
    };
    let input = tensor(&mut x, FLOAT, &[2, 3]);
    ok(run_with(method, &[input], std::slice::from_mut(&mut output), Some(&hooks)));
    assert_eq!(y, [2.0; 6]);
    assert_eq!(seen.operations, ["y:add"]);
    let expected = [("x:input".to_owned(), vec![1.0; 6]), ("y:add".to_owned(), vec![2.0; 6])];
    assert_eq!(seen.values, expected);
}

/// A program with two methods. Their models have a value of the same name with different debug handles.
fn two_methods() -> Vec<u8> {
    let mut program = Program::default();
    for (index, name) in ["forward", "other"].into_iter().enumerate() {
        let whole = ByteRope::from(Buffer::from(payload(TWICE)));
        let mut directory = Directory::read(&whole).expect("a directory of the payload");
        let mut info = DebugInfo { version_info: "1".into(), ..DebugInfo::default() };
        let (operator, output) = ("add".to_owned(), "y".to_owned());
        info.insert(&[PathPart::Operation { operator, output }], vec![10 + index as i64]);
        directory.insert(DEBUG_INFO, info.to_bytes()).expect("the debug info is added");
        program.delegate_data.push(directory.to_data().expect("a payload"));
        let input_tensor = Planned::new(ScalarType::Float, vec![2, 3], Placement::GivenAtRunTime);
        let place = Placement::Planned(Place { arena: 1, offset: 0 });
        let output_tensor = Planned::new(ScalarType::Float, vec![2, 3], place);
        let arguments = vec![ValueId(0), ValueId(1)];
        let call = Instruction::DelegateCall { delegate: 0, arguments };
        let data = index as u32;
        program.plans.push(ExecutionPlan {
            name: name.to_owned(),
            values: vec![Planning::Tensor(input_tensor), Planning::Tensor(output_tensor)],
            inputs: vec![ValueId(0)],
            outputs: vec![ValueId(1)],
            chains: vec![Chain { instructions: vec![call], ..Chain::default() }],
            delegates: vec![Delegate { id: BACKEND.into(), data, ..Delegate::default() }],
            arenas: vec![0, 24],
            ..ExecutionPlan::default()
        });
    }
    coremill_pte::to_data(&program).expect("it can be written").to_buffer().as_bytes().to_vec()
}

extern "C" fn see_handles(context: *mut c_void, operation: *const CoremillOperation) {
    // SAFETY: the test passes a list, and the library passes an operation with this number of handles.
    unsafe {
        let handles =
            std::slice::from_raw_parts((*operation).debug_handles, (*operation).debug_handle_count);
        (*context.cast::<Vec<i64>>()).extend(handles);
    }
}

#[test]
fn debug_handles_belong_to_called_method() {
    let program = two_methods();
    let model = load(&program);
    let mut seen: Vec<i64> = Vec::new();
    let hooks = CoremillHooks {
        context: std::ptr::from_mut(&mut seen).cast(),
        operation: Some(see_handles),
        value: None,
        resize: None,
    };
    for name in [c"other", c"forward"] {
        let mut method = CoremillMethod { id: 0 };
        // SAFETY: the name is NUL-terminated.
        ok(unsafe { coremill_method_load(model, name.as_ptr(), &mut method) });
        let (mut x, mut y) = ([1.0f32; 6], [0.0f32; 6]);
        let mut output = tensor(&mut y, FLOAT, &[2, 3]);
        let input = tensor(&mut x, FLOAT, &[2, 3]);
        ok(run_with(method, &[input], std::slice::from_mut(&mut output), Some(&hooks)));
        assert_eq!(y, [2.0; 6]);
        ok(coremill_method_free(method));
    }
    assert_eq!(seen, [11, 10]);
    ok(coremill_model_free(model));
}

#[test]
fn threads_share_models_and_methods() {
    let (twice, counter) = (payload(TWICE), payload(COUNTER));
    let (shared, sum) = (load(&twice), method(load(&counter)));
    let one = method(shared);
    std::thread::scope(|scope| {
        for thread in 0..24 {
            scope.spawn(move || {
                let own = method(shared);
                for round in 0..20 {
                    let number = (thread * 20 + round) as f32;
                    for method in [one, own] {
                        let (mut x, mut y) = ([number; 6], [0.0f32; 6]);
                        let mut output = tensor(&mut y, FLOAT, &[2, 3]);
                        let input = tensor(&mut x, FLOAT, &[2, 3]);
                        ok(run(method, &[input], std::slice::from_mut(&mut output)));
                        assert_eq!(y, [2.0 * number; 6]);
                    }
                    let (mut x, mut y) = ([1.0f32; 2], [0.0f32; 2]);
                    let mut output = tensor(&mut y, FLOAT, &[2]);
                    let input = tensor(&mut x, FLOAT, &[2]);
                    ok(run(sum, &[input], std::slice::from_mut(&mut output)));
                }
                ok(coremill_method_free(own));
            });
        }
    });
    let mut halves = [0u16; 2];
    let mut state = tensor(&mut halves, HALF, &[2]);
    // SAFETY: the name is NUL-terminated, and the tensor's memory is valid.
    unsafe { ok(coremill_method_state_read(sum, c"total".as_ptr(), &mut state)) };
    assert_eq!(halves, [0x5f80; 2], "the fp16 value 480: each of the 24 × 20 runs must be counted");
}

#[test]
fn threads_load_and_run_models_concurrently() {
    let (rows, twice) = (payload(ROWS), payload(TWICE));
    std::thread::scope(|scope| {
        for thread in 0..24u64 {
            let (rows, twice) = (&rows, &twice);
            scope.spawn(move || {
                for round in 0..4 {
                    let models = [load(rows), load(twice)];
                    let methods = models.map(method);
                    let count = 1 + (thread + round) % 7;
                    let (mut x, mut y) = (vec![0.0f32; 4 * count as usize], vec![0.0f32; 4 * 64]);
                    let mut output = tensor(&mut y, FLOAT, &[count, 4]);
                    let input = tensor(&mut x, FLOAT, &[count, 4]);
                    ok(run(methods[0], &[input], std::slice::from_mut(&mut output)));
                    assert_eq!(y[..x.len()], vec![1.0; x.len()]);
                    let (mut x, mut y) = ([thread as f32; 6], [0.0f32; 6]);
                    let mut output = tensor(&mut y, FLOAT, &[2, 3]);
                    let input = tensor(&mut x, FLOAT, &[2, 3]);
                    ok(run(methods[1], &[input], std::slice::from_mut(&mut output)));
                    assert_eq!(y, [2.0 * thread as f32; 6]);
                    methods.into_iter().for_each(|method| ok(coremill_method_free(method)));
                    models.into_iter().for_each(|model| ok(coremill_model_free(model)));
                }
            });
        }
    });
}

#[test]
fn rejects_empty_tensors_and_null_outputs() {
    let payload = payload(ROWS);
    let method = method(load(&payload));
    let (mut none, mut y) = ([0.0f32; 0], [0.0f32; 8]);
    let mut input = tensor(&mut none, FLOAT, &[0, 4]);
    for data in [input.data, std::ptr::null_mut()] {
        input.data = data;
        let status = run(method, &[input], &mut [tensor(&mut y, FLOAT, &[0, 4])]);
        let error = fails(status, Status::ExecutionFailed);
        assert!(error.contains("`x`") && error.contains("[0, 4]"), "{error}");
    }
    // An output with elements, but without memory.
    let mut nowhere = tensor(&mut y, FLOAT, &[2, 4]);
    (nowhere.data, nowhere.length) = (std::ptr::null_mut(), 0);
    let mut x = [1.0f32; 8];
    let status = run(method, &[tensor(&mut x, FLOAT, &[2, 4])], &mut [nowhere]);
    fails(status, Status::InvalidArgument);
    ok(coremill_method_free(method));
}

/// Names of a method's inputs, from the C interface.
fn input_names(method: CoremillMethod) -> Vec<String> {
    let kind = CoremillPortKind::Input as i32;
    let mut count = 0;
    // SAFETY: the pointer refers to a number.
    ok(unsafe { coremill_method_port_count(method, kind, &mut count) });
    let name = |index| {
        // SAFETY: a zeroed port is valid.
        let mut port: CoremillPort = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer refers to a port, whose name is valid as long as the method.
        let name = unsafe {
            ok(coremill_method_port(method, kind, index, &mut port));
            std::ffi::CStr::from_ptr(port.name)
        };
        name.to_str().expect("UTF-8").to_owned()
    };
    (0..count).map(name).collect()
}

#[test]
fn input_names_match_rust_session() {
    use coremill_graph::{Device, Session};

    let folder = tempfile::tempdir().expect("a folder");
    let package = common::package(folder.path(), TWICE);
    let compiled = folder.path().join("model.mlmodelc");
    let mut opened = Session::new(Device::Host).open(&package).expect("the package opens");
    opened.save(&compiled).expect("the compiled model is saved");
    let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cli/tests/files");
    for path in [package, compiled, files.join("total.pte")] {
        let mut opened = Session::new(Device::Host).open(&path).expect("the model opens");
        let function = opened.default_function().expect("a default function");
        let inputs = opened.inputs(&function).expect("the inputs");
        let expected: Vec<_> = inputs.into_iter().map(|input| input.name).collect();
        assert_eq!(input_names(method(load_file(&path))), expected, "{}", path.display());
        assert!(!expected.contains(&"input_0".to_owned()), "{}", path.display());
    }
}

/// On systems without Core ML, prewarming is unavailable. Invalid arguments are errors on every system.
#[test]
fn prewarm_rejects_bad_arguments_and_needs_core_ml() {
    let folder = tempfile::tempdir().expect("a scratch folder");
    let path = package(folder.path(), TWO);
    let path = CString::new(path.to_str().expect("UTF-8")).expect("no NUL");
    let cache = CString::new(folder.path().join("cache").to_str().expect("UTF-8"));
    let cache = cache.expect("no NUL");
    let options = [CoremillOption { key: c"cache_dir".as_ptr(), value: cache.as_ptr() }];
    let (mut prewarm, mut cached) = (CoremillPrewarm { id: 0 }, 7);
    let null = std::ptr::null();
    let start = |prewarm: *mut CoremillPrewarm,
                 functions: *const *const std::ffi::c_char,
                 count| {
        // SAFETY: strings are NUL-terminated, and `options` is an array of one option.
        unsafe {
            coremill_prewarm_start(path.as_ptr(), functions, count, options.as_ptr(), 1, prewarm)
        }
    };
    if !cfg!(target_vendor = "apple") {
        fails(start(&mut prewarm, std::ptr::null(), 0), Status::Unavailable);
        assert!(hint().is_some_and(|hint| hint.contains("engine")), "{:?}", hint());
        // SAFETY: as above.
        let status =
            unsafe { coremill_prewarm_is_cached(path.as_ptr(), options.as_ptr(), 1, &mut cached) };
        assert_eq!((status, cached), (Status::Unavailable, 7));
    }
    fails(start(&mut prewarm, std::ptr::null(), 1), Status::InvalidArgument);
    fails(start(&mut prewarm, [null].as_ptr(), 1), Status::InvalidArgument);
    let unknown = CoremillPrewarm { id: u64::MAX };
    let mut progress = CoremillPrewarmProgress { stage: 0, answering: 0, done: 0, total: 0 };
    // SAFETY: the pointers are null or valid.
    unsafe {
        fails(coremill_prewarm_progress(unknown, &mut progress), Status::InvalidHandle);
        fails(coremill_prewarm_wait_for_change(unknown, 0, &mut progress), Status::InvalidHandle);
        let none = std::ptr::null_mut();
        let (inputs, outputs) = (std::ptr::null(), std::ptr::null_mut());
        let status = coremill_prewarm_execute(unknown, null, inputs, 0, outputs, 0, none);
        fails(status, Status::InvalidHandle);
    }
    fails(coremill_prewarm_wait(unknown, 0), Status::InvalidHandle);
    fails(coremill_prewarm_cancel(unknown), Status::InvalidHandle);
    fails(coremill_prewarm_free(unknown), Status::InvalidHandle);
}
