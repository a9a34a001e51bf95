//! Reads archives of older versions of torch, unchanged and damaged. `oracle/corpora/archives.py` documents how they
//! were created; the oracle tests compare their contents with torch.

use std::io::Cursor;

use coremill_pt2::{
    Argument, Dialect, ErrorKind, InputKind, Meta, Pt2, Size, StoredValue, Target, TreeSpec,
};
use coremill_tensor::Buffer;
use coremill_zip::{Archive, Writer};

const ARCHIVES: [(&str, &[u8], (u64, u64)); 4] = [
    ("2.5.1", include_bytes!("archives/torch-2.5.1.pt2"), (7, 3)),
    ("2.6.0", include_bytes!("archives/torch-2.6.0.pt2"), (8, 2)),
    ("2.7.1", include_bytes!("archives/torch-2.7.1.pt2"), (8, 7)),
    ("2.8.0", include_bytes!("archives/torch-2.8.0.pt2"), (8, 8)),
];

fn read(bytes: Vec<u8>) -> Result<coremill_pt2::ExportedProgram, coremill_pt2::Error> {
    let program = Pt2::from_bytes(Buffer::from(bytes))?.read()?;
    program.sample_inputs()?;
    for stored in program.tensors.values() {
        if let StoredValue::Tensor(tensor) = stored {
            tensor.bytes()?;
        }
    }
    Ok(program)
}

#[test]
fn reads_archives_of_older_torch_versions() {
    for (version, bytes, schema) in ARCHIVES {
        let program = read(bytes.to_vec()).unwrap_or_else(|error| panic!("{version}: {error}"));
        assert_eq!(program.schema_version, schema, "{version}");
        let dialect = if version == "2.5.1" { Dialect::Aten } else { Dialect::Training };
        assert_eq!(program.dialect, dialect, "{version}");
        assert_eq!(program.extra_files["note.txt"].as_bytes(), b"kept", "{version}");

        let name = |kind: &InputKind| match kind {
            InputKind::Parameter(name) => Some(name.clone()),
            _ => None,
        };
        let parameters: Vec<_> = program.inputs.iter().filter_map(name).collect();
        assert!(parameters.contains(&"turned".to_owned()), "{version}: {parameters:?}");
        let StoredValue::Tensor(turned) = &program.tensors["turned"] else { panic!("{version}") };
        assert_eq!((&*turned.sizes, &*turned.strides), (&[2, 3][..], &[1, 2][..]), "{version}");
        assert!(turned.is_parameter && turned.contiguous().is_none(), "{version}");
        assert_eq!(turned.bytes().expect("its elements").len(), 24, "{version}");
        let (StoredValue::Tensor(first), StoredValue::Tensor(second)) =
            (&program.tensors["first.weight"], &program.tensors["second.weight"])
        else {
            panic!("{version}")
        };
        assert_eq!(first.storage_name, second.storage_name, "{version}");

        let clamp =
            program.graph.nodes.iter().find(|node| node.target.is("aten", "clamp", "default"));
        let clamp = clamp.unwrap_or_else(|| panic!("{version}: no clamp"));
        assert_eq!(
            clamp.arguments[1..],
            [Argument::Float(f64::NEG_INFINITY), Argument::Float(9.5)]
        );
        assert_eq!(clamp.argument("max"), Some(&Argument::Float(9.5)), "{version}");
        assert!(clamp.origin.source().is_some_and(|source| source.file.ends_with("archives.py")));
        let cond = program
            .graph
            .nodes
            .iter()
            .find(|node| node.target == Target::HigherOrder("cond".to_owned()));
        let cond = cond.unwrap_or_else(|| panic!("{version}: no cond"));
        let Argument::Graph(yes) = &cond.arguments[1] else { panic!("{version}: no graph") };
        assert!(yes.graph.nodes[0].target.is("aten", "sin", "default"), "{version}");

        let rows = program.symbols.iter().find(|symbol| symbol.maximum == Some(64));
        let rows = rows.unwrap_or_else(|| panic!("{version}: {:?}", program.symbols));
        assert_eq!((rows.minimum, rows.hint), (Some(2), Some(2)), "{version}");
        let user = program.inputs.iter().position(|kind| *kind == InputKind::User);
        let Argument::Value(x) = program.graph.inputs[user.expect("an input")] else {
            panic!("{version}")
        };
        let Meta::Tensor(meta) = &program.graph.value(x).meta else { panic!("{version}") };
        assert_eq!(meta.sizes[0].symbol(), program.symbols.find(&rows.name), "{version}");
        assert_eq!(meta.sizes[1], Size::Fixed(4), "{version}");

        let signature = program.modules[0].signature.as_ref().expect("the call signature");
        assert_eq!(signature.inputs.leaves(), 4, "{version}");
        assert!(
            matches!(&signature.outputs, TreeSpec::Node { kind, .. } if kind == "builtins.tuple")
        );
        let samples = program.sample_inputs().expect("readable").expect("sample inputs");
        assert_eq!((samples.positional.len(), samples.keywords.len()), (2, 1), "{version}");
    }
}

#[test]
fn rejects_truncated_archives() {
    let (_, bytes, _) = ARCHIVES[3];
    for length in (0..bytes.len()).step_by(211) {
        let error = read(bytes[..length].to_vec()).expect_err("the archive is truncated");
        assert!(matches!(error.kind(), ErrorKind::Malformed | ErrorKind::Unsupported), "{error}");
    }
}

#[test]
fn damaged_archives_do_not_panic() {
    let mut refused = 0;
    let mut tried = 0;
    for (_, bytes, _) in ARCHIVES {
        for at in (0..bytes.len()).step_by(307) {
            for flip in [0x01, 0x80, 0xff] {
                let mut damaged = bytes.to_vec();
                damaged[at] ^= flip;
                tried += 1;
                refused += usize::from(read(damaged).is_err());
            }
        }
    }
    assert!(refused > tried / 4, "only {refused} of {tried} damaged archives were rejected");
}

/// Replaces text by text of the same length in every entry, including nested archives.
fn replace(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    if !bytes.starts_with(b"PK\x03\x04") {
        let mut changed = bytes.to_vec();
        for at in 0..=bytes.len().saturating_sub(from.len()) {
            if bytes[at..].starts_with(from) {
                changed[at..at + to.len()].copy_from_slice(to);
            }
        }
        return changed;
    }
    let archive = Archive::open(Buffer::from(bytes.to_vec())).expect("an archive");
    let mut writer = Writer::new(Cursor::new(Vec::new()));
    for name in archive.names() {
        let entry = archive.stored(name).expect("an intact entry");
        writer
            .add(name, &[&replace(entry.as_bytes(), from, to)])
            .expect("writing to memory succeeds");
    }
    writer.finish().expect("writing to memory succeeds").into_inner()
}

#[test]
fn detects_flipped_byte_in_weights() {
    let mut found = 0;
    for (name, bytes, _) in ARCHIVES {
        let archive = Archive::open(Buffer::from(bytes.to_vec())).expect("an archive");
        let Some(weight) = archive.names().find(|name| name.ends_with("weights/model.pt")) else {
            continue;
        };
        let content = archive.stored(weight).expect("an intact entry").as_bytes().to_vec();
        let at = bytes.windows(content.len()).position(|window| window == content);
        let at = at.expect("the entry is not compressed");
        let mut flipped = bytes.to_vec();
        flipped[at + content.len() / 2] ^= 0x10;
        let error = read(flipped).expect_err(name);
        assert!(error.to_string().contains("the checksum must be"), "{name}: {error}");
        found += 1;
    }
    assert!(found > 0, "no archive has an entry `weights/model.pt`");
}

#[test]
fn pickles_are_not_executed() {
    let (_, bytes, _) = ARCHIVES[0];
    let hostile = replace(
        bytes,
        b"ctorch._utils\n_rebuild_tensor_v2\n",
        b"cbuiltins000\nexecutes_some_thing\n",
    );
    let error = read(hostile).expect_err("the pickle refers to a function");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert_eq!(error.entry(), Some("serialized_state_dict.pt"));
    assert!(error.message().contains("`builtins000.executes_some_thing`"), "{error}");
}

#[test]
fn errors_name_entry_node_and_cause() {
    let (_, bytes, _) = ARCHIVES[3];
    for (from, to, entry, node, message) in [
        (
            r#"{"name": "min", "#,
            r#"{"name": "mim", "#,
            "archive/models/model.json",
            Some("clamp"),
            "argument `mim`",
        ),
        (
            r#"{"as_float": 9.5}"#,
            r#"{"as_flaot": 9.5}"#,
            "archive/models/model.json",
            Some("torch.ops.aten.clamp.default"),
            "as_flaot",
        ),
        (r#""major": 8,"#, r#""major": 9,"#, "archive/models/model.json", None, "version 9.8"),
        (
            r#""parameter_name": "turned""#,
            r#""parameter_name": "burned""#,
            "archive/models/model.json",
            None,
            "`burned`",
        ),
    ] {
        let error = read(replace(bytes, from.as_bytes(), to.as_bytes())).expect_err(from);
        assert_eq!(error.entry(), Some(entry), "{error}");
        assert_eq!(error.node(), node, "{error}");
        assert!(error.message().contains(message), "{error}");
    }
}

#[test]
fn rejects_non_archives_and_forged_entry_counts() {
    for bytes in
        [&b""[..], b"PK", b"{}", &[0; 100_000], b"PK\x05\x06\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"]
    {
        let error = read(bytes.to_vec()).expect_err("it is not an archive");
        assert!(error.hint().is_some(), "{error}");
    }
    // A zip64 end record with an entry count of `u64::MAX`.
    let mut forged = b"PK\x06\x06".to_vec();
    forged.extend([0; 28]);
    forged.extend(u64::MAX.to_le_bytes());
    forged.extend([0; 16]);
    forged.extend(b"PK\x06\x07\0\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0");
    forged.extend(b"PK\x05\x06\0\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\0\0");
    assert_eq!(read(forged).expect_err("the entry count is forged").kind(), ErrorKind::Limit);
}
