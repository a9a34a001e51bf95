//! Bodies of OpenAI's interface: requests for chat and completions, and their responses.

mod fields;
mod request;
mod response;

pub use request::{Prompt, Request};
pub use response::{ApiError, Reply, Usage, model_list, model_object};
