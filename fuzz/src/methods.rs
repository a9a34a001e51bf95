//! ExecuTorch programs generated from bytes: kernels are called with valid and invalid arguments.

use coremill_pte::Program as Source;
use coremill_pte::program::{
    Chain, ExecutionPlan, Instruction, Operator, Place, Placement, ScalarType, ShapeDynamism,
    Tensor, Value, ValueId,
};
use coremill_runtime::{
    Limits, LoadOptions, Program, Tensor as Given, Value as GivenValue, operators,
};
use coremill_tensor::Buffer;

/// Size of the only arena in bytes.
const ARENA: u64 = 4096;

/// Decisions that are read from bytes until these are used up.
struct Choices<'a> {
    bytes: &'a [u8],
}

impl Choices<'_> {
    fn byte(&mut self) -> u8 {
        match self.bytes.split_first() {
            Some((first, rest)) => {
                self.bytes = rest;
                *first
            }
            None => 0,
        }
    }

    fn below(&mut self, count: usize) -> usize {
        usize::from(self.byte()) % count.max(1)
    }

    /// Mostly small numbers of both signs, occasionally a very large one.
    fn int(&mut self) -> i64 {
        match self.byte() {
            0xff => i64::MAX,
            0xfe => i64::MIN,
            0xfd => i64::from(i32::MAX) + 1,
            byte => i64::from(byte as i8) / 8,
        }
    }

    fn double(&mut self) -> f64 {
        match self.byte() {
            0xff => f64::NAN,
            0xfe => f64::INFINITY,
            0xfd => f64::NEG_INFINITY,
            byte => f64::from(byte as i8) / 16.0,
        }
    }
}

struct Maker<'a> {
    choices: Choices<'a>,
    plan: ExecutionPlan,
    given: Vec<GivenValue>,
    /// The type and sizes of the last tensor, which many kernels require for the next one.
    before: (ScalarType, Vec<i32>),
}

impl Maker<'_> {
    fn add(&mut self, value: Value) -> ValueId {
        self.plan.values.push(value);
        ValueId(self.plan.values.len() as u32 - 1)
    }

    fn tensor(&mut self) -> ValueId {
        let types = ScalarType::ALL;
        let common = [
            ScalarType::Float,
            ScalarType::Long,
            ScalarType::Half,
            ScalarType::Bool,
            ScalarType::Int,
            ScalarType::Double,
        ];
        let scalar_type = match self.choices.byte() {
            byte @ 0..16 => types[usize::from(byte) % types.len()],
            byte @ 16..96 => common[usize::from(byte) % common.len()],
            _ => self.before.0,
        };
        let sizes = match self.choices.byte() {
            byte @ 0..128 => {
                let rank = usize::from(byte) % 5;
                (0..rank).map(|_| self.choices.below(5) as i32).collect()
            }
            _ => self.before.1.clone(),
        };
        let rank = sizes.len();
        self.before = (scalar_type, sizes.clone());
        let offset = 16 * self.choices.below(200) as u64;
        let mut tensor =
            Tensor::new(scalar_type, sizes, Placement::Planned(Place { arena: 0, offset }));
        let kind = self.choices.byte();
        if kind & 1 == 1 {
            tensor.dynamism = ShapeDynamism::Bound;
        }
        if kind & 6 == 6 && rank == 4 {
            tensor.dim_order = vec![0, 2, 3, 1];
        }
        if kind & 24 == 24 {
            // The caller provides as many elements as the sizes require.
            let bytes = tensor.byte_length().unwrap_or(0) as usize;
            let elements: Vec<u8> = (0..bytes).map(|_| self.choices.byte()).collect();
            let sizes = tensor.sizes.iter().map(|size| *size as usize).collect();
            let order = tensor.dim_order.clone();
            let given = Given::with_order(scalar_type, sizes, order, Buffer::from(elements));
            let id = self.add(Value::Tensor(tensor));
            if let Ok(given) = given {
                self.plan.inputs.push(id);
                self.given.push(GivenValue::Tensor(given));
            }
            return id;
        }
        self.add(Value::Tensor(tensor))
    }

    /// A value for an argument, mostly of the kind that its letter means.
    fn argument(&mut self, letter: char) -> ValueId {
        let decision = self.choices.byte();
        if !self.plan.values.is_empty() && decision & 7 == 7 {
            return ValueId(self.choices.below(self.plan.values.len()) as u32);
        }
        if letter.is_ascii_lowercase() && decision & 1 == 1 {
            return self.add(Value::Null);
        }
        let value = match letter.to_ascii_uppercase() {
            'T' | 'M' | 'V' => return self.tensor(),
            'L' => {
                let count = self.choices.below(4);
                Value::TensorList((0..count).map(|_| self.tensor()).collect())
            }
            'O' => {
                let count = self.choices.below(4);
                let one =
                    |maker: &mut Self| (maker.choices.byte() & 1 == 1).then(|| maker.tensor());
                Value::OptionalTensorList((0..count).map(|_| one(self)).collect())
            }
            'I' => Value::Int(self.choices.int()),
            'B' => Value::Bool(self.choices.byte() & 1 == 1),
            'D' => Value::Double(self.choices.double()),
            'S' => match decision & 3 {
                0 => Value::Bool(self.choices.byte() & 1 == 1),
                1 => Value::Double(self.choices.double()),
                _ => Value::Int(self.choices.int()),
            },
            'N' => {
                let count = self.choices.below(6);
                let ids = (0..count).map(|_| {
                    let value = Value::Int(self.choices.int());
                    self.add(value)
                });
                Value::IntList(ids.collect())
            }
            'A' => Value::BoolList((0..3).map(|_| self.choices.byte() & 1 == 1).collect()),
            'F' => Value::DoubleList((0..2).map(|_| self.choices.double()).collect()),
            _ => {
                let words = ["none", "tanh", "trunc", "floor", ""];
                Value::String(words[self.choices.below(words.len())].to_owned())
            }
        };
        self.add(value)
    }

    fn instruction(&mut self) -> Instruction {
        let decision = self.choices.byte();
        let count = self.plan.values.len();
        if decision < 16 && count > 0 {
            let mut any = || ValueId(self.choices.below(count) as u32);
            return match decision % 4 {
                0 => Instruction::Move { from: any(), to: any() },
                1 => Instruction::JumpFalse { condition: any(), target: u32::from(decision) },
                2 => Instruction::Free(any()),
                _ => Instruction::JumpFalse { condition: any(), target: 0 },
            };
        }
        let all: Vec<(&str, &str)> = operators().collect();
        let (name, signature) =
            all[(usize::from(decision) << 3 | self.choices.below(8)) % all.len()];
        let (inputs, outputs) = signature.split_once('>').unwrap_or((signature, ""));
        let mut arguments: Vec<ValueId> =
            inputs.chars().chain(outputs.chars()).map(|letter| self.argument(letter)).collect();
        if !name.starts_with("executorch_prim::et_") {
            // The result argument: a number has a separate value.
            arguments.push(match arguments.last() {
                Some(last) if signature.contains('>') => *last,
                _ => self.add(Value::Int(0)),
            });
        }
        let (name, overload) = name.split_once('.').unwrap_or((name, ""));
        let operator = Operator { name: name.to_owned(), overload: overload.to_owned() };
        self.plan.operators.push(operator);
        let operator = self.plan.operators.len() as u32 - 1;
        Instruction::KernelCall { operator, arguments }
    }
}

/// Runs a generated program twice. Returns whether it ran.
pub(crate) fn methods(data: &[u8]) -> bool {
    let plan = ExecutionPlan {
        name: "forward".to_owned(),
        arenas: vec![ARENA],
        ..ExecutionPlan::default()
    };
    let before = (ScalarType::Float, vec![2, 3]);
    let mut maker = Maker { choices: Choices { bytes: data }, plan, given: Vec::new(), before };
    let count = 1 + maker.choices.below(3);
    let mut instructions: Vec<Instruction> = (0..count).map(|_| maker.instruction()).collect();
    for instruction in &mut instructions {
        if let Instruction::JumpFalse { target, .. } = instruction {
            *target %= count as u32 + 1;
        }
    }
    let Maker { mut plan, given, .. } = maker;
    plan.outputs = (0..plan.values.len() as u32).map(ValueId).collect();
    plan.chains = vec![Chain { instructions, ..Chain::default() }];
    let source = Source { plans: vec![plan], ..Source::default() };
    let limits = Limits { memory: 1 << 24, instructions: 100, ..Limits::default() };
    let options = LoadOptions { limits, threads: 1, ..LoadOptions::default() };
    let Ok(program) = Program::new(source, options) else { return false };
    let Ok(mut method) = program.method("forward") else { return false };
    let first = method.execute(&given).is_ok();
    let second = method.execute(&given).is_ok();
    first && second
}

/// Reads bytes as a program, and loads its methods.
pub(crate) fn program(data: &[u8]) -> bool {
    let Ok(source) = coremill_pte::from_buffer(&Buffer::from(data.to_vec())) else { return false };
    let limits = Limits { memory: 1 << 24, instructions: 1000, ..Limits::default() };
    let options = LoadOptions { limits, threads: 1, ..LoadOptions::default() };
    let Ok(program) = Program::new(source, options) else { return false };
    let names: Vec<String> = program.methods().map(str::to_owned).collect();
    let mut is_sound = true;
    for name in &names {
        let Ok(mut method) = program.method(name) else {
            is_sound = false;
            continue;
        };
        // Methods without inputs are run.
        is_sound &= method.inputs().is_ok() && method.execute(&[]).is_ok();
    }
    is_sound
}
