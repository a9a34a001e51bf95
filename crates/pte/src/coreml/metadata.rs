use coremill_io::unknown_name;
use coremill_tensor::Buffer;
use serde_json::{Map, Value};

use super::{from_json, to_json};
use crate::error::{Error, escape_truncated};

/// Identifier, inputs and outputs of a model in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// Identifier by which devices cache compiled models.
    pub identifier: String,
    /// Interface of the only function, or of each method by name.
    pub methods: Methods,
    /// Unknown fields of newer writers.
    pub unknown: Map<String, Value>,
}

/// Interfaces of one or several methods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Methods {
    /// A single unnamed method.
    One(Interface),
    /// Several named methods.
    Several(Vec<(String, Interface)>),
}

/// Names of inputs and outputs, in the order of the delegate's arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interface {
    /// Names of the inputs, without states.
    pub inputs: Vec<String>,
    /// Names of the outputs.
    pub outputs: Vec<String>,
}

const IDENTIFIER: &str = "identifier";
const METHODS: &str = "methods";
const INPUTS: &str = "inputNames";
const OUTPUTS: &str = "outputNames";

impl Metadata {
    /// Parses the file.
    pub fn read(bytes: &Buffer) -> Result<Metadata, Error> {
        let mut object: Map<String, Value> = from_json(bytes)?;
        let identifier = match object.shift_remove(IDENTIFIER) {
            Some(Value::String(identifier)) if !identifier.is_empty() => identifier,
            _ => {
                return Err(Error::malformed(format!("`{IDENTIFIER}` must be a non-empty string")));
            }
        };
        let methods = match object.shift_remove(METHODS) {
            Some(Value::Object(methods)) => {
                let method = |(name, value): (String, Value)| {
                    let Value::Object(mut method) = value else {
                        let name = escape_truncated(&name);
                        return Err(Error::malformed(format!("method `{name}` is not an object")));
                    };
                    let interface = interface(&mut method).map_err(|error| {
                        error.within(format!("method `{}`", escape_truncated(&name)))
                    })?;
                    Ok((name, interface))
                };
                Methods::Several(methods.into_iter().map(method).collect::<Result<_, _>>()?)
            }
            Some(_) => return Err(Error::malformed(format!("`{METHODS}` is not an object"))),
            None => Methods::One(interface(&mut object)?),
        };
        Ok(Metadata { identifier, methods, unknown: object })
    }

    /// Serializes the file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut object = Map::new();
        match &self.methods {
            Methods::One(interface) => {
                write_interface(interface, &mut object);
                object.insert(IDENTIFIER.to_owned(), self.identifier.clone().into());
            }
            Methods::Several(methods) => {
                object.insert(IDENTIFIER.to_owned(), self.identifier.clone().into());
                let method = |(name, interface): &(String, Interface)| {
                    let mut method = Map::new();
                    write_interface(interface, &mut method);
                    (name.clone(), Value::Object(method))
                };
                let methods = methods.iter().map(method).collect();
                object.insert(METHODS.to_owned(), Value::Object(methods));
            }
        }
        object.extend(self.unknown.clone());
        to_json(&object)
    }

    /// Inputs and outputs of a method; `None` selects the only one.
    pub fn interface(&self, method: Option<&str>) -> Result<&Interface, Error> {
        match (&self.methods, method) {
            (Methods::One(interface), _) => Ok(interface),
            (Methods::Several(methods), Some(wanted)) => {
                let found = methods.iter().find(|(name, _)| name == wanted);
                found.map(|(_, interface)| interface).ok_or_else(|| {
                    let names = methods.iter().map(|(name, _)| name);
                    Error::malformed(unknown_name("method", wanted, names))
                })
            }
            (Methods::Several(_), None) => {
                let message = "the model has several methods, but the delegate does not select one";
                Err(Error::malformed(message))
            }
        }
    }
}

fn interface(object: &mut Map<String, Value>) -> Result<Interface, Error> {
    let mut names = |key: &str| match object.shift_remove(key) {
        Some(Value::Array(names)) => {
            let name = |name: Value| match name {
                Value::String(name) => Ok(name),
                _ => Err(Error::malformed(format!("`{key}` must contain only names"))),
            };
            names.into_iter().map(name).collect::<Result<Vec<String>, Error>>()
        }
        _ => Err(Error::malformed(format!("`{key}` must be a list"))),
    };
    let interface = Interface { inputs: names(INPUTS)?, outputs: names(OUTPUTS)? };
    if interface.outputs.is_empty() {
        return Err(Error::malformed(format!("`{OUTPUTS}` must not be empty")));
    }
    Ok(interface)
}

fn write_interface(interface: &Interface, to: &mut Map<String, Value>) {
    to.insert(INPUTS.to_owned(), interface.inputs.clone().into());
    to.insert(OUTPUTS.to_owned(), interface.outputs.clone().into());
}
