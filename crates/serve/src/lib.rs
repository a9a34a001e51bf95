//! HTTP server for a language model with OpenAI's interface: `/v1/chat/completions`, `/v1/completions` and `/v1/models`, or
//! for an embedding model, which has `/v1/embeddings`.
//!
//! ```no_run
//! use std::net::{Ipv4Addr, SocketAddr};
//!
//! use coremill_graph::Device;
//! use coremill_llm::{BuildOptions, Bundle};
//! use coremill_serve::{Model, Server, ServerOptions};
//!
//! let bundle = Bundle::open("smollm2")?;
//! let generator = bundle.generator(Device::Host, 0, &BuildOptions::default())?;
//! let mut model = Model::new("smollm2", bundle.tokenizer()?, generator);
//! model.template = bundle.chat_template()?;
//! let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 8080));
//! Server::bind(address, model, ServerOptions::default())?.run();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! One thread runs the model, and each connection has a thread. A connection reads a request, puts it into a bounded queue, and
//! writes the generated text as it comes, or the embeddings. The model never waits for a client.
//!
//! | module | holds |
//! |---|---|
//! | [`http`] | requests out of bytes, responses to bytes |
//! | [`api`] | bodies of requests and responses |
//! | `queue` | waiting requests, and the thread that runs the model |
//! | `stream` | sockets with deadlines |
//! | `service` | state that connections share, and the events of a job |
//! | `connection`, `embeddings` | the requests of a client |
//! | `server` | [`Server`]: accepts connections, and ends them |

pub mod api;
mod connection;
mod embeddings;
pub mod http;
mod queue;
mod server;
mod service;
mod stream;

pub use queue::{Model, Runner};
pub use server::{Server, ServerOptions, Stopper};
