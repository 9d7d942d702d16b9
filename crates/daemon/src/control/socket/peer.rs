//! Users who may command a node.

use std::os::unix::net::UnixStream;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};

/// A user who may command a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PeerUser {
    /// User id.
    pub user: u32,
    /// True for root and the node's own user, who operate the node.
    pub operator: bool,
}

/// The user at the other end, if it is root, the node's own or a member of the control group. The
/// kernel supplies the credentials; nothing that the program says counts.
pub(super) fn may_command(stream: &UnixStream, group: Option<u32>) -> Option<PeerUser> {
    let peer = getsockopt(stream, PeerCredentials).ok()?;
    let me = nix::unistd::geteuid().as_raw();
    let groups = || super::descriptors::peer_groups(stream);
    let user = peer.uid();
    allowed(user, peer.gid(), groups, me, group)
        .then_some(PeerUser { user, operator: is_operator(user, me) })
}

fn is_operator(user: u32, me: u32) -> bool {
    user == 0 || user == me
}

fn allowed(
    uid: u32,
    gid: u32,
    groups: impl FnOnce() -> Vec<u32>,
    me: u32,
    control_group: Option<u32>,
) -> bool {
    is_operator(uid, me) || control_group.is_some_and(|g| gid == g || groups().contains(&g))
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
        let user = nix::unistd::geteuid().as_raw();
        assert_eq!(may_command(&one, None), Some(PeerUser { user, operator: true }));
        let own = nix::unistd::getgroups().unwrap();
        let seen = super::super::descriptors::peer_groups(&one);
        assert_eq!(seen.len(), own.len());
    }
}
