use coremill_pte::program::{
    Chain, ContainerMetadata, ExecutionPlan, Placement, Program, ScalarType, Tensor, Value, ValueId,
};
use coremill_tensor::Buffer;

use crate::error::{Error, Result};

/// Return value of a constant method.
#[derive(Clone, Debug, PartialEq)]
pub enum Constant {
    /// An integer.
    Int(i64),
    /// A float.
    Double(f64),
    /// A boolean.
    Bool(bool),
    /// A string.
    Text(String),
    /// A tensor.
    Tensor(ConstantTensor),
    /// Several results in order, which is how ExecuTorch returns a list.
    Several(Vec<Constant>),
}

/// A constant tensor in row-major order.
#[derive(Clone, Debug, PartialEq)]
pub struct ConstantTensor {
    scalar_type: ScalarType,
    sizes: Vec<i32>,
    data: Buffer,
}

impl ConstantTensor {
    /// Returns a tensor with these little-endian elements. The number of bytes must match the sizes.
    pub fn new(
        scalar_type: ScalarType,
        sizes: &[usize],
        data: impl Into<Buffer>,
    ) -> Result<ConstantTensor> {
        let data = data.into();
        let extents: Option<Vec<i32>> =
            sizes.iter().map(|&size| i32::try_from(size).ok()).collect();
        let extents = extents.unwrap_or_default();
        let tensor = Tensor::new(scalar_type, extents.clone(), Placement::GivenAtRunTime);
        if extents.len() != sizes.len() || tensor.byte_length() != Some(data.len() as u64) {
            let length = data.len();
            let message =
                format!("a {scalar_type:?} tensor of sizes {sizes:?} cannot have {length} bytes");
            return Err(Error::model(message));
        }
        Ok(ConstantTensor { scalar_type, sizes: extents, data })
    }

    /// Returns a tensor of 64-bit integers.
    pub fn ints(sizes: &[usize], elements: &[i64]) -> Result<ConstantTensor> {
        let bytes: Vec<u8> = elements.iter().flat_map(|element| element.to_le_bytes()).collect();
        ConstantTensor::new(ScalarType::Long, sizes, bytes)
    }
}

impl From<i64> for Constant {
    fn from(number: i64) -> Constant {
        Constant::Int(number)
    }
}

impl From<bool> for Constant {
    fn from(flag: bool) -> Constant {
        Constant::Bool(flag)
    }
}

impl From<ConstantTensor> for Constant {
    fn from(tensor: ConstantTensor) -> Constant {
        Constant::Tensor(tensor)
    }
}

/// Returns a method that takes nothing and returns a constant. Elements of tensors are added to the program.
pub fn constant_method(
    name: &str,
    constant: &Constant,
    program: &mut Program,
) -> Result<ExecutionPlan> {
    let mut values = Vec::new();
    add(constant, &mut values, program)?;
    let outputs = (0..values.len() as u32).map(ValueId).collect();
    Ok(ExecutionPlan {
        name: name.to_owned(),
        container: Some(ContainerMetadata {
            outputs: Some(format!("[1, {}]", structure(constant))),
            ..ContainerMetadata::default()
        }),
        values,
        outputs,
        chains: vec![Chain::default()],
        ..ExecutionPlan::default()
    })
}

/// PyTorch's tree specification of a constant, as ExecuTorch writes it for a value or a list.
fn structure(constant: &Constant) -> String {
    let (kind, context, children) = match constant {
        Constant::Several(items) => {
            let items: Vec<String> = items.iter().map(structure).collect();
            ("\"builtins.list\"", "\"null\"", items.join(", "))
        }
        _ => ("null", "null", String::new()),
    };
    format!("{{\"type\": {kind}, \"context\": {context}, \"children_spec\": [{children}]}}")
}

fn add(constant: &Constant, values: &mut Vec<Value>, program: &mut Program) -> Result<()> {
    values.push(match constant {
        Constant::Int(number) => Value::Int(*number),
        Constant::Double(number) => Value::Double(*number),
        Constant::Bool(truth) => Value::Bool(*truth),
        Constant::Text(text) => Value::String(text.clone()),
        Constant::Several(items) => {
            return items.iter().try_for_each(|item| add(item, values, program));
        }
        Constant::Tensor(ConstantTensor { scalar_type, sizes, data }) => {
            let Ok(index) = u32::try_from(program.constants.len()) else {
                return Err(Error::model("the number of constants exceeds 32 bits"));
            };
            program.constants.push(data.clone().into());
            Value::Tensor(Tensor::new(*scalar_type, sizes.clone(), Placement::Constant(index)))
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_constant_becomes_several_outputs() {
        let mut program = Program::default();
        let table = ConstantTensor::ints(&[2, 1], &[3, -4]).expect("two elements");
        let list = Constant::Several(vec![2.into(), true.into(), table.into()]);
        let plan = constant_method("get_eos_ids", &list, &mut program).expect("a method");
        let tensor = Tensor::new(ScalarType::Long, vec![2, 1], Placement::Constant(0));
        assert_eq!(plan.values, [Value::Int(2), Value::Bool(true), Value::Tensor(tensor)]);
        assert_eq!(plan.outputs, [ValueId(0), ValueId(1), ValueId(2)]);
        // `torch.utils._pytree.treespec_dumps` of the same list.
        let leaf = r#"{"type": null, "context": null, "children_spec": []}"#;
        let tree = format!(
            r#"[1, {{"type": "builtins.list", "context": "null", "children_spec": [{leaf}, {leaf}, {leaf}]}}]"#
        );
        let written = plan.container.as_ref().and_then(|container| container.outputs.as_deref());
        assert_eq!(written, Some(tree.as_str()));
        let scalar = constant_method("context", &7.into(), &mut program).expect("a method");
        let written = scalar.container.and_then(|container| container.outputs);
        assert_eq!(written, Some(format!("[1, {leaf}]")));
        let bytes = program.constants[0].to_buffer();
        assert_eq!(bytes.as_bytes()[8..], (-4i64).to_le_bytes());
        program.plans.push(plan);
        let data = coremill_pte::to_data(&program).expect("a valid program");
        let read = coremill_pte::from_buffer(&data.to_buffer()).expect("a readable program");
        assert_eq!(read.plans, program.plans);
    }

    #[test]
    fn rejects_constant_with_wrong_element_count() {
        let error = ConstantTensor::ints(&[2, 2], &[1, 2, 3]).expect_err("too few");
        assert_eq!(error.to_string(), "a Long tensor of sizes [2, 2] cannot have 24 bytes");
    }
}
