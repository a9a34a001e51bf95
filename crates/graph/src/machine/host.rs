//! The engine, on this machine's CPU.

use std::collections::HashMap;

use coremill_engine::{
    Array, Engine, Hooks, Input as Taken, LoadOptions, Outputs, Port, Session, View,
};
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
}

impl Host {
    pub(crate) fn load(verified: &Verified<'_>, threads: usize) -> Result<Host> {
        let engine = Engine::load(verified, &LoadOptions { threads, ..LoadOptions::default() })?;
        Ok(Host { engine, sessions: HashMap::new(), latest: None })
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

/// The shapes of inputs in the order of the ports, if all are given once and can be read where they lie.
fn lying_shapes(ports: &[Port], inputs: &Given<'_>) -> Result<Option<Vec<Vec<usize>>>> {
    if inputs.len() != ports.len() {
        return Ok(None);
    }
    let mut shapes = Vec::with_capacity(ports.len());
    for port in ports {
        let Some((_, input)) = inputs.iter().find(|(name, _)| *name == port.name) else {
            return Ok(None);
        };
        let Some(lying) = input.lying() else { return Ok(None) };
        shapes.push(lying_shape(port, &lying)?);
    }
    Ok(Some(shapes))
}

impl Machine for Host {
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

    fn run(&mut self, function: &str, inputs: &Given<'_>) -> Result<Outputs> {
        let session = self.session(function)?;
        let mut arrays = Vec::with_capacity(inputs.len());
        for (name, input) in inputs {
            arrays.push((*name, input.array(find(session.inputs(), name, "input")?)?));
        }
        Ok(session.run(&arrays)?)
    }

    fn run_into(
        &mut self,
        function: &str,
        inputs: &Given<'_>,
        targets: &mut Targets<'_, '_>,
    ) -> Result<()> {
        let session = self.session(function)?;
        check_targets(session.outputs(), targets)?;
        let Some(shapes) = lying_shapes(session.inputs(), inputs)? else {
            return copy_into(&self.run(function, inputs)?, targets);
        };
        let mut taken = Vec::with_capacity(shapes.len());
        for (port, shape) in session.inputs().iter().zip(&shapes) {
            let input = inputs.iter().find(|(name, _)| *name == port.name);
            let Some(lying) = input.and_then(|(_, input)| input.lying()) else { continue };
            let (dtype, elements) = (lying.dtype, lying.elements);
            taken.push(Taken::View(View { dtype, shape, elements }));
        }
        let known = session.output_shapes(&shapes)?;
        let mut places: Vec<Option<&mut [f32]>> = known.iter().map(|_| None).collect();
        for (name, target) in targets.iter_mut() {
            let at = session.outputs().iter().position(|port| port.name == *name);
            let Some((at, shape)) = at.and_then(|at| Some((at, known[at].as_ref()?))) else {
                continue;
            };
            let ty = session.outputs()[at].ty.as_tensor();
            if ty.is_some_and(|ty| ty.dtype == DType::Fp32) {
                check_room(name, shape.iter().product(), target.len())?;
                places[at] = Some(target);
            }
        }
        let results = session.run_in_place(taken, places, &mut Hooks::default())?;
        // What was not written where it belongs.
        let apart = session.outputs().iter().zip(results);
        let apart = apart.filter_map(|(port, value)| Some((port.name.clone(), value?)));
        let apart = Outputs(apart.collect());
        for (name, target) in targets {
            if apart.get(name).is_some() {
                copy_into(&apart, &mut [(name, target)])?;
            }
        }
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
