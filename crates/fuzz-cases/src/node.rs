//! Input of the daemon from its operator and from programs: files and the control socket.

use std::path::Path;

use shoal_daemon::config::NodeConfig;
use shoal_daemon::control::api::{CommandFrame, NodeFrame};
use shoal_daemon::membership::hosts::HostList;

/// A configuration file, and the error messages for an invalid one.
pub fn config(data: &[u8]) {
    let Ok(text) = core::str::from_utf8(data) else { return };
    if let Err(error) = NodeConfig::parse(Path::new("node.toml"), text) {
        assert!(!error.to_string().is_empty());
    }
}

/// A hosts file.
pub fn hosts(data: &[u8]) {
    let Ok(text) = core::str::from_utf8(data) else { return };
    if let Err(error) = HostList::parse(Path::new("hosts.toml"), text) {
        assert!(!error.to_string().is_empty());
    }
}

/// A key file, and a public key as text.
pub fn keys(data: &[u8]) {
    let Ok(text) = core::str::from_utf8(data) else { return };
    if let Ok(identity) = shoal_daemon::config::keys::parse_identity(text) {
        let again = shoal_daemon::config::keys::identity_text(&identity);
        let read =
            shoal_daemon::config::keys::parse_identity(&again).expect("written text can be read");
        assert!(read.public() == identity.public());
    }
    if let Ok(key) = text.parse::<shoal_crypto::PublicKey>() {
        assert!(key.to_string().parse() == Ok(key));
    }
}

/// A frame of the control protocol, in either direction.
pub fn control(data: &[u8]) {
    if let Ok(frame) = serde_json::from_slice::<CommandFrame>(data) {
        let again = serde_json::to_vec(&frame).expect("parsed frames can be written");
        assert!(serde_json::from_slice::<CommandFrame>(&again).is_ok_and(|read| read == frame));
    }
    if let Ok(frame) = serde_json::from_slice::<NodeFrame>(data) {
        let again = serde_json::to_vec(&frame).expect("parsed frames can be written");
        assert!(serde_json::from_slice::<NodeFrame>(&again).is_ok());
    }
}

/// A whole stream from a program: lengths, frames, end.
pub fn stream(data: &[u8]) {
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    // No more bytes than a socket's buffer holds without a reader.
    let data = &data[..data.len().min(64 << 10)];
    let (mut here, there) = UnixStream::pair().expect("a pair of sockets");
    here.write_all(data).expect("room for the input");
    drop(here);
    for _ in 0..=data.len() / 4 {
        match shoal_daemon::control::socket::read_frame::<CommandFrame>(there.as_fd()) {
            Ok(Some((_, descriptors))) => assert!(descriptors.is_empty()),
            Ok(None) | Err(_) => return,
        }
    }
    panic!("more frames than lengths fit the input");
}
