//! Tests of key files: access rights and content.

use std::os::unix::fs::PermissionsExt;

use super::*;

fn chmod(file: &Path, mode: u32) {
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn ports_of_keys_are_fixed_in_the_range_and_seldom_equal() {
    let port = |seed: u8| own_port(&Identity::generate([seed; 32]));
    let ports: std::collections::BTreeSet<u16> = (0..100).map(port).collect();
    assert!(ports.len() > 95, "{ports:?}");
    assert!(ports.iter().all(|port| (10_240..32_768).contains(port)), "{ports:?}");
    assert_eq!(port(1), port(1));
}

#[test]
fn keys_are_read_back_as_they_were_written() {
    let dir = tempfile::tempdir().unwrap();
    let (node, network) = (dir.path().join("node.key"), dir.path().join("network.key"));
    let identity = Identity::generate([7; 32]);
    create(&node, &identity_text(&identity)).unwrap();
    create(&network, &network_secret_text(&NetworkSecret([9; 32]))).unwrap();
    assert_eq!(node.metadata().unwrap().mode() & 0o777, 0o600);
    assert_eq!(load_identity(&node).unwrap().public(), identity.public());
    assert_eq!(load_network_secret(&network, None).unwrap().0, [9; 32]);
    let text = load_identity(&network).unwrap_err().to_string();
    assert!(text.ends_with("is a network's secret; expected a node's key"), "{text}");
    let text = load_network_secret(&node, None).unwrap_err().to_string();
    assert!(text.ends_with("is a node's key; expected a network's secret"), "{text}");
    let text = create(&node, "other").unwrap_err().to_string();
    assert!(text.contains("never overwritten"), "{text}");
}

#[test]
fn key_files_of_earlier_versions_stay_readable() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, label: &str| {
        let file = dir.path().join(name);
        create(&file, &format!("{label}:{}\n", base64(&[5; 32]))).unwrap();
        file
    };
    let node = load_identity(&file("node", "shoal-node-key-1")).unwrap();
    assert_eq!(node.public(), Identity::from_seed([5; 32]).public());
    let network = load_network_secret(&file("network", "shoal-network-secret-1"), None).unwrap();
    assert_eq!(network.0, [5; 32]);
    load_authority(&file("authority", "shoal-authority-key-1")).unwrap();
}

#[test]
fn a_byte_order_mark_and_other_line_ends_are_ignored() {
    let dir = tempfile::tempdir().unwrap();
    let identity = Identity::generate([7; 32]);
    let text = identity_text(&identity);
    for (name, text) in [
        ("mark", format!("\u{feff}{}", *text)),
        ("both", format!("\u{feff}{}\r\n", text.trim())),
        ("blank", format!("\r\n  {}\r\n", text.trim())),
    ] {
        let file = dir.path().join(name);
        create(&file, &text).unwrap();
        assert_eq!(load_identity(&file).unwrap().public(), identity.public(), "{name}");
    }
}

#[test]
fn files_that_others_can_read_are_refused_with_the_fix() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("node.key");
    create(&file, &identity_text(&Identity::generate([7; 32]))).unwrap();
    for mode in [0o644, 0o640, 0o602, 0o610] {
        chmod(&file, mode);
        let text = load_identity(&file).unwrap_err().to_string();
        assert!(text.ends_with(&format!("fix: chmod 600 {}", file.display())), "{text}");
    }
    chmod(&file, 0o400);
    load_identity(&file).unwrap();
}

#[test]
fn a_malformed_key_file_is_refused_without_repeating_its_text() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("node.key");
    let text = load_identity(&file).unwrap_err().to_string();
    assert!(text.contains("make one with: shoal genkey -o"), "{text}");
    create(&file, "shoal-node-key-1:c2VjcmV0\n").unwrap();
    let text = load_identity(&file).unwrap_err().to_string();
    assert!(text.contains("expected one line") && !text.contains("c2VjcmV0"), "{text}");
    let text = load_identity(dir.path()).unwrap_err().to_string();
    assert!(text.contains("regular file"), "{text}");
}

#[test]
fn a_key_file_of_another_user_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("node.key");
    create(&file, &identity_text(&Identity::generate([7; 32]))).unwrap();
    if std::os::unix::fs::chown(&file, Some(12_345), None).is_err() {
        return; // Only root can give files away.
    }
    let text = load_identity(&file).unwrap_err().to_string();
    assert!(text.contains("belongs to user 12345") && text.contains("fix: chown 0 "), "{text}");
    load_identity_for(&file, Some(12_345)).unwrap();
    // The public half is shown, but not if others have access to the file.
    load_shown_identity(&file).unwrap();
    chmod(&file, 0o640);
    let text = load_shown_identity(&file).unwrap_err().to_string();
    assert!(text.contains("lets others access the secret"), "{text}");
    chmod(&file, 0o600);
    // The owner may be the user that the node's systemd unit names.
    let Some(nobody) = nix::unistd::User::from_name("nobody").unwrap() else { return };
    std::os::unix::fs::chown(&file, Some(nobody.uid.as_raw()), None).unwrap();
    let text = load_identity(&file).unwrap_err().to_string();
    let wanted =
        "fix: if a systemd unit runs as nobody: runuser -u nobody -- shoal ...; else chown 0";
    assert!(text.contains(wanted), "{text}");
    load_shown_identity(&file).unwrap();
}
