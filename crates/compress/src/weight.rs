//! Recognition of weights among constants, and of their channel axes.

use coremill_tensor::{Buffer, DType};

use super::weighting::ElementImportance;
use coremill_mil::ir::{Op, OpId, ValueId};
use coremill_mil::ops::OpKind;
use coremill_passes::Editor;

/// Minimum number of elements. Smaller constants are never weights.
const MIN_ELEMENTS: u64 = 10;

/// A weight that can be compressed.
pub(super) struct Weight {
    pub(super) id: OpId,
    pub(super) value: ValueId,
    pub(super) name: String,
    pub(super) dtype: DType,
    pub(super) shape: Vec<usize>,
    pub(super) elements: Buffer,
    /// Names of the operations that use it, without duplicates.
    pub(super) users: Vec<&'static str>,
    /// Axes of the input and output channels, `None` if the operations that use it disagree.
    pub(super) axes: Option<(usize, usize)>,
    /// Maximum number of groups of the convolutions that use it.
    pub(super) groups: usize,
    /// Importance of elements, if known.
    pub(super) weighting: Option<ElementImportance>,
}

/// A constant that may be a weight.
pub(super) enum Candidate {
    Weight(Weight),
    /// A constant that cannot be compressed: its name and the reason.
    Kept(String, &'static str),
}

impl Weight {
    pub(super) fn count(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns true if a layer multiplies by it. Other operations may use it as a mask with
    /// infinities.
    pub(super) fn is_of_layer(&self) -> bool {
        use OpKind::{Conv, ConvTranspose, Linear, Matmul};
        let layers = [Conv, ConvTranspose, Linear, Matmul].map(OpKind::name);
        self.users.iter().any(|user| layers.contains(user))
    }

    /// Returns true if it is only used as a lookup table.
    pub(super) fn is_table(&self) -> bool {
        self.users.iter().all(|&user| user == OpKind::Gather.name())
    }
}

/// The constant of an operation, if it may be a weight: floats with at least two dimensions.
pub(super) fn candidate(editor: &Editor<'_>, id: OpId) -> Option<Candidate> {
    let op = editor.op_of(id, OpKind::Const)?;
    let value = *op.outputs.first()?;
    let constant = op.attributes.get("val")?;
    let ty = constant.tensor_type()?;
    let shape = ty.known_shape()?;
    let count = ty.element_count()?;
    let is_matrix = shape.len() >= 2 && matches!(ty.dtype, DType::Fp16 | DType::Fp32);
    if count < MIN_ELEMENTS || !is_matrix {
        return None;
    }
    let name = editor.name(value).to_owned();
    let kept = |reason| Some(Candidate::Kept(name.clone(), reason));
    let uses = editor.uses(value);
    let kinds = || uses.ops.iter().filter_map(|&user| editor.op(user)?.kind());
    if editor.is_output(value) {
        return kept("it is an output of the function");
    }
    if kinds().any(OpKind::is_constexpr) {
        return kept("it is compressed already");
    }
    if uses.ops.is_empty() {
        return kept("nothing uses it");
    }
    let elements = constant.elements()?.clone();
    if ty.storage_bytes() != Some(elements.len() as u64) {
        return None;
    }
    let shape: Vec<usize> =
        shape.iter().map(|&extent| usize::try_from(extent).ok()).collect::<Option<_>>()?;
    let mut users: Vec<&'static str> = kinds().map(OpKind::name).collect();
    users.sort_unstable();
    users.dedup();
    let mut axes = uses.ops.iter().map(|&user| channel_axes(editor, user, value, shape.len()));
    let first = axes.next();
    let axes = first.filter(|&first| axes.all(|other| other == first));
    let groups = uses.ops.iter().filter_map(|&user| editor.ints(user, "groups")?.first().copied());
    let groups = groups.max().and_then(|most| usize::try_from(most).ok()).unwrap_or(1).max(1);
    let dtype = ty.dtype;
    let weighting = None;
    let weight = Weight { id, value, name, dtype, shape, elements, users, axes, groups, weighting };
    Some(Candidate::Weight(weight))
}

/// Axes of the input and output channels of a weight with at least two dimensions.
fn channel_axes(editor: &Editor<'_>, user: OpId, weight: ValueId, rank: usize) -> (usize, usize) {
    let is_transposed = |name: &str| editor.flag(user, name).unwrap_or_default();
    let (last, before) = (rank - 1, rank - 2);
    match editor.op(user).and_then(Op::kind) {
        Some(OpKind::ConvTranspose) => (0, 1),
        Some(OpKind::Matmul) => {
            let is_right = editor.argument(user, "y") == Some(weight);
            let rows =
                if is_right { is_transposed("transpose_y") } else { !is_transposed("transpose_x") };
            if rows { (last, before) } else { (before, last) }
        }
        _ => (1, 0),
    }
}
