//! Computes equal subexpressions once.
//!
//! ```text
//! a = relu(x = x);                     a = relu(x = x);
//! b = relu(x = x);          becomes    c = add(x = a, y = a);
//! c = add(x = a, y = b);
//! ```

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};

use super::Editor;
use coremill_mil::ir::{Binding, BlockId, Constant, ConstantData, Op, OpId};
use coremill_mil::ops::OpKind;

/// Constants above this size are equal only if they are the same region of a file. Writers deduplicate equal weights
/// anyway.
const MAX_COMPARED_BYTES: usize = 1 << 10;

/// Runs the pass and returns the number of removed operations.
pub(super) fn common_subexpression_elimination(editor: &mut Editor<'_>) -> usize {
    // The random seed prevents programs with deliberate hash collisions.
    let seed = RandomState::new().hash_one(0);
    let mut seen: HashMap<u64, Vec<OpId>> = HashMap::new();
    let mut merged = 0;
    let blocks = editor.function().blocks_in_order();
    for (block, _) in blocks {
        for id in editor.function().block(block).ops.clone() {
            let Some(op) = editor.op(id) else { continue };
            let Some(hash) = hash_of(seed, block, op) else { continue };
            let alike = seen.entry(hash).or_default();
            let first = alike.iter().copied().find(|&first| {
                // A removed operation is not in the block, either.
                editor.block_of(first) == Some(block) && same(editor.function().op(first), op)
            });
            let Some(first) = first else {
                alike.push(id);
                continue;
            };
            let firsts = &editor.function().op(first).outputs;
            let pairs: Vec<_> = op.outputs.iter().copied().zip(firsts.iter().copied()).collect();
            if pairs.iter().all(|&(old, new)| editor.can_replace(old, new)) {
                pairs.into_iter().for_each(|(old, new)| editor.replace(old, new));
                merged += 1;
            }
        }
    }
    merged
}

/// Hash of an operation, equal for equal operations; `None` if the operation must not be merged.
fn hash_of(seed: u64, block: BlockId, op: &Op) -> Option<u64> {
    let kind = op.kind()?;
    let keeps = matches!(
        kind,
        OpKind::ReadState
            | OpKind::WriteState
            | OpKind::MakeList
            | OpKind::ListWrite
            | OpKind::ListScatter
    );
    if keeps || kind.is_random() || !op.blocks.is_empty() || op.outputs.is_empty() {
        return None;
    }
    let mut hasher = Mixer(seed);
    (block, kind).hash(&mut hasher);
    for input in &op.inputs {
        hasher.write(input.name.as_ref().as_bytes());
        for binding in &input.bindings {
            match binding {
                Binding::Value(value) => hasher.write_usize(value.index()),
                Binding::Literal(constant) => hash_constant(constant, &mut hasher)?,
            }
        }
    }
    for (name, constant) in stated(op) {
        hasher.write(name.as_bytes());
        hash_constant(constant, &mut hasher)?;
    }
    Some(hasher.finish())
}

fn hash_constant(constant: &Constant, hasher: &mut Mixer) -> Option<()> {
    constant.ty.hash(hasher);
    match &constant.data {
        ConstantData::Strings(strings) => strings.hash(hasher),
        ConstantData::Bytes(_) | ConstantData::Weight(_) => match small(constant) {
            Some(bytes) => hasher.write(bytes),
            None => constant.elements()?.identity().hash(hasher),
        },
        ConstantData::Sequence(_) | ConstantData::Entries(_) => return None,
    }
    Some(())
}

/// Whether two operations without nested blocks are equal.
fn same(left: &Op, right: &Op) -> bool {
    let same_binding = |(left, right): (&Binding, &Binding)| match (left, right) {
        (Binding::Value(left), Binding::Value(right)) => left == right,
        (Binding::Literal(left), Binding::Literal(right)) => same_constant(left, right),
        _ => false,
    };
    left.operator == right.operator
        && left.inputs.len() == right.inputs.len()
        && left.inputs.iter().zip(&right.inputs).all(|(left, right)| {
            left.name == right.name
                && left.bindings.len() == right.bindings.len()
                && left.bindings.iter().zip(&right.bindings).all(same_binding)
        })
        && stated(left).count() == stated(right).count()
        && stated(left)
            .zip(stated(right))
            .all(|(left, right)| left.0 == right.0 && same_constant(left.1, right.1))
}

fn same_constant(left: &Constant, right: &Constant) -> bool {
    left.ty == right.ty
        && match (&left.data, &right.data) {
            (ConstantData::Strings(left), ConstantData::Strings(right)) => left == right,
            _ => match (small(left), small(right), left.elements(), right.elements()) {
                (Some(left), Some(right), ..) => left == right,
                (None, None, Some(left), Some(right)) => left.identity() == right.identity(),
                _ => false,
            },
        }
}

/// Attributes that affect the result.
fn stated(op: &Op) -> impl Iterator<Item = (&str, &Constant)> {
    op.attributes.iter().filter(|(name, _)| *name != "name")
}

/// Bytes of a small constant in memory.
fn small(constant: &Constant) -> Option<&[u8]> {
    let elements = constant.elements()?;
    let is_small = elements.len() <= MAX_COMPARED_BYTES && !elements.is_deferred();
    is_small.then(|| elements.as_bytes())
}

/// A fast hash function. The standard library's would dominate the time of the passes.
struct Mixer(u64);

impl Mixer {
    fn mix(&mut self, word: u64) {
        const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
        let product = u128::from(self.0 ^ word) * u128::from(ODD);
        self.0 = (product as u64) ^ (product >> 64) as u64 ^ self.0.rotate_left(23);
    }
}

impl Hasher for Mixer {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|&word| self.mix(u64::from_le_bytes(word)));
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.mix(u64::from_le_bytes(last) ^ (bytes.len() as u64) << 56);
    }

    fn write_u64(&mut self, word: u64) {
        self.mix(word);
    }

    fn write_usize(&mut self, word: usize) {
        self.mix(word as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
