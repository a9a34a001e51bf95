//! Packages and compiled models that the C interface loads on the stand-ins for Core ML, as in an app without the
//! engine and the MIL reader.

use std::ffi::{CStr, CString};
use std::fs;
use std::path::{Path, PathBuf};

use coremill_capi::error::{CoremillStatus, coremill_error_message};
use coremill_capi::method::*;
use coremill_capi::model::*;
use coremill_capi::{CoremillOption, CoremillPort, CoremillTensor};
use coremill_cache::Store;

/// Configuration of the stand-ins: inputs and outputs correspond in the order of their names.
const MODEL: &str = "{ functions = {
    main = { does = affine; inputs = ({ name = a; shape = (2); }, { name = z; shape = (2); });
        outputs = ({ name = p; shape = (2); }, { name = q; shape = (2); }); };
    sum = { does = add; inputs = ({ name = x; shape = (2); }); outputs = ({ name = y; shape = (2); });
        states = ({ name = total; type = fp32; shape = (2); }); }; }; }";

/// A field of a protobuf message.
fn field(number: u8, content: &[u8]) -> Vec<u8> {
    let tag = u16::from(number) << 3 | 2;
    let tag = [tag as u8 & 0x7f | if tag > 0x7f { 0x80 } else { 0 }, (tag >> 7) as u8];
    let length = u8::try_from(content.len()).expect("it is short");
    assert!(length < 0x80, "one byte tells the length");
    let mut bytes = tag[..if tag[1] > 0 { 2 } else { 1 }].to_vec();
    bytes.push(length);
    bytes.extend(content);
    bytes
}

/// The functions in a model file; their inputs are not sorted by name.
fn description() -> Vec<u8> {
    let function = |name: &str, inputs: &[&str], outputs: &[&str]| {
        let names = |number: u8, names: &[&str]| -> Vec<u8> {
            names.iter().flat_map(|name| field(number, &field(1, name.as_bytes()))).collect()
        };
        let parts = [field(1, name.as_bytes()), names(2, inputs), names(3, outputs)];
        field(20, &parts.concat())
    };
    let (main, sum) = (function("main", &["z", "a"], &["q", "p"]), function("sum", &["x"], &["y"]));
    [sum, main, field(21, b"main")].concat()
}

fn package(folder: &Path) -> PathBuf {
    const MANIFEST: &str = r#"{"rootModelIdentifier": "id", "itemInfoEntries": {"id": {"path": "com.apple.CoreML/model.mlmodel"}}}"#;
    let path = folder.join("model.mlpackage");
    let inner = path.join("Data/com.apple.CoreML");
    fs::create_dir_all(inner.join("weights")).expect("made");
    fs::write(path.join("Manifest.json"), MANIFEST).expect("written");
    fs::write(path.join("model.plist"), MODEL).expect("written");
    fs::write(inner.join("model.mlmodel"), field(2, &description())).expect("written");
    fs::write(inner.join("weights/weight.bin"), vec![7; 3 << 20]).expect("written");
    path
}

fn compiled(folder: &Path) -> PathBuf {
    let path = folder.join("model.mlmodelc");
    fs::create_dir_all(&path).expect("made");
    let description = description();
    let length = (description.len() as u64).to_le_bytes();
    let data = [&[0xf6, 1, 0, 0][..], &[0; 24], &7u64.to_le_bytes(), b"generic", &[0; 32], &length]
        .concat();
    fs::write(path.join("coremldata.bin"), [data, description].concat()).expect("written");
    fs::write(path.join("model.plist"), MODEL).expect("written");
    path
}

#[track_caller]
fn ok(status: CoremillStatus) {
    // SAFETY: the text is valid and terminated by zero.
    let message = unsafe { CStr::from_ptr(coremill_error_message()) };
    assert_eq!(status, CoremillStatus::Ok, "{}", message.to_string_lossy());
}

fn load(path: &Path, cache: &Path, name: Option<&CStr>) -> CoremillMethod {
    let [path, cache] = [path, cache]
        .map(|path| CString::new(path.to_str().expect("UTF-8")).expect("there is no zero"));
    let option = |key: &'static CStr, value: &CStr| CoremillOption {
        key: key.as_ptr(),
        value: value.as_ptr(),
    };
    let options = [option(c"cache_dir", &cache), option(c"compute_unit", c"cpu_only")];
    let (mut model, mut method) = (CoremillModel { id: 0 }, CoremillMethod { id: 0 });
    let mut count = 0;
    // SAFETY: texts are terminated by zero, and the result pointers are valid.
    unsafe {
        ok(coremill_model_load_file(path.as_ptr(), options.as_ptr(), 2, &mut model));
        ok(coremill_model_method_count(model, &mut count));
        ok(coremill_method_load(model, name.map_or(std::ptr::null(), CStr::as_ptr), &mut method));
    }
    assert_eq!(count, 2);
    ok(coremill_model_free(model));
    method
}

/// The names of a method's inputs, outputs or states.
fn names(method: CoremillMethod, kind: i32) -> Vec<String> {
    let mut count = 0;
    // SAFETY: the pointer is valid for a number.
    ok(unsafe { coremill_method_port_count(method, kind, &mut count) });
    let name = |index| {
        let mut port = CoremillPort::default();
        // SAFETY: the pointer is valid for a port, whose name is terminated by zero.
        let name = unsafe {
            ok(coremill_method_port(method, kind, index, &mut port));
            CStr::from_ptr(port.name)
        };
        assert_eq!((port.scalar_type, port.rank, port.largest[0]), (6, 1, 2));
        name.to_string_lossy().into_owned()
    };
    (0..count).map(name).collect()
}

fn run(method: CoremillMethod, inputs: &mut [[f32; 2]]) -> Vec<[f32; 2]> {
    let tensor = |elements: &mut [f32; 2]| {
        let mut sizes = [0; 16];
        sizes[0] = 2;
        let data = elements.as_mut_ptr().cast();
        CoremillTensor { data, length: 8, scalar_type: 6, rank: 1, sizes, dim_order: [0; 16] }
    };
    let mut results = vec![[0.0; 2]; inputs.len()];
    let inputs: Vec<_> = inputs.iter_mut().map(tensor).collect();
    let mut outputs: Vec<_> = results.iter_mut().map(tensor).collect();
    let (given, wanted) = (inputs.as_ptr(), outputs.as_mut_ptr());
    let (inputs, outputs) = (inputs.len(), outputs.len());
    // SAFETY: the tensors and their memory are valid.
    ok(unsafe {
        coremill_method_execute(method, given, inputs, wanted, outputs, std::ptr::null())
    });
    results
}

#[test]
fn packages_and_compiled_models_run() {
    let folder = tempfile::tempdir().expect("a scratch directory");
    let cache = folder.path().join("cache");
    for path in [package(folder.path()), compiled(folder.path())] {
        let main = load(&path, &cache, None);
        assert_eq!(
            (names(main, 0), names(main, 1)),
            (vec!["z".into(), "a".into()], vec!["q".into(), "p".into()])
        );
        let results = run(main, &mut [[1.0, 2.0], [10.0, 20.0]]);
        assert_eq!(results, [[3.0, 5.0], [21.0, 41.0]]);

        let sums = [load(&path, &cache, Some(c"sum")), load(&path, &cache, Some(c"sum"))];
        assert_eq!(
            (names(sums[0], 0), names(sums[0], 2)),
            (vec!["x".into()], vec!["total".into()])
        );
        assert_eq!(run(sums[0], &mut [[1.0, 2.0]]), [[1.0, 2.0]]);
        assert_eq!(run(sums[0], &mut [[1.0, 2.0]]), [[2.0, 4.0]]);
        assert_eq!(
            run(sums[1], &mut [[5.0, 5.0]]),
            [[5.0, 5.0]],
            "instances have states of their own"
        );
        ok(coremill_method_states_copy(sums[0], sums[1]));
        assert_eq!(run(sums[1], &mut [[0.0, 1.0]]), [[2.0, 5.0]]);
        for method in [main, sums[0], sums[1]] {
            ok(coremill_method_free(method));
        }
    }
    let store = Store::open(&cache, &Default::default()).expect("opens");
    assert_eq!(store.list().expect("listed").len(), 2, "each is compiled once");
    let known = std::fs::read_dir(cache.join("values")).expect("read").count();
    assert_eq!(known, 2, "files that did not change are not read again");
}
