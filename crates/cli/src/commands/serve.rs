use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use coremill::llm::{Embedder, EmbeddingOptions, Length, ModelKind};
use coremill_serve::{Model, Server, ServerOptions};

use super::generate::{GeneratorArgs, open_bundle};
use crate::output::{self, Failure};
use crate::progress::Progress;

/// Serve a language model with OpenAI's interface
///
/// The server listens on the loopback address only. It answers `/v1/chat/completions`, `/v1/completions` and `/v1/models`, also as
/// streams, one request at a time, and reuses the cache of the text that a request shares with the previous one.
/// With an embedding model it answers `/v1/embeddings`. Ctrl-C stops the server.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  coremill serve smollm2\n  coremill serve SmolLM2-135M-Instruct.Q4_1.gguf --port 9000\n  coremill serve all-MiniLM-L6-v2\n  curl http://127.0.0.1:8080/v1/chat/completions -H 'content-type: application/json' \\\n      -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello!\"}]}'"
)]
pub(crate) struct Args {
    /// A directory or a package that `coremill llm` wrote, a `.gguf`, or a folder with `config.json` and safetensors
    #[arg(value_name = "MODEL")]
    model: PathBuf,
    /// The port; 0 selects a free one
    #[arg(long, value_name = "N", default_value_t = 8080)]
    port: u16,
    /// Maximum number of requests that wait for the model; more are rejected
    #[arg(long, value_name = "N", default_value_t = 32)]
    queue: usize,
    /// The model's name in responses [default: the name of its file or directory]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    #[command(flatten)]
    generator: GeneratorArgs,
}

/// The name of a file or directory, without its ending.
fn name_of(path: &Path) -> String {
    let whole = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let name = if whole.is_dir() { whole.file_name() } else { whole.file_stem() };
    name.map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// The model, which generates text or computes embeddings.
fn load(args: &Args) -> Result<Model, Failure> {
    let failure = |error: coremill::llm::Error| super::failure(&error);
    let name = args.name.clone().unwrap_or_else(|| name_of(&args.model));
    if ModelKind::of(&args.model) == ModelKind::Embedding {
        let GeneratorArgs { context, device, threads } = args.generator;
        let mut options = EmbeddingOptions::default();
        options.length = context.map(Length::UpTo);
        let opened = Embedder::open(&args.model, device.into(), threads, &options);
        let mut embedder = opened.map_err(failure)?;
        embedder.prepare().map_err(failure)?;
        return Ok(Model::embedding(name, embedder));
    }
    let bundle = open_bundle(&args.model)?;
    let tokenizer = bundle.tokenizer().map_err(failure)?;
    let generator = args.generator.load(&bundle)?;
    let mut model = Model::new(name, tokenizer, generator);
    model.template = bundle.chat_template().map_err(failure)?;
    model.settings = bundle.generation_settings().map_err(failure)?;
    Ok(model)
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let progress = Progress::start(format!("loading {}", args.model.display()));
    let model = load(args)?;
    let mut options = ServerOptions::default();
    options.queue = args.queue;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, args.port));
    let server = Server::bind(address, model, options).map_err(|error| {
        let failure = Failure::user(format_args!("cannot listen on {address}: {error}"));
        failure.hint(Some("choose another port with `--port`"))
    })?;
    let stopper = server.stopper();
    coremill_io::on_signal(move || stopper.stop());
    drop(progress);
    output::tell(&format!("listening on http://{}\n", server.address()));
    server.run();
    Ok(())
}
