//! Properties of every `.pt2` archive. The fuzz target and the test of the seeds share them.

use std::io::Cursor;

use coremill_prepare::prepare;
use coremill_pt2::{Argument, ExportedProgram, Graph, Output, Pt2, StoredValue, ValueId};
use coremill_tensor::Buffer;
use coremill_zip::Writer;

/// Small enough that gathering a tensor's elements is fast.
const ELEMENTS: u64 = 1 << 12;

/// An archive is read or refused. A program that was read can be traversed, and is prepared or refused. A prepared
/// program is functional, and defines each value once before its uses.
///
/// Bytes that are not a zip archive are the entries of one, separated by zeros: the program, the configuration of its
/// weights, and its sample inputs. Returns whether a program was prepared.
pub(crate) fn archive(data: &[u8]) -> bool {
    let bytes = if data.starts_with(b"PK") { with_checksums(data) } else { wrapped(data) };
    let Ok(archive) = Pt2::from_bytes(Buffer::from(bytes)) else { return false };
    let mut any = false;
    for name in archive.programs().into_iter().take(4) {
        let Ok(program) = archive.read_program(name) else { continue };
        walk(&program);
        if let Ok(prepared) = prepare(program) {
            walk(&prepared);
            assert_eq!(prepared.graph.inputs.len(), prepared.inputs.len());
            assert_eq!(prepared.graph.outputs.len(), prepared.outputs.len());
            functional(&prepared.graph);
            any = true;
        }
    }
    any
}

/// A zip archive with corrected checksums, because changed entries could not be read with the original ones.
fn with_checksums(data: &[u8]) -> Vec<u8> {
    const CENTRAL: &[u8] = b"PK\x01\x02";
    const END: &[u8] = b"PK\x05\x06";
    let mut bytes = data.to_vec();
    let number = |bytes: &[u8], at: usize| {
        bytes.get(at..at + 4).map(|it| u32::from_le_bytes([it[0], it[1], it[2], it[3]]) as usize)
    };
    let short = |bytes: &[u8], at: usize| {
        bytes.get(at..at + 2).map(|it| usize::from(u16::from_le_bytes([it[0], it[1]])))
    };
    // Uses the central directory, since an entry may itself be an archive with local headers.
    let end = data.windows(END.len()).rposition(|window| window == END);
    let mut next = end.and_then(|end| number(data, end + 16));
    while let Some(record) = next
        && data.get(record..).is_some_and(|rest| rest.starts_with(CENTRAL))
    {
        let lengths = [28, 30, 32].map(|at| short(data, record + at).unwrap_or(0));
        next = Some(record + 46 + lengths.iter().sum::<usize>());
        let fixed = || {
            let (method, length) = (short(data, record + 10)?, number(data, record + 20)?);
            let header = number(data, record + 42)?;
            let start = header + 30 + short(data, header + 26)? + short(data, header + 28)?;
            let stored = data.get(start..start.checked_add(length)?).filter(|_| method == 0)?;
            Some((header, checksum(stored)))
        };
        let Some((header, checksum)) = fixed() else { continue };
        for at in [record + 16, header + 14] {
            if let Some(field) = bytes.get_mut(at..at + 4) {
                field.copy_from_slice(&checksum.to_le_bytes());
            }
        }
    }
    bytes
}

/// The checksum of zip archives, computed bit by bit: entries are small.
fn checksum(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |sum, &byte| {
        (0..8).fold(sum ^ u32::from(byte), |sum, _| {
            (sum >> 1) ^ if sum & 1 == 1 { 0xedb8_8320 } else { 0 }
        })
    })
}

fn wrapped(data: &[u8]) -> Vec<u8> {
    const NAMES: [&str; 3] = [
        "archive/models/model.json",
        "archive/data/weights/model_weights_config.json",
        "archive/data/sample_inputs/model.pt",
    ];
    let mut writer = Writer::new(Cursor::new(Vec::new()));
    for (name, part) in NAMES.iter().zip(data.splitn(NAMES.len(), |byte| *byte == 0)) {
        writer.add(name, &[part]).expect("writing to memory succeeds");
    }
    for weight in ["archive/data/weights/weight_0", "archive/data/weights/weight_1"] {
        writer.add(weight, &[&[1; 256]]).expect("writing to memory succeeds");
    }
    writer.finish().expect("writing to memory succeeds").into_inner()
}

fn walk(program: &ExportedProgram) {
    // An error is a valid result.
    drop(program.sample_inputs());
    for stored in program.tensors.values() {
        if let StoredValue::Tensor(tensor) = stored {
            tensor.contiguous();
            if tensor.elements() < ELEMENTS {
                let length = tensor.bytes().expect("its elements were checked").len();
                assert_eq!(length as u64, tensor.elements() * tensor.dtype.bytes());
            }
        }
    }
    defined(&program.graph);
}

/// Every value is defined once, by an input or a node, before its uses.
fn defined(graph: &Graph) {
    let mut seen = vec![false; graph.values.len()];
    let mut define = |id: ValueId| {
        let seen = &mut seen[id.index()];
        assert!(!*seen, "{id} is defined twice");
        *seen = true;
    };
    for input in &graph.inputs {
        input.for_each_value(&mut define);
    }
    for node in &graph.nodes {
        node.origin.module_path();
        node.origin.source();
        for output in &node.outputs {
            match output {
                Output::Value(id) => define(*id),
                Output::List(ids) => ids.iter().for_each(|id| define(*id)),
                Output::Unused | Output::None => {}
            }
        }
    }
    let mut known = vec![false; graph.values.len()];
    for input in &graph.inputs {
        input.for_each_value(&mut |id| known[id.index()] = true);
    }
    for node in &graph.nodes {
        for argument in node.arguments.iter().chain(node.keywords.iter().map(|(_, value)| value)) {
            argument.for_each_value(&mut |id| {
                assert!(known[id.index()], "{} uses {id} before it is defined", node.name);
            });
            if let Argument::Graph(inner) = argument {
                defined(&inner.graph);
            }
        }
        for output in &node.outputs {
            match output {
                Output::Value(id) => known[id.index()] = true,
                Output::List(ids) => ids.iter().for_each(|id| known[id.index()] = true),
                Output::Unused | Output::None => {}
            }
        }
    }
    for output in &graph.outputs {
        output
            .for_each_value(&mut |id| assert!(known[id.index()], "the output {id} is not defined"));
    }
}

fn functional(graph: &Graph) {
    for node in &graph.nodes {
        let writes = node.schema.as_ref().is_some_and(|schema| schema.mutates());
        assert!(!writes, "{} writes to its arguments", node.target);
        for argument in &node.arguments {
            if let Argument::Graph(inner) = argument {
                functional(&inner.graph);
            }
        }
    }
}
