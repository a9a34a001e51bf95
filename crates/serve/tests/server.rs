//! A server of a small model: generated texts, errors, and clients that misbehave.

use std::io::{BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use coremill_llm::{Bundle, GenerateOptions, Message};
use coremill_serve::{Model, Server, ServerOptions};
use serde_json::{Value, json};

mod support;

use support::{Running, generator, post, read, tiny};

const COMPLETIONS: &str = "/v1/completions";
const CHAT: &str = "/v1/chat/completions";

/// The text that the model generates without a server.
fn expected(prompt: &str, is_chat: bool, max_tokens: usize) -> String {
    let bundle = Bundle::open(tiny()).expect("opens");
    let tokenizer = bundle.tokenizer().expect("a tokenizer");
    let ids = if is_chat {
        let template = bundle.chat_template().expect("sound").expect("a template");
        let text = template.render(&[Message::new("user", prompt)], true).expect("sound");
        tokenizer.encode(&text, false)
    } else {
        tokenizer.encode(prompt, true)
    };
    let mut options = GenerateOptions::default();
    options.max_tokens = max_tokens;
    options.end_tokens = bundle.generation_settings().expect("sound").eos;
    let ids = ids.expect("short");
    let generated = generator(&bundle).generate(&tokenizer, &ids, &options, &mut |_| true);
    generated.expect("runs").text
}

#[test]
fn streamed_and_whole_replies_match_generator() {
    let server = Running::start(|_| {});
    for prompt in ["ab", "cab.", "a b c"] {
        let body = json!({ "prompt": prompt, "max_tokens": 12, "temperature": 0 });
        let whole = server.post(COMPLETIONS, &body.to_string());
        assert_eq!(whole.status, 200, "{whole:?}");
        let whole = whole.json();
        assert_eq!(whole["choices"][0]["text"], expected(prompt, false, 12));
        assert_eq!(whole["object"], "text_completion");
        let usage = &whole["usage"];
        let sum = usage["prompt_tokens"].as_u64().zip(usage["completion_tokens"].as_u64());
        assert_eq!(sum.map(|(a, b)| a + b), usage["total_tokens"].as_u64());

        let mut body = body.clone();
        body["stream"] = json!(true);
        body["stream_options"] = json!({ "include_usage": true });
        let events = server.post(COMPLETIONS, &body.to_string()).events();
        let (usage_part, parts) = events.split_last().expect("events");
        let text: String =
            parts.iter().filter_map(|part| part["choices"][0]["text"].as_str()).collect();
        assert_eq!(whole["choices"][0]["text"], text);
        let reason = &parts.last().expect("parts")["choices"][0]["finish_reason"];
        assert_eq!(*reason, whole["choices"][0]["finish_reason"]);
        assert_eq!(usage_part["usage"]["completion_tokens"], usage["completion_tokens"]);
        assert_eq!(usage_part["choices"], json!([]));

        let chat = json!({ "messages": [{ "role": "user", "content": prompt }], "max_tokens": 9 });
        let whole = server.post(CHAT, &chat.to_string()).json();
        let message = &whole["choices"][0]["message"];
        assert_eq!(message["content"], expected(prompt, true, 9));
        let mut chat = chat.clone();
        chat["stream"] = json!(true);
        let events = server.post(CHAT, &chat.to_string()).events();
        assert_eq!(events[0]["choices"][0]["delta"]["role"], "assistant");
        let deltas = events.iter().map(|event| &event["choices"][0]["delta"]["content"]);
        let text: String = deltas.filter_map(Value::as_str).collect();
        assert_eq!(message["content"], text);
        assert_eq!(events[0]["object"], "chat.completion.chunk");
    }
}

#[test]
fn stop_sequence_ends_generation() {
    let server = Running::start(|_| {});
    let full = expected("ab", false, 12);
    let (start, character) = full.char_indices().nth(3).expect("a text of four characters");
    let stop = character.to_string();
    let end = full.find(&stop).unwrap_or(start);
    let body = json!({ "prompt": "ab", "max_tokens": 12, "stop": stop });
    let reply = server.post(COMPLETIONS, &body.to_string()).json();
    assert_eq!(reply["choices"][0]["text"], full[..end]);
    assert_eq!(reply["choices"][0]["finish_reason"], "stop");
}

#[test]
fn reuses_common_prefix_and_reports_cached_tokens() {
    let server = Running::start(|_| {});
    let body = json!({ "prompt": [3, 5, 4, 9, 7], "max_tokens": 3 }).to_string();
    let replies = [(); 2].map(|()| server.post(COMPLETIONS, &body).json());
    assert_eq!(replies[0]["choices"], replies[1]["choices"]);
    let cached = replies.map(|reply| reply["usage"]["prompt_tokens_details"].clone());
    assert_eq!(cached, [json!({ "cached_tokens": 0 }), json!({ "cached_tokens": 4 })]);
}

#[test]
fn sampling_is_reproducible_by_seed() {
    let server = Running::start(|_| {});
    let sample = |seed: u64| {
        let body = json!({ "prompt": "ab", "max_tokens": 16, "temperature": 2, "seed": seed });
        server.post(COMPLETIONS, &body.to_string()).json()["choices"][0]["text"].clone()
    };
    assert_eq!(sample(1), sample(1));
    assert!((2..8).any(|seed| sample(seed) != sample(1)));
}

#[test]
fn errors_are_json() {
    let server = Running::start(|_| {});
    let cases = [
        (post(COMPLETIONS, "{"), 400, "not a valid request"),
        (post(COMPLETIONS, r#"{"prompt": "a", "temperature": "x"}"#), 400, "`temperature`"),
        (post(COMPLETIONS, r#"{"prompt": [99]}"#), 400, "token 99"),
        (post(COMPLETIONS, &format!(r#"{{"prompt": "{}"}}"#, "ab ".repeat(40))), 400, "context"),
        (post(CHAT, r#"{"messages": []}"#), 400, "`messages`"),
        (post("/v2", "{}"), 404, "no resource `/v2`"),
        (post("/v1/models", "{}"), 405, "requires the method GET"),
        (post(CHAT, "{}").replace("application/json", "text/plain"), 415, "content-type"),
        (post(CHAT, "{}").replace("localhost", "evil.example"), 403, "the host must be"),
        (post(CHAT, "{}").replace("Length: 2", "Length: 9999999"), 413, "2097152 bytes"),
        ("GET /v1/models/other HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned(), 404, "`other`"),
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), 400, "host"),
        ("\u{16}\u{3}\u{1}".to_owned(), 400, "not valid HTTP"),
    ];
    for (request, status, part) in cases {
        let reply = server.send(&request);
        assert_eq!(reply.status, status, "{reply:?}");
        let error = reply.json()["error"].clone();
        assert!(error["message"].as_str().is_some_and(|message| message.contains(part)), "{error}");
        assert_eq!(error["type"], "invalid_request_error");
    }
    let models = server.send("GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n").json();
    assert_eq!(models["data"][0]["id"], "tiny");
}

#[test]
fn keep_alive_serves_pipelined_requests() {
    let server = Running::start(|_| {});
    let mut stream = server.connect();
    let body = json!({ "prompt": "ab", "max_tokens": 2, "stream": true }).to_string();
    let requests = [
        post(COMPLETIONS, &body),
        post(COMPLETIONS, &body).replace("HTTP/1.1\r\n", "HTTP/1.1\r\nExpect: 100-continue\r\n"),
        "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".to_owned(),
    ];
    stream.write_all(requests.concat().as_bytes()).expect("sent");
    let mut stream = BufReader::new(stream);
    let first = read(&mut stream);
    assert_eq!(read(&mut stream).status, 100);
    assert_eq!(read(&mut stream).events()[0]["choices"], first.events()[0]["choices"]);
    let last = read(&mut stream);
    assert_eq!((last.status, last.header("connection")), (200, Some("close")));
    assert_eq!(stream.read(&mut [0; 8]).expect("the end of the stream"), 0);

    // HTTP/1.0 has no chunked encoding, so the end of the connection ends the body.
    let old = post(COMPLETIONS, &body).replace("HTTP/1.1", "HTTP/1.0");
    let reply = server.send(&old);
    assert_eq!(reply.header("transfer-encoding"), None);
    assert_eq!(reply.events()[0]["choices"], first.events()[0]["choices"]);
}

#[test]
fn overload_returns_429_or_503_with_retry_after() {
    let server = Running::start(|options| options.queue = 0);
    let reply = server.post(COMPLETIONS, r#"{"prompt": "ab"}"#);
    assert_eq!((reply.status, reply.header("retry-after")), (429, Some("1")));
    assert_eq!(reply.json()["error"]["type"], "rate_limit_error");
    let server = Running::start(|options| options.connections = 1);
    // Connections are accepted in the order in which they are made.
    let first = server.connect();
    let second = server.connect();
    let reply = read(&mut BufReader::new(second));
    assert_eq!((reply.status, reply.header("retry-after")), (503, Some("1")));
    drop(first);
}

#[test]
fn slow_clients_do_not_delay_others() {
    let time = Duration::from_millis(400);
    let server = Running::start(|options| {
        options.idle_time = time;
        options.head_time = time;
        options.body_time = time;
        options.write_time = time;
    });
    // Clients that send nothing, half of the headers, half of the body, or read nothing.
    let mut silent = server.connect();
    let mut half_head = server.connect();
    half_head.write_all(b"GET /health HT").expect("sent");
    let mut half_body = server.connect();
    half_body.write_all(post(COMPLETIONS, "{}").trim_end_matches('}').as_bytes()).expect("sent");
    let mut non_reading = server.connect();
    let writer = std::thread::spawn(move || {
        // The responses repeat the long path, so they soon fill the socket buffers.
        let request =
            format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "a".repeat(15_000)).repeat(20);
        non_reading.set_write_timeout(Some(Duration::from_secs(20))).expect("set");
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(20) {
            if non_reading.write_all(request.as_bytes()).is_err() {
                return;
            }
        }
        panic!("the server still reads requests of a client that reads no responses");
    });
    let start = Instant::now();
    let reply = server.post(COMPLETIONS, r#"{"prompt": "ab", "max_tokens": 2}"#);
    assert_eq!(reply.status, 200);
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    let mut bytes = Vec::new();
    assert_eq!(silent.read_to_end(&mut bytes).expect("the end of the stream"), 0);
    for slow in [&mut half_head, &mut half_body] {
        assert_eq!(read(&mut BufReader::new(slow)).status, 408);
    }
    writer.join().expect("the server ended the connection");
}

#[test]
fn servers_stop_while_clients_wait() {
    let server = Running::start(|_| {});
    let idle: Vec<_> = (0..4).map(|_| server.connect()).collect();
    let mut busy: Vec<_> = (0..8).map(|_| server.connect()).collect();
    let body = json!({ "prompt": "ab", "max_tokens": 16, "stream": true }).to_string();
    for stream in &mut busy {
        stream.write_all(post(COMPLETIONS, &body).as_bytes()).expect("sent");
    }
    let start = Instant::now();
    server.stop();
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    for stream in idle {
        assert!(read_until_closed(stream).is_empty());
    }
    for stream in busy {
        let reply = read_until_closed(stream);
        assert!(reply.is_empty() || reply.starts_with(b"HTTP/1.1 "), "{}", reply.escape_ascii());
    }
}

/// The bytes that a server sends before it closes the connection; a timeout is a failure.
fn read_until_closed(mut stream: TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        Err(error) => panic!("the connection stays open: {error}"),
    }
    bytes
}

#[test]
fn rejects_non_loopback_addresses() {
    let bundle = Bundle::open(tiny()).expect("opens");
    let model = Model::new("tiny", bundle.tokenizer().expect("sound"), generator(&bundle));
    let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let error = Server::bind(address, model, ServerOptions::default()).err().expect("refused");
    assert_eq!(error.to_string(), "0.0.0.0 is not a loopback address");
}
