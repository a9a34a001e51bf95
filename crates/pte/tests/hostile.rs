//! Damaged and malicious programs.

mod common;

use common::sample;
use coremill_pte::program::{
    Delegate, Instruction, Place, Placement, Program, ScalarType, Tensor, Value, ValueId,
};
use coremill_pte::{ByteRope, ErrorKind, from_buffer, to_data};
use coremill_tensor::Buffer;

fn bytes() -> Vec<u8> {
    to_data(&sample()).expect("written").to_buffer().as_bytes().to_vec()
}

fn read(bytes: Vec<u8>) -> Result<Program, coremill_pte::Error> {
    from_buffer(&Buffer::from(bytes))
}

#[test]
fn rejects_truncated_programs() {
    let whole = bytes();
    for length in 0..whole.len() {
        let error = read(whole[..length].to_vec()).expect_err("the program is truncated");
        let kind = if length < 8 { ErrorKind::OtherFormat } else { ErrorKind::Malformed };
        assert_eq!(error.kind(), kind, "{length}: {error}");
    }
}

#[test]
fn changed_bytes_do_not_panic() {
    let whole = bytes();
    let mut refused = 0;
    for at in 0..whole.len() {
        for value in [0, 0x80, whole[at] ^ 1, whole[at].wrapping_add(4)] {
            let mut changed = whole.clone();
            changed[at] = value;
            match read(changed) {
                // A program that was read can be written, or results in an error.
                Ok(program) => drop(to_data(&program)),
                Err(_) => refused += 1,
            }
        }
    }
    assert!(refused > whole.len(), "only {refused} changed bytes were rejected");
}

#[test]
fn rejects_other_formats_and_newer_versions() {
    let error = read(b"PK\x03\x04 some archive".to_vec()).expect_err("another format");
    assert_eq!(error.kind(), ErrorKind::OtherFormat);
    assert_eq!(error.to_string(), "this is not an ExecuTorch program");
    let mut newer = bytes();
    newer[6..8].copy_from_slice(b"13");
    let error = read(newer).expect_err("another version");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert_eq!(error.to_string(), "programs of version `ET13` are not supported");
}

#[test]
fn rejects_headers_with_wrong_sizes() {
    let whole = bytes();
    let length = whole.len() as u64;
    for (at, value) in
        [(16, length + 1), (16, u64::MAX), (24, u64::MAX), (24, length), (32, length)]
    {
        let mut changed = whole.clone();
        changed[at..at + 8].copy_from_slice(&value.to_le_bytes());
        let error = read(changed).expect_err("the header's sizes exceed the file");
        assert!(error.to_string().contains("its header declares"), "{error}");
    }
    let mut changed = whole.clone();
    changed[12..16].copy_from_slice(&23u32.to_le_bytes());
    let error = read(changed).expect_err("the header is too short");
    assert!(error.to_string().contains("the header has 23 bytes"), "{error}");
    // The older form of the header lacks the length of the segments.
    let mut changed = whole;
    changed[12..16].copy_from_slice(&24u32.to_le_bytes());
    assert_eq!(read(changed).expect("the older form"), sample());
}

fn refuse(change: impl FnOnce(&mut Program), expected: &str) {
    let mut program = sample();
    change(&mut program);
    let error = to_data(&program).expect_err(expected);
    assert_eq!(error.kind(), ErrorKind::Unwritable, "{error}");
    assert!(error.to_string().contains(expected), "{error}");
}

/// Reader and writer share their validation, so this covers both.
#[test]
fn rejects_out_of_range_references_and_invalid_tensors() {
    let value = |index: usize, value: Value| {
        move |program: &mut Program| {
            program.plans[0].values[index] = value;
        }
    };
    let float = |sizes: &[i32], placement: Placement| {
        Value::Tensor(Tensor::new(ScalarType::Float, sizes.to_vec(), placement))
    };
    let planned = |offset| Placement::Planned(Place { arena: 0, offset });
    let instruction = |instruction: Instruction| {
        move |program: &mut Program| {
            program.plans[0].chains[0].instructions[0] = instruction;
        }
    };
    let beyond = ValueId(1000);

    refuse(
        |program| program.plans[0].inputs[0] = beyond,
        "inputs: value 1000 is out of range; there are 19",
    );
    refuse(
        |program| program.plans[0].outputs[0] = beyond,
        "outputs: value 1000 is out of range; there are 19",
    );
    refuse(
        |program| program.plans[0].chains[0].inputs[0] = beyond,
        "chain 0: value 1000 is out of range; there are 19",
    );
    refuse(|program| program.plans[1].name = "forward".to_owned(), "two methods with this name");
    refuse(
        |program| program.plans[0].delegates[0] = Delegate { data: 7, ..Delegate::default() },
        "delegate 0: data 7 is out of range; there are 2",
    );
    refuse(
        value(9, Value::IntList(vec![beyond])),
        "value %9: value 1000 is out of range; there are 19",
    );
    refuse(
        value(9, Value::IntList(vec![ValueId(0)])),
        "the list refers to %0, which must be an integer",
    );
    refuse(value(12, Value::TensorList(vec![ValueId(3)])), "%3, which must be a preceding tensor");
    refuse(
        value(12, Value::TensorList(vec![ValueId(14)])),
        "%14, which must be a preceding tensor",
    );
    refuse(
        value(12, Value::TensorList(vec![ValueId(12)])),
        "%12, which must be a preceding tensor",
    );
    refuse(
        value(13, Value::OptionalTensorList(vec![Some(ValueId(3))])),
        "%3, which must be a preceding tensor or null",
    );
    refuse(
        value(0, float(&[2, 2], Placement::Constant(2))),
        "constant 2 is out of range; there are 2",
    );
    refuse(value(0, float(&[2, 3], Placement::Constant(1))), "has 24 bytes; constant 1 has 16");
    refuse(
        value(0, float(&[2, 2], planned(40))),
        "16 bytes at offset 40 exceed an arena of 48 bytes",
    );
    refuse(value(0, float(&[2, 2], planned(u64::MAX))), "exceed an arena of 48 bytes");
    refuse(
        value(0, float(&[2, 2], Placement::Planned(Place { arena: 2, offset: 0 }))),
        "arena 2 is out of range; there are 2",
    );
    refuse(value(0, float(&[-1], planned(0))), "the sizes [-1] are invalid");
    refuse(value(0, float(&[i32::MAX; 4], planned(0))), "are invalid");
    refuse(value(0, float(&[1; 17], planned(0))), "the rank must be at most 16, got 17");
    refuse(
        value(0, float(&[2], Placement::External(None))),
        "is stored in another file, but has no name",
    );
    let initial = Placement::Initialized { initial: 1, place: Place::default() };
    refuse(value(0, float(&[2], initial)), "initial value 1 is out of range; there are 1");
    for order in [vec![0], vec![0, 0], vec![0, 2], vec![0, 1, 2]] {
        let tensor = Tensor::new(ScalarType::Float, vec![2, 2], planned(0));
        let tensor = Tensor { dim_order: order, ..tensor };
        refuse(value(0, Value::Tensor(tensor)), "is not a permutation of 2 dimensions");
    }
    let call = Instruction::KernelCall { operator: 2, arguments: vec![] };
    refuse(instruction(call), "chain 0, instruction 0: operator 2 is out of range; there are 2");
    let call = Instruction::KernelCall { operator: 0, arguments: vec![beyond] };
    refuse(instruction(call), "instruction 0: value 1000 is out of range; there are 19");
    let call = Instruction::DelegateCall { delegate: 2, arguments: vec![] };
    refuse(instruction(call), "delegate 2 is out of range; there are 2");
    let jump = Instruction::JumpFalse { condition: ValueId(6), target: 6 };
    refuse(instruction(jump), "instruction 6 is out of range; there are 6");
    refuse(
        instruction(Instruction::Move { from: ValueId(0), to: beyond }),
        "value 1000 is out of range; there are 19",
    );
    refuse(instruction(Instruction::Free(beyond)), "value 1000 is out of range; there are 19");
    refuse(
        |program| program.plans[0].arenas[1] = 1 << 63,
        "an arena of 9223372036854775808 bytes is too large",
    );
    refuse(|program| program.named_data[0].alignment = 0, "must be a power of two, got 0");
    refuse(|program| program.constants[1] = ByteRope::new(), "constant 1 has 0");
}
