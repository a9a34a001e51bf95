use coremill_tensor::Buffer;
use serde::{Deserialize, Serialize};

use super::to_json;
use crate::error::Error;

/// Payload of a delegate with a shared model: a reference to named data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Key of the named data.
    pub key: String,
    /// Function of the model.
    pub function: String,
}

/// Signature of a reference.
const MAGIC: &[u8; 4] = b"CMJR";

/// The only format version.
const VERSION: u64 = 1;

/// Size limit, far above any valid reference.
const MAX_BYTES: usize = 1 << 20;

#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    version: u64,
    key: String,
    function_name: String,
}

impl Reference {
    /// Parses a reference; `None` if the data is not a reference.
    pub fn read(data: &Buffer) -> Result<Option<Reference>, Error> {
        let mut magic = [0; 4];
        if data.read_at(0, &mut magic).is_err() || magic != *MAGIC {
            return Ok(None);
        }
        let within = |error: Error| error.within("a reference to named data");
        if data.len() > MAX_BYTES {
            let message =
                format!("the reference has {} bytes; the maximum is {MAX_BYTES}", data.len());
            return Err(within(Error::limit(message)));
        }
        let json = data.slice(MAGIC.len()..data.len()).unwrap_or_else(|| Buffer::from(Vec::new()));
        let document: Document = super::from_json(&json).map_err(within)?;
        if document.version != VERSION {
            let message =
                format!("version {} is not supported; expected {VERSION}", document.version);
            return Err(within(Error::unsupported(message)));
        }
        Ok(Some(Reference { key: document.key, function: document.function_name }))
    }

    /// Serializes the reference.
    pub fn to_bytes(&self) -> Vec<u8> {
        let Reference { key, function } = self.clone();
        let mut bytes = MAGIC.to_vec();
        bytes.extend(to_json(&Document { version: VERSION, key, function_name: function }));
        bytes
    }
}
