//! `cargo xtask bench`: measures performance, compared with other implementations.

mod cast;
mod compile;
mod compress;
mod delegate;
mod dropin;
mod engine;
mod llm;
mod loaded;
mod measure;
mod package;
mod rlx;
mod roofline;
mod sessions;
mod start;

use clap::Subcommand;

/// What to measure.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    subject: Subject,
}

#[derive(Subcommand)]
enum Subject {
    /// Reading, verifying and writing a package, and the cast of floats into one, compared with `cp -r`.
    Package(package::Arguments),
    /// Conversion of exported programs to packages, compared with coremltools.
    Convert(compile::Arguments),
    /// Lowering of exported programs to `.pte` files, compared with ExecuTorch.
    Lower(compile::Arguments),
    /// Compression of the weights of a ResNet-50, compared with coremltools.
    Compress(compress::Arguments),
    /// Conversion, compression and import of the Python drop-in for coremltools, compared with coremltools.
    Coremltools(dropin::Arguments),
    /// Calls of a program with one operation, through the C interface and in ExecuTorch's runtime, and the
    /// second load of a large model.
    Delegate,
    /// The complete lowering call of ExecuTorch with the Python drop-in and without it, and the imports of
    /// the drop-in.
    Dropin(dropin::Arguments),
    /// Inference with complete models, compared with torch and onnxruntime.
    Engine(engine::Arguments),
    /// Conversion of a language model and generation with it, compared with llama.cpp.
    Llm(llm::Arguments),
    /// Building and writing a transformer from Rust, compared with rlx-coreml.
    Rlx,
    /// Inference with complete models, compared with the peak arithmetic and the bandwidth of this machine.
    Roofline(roofline::Arguments),
    /// Sessions from Rust: a run compared with the engine's, the first and the second start, and the start
    /// after a parameter was set.
    Session,
    /// The first runs of sessions from Python, compared with later runs and with onnxruntime.
    Startup(sessions::Arguments),
    /// Sessions that several threads use at once, compared with one thread.
    Throughput(sessions::Arguments),
    /// One measured start of a model, in its own process.
    #[command(hide = true)]
    EngineRun(start::RunArguments),
    /// One measured run of `llm`, in its own process.
    #[command(hide = true, subcommand)]
    LlmRun(llm::RunArguments),
    /// One measured run of `package`, in its own process.
    #[command(hide = true)]
    PackageRun(package::RunArguments),
    /// One measured run of the cast of `package`, in its own process.
    #[command(hide = true)]
    CastRun(cast::RunArguments),
}

/// Measures; the error states which limit was missed.
pub(crate) fn run(arguments: &Arguments) -> Result<(), String> {
    match &arguments.subject {
        Subject::Package(arguments) => package::run(arguments),
        Subject::Convert(arguments) => compile::run("convert", arguments),
        Subject::Lower(arguments) => compile::run("lower", arguments),
        Subject::Compress(arguments) => compress::run(arguments),
        Subject::Coremltools(arguments) => dropin::run(&["oracle.bench.ct"], arguments),
        Subject::Delegate => delegate::run(),
        Subject::Dropin(arguments) => dropin::run(&["oracle.bench.dropin", "--whole"], arguments),
        Subject::Engine(arguments) => engine::run(arguments),
        Subject::Llm(arguments) => llm::run(arguments),
        Subject::Rlx => rlx::run(),
        Subject::Roofline(arguments) => roofline::run(arguments),
        Subject::Session => rlx::session(),
        Subject::Startup(arguments) => sessions::run("startup", arguments),
        Subject::Throughput(arguments) => sessions::run("throughput", arguments),
        Subject::EngineRun(arguments) => start::run_once(arguments),
        Subject::LlmRun(arguments) => llm::run_once(arguments),
        Subject::PackageRun(arguments) => package::run_once(arguments),
        Subject::CastRun(arguments) => cast::run_once(arguments),
    }
}
