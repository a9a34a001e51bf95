//! Devices of operations, by a plan.

use coremill::inspect::placement::{ComputePlan, Device, PlannedOperation};

use crate::data::Function;

/// Sets the devices of operations by a plan, and returns the number of operations that it names.
pub(crate) fn set_devices(functions: &mut [Function], plan: &ComputePlan) -> usize {
    let named = plan.by_name();
    let mut count = 0;
    for function in functions {
        for op in &mut function.ops {
            (op.device, op.cost, op.leaves) = (None, None, None);
            let Some(planned) = named.get(&(&*function.name, &*op.name)) else { continue };
            let Some(device) = planned.preferred else { continue };
            count += 1;
            op.device = Some(device);
            // Of a forecast, the costs are too rough to be shown.
            op.cost = planned.cost.filter(|_| plan.forecast.is_none());
            op.leaves = (device != Device::NeuralEngine).then(|| leaves(planned, device));
        }
    }
    count
}

/// Why an operation is not on the Neural Engine.
fn leaves(planned: &PlannedOperation, device: Device) -> String {
    let could = match planned.supported.contains(&Device::NeuralEngine) {
        true => "the Neural Engine could also run it",
        false => "the Neural Engine does not support it",
    };
    let why = match (planned.reason, &planned.detail) {
        (Some(reason), Some(detail)) => format!("{}: {detail}", reason.name()),
        _ => could.to_owned(),
    };
    format!("runs on the {}; {why}", device.name())
}
