//! Bodies of OpenAI's interface: requests for chat, completions and embeddings, and their responses.

mod embeddings;
mod fields;
mod request;
mod response;

pub use embeddings::{Embeddings, EmbeddingsRequest, Encoding, Input};
pub use request::{Prompt, Request};
pub use response::{ApiError, Reply, Usage, model_list, model_object};
