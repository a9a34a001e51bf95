//! Kinds of inputs and outputs, and the calling convention.

use std::collections::BTreeMap;

use coremill_pt2::wire::{
    CustomObject, GraphSignature, InputSpec, ModuleCallEntry, ModuleCallSignature, NamedTarget,
    NamedTupleDef, OutputSpec,
};
use pyo3::intern;
use pyo3::prelude::*;

use crate::error;

pub(super) fn signature(signature: &Bound<'_, PyAny>) -> PyResult<GraphSignature> {
    let mut input_specs = Vec::new();
    for spec in signature.getattr(intern!(signature.py(), "input_specs"))?.try_iter()? {
        input_specs.push(input(&spec?)?);
    }
    let mut output_specs = Vec::new();
    for spec in signature.getattr(intern!(signature.py(), "output_specs"))?.try_iter()? {
        output_specs.push(output(&spec?)?);
    }
    Ok(GraphSignature { input_specs, output_specs })
}

/// Kind, argument and target of a specification.
fn parts<'py>(spec: &Bound<'py, PyAny>) -> PyResult<(String, Bound<'py, PyAny>, String)> {
    // The `name` property of an enum runs Python code; `_name_` is the same attribute.
    let kind = spec.getattr(intern!(spec.py(), "kind"))?;
    let kind = kind.getattr(intern!(spec.py(), "_name_"))?.extract()?;
    let target = spec
        .getattr(intern!(spec.py(), "target"))?
        .extract::<Option<String>>()?
        .unwrap_or_default();
    Ok((kind, spec.getattr(intern!(spec.py(), "arg"))?, target))
}

fn named(argument: &Bound<'_, PyAny>) -> PyResult<NamedTarget> {
    Ok(NamedTarget { name: argument.getattr(intern!(argument.py(), "name"))?.extract()? })
}

fn input(spec: &Bound<'_, PyAny>) -> PyResult<InputSpec> {
    let (kind, argument, target) = parts(spec)?;
    Ok(match kind.as_str() {
        "USER_INPUT" if argument.hasattr(intern!(argument.py(), "value"))? => {
            InputSpec::ConstantInput {
                name: argument.getattr(intern!(argument.py(), "name"))?.extract()?,
            }
        }
        "USER_INPUT" => InputSpec::USER,
        "PARAMETER" => InputSpec::Parameter { arg: named(&argument)?, parameter_name: target },
        "BUFFER" => InputSpec::Buffer {
            arg: named(&argument)?,
            buffer_name: target,
            persistent: spec.getattr(intern!(spec.py(), "persistent"))?.extract()?,
        },
        "CONSTANT_TENSOR" => {
            InputSpec::TensorConstant { arg: named(&argument)?, tensor_constant_name: target }
        }
        "CUSTOM_OBJ" => InputSpec::CustomObj {
            arg: CustomObject {
                name: argument.getattr(intern!(argument.py(), "name"))?.extract()?,
                class_fqn: argument.getattr(intern!(argument.py(), "class_fqn"))?.extract()?,
            },
            custom_obj_name: target,
        },
        "TOKEN" => InputSpec::Token { arg: named(&argument)? },
        other => {
            return Err(error::unsupported(
                spec.py(),
                format!("inputs of kind `{other}` are not supported"),
            ));
        }
    })
}

fn output(spec: &Bound<'_, PyAny>) -> PyResult<OutputSpec> {
    let (kind, argument, target) = parts(spec)?;
    Ok(match kind.as_str() {
        "USER_OUTPUT" => OutputSpec::USER,
        "LOSS_OUTPUT" => OutputSpec::LossOutput { arg: named(&argument)? },
        "BUFFER_MUTATION" => {
            OutputSpec::BufferMutation { arg: named(&argument)?, buffer_name: target }
        }
        "PARAMETER_MUTATION" => {
            OutputSpec::ParameterMutation { arg: named(&argument)?, parameter_name: target }
        }
        "GRADIENT_TO_PARAMETER" => {
            OutputSpec::GradientToParameter { arg: named(&argument)?, parameter_name: target }
        }
        "GRADIENT_TO_USER_INPUT" => {
            OutputSpec::GradientToUserInput { arg: named(&argument)?, user_input_name: target }
        }
        "USER_INPUT_MUTATION" => {
            OutputSpec::UserInputMutation { arg: named(&argument)?, user_input_name: target }
        }
        "TOKEN" => OutputSpec::Token { arg: named(&argument)? },
        other => {
            return Err(error::unsupported(
                spec.py(),
                format!("outputs of kind `{other}` are not supported"),
            ));
        }
    })
}

type ModuleCalls = (Vec<ModuleCallEntry>, BTreeMap<String, NamedTupleDef>);

/// Recorded module calls. The first is the program itself.
pub(super) fn module_calls(program: &Bound<'_, PyAny>) -> PyResult<ModuleCalls> {
    let dumps = program.py().import("torch.utils._pytree")?.getattr("treespec_dumps")?;
    let mut fields = BTreeMap::new();
    let mut calls = Vec::new();
    for entry in program.getattr(intern!(program.py(), "module_call_graph"))?.try_iter()? {
        let entry = entry?;
        let signature = entry.getattr(intern!(entry.py(), "signature"))?;
        let signature = if signature.is_none() {
            None
        } else {
            let mut spec = |name: &str| -> PyResult<String> {
                let spec = signature.getattr(name)?;
                named_tuples(&spec, &mut fields)?;
                dumps.call1((spec, 1))?.extract()
            };
            let names = match signature.getattr_opt(intern!(signature.py(), "forward_arg_names"))? {
                Some(names) => names.extract::<Option<Vec<String>>>()?,
                None => None,
            };
            Some(ModuleCallSignature {
                in_spec: spec("in_spec")?,
                out_spec: spec("out_spec")?,
                forward_arg_names: names.filter(|names| !names.is_empty()),
            })
        };
        calls.push(ModuleCallEntry {
            fqn: entry.getattr(intern!(entry.py(), "fqn"))?.extract()?,
            signature,
        });
    }
    Ok((calls, fields))
}

/// Collects the fields of named tuples in a pytree, by the name under which the class is
/// registered.
fn named_tuples(
    spec: &Bound<'_, PyAny>,
    fields: &mut BTreeMap<String, NamedTupleDef>,
) -> PyResult<()> {
    let class = spec.getattr(intern!(spec.py(), "type"))?;
    if class.is_none() {
        return Ok(());
    }
    let context = spec.getattr(intern!(spec.py(), "context"))?;
    if let Some(names) = context.getattr_opt(intern!(context.py(), "_fields"))? {
        let registered = spec.py().import("torch.utils._pytree")?;
        let registered = registered
            .getattr(intern!(registered.py(), "SUPPORTED_SERIALIZED_TYPES"))?
            .get_item(&context)?;
        let name: String =
            registered.getattr(intern!(registered.py(), "serialized_type_name"))?.extract()?;
        fields.insert(name, NamedTupleDef { field_names: names.extract()? });
    }
    // A method in newer versions of torch, an attribute in older ones.
    let children = match spec.call_method0(intern!(spec.py(), "children")) {
        Ok(children) => children,
        Err(_) => spec.getattr(intern!(spec.py(), "children_specs"))?,
    };
    for child in children.try_iter()? {
        named_tuples(&child?, fields)?;
    }
    Ok(())
}
