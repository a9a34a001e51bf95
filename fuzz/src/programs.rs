//! Small programs generated from bytes: a few operations on a few inputs, most of which pass the verifier, often with
//! unusual arguments.

use coremill_mil::infer::{KnownElements, Scalar, analyze};
use coremill_mil::ir::{Binding, Constant, Dim, Function, Op, Opset, Type, ValueId};
use coremill_mil::ops::{Accepts, OpKind, Parameter};
use coremill_tensor::DType;

use crate::draw::Draw;

/// A program, and whether its results can be compared.
pub(crate) struct RandomProgram {
    pub(crate) function: Function,
    /// Whether arguments are usual ones.
    pub(crate) benign: bool,
}

const EXTENTS: [u64; 10] = [1, 1, 2, 3, 4, 5, 7, 8, 16, 33];
const HOSTILE_EXTENTS: [u64; 6] = [0, 1, 255, 4096, 1 << 20, 1 << 31];
const INTEGERS: [i64; 9] = [0, 1, 1, 1, 2, 2, 3, 4, -1];
const HOSTILE_INTEGERS: [i64; 10] =
    [-2, -7, 5, 31, 32, 255, 65_536, 1 << 30, i32::MAX as i64, i32::MIN as i64];
const FLOATS: [f64; 6] = [1.0, 0.5, 2.0, -0.25, 0.125, 1e-3];
const HOSTILE_FLOATS: [f64; 7] =
    [0.0, -1.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 3.0e38, 1e-30];

/// Number of operations to try for each one that a program may contain.
const TRIES: usize = 6;

struct Program<'p, 'd> {
    draw: &'p mut Draw<'d>,
    function: Function,
    float: DType,
    benign: bool,
    pool: Vec<ValueId>,
    /// The first dimension of the last weight, which biases share.
    rows: u64,
}

/// A program with operations of these kinds; `None` if the bytes yield none.
pub(crate) fn generate(draw: &mut Draw<'_>, kinds: &[OpKind]) -> Option<RandomProgram> {
    let benign = !draw.one_in(3);
    let opset = match draw.below(3) {
        0 => draw.of(&Opset::ALL),
        _ => *Opset::ALL.last()?,
    };
    let function = Function::new("main", opset);
    let float = draw.of(&[DType::Fp32, DType::Fp16]);
    let mut program = Program { draw, function, float, benign, pool: Vec::new(), rows: 4 };
    let rank = 1 + program.draw.below(5);
    for index in 0..1 + program.draw.below(3) {
        program.add_input(index, rank);
    }
    let wanted = 1 + program.draw.below(7);
    let mut made = Vec::new();
    for _ in 0..wanted {
        for _ in 0..TRIES {
            let kind = program.draw.of(kinds);
            if let Some(outputs) = program.add_op(kind) {
                made = outputs;
                break;
            }
        }
    }
    // Further outputs prevent their values from being fused away.
    let mut outputs = made;
    for _ in 0..program.draw.below(3) {
        let value = program.draw.of(&program.pool);
        outputs.push(value);
    }
    // The verifier requires every input to be used, and no input to be an output.
    let inputs = program.function.inputs().to_vec();
    let is_used = |value: ValueId| {
        let used = |(_, binding): (&str, &Binding)| *binding == Binding::Value(value);
        program.function.all_ops().any(|(_, op)| op.all_bindings().any(used))
    };
    outputs.extend(inputs.iter().copied().filter(|&input| !is_used(input)));
    let mut given = Vec::new();
    for value in outputs {
        let plain = [DType::Fp16, DType::Fp32, DType::Int32];
        let shown = match program.dtype(value) {
            Some(dtype) if !plain.contains(&dtype) => {
                let dtype = Binding::Literal(Constant::string("int32"));
                program.add_plain(Op::new(OpKind::Cast).with("dtype", dtype), value, DType::Int32)
            }
            Some(dtype) if inputs.contains(&value) => {
                program.add_plain(Op::new(OpKind::Identity), value, dtype)
            }
            _ => value,
        };
        if !given.contains(&shown) {
            given.push(shown);
        }
    }
    let Program { mut function, .. } = program;
    let body = function.body;
    function.block_mut(body).outputs = given;
    Some(RandomProgram { function, benign })
}

impl Program<'_, '_> {
    fn hostile(&mut self) -> bool {
        !self.benign && self.draw.one_in(8)
    }

    fn extent(&mut self) -> u64 {
        if self.hostile() { self.draw.of(&HOSTILE_EXTENTS) } else { self.draw.of(&EXTENTS) }
    }

    fn integer(&mut self) -> i64 {
        if self.hostile() { self.draw.of(&HOSTILE_INTEGERS) } else { self.draw.of(&INTEGERS) }
    }

    fn add_input(&mut self, index: usize, rank: usize) {
        let dtype = if self.draw.one_in(4) { DType::Int32 } else { self.float };
        // Inputs of one shape, or of shapes that broadcast.
        let first = self.pool.first().and_then(|&first| self.shape(first));
        let shape: Vec<u64> = match first {
            Some(first) if !self.draw.one_in(3) => first
                .into_iter()
                .map(|extent| if self.draw.one_in(6) { 1 } else { extent })
                .collect(),
            _ => (0..rank).map(|_| self.extent()).collect(),
        };
        let body = self.function.body;
        let value = self.function.add_input(body, format!("x{index}"), Type::tensor(dtype, &shape));
        self.pool.push(value);
    }

    /// Adds an operation that keeps the shape of its only operand.
    fn add_plain(&mut self, op: Op, x: ValueId, dtype: DType) -> ValueId {
        let mut ty = self.ty(x).clone();
        if let Type::Tensor(tensor) = &mut ty {
            tensor.dtype = dtype;
        }
        let name = format!("y{}", self.function.op_count());
        let body = self.function.body;
        let id = self.function.add_op(body, op.with("x", Binding::Value(x)), [(name, ty)]);
        self.function.op(id).outputs[0]
    }

    fn ty(&self, value: ValueId) -> &Type {
        &self.function.value(value).ty
    }

    fn shape(&self, value: ValueId) -> Option<Vec<u64>> {
        self.ty(value).as_tensor()?.known_shape()
    }

    fn dtype(&self, value: ValueId) -> Option<DType> {
        Some(self.ty(value).as_tensor()?.dtype)
    }

    /// Adds an operation if inference accepts it. Returns its results.
    fn add_op(&mut self, kind: OpKind) -> Option<Vec<ValueId>> {
        let row = kind.row(self.function.opset)?;
        let special = !row.blocks.is_empty() || kind.is_constexpr();
        let state_or_list = row
            .parameters
            .iter()
            .any(|parameter| matches!(parameter.accepts, Accepts::List | Accepts::State));
        if special
            || state_or_list
            || matches!(kind, OpKind::Const | OpKind::ConstSymbolic | OpKind::ConvQuantized)
            || matches!(kind, OpKind::MakeList | OpKind::Classify)
        {
            return None;
        }
        let x = self.draw.of(&self.pool);
        let mut op = Op::new(kind);
        let recurrent = matches!(kind, OpKind::Lstm | OpKind::Gru | OpKind::Rnn);
        let hidden = 1 + self.draw.below(9) as u64;
        let both = recurrent && kind == OpKind::Lstm && self.draw.one_in(2);
        for parameter in row.parameters {
            let skipped = !parameter.required && self.draw.below(2) == 0;
            if recurrent {
                let bound = self.recurrent(kind, parameter, x, hidden, both);
                match bound {
                    Some(binding) => op = op.with(parameter.name, binding),
                    None if parameter.required => return None,
                    None => {}
                }
                continue;
            }
            if skipped {
                continue;
            }
            if parameter.accepts == Accepts::Values {
                let count = 1 + self.draw.below(3);
                let values = (0..count).map(|_| Binding::Value(self.like(x)));
                let values = values.collect();
                op = op.with_list(parameter.name, values);
                continue;
            }
            let binding = self.binding(kind, parameter, x)?;
            op = op.with(parameter.name, binding);
        }
        let count = match kind {
            OpKind::Split => 1 + self.draw.below(4),
            OpKind::Lstm => 3,
            OpKind::Gru | OpKind::Rnn | OpKind::Topk => 2,
            OpKind::NonMaximumSuppression => 4,
            _ => 1,
        };
        let before = self.function.clone();
        let body = self.function.body;
        let at = self.function.op_count();
        let outputs = (0..count).map(|index| (format!("y{at}_{index}"), Type::scalar(DType::Fp32)));
        let id = self.function.add_op(body, op, outputs.collect::<Vec<_>>());
        let (analysis, problems) = analyze(&self.function);
        let outputs = self.function.op(id).outputs.clone();
        let types: Option<Vec<Type>> = outputs.iter().map(|&y| analysis.ty(y).cloned()).collect();
        let (true, Some(types)) = (problems.is_empty(), types) else {
            self.function = before;
            return None;
        };
        for (&output, ty) in outputs.iter().zip(types) {
            let ty = match ty {
                Type::Tensor(mut tensor) => {
                    for dim in &mut tensor.shape {
                        if let Dim::Symbolic(_) = dim {
                            *dim = Dim::Unknown;
                        }
                    }
                    Type::Tensor(tensor)
                }
                other => other,
            };
            self.function.value_mut(output).ty = ty;
        }
        self.pool.extend(&outputs);
        Some(outputs)
    }

    /// A value whose shape is compatible with another's.
    fn like(&mut self, x: ValueId) -> ValueId {
        let alike: Vec<_> =
            self.pool.iter().copied().filter(|&value| self.dtype(value) == self.dtype(x)).collect();
        self.draw.of(&alike)
    }

    fn binding(&mut self, kind: OpKind, parameter: &Parameter, x: ValueId) -> Option<Binding> {
        let dtypes = match parameter.accepts {
            Accepts::Tensor { dtypes, .. } => dtypes,
            _ => &[DType::Fp32][..],
        };
        if dtypes.contains(&DType::String) {
            return Some(Binding::Literal(Constant::string(self.text(parameter.name))));
        }
        let shape = self.shape(x)?;
        let own = self.dtype(x)?;
        if parameter.name == "x" && dtypes.contains(&own) {
            return Some(Binding::Value(x));
        }
        let computed: Vec<_> = self
            .pool
            .iter()
            .copied()
            .filter(|&value| self.dtype(value).is_some_and(|dtype| dtypes.contains(&dtype)))
            .collect();
        if !parameter.constant && !computed.is_empty() && !self.draw.one_in(4) {
            return Some(Binding::Value(self.draw.of(&computed)));
        }
        let dtype = if dtypes.contains(&own) { own } else { self.draw.of(dtypes) };
        let constant = if dtype == DType::Bool {
            match self.draw.below(3) {
                0 => self.vector(parameter.name, dtype, &shape),
                _ => Constant::bool(self.draw.below(2) == 0),
            }
        } else if dtype.is_float() {
            self.weight(kind, parameter.name, dtype, &shape)
        } else {
            self.integers(kind, parameter.name, dtype, &shape)
        };
        Some(Binding::Literal(constant))
    }

    /// A parameter: an axis, sizes, a permutation.
    fn integers(&mut self, kind: OpKind, name: &str, dtype: DType, shape: &[u64]) -> Constant {
        let rank = shape.len() as i64;
        if name == "perm" {
            let mut perm: Vec<i64> = (0..rank).collect();
            for index in (1..perm.len()).rev() {
                perm.swap(index, self.draw.below(index + 1));
            }
            return self.folded(dtype, perm);
        }
        if name == "shape" || name == "size" && kind == OpKind::SliceBySize {
            let mut extents: Vec<i64> = shape.iter().map(|&extent| extent as i64).collect();
            match self.draw.below(4) {
                0 => extents = vec![-1],
                1 => extents.reverse(),
                2 => extents.insert(0, 1),
                _ if !extents.is_empty() && name == "shape" => {
                    let index = self.draw.below(extents.len());
                    extents[index] = self.integer();
                }
                _ => extents.iter_mut().for_each(|extent| *extent = 1.max(*extent - 1)),
            }
            return self.folded(dtype, extents);
        }
        let axis = |program: &mut Self| {
            if rank == 0 || program.hostile() {
                return program.integer();
            }
            program.draw.below(2 * rank as usize) as i64 - rank
        };
        if name == "axes" {
            let count = 1 + self.draw.below(2);
            let axes = (0..count).map(|_| axis(self)).collect();
            return self.folded(dtype, axes);
        }
        if name == "axis" {
            let axis = axis(self);
            return self.scalar(dtype, axis);
        }
        match self.draw.below(3) {
            0 => {
                let value = self.integer();
                self.scalar(dtype, value)
            }
            _ => self.vector(name, dtype, shape),
        }
    }

    /// A vector with a length related to a shape, or a tensor of indices.
    fn vector(&mut self, name: &str, dtype: DType, shape: &[u64]) -> Constant {
        let rank = shape.len();
        let spatial = rank.saturating_sub(2);
        let count = match name {
            "begin" | "end" | "stride" | "reps" | "begin_mask" | "end_mask" | "squeeze_mask" => {
                rank
            }
            "strides" | "dilations" | "kernel_sizes" => spatial,
            "pad" => 2 * if self.draw.one_in(2) { spatial } else { rank },
            _ => {
                let lengths = [rank, spatial, 2 * spatial, 2 * rank, 1, 2, 3];
                self.draw.of(&lengths)
            }
        };
        let values = (0..count).map(|_| self.integer()).collect();
        self.folded(dtype, values)
    }

    fn weight(&mut self, kind: OpKind, name: &str, dtype: DType, shape: &[u64]) -> Constant {
        let last = shape.last().copied().unwrap_or(1);
        let channels = shape.get(1).copied().unwrap_or(last);
        let spatial = shape.len().saturating_sub(2);
        let choice = self.draw.below(4);
        let rows = 1 + self.draw.below(20) as u64;
        let window: Vec<u64> = (0..spatial).map(|_| 1 + self.draw.below(3) as u64).collect();
        let dims: Vec<u64> = match (kind, name) {
            (OpKind::Linear, "weight") => {
                self.rows = rows;
                vec![rows, last]
            }
            (OpKind::Conv, "weight") => {
                self.rows = if choice == 0 { channels } else { rows };
                let inner = if choice == 0 { 1 } else { channels };
                [self.rows, inner].into_iter().chain(window).collect()
            }
            (OpKind::ConvTranspose, "weight") => {
                self.rows = rows;
                [channels, rows].into_iter().chain(window).collect()
            }
            (OpKind::Linear | OpKind::Conv | OpKind::ConvTranspose, "bias") => vec![self.rows],
            (_, "mean" | "variance" | "alpha" | "gamma" | "beta") if choice > 1 => vec![channels],
            (_, "gamma" | "beta") => vec![last],
            (_, "alpha" | "epsilon" | "threshold" | "keep_prob" | "mean" | "stddev") => {
                vec![]
            }
            (_, "y") => match choice {
                0 => vec![],
                1 => shape.to_vec(),
                2 => vec![last, rows],
                _ => vec![last],
            },
            _ => match choice {
                0 => shape.to_vec(),
                1 => vec![rows],
                _ => vec![],
            },
        };
        let count = dims.iter().try_fold(1u64, |count, &extent| count.checked_mul(extent));
        let dims = if count.is_some_and(|count| count <= 1 << 14) { dims } else { vec![] };
        self.floats(dtype, dims)
    }

    /// Random operands rarely have the shapes of recurrent operations.
    fn recurrent(
        &mut self,
        kind: OpKind,
        parameter: &Parameter,
        x: ValueId,
        hidden: u64,
        both: bool,
    ) -> Option<Binding> {
        let shape = self.shape(x)?;
        let dtype = self.dtype(x)?;
        let &[_, batch, features] = &shape[..] else { return None };
        let gates = match kind {
            OpKind::Lstm => 4,
            OpKind::Gru => 3,
            _ => 1,
        };
        let directions = if both { 2 } else { 1 };
        let dims = match parameter.name {
            "x" => return Some(Binding::Value(x)),
            "initial_h" | "initial_c" => vec![batch, directions * hidden],
            "weight_ih" => vec![gates * hidden, features],
            "weight_hh" => vec![gates * hidden, hidden],
            "weight_ih_back" if both => vec![gates * hidden, features],
            "weight_hh_back" if both => vec![gates * hidden, hidden],
            "bias" => vec![gates * hidden],
            "bias_back" if both => vec![gates * hidden],
            "direction" => {
                let one = self.draw.of(&["forward", "reverse"]);
                return Some(Binding::Literal(Constant::string(if both {
                    "bidirectional"
                } else {
                    one
                })));
            }
            "output_sequence" | "reset_after" => {
                return Some(Binding::Literal(Constant::bool(self.draw.one_in(2))));
            }
            "activation" | "recurrent_activation" | "cell_activation" if self.draw.one_in(3) => {
                let text = self.text(parameter.name);
                return Some(Binding::Literal(Constant::string(text)));
            }
            _ => return None,
        };
        let count = dims.iter().try_fold(1u64, |count, &extent| count.checked_mul(extent));
        count.filter(|&count| count <= 1 << 14)?;
        Some(Binding::Literal(self.floats(dtype, dims)))
    }

    fn floats(&mut self, dtype: DType, shape: Vec<u64>) -> Constant {
        let count: u64 = shape.iter().product();
        let hostile = self.hostile();
        // Numbers with few bits, so that sums of products do not depend on their order.
        let elements = (0..count).map(|index| {
            Scalar::Float(if hostile || count == 1 && self.draw.one_in(2) {
                self.draw.of(if hostile { &HOSTILE_FLOATS[..] } else { &FLOATS[..] })
            } else {
                ((index * 7 + self.rows) % 33) as f64 / 16.0 - 1.0
            })
        });
        let folded = KnownElements::new(dtype, shape.clone(), elements.collect());
        let constant = folded.and_then(|folded| folded.to_constant());
        constant.unwrap_or_else(|| {
            // Large constants are not folded; zeros are.
            let bytes = dtype.storage_bytes(count).unwrap_or(0) as usize;
            Constant::bytes(dtype, &shape, vec![0; bytes])
        })
    }

    fn scalar(&mut self, dtype: DType, value: i64) -> Constant {
        let fitted = fit(dtype, value);
        let constant = KnownElements::scalar(dtype, fitted).to_constant();
        constant.unwrap_or_else(|| Constant::int32(1))
    }

    fn folded(&mut self, dtype: DType, values: Vec<i64>) -> Constant {
        let elements = values.into_iter().map(|value| fit(dtype, value)).collect();
        let constant = KnownElements::vector(dtype, elements).to_constant();
        constant.unwrap_or_else(|| Constant::int32s(&[1]))
    }

    fn text(&mut self, name: &str) -> &'static str {
        let choices: &[&str] = match name {
            "pad_type" => &["valid", "same", "same_lower", "custom"],
            "mode" => &[
                "constant",
                "reflect",
                "replicate",
                "add",
                "update",
                "mul",
                "max",
                "min",
                "EXACT",
                "TANH_APPROXIMATION",
                "SIGMOID_APPROXIMATION",
                "bilinear",
            ],
            "padding_mode" => &["constant", "border", "reflection", "symmetric"],
            "dtype" | "output_dtype" => {
                &["fp16", "fp32", "int32", "int16", "uint16", "int8", "uint8", "bool"]
            }
            "activation" | "recurrent_activation" | "cell_activation" => &[
                "tanh",
                "sigmoid",
                "relu",
                "scaled_tanh",
                "sigmoid_hard",
                "linear",
                "hard_sigmoid",
            ],
            "equation" => &["nchw,nwhu->nchu", "chw,whr->chr", "ab,bc->ac", "abc,abc->abc"],
            "sampling_mode" => &[
                "DEFAULT",
                "STRICT_ALIGN_CORNERS",
                "ALIGN_CORNERS",
                "OFFSET_CORNERS",
                "UNALIGN_CORNERS",
            ],
            "interpolation_mode" => &["LINEAR", "NEAREST_NEIGHBOR"],
            "normalized_coordinates" | "coordinates_mode" => {
                &["unnormalized", "normalized_minus_one_to_one", "normalized_zero_to_one"]
            }
            "box_coordinate_mode" => {
                &["CORNERS_HEIGHT_FIRST", "CORNERS_WIDTH_FIRST", "CENTER_SIZE_WIDTH_FIRST"]
            }
            "direction" => &["forward", "reverse", "bidirectional"],
            _ => &["", "valid", "fp32", "linear"],
        };
        self.draw.of(choices)
    }
}

fn fit(dtype: DType, value: i64) -> Scalar {
    if dtype == DType::Bool {
        return Scalar::Bool(value & 1 != 0);
    }
    if dtype.is_float() {
        return Scalar::Float(value as f64);
    }
    let (least, most) = dtype.integer_range().unwrap_or((0, 1));
    let value = i128::from(value).clamp(least, most).clamp(i64::MIN.into(), i64::MAX.into());
    Scalar::Int(value as i64)
}
