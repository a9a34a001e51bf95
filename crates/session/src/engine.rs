//! Backend for the engine, on the CPU.

use std::sync::Arc;

use coremill_engine::{
    Array, Engine, Input as Taken, Outputs, Session as Running, StateValue, View,
};
use coremill_kernels::recycle_vec;
use coremill_mil::ir::Function;
use coremill_runtime::Hooks;
use coremill_tensor::DType;
use coremill_verify::Verified;

use crate::FeatureSpec;
use crate::backend::{
    Backend, Executable, Inputs, OutputSlices, Session, Signature, check_length, check_slices,
    copy_into, find,
};
use crate::error::Result;
use crate::input::{Input, lying_shape};
use crate::options::RunOptions;

/// Runs models on this machine's CPU.
pub struct EngineBackend;

/// A model prepared for the engine.
pub struct EngineExecutable(Engine);

/// A session of the engine. Runs into the caller's memory reuse the vectors.
struct EngineSession {
    session: Running,
    function: String,
    shapes: Vec<Vec<usize>>,
    taken: Vec<Taken<'static>>,
    places: Vec<Option<&'static mut [f32]>>,
}

impl Backend<&Verified<'_>> for EngineBackend {
    fn prepare(&self, model: &Verified<'_>, options: &RunOptions) -> Result<Arc<dyn Executable>> {
        Ok(Arc::new(EngineExecutable(Engine::load(model, &options.engine())?)))
    }
}

impl From<Engine> for EngineExecutable {
    fn from(engine: Engine) -> EngineExecutable {
        EngineExecutable(engine)
    }
}

impl Executable for EngineExecutable {
    fn functions(&self) -> Vec<String> {
        self.0.functions().map(str::to_owned).collect()
    }

    fn default_function(&self) -> Result<&str> {
        Ok(self.0.default_function())
    }

    fn signature(&self, function: &str) -> Result<Signature> {
        let (inputs, outputs, states) = self.0.features(function)?;
        let [inputs, outputs, states] = [inputs, outputs, states].map(<[FeatureSpec]>::to_vec);
        Ok(Signature { inputs, outputs, states })
    }

    fn session(&self, function: &str) -> Result<Box<dyn Session>> {
        let (session, function) = (self.0.session(function)?, function.to_owned());
        let (shapes, taken, places) = Default::default();
        Ok(Box::new(EngineSession { session, function, shapes, taken, places }))
    }

    fn vocabulary(&self, function: &str, input: &str) -> Option<u64> {
        self.0.inspect(function, &mut |function: &Function| crate::vocabulary(function, input))?
    }

    fn engine(&self) -> Option<&Engine> {
        Some(&self.0)
    }
}

impl EngineSession {
    fn arrays<'n>(&self, inputs: &Inputs<'n>) -> Result<Vec<(&'n str, Array)>> {
        let specs = self.session.inputs();
        let array = |(name, input): &(&'n str, &dyn Input)| {
            Ok((*name, input.array(find(specs, name, "input")?)?))
        };
        inputs.iter().map(array).collect()
    }
}

impl Session for EngineSession {
    fn function(&self) -> &str {
        &self.function
    }

    fn inputs(&self) -> &[FeatureSpec] {
        self.session.inputs()
    }

    fn outputs(&self) -> &[FeatureSpec] {
        self.session.outputs()
    }

    fn states(&self) -> &[FeatureSpec] {
        self.session.states()
    }

    fn check(&self, inputs: &Inputs<'_>) -> Result<Vec<Array>> {
        Ok(self.session.check(&self.arrays(inputs)?)?)
    }

    fn run_with(&mut self, inputs: &Inputs<'_>, hooks: &mut Hooks<'_>) -> Result<Outputs> {
        Ok(self.session.run_with(&self.arrays(inputs)?, hooks)?)
    }

    fn constant(&self, name: &str) -> Result<Option<Array>> {
        Ok(self.session.constant(name)?)
    }

    fn run_into(&mut self, inputs: &Inputs<'_>, outputs: &mut OutputSlices<'_, '_>) -> Result {
        let session = &mut self.session;
        let mut shapes = std::mem::take(&mut self.shapes);
        let mut taken: Vec<Taken<'_>> = recycle_vec(std::mem::take(&mut self.taken));
        let mut places: Vec<Option<&mut [f32]>> = recycle_vec(std::mem::take(&mut self.places));
        check_slices(session.outputs(), outputs)?;
        if !lying_shapes(session.inputs(), inputs, &mut shapes)? {
            return copy_into(&self.run(inputs)?, outputs);
        }
        for (spec, shape) in session.inputs().iter().zip(&shapes) {
            let input = inputs.iter().find(|(name, _)| *name == spec.name);
            let Some(lying) = input.and_then(|(_, input)| input.lying()) else { continue };
            let (dtype, elements) = (lying.dtype, lying.elements);
            taken.push(Taken::View(View { dtype, shape, elements }));
        }
        places.resize_with(session.outputs().len(), || None);
        let is_open = |spec: &FeatureSpec| {
            spec.ty.as_tensor().is_some_and(|ty| ty.shape.iter().any(|dim| dim.known().is_none()))
        };
        let open = match session.outputs().iter().any(is_open) {
            true => session.output_shapes(&shapes)?,
            false => Vec::new(),
        };
        for (name, slice) in outputs.iter_mut() {
            let at = session.outputs().iter().position(|spec| spec.name == *name);
            let Some(at) = at else { continue };
            let spec = &session.outputs()[at];
            let is_known = match open.get(at).and_then(Option::as_ref) {
                Some(shape) if spec.ty.as_tensor().is_some_and(|ty| ty.dtype == DType::Fp32) => {
                    Some(check_length(name, shape.iter().product(), slice.len())?)
                }
                _ => fills(spec, slice.len())?,
            };
            places[at] = is_known.map(|()| &mut **slice);
        }
        let results = session.run_in_place(&mut taken, &mut places, &mut Hooks::default())?;
        let (taken, places) = (recycle_vec(taken), recycle_vec(places));
        // Outputs that no kernel wrote directly.
        for (at, value) in results {
            let name = &session.outputs()[at].name;
            if let Some((_, slice)) = outputs.iter_mut().find(|(output, _)| output == name) {
                let found = Outputs(vec![(name.clone(), value)]);
                copy_into(&found, &mut [(name, slice)])?;
            }
        }
        (self.shapes, self.taken, self.places) = (shapes, taken, places);
        Ok(())
    }

    fn state(&self, name: &str) -> Result<Array> {
        let spec = find(self.session.states(), name, "state")?;
        Ok(self.session.state(&spec.name).expect("each feature has a state").to_array())
    }

    fn take_state(&mut self, name: &str) -> Result<StateValue> {
        find(self.session.states(), name, "state")?;
        Ok(self.session.take_state(name)?.expect("the state was found"))
    }

    fn put_state(&mut self, name: &str, value: StateValue) -> Result {
        find(self.session.states(), name, "state")?;
        Ok(self.session.put_state(name, value)?)
    }

    fn set_state(&mut self, name: &str, content: &dyn Input) -> Result {
        let array = content.array(find(self.session.states(), name, "state")?)?;
        Ok(self.session.set_state(name, array)?)
    }

    fn reset(&mut self) -> Result {
        Ok(self.session.reset()?)
    }

    fn prepare(&mut self) -> Result {
        let fixed = |spec: &FeatureSpec| -> Option<Vec<usize>> {
            let sizes = spec.ty.as_tensor()?.known_shape()?.into_iter();
            sizes.map(|size| usize::try_from(size).ok()).collect()
        };
        let shapes: Option<Vec<_>> = self.session.inputs().iter().map(fixed).collect();
        Ok(shapes.map_or(Ok(()), |shapes| self.session.prepare(&shapes))?)
    }
}

/// Collects the shapes of inputs in the order of the features. Returns whether all are given exactly once and can be
/// read in place.
fn lying_shapes(
    specs: &[FeatureSpec],
    inputs: &Inputs<'_>,
    shapes: &mut Vec<Vec<usize>>,
) -> Result<bool> {
    if inputs.len() != specs.len() {
        return Ok(false);
    }
    shapes.resize_with(specs.len(), Vec::new);
    for (spec, shape) in specs.iter().zip(shapes) {
        let Some((_, input)) = inputs.iter().find(|(name, _)| *name == spec.name) else {
            return Ok(false);
        };
        let Some(lying) = input.lying() else { return Ok(false) };
        lying_shape(spec, &lying, shape)?;
    }
    Ok(true)
}

/// Checks that the memory has the size of a float output; `None` if the size is unknown before the run.
fn fills(spec: &FeatureSpec, room: usize) -> Result<Option<()>> {
    let Some(ty) = spec.ty.as_tensor().filter(|ty| ty.dtype == DType::Fp32) else {
        return Ok(None);
    };
    let count = ty.shape.iter().try_fold(1u64, |all, dim| Some(all * dim.known()?));
    count.map(|count| check_length(&spec.name, count as usize, room)).transpose()
}
