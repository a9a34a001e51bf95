//! Hostile archives, one test for each kind: they are rejected quickly, with a reason, and no code is
//! executed.

use std::fs::File;
use std::io::{Cursor, Seek as _, SeekFrom, Write as _};

use coremill_prepare::prepare;
use coremill_pt2::{Error, ErrorKind, ExportedProgram, Pt2, StoredValue, read};
use coremill_tensor::Buffer;
use coremill_zip::Writer;

/// The JSON type of a tensor.
fn meta(sizes: &[i64], strides: &[i64], offset: i64) -> String {
    let list = |values: &[i64]| {
        let values: Vec<_> =
            values.iter().map(|value| format!(r#"{{"as_int":{value}}}"#)).collect();
        format!("[{}]", values.join(","))
    };
    format!(
        r#"{{"dtype":7,"sizes":{},"requires_grad":false,"device":{{"type":"cpu","index":null}},"strides":{},"storage_offset":{{"as_int":{offset}}},"layout":7}}"#,
        list(sizes),
        list(strides),
    )
}

/// A program that returns `w + w`, with `nodes` before it.
fn program(w: &str, nodes: &str) -> String {
    format!(
        r#"{{"graph_module":{{"graph":{{"inputs":[{{"as_tensor":{{"name":"w"}}}}],"outputs":[{{"as_tensor":{{"name":"add"}}}}],
"nodes":[{nodes}{{"target":"torch.ops.aten.add.Tensor","inputs":[{{"name":"self","arg":{{"as_tensor":{{"name":"w"}}}},"kind":1}},{{"name":"other","arg":{{"as_tensor":{{"name":"w"}}}},"kind":1}}],
"outputs":[{{"as_tensor":{{"name":"add"}}}}],"metadata":{{}},"name":"add"}}],
"tensor_values":{{"w":{w},"add":{w}}},"sym_int_values":{{}},"sym_bool_values":{{}},"is_single_tensor_return":false,"custom_obj_values":{{}},"sym_float_values":{{}}}},
"signature":{{"input_specs":[{{"parameter":{{"arg":{{"name":"w"}},"parameter_name":"w"}}}}],"output_specs":[{{"user_output":{{"arg":{{"as_tensor":{{"name":"add"}}}}}}}}]}},
"module_call_graph":[],"metadata":{{}},"treespec_namedtuple_fields":{{}}}},"opset_version":{{"aten":10}},"range_constraints":{{}},
"schema_version":{{"major":8,"minor":15}},"verifiers":["TRAINING"],"torch_version":"2.15.0","guards_code":[]}}"#
    )
}

fn config(path: &str, pickled: bool, meta: &str) -> String {
    format!(
        r#"{{"config":{{"w":{{"path_name":"{path}","is_param":true,"use_pickle":{pickled},"tensor_meta":{meta}}}}}}}"#
    )
}

const MODEL: &str = "archive/models/model.json";
const CONFIG: &str = "archive/data/weights/model_weights_config.json";
const WEIGHT: &str = "archive/data/weights/weight_0";

fn archive(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut writer = Writer::new(Cursor::new(Vec::new()));
    for (name, bytes) in entries {
        writer.add(name, &[bytes]).expect("writing to memory succeeds");
    }
    writer.finish().expect("writing to memory succeeds").into_inner()
}

fn read_bytes(bytes: Vec<u8>) -> Result<ExportedProgram, Error> {
    Pt2::from_bytes(Buffer::from(bytes))?.read()
}

/// An archive of a program with one weight, which has six floats.
fn two_by_three(config: &str, program: &str) -> Vec<u8> {
    archive(&[(MODEL, program.as_bytes()), (CONFIG, config.as_bytes()), (WEIGHT, &[0; 24])])
}

#[test]
fn accepts_unaltered_test_archive() {
    let w = meta(&[2, 3], &[3, 1], 0);
    let program = read_bytes(two_by_three(&config("weight_0", false, &w), &program(&w, "")));
    let program = prepare(program.expect("a program")).expect("functional");
    assert_eq!(program.graph.nodes.len(), 1);
}

#[test]
fn rejects_compressed_entries() {
    let w = meta(&[2, 3], &[3, 1], 0);
    let mut bytes = two_by_three(&config("weight_0", false, &w), &program(&w, ""));
    // Set the compression method in each directory record to 8, and the size in the archive to 4 GB.
    for at in 0..bytes.len() - 46 {
        if bytes[at..].starts_with(b"PK\x01\x02") {
            bytes[at + 10] = 8;
            bytes[at + 24..at + 28].fill(0xfe);
        }
    }
    let error = read_bytes(bytes).expect_err("the entries are compressed");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.message().contains("compressed") && error.hint().is_some(), "{error}");
}

#[test]
fn rejects_entries_beyond_end_of_file() {
    let w = meta(&[2, 3], &[3, 1], 0);
    let bytes = two_by_three(&config("weight_0", false, &w), &program(&w, ""));
    // Corrupt each size and offset of the directory in turn.
    for field in [20, 24, 42] {
        let mut corrupted = bytes.clone();
        for at in 0..corrupted.len() - 46 {
            if corrupted[at..].starts_with(b"PK\x01\x02") {
                corrupted[at + field..at + field + 4]
                    .copy_from_slice(&0xffff_fff0u32.to_le_bytes());
            }
        }
        let error = read_bytes(corrupted).expect_err("a size or offset exceeds the file");
        assert_eq!(error.kind(), ErrorKind::Malformed, "{field}: {error}");
    }
}

#[test]
fn rejects_tensors_that_exceed_their_storage() {
    let w = meta(&[2, 3], &[3, 1], 0);
    let program = program(&w, "");
    for (sizes, strides, offset) in [
        (vec![2, 4], vec![4, 1], 0),
        (vec![2, 3], vec![3, 1], 1),
        (vec![2, 3], vec![i64::MAX, 1], 0),
        (vec![i64::MAX, i64::MAX], vec![1, 1], 0),
        (vec![-2, 3], vec![3, 1], 0),
        (vec![2, 3], vec![3, 1], i64::MAX),
        (vec![2, 3], vec![1], 0),
    ] {
        let claim = meta(&sizes, &strides, offset);
        let error = read_bytes(two_by_three(&config("weight_0", false, &claim), &program))
            .expect_err("the tensor does not fit its storage");
        assert_eq!(error.kind(), ErrorKind::Malformed, "{sizes:?} {strides:?} {offset}: {error}");
        assert_eq!(error.entry(), Some(WEIGHT), "{error}");
    }
    // A few bytes with many repeated elements: the number of elements is valid, but writing them out exceeds
    // a limit.
    let repeated = meta(&[1 << 20, 1 << 20], &[0, 0], 0);
    let program = read_bytes(two_by_three(&config("weight_0", false, &repeated), &program));
    let program = program.expect("one repeated element");
    let StoredValue::Tensor(tensor) = &program.tensors["w"] else { panic!("no tensor") };
    assert_eq!(tensor.bytes().expect_err("too many elements").kind(), ErrorKind::Limit);
}

#[test]
fn weight_paths_cannot_escape_archive() {
    let w = meta(&[2, 3], &[3, 1], 0);
    for path in ["/etc/passwd", "../../../../../../etc/passwd", "C:\\\\windows\\\\win.ini", "", "."]
    {
        let error = read_bytes(two_by_three(&config(path, false, &w), &program(&w, "")))
            .expect_err("there is no such entry");
        assert_eq!(error.kind(), ErrorKind::Malformed, "{path}: {error}");
        assert!(error.message().contains("no entry"), "{path}: {error}");
    }
}

#[test]
fn rejects_deeply_nested_json_and_expressions() {
    let w = meta(&[2, 3], &[3, 1], 0);
    let config = config("weight_0", false, &w);
    let depth = 100_000;
    let graph = |inner: &str| {
        format!(
            r#"{{"target":"torch.ops.higher_order.strict_mode","inputs":[{{"name":"","arg":{{"as_graph":{{"name":"g","graph":{{"inputs":[],"outputs":[],"nodes":[{inner}],"tensor_values":{{}}}}}}}},"kind":1}}],"outputs":[],"metadata":{{}},"name":"n"}}"#
        )
    };
    let (open, close) =
        graph("\0").split_once('\0').map(|(a, b)| (a.to_owned(), b.to_owned())).expect("two parts");
    let nested = format!("{}{},", open.repeat(depth), close.repeat(depth));
    let unknown = format!(r#"{{"target":{}1{}}},"#, "[".repeat(depth), "]".repeat(depth));
    for nodes in [nested, unknown] {
        let error =
            read_bytes(two_by_three(&config, &program(&w, &nodes))).expect_err("it is too deep");
        assert_eq!(error.kind(), ErrorKind::Malformed, "{error}");
        assert_eq!(error.entry(), Some(MODEL), "{error}");
    }
    let expression =
        format!(r#"{{"as_expr":{{"expr_str":"{}s0{}"}}}}"#, "(".repeat(depth), ")".repeat(depth));
    let deep = w.replacen(r#"{"as_int":2}"#, &expression, 1);
    let error = read_bytes(two_by_three(&config, &program(&deep, ""))).expect_err("it is too deep");
    assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
}

/// An archive in the format of `torch.save` with the pickle `body`.
fn pickled(body: &[u8]) -> Vec<u8> {
    archive(&[("archive/data.pkl", body), ("archive/byteorder", b"little")])
}

#[test]
fn rejects_pickles_that_call_functions() {
    let w = meta(&[2, 3], &[3, 1], 0);
    let config = config("weight_0", false, &w);
    let program = program(&w, "");
    for body in [
        &b"\x80\x02cposix\nsystem\nX\x04\0\0\0true\x85R."[..],
        b"\x80\x02(cbuiltins\neval\nX\x01\0\0\x001\x85R}t.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.",
        b"\x80\x02ccollections\nOrderedDict\n)\x81.",
        b"\x80\x02(X\x04\0\0\0trueiposix\nsystem\n.",
    ] {
        let samples = pickled(body);
        let entries: [(&str, &[u8]); 4] = [
            (MODEL, program.as_bytes()),
            (CONFIG, config.as_bytes()),
            (WEIGHT, &[0; 24]),
            ("archive/data/sample_inputs/model.pt", &samples),
        ];
        let program = read_bytes(archive(&entries)).expect("the program itself is fine");
        let error = program.sample_inputs().expect_err("the pickle calls a function");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
}

#[test]
fn never_constructs_pickled_weight_objects() {
    let w = meta(&[2, 3], &[3, 1], 0);
    let node = r#"{"target":"torch.ops.export.access_subclass_inner_tensor.default","inputs":[{"name":"src_subclass_tensor","arg":{"as_tensor":{"name":"w"}},"kind":1},{"name":"attr","arg":{"as_string":"qdata"},"kind":1}],"outputs":[{"as_tensor":{"name":"part"}}],"metadata":{},"name":"part"},"#;
    let used = program(&w, node)
        .replace(r#""tensor_values":{"#, &format!(r#""tensor_values":{{"part":{w},"#));
    let used = used.replace(
        r#""outputs":[{"as_tensor":{"name":"add"}}],"#,
        r#""outputs":[{"as_tensor":{"name":"part"}}],"#,
    );
    let used = used.replacen(
        r#""outputs":[{"as_tensor":{"name":"part"}}],"metadata":{},"name":"add""#,
        r#""outputs":[{"as_tensor":{"name":"add"}}],"metadata":{},"name":"add""#,
        1,
    );
    let used = used.replace(
        r#"{"user_output":{"arg":{"as_tensor":{"name":"add"}}}}"#,
        r#"{"user_output":{"arg":{"as_tensor":{"name":"part"}}}}"#,
    );
    for body in [
        &b"\x80\x02cposix\nsystem\nX\x04\0\0\0true\x85R."[..],
        // A tensor subclass whose state has a function call in place of an inner tensor.
        b"\x80\x02ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n_rebuild_wrapper_subclass\ncevil\nClass\n)}X\x05\0\0\0qdatacposix\nsystem\nX\x04\0\0\0true\x85RstR.",
    ] {
        let object = pickled(body);
        let config = config("weight_0", true, &w);
        let entries: [(&str, &[u8]); 3] =
            [(MODEL, used.as_bytes()), (CONFIG, config.as_bytes()), (WEIGHT, &object)];
        let program = read_bytes(archive(&entries))
            .expect("pickled weights are not decoded while reading");
        let error = prepare(program).expect_err("the pickled object has no inner tensor `qdata`");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert_eq!(error.node(), Some("part"), "{error}");
    }
}

#[test]
fn rejects_long_chains_of_mutated_views() {
    let w = meta(&[2, 3], &[3, 1], 0);
    let call = |target: &str, source: &str, more: &str, name: &str| {
        format!(
            r#"{{"target":"torch.ops.aten.{target}","inputs":[{{"name":"self","arg":{{"as_tensor":{{"name":"{source}"}}}},"kind":1}}{more}],"outputs":[{{"as_tensor":{{"name":"{name}"}}}}],"metadata":{{}},"name":"{name}"}},"#
        )
    };
    let mut nodes = call("clone.default", "w", "", "v0");
    let mut metas = format!(r#""v0":{w},"#);
    let other = r#",{"name":"other","arg":{"as_int":1},"kind":1}"#;
    for index in 1..900 {
        nodes += &call("slice.Tensor", &format!("v{}", index - 1), "", &format!("v{index}"));
        metas += &format!(r#""v{index}":{w},"#);
    }
    for index in 1..900 {
        nodes += &call("add_.Scalar", &format!("v{index}"), other, &format!("a{index}"));
        metas += &format!(r#""a{index}":{w},"#);
    }
    let text = program(&w, &nodes)
        .replace(r#""tensor_values":{"#, &format!(r#""tensor_values":{{{metas}"#));
    let program = read_bytes(two_by_three(&config("weight_0", false, &w), &text));
    let error = prepare(program.expect("a program")).expect_err("too many values");
    assert_eq!(error.kind(), ErrorKind::Limit, "{error}");
}

/// A directory entry with all numbers in the zip64 field.
fn directory_record(name: &str, checksum: u32, size: u64, at: u64) -> Vec<u8> {
    let mut record = b"PK\x01\x02".to_vec();
    record.extend([45, 0, 45, 0]);
    record.extend([0; 8]);
    record.extend(checksum.to_le_bytes());
    record.extend([0xff; 8]);
    record.extend((name.len() as u16).to_le_bytes());
    record.extend(28u16.to_le_bytes());
    record.extend([0; 10]);
    record.extend([0xff; 4]);
    record.extend(name.as_bytes());
    record.extend([1, 0, 24, 0]);
    for number in [size, size, at] {
        record.extend(number.to_le_bytes());
    }
    record
}

#[test]
fn maps_zip64_archives_over_4_gb() {
    const ROWS: u64 = 1 << 30;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("large.pt2");
    let mut file = File::create(&path).expect("a file");
    let w = meta(&[ROWS as i64, 2], &[2, 1], 0);
    let (program, config) = (program(&w, ""), config("weight_0", false, &w));
    let mut directory = Vec::new();
    // The checksum of a mebibyte of zeros, doubled until it covers the weight.
    let mut zeros = crc32fast::Hasher::new();
    zeros.update(&vec![0; 1 << 20]);
    for _ in 0..((ROWS * 8) >> 20).ilog2() {
        let half = zeros.clone();
        zeros.combine(&half);
    }
    let of_zeros = zeros.finalize();
    // The weight is a hole in the file, 8 GB long, so the following entries are beyond 32 bits.
    for (name, bytes, size) in [
        (WEIGHT, &b""[..], ROWS * 8),
        (MODEL, program.as_bytes(), program.len() as u64),
        (CONFIG, config.as_bytes(), config.len() as u64),
    ] {
        let at = file.stream_position().expect("a position");
        let mut local = b"PK\x03\x04".to_vec();
        local.extend([0; 22]);
        local.extend((name.len() as u16).to_le_bytes());
        local.extend([0; 2]);
        local.extend(name.as_bytes());
        file.write_all(&local).expect("written");
        file.write_all(bytes).expect("written");
        file.seek(SeekFrom::Start(at + local.len() as u64 + size)).expect("a hole");
        let checksum = if bytes.is_empty() { of_zeros } else { crc32fast::hash(bytes) };
        directory.extend(directory_record(name, checksum, size, at));
    }
    let at = file.stream_position().expect("a position");
    let end = at + directory.len() as u64;
    let mut tail = directory.clone();
    tail.extend(b"PK\x06\x06");
    tail.extend(44u64.to_le_bytes());
    tail.extend([45, 0, 45, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    for number in [3, 3, directory.len() as u64, at] {
        tail.extend(number.to_le_bytes());
    }
    tail.extend(b"PK\x06\x07\0\0\0\0");
    tail.extend(end.to_le_bytes());
    tail.extend(1u32.to_le_bytes());
    tail.extend(b"PK\x05\x06\0\0\0\0");
    tail.extend([0xff; 12]);
    tail.extend([0; 2]);
    file.write_all(&tail).expect("written");
    drop(file);

    let program = read(&path).expect("a large program");
    let StoredValue::Tensor(tensor) = &program.tensors["w"] else { panic!("no tensor") };
    assert_eq!(tensor.sizes, [ROWS, 2]);
    let bytes = tensor.contiguous().expect("contiguous bytes");
    assert_eq!(bytes.len() as u64, ROWS * 8);
    assert_eq!(bytes.as_bytes()[bytes.len() - 1], 0);
}
