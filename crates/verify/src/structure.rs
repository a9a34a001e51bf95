//! Checks of a function's structure, on which all other checks rely.

use std::collections::HashSet;

use coremill_mil::infer::MAX_BLOCK_DEPTH;
use coremill_mil::ir::{Binding, BlockId, Definition, Function, OpId, Operator, ValueId};
use coremill_mil::ops::OpKind;
use coremill_mil::text::is_plain;

use super::codes::Code;
use super::diagnostic::{Diagnostic, Findings, FunctionContext};

/// The blocks and operations of a function with valid ids, whose blocks form a tree and contain each
/// operation once.
pub(super) struct Layout {
    /// The operations in the order of the text: an operation precedes the operations of its blocks.
    pub(super) ops: Vec<OpId>,
    /// The blocks in the same order, the body first.
    pub(super) blocks: Vec<BlockId>,
    /// Whether an error about an operation, by index, was already reported, so that type inference does not
    /// report it again.
    pub(super) refused: Vec<bool>,
    /// Number of uses of each value, by index.
    pub(super) uses: Vec<u32>,
}

/// Returns the layout; `None` if the function is too broken for other checks.
pub(super) fn check(at: FunctionContext<'_>, findings: &mut Findings) -> Option<Layout> {
    let mut walk = Walk {
        at,
        function: at.function,
        findings,
        layout: Layout {
            ops: Vec::new(),
            blocks: Vec::new(),
            refused: vec![false; at.function.op_count()],
            uses: vec![0; at.function.value_count()],
        },
        op_seen: vec![false; at.function.op_count()],
        value_seen: vec![false; at.function.value_count()],
        broken: false,
    };
    walk.tree();
    let Walk { layout, broken, .. } = walk;
    findings.set_order(at.index, &layout.ops, at.function.op_count());
    if broken {
        return None;
    }
    let mut layout = layout;
    names(at, &layout, findings);
    scopes(at, &mut layout, findings);
    operators(at, &mut layout, findings);
    Some(layout)
}

struct Walk<'p, 'f> {
    at: FunctionContext<'p>,
    function: &'p Function,
    findings: &'f mut Findings,
    layout: Layout,
    op_seen: Vec<bool>,
    value_seen: Vec<bool>,
    broken: bool,
}

/// The unvisited rest of a block.
struct Frame {
    block: BlockId,
    next: usize,
    depth: usize,
}

impl Walk<'_, '_> {
    /// Walks the blocks with an explicit stack, because the nesting depth is still unchecked.
    fn tree(&mut self) {
        let mut block_seen = vec![false; self.function.block_count()];
        let mut frames = Vec::new();
        self.enter(self.function.body, None, &mut block_seen, &mut frames, 0);
        while let Some(frame) = frames.last_mut() {
            let ops = &self.function.block(frame.block).ops;
            let Some(&op) = ops.get(frame.next) else {
                frames.pop();
                continue;
            };
            frame.next += 1;
            let depth = frame.depth;
            if !self.visit(op) {
                continue;
            }
            if depth >= MAX_BLOCK_DEPTH && !self.function.op(op).blocks.is_empty() {
                let message = format!("blocks are nested deeper than {MAX_BLOCK_DEPTH} levels");
                self.broken(Code::DeepNesting, Some(op), message);
                continue;
            }
            // Push the first block last, so that it is walked first.
            for &block in self.function.op(op).blocks.iter().rev() {
                self.enter(block, Some(op), &mut block_seen, &mut frames, depth + 1);
            }
        }
    }

    fn enter(
        &mut self,
        block: BlockId,
        by: Option<OpId>,
        seen: &mut [bool],
        frames: &mut Vec<Frame>,
        depth: usize,
    ) {
        match seen.get_mut(block.index()) {
            None => {
                let message = format!("runs {block}, but the function has {} blocks", seen.len());
                self.broken(Code::DanglingId, by, message);
                return;
            }
            Some(seen) if *seen => {
                let message = format!("runs {block}, which is already in use");
                self.broken(Code::SharedBlock, by, message);
                return;
            }
            Some(seen) => *seen = true,
        }
        self.layout.blocks.push(block);
        let inputs = &self.function.block(block).inputs;
        for (index, &input) in inputs.iter().enumerate() {
            self.define(input, Definition::Input(block, index as u32), by);
        }
        for &output in &self.function.block(block).outputs {
            self.hold(output, by);
        }
        frames.push(Frame { block, next: 0, depth });
    }

    /// Whether the operation can be checked further.
    fn visit(&mut self, id: OpId) -> bool {
        match self.op_seen.get_mut(id.index()) {
            None => {
                let held = self.op_seen.len();
                let message =
                    format!("a block contains {id}, but the function has {held} operations");
                self.broken(Code::DanglingId, None, message);
                return false;
            }
            Some(seen) if *seen => {
                self.broken(Code::SharedOp, Some(id), "appears in two positions".to_owned());
                return false;
            }
            Some(seen) => *seen = true,
        }
        self.layout.ops.push(id);
        let op = self.function.op(id);
        for (index, &output) in op.outputs.iter().enumerate() {
            self.define(output, Definition::Output(id, index as u32), Some(id));
        }
        for (_, binding) in op.all_bindings() {
            if let Binding::Value(value) = binding {
                self.hold(*value, Some(id));
            }
        }
        true
    }

    fn hold(&mut self, value: ValueId, by: Option<OpId>) -> bool {
        let held = self.function.value_count();
        if value.index() < held {
            return true;
        }
        let message = format!("refers to {value}, but the function has {held} values");
        self.broken(Code::DanglingId, by, message);
        false
    }

    fn define(&mut self, value: ValueId, definition: Definition, by: Option<OpId>) {
        if !self.hold(value, by) {
            return;
        }
        let stated = self.function.value(value);
        if std::mem::replace(&mut self.value_seen[value.index()], true) {
            let message = format!("`{}` is defined twice", stated.name);
            self.broken(Code::MisplacedValue, by, message);
        } else if stated.definition != definition {
            let message = format!(
                "`{}` is defined {}, but its recorded definition is {}",
                stated.name,
                described(definition),
                described(stated.definition)
            );
            self.broken(Code::MisplacedValue, by, message);
        }
    }

    fn broken(&mut self, code: Code, op: Option<OpId>, message: String) {
        self.broken = true;
        let location = op.map_or_else(|| self.at.place(), |op| self.at.op(op));
        self.findings.push(Diagnostic::new(code, location, message));
    }
}

fn described(definition: Definition) -> String {
    match definition {
        Definition::Input(block, index) => format!("at input {index} of {block}"),
        Definition::Output(op, index) => format!("at output {index} of {op}"),
    }
}

/// Checks that names are identifiers and that the names of operations are distinct. `scopes` checks the names
/// of values.
fn names(at: FunctionContext<'_>, layout: &Layout, findings: &mut Findings) {
    let function = at.function;
    if !is_plain(&function.name) {
        let message = format!("`{}` is not a valid function name", function.name);
        findings.report(Code::InvalidName, at.place(), message);
    }
    let inputs = layout.blocks.iter().flat_map(|&block| &function.block(block).inputs);
    let outputs = layout.ops.iter().flat_map(|&op| &function.op(op).outputs);
    for &id in inputs.chain(outputs) {
        let name = &function.value(id).name;
        if !is_plain(name) {
            let message = format!("`{name}` is not a valid value name");
            findings.report(Code::InvalidName, at.value(id), message);
        }
    }
    let mut ops = HashSet::new();
    for &id in &layout.ops {
        let name = function.op(id).attributes.get("name").and_then(|name| name.as_str());
        if let Some(name) = name.filter(|name| !ops.insert(*name)) {
            let message = format!("another operation is also named `{name}`");
            findings.report(Code::DuplicateOpName, at.op(id).parameter("name"), message);
        }
    }
}

/// Checks that every value is defined before its use, in the same or an enclosing block, and that its name is
/// unique among the visible values. Sibling blocks may use the same names, and converters do so.
fn scopes(at: FunctionContext<'_>, layout: &mut Layout, findings: &mut Findings) {
    let function = at.function;
    let mut scope = Scope {
        function,
        visible: vec![false; function.value_count()],
        names: HashSet::new(),
        stack: Vec::new(),
        clashes: Vec::new(),
    };
    let mut frames = vec![scope.enter(function.body, None)];
    while let Some(frame) = frames.last_mut() {
        if let Some((op, next)) = frame.running {
            frame.running = match function.op(op).blocks.get(next) {
                Some(&block) => {
                    frame.running = Some((op, next + 1));
                    let inner = scope.enter(block, Some(op));
                    frames.push(inner);
                    continue;
                }
                None => None,
            };
            function.op(op).outputs.iter().for_each(|&output| scope.define(output));
            continue;
        }
        let block = function.block(frame.block);
        if let Some(&id) = block.ops.get(frame.next) {
            frame.next += 1;
            frame.running = Some((id, 0));
            for (parameter, binding) in function.op(id).all_bindings() {
                let Binding::Value(value) = *binding else { continue };
                layout.uses[value.index()] += 1;
                if !scope.visible[value.index()] {
                    layout.refused[id.index()] = true;
                    let location = at.op(id).parameter(parameter);
                    findings.report(Code::UndefinedValue, location, scope.undefined(value));
                }
            }
            continue;
        }
        for &output in &block.outputs {
            layout.uses[output.index()] += 1;
            if !scope.visible[output.index()] {
                if let Some(owner) = frame.owner {
                    layout.refused[owner.index()] = true;
                }
                let location = frame.owner.map_or_else(|| at.place(), |op| at.op(op));
                let message = format!("returns an undefined value: {}", scope.undefined(output));
                findings.report(Code::UndefinedValue, location, message);
            }
        }
        scope.leave(frame.outer);
        frames.pop();
    }
    for value in scope.clashes {
        let message = format!("another value is also called `{}`", function.value(value).name);
        findings.report(Code::DuplicateName, at.value(value), message);
    }
}

/// The visible values at the current position of the walk.
struct Scope<'p> {
    function: &'p Function,
    visible: Vec<bool>,
    /// Names of the visible values.
    names: HashSet<&'p str>,
    /// The visible values in the order of their definition, each with whether it added its name.
    stack: Vec<(ValueId, bool)>,
    /// Values whose name was already visible at their definition.
    clashes: Vec<ValueId>,
}

/// A block on the walk's stack.
struct OpenBlock {
    block: BlockId,
    /// The operation that owns the block.
    owner: Option<OpId>,
    next: usize,
    /// The operation whose blocks are being walked, and the index of the next block.
    running: Option<(OpId, usize)>,
    /// Number of values visible outside the block.
    outer: usize,
}

impl Scope<'_> {
    fn enter(&mut self, block: BlockId, owner: Option<OpId>) -> OpenBlock {
        let outer = self.stack.len();
        let function = self.function;
        function.block(block).inputs.iter().for_each(|&input| self.define(input));
        OpenBlock { block, owner, next: 0, running: None, outer }
    }

    fn define(&mut self, value: ValueId) {
        self.visible[value.index()] = true;
        let is_new = self.names.insert(&self.function.value(value).name);
        self.stack.push((value, is_new));
        if !is_new {
            self.clashes.push(value);
        }
    }

    fn leave(&mut self, outer: usize) {
        for (value, is_new) in self.stack.drain(outer..) {
            self.visible[value.index()] = false;
            if is_new {
                self.names.remove(self.function.value(value).name.as_str());
            }
        }
    }

    fn undefined(&self, value: ValueId) -> String {
        format!("`{}` is not defined here", self.function.value(value).name)
    }
}

/// Checks that the op table has every operation in the function's opset.
fn operators(at: FunctionContext<'_>, layout: &mut Layout, findings: &mut Findings) {
    let opset = at.function.opset;
    for &id in &layout.ops {
        let op = at.function.op(id);
        let diagnostic = match &op.operator {
            Operator::Unknown(name) => {
                Diagnostic::new(Code::UnknownOperator, at.op(id), OpKind::unknown(name))
            }
            Operator::Known(kind) if kind.row(opset).is_none() => {
                let introduced = kind.introduced();
                let message =
                    format!("`{}` needs {introduced}; this function is {opset}", kind.name());
                Diagnostic::new(Code::OperatorTooNew, at.op(id), message).hint(format!(
                    "declare the function with opset `{}`, or use older operations",
                    introduced.name()
                ))
            }
            Operator::Known(OpKind::ConstSymbolic) => {
                let message = "`_const_symbolic` is internal to converters";
                Diagnostic::new(Code::UnknownOperator, at.op(id), message)
            }
            Operator::Known(_) => continue,
        };
        layout.refused[id.index()] = true;
        findings.push(diagnostic);
    }
}
