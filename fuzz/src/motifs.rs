//! Programs with the patterns that passes match, with a dynamic length: attention whose heads share keys and masks,
//! normalizations as elementary operations, and data movement that depends on the length.

use coremill_mil::infer::Analysis;
use coremill_mil::ir::{Binding, Constant, Dim, Function, Op, Opset, TensorType, Type, ValueId};
use coremill_mil::model::shapes::{ATTRIBUTE, FlexibleShapes};
use coremill_mil::ops::OpKind;
use coremill_passes::AnalyzedFunction;
use coremill_tensor::DType;

use crate::draw::Draw;

/// A program and shapes of its inputs.
pub(crate) struct Motif {
    /// The program; dynamic dimensions of the same length mostly share a symbol.
    pub(crate) draft: AnalyzedFunction,
    /// The shapes of all inputs for each length; the first ones are the defaults.
    pub(crate) shapes: Vec<Vec<Vec<usize>>>,
}

/// Lengths with which programs run.
const LENGTHS: [usize; 6] = [1, 2, 3, 4, 5, 8];
const MOST: i32 = 16;

/// A dimension of an input.
#[derive(Clone, Copy, PartialEq)]
enum Extent {
    Fixed(usize),
    Length,
}
use Extent::{Fixed, Length};

struct Builder<'b, 'd> {
    draw: &'b mut Draw<'d>,
    function: Function,
    analysis: Analysis,
    inputs: Vec<Vec<Extent>>,
    length: Option<Dim>,
    /// Whether all dynamic dimensions are known to be equal.
    shares: bool,
}

/// A program with one pattern; `None` if its release lacks an operation.
pub(crate) fn motif(draw: &mut Draw<'_>) -> Option<Motif> {
    let opset = if draw.one_in(3) { draw.of(&Opset::ALL) } else { *Opset::ALL.last()? };
    let shares = !draw.one_in(4);
    let function = Function::new("main", opset);
    let analysis = Analysis::default();
    let mut builder =
        Builder { draw, function, analysis, inputs: Vec::new(), length: None, shares };
    let output = match builder.draw.below(4) {
        0 | 1 => builder.attention()?,
        2 => builder.norm()?,
        _ => builder.moves()?,
    };
    let Builder { draw, mut function, analysis, inputs, .. } = builder;
    let body = function.body;
    function.block_mut(body).outputs = vec![output];
    let lengths: Vec<usize> = (0..3).map(|_| draw.of(&LENGTHS)).collect();
    let at = |length: usize| -> Vec<Vec<usize>> {
        let of = |extent: &Extent| if let Fixed(extent) = extent { *extent } else { length };
        inputs.iter().map(|shape| shape.iter().map(of).collect()).collect()
    };
    let mut flexible = FlexibleShapes::default();
    for (input, shape) in inputs.iter().enumerate().filter(|(_, shape)| shape.contains(&Length)) {
        let name = function.value(function.inputs()[input]).name.clone();
        let default = |extent: &Extent| match extent {
            Fixed(extent) => *extent as i32,
            Length => lengths[0] as i32,
        };
        let range = |extent: &Extent| match extent {
            Fixed(extent) => [*extent as i32; 2],
            Length => [1, MOST],
        };
        flexible.defaults.push((name.clone(), shape.iter().map(default).collect()));
        flexible.ranges.push((name, shape.iter().map(range).collect()));
    }
    if !flexible.ranges.is_empty() {
        function.attributes.insert(ATTRIBUTE, flexible.to_constant());
    }
    let shapes = lengths.into_iter().map(at).collect();
    let exact = std::collections::HashSet::new();
    Some(Motif { draft: AnalyzedFunction { function, analysis, exact }, shapes })
}

fn ints(values: &[i32]) -> Binding {
    Binding::Literal(Constant::int32s(values))
}

fn int(value: i32) -> Binding {
    Binding::Literal(Constant::int32(value))
}

fn float(value: f32) -> Binding {
    Binding::Literal(Constant::fp32(value))
}

fn truth(value: bool) -> Binding {
    Binding::Literal(Constant::bool(value))
}

/// A constant of distinct small numbers.
fn weight(shape: &[u64]) -> Binding {
    let count: u64 = shape.iter().product();
    let elements =
        (0..count).flat_map(|index| (((index * 7 + 3) % 33) as f32 / 16.0 - 1.0).to_le_bytes());
    Binding::Literal(Constant::bytes(DType::Fp32, shape, elements.collect::<Vec<u8>>()))
}

impl Builder<'_, '_> {
    fn input(&mut self, shape: &[Extent]) -> ValueId {
        let dims = shape.iter().map(|extent| match extent {
            Fixed(extent) => Dim::Known(*extent as u64),
            Length => Dim::Unknown,
        });
        let ty = Type::Tensor(TensorType { dtype: DType::Fp32, shape: dims.collect() });
        let body = self.function.body;
        let input = self.function.add_input(body, format!("x{}", self.inputs.len()), ty);
        self.inputs.push(shape.to_vec());
        self.analysis.enter_input(&self.function, input);
        let mut known = self.dims(input);
        for dim in known.iter_mut().filter(|dim| self.shares && dim.known().is_none()) {
            *dim = self.length.get_or_insert_with(|| dim.clone()).clone();
        }
        self.analysis.set_shape(input, known);
        input
    }

    fn dims(&self, value: ValueId) -> Vec<Dim> {
        let ty = self.analysis.ty(value).and_then(Type::as_tensor);
        ty.map(|ty| ty.shape.clone()).unwrap_or_default()
    }

    fn op(&mut self, kind: OpKind, bindings: &[(&'static str, Binding)]) -> Option<ValueId> {
        let mut op = Op::new(kind);
        for (name, binding) in bindings {
            op = op.with(*name, binding.clone());
        }
        self.append(op)
    }

    fn append(&mut self, op: Op) -> Option<ValueId> {
        let outcomes = self.analysis.infer_op(&self.function, &op).ok()?;
        let (at, body) = (self.function.op_count(), self.function.body);
        let id = self
            .analysis
            .append(&mut self.function, body, op, outcomes, |place| format!("y{at}_{place}"));
        self.function.op(id).outputs.first().copied()
    }

    fn of(
        &mut self,
        kind: OpKind,
        x: ValueId,
        more: &[(&'static str, Binding)],
    ) -> Option<ValueId> {
        let bindings: Vec<_> =
            std::iter::once(("x", Binding::Value(x))).chain(more.iter().cloned()).collect();
        self.op(kind, &bindings)
    }

    fn joined(&mut self, kind: OpKind, x: ValueId, y: ValueId) -> Option<ValueId> {
        // The operands of a sum or a product, in either order.
        let swaps = matches!(kind, OpKind::Add | OpKind::Mul) && self.draw.one_in(2);
        let (x, y) = if swaps { (y, x) } else { (x, y) };
        self.of(kind, x, &[("y", Binding::Value(y))])
    }

    fn concat(&mut self, values: Vec<Binding>, axis: i32) -> Option<ValueId> {
        let op = Op::new(OpKind::Concat).with_list("values", values).with("axis", int(axis));
        self.append(op.with("interleave", truth(false)))
    }

    /// Reshapes the elements; a dimension of `Length` is that of an axis of `x`.
    fn reshape(&mut self, x: ValueId, shape: &[(Extent, usize)]) -> Option<ValueId> {
        let open = shape.iter().filter(|(extent, _)| *extent == Length).count();
        if open <= 1 && !self.draw.one_in(3) {
            let of = |(extent, _): &(Extent, usize)| match extent {
                Fixed(extent) => *extent as i32,
                Length => -1,
            };
            let shape: Vec<_> = shape.iter().map(of).collect();
            return self.of(OpKind::Reshape, x, &[("shape", ints(&shape))]);
        }
        let own = self.of(OpKind::Shape, x, &[])?;
        let mut parts = Vec::with_capacity(shape.len());
        for (extent, axis) in shape {
            parts.push(match extent {
                Fixed(extent) => ints(&[*extent as i32]),
                Length => {
                    let (begin, end) = (ints(&[*axis as i32]), ints(&[*axis as i32 + 1]));
                    let more = [("begin", begin), ("end", end)];
                    Binding::Value(self.of(OpKind::SliceByIndex, own, &more)?)
                }
            });
        }
        let shape = self.concat(parts, 0)?;
        self.of(OpKind::Reshape, x, &[("shape", Binding::Value(shape))])
    }

    /// Repeats each head along axis 1.
    fn repeated(&mut self, x: ValueId, shape: [Extent; 4], each: usize) -> Option<ValueId> {
        let [sets, Fixed(groups), rows, columns] = shape else { return None };
        if groups == 1 && self.draw.one_in(2) {
            return match self.draw.one_in(3) {
                true => self.concat(vec![Binding::Value(x); each], 1),
                false => self.of(OpKind::Tile, x, &[("reps", ints(&[1, each as i32, 1, 1]))]),
            };
        }
        let apart = self.of(OpKind::ExpandDims, x, &[("axes", ints(&[2]))])?;
        let reps = ints(&[1, 1, each as i32, 1, 1]);
        let tiled = self.of(OpKind::Tile, apart, &[("reps", reps)])?;
        let heads = Fixed(groups * each);
        self.reshape(tiled, &[(sets, 0), (heads, 1), (rows, 3), (columns, 4)])
    }

    /// Scores, weights and weighted sums, with random operations between them.
    fn attention(&mut self) -> Option<ValueId> {
        let sets = Fixed(self.draw.of(&[1, 1, 2]));
        let (groups, each) = (self.draw.of(&[1, 2]), self.draw.of(&[1, 2, 3]));
        let (size, heads) = (self.draw.of(&[2, 3, 4]), groups * each);
        let targets = if self.draw.one_in(4) { Fixed(self.draw.of(&[1, 3])) } else { Length };
        let sources = if self.draw.one_in(3) { Fixed(5) } else { Length };
        let query = self.input(&[sets, Fixed(heads), targets, Fixed(size)]);
        let shape = [sets, Fixed(groups), sources, Fixed(size)];
        let (key, value) = (self.input(&shape), self.input(&shape));
        let key = self.repeated(key, shape, each)?;
        let value = self.repeated(value, shape, each)?;
        let mask = self.mask([sets, Fixed(groups), targets, sources], each)?;
        if self.draw.one_in(3) {
            let bindings = [("query", query), ("key", key), ("value", value)];
            let mut bindings: Vec<_> =
                bindings.map(|(name, value)| (name, Binding::Value(value))).to_vec();
            bindings.extend(mask.map(|mask| ("attn_mask", Binding::Value(mask))));
            return self.op(OpKind::ScaledDotProductAttention, &bindings);
        }
        let mut scores = self.product(query, key, true)?;
        let mut masks = vec![mask];
        if self.draw.one_in(3) {
            masks.push(self.mask([sets, Fixed(groups), targets, sources], each)?);
        }
        for mask in masks {
            if self.draw.one_in(2) {
                scores = self.of(OpKind::Mul, scores, &[("y", float(0.5))])?;
            }
            scores = match (mask, self.draw.below(6)) {
                (Some(mask), 0) => {
                    let condition = self.of(OpKind::Greater, mask, &[("y", float(0.0))])?;
                    let condition = ("cond", Binding::Value(condition));
                    let bindings = [condition, ("a", Binding::Value(scores)), ("b", float(-9.0))];
                    self.op(OpKind::Select, &bindings)?
                }
                (Some(mask), 1) => self.joined(OpKind::Mul, scores, mask)?,
                (Some(mask), 2) => self.joined(OpKind::Maximum, scores, mask)?,
                (Some(mask), _) => self.joined(OpKind::Add, scores, mask)?,
                (None, 0) => self.of(OpKind::Tanh, scores, &[])?,
                (None, _) => scores,
            };
        }
        let axis = int(self.draw.of(&[-1, -1, 3, 2]));
        let weights = self.of(OpKind::Softmax, scores, &[("axis", axis)])?;
        let y = self.product(weights, value, false)?;
        if self.draw.one_in(2) {
            return Some(y);
        }
        let y = self.of(OpKind::Transpose, y, &[("perm", ints(&[0, 2, 1, 3]))])?;
        self.reshape(y, &[(sets, 0), (targets, 1), (Fixed(heads * size), 2)])
    }

    fn product(&mut self, x: ValueId, y: ValueId, turned: bool) -> Option<ValueId> {
        let (y, turned) = match turned && self.draw.one_in(3) {
            true => (self.of(OpKind::Transpose, y, &[("perm", ints(&[0, 1, 3, 2]))])?, false),
            false => (y, turned),
        };
        let more = [
            ("y", Binding::Value(y)),
            ("transpose_x", truth(false)),
            ("transpose_y", truth(turned)),
        ];
        self.of(OpKind::Matmul, x, &more)
    }

    /// A mask of scores, of any shape that broadcasts; `None` in some programs.
    fn mask(
        &mut self,
        [sets, groups, targets, sources]: [Extent; 4],
        each: usize,
    ) -> Option<Option<ValueId>> {
        let Fixed(count) = groups else { return None };
        let one = Fixed(1);
        let heads = Fixed(count * each);
        Some(Some(match self.draw.below(10) {
            0 => return Some(None),
            1 => self.input(&[targets, sources]),
            2 => self.input(&[one, one, targets, sources]),
            3 => self.input(&[sets, heads, targets, sources]),
            4 => self.input(&[one, one, one, sources]),
            5 => self.input(&[one, heads, one, sources]),
            6 => self.input(&[sets, heads, targets, one]),
            7 => {
                let shape = [one, one, targets, sources];
                let mask = self.input(&shape);
                self.repeated(mask, shape, count * each)?
            }
            _ => {
                let shape = [sets, groups, targets, sources];
                let mask = self.input(&shape);
                self.repeated(mask, shape, each)?
            }
        }))
    }

    /// A normalization as elementary operations.
    fn norm(&mut self) -> Option<ValueId> {
        let width = self.draw.of(&[2, 3, 4]);
        let last = self.draw.one_in(2);
        let shape =
            if last { [Fixed(2), Length, Fixed(width)] } else { [Fixed(2), Fixed(width), Length] };
        let x = self.input(&shape);
        let axes = ("axes", ints(&[if self.draw.one_in(5) { 1 } else { 2 }]));
        let keep = ("keep_dims", truth(true));
        let mut centered = x;
        if !self.draw.one_in(3) {
            let mean = self.of(OpKind::ReduceMean, x, &[axes.clone(), keep.clone()])?;
            centered = self.joined(OpKind::Sub, x, mean)?;
        }
        let squares = match self.draw.one_in(2) {
            true => self.of(OpKind::Square, centered, &[])?,
            false => self.joined(OpKind::Mul, centered, centered)?,
        };
        let mean = self.of(OpKind::ReduceMean, squares, &[axes, keep])?;
        let above = self.of(OpKind::Add, mean, &[("y", float(0.5))])?;
        let mut y = match self.draw.one_in(2) {
            true => {
                let root = self.of(OpKind::Sqrt, above, &[])?;
                self.joined(OpKind::RealDiv, centered, root)?
            }
            false => {
                let inverse = self.of(OpKind::Rsqrt, above, &[])?;
                self.joined(OpKind::Mul, centered, inverse)?
            }
        };
        for kind in [OpKind::Mul, OpKind::Add] {
            if !self.draw.one_in(3) {
                let shape: &[u64] = if last { &[width as u64] } else { &[width as u64, 1] };
                y = self.of(kind, y, &[("y", weight(shape))])?;
            }
        }
        Some(y)
    }

    /// Reshapes, transposes, slices and concatenations of a sequence.
    fn moves(&mut self) -> Option<ValueId> {
        let mut shape = [Fixed(self.draw.of(&[1, 2])), Length, Fixed(self.draw.of(&[2, 4]))];
        let mut x = self.input(&shape);
        for _ in 0..2 + self.draw.below(5) {
            let [sets, _, Fixed(width)] = shape else { return None };
            let half = width / 2;
            x = match self.draw.below(9) {
                0 => {
                    let (heads, each) = (Fixed(2), Fixed(half));
                    let y = self.reshape(x, &[(sets, 0), (Length, 1), (heads, 2), (each, 2)])?;
                    let perm = ("perm", ints(&[0, 2, 1, 3]));
                    let y = self.of(OpKind::Transpose, y, std::slice::from_ref(&perm))?;
                    let y = self.of(OpKind::Relu, y, &[])?;
                    let y = self.of(OpKind::Transpose, y, &[perm])?;
                    self.reshape(y, &[(sets, 0), (Length, 1), (Fixed(width), 2)])?
                }
                1 => {
                    let cut = |from: usize, to: usize| {
                        let begin = ints(&[0, 0, from as i32]);
                        let masks = [true, true, false].map(u8::from).to_vec();
                        let mask = Binding::Literal(Constant::bytes(DType::Bool, &[3], masks));
                        [("begin", begin), ("end", ints(&[0, 0, to as i32])), ("end_mask", mask)]
                    };
                    let low = self.of(OpKind::SliceByIndex, x, &cut(0, half))?;
                    let high = self.of(OpKind::SliceByIndex, x, &cut(half, width))?;
                    let high = self.of(OpKind::Mul, high, &[("y", float(-1.0))])?;
                    let parts = if self.draw.one_in(2) { [high, low] } else { [low, high] };
                    self.concat(parts.map(Binding::Value).to_vec(), 2)?
                }
                2 => {
                    let y = self.of(OpKind::ExpandDims, x, &[("axes", ints(&[0]))])?;
                    self.of(OpKind::Squeeze, y, &[("axes", ints(&[0]))])?
                }
                3 => self.of(OpKind::Add, x, &[("y", float(0.0))])?,
                4 => {
                    let y = self.of(OpKind::Transpose, x, &[("perm", ints(&[0, 2, 1]))])?;
                    let pads = if self.draw.one_in(2) { [1, 1] } else { [2, 0] };
                    let pad = [0, 0, 0, 0, pads[0], pads[1]];
                    let more = [
                        ("pad", ints(&pad)),
                        ("mode", Binding::Literal(Constant::string("constant"))),
                        ("constant_val", float(0.0)),
                    ];
                    let y = self.of(OpKind::Pad, y, &more)?;
                    let more = [
                        ("weight", weight(&[width as u64, width as u64, 3])),
                        ("pad_type", Binding::Literal(Constant::string("valid"))),
                    ];
                    let y = self.of(OpKind::Conv, y, &more)?;
                    self.of(OpKind::Transpose, y, &[("perm", ints(&[0, 2, 1]))])?
                }
                5 => {
                    let more = [("weight", weight(&[4, width as u64]))];
                    shape[2] = Fixed(4);
                    self.of(OpKind::Linear, x, &more)?
                }
                6 => {
                    let gate = self.of(OpKind::Sigmoid, x, &[])?;
                    self.joined(OpKind::Mul, x, gate)?
                }
                7 => {
                    // The last elements of a sequence that has a few more.
                    let y = self.concat(vec![Binding::Value(x), Binding::Value(x)], 1)?;
                    let own = self.of(OpKind::Shape, x, &[])?;
                    let more = [("begin", ints(&[0, 0, 0])), ("size", Binding::Value(own))];
                    self.of(OpKind::SliceBySize, y, &more)?
                }
                _ => {
                    let other = self.input(&shape);
                    self.joined(OpKind::Add, x, other)?
                }
            };
        }
        Some(x)
    }
}
