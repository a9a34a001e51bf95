//! Writes compressed parameters as operations of a function.

use coremill_mil::ir::{Binding, Constant, ConstantData, Function, Op, Type, Weight};
use coremill_mil::ops::OpKind;
use coremill_tensor::Buffer;

use crate::graph::ParamSlot;
use crate::weights::Form;

/// Replaces the constant of a parameter by the operations that decompress a form.
pub(crate) fn state(function: &mut Function, slot: &ParamSlot, form: &Form) {
    let name = function.value(function.op(slot.op).outputs[0]).name.clone();
    let op = ConstexprEmitter { function, slot }.operation(form, &name);
    let target = function.op_mut(slot.op);
    let outputs = std::mem::take(&mut target.outputs);
    *target = Op { outputs, ..op };
}

struct ConstexprEmitter<'f> {
    function: &'f mut Function,
    slot: &'f ParamSlot,
}

impl ConstexprEmitter<'_> {
    /// Returns the operation that decompresses a form. Operations for its operands are inserted before the
    /// parameter's operation.
    fn operation(&mut self, form: &Form, name: &str) -> Op {
        match form {
            Form::Stored { elements, .. } => Op::constant(self.stored(form, elements)),
            Form::Widened(source) => Op::new(OpKind::ConstexprCast)
                .with("source_val", self.binding(source, &format!("{name}_half")))
                .with("output_dtype", Binding::Literal(Constant::string("fp32"))),
            Form::Table { indices, dtype, entries } => {
                let count = entries.len() as u64 * 8 / u64::from(dtype.bits().unwrap_or(8));
                let shape = [vec![1; self.slot.shape.len()], vec![count, 1]].concat();
                let table = Constant::bytes(*dtype, &shape, entries.clone());
                Op::new(OpKind::ConstexprLutToDense)
                    .with("indices", self.binding(indices, &format!("{name}_indices")))
                    .with("lut", Binding::Literal(table))
            }
            Form::Scaled { data, scale, offset } => {
                let op = Op::new(OpKind::ConstexprBlockwiseShiftScale)
                    .with("data", self.binding(data, &format!("{name}_data")))
                    .with("scale", self.binding(scale, &format!("{name}_scale")));
                match offset {
                    Some(offset) => {
                        op.with("offset", self.binding(offset, &format!("{name}_offset")))
                    }
                    None => op,
                }
            }
        }
    }

    /// The binding of an operand of a form: a stored constant, or the result of another operation.
    fn binding(&mut self, form: &Form, name: &str) -> Binding {
        if let Form::Stored { elements, .. } = form {
            return Binding::Literal(self.stored(form, elements));
        }
        let op = self.operation(form, name);
        let (body, ty) = (self.function.body, self.ty(form));
        let id = self.function.add_op(body, op, [(name.to_owned(), ty)]);
        let ops = &mut self.function.block_mut(body).ops;
        ops.pop();
        let at = ops.iter().position(|&op| op == self.slot.op).unwrap_or(0);
        ops.insert(at, id);
        Binding::Value(self.function.op(id).outputs[0])
    }

    fn stored(&self, form: &Form, elements: &Buffer) -> Constant {
        let weight = Weight { data: Some(elements.clone()), place: None };
        Constant { ty: self.ty(form), data: ConstantData::Weight(weight) }
    }

    fn ty(&self, form: &Form) -> Type {
        let mut shape = self.slot.shape.clone();
        if let Some(last) = shape.last_mut() {
            *last /= form.share();
        }
        Type::tensor(form.dtype(), &shape)
    }
}
