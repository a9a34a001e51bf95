use coremill_mil::text::identifier;

use crate::error::Error;
use crate::interface::{Interface, Port};

/// Renames an input, an output or a state.
pub(crate) fn rename(interface: &mut Interface<'_>, from: &str, to: &str) -> Result<(), Error> {
    let port = interface.port(from)?;
    if identifier(to) != to {
        return Err(Error::new(format!("`{to}` is not a valid name in Core ML"))
            .with_hint(format!("`{}` is valid", identifier(to))));
    }
    if from == to {
        return Ok(());
    }
    if interface.port(to).is_ok() {
        return Err(Error::new(format!("the model already has an input or output `{to}`")));
    }
    let value = match port {
        Port::Input(_) | Port::State(_) => interface.input_value(from)?,
        Port::Output(_) => interface.output_value(from)?,
    };
    interface.claim_name(value, to);
    to.clone_into(&mut interface.feature_mut(from)?.name);
    if matches!(port, Port::Output(_)) {
        for name in [&mut *interface.predicted_feature, &mut *interface.predicted_probabilities] {
            if name == from {
                to.clone_into(name);
            }
        }
    }
    Ok(())
}
