//! Graph rewriting: nodes are re-emitted one by one, with replacements of old values and names for new ones.

use std::collections::{HashMap, HashSet};

use coremill_pt2::{
    Argument, Meta, Node, Origin, Output, Schemas, Target, Value, ValueId,
    normalize::{self, SuppliedArgument},
};

use crate::error::Error;
use crate::limits::MAX_ADDED_VALUES;

/// A graph under construction.
pub(crate) struct Editor<'a> {
    pub(crate) schemas: &'a mut Schemas,
    pub(crate) values: Vec<Value>,
    pub(crate) nodes: Vec<Node>,
    /// Number of values of the original graph.
    given: usize,
    /// Names of all values, created on first use.
    names: Option<HashSet<String>>,
    replaced: HashMap<ValueId, Argument>,
}

impl<'a> Editor<'a> {
    pub(crate) fn new(schemas: &'a mut Schemas, values: Vec<Value>) -> Editor<'a> {
        let given = values.len();
        Editor { schemas, values, nodes: Vec::new(), given, names: None, replaced: HashMap::new() }
    }

    pub(crate) fn value(&self, id: ValueId) -> &Value {
        &self.values[id.index()]
    }

    /// Defines a new value, named `name` if the name is free.
    pub(crate) fn define(&mut self, name: &str, meta: Meta) -> Result<ValueId, Error> {
        if self.values.len() - self.given >= MAX_ADDED_VALUES {
            return Err(Error::limit(format!(
                "making the graph functional requires more than {MAX_ADDED_VALUES} new values"
            )));
        }
        let id = u32::try_from(self.values.len())
            .map_err(|_| Error::limit("the graph has too many values for 32-bit indices"))?;
        let names = self
            .names
            .get_or_insert_with(|| self.values.iter().map(|value| value.name.clone()).collect());
        let mut free = name.to_owned();
        let mut number = self.values.len();
        while !names.insert(free.clone()) {
            free = format!("{name}_{number}");
            number += 1;
        }
        self.values.push(Value { name: free, meta });
        Ok(ValueId::from_index(id))
    }

    /// Replaces later uses of `old` by `new`.
    pub(crate) fn replace(&mut self, old: ValueId, new: Argument) {
        self.replaced.insert(old, new);
    }

    /// Current replacement of `id`.
    pub(crate) fn current(&self, id: ValueId) -> Argument {
        self.replaced.get(&id).cloned().unwrap_or(Argument::Value(id))
    }

    pub(crate) fn resolve(&self, argument: &mut Argument) {
        if self.replaced.is_empty() {
            return;
        }
        argument.map_values(&mut |id| self.current(id));
    }

    pub(crate) fn resolve_node(&self, node: &mut Node) {
        node.arguments.iter_mut().for_each(|argument| self.resolve(argument));
        node.keywords.iter_mut().for_each(|(_, argument)| self.resolve(argument));
    }

    /// Emits a call of an operator with one result. Omitted arguments get their defaults.
    pub(crate) fn call(
        &mut self,
        operator: (&str, &str),
        arguments: Vec<Argument>,
        name: &str,
        meta: Meta,
        origin: &Origin,
    ) -> Result<ValueId, Error> {
        let given = arguments.into_iter().map(positional).collect();
        let result = self.define(name, meta)?;
        self.call_into(operator, given, vec![Output::Value(result)], origin)?;
        Ok(result)
    }

    /// Emits a call of an ATen operator with existing results.
    pub(crate) fn call_into(
        &mut self,
        (name, overload): (&str, &str),
        given: Vec<SuppliedArgument>,
        outputs: Vec<Output>,
        origin: &Origin,
    ) -> Result<(), Error> {
        let schema = self.schemas.find("aten", name, overload)?.ok_or_else(|| {
            Error::unsupported(format!("`aten.{name}.{overload}` is not a known operator"))
        })?;
        let (arguments, keywords) = normalize::arguments(Some(&schema), given)?;
        let node_name = outputs.iter().find_map(|output| match output {
            Output::Value(id) => Some(self.value(*id).name.clone()),
            _ => None,
        });
        self.nodes.push(Node {
            name: node_name.unwrap_or_else(|| name.to_owned()),
            target: Target::Operator {
                namespace: "aten".to_owned(),
                name: name.to_owned(),
                overload: overload.to_owned(),
            },
            schema: Some(schema),
            arguments,
            keywords,
            outputs,
            single_return: None,
            origin: origin.clone(),
        });
        Ok(())
    }
}

/// A positional argument.
pub(crate) fn positional(value: Argument) -> SuppliedArgument {
    SuppliedArgument { name: String::new(), by_keyword: false, value }
}

/// A keyword argument.
pub(crate) fn named(name: &str, value: Argument) -> SuppliedArgument {
    SuppliedArgument { name: name.to_owned(), by_keyword: true, value }
}
