//! Replaces operations between `dequantize` and `quantize` by integer kernels.
//!
//! ```text
//! a = dequantize(input = p, scale = s, zero_point = z)
//! w = constexpr_affine_dequantize(quantized_data = v, scale = t, ...)
//! c = conv(x = a, weight = w, bias = b)
//! r = relu(x = c)
//! q = quantize(input = r, scale = u, zero_point = y)      q = integer conv(p)
//! ```
//!
//! A tensor of codes has one byte per element, in the memory of a float slot, and is channels-last
//! if convolutions read it. Kernels rescale as the float definition specifies, so that a result
//! differs by at most one step. Readers of floats, or of integers with a scale per channel, get the
//! same values as before: the floats are computed from the codes, and unused ones are removed.
//!
//! | module | contents |
//! |---|---|
//! | `products` | convolutions and linear layers, from the operation to the kernel |
//! | `numbers` | scales and zero points, and weights as integers |
//! | `several` | concatenation and elementwise products |
//! | `kernels` | the other kernels |

mod kernels;
mod numbers;
mod products;
mod several;

use std::collections::HashMap;

use coremill_kernels::Activation;
use coremill_kernels::Numerics;
use coremill_kernels::integer::{Steps, Sum, floats_for};
use coremill_mil::ir::OpId;
use coremill_mil::ops::OpKind;
use coremill_reference::arithmetic::Arithmetic;
use coremill_reference::array::{Array, View};
use coremill_reference::error::Result;
use coremill_tensor::DType;

use super::super::graph::{Node, NodeKind, Operand, Region, Slot, SlotId, SlotKind};
use super::super::kernel::Kernel;
use super::activation::activation;
use super::layout::{is_elementwise, max_pool_ranges, spatial_mean, to_first, to_last};
use super::parameters::parameters;
use super::{Editor, Work};

use kernels::{Add, Dequantize, LookUp, Maximum, Mean, Permute, Quantize};
use numbers::{Affine, Bounds};
use products::{Product, ProductKernel, Products, Source as Left};

/// Replaces quantized operations of a region by integer kernels.
pub(super) fn lower(work: &mut Work<'_>, region: Region) -> Result<Region> {
    let quantizes = |node: &Node| node.operation() == Some(OpKind::Quantize);
    // In rounded mode the intermediate floats are rounded, too, and integer kernels cannot reproduce that.
    if work.source.numerics == Numerics::Rounded || !region.nodes.iter().any(quantizes) {
        return Ok(region);
    }
    let inputs = region.inputs.clone();
    let mut editor = Editor::new(work.graph, region);
    let mut lowering = Lowering::new(work, &editor);
    for index in 0..editor.len() {
        lowering.visit(&mut editor, index)?;
    }
    let outputs = editor.finish().outputs;
    for slot in outputs.iter().filter_map(Operand::slot) {
        lowering.give_floats(slot);
    }
    let nodes = lowering.draft.into_iter().flatten().map(PendingNode::into_node).collect();
    Ok(Region { inputs, nodes, outputs, releases: Vec::new() })
}

/// A tensor of codes, in one or two memory layouts.
struct Tensor {
    op: OpId,
    shape: Vec<usize>,
    /// The slot in the tensor's own layout.
    own: Option<SlotId>,
    /// The slot in channels-last layout.
    last: Option<SlotId>,
    /// Outputs of `quantize` that these codes represent.
    quantized: Vec<SlotId>,
}

/// A tensor of codes, with its scale and zero point.
#[derive(Clone, Copy, Debug, PartialEq)]
struct QuantizedTensor {
    tensor: usize,
    affine: Affine,
}

/// A float value whose computation is delayed, since it may yet be quantized.
enum PendingValue {
    /// A product that is not emitted yet.
    Product(Box<Product>),
    Sum(QuantizedTensor, QuantizedTensor, Bounds),
    Times(QuantizedTensor, QuantizedTensor, Bounds),
    /// The tensors and the axis of a concatenation.
    Join(Vec<QuantizedTensor>, usize, Bounds),
    Mean(QuantizedTensor, Bounds),
    /// A function of a code, as a table of its values.
    Function(QuantizedTensor, Box<Array>),
}

impl PendingValue {
    /// Applies bounds to the results.
    fn within(self, next: Bounds) -> PendingValue {
        match self {
            PendingValue::Product(mut product) => {
                product.bounds = product.bounds.then(next);
                PendingValue::Product(product)
            }
            PendingValue::Sum(left, right, bounds) => {
                PendingValue::Sum(left, right, bounds.then(next))
            }
            PendingValue::Times(left, right, bounds) => {
                PendingValue::Times(left, right, bounds.then(next))
            }
            PendingValue::Join(parts, axis, bounds) => {
                PendingValue::Join(parts, axis, bounds.then(next))
            }
            PendingValue::Mean(coded, bounds) => PendingValue::Mean(coded, bounds.then(next)),
            PendingValue::Function(..) => self,
        }
    }
}

/// A node to be emitted.
enum PendingNode {
    Node(Node),
    /// A product with codes as results. A residual may still be fused.
    Product(OpId, Box<ProductKernel>, Vec<Operand>, SlotId),
}

impl PendingNode {
    fn into_node(self) -> Node {
        match self {
            PendingNode::Node(node) => node,
            PendingNode::Product(op, kernel, inputs, output) => {
                Node { op, kind: NodeKind::Kernel(kernel), inputs, outputs: vec![output] }
            }
        }
    }
}

struct Lowering<'l, 'w> {
    work: &'l mut Work<'w>,
    draft: Vec<Option<PendingNode>>,
    tensors: Vec<Tensor>,
    /// Codes of the outputs of `quantize`.
    quantized: HashMap<SlotId, QuantizedTensor>,
    /// Codes of float values, and whether the floats are written.
    floats: HashMap<SlotId, (QuantizedTensor, bool)>,
    pending: HashMap<SlotId, PendingValue>,
    /// Index of the product that writes a slot of codes.
    products: HashMap<SlotId, usize>,
    /// Number of reads of each slot, by [`SlotId::index`].
    reads: Vec<usize>,
    made: Products,
}

impl<'l, 'w> Lowering<'l, 'w> {
    fn new(work: &'l mut Work<'w>, editor: &Editor) -> Self {
        let reads = (0..work.graph.slots.len()).map(SlotId::at);
        let reads =
            reads.map(|slot| editor.readers(slot).len() + usize::from(editor.escapes(slot)));
        Lowering {
            reads: reads.collect(),
            work,
            draft: Vec::new(),
            tensors: Vec::new(),
            quantized: HashMap::new(),
            floats: HashMap::new(),
            pending: HashMap::new(),
            products: HashMap::new(),
            made: Products::default(),
        }
    }

    /// Emits a node, with an integer kernel if possible.
    fn visit(&mut self, editor: &mut Editor, index: usize) -> Result<()> {
        if let Some(node) = editor.node(index)
            && self.on_codes(editor, index, node)?
        {
            return Ok(());
        }
        let mut read = Vec::new();
        let Some(node) = editor.node(index) else { return Ok(()) };
        read.extend(node.inputs.iter().filter_map(Operand::slot));
        for region in node.regions() {
            region.reads(&mut |slot| read.push(slot));
        }
        for slot in read {
            self.give_floats(slot);
        }
        let copy = match &node.kind {
            NodeKind::Reference(reference) => Some(NodeKind::Reference(reference.clone())),
            NodeKind::Alias => Some(NodeKind::Alias),
            _ => None,
        };
        let node = match copy {
            // Other nodes may still inspect the original.
            Some(kind) => Some(Node {
                op: node.op,
                kind,
                inputs: node.inputs.clone(),
                outputs: node.outputs.clone(),
            }),
            None => editor.take(index),
        };
        self.draft.extend(node.map(|node| Some(PendingNode::Node(node))));
        Ok(())
    }

    /// Handles a node in integer arithmetic. Returns true if nothing else has to be emitted for it.
    fn on_codes(&mut self, editor: &Editor, index: usize, node: &Node) -> Result<bool> {
        let Some(&output) = node.outputs.first() else { return Ok(false) };
        match node.operation() {
            Some(OpKind::Quantize) => return self.quantize(editor, node, output),
            Some(OpKind::Dequantize) => return Ok(self.dequantize(node, output)),
            Some(OpKind::Conv | OpKind::Linear | OpKind::Matmul) => {
                return self.product(editor, index, node, output);
            }
            Some(OpKind::MaxPool) => return Ok(self.max_pool(node, output)),
            Some(OpKind::Transpose) => return Ok(self.transpose(node, output)),
            Some(OpKind::ReduceMean) => {
                if let Some(coded) = self.coded(node.bound("x"))
                    && spatial_mean(self.work, node)
                {
                    self.pending.insert(output, PendingValue::Mean(coded, Bounds::default()));
                }
                return Ok(false);
            }
            _ => {}
        }
        if let NodeKind::Alias = node.kind {
            return Ok(self.alias(node, output));
        }
        if let Some((bounds, x)) = clamp(self.work, node)
            && let Some(slot) = x.slot()
        {
            match self.pending.get(&slot) {
                Some(&PendingValue::Mean(coded, before)) => {
                    self.pending.insert(output, PendingValue::Mean(coded, before.then(bounds)));
                    return Ok(false);
                }
                Some(PendingValue::Function(..)) | None => {}
                Some(_) => {
                    let pending = self.pending.remove(&slot);
                    self.pending.extend(pending.map(|pending| (output, pending.within(bounds))));
                    return Ok(true);
                }
            }
        }
        let several = self.sum(editor, node, output);
        let several = several.or_else(|| self.times(editor, node, output));
        if let Some(several) = several.or_else(|| self.join(editor, node, output)) {
            self.pending.insert(output, several);
            return Ok(true);
        }
        if let Some(pending) = self.elementwise(node, output) {
            self.pending.insert(output, pending);
        }
        Ok(false)
    }

    /// Recognizes a quantized sum of two tensors of codes.
    fn sum(&self, editor: &Editor, node: &Node, output: SlotId) -> Option<PendingValue> {
        if node.operation()? != OpKind::Add {
            return None;
        }
        let (left, right) = (self.coded(node.bound("x"))?, self.coded(node.bound("y"))?);
        let shape = self.work.graph.slot(output).shape.as_ref()?;
        let same = [left, right].iter().all(|one| self.tensors[one.tensor].shape == *shape);
        (same && left.tensor != right.tensor && ends_in_codes(self.work, editor, output))
            .then(|| PendingValue::Sum(left, right, Bounds::default()))
    }

    /// Recognizes an elementwise function of a tensor of codes.
    fn elementwise(&self, node: &Node, output: SlotId) -> Option<PendingValue> {
        let kind = node.operation()?;
        let graph = &*self.work.graph;
        if !is_elementwise(kind) || !graph.slot(output).dtype.is_float() {
            return None;
        }
        let NodeKind::Reference(reference) = &node.kind else { return None };
        let mut found: Option<QuantizedTensor> = None;
        let mut arrays = Vec::with_capacity(node.inputs.len());
        for operand in &node.inputs {
            arrays.push(match operand {
                Operand::Constant(known) if known.shape.iter().product::<usize>() == 1 => {
                    known.array(self.work.source).ok()?.reshaped([])?
                }
                Operand::Constant(_) => return None,
                Operand::Slot(slot) => {
                    let (coded, array) = self.function(*slot)?;
                    if found.is_some_and(|found| found != coded) {
                        return None;
                    }
                    found = Some(coded);
                    array
                }
            });
        }
        let coded = found?;
        // The shape must be the shape of the codes.
        if self.tensors[coded.tensor].shape != *graph.slot(output).shape.as_ref()? {
            return None;
        }
        let views: Vec<View<'_>> = arrays.iter().map(Array::view).collect();
        let arithmetic = Arithmetic { numerics: self.work.source.numerics, machine: None };
        let result =
            reference.call(self.work.source, node.op, &views, 0, arithmetic).ok()?.pop()?;
        (result.shape() == [256]).then(|| PendingValue::Function(coded, Box::new(result)))
    }

    /// The value of a slot for each code, if it is a function of codes.
    fn function(&self, slot: SlotId) -> Option<(QuantizedTensor, Array)> {
        if let Some(PendingValue::Function(coded, array)) = self.pending.get(&slot) {
            return Some((*coded, Array::clone(array)));
        }
        let (coded, _) = *self.floats.get(&slot)?;
        let values = (0..=255).map(|code| coded.affine.value(code)).collect();
        let dtype = self.work.graph.slot(slot).dtype;
        Some((coded, Array::floats(dtype, [256], values)))
    }

    /// The codes of a parameter's only operand.
    fn coded(&self, operands: &[Operand]) -> Option<QuantizedTensor> {
        let [operand] = operands else { return None };
        self.floats.get(&operand.slot()?).map(|(coded, _)| *coded)
    }

    fn dequantize(&mut self, node: &Node, output: SlotId) -> bool {
        let [Operand::Slot(input)] = node.bound("input") else { return false };
        let Some(&coded) = self.quantized.get(input) else { return false };
        let Some(affine) = Affine::of(self.work, node, coded.affine.signed) else { return false };
        self.floats.insert(output, (QuantizedTensor { affine, ..coded }, false));
        true
    }

    fn quantize(&mut self, editor: &Editor, node: &Node, output: SlotId) -> Result<bool> {
        let [Operand::Slot(input)] = node.bound("input") else { return Ok(false) };
        let Some(affine) = claimed(self.work, editor, node) else { return Ok(false) };
        let input = *input;
        let coded = match self.pending.remove(&input) {
            Some(PendingValue::Product(product)) => {
                self.write_product(node.op, output, *product, affine)?
            }
            Some(PendingValue::Sum(left, right, bounds)) => {
                self.write_sum(editor, node.op, output, [left, right], bounds, affine)
            }
            Some(PendingValue::Times(left, right, bounds)) => {
                self.write_times(node.op, output, [left, right], bounds, affine)
            }
            Some(PendingValue::Join(parts, axis, bounds)) => {
                self.write_join(node.op, output, (parts, axis), bounds, affine)
            }
            Some(PendingValue::Mean(coded, bounds)) => {
                self.write_mean(node.op, output, coded, bounds, affine)
            }
            Some(PendingValue::Function(coded, values)) => {
                self.write_function(node.op, output, coded, &values, affine)
            }
            None => match self.function(input) {
                Some((coded, _)) if coded.affine == affine => coded,
                Some((coded, values)) => {
                    self.write_function(node.op, output, coded, &values, affine)
                }
                None => {
                    self.give_floats(input);
                    self.write_codes(editor, node, input, output, affine)
                }
            },
        };
        self.tensors[coded.tensor].quantized.push(output);
        self.quantized.insert(output, QuantizedTensor { affine, ..coded });
        Ok(true)
    }

    /// Quantizes floats that are not derived from codes.
    fn write_codes(
        &mut self,
        editor: &Editor,
        node: &Node,
        input: SlotId,
        output: SlotId,
        affine: Affine,
    ) -> QuantizedTensor {
        // A cast between float types does not change the codes.
        let cast = editor.writer(input).and_then(|at| editor.node(at));
        let cast = cast.filter(|cast| cast.operation() == Some(OpKind::Cast));
        let before = cast.and_then(|cast| cast.bound("x").first()?.slot());
        let floats =
            |slot: &SlotId| matches!(self.work.graph.slot(*slot).dtype, DType::Fp16 | DType::Fp32);
        let input = before.filter(floats).unwrap_or(input);
        let shape = self.work.graph.slot(output).shape.clone().unwrap_or_default();
        let last = shape.len() >= 4 || shape.len() == 3 && windowed(editor, output);
        let steps = Steps { scale: affine.scale, zero: affine.zero, signed: affine.signed };
        let kernel = Quantize::new(steps, &shape, last);
        let slot = self.add_codes(&shape);
        self.push(node.op, Box::new(kernel), vec![Operand::Slot(input)], slot);
        self.add_tensor(node.op, shape, slot, last, affine)
    }

    fn write_sum(
        &mut self,
        editor: &Editor,
        op: OpId,
        output: SlotId,
        terms: [QuantizedTensor; 2],
        bounds: Bounds,
        affine: Affine,
    ) -> QuantizedTensor {
        let shape = self.work.graph.slot(output).shape.clone().unwrap_or_default();
        let sum = |own: Affine, other: Affine| {
            let (low, high) = bounds.codes(affine);
            let factor = |one: Affine| one.scale / affine.scale;
            let shift = -factor(other) * f32::from(other.zero);
            Sum { factor: factor(own), other_factor: factor(other), shift, low, high }
        };
        // A product with a single reader can add while it writes.
        for [own, other] in [[0, 1], [1, 0]].map(|order| order.map(|at| terms[at])) {
            let tensor = &self.tensors[own.tensor];
            let (last, slot) = match (tensor.own, tensor.last) {
                (None, Some(slot)) => (true, slot),
                (Some(slot), None) => (false, slot),
                _ => continue,
            };
            let Some(&at) = self.products.get(&slot) else { continue };
            if self.readers(editor, own.tensor) != 1 {
                continue;
            }
            let other_slot = if last { self.last(other.tensor) } else { self.own(other.tensor) };
            let Some(PendingNode::Product(_, mut kernel, mut inputs, _)) = self.draft[at].take()
            else {
                continue;
            };
            kernel.add(sum(own.affine, other.affine), affine);
            inputs.push(Operand::Slot(other_slot));
            let slot = self.add_codes(&shape);
            self.draft.push(Some(PendingNode::Product(op, kernel, inputs, slot)));
            return self.add_tensor(op, shape, slot, last, affine);
        }
        let [left, right] = terms;
        let last = self.tensors[left.tensor].last.is_some();
        let inputs = [left, right].map(|one| match last {
            true => self.last(one.tensor),
            false => self.own(one.tensor),
        });
        let kernel = Add {
            count: shape.iter().product(),
            left_zero: left.affine.zero,
            sum: sum(left.affine, right.affine),
            zero: affine.zero,
        };
        let slot = self.add_codes(&shape);
        self.push(op, Box::new(kernel), inputs.map(Operand::Slot).to_vec(), slot);
        self.add_tensor(op, shape, slot, last, affine)
    }

    /// Number of operations that read the dequantized floats of a tensor.
    fn readers(&self, editor: &Editor, tensor: usize) -> usize {
        let quantized = self.tensors[tensor].quantized.iter();
        let nodes =
            quantized.flat_map(|&slot| editor.readers(slot)).filter_map(|&at| editor.node(at));
        nodes.flat_map(|node| &node.outputs).map(|floats| self.reads[floats.index()]).sum()
    }

    fn write_mean(
        &mut self,
        op: OpId,
        output: SlotId,
        coded: QuantizedTensor,
        bounds: Bounds,
        affine: Affine,
    ) -> QuantizedTensor {
        let shape = self.work.graph.slot(output).shape.clone().unwrap_or_default();
        let input = self.last(coded.tensor);
        let extents = &self.tensors[coded.tensor].shape;
        let pixels = extents[2..].iter().product();
        let kernel = Mean::new([extents[0], pixels, extents[1]], coded.affine, bounds, affine);
        let slot = self.add_codes(&shape);
        self.push(op, Box::new(kernel), vec![Operand::Slot(input)], slot);
        // With one pixel, both layouts are the same.
        let coded = self.add_tensor(op, shape, slot, false, affine);
        if self.tensors[coded.tensor].shape.len() >= 3 {
            self.tensors[coded.tensor].last = Some(slot);
        }
        coded
    }

    fn write_function(
        &mut self,
        op: OpId,
        output: SlotId,
        coded: QuantizedTensor,
        values: &Array,
        affine: Affine,
    ) -> QuantizedTensor {
        let shape = self.work.graph.slot(output).shape.clone().unwrap_or_default();
        let values = values.as_floats().unwrap_or_default();
        let table =
            std::array::from_fn(|code| affine.code(values.get(code).copied().unwrap_or(0.0)));
        let tensor = &self.tensors[coded.tensor];
        let (input, last) = match (tensor.last, tensor.own) {
            (Some(slot), _) => (slot, true),
            (None, Some(slot)) => (slot, false),
            (None, None) => (self.own(coded.tensor), false),
        };
        let kernel = LookUp { count: shape.iter().product(), table };
        let slot = self.add_codes(&shape);
        self.push(op, Box::new(kernel), vec![Operand::Slot(input)], slot);
        self.add_tensor(op, shape, slot, last, affine)
    }

    /// Delays a convolution or linear layer on codes until its epilogue is complete.
    fn product(
        &mut self,
        editor: &Editor,
        index: usize,
        node: &Node,
        output: SlotId,
    ) -> Result<bool> {
        let coded = |operand: &Operand| self.coded(std::slice::from_ref(operand));
        let found = Product::recognise(self.work, editor, index, node, coded);
        let Some(product) = found else { return Ok(false) };
        if ends_in_codes(self.work, editor, output) {
            self.pending.insert(output, PendingValue::Product(Box::new(product)));
            return Ok(true);
        }
        self.write_floats(node.op, output, product)?;
        Ok(true)
    }

    fn write_product(
        &mut self,
        op: OpId,
        output: SlotId,
        product: Product,
        affine: Affine,
    ) -> Result<QuantizedTensor> {
        let shape = self.work.graph.slot(output).shape.clone().unwrap_or_default();
        let (input, last) = self.left(&product);
        let kernel = self.made.kernel(self.work, product, Some(affine))?;
        let slot = self.add_codes(&shape);
        if kernel.may_add() {
            self.products.insert(slot, self.draft.len());
        }
        let inputs = vec![Operand::Slot(input)];
        self.draft.push(Some(PendingNode::Product(op, Box::new(kernel), inputs, slot)));
        Ok(self.add_tensor(op, shape, slot, last, affine))
    }

    /// Emits a product whose results stay floats.
    fn write_floats(&mut self, op: OpId, output: SlotId, product: Product) -> Result<()> {
        let (input, last) = self.left(&product);
        let kernel = Box::new(self.made.kernel(self.work, product, None)?);
        if !last {
            self.push(op, kernel, vec![Operand::Slot(input)], output);
            return Ok(());
        }
        let slot = self.work.graph.slot(output).clone();
        let shape = slot.shape.clone().unwrap_or_default();
        let axes = to_last(shape.len());
        let twin: Vec<usize> = axes.iter().map(|&axis| shape[axis]).collect();
        let between = Slot { shape: Some(twin.clone()), value: None, ..slot };
        let between = self.work.graph.add_slot(between);
        self.push(op, kernel, vec![Operand::Slot(input)], between);
        let back = super::layout::Permute::new(twin, to_first(shape.len()));
        self.push(op, Box::new(back), vec![Operand::Slot(between)], output);
        Ok(())
    }

    /// The input of a product, and whether it is channels-last.
    fn left(&mut self, product: &Product) -> (SlotId, bool) {
        match product.left {
            Left::Rows(coded) => (self.own(coded.tensor), false),
            Left::Pixels(coded) => (self.last(coded.tensor), true),
        }
    }

    fn max_pool(&mut self, node: &Node, output: SlotId) -> bool {
        let Some(coded) = self.coded(node.bound("x")) else { return false };
        let Some(windows) = max_pool_ranges(self.work, node) else { return false };
        let Some(shape) = self.work.graph.slot(output).shape.clone() else { return false };
        let input = self.last(coded.tensor);
        let kernel = Maximum::new(&self.tensors[coded.tensor].shape, windows);
        let slot = self.add_codes(&shape);
        self.push(node.op, Box::new(kernel), vec![Operand::Slot(input)], slot);
        let coded = self.add_tensor(node.op, shape, slot, true, coded.affine);
        self.floats.insert(output, (coded, false));
        true
    }

    fn transpose(&mut self, node: &Node, output: SlotId) -> bool {
        let Some(coded) = self.coded(node.bound("x")) else { return false };
        let shape = self.tensors[coded.tensor].shape.clone();
        let axes = parameters(self.work.source, self.work.graph, node, |call| {
            call.axes("perm", shape.len())
        });
        let Some(axes) = axes else { return false };
        let mut sorted = axes.clone();
        sorted.sort_unstable();
        if !sorted.iter().copied().eq(0..shape.len()) {
            return false;
        }
        let input = self.own(coded.tensor);
        let result: Vec<usize> = axes.iter().map(|&axis| shape[axis]).collect();
        let slot = self.permute(node.op, input, shape, axes);
        let coded = self.add_tensor(node.op, result, slot, false, coded.affine);
        self.floats.insert(output, (coded, false));
        true
    }

    /// Reshapes codes, or a mean that is not emitted yet.
    fn alias(&mut self, node: &Node, output: SlotId) -> bool {
        let Some(Operand::Slot(input)) = node.inputs.first() else { return false };
        match self.pending.get(input) {
            Some(PendingValue::Mean(coded, bounds)) => {
                let mean = PendingValue::Mean(*coded, *bounds);
                self.pending.insert(output, mean);
                return false;
            }
            Some(_) => return false,
            None => {}
        }
        let Some(&(coded, _)) = self.floats.get(input) else { return false };
        let Some(shape) = self.work.graph.slot(output).shape.clone() else { return false };
        let slot = self.own(coded.tensor);
        let coded = self.add_tensor(node.op, shape, slot, false, coded.affine);
        self.floats.insert(output, (coded, false));
        true
    }

    /// Ensures that the floats of a slot are written.
    fn give_floats(&mut self, slot: SlotId) {
        let Some((coded, written)) = self.floats.get_mut(&slot) else { return };
        if std::mem::replace(written, true) {
            return;
        }
        let coded = *coded;
        let input = self.own(coded.tensor);
        let Tensor { op, shape, .. } = &self.tensors[coded.tensor];
        let (op, count) = (*op, shape.iter().product());
        let Affine { scale, zero, .. } = coded.affine;
        let kernel = Dequantize { count, scale, zero };
        self.push(op, Box::new(kernel), vec![Operand::Slot(input)], slot);
    }

    /// The slot of a tensor in its own layout.
    fn own(&mut self, tensor: usize) -> SlotId {
        let Tensor { op, shape, own, last, .. } = &self.tensors[tensor];
        if let (Some(slot), _) | (None, Some(slot)) = (*own, last.filter(|_| same_orders(shape))) {
            return slot;
        }
        let from = last.expect("a tensor of codes has been written");
        let axes = to_last(shape.len());
        let twin = axes.iter().map(|&axis| shape[axis]).collect();
        let (op, back) = (*op, to_first(shape.len()));
        let slot = self.permute(op, from, twin, back);
        self.tensors[tensor].own = Some(slot);
        slot
    }

    /// The slot of a tensor of rank 3 to 5 in channels-last layout.
    fn last(&mut self, tensor: usize) -> SlotId {
        let Tensor { op, shape, own, last, .. } = &self.tensors[tensor];
        if let (Some(slot), _) | (None, Some(slot)) = (*last, own.filter(|_| same_orders(shape))) {
            return slot;
        }
        let from = own.expect("a tensor of codes has been written");
        let (op, shape) = (*op, shape.clone());
        let axes = to_last(shape.len());
        let slot = self.permute(op, from, shape, axes);
        self.tensors[tensor].last = Some(slot);
        slot
    }

    fn permute(&mut self, op: OpId, from: SlotId, shape: Vec<usize>, axes: Vec<usize>) -> SlotId {
        let slot = self.add_codes(&shape);
        self.push(op, Box::new(Permute { shape, axes }), vec![Operand::Slot(from)], slot);
        slot
    }

    fn push(&mut self, op: OpId, kernel: Box<dyn Kernel>, inputs: Vec<Operand>, output: SlotId) {
        let kind = NodeKind::Kernel(kernel);
        self.draft.push(Some(PendingNode::Node(Node { op, kind, inputs, outputs: vec![output] })));
    }

    /// Adds a slot for the codes of a tensor.
    fn add_codes(&mut self, shape: &[usize]) -> SlotId {
        let floats = floats_for(shape.iter().product());
        let (holds, shape) = (SlotKind::Tensor, Some(vec![floats]));
        self.work.graph.add_slot(Slot { holds, dtype: DType::Fp32, shape, value: None })
    }

    fn add_tensor(
        &mut self,
        op: OpId,
        shape: Vec<usize>,
        slot: SlotId,
        last: bool,
        affine: Affine,
    ) -> QuantizedTensor {
        let (own, last) = if last { (None, Some(slot)) } else { (Some(slot), None) };
        self.tensors.push(Tensor { op, shape, own, last, quantized: Vec::new() });
        QuantizedTensor { tensor: self.tensors.len() - 1, affine }
    }
}

/// Returns true if the layout is the same with channels last.
fn same_orders(shape: &[usize]) -> bool {
    shape.len() < 3 || shape[1] == 1 || shape[2..].iter().all(|&extent| extent == 1)
}

/// Returns true if a dequantized output of `quantize` is read by a convolution, a pooling or a
/// mean.
fn windowed(editor: &Editor, slot: SlotId) -> bool {
    let read_by = |slot: SlotId| editor.readers(slot).iter().filter_map(|&at| editor.node(at));
    read_by(slot).flat_map(|node| &node.outputs).any(|&floats| {
        read_by(floats).any(|node| {
            matches!(node.operation(), Some(OpKind::Conv | OpKind::MaxPool | OpKind::ReduceMean))
        })
    })
}

/// The bounds of an activation that only clamps.
fn clamp<'n>(work: &Work<'_>, node: &'n Node) -> Option<(Bounds, &'n Operand)> {
    let (activation, x) = activation(work.source, work.graph, node)?;
    let bounds = match activation {
        Activation::Relu => Bounds { low: 0.0, high: f32::INFINITY },
        Activation::Clamp { low, high } if low <= high => Bounds { low, high },
        _ => return None,
    };
    Some((bounds, x))
}

/// Scale and zero point of a `quantize`, if all codes share them and all readers dequantize.
fn claimed(work: &Work<'_>, editor: &Editor, node: &Node) -> Option<Affine> {
    let graph = &*work.graph;
    let output = *node.outputs.first()?;
    let slot = graph.slot(output);
    let signed = match slot.dtype {
        DType::Int8 => true,
        DType::UInt8 => false,
        _ => return None,
    };
    slot.shape.as_ref()?;
    let input = node.bound("input").first()?;
    graph.shape(input)?;
    if !matches!(graph.dtype(input), DType::Fp16 | DType::Fp32) || editor.escapes(output) {
        return None;
    }
    let wanted = editor.readers(output).iter().all(|&reader| {
        editor.node(reader).is_some_and(|reader| {
            reader.operation() == Some(OpKind::Dequantize)
                && Affine::of(work, reader, signed).is_some()
        })
    });
    if !wanted { None } else { Affine::of(work, node, signed) }
}

/// Returns true if a value is read only by a `quantize`, possibly after clamping activations.
fn ends_in_codes(work: &Work<'_>, editor: &Editor, mut slot: SlotId) -> bool {
    let shape = &work.graph.slot(slot).shape;
    while let Some((_, node)) = editor.sole_reader(slot) {
        if node.operation() == Some(OpKind::Quantize) {
            return claimed(work, editor, node).is_some();
        }
        let Some(&output) = node.outputs.first() else { return false };
        if clamp(work, node).is_none() || work.graph.slot(output).shape != *shape {
            return false;
        }
        slot = output;
    }
    false
}
