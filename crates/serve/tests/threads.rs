//! Many concurrent clients, some of which disconnect early: all others are answered, and no connection thread is left over. The
//! test is alone in this file because it counts the threads of its process.

use std::io::Write;
use std::time::{Duration, Instant};

use serde_json::json;

mod support;

use support::{Running, post};

const PATH: &str = "/v1/completions";

/// Number of connection threads; `None` on systems that do not list threads.
fn connection_threads() -> Option<usize> {
    let tasks = std::fs::read_dir("/proc/self/task").ok()?;
    let names =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    Some(names.filter(|name| name.trim() == "connection").count())
}

/// Waits until the number of connection threads meets the condition.
fn wait_for_connection_threads(condition: impl Fn(usize) -> bool) {
    let start = Instant::now();
    while let Some(count) = connection_threads().filter(|&count| !condition(count)) {
        assert!(start.elapsed() < Duration::from_secs(10), "{count} connection threads");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn many_clients_are_answered_and_leave_no_threads() {
    let server = Running::start(|options| options.queue = 64);
    let body =
        |stream: bool| json!({ "prompt": "ab", "max_tokens": 10, "stream": stream }).to_string();
    let idle = server.connect();
    wait_for_connection_threads(|count| count > 0);
    drop(idle);
    let expected = server.post(PATH, &body(false)).json()["choices"][0]["text"].clone();
    assert!(expected.as_str().is_some_and(|text| !text.is_empty()));
    for round in 0..3 {
        // Clients that disconnect after their request, or in the middle of it.
        for index in 0..40 {
            let request = post(PATH, &body(index % 2 == 0));
            let length = if index % 3 == 0 { request.len() / 2 } else { request.len() };
            let mut stream = server.connect();
            stream.write_all(&request.as_bytes()[..length]).expect("sent");
        }
        std::thread::scope(|scope| {
            for client in 0..64 {
                let (server, expected, body) = (&server, &expected, &body);
                scope.spawn(move || {
                    let streams = client % 2 == 0;
                    // Disconnected clients may occupy connections until the server notices.
                    let reply = loop {
                        let reply = server.post(PATH, &body(streams));
                        if !matches!(reply.status, 429 | 503) {
                            break reply;
                        }
                        assert!(reply.header("retry-after").is_some());
                        std::thread::sleep(Duration::from_millis(50));
                    };
                    assert_eq!(reply.status, 200, "round {round}: {reply:?}");
                    let text: String = match streams {
                        true => reply
                            .events()
                            .iter()
                            .filter_map(|event| event["choices"][0]["text"].as_str())
                            .collect(),
                        false => {
                            let text = reply.json()["choices"][0]["text"].clone();
                            text.as_str().unwrap_or_default().to_owned()
                        }
                    };
                    assert_eq!(*expected, text);
                });
            }
        });
    }
    wait_for_connection_threads(|count| count == 0);
    server.stop();
}
