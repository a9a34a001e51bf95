//! The command `serve`: it answers like `generate`, and ends by a signal.
#![cfg(unix)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_coremill"));
    command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files"));
    command
}

/// Ends the server if a test fails.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn servers_answer_like_generate_and_end_by_a_signal() {
    let generated = command()
        .args(["generate", "tiny", "-p", "cab", "--max-tokens", "9", "--json"])
        .output()
        .expect("the command runs");
    let expected: Value = serde_json::from_slice(&generated.stdout).expect("JSON");

    let mut serve = command();
    serve.args(["serve", "tiny", "--port", "0"]).stderr(Stdio::piped());
    let mut server = Server(serve.spawn().expect("the command starts"));
    let mut errors = BufReader::new(server.0.stderr.take().expect("a pipe"));
    let mut line = String::new();
    errors.read_line(&mut line).expect("a line");
    let address = line.trim_end().strip_prefix("listening on http://").expect("an address");

    let mut stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("set");
    let body = json!({ "prompt": "cab", "max_tokens": 9 }).to_string();
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).expect("sent");
    let mut reply = String::new();
    stream.read_to_string(&mut reply).expect("a response");
    let (head, body) = reply.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    let body: Value = serde_json::from_str(body).expect("JSON");
    assert_eq!(body["choices"][0]["text"], expected["text"]);
    assert_eq!(body["model"], "tiny");

    // A connection that waits does not keep the server.
    let _idle = TcpStream::connect(address).expect("a connection");
    let id = server.0.id().to_string();
    let killed = Command::new("kill").args(["-s", "INT", &id]).status().expect("a signal");
    assert!(killed.success());
    let status = server.0.wait().expect("a child");
    assert!(status.success(), "{status}");
    let mut rest = String::new();
    errors.read_to_string(&mut rest).expect("text");
    assert_eq!(rest, "");
}
