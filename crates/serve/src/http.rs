//! Requests of HTTP/1.0 and HTTP/1.1 out of bytes, and responses to bytes.

use std::io::{self, ErrorKind, Read, Write};

/// Largest sizes of a request.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// Bytes of the request line and the headers.
    pub head: usize,
    /// Bytes of the body.
    pub body: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { head: 16 << 10, body: 2 << 20 }
    }
}

/// Most headers of a request.
const MAX_HEADERS: usize = 64;

/// Most bytes of a line with the size of a chunk.
const MAX_CHUNK_LINE: usize = 256;

/// Bytes that are read at a time.
const BLOCK: usize = 8 << 10;

/// Request line and headers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Head {
    /// The method, `GET` for example.
    pub method: String,
    /// The path, without the query.
    pub path: String,
    /// The host that the client wants, without the port, in lower case.
    pub host: Option<String>,
    /// The media type of the body, without parameters, in lower case.
    pub content_type: Option<String>,
    /// The size of the body.
    pub body: BodySize,
    /// Whether the client may send another request.
    pub keep_alive: bool,
    /// Whether the client waits for the status 100 before it sends the body.
    pub expects_continue: bool,
    /// Whether responses may have chunks.
    pub accepts_chunks: bool,
}

/// Size of a body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodySize {
    /// No body.
    #[default]
    None,
    /// A number of bytes.
    Bytes(usize),
    /// Chunks, each with its size.
    Chunks,
}

/// Failure of reading a request.
#[derive(Debug)]
pub enum RequestError {
    /// The connection ended or failed.
    Closed,
    /// The deadline passed.
    TimedOut,
    /// The request is answered with a status and a message.
    Refused(u16, String),
}

impl From<io::Error> for RequestError {
    fn from(error: io::Error) -> RequestError {
        match error.kind() {
            ErrorKind::TimedOut | ErrorKind::WouldBlock => RequestError::TimedOut,
            _ => RequestError::Closed,
        }
    }
}

fn refused<T>(status: u16, message: impl Into<String>) -> Result<T, RequestError> {
    Err(RequestError::Refused(status, message.into()))
}

/// Reads requests from bytes.
#[derive(Debug)]
pub struct RequestReader<R> {
    source: R,
    limits: Limits,
    buffer: Vec<u8>,
}

impl<R: Read> RequestReader<R> {
    /// A reader of requests.
    pub fn new(source: R, limits: Limits) -> RequestReader<R> {
        RequestReader { source, limits, buffer: Vec::new() }
    }

    /// The source of the bytes.
    pub fn source_mut(&mut self) -> &mut R {
        &mut self.source
    }

    /// Waits for the first byte of a request. Returns false if the connection ends instead.
    pub fn wait(&mut self) -> Result<bool, RequestError> {
        if !self.buffer.is_empty() {
            return Ok(true);
        }
        match self.fill() {
            Err(RequestError::Closed) => Ok(false),
            filled => filled.map(|()| true),
        }
    }

    /// Reads the head of a request.
    pub fn head(&mut self) -> Result<Head, RequestError> {
        // Bytes that cannot start a request are refused at once, others are parsed when the head is complete.
        let mut parses = true;
        loop {
            if parses && let Some((head, length)) = parse_head(&self.buffer)? {
                if length > self.limits.head {
                    return self.refuse_head();
                }
                self.buffer.drain(..length);
                return Ok(head);
            }
            if self.buffer.len() > self.limits.head {
                return self.refuse_head();
            }
            let start = self.buffer.len().saturating_sub(3);
            self.fill()?;
            let new = &self.buffer[start..];
            parses = start == 0 || [&b"\n\r\n"[..], b"\n\n"].iter().any(|end| contains(new, end));
        }
    }

    fn refuse_head<T>(&self) -> Result<T, RequestError> {
        refused(431, format!("the headers have more than {} bytes", self.limits.head))
    }

    /// Reads the body of a request.
    pub fn body(&mut self, head: &Head) -> Result<Vec<u8>, RequestError> {
        match head.body {
            BodySize::None => Ok(Vec::new()),
            BodySize::Bytes(size) => {
                self.check_body(size)?;
                self.take(size)
            }
            BodySize::Chunks => self.chunks(),
        }
    }

    fn check_body(&self, size: usize) -> Result<(), RequestError> {
        match size > self.limits.body {
            true => refused(413, format!("the body has more than {} bytes", self.limits.body)),
            false => Ok(()),
        }
    }

    fn chunks(&mut self) -> Result<Vec<u8>, RequestError> {
        let mut body = Vec::new();
        loop {
            let line = self.line(MAX_CHUNK_LINE)?;
            let size = match httparse::parse_chunk_size(&line) {
                Ok(httparse::Status::Complete((_, size))) => usize::try_from(size).ok(),
                _ => None,
            };
            let Some(size) = size else {
                return refused(400, "a chunk of the body has no valid size");
            };
            if size == 0 {
                break;
            }
            self.check_body(body.len().saturating_add(size))?;
            body.extend(self.take(size)?);
            if !self.line(2)?.iter().all(|byte| b"\r\n".contains(byte)) {
                return refused(400, "a chunk of the body is longer than its size");
            }
        }
        // Headers after the body have no effect.
        let mut left = self.limits.head;
        loop {
            let line = self.line(left)?;
            left -= line.len();
            if line.iter().all(|byte| b"\r\n".contains(byte)) {
                return Ok(body);
            }
        }
    }

    /// Takes a line, with its end.
    fn line(&mut self, most: usize) -> Result<Vec<u8>, RequestError> {
        let mut searched = 0;
        loop {
            let end = self.buffer[searched..].iter().position(|&byte| byte == b'\n');
            if let Some(end) = end.map(|end| searched + end + 1).filter(|&end| end <= most) {
                return Ok(self.buffer.drain(..end).collect());
            }
            if end.is_some() || self.buffer.len() >= most {
                return refused(400, "a line of the body is too long");
            }
            searched = self.buffer.len();
            self.fill()?;
        }
    }

    fn take(&mut self, size: usize) -> Result<Vec<u8>, RequestError> {
        while self.buffer.len() < size {
            self.fill()?;
        }
        let rest = self.buffer.split_off(size);
        Ok(std::mem::replace(&mut self.buffer, rest))
    }

    /// Reads more bytes.
    fn fill(&mut self) -> Result<(), RequestError> {
        let mut block = [0; BLOCK];
        loop {
            match self.source.read(&mut block) {
                Ok(0) => return Err(RequestError::Closed),
                Ok(count) => {
                    self.buffer.extend_from_slice(&block[..count]);
                    return Ok(());
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// The head at the start of bytes, and its length; `None` if more bytes are necessary.
fn parse_head(bytes: &[u8]) -> Result<Option<(Head, usize)>, RequestError> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let length = match request.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => {
            return refused(431, format!("the request has more than {MAX_HEADERS} headers"));
        }
        Err(httparse::Error::Version) => {
            return refused(505, "the version of the protocol must be HTTP/1.0 or HTTP/1.1");
        }
        Err(error) => return refused(400, format!("the request is not valid HTTP: {error}")),
    };
    let is_newer = request.version == Some(1);
    let target = request.path.unwrap_or_default();
    // Proxies send the whole address.
    let path = match target.split_once("://") {
        Some((_, rest)) => rest.find('/').map_or("/", |start| &rest[start..]),
        None => target,
    };
    let mut head = Head {
        method: request.method.unwrap_or_default().to_owned(),
        path: path.split(['?', '#']).next().unwrap_or_default().to_owned(),
        keep_alive: is_newer,
        accepts_chunks: is_newer,
        ..Head::default()
    };
    let mut has_length = false;
    for header in request.headers.iter() {
        let name = header.name.to_ascii_lowercase();
        let text = || {
            let text = std::str::from_utf8(header.value).ok().map(str::trim);
            text.map_or_else(|| refused(400, format!("the header `{name}` is not text")), Ok)
        };
        match name.as_str() {
            "content-length" => {
                let text = text()?;
                let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
                let Some(size) = text.parse().ok().filter(|_| is_number && !has_length) else {
                    return refused(400, "`content-length` must be a single number of bytes");
                };
                has_length = true;
                if head.body == BodySize::None && size > 0 {
                    head.body = BodySize::Bytes(size);
                }
            }
            "transfer-encoding" => {
                if !text()?.eq_ignore_ascii_case("chunked") || !is_newer {
                    return refused(501, "`transfer-encoding` must be `chunked`");
                }
                head.body = BodySize::Chunks;
            }
            "connection" => {
                for option in text()?.split(',').map(str::trim) {
                    if option.eq_ignore_ascii_case("close") {
                        head.keep_alive = false;
                    }
                }
            }
            "content-type" => {
                let kind = text()?.split(';').next().unwrap_or_default().trim();
                head.content_type = Some(kind.to_ascii_lowercase());
            }
            "host" => {
                if head.host.is_some() {
                    return refused(400, "the request has several `host` headers");
                }
                head.host = Some(host_name(text()?).to_ascii_lowercase());
            }
            "expect" => {
                if !text()?.eq_ignore_ascii_case("100-continue") {
                    return refused(417, "`expect` must be `100-continue`");
                }
                head.expects_continue = is_newer;
            }
            _ => {}
        }
    }
    if has_length && head.body == BodySize::Chunks {
        return refused(
            400,
            "a request must not have both `content-length` and `transfer-encoding`",
        );
    }
    if is_newer && head.host.is_none() {
        return refused(400, "the request has no `host` header");
    }
    Ok(Some((head, length)))
}

/// A host without its port.
fn host_name(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

/// The reason of a status.
fn reason(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        200 => "OK",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        413 => "Content Too Large",
        415 => "Unsupported Media Type",
        417 => "Expectation Failed",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        501 => "Not Implemented",
        503 => "Service Unavailable",
        505 => "HTTP Version Not Supported",
        _ => "Error",
    }
}

/// A response with a body of JSON.
#[derive(Debug)]
pub struct Response<'b> {
    /// The status.
    pub status: u16,
    /// The body.
    pub body: &'b str,
    /// Other headers: names and values.
    pub headers: &'b [(&'b str, String)],
    /// Whether the connection stays open.
    pub keep_alive: bool,
}

impl Response<'_> {
    /// The bytes of the response.
    pub fn to_bytes(&self) -> Vec<u8> {
        let length = self.body.len();
        let mut text = format!("HTTP/1.1 {} {}\r\n", self.status, reason(self.status));
        text += &format!("Content-Type: application/json\r\nContent-Length: {length}\r\n");
        for (name, value) in self.headers {
            text += &format!("{name}: {value}\r\n");
        }
        text += if self.keep_alive { "\r\n" } else { "Connection: close\r\n\r\n" };
        text += self.body;
        text.into_bytes()
    }
}

/// Permission to send the body of a request.
pub const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// Server-sent events as the body of a response.
#[derive(Debug)]
pub struct EventStream<W> {
    out: W,
    chunks: bool,
}

impl<W: Write> EventStream<W> {
    /// Writes the head of the response. A client without chunks gets a body that ends with the connection.
    pub fn start(mut out: W, chunks: bool, keep_alive: bool) -> io::Result<EventStream<W>> {
        let mut head =
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
                .to_owned();
        if chunks {
            head += "Transfer-Encoding: chunked\r\n";
        }
        head += if keep_alive && chunks { "\r\n" } else { "Connection: close\r\n\r\n" };
        out.write_all(head.as_bytes())?;
        Ok(EventStream { out, chunks })
    }

    /// The target of the bytes.
    pub fn target_mut(&mut self) -> &mut W {
        &mut self.out
    }

    /// Writes an event with data of one line.
    pub fn send(&mut self, data: &str) -> io::Result<()> {
        let event = format!("data: {data}\n\n");
        let bytes = match self.chunks {
            true => format!("{:x}\r\n{event}\r\n", event.len()),
            false => event,
        };
        self.out.write_all(bytes.as_bytes())
    }

    /// Ends the body.
    pub fn finish(mut self) -> io::Result<()> {
        if self.chunks { self.out.write_all(b"0\r\n\r\n") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reader(text: &str) -> RequestReader<&[u8]> {
        RequestReader::new(text.as_bytes(), Limits::default())
    }

    /// The status of the error that a request causes; 0 if the connection is closed before the request is complete.
    fn status(text: &str) -> u16 {
        let mut reader = reader(text);
        let error = match reader.head() {
            Ok(head) => reader.body(&head).expect_err("refused"),
            Err(error) => error,
        };
        match error {
            RequestError::Refused(status, message) => {
                assert!(!message.is_empty());
                status
            }
            RequestError::Closed => 0,
            RequestError::TimedOut => 408,
        }
    }

    #[test]
    fn parses_pipelined_requests() {
        let text = "POST /v1/completions?a=b HTTP/1.1\r\nHost: LocalHost:8080\r\nContent-Type: Application/JSON; charset=utf-8\r\nContent-Length: 2\r\n\r\n{}\r\nGET http://x/health HTTP/1.1\r\nhost: [::1]\r\nConnection: Close\r\n\r\n";
        let mut reader = reader(text);
        let head = reader.head().expect("a head");
        let expected = Head {
            method: "POST".to_owned(),
            path: "/v1/completions".to_owned(),
            host: Some("localhost".to_owned()),
            content_type: Some("application/json".to_owned()),
            body: BodySize::Bytes(2),
            keep_alive: true,
            accepts_chunks: true,
            expects_continue: false,
        };
        assert_eq!(head, expected);
        assert_eq!(reader.body(&head).expect("a body"), b"{}");
        let head = reader.head().expect("a head");
        assert_eq!((head.path.as_str(), head.keep_alive), ("/health", false));
        assert_eq!(head.host.as_deref(), Some("[::1]"));
        assert!(!reader.wait().expect("the end of the stream"));
    }

    #[test]
    fn decodes_chunked_bodies_and_rejects_malformed_ones() {
        let head = "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
        let mut whole = reader("3;name=value\r\nabc\r\n1\r\nd\r\n0\r\nTrailer: 1\r\n\r\nrest");
        let chunked = Head { body: BodySize::Chunks, ..Head::default() };
        assert_eq!(whole.body(&chunked).expect("a body"), b"abcd");
        assert_eq!(whole.buffer, b"rest");
        assert_eq!(status(&format!("{head}zz\r\n")), 400);
        assert_eq!(status(&format!("{head}1\r\nabc\r\n")), 400);
        assert_eq!(status(&format!("{head}fffffffffffffff0\r\n")), 413);
        assert_eq!(status(&format!("{head}5\r\nabc")), 0);
    }

    #[test]
    fn rejects_ambiguous_and_oversized_requests() {
        let with = |headers: &str| format!("POST / HTTP/1.1\r\nHost: x\r\n{headers}\r\n");
        assert_eq!(status(&with("Content-Length: 1\r\nContent-Length: 1\r\n")), 400);
        assert_eq!(status(&with("Content-Length: +1\r\n")), 400);
        assert_eq!(status(&with("Content-Length: 99999999999999999999999\r\n")), 400);
        assert_eq!(status(&with("Content-Length: 3000000\r\n")), 413);
        assert_eq!(status(&with("Content-Length: 0\r\nTransfer-Encoding: chunked\r\n")), 400);
        assert_eq!(status(&with("Transfer-Encoding: gzip, chunked\r\n")), 501);
        assert_eq!(status(&with("Expect: luck\r\n")), 417);
        assert_eq!(status(&with("Host: y\r\n")), 400);
        assert_eq!(status(&with(&"a: b\r\n".repeat(65))), 431);
        assert_eq!(status(&with(&format!("a: {}\r\n", "b".repeat(20_000)))), 431);
        assert_eq!(status(&"a".repeat(20_000)), 431);
        assert_eq!(status("GET / HTTP/1.1\r\n\r\n"), 400);
        assert_eq!(status("GET / HTTP/2.0\r\n\r\n"), 505);
        assert_eq!(status("\u{16}\u{3}\u{1}"), 400);
        assert_eq!(status("GET / HT"), 0);
    }

    #[test]
    fn event_stream_is_chunked_or_ended_by_close() {
        let mut bytes = Vec::new();
        let mut stream = EventStream::start(&mut bytes, true, true).expect("written");
        stream.send("{}").expect("written");
        stream.finish().expect("written");
        let text = String::from_utf8(bytes).expect("text");
        assert!(text.ends_with("\r\n\r\na\r\ndata: {}\n\n\r\n0\r\n\r\n"), "{text:?}");
        let mut bytes = Vec::new();
        let mut stream = EventStream::start(&mut bytes, false, true).expect("written");
        stream.send("{}").expect("written");
        let text = String::from_utf8(bytes).expect("text");
        assert!(text.ends_with("Connection: close\r\n\r\ndata: {}\n\n"), "{text:?}");
    }
}
