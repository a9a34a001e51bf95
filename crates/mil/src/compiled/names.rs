use crate::ir::{Attributes, Function, Program};
use crate::package::{Error, ErrorKind};
use crate::text::{is_identifier, is_plain};

/// Refuses a program with names that Core ML's parser of text does not take. A package may have such
/// names, since it holds them as data.
pub(super) fn check(program: &Program) -> Result<(), Error> {
    attributes(&program.attributes)?;
    for function in &program.functions {
        name("function", &function.name)?;
        let within = |error: Error| error.within(format!("functions[{}]", function.name));
        check_function(function).map_err(within)?;
    }
    Ok(())
}

fn check_function(function: &Function) -> Result<(), Error> {
    attributes(&function.attributes)?;
    for (block, _) in function.blocks_in_order() {
        let block = function.block(block);
        attributes(&block.attributes)?;
        for &input in &block.inputs {
            name("value", &function.value(input).name)?;
        }
        for &op in &block.ops {
            let op = function.op(op);
            name("operation", op.type_name())?;
            for &output in &op.outputs {
                name("value", &function.value(output).name)?;
            }
            for input in &op.inputs {
                key("argument", &input.name)?;
            }
            attributes(&op.attributes)?;
        }
    }
    Ok(())
}

fn attributes(attributes: &Attributes) -> Result<(), Error> {
    attributes.iter().try_for_each(|(name, _)| key("attribute", name))
}

/// Checks a name that the text declares, which must not be a reserved word either.
fn name(what: &str, name: &str) -> Result<(), Error> {
    if is_plain(name) { Ok(()) } else { Err(refusal(what, name)) }
}

/// Checks a name that stands before a `=`.
fn key(what: &str, name: &str) -> Result<(), Error> {
    if is_identifier(name) { Ok(()) } else { Err(refusal(what, name)) }
}

fn refusal(what: &str, name: &str) -> Error {
    let message = if is_identifier(name) {
        format!("the {what} `{name}` is named by a reserved word of MIL text")
    } else {
        format!("the name of the {what} `{}` is no identifier of MIL text", name.escape_debug())
    };
    let hint =
        "compiled models hold text; rename it to letters, digits and `_`, or write a package";
    Error::new(ErrorKind::Unwritable, message).with_hint(hint)
}
