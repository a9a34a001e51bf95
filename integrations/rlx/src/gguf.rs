//! The GGUF schemes of weights.

use coremill_graph::{DType, Error, Param, Scheme};
use rlx_gguf::{fv5_dequant, g8_dequant, iq_dequant, mx_dequant, ptq1_dequant};
use rlx_ir::quant::QuantScheme;

use crate::error::failure;

/// Storage of a weight.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StoredWeight {
    /// In blocks that `coremill-graph` supports. They stay compressed if Core ML represents them exactly.
    Blocks(Scheme),
    /// In blocks that are decoded to `fp32` when they are set.
    Decoded(QuantScheme, Decoder),
}

/// A decoder of `rlx-gguf`: decodes this number of weights from bytes.
type Decoder = fn(&[u8], usize) -> Result<Vec<f32>, String>;

/// Wraps a decoder of `rlx-gguf` and converts its error to a string.
macro_rules! decoder {
    ($function:path) => {
        |bytes, count| $function(bytes, count).map_err(|error| error.to_string())
    };
}

impl StoredWeight {
    /// The storage of weights in a scheme; `None` for schemes other than GGUF.
    pub(crate) fn of(scheme: QuantScheme) -> Option<StoredWeight> {
        let decoder: Decoder = match scheme {
            QuantScheme::GgufIQ2XXS => decoder!(iq_dequant::dequant_iq2_xxs),
            QuantScheme::GgufIQ2XS => decoder!(iq_dequant::dequant_iq2_xs),
            QuantScheme::GgufIQ2S => decoder!(iq_dequant::dequant_iq2_s),
            QuantScheme::GgufIQ3XXS => decoder!(iq_dequant::dequant_iq3_xxs),
            QuantScheme::GgufIQ3S => decoder!(iq_dequant::dequant_iq3_s),
            QuantScheme::GgufIQ1S => decoder!(iq_dequant::dequant_iq1_s),
            QuantScheme::GgufIQ1M => decoder!(iq_dequant::dequant_iq1_m),
            QuantScheme::GgufNVFP4 => decoder!(mx_dequant::dequant_nvfp4),
            QuantScheme::GgufFV5 => decoder!(fv5_dequant::dequant_fv5),
            QuantScheme::GgufFV5B => decoder!(fv5_dequant::dequant_fv5b),
            QuantScheme::GgufG8_0 => decoder!(g8_dequant::dequant_g8_0),
            QuantScheme::GgufPtq1_0 => decoder!(ptq1_dequant::dequant_ptq1_0),
            _ => return known(scheme).map(StoredWeight::Blocks),
        };
        Some(StoredWeight::Decoded(scheme, decoder))
    }

    /// Returns a parameter with a shape, from the bytes of a stored parameter.
    pub(crate) fn param(self, shape: &[u64], stored: &Param) -> Result<Param, Error> {
        let bytes = stored.bytes();
        let (scheme, decoder) = match self {
            StoredWeight::Blocks(scheme) => return Param::blocks(scheme, shape, bytes.clone()),
            StoredWeight::Decoded(scheme, decoder) => (scheme, decoder),
        };
        let count: u64 = shape.iter().product();
        let floats = bytes.with_window(0..bytes.len(), |bytes| decoder(bytes, count as usize));
        let floats = floats.map_err(|error| failure(error.to_string()))?.map_err(|reason| {
            let length = bytes.len();
            failure(format!(
                "{length} bytes are not a valid `{scheme}` tensor of shape {shape:?}: {reason}"
            ))
        })?;
        Param::floats(shape, &floats)
    }

    /// Decodes the bytes of a constant to floats.
    pub(crate) fn floats(self, shape: &[u64], bytes: &[u8]) -> Result<Vec<f32>, Error> {
        let stored = Param::elements(DType::UInt8, [bytes.len() as u64], bytes.to_vec())?;
        self.param(shape, &stored)?.to_floats()
    }
}

fn known(scheme: QuantScheme) -> Option<Scheme> {
    Some(match scheme {
        QuantScheme::GgufBF16 => Scheme::Bf16,
        QuantScheme::GgufQ1_0 => Scheme::Q1_0,
        QuantScheme::GgufQ2_0 => Scheme::Q2_0,
        QuantScheme::GgufQ2K => Scheme::Q2_K,
        QuantScheme::GgufQ3K => Scheme::Q3_K,
        QuantScheme::GgufQ4K => Scheme::Q4_K,
        QuantScheme::GgufQ5K => Scheme::Q5_K,
        QuantScheme::GgufQ6K => Scheme::Q6_K,
        QuantScheme::GgufQ8K => Scheme::Q8_K,
        QuantScheme::GgufQ4_0 => Scheme::Q4_0,
        QuantScheme::GgufQ4_1 => Scheme::Q4_1,
        QuantScheme::GgufQ5_0 => Scheme::Q5_0,
        QuantScheme::GgufQ5_1 => Scheme::Q5_1,
        QuantScheme::GgufQ8_0 => Scheme::Q8_0,
        QuantScheme::GgufIQ4NL => Scheme::Iq4Nl,
        QuantScheme::GgufIQ4XS => Scheme::Iq4Xs,
        QuantScheme::GgufTQ1_0 => Scheme::Tq1_0,
        QuantScheme::GgufTQ2_0 => Scheme::Tq2_0,
        QuantScheme::GgufMXFP4 => Scheme::Mxfp4,
        _ => return None,
    })
}
