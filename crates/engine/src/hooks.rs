use crate::value::Value;

pub use coremill_tensor::Span;

/// Callback that takes the operation's type, the value's name and the value.
pub type Observer<'h> = &'h mut dyn FnMut(&str, &str, &Value);

/// Observation of a run.
#[derive(Default)]
pub struct Hooks<'h> {
    /// Called for every computed value, in order. Operations are then not fused, so that every
    /// value of the program exists.
    pub observe: Option<Observer<'h>>,
    /// Receives the duration of each step.
    pub profile: Option<&'h mut Vec<Span>>,
    /// Called after each step, for instance to release the pages of weights that are not needed again.
    pub after_step: Option<&'h mut dyn FnMut()>,
}
