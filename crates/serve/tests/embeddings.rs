//! A server of a small embedding model.

use std::path::Path;
use std::time::Duration;

use coremill_graph::Device;
use coremill_llm::{Embedder, EmbeddingOptions};
use coremill_serve::Model;
use serde_json::{Value, json};

#[expect(dead_code, reason = "embeddings are not streamed, so `Reply::events` is unused")]
mod support;

use support::{Running, post};

const EMBEDDINGS: &str = "/v1/embeddings";

fn embedder() -> Embedder {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cli/tests/files/tinybert");
    Embedder::open(path, Device::Host, 1, &EmbeddingOptions::default()).expect("compiles")
}

fn start() -> Running {
    Running::of_model(Model::embedding("tinybert", embedder()), |_| {})
}

fn numbers(value: &Value) -> Vec<f32> {
    let numbers = value.as_array().expect("an array").iter();
    numbers.map(|number| number.as_f64().expect("a number") as f32).collect()
}

/// Decodes base64.
fn decode_base64(text: &str) -> Vec<u8> {
    let digits = ('A'..='Z').chain('a'..='z').chain('0'..='9').chain(['+', '/']);
    let digits: Vec<char> = digits.collect();
    let index = |digit: char| digits.iter().position(|known| *known == digit);
    let bits = text
        .trim_end_matches('=')
        .chars()
        .map(|digit| index(digit).expect("a base64 digit"))
        .flat_map(|index| (0..6).rev().map(move |bit| index >> bit & 1));
    let bits: Vec<usize> = bits.collect();
    bits.chunks_exact(8)
        .map(|bits| bits.iter().fold(0, |byte, bit| byte << 1 | *bit as u8))
        .collect()
}

#[test]
fn served_embeddings_match_embedder() {
    let server = start();
    let mut model = embedder();
    let texts = ["cats", "a cat sat", "dogs"];
    let ids: Vec<_> = texts.iter().map(|text| model.encode(text).expect("short")).collect();
    let expected: Vec<_> = ids.iter().map(|ids| model.embed(ids).expect("runs")).collect();
    assert!(expected[0] != expected[1] && expected[1] != expected[2]);
    let tokens: usize = ids.iter().map(Vec::len).sum();

    let reply = server.post(EMBEDDINGS, &json!({ "input": texts, "model": "any" }).to_string());
    assert_eq!(reply.status, 200, "{reply:?}");
    let reply = reply.json();
    assert_eq!((&reply["object"], &reply["model"]), (&json!("list"), &json!("tinybert")));
    assert_eq!(reply["usage"], json!({ "prompt_tokens": tokens, "total_tokens": tokens }));
    let rows = reply["data"].as_array().expect("rows");
    for (index, (row, expected)) in rows.iter().zip(&expected).enumerate() {
        assert_eq!((&row["object"], &row["index"]), (&json!("embedding"), &json!(index)));
        // The decimal numbers are exact.
        assert_eq!(numbers(&row["embedding"]), *expected);
    }
    assert_eq!(rows.len(), texts.len());

    let body =
        json!({ "input": texts[0], "encoding_format": "base64", "dimensions": expected[0].len() });
    let reply = server.post(EMBEDDINGS, &body.to_string()).json();
    let found = decode_base64(reply["data"][0]["embedding"].as_str().expect("text"));
    let wanted: Vec<u8> = expected[0].iter().flat_map(|number| number.to_le_bytes()).collect();
    assert_eq!(found, wanted);

    for body in [json!({ "input": ids[1] }), json!({ "input": [ids[1]] })] {
        let reply = server.post(EMBEDDINGS, &body.to_string()).json();
        assert_eq!(numbers(&reply["data"][0]["embedding"]), expected[1]);
        assert_eq!(reply["usage"]["prompt_tokens"], ids[1].len());
    }
}

#[test]
fn rejects_invalid_requests() {
    let server = start();
    let long = "cat ".repeat(200);
    for (body, param, part) in [
        (json!({ "input": "" }), json!("input"), "`input[0]` is empty"),
        (json!({ "input": ["cats", long] }), json!("input"), "`input[1]` has "),
        (json!({ "input": [99] }), json!("input"), "token 99 of `input[0]` is not below 16"),
        (json!({ "input": [[1], []] }), json!("input"), "`input[1]` has no tokens"),
        (json!({ "input": "a", "dimensions": 4 }), json!("dimensions"), "must be 8 for this model"),
        (
            json!({ "input": "a", "encoding_format": 1 }),
            json!("encoding_format"),
            "`base64`, got 1",
        ),
        (json!("x"), Value::Null, "not a valid request"),
    ] {
        let reply = server.post(EMBEDDINGS, &body.to_string());
        assert_eq!(reply.status, 400, "{body}: {reply:?}");
        let error = reply.json()["error"].clone();
        assert_eq!((&error["type"], &error["param"]), (&json!("invalid_request_error"), &param));
        assert!(error["message"].as_str().is_some_and(|it| it.contains(part)), "{error}");
    }
    let reply = server.post(EMBEDDINGS, &json!({ "input": long }).to_string()).json();
    assert_eq!(reply["error"]["code"], "context_length_exceeded");
    let reply = server.send("GET /v1/embeddings HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!((reply.status, reply.header("allow")), (405, Some("POST")));
    let plain = post(EMBEDDINGS, "{}").replace("application/json", "text/plain");
    assert_eq!(server.send(&plain).status, 415);
}

#[test]
fn wrong_endpoint_error_names_supported_endpoints() {
    let server = start();
    for path in ["/v1/chat/completions", "/v1/completions"] {
        let reply = server.post(path, r#"{"prompt": "a", "messages": []}"#);
        assert_eq!(reply.status, 400);
        let error = reply.json()["error"].clone();
        let message =
            "`tinybert` is an embedding model, which does not generate text; use `/v1/embeddings`";
        assert_eq!((&error["message"], &error["param"]), (&json!(message), &json!("model")));
    }
    let models = server.send("GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n").json();
    let model = &models["data"][0];
    assert_eq!((&model["id"], &model["object"]), (&json!("tinybert"), &json!("model")));

    let server = Running::start(|_| {});
    let reply = server.post(EMBEDDINGS, r#"{"input": "a"}"#);
    assert_eq!(reply.status, 400);
    let message = "`tiny` generates text and does not compute embeddings; use `/v1/chat/completions` or `/v1/completions`";
    assert_eq!(reply.json()["error"]["message"], message);
}

#[test]
fn full_queue_returns_429_and_many_clients_are_served() {
    let model = Model::embedding("tinybert", embedder());
    let server = Running::of_model(model, |options| options.queue = 0);
    let reply = server.post(EMBEDDINGS, r#"{"input": "cats"}"#);
    assert_eq!((reply.status, reply.header("retry-after")), (429, Some("1")));

    let server = start();
    let expected = server.post(EMBEDDINGS, r#"{"input": "cats"}"#).body;
    std::thread::scope(|scope| {
        for client in 0..16 {
            let (server, expected) = (&server, &expected);
            scope.spawn(move || {
                if client % 4 == 0 {
                    // This client disconnects before the response.
                    use std::io::Write;
                    let body = json!({ "input": vec!["a cat sat"; 500] }).to_string();
                    let request = post(EMBEDDINGS, &body);
                    server.connect().write_all(request.as_bytes()).expect("sent");
                    return;
                }
                loop {
                    let reply = server.post(EMBEDDINGS, r#"{"input": "cats"}"#);
                    if reply.status != 429 {
                        assert_eq!((reply.status, &reply.body), (200, expected));
                        return;
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
        }
    });
    server.stop();
}
