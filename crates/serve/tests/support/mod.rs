//! A server of a small model, and a client.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use coremill_graph::Device;
use coremill_llm::{BuildOptions, Bundle, Generator};
use coremill_serve::{Model, Server, ServerOptions, Stopper};
use serde_json::Value;

pub(crate) const CONTEXT: usize = 32;

pub(crate) fn tiny() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../cli/tests/files/tiny")
}

pub(crate) fn generator(bundle: &Bundle) -> Generator {
    let options = BuildOptions::default().context(CONTEXT).prefill(4);
    bundle.generator(Device::Host, 1, &options).expect("compiles")
}

/// A server that runs until it is dropped.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) stopper: Stopper,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    pub(crate) fn start(change: impl FnOnce(&mut ServerOptions)) -> Running {
        let bundle = Bundle::open(tiny()).expect("opens");
        let tokenizer = bundle.tokenizer().expect("a tokenizer");
        let mut model = Model::new("tiny", tokenizer, generator(&bundle));
        model.template = bundle.chat_template().expect("sound");
        model.settings = bundle.generation_settings().expect("sound");
        Running::of_model(model, change)
    }

    pub(crate) fn of_model(model: Model, change: impl FnOnce(&mut ServerOptions)) -> Running {
        let mut options = ServerOptions::default();
        change(&mut options);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let server = Server::bind(address, model, options).expect("bound");
        let (address, stopper) = (server.address(), server.stopper());
        let thread = Some(std::thread::spawn(move || server.run()));
        Running { address, stopper, thread }
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("a connection");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("set");
        stream
    }

    /// Sends bytes, and reads the response until its end.
    pub(crate) fn send(&self, request: &str) -> Reply {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes()).expect("sent");
        read(&mut BufReader::new(stream))
    }

    pub(crate) fn post(&self, path: &str, body: &str) -> Reply {
        self.send(&post(path, body))
    }

    /// Stops the server, and waits until its threads have ended.
    pub(crate) fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the server does not panic");
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

pub(crate) fn post(path: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The data of events.
    pub(crate) fn events(&self) -> Vec<Value> {
        assert_eq!(self.header("content-type"), Some("text/event-stream"));
        let mut events: Vec<&str> = self.body.split("\n\n").collect();
        assert_eq!(events.pop(), Some(""));
        assert_eq!(events.pop(), Some("data: [DONE]"));
        let parse = |event: &str| {
            let data = event.strip_prefix("data: ").expect("data");
            serde_json::from_str(data).expect("JSON")
        };
        events.into_iter().map(parse).collect()
    }
}

/// Reads a response.
pub(crate) fn read(stream: &mut impl BufRead) -> Reply {
    let mut line = || {
        let mut line = String::new();
        stream.read_line(&mut line).expect("a line");
        line.trim_end().to_owned()
    };
    let status = line();
    let number = status.split(' ').nth(1).and_then(|status| status.parse().ok());
    let status = number.unwrap_or_else(|| panic!("no status: {status:?}"));
    let mut headers = Vec::new();
    loop {
        let line = line();
        let Some((name, value)) = line.split_once(": ") else { break };
        headers.push((name.to_ascii_lowercase(), value.to_owned()));
    }
    let mut reply = Reply { status, headers, body: String::new() };
    let mut bytes = Vec::new();
    if status == 100 {
        // The response follows.
    } else if let Some(length) = reply.header("content-length") {
        bytes.resize(length.parse().expect("a number"), 0);
        stream.read_exact(&mut bytes).expect("a body");
    } else if reply.header("transfer-encoding") == Some("chunked") {
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).expect("a size");
            let size = usize::from_str_radix(line.trim_end(), 16).expect("a size");
            let start = bytes.len();
            bytes.resize(start + size + 2, 0);
            stream.read_exact(&mut bytes[start..]).expect("a chunk");
            bytes.truncate(start + size);
            if size == 0 {
                break;
            }
        }
    } else {
        stream.read_to_end(&mut bytes).expect("a body");
    }
    reply.body = String::from_utf8(bytes).expect("text");
    reply
}
