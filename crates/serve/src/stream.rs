use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

/// A socket whose reads and writes end at a deadline.
pub(crate) struct TimedStream<'s> {
    stream: &'s TcpStream,
    deadline: Instant,
}

/// Time for a client to receive an error before its connection is reset.
const LINGER: Duration = Duration::from_secs(1);

/// Bytes of an answered request that are read and dropped at most.
const MAX_DROPPED: usize = 4 << 20;

impl<'s> TimedStream<'s> {
    pub(crate) fn new(stream: &'s TcpStream, time: Duration) -> TimedStream<'s> {
        TimedStream { stream, deadline: Instant::now() + time }
    }

    /// Sets the deadline.
    pub(crate) fn allow(&mut self, time: Duration) {
        self.deadline = Instant::now() + time;
    }

    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        match left.is_zero() {
            true => Err(ErrorKind::TimedOut.into()),
            false => Ok(Some(left)),
        }
    }
}

impl Read for TimedStream<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(bytes)
    }
}

impl Write for TimedStream<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether a client has closed its side. Clients keep it open until they have the response.
pub(crate) fn is_closed(stream: &TcpStream) -> bool {
    if stream.set_nonblocking(true).is_err() {
        return true;
    }
    let peeked = stream.peek(&mut [0]);
    let is_blocking = stream.set_nonblocking(false).is_ok();
    match peeked {
        Ok(count) => count == 0 || !is_blocking,
        Err(error) => error.kind() != ErrorKind::WouldBlock || !is_blocking,
    }
}

/// Ends a connection after an error. The rest of the request is dropped, because a system resets connections that are closed
/// with unread bytes, and then the client may lose the response.
pub(crate) fn linger(stream: &TcpStream) {
    if stream.shutdown(Shutdown::Write).is_err() {
        return;
    }
    let mut stream = TimedStream::new(stream, LINGER);
    let mut block = [0; 8 << 10];
    let mut dropped = 0;
    while dropped < MAX_DROPPED {
        match stream.read(&mut block) {
            Ok(count) if count > 0 => dropped += count,
            _ => break,
        }
    }
}
