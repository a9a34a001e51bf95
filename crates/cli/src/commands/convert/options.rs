//! Conversion options that `convert` and `lower` share.

use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::{PossibleValue, PossibleValuesParser};
use coremill::convert;
use coremill_compiler::{Options, Precision};
use coremill_engine::Numerics;
use coremill_mil::ir::Opset;
use coremill_passes::PASSES;

use super::shapes::{self, InputShapes};
use crate::commands::loaded::NumericsArg;
use crate::output::Failure;

/// Options of a program in any output format.
#[derive(clap::Args)]
pub(in crate::commands) struct ProgramArgs {
    /// The oldest release that must run the model: `ios15` to `ios18`, `ios26`, or the macOS,
    /// watchOS and tvOS releases of the same years [default: the oldest that supports all operations]
    #[arg(long, value_name = "RELEASE", value_parser = parse_target, help_heading = "Program")]
    target: Option<Opset>,
    /// Precision of float computations
    #[arg(long, value_enum, default_value_t = PrecisionArg::Fp16, help_heading = "Program")]
    precision: PrecisionArg,
    /// For `--precision auto`: a `.npz` file of inputs by name, or a folder of `.npz` files or images;
    /// repeatable [default: the archive's sample inputs]
    #[arg(long, value_name = "PATH", help_heading = "Program")]
    samples: Vec<PathBuf>,
    /// MIL operations that stay in fp32, such as `softmax,reduce_mean`
    #[arg(long, value_name = "OP", value_delimiter = ',', help_heading = "Program")]
    fp32_ops: Vec<String>,
    /// Modules that stay in fp32, by path, such as `encoder.layers.0`
    #[arg(long, value_name = "PATH", value_delimiter = ',', help_heading = "Program")]
    fp32_modules: Vec<String>,
    /// Values whose operations stay in fp32, by the names in `compare --per-op`; precision suffixes
    /// are ignored
    #[arg(long, value_name = "NAME", value_delimiter = ',', help_heading = "Program")]
    fp32_values: Vec<String>,
    /// Decompose attention even if Core ML has an operation for it
    #[arg(long, help_heading = "Program")]
    decompose_sdpa: bool,
    /// Skip a compiler pass, for debugging
    #[arg(long = "skip-pass", value_name = "NAME", value_parser = pass_names(), help_heading = "Program")]
    skipped_passes: Vec<String>,
    /// Allowed shapes of an input, once per input; the n-th shapes of all inputs belong together
    #[arg(long, value_name = "NAME=1,3,224,224;1,3,448,448", help_heading = "Interface")]
    shapes: Vec<InputShapes>,
    /// Run the result on the archive's sample inputs, in the arithmetic of `--numerics`, and
    /// compare with fp32; exit with 1 if an error, relative to the largest element, exceeds BOUND [default:
    /// 0.01; 0.001 for fp32]
    #[arg(
        long,
        value_name = "BOUND",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "",
        value_parser = Bound::from_str
    )]
    verify: Option<Bound>,
    /// The arithmetic in which `--verify` and `--precision auto` run fp16 operations
    #[arg(long, value_enum, value_name = "NUMERICS", default_value_t = NumericsArg::Rounded)]
    numerics: NumericsArg,
}

/// Error bound, `None` for the default.
#[derive(Clone, Copy, Debug)]
struct Bound(Option<f64>);

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum PrecisionArg {
    /// 16 bits, as the Neural Engine requires; inputs and outputs stay fp32
    Fp16,
    /// 32 bits
    Fp32,
    /// fp16 wherever the samples allow it, with values rescaled by powers of two; fp32 for the few
    /// remaining operations
    Auto,
}

impl FromStr for Bound {
    type Err = String;

    fn from_str(text: &str) -> Result<Bound, String> {
        if text.is_empty() {
            return Ok(Bound(None));
        }
        match text.parse::<f64>() {
            Ok(bound) if bound.is_finite() && bound >= 0.0 => Ok(Bound(Some(bound))),
            _ => Err("expects a number of at least 0".to_owned()),
        }
    }
}

impl ProgramArgs {
    /// The arithmetic of fp16 operations where numbers are judged.
    pub(in crate::commands) fn numerics(&self) -> Numerics {
        self.numerics.into()
    }

    /// Returns true if the result is to be verified.
    pub(in crate::commands) fn asks_to_verify(&self) -> bool {
        self.verify.is_some()
    }

    /// Error bound, `None` without verification.
    pub(in crate::commands) fn bound(&self, precision: Precision) -> Option<f64> {
        let Bound(bound) = self.verify?;
        Some(bound.unwrap_or_else(|| convert::bound(precision)))
    }

    /// Returns true if the user chose the target.
    pub(in crate::commands) fn has_target(&self) -> bool {
        self.target.is_some()
    }

    /// Samples for `--precision auto`, `None` for other precisions.
    pub(in crate::commands) fn auto(&self) -> Result<Option<&[PathBuf]>, Failure> {
        match (self.precision, self.samples.is_empty()) {
            (PrecisionArg::Auto, _) => Ok(Some(&self.samples)),
            (_, true) => Ok(None),
            (_, false) => Err(Failure::user("samples are only used to choose the precision")
                .hint(Some("also pass `--precision auto`"))),
        }
    }

    /// Options of the compiler. Flags that are not set keep their defaults.
    pub(in crate::commands) fn options(&self) -> Result<Options, Failure> {
        Ok(Options {
            target: self.target,
            precision: match self.precision {
                PrecisionArg::Fp16 | PrecisionArg::Auto => Precision::Fp16,
                PrecisionArg::Fp32 => Precision::Fp32,
            },
            fp32_ops: self.fp32_ops.clone(),
            fp32_modules: self.fp32_modules.clone(),
            fp32_values: self.fp32_values.clone(),
            decompose_sdpa: self.decompose_sdpa,
            skipped_passes: self.skipped_passes.clone(),
            shapes: shapes::by_name(&self.shapes).map_err(Failure::user)?,
            ..Options::default()
        })
    }
}

fn pass_names() -> PossibleValuesParser {
    PossibleValuesParser::new(
        PASSES.iter().map(|pass| PossibleValue::new(pass.name).aliases(pass.former_name)),
    )
}

pub(in crate::commands) fn parse_target(text: &str) -> Result<Opset, String> {
    convert::parse_target(text).ok_or_else(|| {
        let releases = Opset::ALL.iter().flat_map(|opset| opset.availability());
        let names = |wanted: &str| {
            let of = releases.clone().filter(|(system, _)| *system == wanted);
            let major = |version: &str| version.split('.').next().unwrap_or(version).to_owned();
            of.map(|(system, version)| system.to_lowercase() + &major(version)).collect::<Vec<_>>()
        };
        format!(
            "releases are {}, {}, and watchos and tvos releases of the same year",
            names("iOS").join(", "),
            names("macOS").join(", ")
        )
    })
}
