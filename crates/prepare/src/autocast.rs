//! Explicit casts for `autocast` regions.
//!
//! Operators are listed per device in torch (`autocast_mode.h` and `autocast_mode.cpp`) as computing in the region's
//! type, in `float32`, or in the widest type of their arguments. Other operators are called unchanged. Only
//! floating-point tensors on the region's device are converted, except `float64`.

use coremill_pt2::{
    Argument, Meta, Node, Origin, ScalarType, Target, TensorMeta,
    operators::{self, Autocast},
    promotion::is_float,
};

use crate::edit::Editor;
use crate::error::{Error, escape_truncated};
use crate::meta::contiguous;

/// A region with casts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cast {
    device: Device,
    dtype: ScalarType,
}

/// Device kinds with different operator lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Device {
    Cpu,
    /// CUDA, and all other devices without lists of their own.
    Cuda,
    Mps,
    Xpu,
}

impl Device {
    const ALL: [(&'static str, Device); 4] =
        [("cpu", Device::Cpu), ("cuda", Device::Cuda), ("mps", Device::Mps), ("xpu", Device::Xpu)];
}

impl Cast {
    /// Parses the arguments of `autocast`: device, type, whether it is enabled, and further ones. `None` if
    /// disabled.
    pub(crate) fn read(arguments: &[Argument]) -> Result<Option<Cast>, Error> {
        let [Argument::Text(device), dtype, enabled, ..] = arguments else {
            return Err(Error::malformed("`autocast` must have a device, a type and a switch"));
        };
        let enabled = match enabled {
            Argument::Bool(enabled) => *enabled,
            other => {
                return Err(Error::malformed(format!(
                    "the switch of `autocast` must be true or false, got {other:?}"
                )));
            }
        };
        if !enabled {
            return Ok(None);
        }
        let Some((_, device)) = Device::ALL.into_iter().find(|(name, _)| name == device) else {
            return Err(Error::unsupported(format!(
                "`autocast` is not supported for the device `{}`; the supported devices are cpu, cuda, mps and xpu",
                escape_truncated(device)
            )));
        };
        let dtype = match dtype {
            Argument::ScalarType(dtype) => *dtype,
            // torch's default type.
            _ if device == Device::Cuda => ScalarType::Float16,
            _ => ScalarType::BFloat16,
        };
        Ok(Some(Cast { device, dtype }))
    }

    /// Whether a tensor is converted in the region.
    fn converts(self, meta: &TensorMeta) -> bool {
        let here = Device::ALL
            .into_iter()
            .any(|(name, device)| device == self.device && meta.device.kind == name);
        here && is_float(meta.dtype) && meta.dtype != ScalarType::Float64
    }
}

/// Casts the arguments of a call according to the region.
pub(crate) fn apply(cast: Cast, node: &mut Node, editor: &mut Editor<'_>) -> Result<(), Error> {
    let Target::Operator { namespace, name, .. } = &node.target else { return Ok(()) };
    if namespace != "aten" {
        return Ok(());
    }
    let elsewhere = usize::from(cast.device != Device::Cpu);
    let dtype = match operators::named(name).autocast[elsewhere] {
        None => return Ok(()),
        Some(Autocast::Lower) => cast.dtype,
        Some(Autocast::Full) => ScalarType::Float32,
        Some(Autocast::Widest) => {
            let mut widest = cast.dtype;
            for argument in &node.arguments {
                argument.for_each_value(&mut |id| {
                    if let Meta::Tensor(meta) = &editor.value(id).meta
                        && cast.converts(meta)
                        && meta.dtype != cast.dtype
                    {
                        widest = ScalarType::Float32;
                    }
                });
            }
            widest
        }
    };
    let mut arguments = std::mem::take(&mut node.arguments);
    for argument in &mut arguments {
        convert(argument, dtype, editor, &node.origin, &|meta| cast.converts(meta))?;
    }
    node.arguments = arguments;
    Ok(())
}

/// Casts the tensors of an argument selected by `which`.
pub(crate) fn convert(
    argument: &mut Argument,
    dtype: ScalarType,
    editor: &mut Editor<'_>,
    origin: &Origin,
    which: &dyn Fn(&TensorMeta) -> bool,
) -> Result<(), Error> {
    match argument {
        Argument::Value(id) => {
            let value = editor.value(*id);
            let Meta::Tensor(meta) = &value.meta else { return Ok(()) };
            if meta.dtype == dtype || !which(meta) {
                return Ok(());
            }
            let name = format!("{}_{dtype}", value.name);
            let meta = Meta::Tensor(contiguous(meta, dtype, meta.sizes.clone()));
            let arguments = vec![Argument::Value(*id), Argument::ScalarType(dtype)];
            let id = editor.call(("to", "dtype"), arguments, &name, meta, origin)?;
            *argument = Argument::Value(id);
        }
        Argument::List(items) => {
            for item in items {
                convert(item, dtype, editor, origin, which)?;
            }
        }
        _ => {}
    }
    Ok(())
}
