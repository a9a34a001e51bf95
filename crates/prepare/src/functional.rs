//! Lookup of the functional equivalent of a mutating operator.

use coremill_pt2::{
    Argument, Meta, Node, Parameter, ScalarType, Schema, Schemas, Target, TensorMeta,
    normalize::SuppliedArgument, operators, overloads,
};

use crate::edit::{Editor, named, positional};
use crate::error::Error;
use crate::meta::promote_all;

/// A functional operator that replaces a mutating one.
pub(crate) struct Functional {
    pub(crate) name: String,
    pub(crate) overload: &'static str,
    pub(crate) given: Vec<SuppliedArgument>,
}

/// Functional names that do not follow the pattern.
const RENAMED: [(&str, &str); 8] = [
    ("normal_", "normal_functional"),
    ("__iand__", "__and__"),
    ("__ior__", "__or__"),
    ("__ixor__", "__xor__"),
    ("__ilshift__", "__lshift__"),
    ("__irshift__", "__rshift__"),
    ("_index_put_impl_", "index_put"),
    ("_no_grad_normal_", "normal_functional"),
];

/// The functional form of a call that mutates its arguments. It has one result per mutated argument.
pub(crate) fn functional(node: &Node, schemas: &mut Schemas) -> Result<Functional, Error> {
    let (Target::Operator { namespace, name, .. }, Some(schema)) = (&node.target, &node.schema)
    else {
        return Err(Error::malformed(format!("`{}` has no schema", node.target)));
    };
    let form = if namespace == "aten" { form(name, schema, schemas)? } else { None };
    let Some((name, overload, form)) = form else {
        return Err(Error::unsupported(format!(
            "`{}` writes to its arguments, and has no functional form",
            node.target
        ))
        .with_hint("call the operator's form without a trailing underscore in the model"));
    };
    let mut given = Vec::with_capacity(node.arguments.len());
    // The first parameter may have another name, so it is passed by position.
    for (parameter, value) in schema.arguments.iter().zip(&node.arguments) {
        let own = form.arguments.iter().any(|wanted| wanted.name == parameter.name);
        let out = parameter.mutated && parameter.keyword_only;
        if own {
            given.push(named(&parameter.name, value.clone()));
        } else if given.is_empty() && !out {
            given.push(positional(value.clone()));
        }
    }
    Ok(Functional { name, overload, given })
}

type Form = (String, &'static str, std::sync::Arc<Schema>);

fn form(name: &str, schema: &Schema, schemas: &mut Schemas) -> Result<Option<Form>, Error> {
    let out = schema.arguments.iter().any(|parameter| parameter.mutated && parameter.keyword_only);
    let base = match RENAMED.iter().find(|(from, _)| *from == name) {
        Some((_, to)) => to,
        None if out => name,
        None => name.strip_suffix('_').unwrap_or(name),
    };
    // Results go to separate `out` parameters or to the mutated inputs.
    let wanted: Vec<&Parameter> = schema
        .arguments
        .iter()
        .filter(|parameter| !(out && parameter.mutated))
        .filter(|parameter| !(name == "_index_put_impl_" && parameter.name == "unsafe"))
        .collect();
    let written = schema.arguments.iter().filter(|parameter| parameter.mutated).count();
    let own = schema.name.split_once('.').map_or("default", |(_, overload)| overload);
    let mut candidates: Vec<&'static str> = overloads("aten", base).collect();
    candidates.sort_by_key(|overload| *overload != own);
    for overload in candidates {
        let Some(found) = schemas.find("aten", base, overload)? else { continue };
        let mut pairs = found.arguments.iter().zip(&wanted).enumerate();
        let fits = found.arguments.len() >= wanted.len()
            && pairs.all(|(at, (a, b))| a.kind == b.kind && (a.name == b.name || at == 0))
            && found.arguments[wanted.len()..].iter().all(|extra| extra.default.is_some())
            && found.returns.len() == written
            && !found.mutates();
        if fits {
            return Ok(Some((base.to_owned(), overload, found)));
        }
    }
    Ok(None)
}

/// Result type of the functional form, given the type `stored` of the mutated tensor.
pub(crate) fn result_type(
    functional: &Functional,
    stored: ScalarType,
    editor: &Editor<'_>,
) -> ScalarType {
    let operator = operators::named(&functional.name);
    if operator.predicate {
        return ScalarType::Bool;
    }
    if !operator.promoting {
        return stored;
    }
    let mut metas: Vec<&TensorMeta> = Vec::new();
    for given in &functional.given {
        if let Argument::Value(id) = given.value
            && let Meta::Tensor(meta) = &editor.value(id).meta
        {
            metas.push(meta);
        }
    }
    promote_all(metas.into_iter()).unwrap_or(stored)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_place_operators_have_functional_forms() {
        let mut schemas = Schemas::default();
        let mut missing = Vec::new();
        for line in include_str!("../../pt2/src/schemas.txt").lines() {
            let Some((key, _)) = line.split_once('(') else { continue };
            let Some(rest) = key.strip_prefix("aten::") else { continue };
            let (name, overload) = rest.split_once('.').unwrap_or((rest, "default"));
            if !name.ends_with('_') && !name.starts_with("__i") || name.starts_with("_foreach") {
                continue;
            }
            let Ok(Some(schema)) = schemas.find("aten", name, overload) else { continue };
            if !schema.arguments.first().is_some_and(|first| first.mutated) {
                continue;
            }
            if form(name, &schema, &mut schemas).expect("schemas that parse").is_none() {
                missing.push(rest);
            }
        }
        // Copies, fills and views have separate rules. The other operators in this list do not occur in models.
        let expected = [
            "_fill_mem_eff_dropout_mask_",
            "_no_grad_fill_",
            "_no_grad_uniform_",
            "_no_grad_zero_",
            "_sobol_engine_ff_",
            "_sobol_engine_initialize_state_",
            "_sobol_engine_scramble_",
            "copy_.Tensor",
            "copy_.float",
            "copy_.int",
            "fill_diagonal_",
            "polygamma_",
            "requires_grad_",
            "rrelu_with_noise_",
            "set_.source_Tensor_storage_offset",
            "shallow_copy_data_",
        ];
        assert_eq!(missing, expected);
    }
}
