//! A web server that sends zeroes until its time is over.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// TCP port of the server.
pub const PORT: u16 = 8_080;
/// Limit of a client's time to connect, to send its request, and to read.
const PATIENCE: Duration = Duration::from_secs(10);
/// Limit of a request's length in bytes.
const REQUEST_MAX: usize = 8_192;
/// Bytes per write.
const PIECE: usize = 1 << 17;

/// Listens on `address`, in the namespace of the calling thread.
///
/// # Errors
/// The port is in use.
pub fn listen(address: IpAddr) -> Result<TcpListener> {
    let listener = TcpListener::bind((address, PORT)).context("the web server's port")?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Serves one client for `seconds`. Returns the bytes per second until the client had everything.
///
/// # Errors
/// No client connects or sends a request, or the client closes early.
pub fn serve(listener: &TcpListener, seconds: f64) -> Result<f64> {
    let (bytes, time) = give(listener, |_, time| time.as_secs_f64() < seconds)?;
    Ok(bytes as f64 / time.as_secs_f64())
}

/// Serves one client at least `wanted` bytes. Returns the number of bytes sent, and the time that
/// took.
///
/// # Errors
/// See [`serve`].
pub fn serve_bytes(listener: &TcpListener, wanted: usize) -> Result<(usize, Duration)> {
    give(listener, |bytes, _| bytes < wanted)
}

/// Sends pieces to a client while `more` returns true for the bytes and the time so far.
fn give(
    listener: &TcpListener,
    more: impl Fn(usize, Duration) -> bool,
) -> Result<(usize, Duration)> {
    let mut client = accept(listener)?;
    client.set_nonblocking(false)?;
    client.set_read_timeout(Some(PATIENCE))?;
    client.set_write_timeout(Some(PATIENCE))?;
    read_request(&mut client)?;
    let (start, piece) = (Instant::now(), vec![0; PIECE]);
    // Without a length, the end of the connection is the end of the file (RFC 9112 section 6.3).
    client.write_all(b"HTTP/1.0 200 OK\r\nContent-Type: application/octet-stream\r\n\r\n")?;
    let mut bytes = 0;
    while more(bytes, start.elapsed()) {
        client.write_all(&piece).context("the client closed the connection early")?;
        bytes += PIECE;
    }
    client.shutdown(std::net::Shutdown::Write)?;
    // The client closes after it has received everything.
    let _closed = client.read(&mut [0]);
    Ok((bytes, start.elapsed()))
}

fn accept(listener: &TcpListener) -> Result<TcpStream> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match listener.accept() {
            Ok((client, _)) => return Ok(client),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                ensure!(Instant::now() < deadline, "no client came");
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(e) => return Err(e).context("waiting for a client"),
        }
    }
}

fn read_request(client: &mut TcpStream) -> Result<()> {
    let (mut request, mut piece) = (Vec::new(), [0; 1_024]);
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let len = client.read(&mut piece).context("reading a request")?;
        ensure!(len > 0 && request.len() < REQUEST_MAX, "no request came");
        request.extend_from_slice(&piece[..len]);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_gets_zeroes_for_the_time_and_the_rate_counts_them() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        std::thread::scope(|scope| {
            let served = scope.spawn(|| serve(&listener, 0.2));
            let mut client = TcpStream::connect(at).unwrap();
            client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
            let start = Instant::now();
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).unwrap();
            drop(client);
            let rate = served.join().unwrap().unwrap();
            let took = start.elapsed().as_secs_f64();
            let end = answer.windows(4).position(|w| w == b"\r\n\r\n").unwrap() + 4;
            assert!(answer.starts_with(b"HTTP/1.0 200 ") && answer[end..].iter().all(|b| *b == 0));
            assert!(took > 0.19, "{took}");
            let seen = (answer.len() - end) as f64 / took;
            assert!((0.5..2.0).contains(&(rate / seen)), "{rate} {seen}");
        });
    }

    #[test]
    fn a_client_gets_as_many_bytes_as_were_asked_for() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        std::thread::scope(|scope| {
            let served = scope.spawn(|| serve_bytes(&listener, PIECE + 1));
            let mut client = TcpStream::connect(at).unwrap();
            client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).unwrap();
            drop(client);
            let (bytes, _) = served.join().unwrap().unwrap();
            let end = answer.windows(4).position(|w| w == b"\r\n\r\n").unwrap() + 4;
            assert_eq!((bytes, answer.len() - end), (2 * PIECE, 2 * PIECE));
        });
    }

    #[test]
    fn a_client_that_sends_no_request_gets_no_answer() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        std::thread::scope(|scope| {
            let served = scope.spawn(|| serve(&listener, 0.1));
            let client = TcpStream::connect(at).unwrap();
            client.shutdown(std::net::Shutdown::Write).unwrap();
            assert!(served.join().unwrap().is_err());
        });
    }
}
