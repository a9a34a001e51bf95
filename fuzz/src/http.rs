//! Checks of the fuzz target for HTTP: no request panics, sizes stay below the limits, and parts of a request are read as the
//! whole.

use std::io::Read;

use coremill_llm::GenerationSettings;
use coremill_serve::api::{EmbeddingsRequest, Request};
use coremill_serve::http::{Head, Limits, RequestError, RequestReader};

/// Reads few bytes at a time.
struct Parts<'d>(&'d [u8], usize);

impl Read for Parts<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let length = self.1.min(bytes.len());
        self.0.read(&mut bytes[..length])
    }
}

fn limits() -> Limits {
    let mut limits = Limits::default();
    (limits.head, limits.body) = (2048, 4096);
    limits
}

/// All requests, and the status of the error after them; 0 if the bytes end.
fn all(source: impl Read) -> (Vec<(Head, Vec<u8>)>, u16) {
    let mut reader = RequestReader::new(source, limits());
    let mut requests = Vec::new();
    loop {
        let read = reader.head().and_then(|head| Ok((reader.body(&head)?, head)));
        match read {
            Ok((body, head)) => {
                assert!(body.len() <= limits().body);
                requests.push((head, body));
            }
            Err(RequestError::Refused(status, message)) => {
                assert!((400..=599).contains(&status) && !message.is_empty());
                return (requests, status);
            }
            Err(_) => return (requests, 0),
        }
    }
}

pub(crate) fn requests(data: &[u8]) {
    let (whole, status) = all(data);
    let (parts, other) = all(Parts(data, 7));
    // Headers that are too long can be refused before or after they are found to be invalid.
    if status == other {
        assert_eq!(whole, parts);
    }
    for body in whole.iter().map(|(_, body)| &body[..]).chain([data]) {
        match EmbeddingsRequest::parse(body, 8) {
            Ok(request) => assert!((1..=2048).contains(&request.inputs.len())),
            Err(error) => assert!(error.to_json()["error"]["message"].is_string()),
        }
        for is_chat in [true, false] {
            match Request::parse(body, is_chat, &GenerationSettings::default(), 0) {
                Ok(request) => {
                    let _ = request.options(1, 16, &[]).is_ok();
                    assert!(request.stops.iter().all(|stop| !stop.is_empty()));
                    assert!((0.0..=2.0).contains(&request.sampling.temperature));
                }
                Err(error) => assert!(error.to_json()["error"]["message"].is_string()),
            }
        }
    }
}
