//! Replays the transcript in docs/guide/attribution.md.

use std::path::Path;
use std::process::Command;

/// A command of the transcript and what it prints, error output included.
struct TranscriptStep {
    command: String,
    output: Vec<String>,
}

fn steps(text: &str) -> Vec<TranscriptStep> {
    let mut steps: Vec<TranscriptStep> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        if line.starts_with("```") {
            inside = line == "```console";
        } else if let Some(command) = line.strip_prefix("$ ").filter(|_| inside) {
            steps.push(TranscriptStep { command: command.to_owned(), output: Vec::new() });
        } else if let Some(step) = steps.last_mut().filter(|_| inside) {
            step.output.push(line.to_owned());
        }
    }
    steps
}

/// True if `line` matches `pattern`, where each `[..]` stands for any text.
fn matches(pattern: &str, line: &str) -> bool {
    let mut rest = line;
    for (n, piece) in pattern.split("[..]").enumerate() {
        match rest.find(piece) {
            Some(at) if n > 0 || at == 0 => rest = &rest[at + piece.len()..],
            _ => return false,
        }
    }
    rest.is_empty() || pattern.ends_with("[..]")
}

/// The command by which a member takes its credential of the current epoch.
fn club_accepts(name: &str) -> String {
    format!(
        "join --group club/group --key {name}.key --accept club/credentials --epoch club/epoch \
         --credential {name}.credential"
    )
}

/// A folder with a group, a member and two stamped files.
struct Club(tempfile::TempDir);

impl Club {
    fn new() -> Club {
        let club = Club(tempfile::tempdir().expect("a folder"));
        club.good("setup --dir club --name club --trustees 3 --threshold 2");
        club.good("setup --dir other --name other --trustees 1 --threshold 1");
        club.good("join --group club/group --key a.key --name alice --out a.join");
        club.good("issue --dir club a.join");
        club.good("renew --dir club");
        club.good(&club_accepts("a"));
        for (name, byte, len) in [("one", 1, 70_000), ("two", 2, 280_000)] {
            std::fs::write(club.0.path().join(name), vec![byte; len]).expect("a file");
            club.good(&format!(
                "sign --group club/group --key a.key --credential a.credential --window 100 {name}"
            ));
        }
        club
    }

    /// Exit code and everything printed.
    fn run(&self, words: &str) -> (i32, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_shoal"))
            .arg("attribution")
            .args(words.split(' '))
            .current_dir(self.0.path())
            .output()
            .expect("the program");
        let text = [output.stdout, output.stderr].concat();
        (output.status.code().unwrap_or(-1), String::from_utf8_lossy(&text).into_owned())
    }

    fn good(&self, words: &str) -> String {
        let (code, text) = self.run(words);
        assert_eq!(code, 0, "{words}\n{text}");
        text
    }

    fn bad(&self, words: &str, code: i32, why: &str) {
        let (got, text) = self.run(words);
        assert!(got == code && text.contains(why), "{words}\n{got}: {text}");
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.0.path().join(name)).expect("a file")
    }
}

/// Without packets, stamps and the receiver's process, the kept proofs still prove a packet.
#[test]
fn what_a_receiver_kept_is_enough_for_evidence() {
    let club = Club::new();
    let keep = "--keep proofs --keep-packets 200";
    for file in ["one", "two"] {
        club.good(&format!("verify --group club/group --epoch club/epoch {file} {keep}"));
    }
    let mode = std::fs::metadata(club.0.path().join("proofs")).expect("a file").permissions();
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode) & 0o777, 0o600);
    club.good("evidence --group club/group two --packet 150 --out from-stamps");
    let text = club.good("verify --json --group club/group --epoch club/epoch two");
    let value: serde_json::Value = serde_json::from_str(&text).expect("an object");
    let flow = value["attribution"]["flow"].as_str().expect("a flow").to_owned();
    for file in ["one", "two", "one.stamps", "two.stamps"] {
        std::fs::remove_file(club.0.path().join(file)).expect("a file");
    }
    // The two windows of `two` have displaced the window of `one`.
    let kept = "evidence --group club/group --kept proofs";
    club.good(&format!("{kept} --flow {flow} --packet 150 --out from-kept"));
    assert_eq!(club.bytes("from-kept"), club.bytes("from-stamps"));
    club.good("open --group club/group from-kept --key club/trustee-1.key --out 1.share");
    club.good("open --group club/group from-kept --key club/trustee-2.key --out 2.share");
    let members = "--members club/members --epoch club/epoch-2 --share 1.share --share 2.share";
    club.good(&format!("open --group club/group from-kept {members} --out opening"));
    let text = club.good("judge --group club/group from-kept opening");
    assert!(text.contains("alice"), "{text}");
    let text = club.good(&format!("{kept} --packet 199 --out another"));
    assert!(text.contains("evidence for packet 199"), "{text}");
    club.bad(&format!("{kept} --packet 200 --out more"), 4, "no proof of this packet");
    club.bad(&format!("{kept} --flow 00 --packet 1 --out more"), 4, "no proof of this packet");
    // A packet's hash in the file was changed.
    let mut bytes = club.bytes("proofs");
    *bytes.last_mut().expect("bytes") ^= 1;
    std::fs::write(club.0.path().join("changed"), bytes).expect("a file");
    let changed = "evidence --group club/group --kept changed --packet 199 --out more";
    club.bad(changed, 4, "changed: the packet's digest does not hold");
}

#[test]
fn wrong_files_are_told_apart() {
    let club = Club::new();
    let verify = |group: &str, epoch: &str, file: &str| {
        format!("verify --group {group} --epoch {epoch} {file}")
    };
    club.bad(&verify("a.join", "club/epoch", "one"), 4, "a.join: not a file of this kind");
    club.bad(&verify("club/group", "club/group", "one"), 4, "expected epoch notice");
    club.bad(&verify("other/group", "club/epoch", "one"), 4, "another group");
    club.bad(&verify("club/group", "other/epoch", "one"), 4, "another group");
    let (code, text) = club.run(&verify("other/group", "other/epoch", "one"));
    assert!(code != 0 && text.contains("0 of 50"), "{text}");
    club.bad("verify --group club/group --epoch club/epoch one --stamps two", 4, "not stamps");
    let other = "verify --group club/group --epoch club/epoch one --stamps two.stamps";
    let (code, text) = club.run(other);
    assert!(code != 0 && text.contains("0 of 200"), "{text}");
    // The file is cut between two packets.
    let two = club.bytes("two");
    std::fs::write(club.0.path().join("short"), &two[..199 * 1_400]).expect("a file");
    let short = "verify --group club/group --epoch club/epoch short --stamps two.stamps";
    let (code, text) = club.run(short);
    assert!(code != 0 && text.contains("199 of 200"), "{text}");
    assert!(text.contains("1 stamped packets are missing at the end"), "{text}");
    // Every file that is cut, anywhere, is refused by name.
    for (file, words) in [
        ("club/group", "verify --group CUT --epoch club/epoch one"),
        ("club/epoch", "verify --group club/group --epoch CUT one"),
        ("one.stamps", "verify --group club/group --epoch club/epoch one --stamps CUT"),
        ("a.credential", "sign --group club/group --key a.key --credential CUT one --out x"),
        ("club/group.seen", "verify --group club/group --epoch club/epoch one --seen CUT"),
    ] {
        let bytes = club.bytes(file);
        for len in [0, 3, 4, bytes.len() / 2, bytes.len() - 1] {
            std::fs::write(club.0.path().join("CUT"), &bytes[..len]).expect("a file");
            club.bad(words, 4, "CUT: ");
        }
    }
    for words in [
        "verify --group club/group --epoch club/epoch one --keep p --keep-packets 0",
        "verify --group club/group --epoch club/epoch one --keep-packets 9",
        "evidence --group club/group --packet 1 --out x",
        "evidence --group club/group one --kept p --packet 1 --out x",
    ] {
        club.bad(words, 2, "error: ");
    }
}

/// An empty file proves nothing.
#[test]
fn an_empty_file_is_not_said_to_be_sent_by_a_member() {
    let club = Club::new();
    let stamps = [b"SAF1".as_slice(), &[7; 16], &1_400u32.to_be_bytes()].concat();
    std::fs::write(club.0.path().join("empty"), []).expect("a file");
    std::fs::write(club.0.path().join("empty.stamps"), stamps).expect("a file");
    let words = "verify --group club/group --epoch club/epoch empty";
    club.bad(words, 4, "empty: is empty, and its stamps cover no packet");
    // Stamps that cover packets show that these are missing.
    std::fs::copy(club.0.path().join("one.stamps"), club.0.path().join("cut.stamps"))
        .expect("a file");
    std::fs::write(club.0.path().join("cut"), []).expect("a file");
    club.bad("verify --group club/group --epoch club/epoch cut", 1, "0 of 50 packets");
}

#[test]
fn an_old_notice_is_refused_after_a_revocation() {
    let club = Club::new();
    let verify = |epoch: &str| format!("verify --group club/group --epoch {epoch} one");
    club.good(&verify("club/epoch"));
    club.good("revoke --dir club alice");
    club.bad(&verify("club/epoch"), 1, "0 of 50 packets");
    // The notice of epoch 2 has not expired, but epoch 3 has replaced it.
    club.bad(&verify("club/epoch-2"), 4, "club/epoch-2: the notice is of an epoch that is over");
    club.good("sign --group club/group --key a.key --credential a.credential one --out stamps");
    // A signer that has seen epoch 3 doesn't sign in epoch 2.
    club.bad(&club_accepts("a"), 4, "holds no credential for this member");
    let sign = "sign --group club/group --key a.key --credential a.credential one --out more";
    club.bad(sign, 4, "a.credential: the notice is of an epoch that is over");
}

/// The issuer, or somebody with a copy of its folder, starts the same epoch twice.
#[test]
fn a_member_notices_two_notices_for_one_epoch() {
    let club = Club::new();
    club.good("join --group club/group --key b.key --name bob --out b.join");
    let copy = Command::new("cp").args(["-a", "club", "copy"]).current_dir(club.0.path()).status();
    assert!(copy.expect("cp").success());
    club.good("renew --dir copy");
    club.good("issue --dir club b.join");
    club.good("renew --dir club");
    let text = club.good(&club_accepts("a"));
    assert!(text.contains("for epoch 3, one of 2"), "{text}");
    let other = club_accepts("a").replace("club/credentials", "copy/credentials");
    club.bad(&other, 4, "copy/credentials: the notice's hash of the credentials does not hold");
    let other = other.replace("club/epoch", "copy/epoch");
    club.bad(&other, 4, "copy/epoch: the issuer signed two different notices for epoch 3");
    // No epoch begins twice in one folder, even if the run that began it was interrupted.
    std::fs::copy(club.0.path().join("club/epoch-2"), club.0.path().join("club/epoch"))
        .expect("a file");
    let text = club.good("renew --dir club");
    assert!(text.contains("epoch 4 has 2 members"), "{text}");
}

/// A member forges an opening of its own packet that names somebody else. That must fail, and so
/// must a changed registry in the issuer's folder.
#[test]
fn names_come_from_the_issuers_registry() {
    let club = Club::new();
    club.good("join --group club/group --key a.key --name bob --out b.join");
    club.good("evidence --group club/group one --packet 3 --out packet");
    let request = club.bytes("b.join");
    for n in [1, 2] {
        let key = format!("--key club/trustee-{n}.key --out {n}.share");
        club.good(&format!("open --group club/group packet {key}"));
    }
    let shares = "--share 1.share --share 2.share";
    let open = |members: &str, epoch: &str, out: &str| {
        format!(
            "open --group club/group packet --members {members} --epoch {epoch} {shares} \
             --out {out}"
        )
    };
    club.good(&open("club/members", "club/epoch-2", "opening"));
    let text = club.good("judge --group club/group packet opening");
    assert!(text.contains("by the holder of identity ") && text.contains("as \"alice\""), "{text}");
    club.bad(&open("club/members", "club/epoch-1", "x"), 4, "not of the signature's epoch");
    let good = club.bytes("opening");
    let own = club.bytes("a.join").len() - 4;
    let framed = [&good[..good.len() - own], &request[4..]].concat();
    std::fs::write(club.0.path().join("framed"), framed).expect("a file");
    let why = "framed: the entry in the registry does not hold";
    club.bad("judge --group club/group packet framed", 4, why);
    // A changed registry.
    let mut members = club.bytes("club/members");
    let end = members.len() - 64;
    members.splice(end - own..end, request[4..].iter().copied());
    std::fs::write(club.0.path().join("club/members"), members).expect("a file");
    let why = "club/members: the registry's signature does not hold";
    club.bad("renew --dir club", 4, why);
    club.bad(&open("club/members", "club/epoch-2", "x"), 4, why);
}

/// `setup` is run with a forged dealing in the place of a trustee's.
#[test]
fn a_trustee_collects_for_the_group_it_dealt_for() {
    let club = Club(tempfile::tempdir().expect("a folder"));
    for (index, dir) in [(1, "one"), (2, "two"), (1, "evil")] {
        club.good(&format!("deal --name d --index {index} --trustees 2 --dir {dir}"));
    }
    let setup = "setup --name d --trustees 2 --dealing two/dealing-2";
    club.good(&format!("{setup} --dir swapped --dealing evil/dealing-1"));
    club.good(&format!("{setup} --dir right --dealing one/dealing-1"));
    let collect = |group: &str| {
        format!(
            "collect --index 1 --group {group}/group --dealing one/dealing-1 \
             --dealing two/dealing-2 --share one/share-1-1.key --share two/share-2-1.key \
             --out one/trustee.key"
        )
    };
    let why = "swapped/group: the group's opening key is not the sum of these dealings";
    club.bad(&collect("swapped"), 4, why);
    club.good(&collect("right"));
}

#[test]
fn the_transcript_in_the_docs_is_true() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/attribution.md");
    let text = std::fs::read_to_string(page).expect("the page");
    let program = Path::new(env!("CARGO_BIN_EXE_shoal"));
    let folder = tempfile::tempdir().expect("a folder");
    let old = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{old}", program.parent().expect("a folder").display());
    let steps = steps(&text);
    assert!(steps.len() > 20, "the page has lost its transcript");
    for step in steps {
        let result = Command::new("sh")
            .args(["-c", &format!("umask 022; {{ {}; }} 2>&1", step.command)])
            .current_dir(folder.path())
            .env("PATH", &path)
            .output()
            .expect("a shell");
        let printed = String::from_utf8_lossy(&result.stdout);
        let lines: Vec<&str> = printed.lines().collect();
        let same = lines.len() == step.output.len()
            && step.output.iter().zip(&lines).all(|(pattern, line)| matches(pattern, line));
        assert!(same, "$ {}\nprinted\n{printed}\nnot\n{}", step.command, step.output.join("\n"));
    }
}
