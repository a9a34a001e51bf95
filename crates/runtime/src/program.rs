use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use coremill_io::unknown_name;
use coremill_kernels::Numerics;
use coremill_kernels::Pool;
use coremill_pte::ByteRope;
use coremill_pte::program::{
    ExecutionPlan, ScalarType, Tensor as PlannedTensor, Value as PlannedValue,
};
use coremill_simd::Isa;
use coremill_tensor::Files;

use crate::delegate::Backend;
use crate::error::{Error, ErrorKind, Result, fail};
use crate::limits::Limits;
use crate::operators::{Cache, Machine};

/// Options for loading a program.
#[derive(Clone, Default)]
pub struct LoadOptions {
    /// Files with tensors that are not in the program (`.ptd`).
    pub data: Vec<PathBuf>,
    /// Backends that take precedence over the backends of this crate.
    pub backends: Vec<Arc<dyn Backend>>,
    /// Number of threads; 0 selects one per processor.
    pub threads: usize,
    /// Arithmetic of delegates that the host runs.
    pub numerics: Numerics,
    /// Resource limits.
    pub limits: Limits,
}

/// A program in memory. Clones share it, and threads may run methods concurrently.
#[derive(Clone)]
pub struct Program {
    pub(crate) shared: Arc<ProgramInner>,
}

pub(crate) struct ProgramInner {
    pub(crate) program: coremill_pte::Program,
    pub(crate) external: HashMap<String, ByteRope>,
    /// Files that contain the program's data.
    pub(crate) files: Files,
    pub(crate) backends: Vec<Arc<dyn Backend>>,
    /// Created when the first kernel is called.
    machine: OnceLock<Machine>,
    pub(crate) threads: usize,
    pub(crate) numerics: Numerics,
    pub(crate) limits: Limits,
}

impl ProgramInner {
    pub(crate) fn machine(&self) -> &Machine {
        self.machine.get_or_init(|| {
            let threads = match self.threads {
                0 => std::thread::available_parallelism().map_or(1, usize::from),
                threads => threads,
            };
            let packed = Cache::new(self.limits.packed);
            Machine { isa: Isa::detect(), pool: Pool::new(threads), packed }
        })
    }
}

/// Description of an input or output of a method.
#[derive(Clone, Debug, PartialEq)]
pub enum ValueSpec {
    /// A tensor.
    Tensor {
        /// Element type.
        scalar_type: ScalarType,
        /// Sizes; for dynamic dimensions the maximum.
        sizes: Vec<usize>,
        /// Dimensions in memory order, outermost first.
        dim_order: Vec<u8>,
        /// Whether sizes vary between runs.
        dynamic: bool,
    },
    /// A constant. An input must have this value, which the program was compiled for.
    Fixed(PlannedValue),
}

impl Program {
    /// Loads a program from a file. The file is mapped and must not be truncated while the program is in use.
    pub fn load(path: impl AsRef<Path>) -> Result<Program> {
        Program::load_with(path, LoadOptions::default())
    }

    /// Loads a program from a file with options.
    pub fn load_with(path: impl AsRef<Path>, options: LoadOptions) -> Result<Program> {
        let path = path.as_ref();
        let program = coremill_pte::read(path);
        let program = program.map_err(|error| Error::from(error).about(path.display()))?;
        Program::new(program, options)
    }

    /// Loads a program from memory.
    pub fn new(program: coremill_pte::Program, options: LoadOptions) -> Result<Program> {
        let LoadOptions { data, backends, threads, numerics, limits } = options;
        let mut external = HashMap::new();
        for path in &data {
            let tensors = crate::external::read(path)?;
            external.extend(tensors);
        }
        // The built-in backends come last, so that callers can override them.
        let backends = backends.into_iter().chain(crate::backends::backends()).collect();
        let machine = OnceLock::new();
        let named = program.named_data.iter().map(|named| &named.data);
        let data = program.constants.iter().chain(&program.mutable_data).chain(named);
        let files = Files::of(data.chain(external.values()).flat_map(|data| data.parts()));
        let shared =
            ProgramInner { program, external, files, backends, machine, threads, numerics, limits };
        Ok(Program { shared: Arc::new(shared) })
    }

    /// Names of the methods.
    pub fn methods(&self) -> impl Iterator<Item = &str> {
        self.shared.program.plans.iter().map(|plan| &*plan.name)
    }

    /// The parsed file.
    pub fn source(&self) -> &coremill_pte::Program {
        &self.shared.program
    }

    /// Inputs of a method, without loading it.
    pub fn inputs(&self, method: &str) -> Result<Vec<ValueSpec>> {
        let plan = self.plan(method)?.1;
        plan.inputs.iter().map(|id| port(plan, id.index())).collect()
    }

    /// Outputs of a method, without loading it.
    pub fn outputs(&self, method: &str) -> Result<Vec<ValueSpec>> {
        let plan = self.plan(method)?.1;
        plan.outputs.iter().map(|id| port(plan, id.index())).collect()
    }

    pub(crate) fn plan(&self, name: &str) -> Result<(usize, &ExecutionPlan)> {
        let plans = &self.shared.program.plans;
        match plans.iter().enumerate().find(|(_, plan)| plan.name == name) {
            Some(found) => Ok(found),
            None => {
                let message = unknown_name("method", name, self.methods());
                Err(Error::new(message).with_kind(ErrorKind::Input))
            }
        }
    }
}

fn port(plan: &ExecutionPlan, index: usize) -> Result<ValueSpec> {
    Ok(match plan.values.get(index) {
        Some(PlannedValue::Tensor(tensor)) => ValueSpec::Tensor {
            scalar_type: tensor.scalar_type,
            sizes: sizes(tensor)?,
            dim_order: tensor.dim_order.clone(),
            dynamic: is_dynamic(tensor),
        },
        Some(value) => ValueSpec::Fixed(value.clone()),
        None => fail!("value %{index} is not defined"),
    })
}

/// Sizes of a planned tensor.
pub(crate) fn sizes(tensor: &PlannedTensor) -> Result<Vec<usize>> {
    let sizes: Vec<i64> = tensor.sizes.iter().map(|size| i64::from(*size)).collect();
    crate::view::sizes_of(&sizes)
}

pub(crate) fn is_dynamic(tensor: &PlannedTensor) -> bool {
    tensor.dynamism != coremill_pte::program::ShapeDynamism::Static
}
