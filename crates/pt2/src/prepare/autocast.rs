//! The casts that an `autocast` region stands for, made plain.
//!
//! Operators fall into three lists by device, which are torch's (`autocast_mode.h` and `autocast_mode.cpp`): those that
//! compute in the region's type, those that compute in `float32`, and those that take the widest type of their
//! arguments. All others are called as they are. Only floating-point tensors on the region's device are converted,
//! `float64` ones not.

use super::edit::Editor;
use super::meta::contiguous;
use crate::error::{Error, shown};
use crate::program::{Argument, Meta, Node, Origin, Target, TensorMeta};
use crate::promotion::is_float;
use crate::scalar::ScalarType;

/// A region in which casts are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cast {
    device: Device,
    dtype: ScalarType,
}

/// Devices differ in their lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Device {
    Cpu,
    /// All that is not a CPU has the lists of CUDA.
    Cuda,
    Mps,
    Xpu,
}

impl Device {
    const ALL: [(&'static str, Device); 4] =
        [("cpu", Device::Cpu), ("cuda", Device::Cuda), ("mps", Device::Mps), ("xpu", Device::Xpu)];
}

enum Policy {
    Lower,
    Full,
    Widest,
}

const LOWER: [&str; 21] = [
    "_convolution",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_tbc",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "convolution",
    "prelu",
    "addmm",
    "matmul",
    "mm",
    "linalg_vecdot",
    "linear",
    "addbmm",
    "baddbmm",
    "bmm",
    "scaled_dot_product_attention",
    "_native_multi_head_attention",
    "mkldnn_rnn_layer",
];

/// What computes in the region's type on other devices than the CPU only.
const LOWER_ELSEWHERE: [&str; 11] = [
    "addmv",
    "addr",
    "einsum",
    "mv",
    "chain_matmul",
    "linalg_multi_dot",
    "lstm_cell",
    "gru_cell",
    "rnn_tanh_cell",
    "rnn_relu_cell",
    "_scaled_dot_product_flash_attention",
];

const FULL_CPU: [&str; 45] = [
    "avg_pool3d",
    "adaptive_avg_pool3d",
    "adaptive_max_pool3d",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cdist",
    "cosine_embedding_loss",
    "fft_fft",
    "fft_fft2",
    "fft_fftn",
    "fft_hfft",
    "fft_ifft",
    "fft_ifft2",
    "fft_ifftn",
    "fft_ihfft",
    "fft_irfft",
    "fft_irfft2",
    "fft_irfftn",
    "fft_rfft",
    "fft_rfft2",
    "fft_rfftn",
    "grid_sampler",
    "grid_sampler_2d",
    "grid_sampler_3d",
    "huber_loss",
    "inverse",
    "kl_div",
    "l1_loss",
    "linalg_inv",
    "max_pool3d",
    "max_unpool2d",
    "max_unpool3d",
    "mse_loss",
    "nanquantile",
    "polar",
    "prod",
    "quantile",
    "reflection_pad1d",
    "reflection_pad2d",
    "replication_pad1d",
    "replication_pad2d",
    "replication_pad3d",
    "stft",
    "trace",
    "view_as_complex",
];

const FULL_ELSEWHERE: [&str; 58] = [
    "acos",
    "asin",
    "cosh",
    "erfinv",
    "exp",
    "expm1",
    "log",
    "log10",
    "log2",
    "log1p",
    "reciprocal",
    "rsqrt",
    "sinh",
    "tan",
    "pow",
    "softplus",
    "layer_norm",
    "native_layer_norm",
    "rms_norm",
    "group_norm",
    "frobenius_norm",
    "nuclear_norm",
    "cosine_similarity",
    "nll_loss",
    "kl_div",
    "l1_loss",
    "smooth_l1_loss",
    "huber_loss",
    "mse_loss",
    "binary_cross_entropy_with_logits",
    "dist",
    "pdist",
    "cdist",
    "renorm",
    "logsumexp",
    "upsample_nearest1d",
    "_upsample_nearest_exact1d",
    "upsample_nearest2d",
    "_upsample_nearest_exact2d",
    "upsample_nearest3d",
    "_upsample_nearest_exact3d",
    "upsample_linear1d",
    "upsample_bilinear2d",
    "_upsample_bilinear2d_aa",
    "upsample_trilinear3d",
    "upsample_bicubic2d",
    "_upsample_bicubic2d_aa",
    "prod",
    "softmax",
    "log_softmax",
    "cumprod",
    "cumsum",
    "linalg_vector_norm",
    "linalg_matrix_norm",
    "sum",
    "norm",
    "margin_ranking_loss",
    "soft_margin_loss",
];

const WIDEST_CPU: [&str; 3] = ["stack", "cat", "index_copy"];

const WIDEST_ELSEWHERE: [&str; 13] = [
    "addcdiv",
    "addcmul",
    "atan2",
    "bilinear",
    "cross",
    "dot",
    "vdot",
    "grid_sampler",
    "index_put",
    "tensordot",
    "scatter_add",
    "stack",
    "cat",
];

impl Cast {
    /// From the arguments of `autocast`: the device, the type, whether it is on, and more. None if it is off.
    pub(super) fn read(arguments: &[Argument]) -> Result<Option<Cast>, Error> {
        let [Argument::Text(device), dtype, enabled, ..] = arguments else {
            return Err(Error::malformed("`autocast` has no device, type and switch"));
        };
        let enabled = match enabled {
            Argument::Bool(enabled) => *enabled,
            other => {
                return Err(Error::malformed(format!(
                    "`autocast` is switched by {other:?}; true or false is read"
                )));
            }
        };
        if !enabled {
            return Ok(None);
        }
        let Some((_, device)) = Device::ALL.into_iter().find(|(name, _)| name == device) else {
            return Err(Error::unsupported(format!(
                "`autocast` is for the device `{}`, whose lists of operators are not known; they are for cpu, cuda, mps and xpu",
                shown(device)
            )));
        };
        let dtype = match dtype {
            Argument::ScalarType(dtype) => *dtype,
            // What torch takes where nothing was said.
            _ if device == Device::Cuda => ScalarType::Float16,
            _ => ScalarType::BFloat16,
        };
        Ok(Some(Cast { device, dtype }))
    }

    fn policy(self, name: &str) -> Option<Policy> {
        let cpu = self.device == Device::Cpu;
        let on = |cpu_list: &[&str], other_list: &[&str]| {
            if cpu { cpu_list.contains(&name) } else { other_list.contains(&name) }
        };
        if LOWER.contains(&name) || on(&[], &LOWER_ELSEWHERE) {
            Some(Policy::Lower)
        } else if on(&FULL_CPU, &FULL_ELSEWHERE) {
            Some(Policy::Full)
        } else if on(&WIDEST_CPU, &WIDEST_ELSEWHERE) {
            Some(Policy::Widest)
        } else {
            None
        }
    }

    /// Whether a tensor is one that casts are made of.
    fn converts(self, meta: &TensorMeta) -> bool {
        let here = Device::ALL
            .into_iter()
            .any(|(name, device)| device == self.device && meta.device.kind == name);
        here && is_float(meta.dtype) && meta.dtype != ScalarType::Float64
    }
}

/// Converts the arguments of a call as the region wants it.
pub(super) fn apply(cast: Cast, node: &mut Node, editor: &mut Editor<'_>) -> Result<(), Error> {
    let Target::Operator { namespace, name, .. } = &node.target else { return Ok(()) };
    if namespace != "aten" {
        return Ok(());
    }
    let dtype = match cast.policy(name) {
        None => return Ok(()),
        Some(Policy::Lower) => cast.dtype,
        Some(Policy::Full) => ScalarType::Float32,
        Some(Policy::Widest) => {
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

/// Converts the tensors of an argument that `which` picks.
pub(super) fn convert(
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
