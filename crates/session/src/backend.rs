use std::sync::Arc;

use coremill_coreml::Plan;
use coremill_engine::{Array, Engine, Outputs, StateValue, Value};
use coremill_io::unknown_name;
use coremill_runtime::Hooks;

use crate::FeatureSpec;
use crate::error::{Error, ErrorKind, Result, fail};
use crate::input::Input;
use crate::options::RunOptions;
use crate::values::ValueRecorder;

/// Inputs by name.
pub type Inputs<'a> = [(&'a str, &'a dyn Input)];

/// The caller's memory for outputs, by name.
pub type OutputSlices<'a, 'o> = [(&'a str, &'o mut [f32])];

/// Prepares models of type `M` for runs.
pub trait Backend<M> {
    /// Loads a model. All errors that can be found before a run are reported here.
    fn prepare(&self, model: M, options: &RunOptions) -> Result<Arc<dyn Executable>>;
}

/// A model that is ready to run. Threads may open sessions concurrently.
pub trait Executable: Send + Sync {
    /// Names of the functions, or of the methods of an ExecuTorch program.
    fn functions(&self) -> Vec<String>;

    /// The function that runs if the caller selects none.
    fn default_function(&self) -> Result<&str>;

    /// The inputs, outputs and states of a function.
    fn signature(&self, function: &str) -> Result<Signature>;

    /// Opens a session of a function, with its own states.
    fn session(&self, function: &str) -> Result<Box<dyn Session>>;

    /// Opens a session of the default function.
    fn default_session(&self) -> Result<Box<dyn Session>> {
        self.session(self.default_function()?)
    }

    /// Number of rows of the table that an input's elements index, if known.
    fn vocabulary(&self, function: &str, input: &str) -> Option<u64>;

    /// The devices on which Core ML plans to run each operation, and the operations' shares of the cost.
    fn compute_plan(&self) -> Result<Plan> {
        let error =
            Error::new("only Core ML reports on which device it plans to run each operation");
        Err(error
            .with_kind(ErrorKind::Device)
            .with_hint("compile for `Device::All` on a Mac or an iPhone"))
    }

    /// The engine, if this executable runs on it.
    fn engine(&self) -> Option<&Engine> {
        None
    }
}

/// The inputs, outputs and states of a function.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Signature {
    /// The inputs, without states.
    pub inputs: Vec<FeatureSpec>,
    /// The outputs.
    pub outputs: Vec<FeatureSpec>,
    /// States kept between runs.
    pub states: Vec<FeatureSpec>,
}

/// A session of a function: its states, and the memory for intermediate values.
pub trait Session: Send {
    /// The name of the function.
    fn function(&self) -> &str;

    /// The inputs, without states.
    fn inputs(&self) -> &[FeatureSpec];

    /// The outputs.
    fn outputs(&self) -> &[FeatureSpec];

    /// States kept between runs.
    fn states(&self) -> &[FeatureSpec];

    /// Checks names, shapes and elements of inputs without running. Returns the arrays for a run, in the order of
    /// [`Session::inputs`].
    fn check(&self, inputs: &Inputs<'_>) -> Result<Vec<Array>>;

    /// Runs the function, profiled or observed by hooks.
    fn run_with(&mut self, inputs: &Inputs<'_>, hooks: &mut Hooks<'_>) -> Result<Outputs>;

    /// Runs the function.
    fn run(&mut self, inputs: &Inputs<'_>) -> Result<Outputs> {
        self.run_with(inputs, &mut Hooks::default())
    }

    /// Runs the function. Returns its outputs, and the values with the given names: inputs, constants, and results
    /// of operations. If a value is computed several times, for example in a loop, the later results are named
    /// `NAME@1`, `NAME@2` and so on.
    ///
    /// Each operation is executed separately, in program order, so the run takes longer.
    fn run_values(&mut self, inputs: &Inputs<'_>, names: &[&str]) -> Result<(Outputs, Outputs)> {
        let arrays = self.check(inputs)?;
        let mut recorder = ValueRecorder::new(names);
        let mut record = |_: &str, name: &str, value: &Value| recorder.record(name, value);
        let mut hooks = Hooks { observe: Some(&mut record), ..Hooks::default() };
        let outputs = self.run_with(inputs, &mut hooks)?;
        let values =
            recorder.finish(&outputs, (self.inputs(), &arrays), |name| self.constant(name))?;
        Ok((outputs, values))
    }

    /// A constant value by name; `None` if there is none, or if the device does not expose it.
    fn constant(&self, _name: &str) -> Result<Option<Array>> {
        Ok(None)
    }

    /// Runs the function and writes float outputs to the caller's memory.
    fn run_into(&mut self, inputs: &Inputs<'_>, outputs: &mut OutputSlices<'_, '_>) -> Result {
        check_slices(self.outputs(), outputs)?;
        copy_into(&self.run(inputs)?, outputs)
    }

    /// A copy of a state.
    fn state(&self, name: &str) -> Result<Array>;

    /// A state that another session takes over, if possible without a copy. It may be zero afterwards.
    fn take_state(&mut self, name: &str) -> Result<StateValue> {
        Ok(self.state(name)?.into())
    }

    /// Sets a state to the value that another session had.
    fn put_state(&mut self, name: &str, value: StateValue) -> Result {
        self.set_state(name, &value.to_array())
    }

    /// Sets a state.
    fn set_state(&mut self, name: &str, content: &dyn Input) -> Result;

    /// Resets all states to their initial values.
    fn reset(&mut self) -> Result;

    /// Does the work of the first run in advance, as far as possible without inputs.
    fn prepare(&mut self) -> Result {
        Ok(())
    }

    /// Copies of all states.
    fn read_states(&self) -> Result<Vec<(String, Array)>> {
        let states = self.states().iter();
        states.map(|spec| Ok((spec.name.clone(), self.state(&spec.name)?))).collect()
    }
}

/// Named arrays as inputs of a run, without a copy.
pub fn inputs(arrays: &[(String, Array)]) -> Vec<(&str, &dyn Input)> {
    arrays.iter().map(|(name, array)| (&**name, array as &dyn Input)).collect()
}

/// Names in backquotes, separated by commas; `none` if there are none.
pub(crate) fn quoted<'n>(names: impl IntoIterator<Item = &'n str>) -> String {
    let names: Vec<_> = names.into_iter().map(|name| format!("`{name}`")).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// The feature with a name; the error lists the existing names.
pub(crate) fn find<'p>(
    specs: &'p [FeatureSpec],
    name: &str,
    what: &str,
) -> Result<&'p FeatureSpec> {
    match specs.iter().find(|spec| spec.name == name) {
        Some(spec) => Ok(spec),
        None => {
            let names = specs.iter().map(|spec| &spec.name);
            fail!(Input, "{}", unknown_name(what, name, names))
        }
    }
}

/// Checks that each name is an input and is given only once.
pub(crate) fn check_names(specs: &[FeatureSpec], inputs: &Inputs<'_>) -> Result {
    check_each(specs, inputs, "input", "given twice")
}

/// Checks that each slice belongs to an output, and each output has at most one.
pub(crate) fn check_slices(specs: &[FeatureSpec], outputs: &OutputSlices<'_, '_>) -> Result {
    let twice = "given two slices; expected one";
    check_each(specs, outputs, "output", twice)
}

fn check_each<T>(specs: &[FeatureSpec], named: &[(&str, T)], what: &str, twice: &str) -> Result {
    for (at, (name, _)) in named.iter().enumerate() {
        find(specs, name, what)?;
        if named[..at].iter().any(|(before, _)| before == name) {
            fail!(Input, "{what} `{name}` is {twice}");
        }
    }
    Ok(())
}

/// The arrays for a run, in the order of the inputs, with converted elements and defaults.
pub(crate) fn checked(specs: &[FeatureSpec], inputs: &Inputs<'_>) -> Result<Vec<Array>> {
    check_names(specs, inputs)?;
    let array = |spec: &FeatureSpec| match inputs.iter().find(|(name, _)| *name == spec.name) {
        Some((_, input)) => {
            let accepted = spec.accept(input.array(spec)?);
            accepted.map_err(|error| Error::from(error).with_kind(ErrorKind::Input))
        }
        None => match spec.default_array()? {
            Some(array) => Ok(array),
            None => fail!(Input, "input `{}`, a `{}`, is not given", spec.name, spec.ty),
        },
    };
    specs.iter().map(array).collect()
}

/// Copies outputs to the caller's memory.
pub(crate) fn copy_into(found: &Outputs, outputs: &mut OutputSlices<'_, '_>) -> Result {
    for (name, slice) in outputs {
        let Some(floats) = found.floats(name) else {
            if found.0.iter().any(|(known, _)| known == name) {
                fail!(Input, "output `{name}` does not hold floats");
            }
            let names = found.0.iter().map(|(name, _)| name);
            fail!(Input, "{}", unknown_name("output", name, names));
        };
        check_length(name, floats.len(), slice.len())?;
        slice.copy_from_slice(floats);
    }
    Ok(())
}

/// Checks that the memory has the output's size.
pub(crate) fn check_length(name: &str, found: usize, room: usize) -> Result {
    if found != room {
        let message = format!("output `{name}` has {found} elements, but its slice has {room}");
        return Err(Error::new(message)
            .with_kind(ErrorKind::Input)
            .with_hint(format!("pass a slice of {found} elements")));
    }
    Ok(())
}
