use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use coremill_io::unknown_name;
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

/// How a program is to be run.
#[derive(Clone, Default)]
pub struct LoadOptions {
    /// Files with the elements of tensors that are not in the program: `.ptd`.
    pub data: Vec<PathBuf>,
    /// What runs the parts that were delegated, beside the backends that this crate has.
    pub backends: Vec<Arc<dyn Backend>>,
    /// How many threads share the work; 0 stands for one for each processor.
    pub threads: usize,
    /// Whether what is delegated rounds each result to its type, as a device does that stores it; otherwise floats are
    /// kept in 32 bits.
    pub rounded: bool,
    /// What the program may ask for.
    pub limits: Limits,
}

/// A program in memory. Clones share it; any number of threads may run methods of it at once.
#[derive(Clone)]
pub struct Program {
    pub(crate) shared: Arc<ProgramInner>,
}

pub(crate) struct ProgramInner {
    pub(crate) program: coremill_pte::Program,
    pub(crate) external: HashMap<String, ByteRope>,
    /// Where all of it lies.
    pub(crate) files: Files,
    pub(crate) backends: Vec<Arc<dyn Backend>>,
    /// Made when the first kernel is called.
    machine: OnceLock<Machine>,
    pub(crate) threads: usize,
    pub(crate) rounded: bool,
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

/// What a method takes or gives, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum ValueSpec {
    /// A tensor.
    Tensor {
        /// The type of its elements.
        scalar_type: ScalarType,
        /// The dimensions; where they change, the largest.
        sizes: Vec<usize>,
        /// The dimensions in the order in which they lie in memory, the outermost first.
        dim_order: Vec<u8>,
        /// Whether the sizes change from run to run.
        dynamic: bool,
    },
    /// Something else; inputs have to be just this, which the program was made with.
    Fixed(PlannedValue),
}

impl Program {
    /// Loads a program from a file, which is mapped: it must not be shortened while the program is in use.
    pub fn load(path: impl AsRef<Path>) -> Result<Program> {
        Program::load_with(path, LoadOptions::default())
    }

    /// The same, with options.
    pub fn load_with(path: impl AsRef<Path>, options: LoadOptions) -> Result<Program> {
        let path = path.as_ref();
        let program = coremill_pte::read(path);
        let program = program.map_err(|error| Error::from(error).about(path.display()))?;
        Program::new(program, options)
    }

    /// Prepares a program that was read, or made.
    pub fn new(program: coremill_pte::Program, options: LoadOptions) -> Result<Program> {
        let LoadOptions { data, backends, threads, rounded, limits } = options;
        let mut external = HashMap::new();
        for path in &data {
            let tensors = crate::external::read(path)?;
            external.extend(tensors);
        }
        // What this machine runs comes last, so that callers can put something else in its place.
        let backends = backends.into_iter().chain(crate::backends::backends()).collect();
        let machine = OnceLock::new();
        let named = program.named_data.iter().map(|named| &named.data);
        let data = program.constants.iter().chain(&program.mutable_data).chain(named);
        let files = Files::of(data.chain(external.values()).flat_map(|data| data.parts()));
        let shared =
            ProgramInner { program, external, files, backends, machine, threads, rounded, limits };
        Ok(Program { shared: Arc::new(shared) })
    }

    /// The names of the methods.
    pub fn methods(&self) -> impl Iterator<Item = &str> {
        self.shared.program.plans.iter().map(|plan| &*plan.name)
    }

    /// What was read.
    pub fn source(&self) -> &coremill_pte::Program {
        &self.shared.program
    }

    /// What a method takes, without loading it.
    pub fn inputs(&self, method: &str) -> Result<Vec<ValueSpec>> {
        let plan = self.plan(method)?.1;
        plan.inputs.iter().map(|id| port(plan, id.index())).collect()
    }

    /// What a method gives, without loading it.
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

/// The sizes of a tensor that the program plans.
pub(crate) fn sizes(tensor: &PlannedTensor) -> Result<Vec<usize>> {
    let sizes: Vec<i64> = tensor.sizes.iter().map(|size| i64::from(*size)).collect();
    crate::view::sizes_of(&sizes)
}

pub(crate) fn is_dynamic(tensor: &PlannedTensor) -> bool {
    tensor.dynamism != coremill_pte::program::ShapeDynamism::Static
}
