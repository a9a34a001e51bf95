//! `cargo xtask bench`: measures performance, compared with other implementations.

mod cast;
mod compile;
mod compress;
mod delegate;
mod dropin;
mod engine;
mod measure;
mod package;
mod rlx;
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
    /// Reading, verifying and writing a package, and casting floats into one, against `cp -r` of it.
    Package(package::Arguments),
    /// Exported programs to packages, beside coremltools.
    Convert(compile::Arguments),
    /// Exported programs to `.pte` files, beside ExecuTorch.
    Lower(compile::Arguments),
    /// Compressed weights of a ResNet-50, beside coremltools.
    Compress(compress::Arguments),
    /// Calls of one operation through the C interface and in ExecuTorch's runtime, and the second load of a large model.
    Delegate,
    /// ExecuTorch's whole call with the Python drop-in and with stock ExecuTorch, and the drop-in's imports.
    Dropin(dropin::Arguments),
    /// Whole models, beside torch and onnxruntime.
    Engine(engine::Arguments),
    /// Building and writing a transformer from Rust, beside rlx-coreml.
    Rlx,
    /// What sessions of Rust cost: a run beside the engine's, the first start, the second, one after a parameter was set.
    Session,
    /// One measured start of a model, in a process of its own.
    #[command(hide = true)]
    EngineRun(start::RunArguments),
    /// One measured run of `package`, in a process of its own.
    #[command(hide = true)]
    PackageRun(package::RunArguments),
    /// One measured run of the cast of `package`, in a process of its own.
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
        Subject::Delegate => delegate::run(),
        Subject::Dropin(arguments) => dropin::run(arguments),
        Subject::Engine(arguments) => engine::run(arguments),
        Subject::Rlx => rlx::run(),
        Subject::Session => rlx::session(),
        Subject::EngineRun(arguments) => start::run_once(arguments),
        Subject::PackageRun(arguments) => package::run_once(arguments),
        Subject::CastRun(arguments) => cast::run_once(arguments),
    }
}
