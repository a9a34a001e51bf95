use std::collections::HashMap;
use std::sync::Arc;

use coremill_engine::{Array, Engine, FeatureSpec, Outputs};
use coremill_session::{Executable, Input, Inputs, OutputSlices, Session, Signature};

use crate::error::Result;

/// An executable with a session for each function. The functions of a model share states with the same name;
/// methods of an ExecuTorch program have separate states.
pub(crate) struct Functions {
    executable: Arc<dyn Executable>,
    shares_states: bool,
    sessions: HashMap<String, Box<dyn Session>>,
    /// The function that ran last; its session has the current states.
    latest: Option<String>,
    /// Sessions of the model before a parameter was set. Their plans contain packed weights that the next run
    /// can reuse.
    before: Option<HashMap<String, Box<dyn Session>>>,
}

impl Functions {
    /// Returns the functions of a model. They take over the states of the model before a parameter was set.
    pub(crate) fn of_model(
        executable: Arc<dyn Executable>,
        before: Option<Functions>,
    ) -> Result<Functions> {
        let mut functions = Functions::new(executable, true);
        if let Some(before) = before {
            functions.take_states(&before)?;
            functions.before = Some(before.sessions);
        }
        Ok(functions)
    }

    /// Returns the methods of an ExecuTorch program.
    pub(crate) fn of_program(executable: Arc<dyn Executable>) -> Functions {
        Functions::new(executable, false)
    }

    fn new(executable: Arc<dyn Executable>, shares_states: bool) -> Functions {
        let sessions = HashMap::new();
        Functions { executable, shares_states, sessions, latest: None, before: None }
    }

    pub(crate) fn executable(&self) -> &dyn Executable {
        &*self.executable
    }

    pub(crate) fn engine(&self) -> Option<&Engine> {
        self.executable.engine()
    }

    pub(crate) fn signature(&mut self, function: &str) -> Result<Signature> {
        let session = self.open(function)?;
        let [inputs, outputs, states] =
            [session.inputs(), session.outputs(), session.states()].map(<[FeatureSpec]>::to_vec);
        Ok(Signature { inputs, outputs, states })
    }

    pub(crate) fn prepare(&mut self) -> Result<()> {
        for function in self.executable.functions() {
            self.open(&function)?.prepare()?;
        }
        Ok(())
    }

    pub(crate) fn run(&mut self, function: Option<&str>, inputs: &Inputs<'_>) -> Result<Outputs> {
        let outputs = self.session(function)?.run(inputs)?;
        self.before = None;
        Ok(outputs)
    }

    pub(crate) fn run_into(
        &mut self,
        function: Option<&str>,
        inputs: &Inputs<'_>,
        outputs: &mut OutputSlices<'_, '_>,
    ) -> Result<()> {
        self.session(function)?.run_into(inputs, outputs)?;
        self.before = None;
        Ok(())
    }

    pub(crate) fn state(&mut self, name: &str) -> Result<Array> {
        Ok(self.latest()?.state(name)?)
    }

    pub(crate) fn set_state(&mut self, name: &str, content: &dyn Input) -> Result<()> {
        Ok(self.latest()?.set_state(name, content)?)
    }

    pub(crate) fn reset(&mut self) -> Result<()> {
        for session in self.sessions.values_mut() {
            session.reset()?;
        }
        Ok(())
    }

    /// Returns the session of a function, without updating its states.
    fn open(&mut self, function: &str) -> Result<&mut Box<dyn Session>> {
        if !self.sessions.contains_key(function) {
            let session = self.executable.session(function)?;
            self.sessions.insert(function.to_owned(), session);
        }
        Ok(self.sessions.get_mut(function).expect("it was made above"))
    }

    /// Returns the session of a function, by default of the default function, with the current states.
    fn session(&mut self, function: Option<&str>) -> Result<&mut Box<dyn Session>> {
        let executable = Arc::clone(&self.executable);
        let function = match function {
            Some(function) => function,
            None => executable.default_function()?,
        };
        self.open(function)?;
        if let Some(latest) = self.latest.take_if(|latest| latest != function)
            && self.shares_states
        {
            self.move_states(&latest, function)?;
        }
        if self.latest.as_deref() != Some(function) {
            self.latest = Some(function.to_owned());
        }
        self.open(function)
    }

    fn latest(&mut self) -> Result<&mut Box<dyn Session>> {
        let latest = self.latest.clone();
        self.session(latest.as_deref())
    }

    /// Moves the states that two functions have in common, without a copy if the backend can.
    fn move_states(&mut self, from: &str, to: &str) -> Result<()> {
        let names = |session: &dyn Session| {
            session.states().iter().map(|spec| spec.name.clone()).collect::<Vec<_>>()
        };
        let (held, wanted) = (names(&*self.sessions[from]), names(&*self.sessions[to]));
        for name in wanted.iter().filter(|name| held.contains(name)) {
            let Some(source) = self.sessions.get_mut(from) else { continue };
            let value = source.take_state(name)?;
            self.open(to)?.put_state(name, value)?;
        }
        Ok(())
    }

    /// Copies the states from the last function of another model.
    fn take_states(&mut self, before: &Functions) -> Result<()> {
        let Some(name) = &before.latest else { return Ok(()) };
        let states = before.sessions[name].read_states()?;
        set_states(self.session(Some(name))?, states)
    }
}

/// Sets the states that the session has.
fn set_states(session: &mut Box<dyn Session>, states: Vec<(String, Array)>) -> Result<()> {
    for (name, array) in states {
        if session.states().iter().any(|spec| spec.name == name) {
            session.set_state(&name, &array)?;
        }
    }
    Ok(())
}
