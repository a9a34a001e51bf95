//! The size of model files.

use prost::Message as _;

use crate::{CoremlError, Result, proto};

pub const PROTO_MAX_BYTES: usize = coremill_rlx::MAX_MODEL_BYTES as usize;

pub fn check_model_size(model: &proto::Model, limit: usize) -> Result<()> {
    let bytes = model.encoded_len();
    coremill_rlx::check_model_size(bytes as u64, limit as u64)
        .map_err(|error| CoremlError::TooLarge { what: error.to_string(), bytes, limit })
}
