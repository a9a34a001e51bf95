//! How a program becomes one of Core ML: the options that `convert` and `lower` share.

use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::{PossibleValue, PossibleValuesParser};
use coremill::convert;
use coremill_compiler::{Options, Precision};
use coremill_mil::ir::Opset;
use coremill_passes::PASSES;

use super::shapes::{self, InputShapes};
use crate::output::Failure;

/// What is said of a program, whatever it is written as.
#[derive(clap::Args)]
pub(in crate::commands) struct ProgramArgs {
    /// The oldest release that must run it, `ios15` to `ios18` and `ios26`, or the macOS, watchOS and tvOS of these
    /// years; the oldest that has all operations if not given
    #[arg(long, value_name = "RELEASE", value_parser = parse_target, help_heading = "Program")]
    target: Option<Opset>,
    /// What floats are computed in
    #[arg(long, value_enum, default_value_t = PrecisionArg::Fp16, help_heading = "Program")]
    precision: PrecisionArg,
    /// For `--precision auto`: a `.npz` file with the inputs of a call by name, or a folder of such files or of pictures; any
    /// number. The inputs that the archive holds if not given
    #[arg(long, value_name = "PATH", help_heading = "Program")]
    samples: Vec<PathBuf>,
    /// Operations that compute in fp32 all the same, by MIL's names: `softmax,reduce_mean`
    #[arg(long, value_name = "OP", value_delimiter = ',', help_heading = "Program")]
    fp32_ops: Vec<String>,
    /// Modules that compute in fp32 all the same, by path: `encoder.layers.0`
    #[arg(long, value_name = "PATH", value_delimiter = ',', help_heading = "Program")]
    fp32_modules: Vec<String>,
    /// Values whose operations compute in fp32 all the same, by the names that `compare --per-op` shows; the ending of a
    /// precision makes no difference
    #[arg(long, value_name = "NAME", value_delimiter = ',', help_heading = "Program")]
    fp32_values: Vec<String>,
    /// Write attention out where Core ML has an operation for it
    #[arg(long, help_heading = "Program")]
    decompose_sdpa: bool,
    /// A pass to leave out, to find out what it does
    #[arg(long = "skip-pass", value_name = "NAME", value_parser = pass_names(), help_heading = "Program")]
    skipped_passes: Vec<String>,
    /// The shapes that an input may have; once for each input. Several inputs have those of one position together
    #[arg(long, value_name = "NAME=1,3,224,224;1,3,448,448", help_heading = "Interface")]
    shapes: Vec<InputShapes>,
    /// Run the result on the inputs that the archive holds, rounded as on the device, against the program in fp32, and
    /// exit with 1 if an output is further off than BOUND in parts of its largest element; 0.01 if not given, 0.001 for
    /// fp32
    #[arg(
        long,
        value_name = "BOUND",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "",
        value_parser = Bound::from_str
    )]
    verify: Option<Bound>,
}

/// How far outputs may be off; none for the usual.
#[derive(Clone, Copy, Debug)]
struct Bound(Option<f64>);

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum PrecisionArg {
    /// 16 bits, which the Neural Engine needs; inputs and outputs stay in 32
    Fp16,
    /// 32 bits
    Fp32,
    /// 16 bits where samples show that these do, after powers of two were moved from operation to operation so that they
    /// do; 32 bits in the fewest other operations
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
    /// Whether numbers are to be verified.
    pub(in crate::commands) fn asks_to_verify(&self) -> bool {
        self.verify.is_some()
    }

    /// How far outputs may be off, if numbers are to be verified.
    pub(in crate::commands) fn bound(&self, precision: Precision) -> Option<f64> {
        let Bound(bound) = self.verify?;
        Some(bound.unwrap_or_else(|| convert::bound(precision)))
    }

    /// Whether the target was asked for.
    pub(in crate::commands) fn has_target(&self) -> bool {
        self.target.is_some()
    }

    /// The samples to choose the precision with, if it is to be chosen.
    pub(in crate::commands) fn auto(&self) -> Result<Option<&[PathBuf]>, Failure> {
        match (self.precision, self.samples.is_empty()) {
            (PrecisionArg::Auto, _) => Ok(Some(&self.samples)),
            (_, true) => Ok(None),
            (_, false) => Err(Failure::user("samples are for choosing the precision")
                .hint(Some("pass `--precision auto`, too"))),
        }
    }

    /// The options of the compiler; what is not said here is as it is if nothing is said.
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
            "releases are {}, {}, and those of watchos and tvos of the same year",
            names("iOS").join(", "),
            names("macOS").join(", ")
        )
    })
}
