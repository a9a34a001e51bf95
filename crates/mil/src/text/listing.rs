use std::ops::Range;

use crate::ir::OpId;

/// The text of a program with the positions of the program's parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// The text.
    pub text: String,
    /// Positions of functions and operations.
    pub spans: Spans,
}

/// Positions of a program's parts in a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spans {
    /// Byte range of each function's header, from `func` to the text before `{`, in the order of
    /// [`Program::functions`](crate::ir::Program::functions).
    pub functions: Vec<Range<usize>>,
    /// Positions of the operations, in the order of the text.
    pub ops: Vec<OpSpan>,
}

/// Position of an operation in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpSpan {
    /// Index of the function in [`Program::functions`](crate::ir::Program::functions).
    pub function: usize,
    /// The operation.
    pub op: OpId,
    /// Byte range from the first output to the last attribute. Blocks follow the range.
    pub range: Range<usize>,
}

impl Listing {
    /// The line of a byte offset, starting at 1.
    pub fn line(&self, offset: usize) -> usize {
        let before = &self.text.as_bytes()[..offset.min(self.text.len())];
        before.iter().filter(|&&byte| byte == b'\n').count() + 1
    }
}

impl Spans {
    /// Returns the position of an operation.
    pub fn op(&self, function: usize, op: OpId) -> Option<&OpSpan> {
        self.ops.iter().find(|span| span.function == function && span.op == op)
    }
}
