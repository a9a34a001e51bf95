//! Lowers exported programs to an ExecuTorch program.

use std::collections::HashMap;

use coremill_delegate::{constant_method, delegate, payload, shared_delegates};
use coremill_mil::ir::Opset;
use coremill_pt2::ExportedProgram;
use coremill_pte::program::{CompileSpec, Delegate, ExecutionPlan, Program};

use crate::emit::{Pool, plan};
use crate::error::{Error, LoweringError, Result, UnsupportedOp};
use crate::options::{LowerOptions, WeightSharing};
use crate::out_variants::to_out_variants;
use crate::partition::{
    DelegatedPartition, Division, FallbackReason, PartitionOptions, Report, around, divide, report,
};
use crate::pipeline::{
    check_files, check_fp32_values, check_quantization, described, needed_by_options, quantize,
};

/// Result of [`lower`].
#[derive(Clone, Debug)]
pub struct LoweredPrograms {
    /// The ExecuTorch program.
    pub program: Program,
    /// Partition report of each method.
    pub reports: Vec<Report>,
    /// Symbols without an upper bound in the program; they are bounded by [`LowerOptions::max_size`].
    pub bounded: Vec<String>,
}

/// A partitioned method, rewritten around its delegates.
struct Method<'o> {
    name: String,
    options: &'o LowerOptions,
    division: Division,
    around: ExportedProgram,
    report: Report,
}

/// A program that becomes a method, and how it is lowered.
#[derive(Clone, Debug)]
pub struct MethodProgram<'o> {
    /// The name of the method.
    pub name: String,
    /// The program.
    pub program: ExportedProgram,
    /// Options of the lowering. The first method's constant methods and sharing of weights apply to all.
    pub options: &'o LowerOptions,
}

/// Lowers programs to one ExecuTorch program with one method per program.
pub fn lower(
    programs: Vec<(String, ExportedProgram)>,
    options: &LowerOptions,
) -> Result<LoweredPrograms, Error> {
    let methods = programs.into_iter();
    let methods = methods.map(|(name, program)| MethodProgram { name, program, options });
    lower_methods(methods.collect())
}

/// Lowers programs with options of their own to one ExecuTorch program.
pub fn lower_methods(programs: Vec<MethodProgram<'_>>) -> Result<LoweredPrograms, Error> {
    check(&programs).map_err(Error::Program)?;
    let files: Vec<_> = programs.iter().map(|method| method.program.files()).collect();
    let is_shared = is_shared(&programs);
    let constant_methods =
        programs.first().map(|first| first.options.constant_methods.as_slice()).unwrap_or_default();
    let mut methods = Vec::with_capacity(programs.len());
    let mut bounded = Vec::new();
    for MethodProgram { name, mut program, options } in programs {
        let floor = if is_shared { Opset::Ios18 } else { Opset::Ios15 };
        let floor = floor.max(needed_by_options(&options.options));
        for symbol in program.bound_symbols(i64::from(options.max_size)) {
            if !bounded.contains(&symbol) {
                bounded.push(symbol);
            }
        }
        methods.push(method(name, program, options, floor)?);
    }
    if let Some(Method { options, .. }) = methods.first() {
        let parts = methods.iter().flat_map(|method| &method.division.delegated);
        check_fp32_values(parts.map(|part| &part.function), &options.options)?;
    }
    let mut lowered = Program::default();
    let mut pool = Pool::default();
    let delegates =
        if is_shared { shared(&methods, &mut lowered)? } else { apart(&methods, &mut lowered)? };
    let plans = methods.iter().zip(delegates);
    let plans = plans.map(|(of, delegates)| plan(&of.name, &of.around, delegates, &mut pool));
    let mut plans = plans.collect::<Result<Vec<ExecutionPlan>, _>>()?;
    lowered.constants = pool.constants;
    lowered.mutable_data = pool.initial;
    for (name, constant) in constant_methods {
        plans.push(constant_method(name, constant, &mut lowered)?);
    }
    plans.sort_by(|left, right| left.name.cmp(&right.name));
    lowered.plans = plans;
    let reports = methods.into_iter().map(|method| method.report).collect();
    files.iter().try_for_each(check_files)?;
    Ok(LoweredPrograms { program: lowered, reports, bounded })
}

/// Whether the methods share weights, which is ExecuTorch's default.
fn is_shared(programs: &[MethodProgram<'_>]) -> bool {
    let sharing = programs.first().and_then(|first| first.options.weight_sharing);
    programs.len() > 1 && sharing != Some(WeightSharing::Disabled)
}

fn check(programs: &[MethodProgram<'_>]) -> Result<()> {
    let Some(first) = programs.first() else {
        return Err(LoweringError::new("expected at least one program to lower"));
    };
    let constants = first.options.constant_methods.iter().map(|(name, _)| name);
    let names: Vec<&String> = programs.iter().map(|method| &method.name).chain(constants).collect();
    for (at, name) in names.iter().enumerate() {
        if names[..at].contains(name) {
            return Err(LoweringError::new(format!("two methods have the name `{name}`")));
        }
    }
    let is_shared = is_shared(programs);
    programs.iter().try_for_each(|method| check_options(method.options, is_shared))
}

fn check_options(options: &LowerOptions, is_shared: bool) -> Result<()> {
    let target = options.options.target;
    if let Some(target) = target.filter(|target| is_shared && *target < Opset::Ios18) {
        let what = "sharing weights between methods";
        let refusal = LoweringError::needs(what, Opset::Ios18, target);
        let hint = "pass the option `target=ios18`, or let each method have its own weights (the option \
                    `weight_sharing=disabled`)";
        return Err(refusal.hint(hint));
    }
    check_quantization(&options.options)?;
    if options.full_graph {
        let wanted = [
            (!options.skip_ops.is_empty(), "some operators are excluded"),
            (options.portable, "delegation is disabled"),
            (!options.take_over_constant_data, "weights are not moved into the delegate"),
            (!options.take_over_mutable_buffer, "buffers are not moved into the delegate"),
        ];
        if let Some((_, what)) = wanted.iter().find(|(is_wanted, _)| *is_wanted) {
            return Err(LoweringError::new(format!(
                "{what}, but delegation of the full graph is required"
            )));
        }
    } else if !options.options.shapes.is_empty() {
        return Err(LoweringError::new(
            "enumerated shapes apply to the inputs of the whole program",
        )
        .hint("require the full graph to be lowered"));
    }
    Ok(())
}

/// Partitions a program, and rewrites the calls outside delegates.
fn method(
    name: String,
    program: ExportedProgram,
    options: &LowerOptions,
    floor: Opset,
) -> Result<Method<'_>, Error> {
    let program = coremill_prepare::prepare(program)?;
    let mut without_kernel: Vec<String> = Vec::new();
    let mut kept = Vec::new();
    loop {
        let wishes = PartitionOptions {
            options,
            floor,
            without_kernel: &without_kernel,
            is_cut_by_executorch: false,
        };
        let (divided, mut division) = divide(program.clone(), &wishes)?;
        let around = around(&divided, &division)?;
        match to_out_variants(around.program, &around.outside) {
            Ok(portable) => {
                let quantized = |part: DelegatedPartition| {
                    let (function, weights) = quantize(part.function, &options.options)?;
                    Ok(DelegatedPartition { function, weights, ..part })
                };
                division.delegated =
                    division.delegated.into_iter().map(quantized).collect::<Result<_, Error>>()?;
                let mut report = report(&name, &divided, &division);
                report.delegated_all_the_same.extend(kept);
                return Ok(Method { name, options, division, around: portable.program, report });
            }
            Err(Error::Refused(refused)) => {
                // Calls that have no kernel but could run in a delegate are delegated after all.
                let willing = |call: &&UnsupportedOp| match why(&divided, &division, call) {
                    Some(FallbackReason::Crumb) => true,
                    Some(FallbackReason::Asked) => !options.portable,
                    Some(FallbackReason::Refused(_)) | None => false,
                };
                let mut back: Vec<UnsupportedOp> =
                    refused.iter().filter(willing).cloned().collect();
                if back.is_empty() && !options.portable {
                    back = beside(&refused, &divided, &division);
                }
                if back.is_empty() {
                    return Err(Error::Refused(with_reasons(refused, &divided, &division)));
                }
                for call in back {
                    without_kernel.push(call.node.clone());
                    if let Some(FallbackReason::Asked) = why(&divided, &division, &call) {
                        kept.push(call);
                    }
                }
            }
            Err(error) => return Err(error),
        }
    }
}

/// Calls, excluded from delegation, that keep the given calls out of both delegates and kernels.
fn beside(
    refused: &[UnsupportedOp],
    program: &ExportedProgram,
    division: &Division,
) -> Vec<UnsupportedOp> {
    let nodes = &program.graph.nodes;
    let at = |call: &UnsupportedOp| nodes.iter().position(|node| node.name == call.node);
    let calls: Vec<usize> = refused.iter().filter_map(at).collect();
    let reason = |call: usize| {
        let first = refused.first().map_or("", |call| call.operator.as_str());
        let reason = format!("`{first}` could be neither delegated nor executed by a kernel");
        UnsupportedOp::of(&nodes[call], LoweringError::new(reason))
    };
    division.asked_beside(program, &calls).into_iter().map(reason).collect()
}

/// Reason why a call without a kernel is outside the delegates.
fn why<'d>(
    program: &ExportedProgram,
    division: &'d Division,
    call: &UnsupportedOp,
) -> Option<&'d FallbackReason> {
    let at = program.graph.nodes.iter().position(|node| node.name == call.node)?;
    division.outside.get(at)?.as_ref()
}

/// For calls without a kernel, adds the reason why Core ML does not support them either.
fn with_reasons(
    mut refused: Vec<UnsupportedOp>,
    program: &ExportedProgram,
    division: &Division,
) -> Vec<UnsupportedOp> {
    for call in &mut refused {
        let outside = std::mem::replace(&mut call.refusal, LoweringError::new(""));
        let delegated = match why(program, division, call) {
            Some(FallbackReason::Refused(refusal)) => refusal.clone(),
            Some(FallbackReason::Asked) => LoweringError::new("excluded by the options"),
            Some(FallbackReason::Crumb) | None => {
                call.refusal = outside;
                continue;
            }
        };
        let reason = format!(
            "cannot be delegated: {}; nor can it stay outside: {}",
            delegated.reason, outside.reason
        );
        let hint = delegated.hint.or(outside.hint);
        call.refusal = LoweringError { reason, hint, needs: delegated.needs };
    }
    refused
}

/// Creates one model per partition.
fn apart(methods: &[Method<'_>], program: &mut Program) -> Result<Vec<Vec<Delegate>>, Error> {
    let mut all = Vec::with_capacity(methods.len());
    for method in methods {
        let options = method.options;
        let mut delegates = Vec::new();
        for delegated in &method.division.delegated {
            let model = described(vec![delegated.function.clone()], &options.options)?;
            let origins = options.debug_info.then(|| numbered(&delegated.origins));
            let (data, _) =
                payload(&model, options.model_type, "lowered_module", origins.as_ref())?;
            delegates.push(delegate(data, &options.compile_specs, program)?);
        }
        all.push(delegates);
    }
    Ok(all)
}

/// Converts call indices to ExecuTorch's call numbers, which start at 1.
fn numbered(origins: &HashMap<String, usize>) -> HashMap<String, i64> {
    let number =
        |(name, &call): (&String, &usize)| Some((name.clone(), i64::try_from(call + 1).ok()?));
    origins.iter().filter_map(number).collect()
}

/// Creates one model for the first partitions of all methods, one for the second partitions, and so on.
fn shared(methods: &[Method<'_>], program: &mut Program) -> Result<Vec<Vec<Delegate>>, Error> {
    let Some(Method { options, division, .. }) = methods.first() else { return Ok(Vec::new()) };
    let count = division.delegated.len();
    if methods.iter().any(|method| method.division.delegated.len() != count) {
        let found = methods.iter().map(|method| {
            let outside = method.report.outside.len();
            let parts = method.division.delegated.len();
            format!("`{}` has {parts} (calls outside: {outside})", method.name)
        });
        let found: Vec<_> = found.collect();
        let message = format!(
            "methods that share weights must have the same number of partitions: {}",
            found.join(", ")
        );
        return Err(Error::Program(LoweringError::new(message).hint(
            "lower so that the same calls stay outside in all methods, or let each method have its own weights \
             (the option `weight_sharing=disabled`)",
        )));
    }
    let mut all: Vec<Vec<Delegate>> = methods.iter().map(|_| Vec::new()).collect();
    for part in 0..count {
        let functions = methods.iter().map(|method| {
            let mut function = method.division.delegated[part].function.clone();
            function.name = method.name.clone();
            function
        });
        let model = described(functions.collect(), &options.options)?;
        let functions: Vec<(&str, &[CompileSpec])> = methods
            .iter()
            .map(|method| (method.name.as_str(), &*method.options.compile_specs))
            .collect();
        let shared = shared_delegates(&model, options.model_type, part, &functions, program)?;
        all.iter_mut().zip(shared).for_each(|(delegates, shared)| delegates.push(shared));
    }
    Ok(all)
}
