//! The benchmarks' scripts name missing programs before they start anything.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use shoal_lab::needs::{self, Requirement};

#[test]
fn a_missing_program_is_named_with_its_package() {
    let Some(shell) = needs::find("bash") else { return };
    if !needs::met(&[Requirement::Namespaces], "SHOAL_REQUIRE_NETNS") {
        return;
    }
    // A search path with shell tools, but without the programs to measure.
    let folder = tempfile::tempdir().unwrap();
    for tool in ["dirname", "id", "realpath", "mktemp", "rm"] {
        symlink(needs::find(tool).unwrap(), folder.path().join(tool)).unwrap();
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for (script, wanted) in [
        ("files.sh", &["jq", "nft", "tc"][..]),
        ("chain.sh", &["ip", "jq", "nft"]),
        ("ip_chain.sh", &["ping", "iperf3", "jq", "ip"]),
        ("ip_direct.sh", &["ping", "iperf3", "jq"]),
    ] {
        let mut command = Command::new(&shell);
        command.arg(root.join("bench").join(script)).env("PATH", folder.path());
        let output = command.env("NO_BUILD", "1").output().unwrap();
        let said = shoal_e2e::text(&output).1;
        assert!(!output.status.success(), "{script}: {said}");
        for tool in wanted {
            let line = format!("MISSING: {tool} (apt-get install ");
            assert!(said.contains(&line), "{script} does not name {tool}: {said}");
        }
        assert!(!said.contains("no answer"), "{script}: {said}");
    }
    // Without `go`, its default folder of programs is searched.
    let find = "unset WG; HOME=/tmp/x; . bench/need.sh; find_wireguard";
    let mut command = Command::new(&shell);
    command.args(["-c", find]).current_dir(&root).env("PATH", folder.path());
    let said = shoal_e2e::text(&command.output().unwrap()).0;
    assert_eq!(said.trim(), "/tmp/x/go/bin/wireguard");
}
