//! A validator for the subset of JSON Schema that `docs/schema.json` uses.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Map, Value};

/// The keywords that [`Schema`] supports.
const KEYWORDS: [&str; 16] = [
    "$defs",
    "$ref",
    "$schema",
    "additionalProperties",
    "anyOf",
    "const",
    "description",
    "enum",
    "items",
    "maxItems",
    "minItems",
    "minimum",
    "properties",
    "required",
    "title",
    "type",
];

pub(crate) struct Schema(Value);

/// Paths of fields, such as `convert/conversions/model`.
type Fields = BTreeSet<String>;

impl Schema {
    pub(crate) fn read(path: &Path) -> Schema {
        let text = std::fs::read_to_string(path).expect("the schema is there");
        Schema(serde_json::from_str(&text).expect("the schema is JSON"))
    }

    fn definition(&self, name: &str) -> &Value {
        self.0["$defs"].get(name).unwrap_or_else(|| panic!("the schema defines no `{name}`"))
    }

    /// Validates the output of a command. Returns the errors, and adds the fields of a valid value
    /// to `seen`.
    pub(crate) fn check(&self, command: &str, value: &Value, seen: &mut Fields) -> Vec<String> {
        let mut fields = Fields::new();
        match self.validate(self.definition(command), value, command, &mut fields) {
            Ok(()) => {
                seen.extend(fields);
                Vec::new()
            }
            Err(faults) => faults,
        }
    }

    fn resolve<'s>(&'s self, mut schema: &'s Value, name: &mut String) -> &'s Map<String, Value> {
        while let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
            let target = reference.strip_prefix("#/$defs/").expect("a definition of this file");
            target.clone_into(name);
            schema = self.definition(target);
        }
        schema.as_object().expect("a schema is an object")
    }

    fn validate(
        &self,
        schema: &Value,
        value: &Value,
        path: &str,
        fields: &mut Fields,
    ) -> Result<(), Vec<String>> {
        let mut name = path.to_owned();
        let schema = self.resolve(schema, &mut name);
        let fault = |text: String| Err(vec![format!("{path}: {text}")]);
        for keyword in schema.keys() {
            assert!(KEYWORDS.contains(&keyword.as_str()), "unknown keyword `{keyword}` at {path}");
        }
        if let Some(choices) = schema.get("anyOf").and_then(Value::as_array) {
            let mut faults = Vec::new();
            for choice in choices {
                let mut own = Fields::new();
                match self.validate(choice, value, &name, &mut own) {
                    Ok(()) => {
                        fields.extend(own);
                        return Ok(());
                    }
                    Err(found) => faults.extend(found),
                }
            }
            return Err(faults);
        }
        if schema.get("const").is_some_and(|constant| constant != value) {
            return fault(format!("{value} is not {}", schema["const"]));
        }
        if let Some(values) = schema.get("enum").and_then(Value::as_array)
            && !values.contains(value)
        {
            return fault(format!("{value} is none of {values:?}"));
        }
        if let Some(kinds) = schema.get("type") {
            let kinds = kinds.as_array().map_or(std::slice::from_ref(kinds), Vec::as_slice);
            if !kinds.iter().any(|kind| is_of(value, kind.as_str().expect("a type's name"))) {
                return fault(format!("{value} is no {kinds:?}"));
            }
        }
        let bound = |keyword: &str| schema.get(keyword).and_then(Value::as_f64);
        if let (Some(number), Some(least)) = (value.as_f64(), bound("minimum"))
            && number < least
        {
            return fault(format!("{number} is below {least}"));
        }
        match value {
            Value::Array(elements) => {
                let count = elements.len() as f64;
                if bound("minItems").is_some_and(|least| count < least)
                    || bound("maxItems").is_some_and(|most| count > most)
                {
                    return fault(format!("{count} elements"));
                }
                let Some(items) = schema.get("items") else { return Ok(()) };
                elements.iter().try_for_each(|element| self.validate(items, element, &name, fields))
            }
            Value::Object(object) => self.validate_object(schema, object, &name, fields),
            _ => Ok(()),
        }
    }

    fn validate_object(
        &self,
        schema: &Map<String, Value>,
        object: &Map<String, Value>,
        path: &str,
        fields: &mut Fields,
    ) -> Result<(), Vec<String>> {
        let empty = Map::new();
        let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&empty);
        for name in schema.get("required").and_then(Value::as_array).into_iter().flatten() {
            if !object.contains_key(name.as_str().expect("a name")) {
                return Err(vec![format!("{path}: {name} is missing")]);
            }
        }
        for (name, value) in object {
            let inner = format!("{path}/{name}");
            match (properties.get(name), schema.get("additionalProperties")) {
                (Some(property), _) => {
                    self.validate(property, value, &inner, fields)?;
                    // A null value does not show the form of its field.
                    if !value.is_null() || *property == serde_json::json!({ "type": "null" }) {
                        fields.insert(inner);
                    }
                }
                (None, Some(Value::Bool(false))) => {
                    return Err(vec![format!("{inner} is unknown")]);
                }
                (None, Some(other)) => self.validate(other, value, &inner, fields)?,
                (None, None) => {}
            }
        }
        Ok(())
    }

    /// The fields of all commands, by the names that [`Schema::check`] adds.
    pub(crate) fn fields(&self) -> Fields {
        let mut fields = Fields::new();
        for command in self.0["anyOf"].as_array().expect("the commands") {
            self.collect(command, "", &mut fields, &mut BTreeSet::new());
        }
        fields
    }

    fn collect(
        &self,
        schema: &Value,
        path: &str,
        fields: &mut Fields,
        done: &mut BTreeSet<String>,
    ) {
        let mut name = path.to_owned();
        let object = self.resolve(schema, &mut name);
        if name != path && !done.insert(name.clone()) {
            return;
        }
        for choice in object.get("anyOf").and_then(Value::as_array).into_iter().flatten() {
            self.collect(choice, &name, fields, done);
        }
        if let Some(items) = object.get("items") {
            self.collect(items, &name, fields, done);
        }
        for (property, schema) in
            object.get("properties").and_then(Value::as_object).into_iter().flatten()
        {
            let inner = format!("{name}/{property}");
            self.collect(schema, &inner, fields, done);
            fields.insert(inner);
        }
    }
}

fn is_of(value: &Value, kind: &str) -> bool {
    match kind {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => panic!("unknown type `{kind}`"),
    }
}
