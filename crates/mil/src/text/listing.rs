use std::ops::Range;

use crate::ir::OpId;

/// A program's text, and where in it the parts of the program stand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// The text.
    pub text: String,
    /// Where what stands in it.
    pub spans: Spans,
}

/// Where the parts of a program stand in a text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spans {
    /// The bytes from the `func` of each function to what stands before its `{`, in the order of
    /// [`Program::functions`](crate::ir::Program::functions).
    pub functions: Vec<Range<usize>>,
    /// The operations in the order of the text.
    pub ops: Vec<OpSpan>,
}

/// Where an operation stands in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpSpan {
    /// The function, counted in [`Program::functions`](crate::ir::Program::functions).
    pub function: usize,
    /// The operation.
    pub op: OpId,
    /// The bytes from its first output to its last attribute; its blocks come after.
    pub range: Range<usize>,
}

impl Listing {
    /// The line on which a byte stands, counted from 1.
    pub fn line(&self, offset: usize) -> usize {
        let before = &self.text.as_bytes()[..offset.min(self.text.len())];
        before.iter().filter(|&&byte| byte == b'\n').count() + 1
    }
}

impl Spans {
    /// Where an operation stands.
    pub fn op(&self, function: usize, op: OpId) -> Option<&OpSpan> {
        self.ops.iter().find(|span| span.function == function && span.op == op)
    }
}
