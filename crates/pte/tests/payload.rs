//! Payloads of Core ML delegates: serialized directories, references, and the files that the backend reads.

use coremill_pte::coreml::{
    DebugInfo, Directory, Entry, Interface, Metadata, Methods, PathPart, Payload, Reference,
};
use coremill_pte::program::{Delegate, NamedData, Program};
use coremill_pte::{ByteRope, ErrorKind};
use coremill_tensor::Buffer;

const METADATA: &str =
    r#"{"inputNames": ["x", "\u00e9"], "outputNames": ["y"], "identifier": "executorch_1"}"#;

fn directory() -> Directory {
    let mut directory = Directory::new("lowered_module");
    let mut file = |path: &str, content: &[u8]| {
        directory.insert(path, content.to_vec()).expect("a sound path");
    };
    file("metadata.json", METADATA.as_bytes());
    file("model.mlpackage/Manifest.json", b"{}");
    file("model.mlpackage/Data/com.apple.CoreML/model.mlmodel", b"model {\"}");
    file("model.mlpackage/Data/com.apple.CoreML/weights/weight.bin", &[7; 300]);
    file("model.mlpackage/Data/nothing", b"");
    directory.insert_directory("model.mlpackage/Data/empty").expect("a sound path");
    directory
}

fn blob(description: &str) -> ByteRope {
    let mut bytes = b"0123456789".to_vec();
    bytes.extend(description.bytes().rev());
    Buffer::from(bytes).into()
}

#[test]
fn round_trips_payload_directories() {
    let written = directory();
    let data = written.to_data().expect("written");
    assert_eq!(data.to_buffer().as_bytes()[..300], [7; 300], "weights come first");
    let read = Directory::read(&data).expect("read");
    assert_eq!(read, written);
    assert_eq!(read.to_data().expect("written again"), data);
    let empty: Vec<&str> = read
        .entries()
        .filter(|(_, entry)| *entry == Entry::EmptyDirectory)
        .map(|(path, _)| path)
        .collect();
    assert_eq!(empty, ["model.mlpackage/Data/empty"]);

    // Trailing zeros, which writers of large directories append, are ignored.
    let mut padded = data.clone();
    padded.push(vec![0; 10_000]);
    assert_eq!(Directory::read(&padded).expect("read"), written);
}

#[test]
fn large_directories_align_files_to_pages() {
    let mut large = Directory::new("lowered_module");
    // One buffer repeated many times is a large file that needs no memory.
    let part = Buffer::from(vec![1; 1 << 20]);
    large.insert("weights", std::iter::repeat_n(part, 1025).collect::<ByteRope>()).expect("sound");
    large.insert("a", b"a".to_vec()).expect("sound");
    large.insert("b", b"b".to_vec()).expect("sound");
    let data = large.to_data().expect("written");
    let mut found = [0; 1];
    data.read_at((1025 << 20) + (16 << 10), &mut found).expect("in range");
    assert_eq!(&found, b"b");
    let read = Directory::read(&data).expect("read");
    assert_eq!(read.file("a"), large.file("a"));
    assert_eq!(read.file("weights").map(ByteRope::len), Some(1025 << 20));
}

#[test]
fn rejects_hostile_directories() {
    let file = |name: &str, offset: u64, size: u64| {
        format!(
            r#"{{"children":{{}},"dataRegion":{{"offset":{offset},"size":{size}}},"kind":0,"name":"{name}"}}"#
        )
    };
    let folder = |name: &str, children: &str| {
        format!(
            r#"{{"children":{{{children}}},"dataRegion":{{"offset":0,"size":0}},"kind":1,"name":"{name}"}}"#
        )
    };
    let nodes = |nodes: &[String]| format!(r#"{{"nodes":[{}]}}"#, nodes.join(","));
    let named = |name: &str| nodes(&[file(name, 0, 1), folder("r", &format!(r#""{name}":0"#))]);
    let good = nodes(&[file("a", 0, 10), folder("r", r#""a":0"#)]);
    Directory::read(&blob(&good)).expect("the unmodified description is valid");
    let deep = (0..20).map(|depth| match depth {
        0 => file("a", 0, 1),
        _ => folder(if depth == 19 { "r" } else { "a" }, &format!(r#""a":{}"#, depth - 1)),
    });
    let many: Vec<String> = (0..5000).map(|_| file("a", 0, 0)).chain([folder("r", "")]).collect();
    let cases: Vec<(&str, String, &str)> = vec![
        ("nothing", String::new(), "does not end with a directory description"),
        ("cut short", good[..good.len() - 2].to_owned(), "cannot parse the directory description"),
        ("no nodes", nodes(&[]), "the directory description has no root"),
        ("parent", named(".."), "the name `..` is not a valid file name"),
        ("same", named("."), "is not a valid file name"),
        ("inner parent", named("../a"), "contains a character"),
        ("absolute", named("/etc/passwd"), "contains a character"),
        ("backslash", named("..\\\\a"), "contains a character"),
        ("drive", named("C:"), "contains a character"),
        ("zero", named("a\\u0000b"), "contains a character"),
        ("empty name", named(""), "the name `` is empty"),
        ("long name", named(&"a".repeat(300)), "is too long"),
        ("root name", nodes(&[folder("..", "")]), "is not a valid file name"),
        ("root is a file", nodes(&[file("a", 0, 1)]), "the file `a` must not be the root"),
        (
            "outside",
            nodes(&[file("a", 1, 1 << 40), folder("r", r#""a":0"#)]),
            "has 1099511627776 bytes",
        ),
        (
            "overflow",
            nodes(&[file("a", u64::MAX, 2), folder("r", r#""a":0"#)]),
            "has 2 bytes at offset 1844",
        ),
        (
            "negative",
            good.replace("\"size\":10", "\"size\":-1"),
            "cannot parse the directory description",
        ),
        (
            "itself",
            nodes(&[folder("r", r#""r":0"#)]),
            "is listed as entry 0, which is missing, already used or named differently",
        ),
        (
            "later",
            nodes(&[folder("a", r#""r":1"#), folder("r", r#""a":0"#)]),
            "entry 1, which is missing",
        ),
        ("no such", nodes(&[folder("r", r#""a":7"#)]), "entry 7, which is missing"),
        ("other name", good.replace("\"a\":0", "\"b\":0"), "`b` is listed as entry 0"),
        (
            "twice",
            nodes(&[file("a", 0, 1), folder("b", r#""a":0"#), folder("r", r#""a":0,"b":1"#)]),
            "entry 0, which is missing",
        ),
        (
            "nowhere",
            nodes(&[file("a", 0, 1), folder("r", "")]),
            "the entry `a` is not in a directory",
        ),
        (
            "overlapping",
            nodes(&[file("a", 0, 6), file("b", 5, 3), folder("r", r#""a":0,"b":1"#)]),
            "the files at offsets 0 and 5 overlap",
        ),
        (
            "file with entries",
            good.replace("\"kind\":1", "\"kind\":0"),
            "the file `r` must not be the root",
        ),
        ("other kind", good.replace("\"kind\":0", "\"kind\":2"), "has unknown kind 2"),
        (
            "unknown field",
            good.replace("\"kind\":0", "\"kind\":0,\"mode\":1"),
            "unknown field `mode`",
        ),
        ("deep", nodes(&deep.collect::<Vec<_>>()), "the maximum is 16"),
        ("many", nodes(&many), "the maximum is 4096"),
    ];
    for (name, description, message) in cases {
        let error = Directory::read(&blob(&description)).expect_err(name);
        assert!(error.to_string().contains(message), "{name}: {error}");
    }
    assert!(Directory::read(&Buffer::from(vec![0; 100_000]).into()).is_err());
    assert!(Directory::read(&ByteRope::new()).is_err());
}

#[test]
fn rejects_oversized_directory_descriptions() {
    let name = "a".repeat(200);
    let long = format!(r#"{{"nodes":[{{"children":{{"{}"#, format!("{name}\":0,\"").repeat(60_000));
    let error = Directory::read(&blob(&long)).expect_err("it is too long");
    assert!(error.to_string().contains("more than 10485760 bytes"), "{error}");
}

#[test]
fn rejects_escaping_and_conflicting_paths() {
    let mut directory = directory();
    for path in ["../a", "/a", "a/../b", "a//b", "a\\b", "c:d", ""] {
        directory.insert(path, b"a".to_vec()).expect_err(path);
        directory.insert_directory(path).expect_err(path);
    }
    for path in ["metadata.json/a", "model.mlpackage", "model.mlpackage/Data/empty"] {
        let error = directory.insert(path, b"a".to_vec()).expect_err(path);
        assert!(error.to_string().contains("is both a file and a directory"), "{error}");
    }
    directory.insert_directory("metadata.json").expect_err("a file");
    directory.insert("model.mlpackage/Data/empty/a", b"a".to_vec()).expect("no longer empty");
    assert!(directory.empty_below("model.mlpackage").is_empty());
}

fn program_with(payload: ByteRope, named: &[(&str, ByteRope)]) -> (Program, Delegate) {
    let named_data = named.iter().map(|(key, data)| NamedData {
        key: (*key).to_owned(),
        data: data.clone(),
        alignment: 1,
        ..NamedData::default()
    });
    let program = Program {
        delegate_data: vec![payload],
        named_data: named_data.collect(),
        ..Program::default()
    };
    (program, Delegate::default())
}

#[test]
fn reads_metadata_and_model_from_payload() {
    let (program, delegate) = program_with(directory().to_data().expect("written"), &[]);
    let payload = Payload::of(&program, &delegate).expect("a payload");
    assert_eq!(payload.interface().expect("the only method").inputs, ["x", "é"]);
    assert_eq!(payload.function(), None);
    assert_eq!(payload.metadata.to_bytes(), METADATA.as_bytes());
    let (compiled, files) = payload.model().expect("a model");
    let paths: Vec<&str> = files.iter().map(|(path, _)| path.as_str()).collect();
    assert!(!compiled);
    let model = "Data/com.apple.CoreML/model.mlmodel";
    let weights = "Data/com.apple.CoreML/weights/weight.bin";
    assert_eq!(paths, [model, weights, "Data/nothing", "Manifest.json"]);

    let mut without_model = Directory::new("lowered_module");
    without_model.insert("metadata.json", METADATA.as_bytes().to_vec()).expect("sound");
    let payload = Payload::read(&without_model.to_data().expect("written")).expect("read");
    assert!(payload.model().is_err());
}

#[test]
fn resolves_payload_references_to_named_data() {
    let interface =
        |input: &str| Interface { inputs: vec![input.to_owned()], outputs: vec!["y".to_owned()] };
    let metadata = Metadata {
        identifier: "executorch_2".to_owned(),
        methods: Methods::Several(vec![
            ("forward".to_owned(), interface("token")),
            ("prefill".to_owned(), interface("tokens")),
        ]),
        unknown: Default::default(),
    };
    assert_eq!(
        String::from_utf8(metadata.to_bytes()).expect("text"),
        "{\"identifier\": \"executorch_2\", \"methods\": {\"forward\": {\"inputNames\": [\"token\"], \
         \"outputNames\": [\"y\"]}, \"prefill\": {\"inputNames\": [\"tokens\"], \"outputNames\": [\"y\"]}}}"
    );
    assert_eq!(Metadata::read(&Buffer::from(metadata.to_bytes())).expect("read"), metadata);
    let mut directory = directory();
    directory.insert("metadata.json", metadata.to_bytes()).expect("sound");
    let directory = directory.to_data().expect("written");

    let reference = |key: &str, function: &str| {
        let reference = Reference { key: key.to_owned(), function: function.to_owned() };
        ByteRope::from(reference.to_bytes())
    };
    assert_eq!(
        reference("k", "forward").to_buffer().as_bytes(),
        br#"CMJR{"version": 1, "key": "k", "functionName": "forward"}"#
    );
    let named = [("other", ByteRope::new()), ("k", directory.clone())];
    let (program, delegate) = program_with(reference("k", "prefill"), &named);
    let payload = Payload::of(&program, &delegate).expect("a payload");
    assert_eq!(payload.function(), Some("prefill"));
    assert_eq!(payload.interface().expect("the method exists").inputs, ["tokens"]);

    let cases = [
        (reference("forged", "prefill"), "the program has no named data `forged`"),
        (reference("other", "prefill"), "named data `other`, a serialized directory"),
        (reference("k", "main"), "unknown method `main`; the methods are `forward` and `prefill`"),
        (ByteRope::from(b"CMJR".to_vec()), "cannot parse the JSON"),
        (
            ByteRope::from(
                b"CMJR{\"version\": 2, \"key\": \"k\", \"functionName\": \"f\"}".to_vec(),
            ),
            "version 2",
        ),
        (directory, "does not select one"),
    ];
    for (data, message) in cases {
        let (program, delegate) = program_with(data, &named);
        let error =
            Payload::of(&program, &delegate).and_then(|payload| payload.interface().cloned());
        let error = error.expect_err(message);
        assert!(error.to_string().contains(message), "{error}");
    }
    let (program, _) = program_with(ByteRope::new(), &[]);
    let delegate = Delegate { data: 3, ..Delegate::default() };
    let error = Payload::of(&program, &delegate).expect_err("there is no such data");
    assert_eq!(error.kind(), ErrorKind::Malformed);
}

#[test]
fn rejects_invalid_metadata() {
    for (text, message) in [
        ("[]", "cannot parse the JSON"),
        (r#"{"inputNames": [], "outputNames": ["y"]}"#, "`identifier` must be a non-empty string"),
        (
            r#"{"inputNames": [], "outputNames": ["y"], "identifier": ""}"#,
            "`identifier` must be a non-empty string",
        ),
        (
            r#"{"inputNames": [], "outputNames": [], "identifier": "i"}"#,
            "`outputNames` must not be empty",
        ),
        (
            r#"{"inputNames": [1], "outputNames": ["y"], "identifier": "i"}"#,
            "`inputNames` must contain only names",
        ),
        (r#"{"outputNames": ["y"], "identifier": "i"}"#, "`inputNames` must be a list"),
        (r#"{"methods": [], "identifier": "i"}"#, "`methods` is not an object"),
        (r#"{"methods": {"f": 1}, "identifier": "i"}"#, "method `f` is not an object"),
        (
            r#"{"methods": {"f": {"inputNames": []}}, "identifier": "i"}"#,
            "method `f`: `outputNames`",
        ),
    ] {
        let error = Metadata::read(&Buffer::from(text.as_bytes().to_vec())).expect_err(text);
        assert!(error.to_string().contains(message), "{text}: {error}");
    }
}

#[test]
fn debug_info_matches_executorch_json_format() {
    let mut info = DebugInfo { version_info: "9.0".to_owned(), ..DebugInfo::default() };
    let path = [
        PathPart::Program,
        PathPart::Function("main".to_owned()),
        PathPart::Block,
        PathPart::Operation { operator: "mul".to_owned(), output: "y".to_owned() },
    ];
    info.insert(&path, vec![2]);
    let bytes = info.to_bytes();
    assert_eq!(
        String::from_utf8(bytes.clone()).expect("text"),
        "{\"versionInfo\": \"9.0\", \"debugSymbolToOperationPath\": {\"y:mul\": [{\"Type\": \"Program\"}, \
         {\"Type\": \"Function\", \"Name\": \"main\"}, {\"Type\": \"Block\"}, {\"Type\": \"Operation\", \
         \"Operator\": \"mul\", \"Output\": \"y\"}]}, \"debugSymbolToHandles\": {\"y:mul\": [2]}}"
    );
    assert_eq!(DebugInfo::read(&Buffer::from(bytes)).expect("read"), info);
}
