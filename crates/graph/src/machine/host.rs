//! The engine, on this machine's CPU.

use std::collections::{BTreeMap, HashMap};

use coremill_engine::{
    Array, Engine, Hooks, Input as Taken, LoadOptions, Outputs, Port, Session, View,
};
use coremill_kernels::emptied;
use coremill_mil::ir::{Constant, ValueId};
use coremill_mil::verify::Verified;
use coremill_tensor::DType;

use super::{Given, Machine, Targets, check_room, check_targets, copy_into, find};
use crate::array::{Input, lying_shape};
use crate::error::Result;

/// A model on the engine.
pub(crate) struct Host {
    engine: Engine,
    sessions: HashMap<String, Session>,
    /// The function that ran last, which holds the latest states.
    latest: Option<String>,
    /// What runs into the caller's memory keep account in.
    shapes: Vec<Vec<usize>>,
    taken: Vec<Taken<'static>>,
    places: Vec<Option<&'static mut [f32]>>,
    /// Sessions of the model before a parameter was set, whose plans hold what the next run takes over.
    before: Option<HashMap<String, Session>>,
}

impl Host {
    /// Takes a model. One that differs from it in constants alone goes on with these; of one that differs more, it takes
    /// over what was made of constants that are the same, and states.
    pub(crate) fn load(
        verified: &Verified<'_>,
        threads: usize,
        mut before: Option<Host>,
    ) -> Result<Host> {
        if let Some(before) = before.take_if(|before| before.engine.adopt(verified)) {
            return Ok(before);
        }
        let options = LoadOptions { threads, ..LoadOptions::default() };
        let theirs = before.as_ref().map(|before| &before.engine);
        let engine = Engine::load_like(verified, &options, theirs)?;
        let (sessions, shapes, taken, places) = Default::default();
        let mut host = Host { engine, sessions, latest: None, shapes, taken, places, before: None };
        if let Some(before) = before {
            host.take_states(&before)?;
            host.before = Some(before.sessions);
        }
        Ok(host)
    }

    /// States as the latest function of another model left them.
    fn take_states(&mut self, before: &Host) -> Result<()> {
        let Some((name, session)) =
            before.latest.as_ref().and_then(|name| Some((name, before.sessions.get(name)?)))
        else {
            return Ok(());
        };
        let next = self.session(name)?;
        for port in session.states() {
            if let Some(array) = session.state(&port.name) {
                next.set_state(&port.name, array.clone())?;
            }
        }
        Ok(())
    }

    /// The session of a function, with the states that ran last.
    fn session(&mut self, function: &str) -> Result<&mut Session> {
        if !self.sessions.contains_key(function) {
            let session = self.engine.session(function)?;
            self.sessions.insert(function.to_owned(), session);
        }
        if let Some(latest) = self.latest.take_if(|latest| latest != function) {
            let before = &self.sessions[&latest];
            let states: Vec<_> = before.states().iter().map(|port| port.name.clone()).collect();
            let held: Vec<_> = states
                .iter()
                .filter_map(|name| Some((name.clone(), before.state(name)?.clone())))
                .collect();
            let next = self.sessions.get_mut(function).expect("it was made above");
            for (name, array) in held {
                if next.states().iter().any(|port| port.name == name) {
                    next.set_state(&name, array)?;
                }
            }
        }
        if self.latest.as_deref() != Some(function) {
            self.latest = Some(function.to_owned());
        }
        Ok(self.sessions.get_mut(function).expect("it was made above"))
    }

    fn latest(&mut self) -> Result<&mut Session> {
        let function = match &self.latest {
            Some(latest) => latest.clone(),
            None => self.engine.default_function().to_owned(),
        };
        self.session(&function)
    }
}

/// The shapes of inputs in the order of the ports, and whether all are given once and can be read where they lie.
fn lying_shapes(ports: &[Port], inputs: &Given<'_>, shapes: &mut Vec<Vec<usize>>) -> Result<bool> {
    if inputs.len() != ports.len() {
        return Ok(false);
    }
    shapes.resize_with(ports.len(), Vec::new);
    for (port, shape) in ports.iter().zip(shapes) {
        let Some((_, input)) = inputs.iter().find(|(name, _)| *name == port.name) else {
            return Ok(false);
        };
        let Some(lying) = input.lying() else { return Ok(false) };
        lying_shape(port, &lying, shape)?;
    }
    Ok(true)
}

/// Whether an output of floats has as many elements as there is room for; none if they are not known before the run.
fn fills(port: &Port, room: usize) -> Result<Option<()>> {
    let Some(ty) = port.ty.as_tensor().filter(|ty| ty.dtype == DType::Fp32) else {
        return Ok(None);
    };
    let count = ty.shape.iter().try_fold(1u64, |all, dim| Some(all * dim.known()?));
    count.map(|count| check_room(&port.name, count as usize, room)).transpose()
}

impl Machine for Host {
    fn into_host(self: Box<Self>) -> Option<Host> {
        Some(*self)
    }

    fn prepare(&mut self) -> Result<()> {
        for function in self.functions() {
            if !self.sessions.contains_key(&function) {
                self.sessions.insert(function.clone(), self.engine.session(&function)?);
            }
            let Some(session) = self.sessions.get_mut(&function) else { continue };
            let fixed = |port: &Port| -> Option<Vec<usize>> {
                let extents = port.ty.as_tensor()?.known_shape()?.into_iter();
                extents.map(|extent| usize::try_from(extent).ok()).collect()
            };
            let shapes: Option<Vec<_>> = session.inputs().iter().map(fixed).collect();
            if let Some(shapes) = shapes {
                session.prepare(&shapes)?;
            }
        }
        Ok(())
    }

    fn restate(&mut self, changes: &[(String, ValueId, Constant)]) -> bool {
        let mut functions: BTreeMap<&str, Vec<_>> = BTreeMap::new();
        for (function, value, constant) in changes {
            functions.entry(function).or_default().push((*value, constant.clone()));
        }
        functions.into_iter().all(|(function, constants)| self.engine.restate(function, constants))
    }

    fn functions(&self) -> Vec<String> {
        self.engine.functions().map(str::to_owned).collect()
    }

    fn default_function(&self) -> &str {
        self.engine.default_function()
    }

    fn ports(&mut self, function: &str) -> Result<[&[Port]; 3]> {
        let session = self.session(function)?;
        Ok([session.inputs(), session.outputs(), session.states()])
    }

    fn run(&mut self, function: Option<&str>, inputs: &Given<'_>) -> Result<Outputs> {
        let engine = self.engine.clone();
        let session = self.session(function.unwrap_or(engine.default_function()))?;
        let mut arrays = Vec::with_capacity(inputs.len());
        for (name, input) in inputs {
            arrays.push((*name, input.array(find(session.inputs(), name, "input")?)?));
        }
        let outputs = session.run(&arrays)?;
        self.before = None;
        Ok(outputs)
    }

    fn run_into(
        &mut self,
        function: Option<&str>,
        inputs: &Given<'_>,
        targets: &mut Targets<'_, '_>,
    ) -> Result<()> {
        let engine = self.engine.clone();
        let mut shapes = std::mem::take(&mut self.shapes);
        let mut taken: Vec<Taken<'_>> = emptied(std::mem::take(&mut self.taken));
        let mut places: Vec<Option<&mut [f32]>> = emptied(std::mem::take(&mut self.places));
        let session = self.session(function.unwrap_or(engine.default_function()))?;
        check_targets(session.outputs(), targets)?;
        if !lying_shapes(session.inputs(), inputs, &mut shapes)? {
            return copy_into(&self.run(function, inputs)?, targets);
        }
        for (port, shape) in session.inputs().iter().zip(&shapes) {
            let input = inputs.iter().find(|(name, _)| *name == port.name);
            let Some(lying) = input.and_then(|(_, input)| input.lying()) else { continue };
            let (dtype, elements) = (lying.dtype, lying.elements);
            taken.push(Taken::View(View { dtype, shape, elements }));
        }
        places.resize_with(session.outputs().len(), || None);
        let is_open = |port: &Port| {
            port.ty.as_tensor().is_some_and(|ty| ty.shape.iter().any(|dim| dim.known().is_none()))
        };
        let open = match session.outputs().iter().any(is_open) {
            true => session.output_shapes(&shapes)?,
            false => Vec::new(),
        };
        for (name, target) in targets.iter_mut() {
            let at = session.outputs().iter().position(|port| port.name == *name);
            let Some(at) = at else { continue };
            let port = &session.outputs()[at];
            let is_known = match open.get(at).and_then(Option::as_ref) {
                Some(shape) if port.ty.as_tensor().is_some_and(|ty| ty.dtype == DType::Fp32) => {
                    Some(check_room(name, shape.iter().product(), target.len())?)
                }
                _ => fills(port, target.len())?,
            };
            places[at] = is_known.map(|()| &mut **target);
        }
        let results = session.run_in_place(&mut taken, &mut places, &mut Hooks::default())?;
        let (taken, places) = (emptied(taken), emptied(places));
        // What was not written where it belongs.
        for (at, value) in results {
            let name = &session.outputs()[at].name;
            if let Some((_, target)) = targets.iter_mut().find(|(target, _)| target == name) {
                let given = Outputs(vec![(name.clone(), value)]);
                copy_into(&given, &mut [(name, target)])?;
            }
        }
        (self.shapes, self.taken, self.places) = (shapes, taken, places);
        self.before = None;
        Ok(())
    }

    fn state(&mut self, name: &str) -> Result<Array> {
        let session = self.latest()?;
        find(session.states(), name, "state")?;
        Ok(session.state(name).expect("a port has a state").clone())
    }

    fn set_state(&mut self, name: &str, content: &dyn Input) -> Result<()> {
        let session = self.latest()?;
        let array = content.array(find(session.states(), name, "state")?)?;
        Ok(session.set_state(name, array)?)
    }

    fn reset(&mut self) -> Result<()> {
        for session in self.sessions.values_mut() {
            session.reset()?;
        }
        Ok(())
    }
}
