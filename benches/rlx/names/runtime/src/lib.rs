//! The names of `rlx-runtime`, so that the tests of `rlx-coreml` compare coremill with `rlx-cpu`.
//!
//! `Device::Cpu` is the original runtime. Every other device is `coremill-rlx` on the host, without the
//! rewrites that the original runtime applies before its backends.

use coremill_rlx::{CoremlExecutable, Precision, Support, support};
use rlx_ir::{DType, Graph, Op, OpKind};

pub use peer::{Device, PrecisionPolicy};

pub struct Session {
    device: Device,
    policy: Option<PrecisionPolicy>,
}

impl Session {
    pub fn new(device: Device) -> Session {
        Session { device, policy: None }
    }

    pub fn with_policy(mut self, policy: PrecisionPolicy) -> Session {
        self.policy = Some(policy);
        self
    }

    pub fn compile(&self, graph: Graph) -> CompiledGraph {
        if self.device == Device::Cpu {
            let session = peer::Session::new(Device::Cpu);
            let session = match self.policy.clone() {
                Some(policy) => session.with_policy(policy),
                None => session,
            };
            return CompiledGraph::Judge(Box::new(session.compile(graph)));
        }
        let precision = match self.policy {
            Some(_) => Precision::Fp16,
            None => Precision::Fp32,
        };
        let host = coremill_rlx::Device::Host;
        CompiledGraph::Ours(or_panic(CoremlExecutable::compile_for(graph, host, precision)))
    }
}

pub enum CompiledGraph {
    Judge(Box<peer::CompiledGraph>),
    Ours(CoremlExecutable),
}

fn or_panic<T>(result: coremill_rlx::Result<T>) -> T {
    result.unwrap_or_else(|error| panic!("{error}"))
}

impl CompiledGraph {
    pub fn set_param(&mut self, name: &str, elements: &[f32]) {
        match self {
            CompiledGraph::Judge(graph) => graph.set_param(name, elements),
            CompiledGraph::Ours(graph) => or_panic(graph.set_param(name, elements)),
        }
    }

    pub fn set_param_typed(&mut self, name: &str, bytes: &[u8], dtype: DType) {
        match self {
            CompiledGraph::Judge(graph) => graph.set_param_typed(name, bytes, dtype),
            CompiledGraph::Ours(graph) => or_panic(graph.set_param_typed(name, bytes, dtype)),
        }
    }

    pub fn finalize_params(&mut self) {
        match self {
            CompiledGraph::Judge(graph) => graph.finalize_params(),
            CompiledGraph::Ours(graph) => or_panic(graph.finalize()),
        }
    }

    pub fn run(&mut self, inputs: &[(&str, &[f32])]) -> Vec<Vec<f32>> {
        match self {
            CompiledGraph::Judge(graph) => graph.run(inputs),
            CompiledGraph::Ours(graph) => or_panic(graph.run(inputs)),
        }
    }
}

pub fn is_available(_: Device) -> bool {
    true
}

pub fn supports(device: Device, op: &Op) -> bool {
    device == Device::Cpu || matches!(support(op.kind()), Support::Lowered)
}

/// Whether the graph compiles.
pub fn supports_graph(device: Device, graph: &Graph) -> bool {
    device == Device::Cpu || CoremlExecutable::compile(graph.clone()).is_ok()
}

pub fn first_unsupported_op(device: Device, graph: &Graph) -> Option<OpKind> {
    let unsupported = graph.nodes().iter().find(|node| !supports(device, &node.op));
    unsupported.map(|node| node.op.kind())
}
