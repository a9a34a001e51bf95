use coremill_io::{model_error, opaque_error};

pub use coremill_io::ErrorKind;

opaque_error! {
    /// An error of editing a model.
    pub struct Error(pub(crate) ErrorKind);
}

model_error!(pub(crate) Error);
