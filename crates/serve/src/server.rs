use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::api::ApiError;
use crate::connection::answer_all;
use crate::http::{Limits, Response};
use crate::queue::{Model, Queue, Runner};
use crate::service::{Service, Times, now};

/// Options of a server.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ServerOptions {
    /// Requests that wait for the model; further ones are refused with the status 429.
    pub queue: usize,
    /// Open connections; further ones are refused with the status 503.
    pub connections: usize,
    /// Largest sizes of a request.
    pub limits: Limits,
    /// Time until the first byte of a request.
    pub idle_time: Duration,
    /// Time from the first byte of a request to the end of its headers.
    pub head_time: Duration,
    /// Time for the body of a request.
    pub body_time: Duration,
    /// Time in which a client accepts a response, or a part of a stream.
    pub write_time: Duration,
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions {
            queue: 32,
            connections: 128,
            limits: Limits::default(),
            idle_time: Duration::from_secs(60),
            head_time: Duration::from_secs(10),
            body_time: Duration::from_secs(30),
            write_time: Duration::from_secs(10),
        }
    }
}

/// Time in which connections end after the server is stopped, before they are cut.
const GRACE: Duration = Duration::from_secs(2);

/// Pause after the system could not accept a connection.
const PAUSE: Duration = Duration::from_millis(50);

/// A server that is bound to an address.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    service: Service,
    runner: Runner,
    connections: Arc<Connections>,
}

/// Stops a server from any thread.
#[derive(Clone)]
pub struct Stopper {
    address: SocketAddr,
    connections: Arc<Connections>,
}

impl Stopper {
    /// Makes the server answer waiting clients with an error and return.
    pub fn stop(&self) {
        self.connections.is_stopping.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts connections.
        let _ = TcpStream::connect_timeout(&self.address, GRACE);
    }
}

impl Server {
    /// Binds a server to an address of this machine; port 0 selects a free one.
    pub fn bind(address: SocketAddr, model: Model, options: ServerOptions) -> io::Result<Server> {
        if !address.ip().is_loopback() {
            let message = format!("{} is not a loopback address", address.ip());
            return Err(io::Error::new(ErrorKind::InvalidInput, message));
        }
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let Model { name, tokenizer, template, settings, runner } = model;
        let times = Times {
            idle: options.idle_time,
            head: options.head_time,
            body: options.body_time,
            write: options.write_time,
        };
        let service = Service {
            name,
            tokenizer,
            template,
            settings,
            context: runner.context(),
            vocabulary: runner.vocabulary(),
            width: runner.width(),
            queue: Queue::new(options.queue),
            limits: options.limits,
            times,
            is_stopping: AtomicBool::new(false),
            created: now(),
            count: AtomicU64::new(0),
            preparing: Mutex::default(),
        };
        let connections = Connections { most: options.connections, ..Connections::default() };
        Ok(Server { listener, address, service, runner, connections: Arc::new(connections) })
    }

    /// The address, with the port that was selected.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A handle that stops the server.
    pub fn stopper(&self) -> Stopper {
        Stopper { address: self.address, connections: self.connections.clone() }
    }

    /// Answers requests until the server is stopped, and all of its threads have ended.
    pub fn run(self) {
        let Server { listener, service, mut runner, connections, .. } = self;
        let (service, connections) = (&service, &*connections);
        thread::scope(|scope| {
            scope.spawn(|| service.queue.work(&service.tokenizer, &mut runner));
            loop {
                let accepted = listener.accept();
                if connections.is_stopping.load(Ordering::Relaxed) {
                    break;
                }
                let stream = match accepted {
                    Ok((stream, _)) => stream,
                    Err(error) => {
                        // Without file descriptors, accepting fails at once again.
                        if error.kind() != ErrorKind::ConnectionAborted {
                            thread::sleep(PAUSE);
                        }
                        continue;
                    }
                };
                // Parts of a stream are small, and must not wait for each other.
                let _ = stream.set_nodelay(true);
                let Some(connection) = connections.enter(&stream) else {
                    refuse(&stream);
                    continue;
                };
                let serve = move || {
                    answer_all(&stream, service);
                    drop(connection);
                };
                // If there is no thread, the connection is dropped.
                let builder = thread::Builder::new().name("connection".to_owned());
                let _ = builder.spawn_scoped(scope, serve);
            }
            service.is_stopping.store(true, Ordering::Relaxed);
            service.queue.close();
            connections.end();
        });
    }
}

/// Refuses a connection, without waiting for the client.
fn refuse(stream: &TcpStream) {
    let body = ApiError::new(503, "too many connections; try again later").to_json().to_string();
    let headers = [("Retry-After", "1".to_owned())];
    let response = Response { status: 503, body: &body, headers: &headers, keep_alive: false };
    if stream.set_nonblocking(true).is_ok() {
        let _ = (&mut &*stream).write_all(&response.to_bytes());
        let _ = stream.shutdown(Shutdown::Write);
        // Unread bytes would make the system reset the connection.
        let _ = (&mut &*stream).read(&mut [0; 8 << 10]);
    }
}

/// Open connections.
#[derive(Default)]
struct Connections {
    most: usize,
    is_stopping: AtomicBool,
    open: Mutex<Open>,
    /// Signals that a connection has ended.
    ended: Condvar,
}

#[derive(Default)]
struct Open {
    next: u64,
    streams: BTreeMap<u64, TcpStream>,
}

/// An open connection.
struct Connection<'c> {
    connections: &'c Connections,
    id: u64,
}

impl Drop for Connection<'_> {
    fn drop(&mut self) {
        self.connections.open().streams.remove(&self.id);
        self.connections.ended.notify_all();
    }
}

impl Connections {
    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a connection; `None` if there are too many.
    fn enter(&self, stream: &TcpStream) -> Option<Connection<'_>> {
        let mut open = self.open();
        if open.streams.len() >= self.most {
            return None;
        }
        let id = open.next;
        open.streams.insert(id, stream.try_clone().ok()?);
        open.next += 1;
        Some(Connection { connections: self, id })
    }

    /// Ends all connections: idle ones at once, the others after their answer or after the time of grace.
    fn end(&self) {
        let deadline = Instant::now() + GRACE;
        for way in [Shutdown::Read, Shutdown::Both] {
            let mut open = self.open();
            for stream in open.streams.values() {
                let _ = stream.shutdown(way);
            }
            while !open.streams.is_empty() {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                let waited = self.ended.wait_timeout(open, left);
                open = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }
}
