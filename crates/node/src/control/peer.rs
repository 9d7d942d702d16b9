//! Who may command a node.

use std::os::unix::net::UnixStream;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

/// The user, if that is root, the node's own or a member of the control group. The kernel vouches
/// for who connected; nothing that the program says counts.
pub(super) fn may_command(stream: &UnixStream, group: Option<u32>) -> Option<u32> {
    let peer = getsockopt(stream, PeerCredentials).ok()?;
    let me = nix::unistd::geteuid().as_raw();
    let groups = || super::descriptors::peer_groups(stream);
    allowed(peer.uid(), peer.gid(), groups, me, group).then_some(peer.uid())
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
        assert_eq!(may_command(&one, None), Some(nix::unistd::geteuid().as_raw()));
        let own = nix::unistd::getgroups().unwrap();
        let seen = super::super::descriptors::peer_groups(&one);
        assert_eq!(seen.len(), own.len());
    }
}
