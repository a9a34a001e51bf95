use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use coremill_mil::ir::{
    Attributes, Binding, Constant, ConstantData, Function, Op, OpId, TensorType, ValueId,
};
use coremill_mil::model::Model;
use coremill_mil::ops::OpKind;
use coremill_tensor::{Buffer, DType};
use half::{bf16, f16};

/// Constants of fewer elements are no weights.
const SMALL: u64 = 10;

/// Fills weights whose files are missing with random elements, and returns the number of weights.
///
/// Float matrices preserve the magnitude of their input. Float vectors are between 0.5 and 1, so
/// that variances are positive. Integers of at most 8 bits are arbitrary; wider ones are 0, which
/// is a valid index. The mask of a sparse weight has as many ones as the weight has elements. The
/// result depends only on the seed, and weights at the same location of a file are equal.
///
/// ```
/// let text = "program(1.3) {
///     func main<ios17>(tensor<fp32, [2]> x) {
///         tensor<fp32, [2]> y = add(x = x, y = tensor<fp32, [2]>(BLOBFILE(
///             path = string(\"@model_path/weights/none.bin\"), offset = uint64(64))));
///     } -> (y);
/// }";
/// let mut model = coremill::read_text(&mut text.as_bytes(), "text", ".")?.model;
/// assert!(coremill::verify(&model).is_err());
/// assert_eq!(coremill::fill_weights(&mut model, 1), 1);
/// assert!(coremill::verify(&model).is_ok());
/// # Ok::<(), coremill::Error>(())
/// ```
pub fn fill_weights(model: &mut Model, seed: u64) -> usize {
    let mut filler = Filler { seed, filled: 0 };
    for function in &mut model.program.functions {
        filler.function(function);
    }
    filler.attributes(&mut model.program.attributes);
    filler.filled
}

/// Replaces all weights by random elements, as [`fill_weights`] makes them, and returns their number.
///
/// Structures stay: the masks of sparse weights, and integers that are no codes of compressed weights, such as indices.
///
/// ```
/// use coremill::mil::{ir::Constant, model::describe, text};
///
/// let text = "program(1.3) {
///     func main<ios17>(tensor<fp32, [2]> x) {
///         tensor<fp32, [2]> y = add(x = x, y = tensor<fp32, [2]>([0x1p+3, 0x1p+4]));
///     } -> (y);
/// }";
/// let mut model = describe(text::parse(text, &text::NoWeights)?)?;
/// // Small constants are part of the program, and no weights.
/// assert_eq!(coremill::randomize_weights(&mut model, 1), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn randomize_weights(model: &mut Model, seed: u64) -> usize {
    let mut filler = Filler { seed, filled: 0 };
    for function in &mut model.program.functions {
        filler.randomize(function);
    }
    filler.filled
}

struct Filler {
    seed: u64,
    filled: usize,
}

/// Parts of compressed weights.
#[derive(Default)]
struct Parts {
    masks: HashSet<ValueId>,
    codes: HashSet<ValueId>,
}

impl Parts {
    fn of(function: &Function) -> Parts {
        let mut parts = Parts::default();
        for (_, op) in function.all_ops().filter(|(_, op)| is_expansion(op)) {
            for (name, binding) in op.all_bindings() {
                if let Binding::Value(value) = binding {
                    let is_mask = name.ends_with("mask");
                    let set = if is_mask { &mut parts.masks } else { &mut parts.codes };
                    set.insert(*value);
                }
            }
        }
        parts
    }
}

/// Whether an operation expands a compressed weight.
fn is_expansion(op: &Op) -> bool {
    op.kind().is_some_and(OpKind::is_constexpr)
}

impl Filler {
    /// Replaces the weights of a function.
    fn randomize(&mut self, function: &mut Function) {
        let parts = Parts::of(function);
        for index in 0..function.op_count() {
            let op = function.op_mut(OpId::from_index(index));
            let is_expansion = is_expansion(op);
            let output = op.outputs.first();
            let is_mask = output.is_some_and(|output| parts.masks.contains(output));
            let is_code = is_expansion || output.is_some_and(|output| parts.codes.contains(output));
            let attributes: Vec<String> = op
                .attributes
                .iter()
                .map(|(name, _)| name.to_owned())
                .filter(|name| !is_mask && !name.ends_with("mask"))
                .collect();
            for name in attributes {
                if let Some(constant) = op.attributes.get_mut(&name) {
                    self.replace(constant, is_code);
                }
            }
            for input in op.inputs.iter_mut().filter(|input| !input.name.ends_with("mask")) {
                for binding in &mut input.bindings {
                    if let Binding::Literal(constant) = binding {
                        self.replace(constant, is_expansion);
                    }
                }
            }
        }
    }

    /// Replaces a weight. Integers are replaced only if they are codes.
    fn replace(&mut self, constant: &mut Constant, is_code: bool) {
        let is_float = constant.tensor_type().is_some_and(|ty| ty.dtype.is_float());
        if !is_float && !is_code {
            return;
        }
        match &mut constant.data {
            ConstantData::Weight(weight) => {
                weight.data = None;
                self.constant(constant);
            }
            ConstantData::Bytes(bytes) => {
                let Some(tensor) = constant.ty.as_tensor() else { return };
                let is_small = tensor.element_count().is_none_or(|count| count < SMALL);
                let seed = self.seed.wrapping_add(self.filled as u64);
                if let Some(drawn) = elements(tensor, seed).filter(|_| !is_small) {
                    *bytes = Buffer::from(drawn);
                    self.filled += 1;
                }
            }
            ConstantData::Strings(_) | ConstantData::Sequence(_) | ConstantData::Entries(_) => {}
        }
    }

    fn function(&mut self, function: &mut Function) {
        for index in 0..function.op_count() {
            let op = function.op_mut(OpId::from_index(index));
            for binding in op.inputs.iter_mut().flat_map(|input| &mut input.bindings) {
                if let Binding::Literal(constant) = binding {
                    self.constant(constant);
                }
            }
            let mask = op.attributes.get("mask").filter(|mask| is_missing(mask)).is_some();
            self.attributes(&mut op.attributes);
            if mask && op.kind() == Some(OpKind::ConstexprSparseToDense) {
                self.mask(&mut op.attributes);
            }
        }
        self.attributes(&mut function.attributes);
    }

    fn attributes(&mut self, attributes: &mut Attributes) {
        attributes.values_mut().for_each(|constant| self.constant(constant));
    }

    fn constant(&mut self, constant: &mut Constant) {
        let Constant { ty, data } = constant;
        match data {
            ConstantData::Weight(weight) if weight.data.is_none() => {
                let Some(tensor) = ty.as_tensor() else { return };
                let mut hasher = DefaultHasher::new();
                match &weight.place {
                    Some(place) => (&place.file, place.offset).hash(&mut hasher),
                    None => self.filled.hash(&mut hasher),
                }
                if let Some(bytes) = elements(tensor, self.seed ^ hasher.finish()) {
                    weight.data = Some(Buffer::from(bytes));
                    self.filled += 1;
                }
            }
            ConstantData::Sequence(parts) => parts.iter_mut().for_each(|part| self.constant(part)),
            ConstantData::Entries(entries) => {
                entries.iter_mut().for_each(|(_, value)| self.constant(value));
            }
            ConstantData::Weight(_) | ConstantData::Bytes(_) | ConstantData::Strings(_) => {}
        }
    }

    /// Sets as many bits of a sparse weight's mask as it has elements.
    fn mask(&mut self, attributes: &mut Attributes) {
        let count = attributes
            .get("nonzero_data")
            .and_then(|data| usize::try_from(data.tensor_type()?.element_count()?).ok());
        let mask = attributes.get_mut("mask");
        let (Some(count), Some(Constant { ty, data: ConstantData::Weight(weight) })) =
            (count, mask)
        else {
            return;
        };
        let Some(bytes) = ty.as_tensor().and_then(TensorType::storage_bytes) else { return };
        let of_byte = |at: usize| match count.saturating_sub(8 * at) {
            left @ 0..8 => !(0xffu8 << left),
            _ => 0xff,
        };
        weight.data = Some(Buffer::from((0..bytes as usize).map(of_byte).collect::<Vec<u8>>()));
    }
}

fn is_missing(constant: &Constant) -> bool {
    matches!(&constant.data, ConstantData::Weight(weight) if weight.data.is_none())
}

/// Random packed elements, `None` for unsupported types.
fn elements(tensor: &TensorType, seed: u64) -> Option<Vec<u8>> {
    let count = usize::try_from(tensor.element_count()?).ok()?;
    let size = usize::try_from(tensor.storage_bytes()?).ok()?;
    let mut draw = Draw(seed);
    // Number of elements that are summed for one element of the result.
    let summed = tensor.known_shape()?.iter().skip(1).product::<u64>().max(1);
    let is_vector = tensor.rank() < 2;
    let mut float = || {
        let unit = (draw.next() >> 40) as f32 / (1 << 24) as f32;
        if is_vector { 0.5 + unit / 2.0 } else { (2.0 * unit - 1.0) / (summed as f32 / 3.0).sqrt() }
    };
    let bytes = match tensor.dtype {
        DType::Fp16 => (0..count).flat_map(|_| f16::from_f32(float()).to_le_bytes()).collect(),
        DType::Bf16 => (0..count).flat_map(|_| bf16::from_f32(float()).to_le_bytes()).collect(),
        DType::Fp32 => (0..count).flat_map(|_| float().to_le_bytes()).collect(),
        DType::Fp64 => (0..count).flat_map(|_| f64::from(float()).to_le_bytes()).collect(),
        dtype if dtype.is_integer() && dtype.bits()? <= 8 => {
            let mut bytes: Vec<u8> = (0..size).map(|_| (draw.next() >> 56) as u8).collect();
            let used = count * dtype.bits()? as usize % 8;
            if let (Some(last), 1..) = (bytes.last_mut(), used) {
                *last &= !(0xff << used);
            }
            bytes
        }
        _ => vec![0; size],
    };
    Some(bytes)
}

/// The random number generator splitmix64.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }
}
