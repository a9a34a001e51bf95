use crate::value::Value;

pub use coremill_tensor::Span;

/// Who is shown the operation, the name and the value of everything that is computed.
pub type Observer<'h> = &'h mut dyn FnMut(&str, &str, &Value);

/// What looks on while a program runs.
#[derive(Default)]
pub struct Hooks<'h> {
    /// Called with the operation, the name and the value of everything that is computed, in order. The
    /// program runs operation by operation then, so that every value comes about as the program has it.
    pub observe: Option<Observer<'h>>,
    /// Collects how long each step takes.
    pub profile: Option<&'h mut Vec<Span>>,
}
