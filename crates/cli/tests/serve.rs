//! Tests that `serve` answers like `generate` and `embed`, and exits on a signal.
#![cfg(unix)]

#[path = "support/scratch.rs"]
mod scratch;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use scratch::Scratch;

fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_coremill"));
    command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files"));
    command
}

/// The JSON that a command prints.
fn printed(arguments: &[&str]) -> Value {
    let output = command().args(arguments).output().expect("the command runs");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// A server process. It is killed when the value is dropped, also if a test fails.
struct Server {
    child: Child,
    errors: BufReader<ChildStderr>,
    address: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    fn start(model: &str) -> Server {
        let mut serve = command();
        serve.args(["serve", model, "--port", "0"]).stderr(Stdio::piped());
        let mut child = serve.spawn().expect("the command starts");
        let mut errors = BufReader::new(child.stderr.take().expect("a pipe"));
        let mut line = String::new();
        errors.read_line(&mut line).expect("a line");
        let address = line.trim_end().strip_prefix("listening on http://");
        let address = address.unwrap_or_else(|| panic!("{line}")).to_owned();
        Server { child, errors, address }
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        let address = &self.address;
        let mut stream = TcpStream::connect(address).expect("a connection");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
        let body = body.to_string();
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).expect("sent");
        let mut reply = String::new();
        stream.read_to_string(&mut reply).expect("a response");
        let (head, body) = reply.split_once("\r\n\r\n").expect("a head");
        assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
        serde_json::from_str(body).expect("JSON")
    }
}

#[test]
fn server_matches_generate_and_stops_on_sigterm() {
    let expected = printed(&["generate", "tiny", "-p", "cab", "--max-tokens", "9", "--json"]);
    let mut server = Server::start("tiny");
    let body = server.post("/v1/completions", &json!({ "prompt": "cab", "max_tokens": 9 }));
    assert_eq!(body["choices"][0]["text"], expected["text"]);
    assert_eq!(body["model"], "tiny");

    // An idle connection must not keep the server from exiting.
    let _idle = TcpStream::connect(&server.address).expect("a connection");
    let id = server.child.id().to_string();
    // Send SIGTERM, because SIGINT is ignored if the tests run as a background job of a shell.
    let killed = Command::new("kill").args(["-s", "TERM", &id]).status().expect("a signal");
    assert!(killed.success());
    let status = server.child.wait().expect("a child");
    assert!(status.success(), "{status}");
    let mut rest = String::new();
    server.errors.read_to_string(&mut rest).expect("text");
    assert_eq!(rest, "");
}

#[test]
fn serves_embedding_models_from_folder_or_package() {
    let scratch = Scratch::new();
    let written = scratch.path().join("minibert");
    let written = written.to_str().expect("a text");
    let converted = command().args(["llm", "tinybert", "-o", written]).output().expect("runs");
    assert!(converted.status.success(), "{converted:?}");
    for (model, name) in [("tinybert", "tinybert"), (written, "minibert")] {
        let expected = printed(&["embed", model, "-p", "cats", "-p", "a dog", "--json"]);
        let server = Server::start(model);
        let body = server.post("/v1/embeddings", &json!({ "input": ["cats", "a dog"] }));
        assert_eq!(body["model"], name);
        for index in 0..2 {
            let embedding = &body["data"][index]["embedding"];
            assert_eq!(*embedding, expected["embeddings"][index]["values"]);
        }
    }
    for command_name in ["generate", "score"] {
        for model in ["tinybert", written] {
            let mut run = command();
            match command_name {
                "score" => run.args(["score", model, "--text", "tiny/text.txt"]),
                _ => run.args(["generate", model, "-p", "a"]),
            };
            let output = run.output().expect("the command runs");
            assert_eq!(output.status.code(), Some(1));
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(errors.contains("embedding model"), "{errors}");
            let hint = "hint: compute the embeddings of texts with it: `coremill embed";
            assert!(errors.contains(hint), "{errors}");
        }
    }
}
