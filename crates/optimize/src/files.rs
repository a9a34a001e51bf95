//! Rule files.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::error::Error;

/// Maximum size. Rules for every weight of a large model need less.
const MAX_RULES_BYTES: u64 = 4 << 20;

/// Reads a rule file.
pub(crate) fn read_rules(path: &Path) -> Result<String, Error> {
    let mut text = String::new();
    let read =
        File::open(path).and_then(|file| file.take(MAX_RULES_BYTES + 1).read_to_string(&mut text));
    read.map_err(|error| Error::io("read", path, error))?;
    if text.len() as u64 > MAX_RULES_BYTES {
        let message = format!("it exceeds the maximum of {MAX_RULES_BYTES} bytes for rules");
        return Err(Error::new(message).within(path));
    }
    Ok(text)
}
