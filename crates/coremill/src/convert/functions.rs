//! Multifunction models: several programs in one model, with shared weights.

use coremill_compiler::{self as compiler, Conversion, LoweringError, Options};
use coremill_mil::ir::Opset;
use coremill_pt2::ExportedProgram;

use super::with_notes;

/// Converts programs to functions of one model, all for the release that the most demanding one
/// needs. Core ML supports several functions from iOS 18 on.
pub fn convert_functions(
    programs: Vec<(String, ExportedProgram)>,
    options: &Options,
) -> Result<Vec<(String, Conversion)>, compiler::Error> {
    if let Some(target) = options.target.filter(|target| *target < Opset::Ios18) {
        let what = "a model with several functions";
        return Err(compiler::Error::Program(LoweringError::needs(what, Opset::Ios18, target)));
    }
    let mut wanted = Opset::Ios18;
    let mut converted: Vec<(String, Conversion)> = Vec::new();
    loop {
        let mut highest = wanted;
        for (name, program) in &programs {
            let options = Options { target: options.target, ..with_notes(program, options) };
            let conversion = compiler::convert_from(program.clone(), &options, wanted)?;
            highest = highest.max(conversion.target);
            converted.push((name.clone(), conversion));
        }
        if converted.iter().all(|(_, conversion)| conversion.target == highest) {
            let models = converted.iter().flat_map(|(_, made)| &made.model.program.functions);
            compiler::check_fp32_values(models, options)?;
            return Ok(converted);
        }
        wanted = highest;
        converted.clear();
    }
}
