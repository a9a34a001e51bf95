use crate::package::{Error, ErrorKind};
use coremill_mil::ir::{Attributes, Function, Program};
use coremill_mil::text::is_identifier;

/// Checks that Core ML's text parser accepts the names of attributes. Packages may contain other names,
/// because they store names as data. The verifier has already checked the names of values, functions and
/// arguments.
pub(super) fn check(program: &Program) -> Result<(), Error> {
    attributes(&program.attributes)?;
    for function in &program.functions {
        let within = |error: Error| error.within(format!("functions[{}]", function.name));
        check_function(function).map_err(within)?;
    }
    Ok(())
}

fn check_function(function: &Function) -> Result<(), Error> {
    attributes(&function.attributes)?;
    for (block, _) in function.blocks_in_order() {
        attributes(&function.block(block).attributes)?;
    }
    function.all_ops().try_for_each(|(_, op)| attributes(&op.attributes))
}

fn attributes(attributes: &Attributes) -> Result<(), Error> {
    match attributes.iter().find(|(name, _)| !is_identifier(name)) {
        None => Ok(()),
        Some((name, _)) => {
            let name = name.escape_debug();
            let message = format!("the attribute name `{name}` is not an identifier in MIL text");
            let hint = "compiled models store MIL text; rename the attribute to letters, digits and `_`, \
                        or write a package";
            Err(Error::new(ErrorKind::Unwritable, message).with_hint(hint))
        }
    }
}
