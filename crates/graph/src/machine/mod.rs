//! What runs functions: the engine, Core ML, or the runtime of ExecuTorch's programs.

#[cfg(any(target_vendor = "apple", coremill_standin))]
pub(crate) mod coreml;
#[cfg(not(any(target_vendor = "apple", coremill_standin)))]
#[path = "absent.rs"]
pub(crate) mod coreml;
mod host;
mod method;

pub(crate) use host::Host;
pub(crate) use method::Methods;

use coremill_coreml::Plan;
use coremill_engine::{Array, Outputs, Port};
use coremill_mil::ir::{Constant, ValueId};

use crate::array::Input;
use crate::error::{Error, ErrorKind, Result, fail};

/// Inputs by name.
pub(crate) type Given<'a> = [(&'a str, &'a dyn Input)];

/// Memory for outputs, by name.
pub(crate) type Targets<'a, 'o> = [(&'a str, &'o mut [f32])];

/// A model that is ready to run. States of the same name are shared by all functions.
pub(crate) trait Machine: Send {
    /// The functions.
    fn functions(&self) -> Vec<String>;

    /// The function that runs where none is named.
    fn default_function(&self) -> &str;

    /// What a function takes, gives and keeps.
    fn ports(&mut self, function: &str) -> Result<[&[Port]; 3]>;

    /// Runs a function, the default one if none is named.
    fn run(&mut self, function: Option<&str>, inputs: &Given<'_>) -> Result<Outputs>;

    /// Runs a function, the default one if none is named, which writes outputs of floats to the caller's memory.
    fn run_into(
        &mut self,
        function: Option<&str>,
        inputs: &Given<'_>,
        targets: &mut Targets<'_, '_>,
    ) -> Result<()>;

    /// What a state holds.
    fn state(&mut self, name: &str) -> Result<Array>;

    /// Sets what a state holds.
    fn set_state(&mut self, name: &str, content: &dyn Input) -> Result<()>;

    /// Sets all states back to what they were at first.
    fn reset(&mut self) -> Result<()>;

    /// Does what can be done before a run.
    fn prepare(&mut self) -> Result<()> {
        Ok(())
    }

    /// Takes other constants of a model's functions, of the same types, and says whether it did.
    fn restate(&mut self, _changes: &[(String, ValueId, Constant)]) -> bool {
        false
    }

    /// The engine's, if it is.
    fn into_host(self: Box<Self>) -> Option<Host> {
        None
    }

    /// On which devices operations are to run.
    fn compute_plan(&self) -> Result<Plan> {
        let message = "only Core ML plans on which device an operation runs";
        let error = Error::new(ErrorKind::Device, message);
        Err(error.hint("compile for `Device::All` on a Mac or an iPhone"))
    }
}

/// The port of a name; the error lists those that there are.
pub(crate) fn find<'p>(ports: &'p [Port], name: &str, what: &str) -> Result<&'p Port> {
    match ports.iter().find(|port| port.name == name) {
        Some(port) => Ok(port),
        None => {
            let names: Vec<_> = ports.iter().map(|port| format!("`{}`", port.name)).collect();
            let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            fail!(Input, "there is no {what} `{name}`; there are {names}")
        }
    }
}

/// Refuses targets that are no outputs, and outputs that have two.
pub(crate) fn check_targets(outputs: &[Port], targets: &Targets<'_, '_>) -> Result<()> {
    let again = "written to two slices; accepted is one for each output";
    check_names(outputs, targets, "output", again)
}

/// Refuses names that no port has, and those that stand twice: `again` says what is done twice then.
fn check_names<T>(ports: &[Port], named: &[(&str, T)], what: &str, again: &str) -> Result<()> {
    for (at, (name, _)) in named.iter().enumerate() {
        find(ports, name, what)?;
        if named[..at].iter().any(|(before, _)| before == name) {
            fail!(Input, "{what} `{name}` is {again}");
        }
    }
    Ok(())
}

/// Copies outputs to the caller's memory.
pub(crate) fn copy_into(given: &Outputs, targets: &mut Targets<'_, '_>) -> Result<()> {
    for (name, target) in targets {
        let Some(floats) = given.floats(name) else {
            let names: Vec<_> = given.0.iter().map(|(name, _)| format!("`{name}`")).collect();
            fail!(Input, "there is no output `{name}` of floats; there are {}", names.join(", "));
        };
        check_room(name, floats.len(), target.len())?;
        target.copy_from_slice(floats);
    }
    Ok(())
}

/// Refuses memory that is not of an output's size.
pub(crate) fn check_room(name: &str, found: usize, room: usize) -> Result<()> {
    if found != room {
        let message = format!("output `{name}` has {found} elements; there is room for {room}");
        let error = Error::new(ErrorKind::Input, message);
        return Err(error.hint(format!("pass a slice of {found} elements")));
    }
    Ok(())
}
