//! Builds a function operation by operation and infers the type of each operation when it is appended.
//!
//! All front ends use a [`FunctionBuilder`]. It names values, keeps the stack of open blocks, and folds
//! constants. Folding is a hook, because constants are evaluated by the engine, which depends on this crate.
//!
//! ```
//! use coremill_mil::builder::{FunctionBuilder, no_folding};
//! use coremill_mil::ir::{Binding, Op, Opset, Type};
//! use coremill_mil::ops::OpKind;
//! use coremill_tensor::DType;
//!
//! let mut builder = FunctionBuilder::new("main", Opset::Ios16, no_folding);
//! let x = builder.input("x", Type::tensor(DType::Fp32, &[2, 3]));
//! let relu = Op::new(OpKind::Relu).with("x", Binding::Value(x));
//! let outputs = builder.append(relu, "relu").expect("`relu` accepts fp32");
//! assert_eq!(builder.analysis.ty(outputs[0]), builder.analysis.ty(x));
//! ```

use std::collections::HashMap;

use crate::infer::{Analysis, InferError, InferredValue};
use crate::ir::{BlockId, Constant, Definition, Function, Op, OpId, Opset, Type, ValueId};
use crate::text::identifier;

/// Evaluates an operation at build time. Returns the resulting constants, or `None` if the program must
/// compute them.
pub type Fold = fn(&Function, &Op, &[InferredValue]) -> Result<Option<Vec<Constant>>, InferError>;

/// A [`Fold`] hook that never folds.
pub fn no_folding(
    _: &Function,
    _: &Op,
    _: &[InferredValue],
) -> Result<Option<Vec<Constant>>, InferError> {
    Ok(None)
}

/// A function under construction. Operations are appended to the innermost open block.
///
/// Names are [identifiers](identifier); a name that is already used gets a numeric suffix.
#[derive(Clone, Debug)]
pub struct FunctionBuilder {
    /// The function.
    pub function: Function,
    /// Inference results of its values.
    pub analysis: Analysis,
    fold: Fold,
    /// The open blocks, the innermost last. The body is never closed.
    blocks: Vec<BlockId>,
    /// Maps an [`OpId::index`] to the block that contains the operation.
    block_of: Vec<BlockId>,
    /// Names in use, each with the last suffix that was appended to it.
    names: HashMap<String, u32>,
}

impl FunctionBuilder {
    /// Returns a builder of a function with an empty body.
    pub fn new(name: impl Into<String>, opset: Opset, fold: Fold) -> FunctionBuilder {
        let function = Function::new(name, opset);
        FunctionBuilder {
            blocks: vec![function.body],
            function,
            analysis: Analysis::default(),
            fold,
            block_of: Vec::new(),
            names: HashMap::new(),
        }
    }

    /// Reserves a name; returns whether it was free.
    pub fn reserve(&mut self, name: &str) -> bool {
        let free = !self.names.contains_key(name);
        if free {
            self.names.insert(name.to_owned(), 0);
        }
        free
    }

    /// Converts `wanted` to an identifier and reserves it, with a numeric suffix if it is already used.
    pub fn fresh_name(&mut self, wanted: &str) -> String {
        let wanted = identifier(wanted);
        if self.reserve(&wanted) {
            return wanted;
        }
        let mut count = self.names.get(&wanted).copied().unwrap_or_default();
        let name = loop {
            count += 1;
            let name = format!("{wanted}_{count}");
            if self.reserve(&name) {
                break name;
            }
        };
        self.names.insert(wanted, count);
        name
    }

    /// Reserves a name of the function's interface. A value that already has the name is renamed.
    pub fn claim_name(&mut self, name: &str) {
        if self.reserve(name) {
            return;
        }
        let mut values = (0..self.function.value_count()).map(ValueId::from_index);
        if let Some(holder) = values.find(|&value| self.function.value(value).name == name) {
            self.function.value_mut(holder).name = self.fresh_name(name);
        }
    }

    /// Adds an input to the function. The name must have been reserved or claimed.
    pub fn input(&mut self, name: impl Into<String>, ty: Type) -> ValueId {
        let value = self.function.add_input(self.function.body, name, ty);
        self.analysis.enter_input(&self.function, value);
        value
    }

    /// Opens a block inside the innermost one. Operations are appended to it until
    /// [`FunctionBuilder::close_block`].
    pub fn open_block(&mut self, inputs: &[(String, Type)]) -> Vec<ValueId> {
        let block = self.function.add_block();
        for (name, ty) in inputs {
            let name = self.fresh_name(name);
            self.function.add_input(block, name, ty.clone());
        }
        self.analysis.enter_inputs(&self.function, block);
        self.blocks.push(block);
        self.function.block(block).inputs.clone()
    }

    /// Closes the innermost block.
    pub fn close_block(&mut self, outputs: Vec<ValueId>) -> BlockId {
        let block = self.block();
        debug_assert!(self.is_nested(), "the body is never closed");
        self.blocks.pop();
        self.function.block_mut(block).outputs = outputs;
        block
    }

    /// The innermost open block, to which operations are appended.
    pub fn block(&self) -> BlockId {
        self.blocks.last().copied().unwrap_or(self.function.body)
    }

    /// Whether a block inside the body is open.
    pub fn is_nested(&self) -> bool {
        self.blocks.len() > 1
    }

    /// Whether operations in the innermost block can use a value.
    pub fn is_in_scope(&self, value: ValueId) -> bool {
        self.blocks.contains(&self.block_of(value))
    }

    /// Whether a value is the result of a non-constant operation in the innermost block. Such a value can be
    /// an output of the block; other values need a copy.
    pub fn is_computed_here(&self, value: ValueId) -> bool {
        matches!(self.function.value(value).definition, Definition::Output(..))
            && self.block_of(value) == self.block()
            && self.function.constant(value).is_none()
    }

    /// The block that defines a value.
    pub fn block_of(&self, value: ValueId) -> BlockId {
        match self.function.value(value).definition {
            Definition::Input(block, _) => block,
            Definition::Output(op, _) => self.block_of[op.index()],
        }
    }

    /// Adds a constant to the body, so that every block can use it. The operation that will own the innermost
    /// block is appended after the constant.
    pub fn constant(&mut self, name: &str, constant: Constant) -> ValueId {
        let outcomes = vec![InferredValue::of_constant(&constant)];
        let op = self.insert(self.function.body, Op::constant(constant), outcomes, name);
        self.function.op(op).outputs[0]
    }

    /// Infers the results of an operation.
    pub fn infer(&mut self, op: &Op) -> Result<Vec<InferredValue>, Vec<InferError>> {
        self.analysis.infer_op(&self.function, op)
    }

    /// Folds an operation and adds the resulting constants if its operands are constant.
    pub fn fold(
        &mut self,
        op: &Op,
        outcomes: &[InferredValue],
        name: &str,
    ) -> Result<Option<Vec<ValueId>>, InferError> {
        let constants = (self.fold)(&self.function, op, outcomes)?;
        let add = |constant| self.constant(name, constant);
        Ok(constants.map(|constants| constants.into_iter().map(add).collect()))
    }

    /// Appends an operation, or adds the resulting constants if it can be folded.
    pub fn append(&mut self, op: Op, name: &str) -> Result<Vec<ValueId>, Vec<InferError>> {
        let outcomes = self.infer(&op)?;
        match self.fold(&op, &outcomes, name).map_err(|refusal| vec![refusal])? {
            Some(values) => Ok(values),
            None => Ok(self.append_inferred(op, outcomes, name)),
        }
    }

    /// Appends an operation without folding it.
    pub fn append_unfolded(&mut self, op: Op, name: &str) -> Result<Vec<ValueId>, Vec<InferError>> {
        let outcomes = self.infer(&op)?;
        Ok(self.append_inferred(op, outcomes, name))
    }

    /// Appends an operation whose results were already inferred.
    pub fn append_inferred(
        &mut self,
        op: Op,
        outcomes: Vec<InferredValue>,
        name: &str,
    ) -> Vec<ValueId> {
        let id = self.insert(self.block(), op, outcomes, name);
        self.function.op(id).outputs.clone()
    }

    fn insert(&mut self, block: BlockId, op: Op, outcomes: Vec<InferredValue>, name: &str) -> OpId {
        let mut names: Vec<_> = outcomes.iter().map(|_| self.fresh_name(name)).collect();
        let take = |at: usize| std::mem::take(&mut names[at]);
        let id = self.analysis.append(&mut self.function, block, op, outcomes, take);
        debug_assert_eq!(self.block_of.len(), id.index(), "only the builder adds operations");
        self.block_of.push(block);
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coremill_tensor::DType;

    use crate::ir::Binding;
    use crate::ops::OpKind;

    fn builder() -> FunctionBuilder {
        FunctionBuilder::new("main", Opset::Ios18, no_folding)
    }

    fn relu(x: ValueId) -> Op {
        Op::new(OpKind::Relu).with("x", Binding::Value(x))
    }

    fn name(builder: &FunctionBuilder, value: ValueId) -> &str {
        &builder.function.value(value).name
    }

    #[test]
    fn fresh_names_are_unique_identifiers() {
        let mut builder = builder();
        assert!(builder.reserve("y_1"));
        assert!(!builder.reserve("y_1"));
        let names = ["y", "y", "y", "a.b", "state", "3d", ""].map(|name| builder.fresh_name(name));
        assert_eq!(names, ["y", "y_2", "y_3", "a_b", "state_value", "var_3d", "var_"]);
    }

    #[test]
    fn claiming_name_renames_existing_value() {
        let mut builder = builder();
        let x = builder.input("x", Type::tensor(DType::Fp32, &[2]));
        let inner = builder.append(relu(x), "relu").expect("the operation is valid")[0];
        builder.claim_name("relu");
        let outer = builder.append(relu(inner), "relu").expect("the operation is valid")[0];
        assert_eq!([name(&builder, inner), name(&builder, outer)], ["relu_1", "relu_2"]);
        assert!(!builder.reserve("relu"));
    }

    #[test]
    fn open_block_collects_ops_but_not_constants() {
        let mut builder = builder();
        let x = builder.input("x", Type::tensor(DType::Fp32, &[2]));
        builder.open_block(&[]);
        let constant = builder.constant("c", Constant::fp32(1.0));
        let inside = builder.append(relu(x), "y").expect("the operation is valid")[0];
        assert!(builder.is_computed_here(inside) && builder.is_in_scope(x));
        assert!(!builder.is_computed_here(constant) && !builder.is_computed_here(x));
        let block = builder.close_block(vec![inside]);
        assert_eq!(builder.function.block(block).outputs, [inside]);
        assert!(!builder.is_nested() && !builder.is_in_scope(inside));
        assert!(
            builder.is_in_scope(constant),
            "constants are added to the function body, not to the open block"
        );
    }

    #[test]
    fn fold_hook_replaces_ops_with_constants() {
        let fold: Fold = |_, op, _| match op.kind() {
            Some(OpKind::Relu) => Ok(Some(vec![Constant::fp32(7.0)])),
            Some(OpKind::Exp) => Err(InferError::new("cannot be evaluated")),
            _ => Ok(None),
        };
        let mut builder = FunctionBuilder::new("main", Opset::Ios18, fold);
        let x = builder.constant("x", Constant::fp32(7.0));
        let y = builder.append(relu(x), "y").expect("the operation is valid")[0];
        assert_eq!(builder.function.constant(y), Some(&Constant::fp32(7.0)));
        let kept = builder.append_unfolded(relu(x), "y").expect("the operation is valid")[0];
        assert!(builder.function.constant(kept).is_none());
        let exp = Op::new(OpKind::Exp).with("x", Binding::Value(x));
        let refusals = builder.append(exp, "y").expect_err("the hook fails");
        assert_eq!(refusals, [InferError::new("cannot be evaluated")]);
    }

    #[test]
    fn rejected_op_leaves_function_unchanged() {
        let mut builder = builder();
        let x = builder.input("x", Type::tensor(DType::Int32, &[2]));
        let exp = Op::new(OpKind::Exp).with("x", Binding::Value(x));
        assert!(builder.append(exp, "y").is_err());
        assert_eq!((builder.function.op_count(), builder.fresh_name("y")), (0, "y".to_owned()));
    }
}
