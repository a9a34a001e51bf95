//! Compute plans: the devices on which Core ML plans to run operations.

use std::path::Path;
use std::sync::mpsc;

use block2::RcBlock;
use objc2::rc::Retained;
use objc2_core_ml::{
    MLComputePlan, MLModelStructureProgramBlock, MLModelStructureProgramOperation,
};
use objc2_foundation::NSError;

use super::call::{Sendable, call, class, error_at, url_of, wait};
use super::device::kind_of;
use super::model::configuration;
use crate::error::{Error, ErrorKind, Result};
use crate::interface::{Plan, PlannedOperation};
use crate::options::LoadOptions;

/// Maximum nesting of blocks.
const MAX_DEPTH: usize = 64;

/// The devices on which Core ML plans to run the operations of a compiled model; needs macOS 14.4 or iOS 17.4.
pub fn plan(compiled: &Path, options: &LoadOptions) -> Result<Plan> {
    const ACTION: &str = "plan the model";
    let (sender, answer) = mpsc::channel();
    call(|| {
        class("MLComputePlan", "macOS 14.4 or iOS 17.4")?;
        let handler = RcBlock::new(move |plan: *mut MLComputePlan, error: *mut NSError| {
            // SAFETY: Core ML passes a plan or an error, valid during this call.
            let outcome = call(|| unsafe {
                let plan = Retained::retain(plan).map(Sendable);
                plan.ok_or_else(|| error_at(ErrorKind::Load, ACTION, error))
            });
            // The receiver may be gone.
            let _ = sender.send(outcome);
        });
        let (url, configuration) = (url_of(compiled)?, configuration(options)?);
        // SAFETY: the class exists, and Core ML copies the handler.
        unsafe {
            MLComputePlan::loadContentsOfURL_configuration_completionHandler(
                &url,
                &configuration,
                &handler,
            );
        }
        Ok(())
    })?;
    let Sendable(plan) = wait(&answer, options.timeout, options.cancel.as_ref(), ACTION)?;
    call(|| {
        // SAFETY: these only read the plan.
        let program = unsafe { plan.modelStructure().program() };
        let Some(program) = program else {
            let message =
                "the model is not an ML Program; only ML Programs have a plan by operation";
            return Err(Error::new(ErrorKind::Load, message));
        };
        let mut found = Plan::default();
        // SAFETY: as above.
        let functions = unsafe { program.functions() };
        let (names, _) = functions.to_vecs();
        let mut names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
        names.sort();
        for name in names {
            let key = objc2_foundation::NSString::from_str(&name);
            let Some(function) = functions.objectForKey(&key) else { continue };
            // SAFETY: as above.
            let block = unsafe { function.block() };
            collect(&plan, &name, &block, 0, &mut found);
        }
        Ok(found)
    })
}

fn collect(
    plan: &MLComputePlan,
    function: &str,
    block: &MLModelStructureProgramBlock,
    depth: usize,
    found: &mut Plan,
) {
    // SAFETY: these only read the plan.
    for operation in unsafe { block.operations() }.iter() {
        found.operations.push(describe(plan, function, &operation));
        if depth < MAX_DEPTH {
            // SAFETY: as above.
            for inner in unsafe { operation.blocks() }.iter() {
                collect(plan, function, &inner, depth + 1, found);
            }
        }
    }
}

fn describe(
    plan: &MLComputePlan,
    function: &str,
    operation: &MLModelStructureProgramOperation,
) -> PlannedOperation {
    // SAFETY: these only read the plan.
    unsafe {
        let usage = plan.computeDeviceUsageForMLProgramOperation(operation);
        let supported = usage.as_ref().map(|usage| usage.supportedComputeDevices());
        PlannedOperation {
            function: function.to_owned(),
            operator: operation.operatorName().to_string(),
            outputs: operation.outputs().iter().map(|output| output.name().to_string()).collect(),
            cost: plan.estimatedCostOfMLProgramOperation(operation).map(|cost| cost.weight()),
            preferred: usage.as_ref().map(|usage| kind_of(&usage.preferredComputeDevice())),
            supported: supported
                .map(|devices| devices.iter().map(|device| kind_of(&device)).collect())
                .unwrap_or_default(),
        }
    }
}
