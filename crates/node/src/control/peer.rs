//! Who may command a node.

use std::os::unix::net::UnixStream;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

/// True for root, for the node's own user and for members of the control group. The kernel vouches
/// for who connected; nothing that the program says counts.
pub(super) fn may_command(stream: &UnixStream, group: Option<u32>) -> bool {
    let Ok(peer) = getsockopt(stream, PeerCredentials) else { return false };
    let me = nix::unistd::geteuid().as_raw();
    allowed(peer.uid(), peer.gid(), || super::descriptors::peer_groups(stream), me, group)
}

fn allowed(
    uid: u32,
    gid: u32,
    groups: impl FnOnce() -> Vec<u32>,
    me: u32,
    control_group: Option<u32>,
) -> bool {
    uid == 0 || uid == me || control_group.is_some_and(|g| gid == g || groups().contains(&g))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_the_owner_and_the_group_may() {
        let none = Vec::new;
        assert!(allowed(0, 5, none, 1000, None));
        assert!(allowed(1000, 5, none, 1000, None));
        assert!(!allowed(1001, 5, none, 1000, None));
        assert!(allowed(1001, 5, none, 1000, Some(5)));
        assert!(allowed(1001, 5, || vec![7, 9], 1000, Some(9)));
        assert!(!allowed(1001, 5, || vec![7, 9], 1000, Some(8)));
    }

    #[test]
    fn this_process_may_command_itself() {
        let (one, _two) = UnixStream::pair().unwrap();
        assert!(may_command(&one, None));
        let own = nix::unistd::getgroups().unwrap();
        let seen = super::super::descriptors::peer_groups(&one);
        assert_eq!(seen.len(), own.len());
    }
}
