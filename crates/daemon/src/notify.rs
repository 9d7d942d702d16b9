//! Reports the daemon's state to the service manager: the `sd_notify` protocol, one datagram per
//! state.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// Longest wait for the manager to make room for a datagram. Packets wait meanwhile.
const WAIT: Duration = Duration::from_millis(50);

/// Sends `state` (such as `READY=1`) to the service manager, if there is one. A lost datagram is no
/// error, since the manager has time-outs. The call waits briefly for a manager that hangs.
pub fn notify(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let address = match path.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(&path),
    };
    let sent = address.and_then(|to| {
        let socket = UnixDatagram::unbound()?;
        socket.set_write_timeout(Some(WAIT))?;
        socket.send_to_addr(state.as_bytes(), &to)
    });
    if let Err(error) = sent {
        tracing::debug!(%error, "the service manager was not reached");
    }
}
