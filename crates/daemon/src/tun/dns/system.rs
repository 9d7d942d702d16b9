//! Leads the machine's programs to the responder: by systemd-resolved, by resolvconf, or by lines
//! in /etc/resolv.conf.
//!
//! Invariant: the node removes its settings when it stops, and changes nothing else. A method that
//! would hide the machine's other name servers is undone at once.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::unistd::geteuid;

use super::resolv_conf::{self, ResolvConfLines};
use crate::config::{self, NodeConfig};

/// Longest run of a helper program.
const PATIENCE: Duration = Duration::from_secs(3);
/// The file that programs read.
const FILE: &str = "/etc/resolv.conf";
/// The port that lines of [`FILE`] imply.
const PORT: u16 = 53;
/// Folders that may hold resolvconf. An ordinary user's PATH often lacks them.
const FOLDERS: [&str; 5] = ["/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/bin", "/bin"];

/// Settings of the machine, undone when this value is dropped.
pub struct Registration(RegistrationKind);

enum RegistrationKind {
    Resolvconf { program: PathBuf, record: String },
    File(Arc<ResolvConfKeeper>),
}

/// Maintains lines in a file.
pub struct ResolvConfKeeper {
    file: PathBuf,
    lines: ResolvConfLines,
    /// True after the lines were removed for good.
    ended: Mutex<bool>,
}

/// Makes the machine ask the responder at `at` for the domain of `names` and for the reverse zones
/// `zones`. The interface names this node. Returns the settings to undo; none if they end with the
/// interface, or if the file asks for none. The error says what is left to the operator. Only a
/// node that `stays_root` can undo its settings later, so another one changes no files.
pub fn register(
    names: &config::NamesConfig,
    at: SocketAddr,
    (interface, stays_root): (&str, bool),
    zones: &[String],
) -> Result<Option<Registration>, String> {
    let domain = names.domain.as_str();
    if names.resolved && is_resolved_here() {
        return by_resolved(names, at, interface, zones).map(|()| None);
    }
    if !names.resolved && !names.resolv_conf {
        return Ok(None);
    }
    let lines = ResolvConfLines {
        owner: interface.to_owned(),
        server: at.ip(),
        search: names.search.then(|| domain.to_owned()),
    };
    let left = |why: String| Err(format!("{why}: {}", by_hand(at, domain, names.search)));
    if at.port() != PORT {
        return left(format!("[names] listen: a port other than {PORT} can't be registered here"));
    }
    let program = resolvconf().filter(|_| names.resolved);
    if program.is_none() && !names.resolv_conf {
        return left("names: neither systemd-resolved nor resolvconf runs here".into());
    }
    if !stays_root {
        return left(
            "names: only a node that runs as root may change this machine's look-up of names"
                .into(),
        );
    }
    let told = match program {
        Some(program) => by_resolvconf(program, &lines, Path::new(FILE)),
        None => Err(String::new()),
    };
    match told {
        Ok(registration) => Ok(Some(registration)),
        Err(_) if names.resolv_conf => {
            let keeper = ResolvConfKeeper { file: FILE.into(), lines, ended: Mutex::new(false) };
            match keeper.keep() {
                Ok(()) => Ok(Some(Registration(RegistrationKind::File(Arc::new(keeper))))),
                Err(e) => left(format!("names: {FILE} can't be written: {e}")),
            }
        }
        Err(why) => left(why),
    }
}

/// Registers with systemd-resolved, if it runs, the responder of a node that does not run as root.
/// Only root may do so.
///
/// # Errors
/// The interface is no virtual one of a node, or resolved refuses.
pub fn tell_resolved(config: &NodeConfig) -> Result<(), String> {
    let (Some(names), Some(interface)) = (&config.names, &config.interface) else { return Ok(()) };
    if !names.resolved || !is_resolved_here() {
        return Ok(());
    }
    // The file belongs to the node's user, who must not redirect names of another interface.
    let name = interface.name.as_str();
    if !Path::new("/sys/class/net").join(name).join("tun_flags").exists() {
        return Err(format!(
            "[interface] name: no node on this machine has made {name}: start the node first"
        ));
    }
    by_resolved(names, names.listen.0.0, name, &[])
}

fn is_resolved_here() -> bool {
    Path::new("/run/systemd/resolve").exists()
}

fn by_resolved(
    names: &config::NamesConfig,
    at: SocketAddr,
    interface: &str,
    zones: &[String],
) -> Result<(), String> {
    let domain = names.domain.as_str();
    resolvectl(&["dns", interface, &at.to_string()])?;
    let own = if names.search { domain.to_owned() } else { format!("~{domain}") };
    let zones: Vec<String> = zones.iter().map(|zone| format!("~{zone}")).collect();
    let mut words = vec!["domain", interface, &own];
    words.extend(zones.iter().map(String::as_str));
    resolvectl(&words)
}

/// Advice on the steps that a node with this configuration leaves to its operator. Only a node of
/// root `may_write` files of the machine.
pub fn left_to_operator(names: &config::NamesConfig, may_write: bool) -> Option<String> {
    let is_told = names.resolved && (is_resolved_here() || (may_write && resolvconf().is_some()));
    let is_done = is_told || (names.resolv_conf && may_write);
    let is_wanted = names.resolved || names.resolv_conf;
    let by_hand = || by_hand(names.listen.0.0, names.domain.as_str(), names.search);
    (is_wanted && !is_done).then(by_hand)
}

/// Advice for an operator without systemd-resolved.
pub fn by_hand(at: SocketAddr, domain: &str, search: bool) -> String {
    let dnsmasq = dnsmasq(at, domain);
    if at.port() != PORT {
        return format!("have your resolver ask {at} for .{domain} (dnsmasq: {dnsmasq})");
    }
    let search = if search { format!(", and a line `search {domain}`") } else { String::new() };
    format!(
        "put `nameserver {}` as the first line into {FILE}{search}, or start with `resolv_conf = \
         true` in [names] (`shoal up --resolv-conf`) and the node does it; with dnsmasq: {dnsmasq} \
         (\"Names\" in docs/guide/ip.md)",
        at.ip()
    )
}

/// The line for dnsmasq's configuration.
pub(super) fn dnsmasq(at: SocketAddr, domain: &str) -> String {
    let port = if at.port() == PORT { String::new() } else { format!("#{}", at.port()) };
    format!("server=/{domain}/{}{port}", at.ip())
}

impl Registration {
    /// The lines in a file that need maintenance, if there are any.
    pub fn keeper(&self) -> Option<Arc<ResolvConfKeeper>> {
        match &self.0 {
            RegistrationKind::File(keeper) => Some(keeper.clone()),
            RegistrationKind::Resolvconf { .. } => None,
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        match &self.0 {
            // If this fails, the record names a closed port, and programs ask the next server.
            RegistrationKind::Resolvconf { program, record } => {
                drop(run(program, &["-d", record], ""))
            }
            RegistrationKind::File(keeper) => drop(keeper.end()),
        }
    }
}

impl ResolvConfKeeper {
    /// Inserts the lines, unless they are there.
    pub fn keep(&self) -> std::io::Result<()> {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        if *ended { Ok(()) } else { self.change(|text| self.lines.put(text)) }
    }

    /// Removes the lines for good.
    fn end(&self) -> std::io::Result<()> {
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        *ended = true;
        self.change(|text| self.lines.take_out(text))
    }

    fn change(&self, change: impl Fn(&str) -> String) -> std::io::Result<()> {
        let text = resolv_conf::read(&self.file)?;
        let changed = change(&text);
        if changed == text { Ok(()) } else { resolv_conf::replace(&self.file, &changed) }
    }
}

/// The program resolvconf of Debian or openresolv. The one of systemd serves only resolved.
fn resolvconf() -> Option<PathBuf> {
    let found = FOLDERS.iter().map(|folder| Path::new(folder).join("resolvconf"));
    let mut found = found.filter_map(|file| file.canonicalize().ok());
    found.find(|file| file.file_name().is_some_and(|name| name == "resolvconf"))
}

/// Registers the lines, and checks that programs still have all their servers.
fn by_resolvconf(
    program: PathBuf,
    lines: &ResolvConfLines,
    file: &Path,
) -> Result<Registration, String> {
    // Both programs put records of the loopback first.
    let record = format!("lo.{}", lines.owner);
    let servers = || resolv_conf::read(file).map(|text| resolv_conf::servers(&text));
    let before = servers().unwrap_or_default();
    run(&program, &["-a", &record], &lines.record())?;
    let registration = Registration(RegistrationKind::Resolvconf { program, record });
    let after = servers().unwrap_or_default();
    let others = before.iter().filter(|server| **server != lines.server);
    let first = after.first() == Some(&lines.server);
    if first && others.take(resolv_conf::SERVERS_MAX - 1).all(|server| after.contains(server)) {
        return Ok(registration);
    }
    // Dropping the registration removes the record.
    Err("names: resolvconf drops all servers behind a loopback address (openresolv: set \
         resolv_conf_local_only=NO in /etc/resolvconf.conf; Debian: \
         TRUNCATE_NAMESERVER_LIST_AFTER_LOOPBACK_ADDRESS=no in /etc/default/resolvconf), or \
         another resolver of this machine is asked first"
        .into())
}

fn resolvectl(words: &[&str]) -> Result<(), String> {
    run(Path::new("resolvectl"), words, "")
}

/// Runs a program to its end with this input.
fn run(program: &Path, words: &[&str], input: &str) -> Result<(), String> {
    let failed = |why: String| format!("{} {}: {why}", program.display(), words.join(" "));
    let mut command = Command::new(program);
    command.args(words).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|e| failed(e.to_string()))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A few bytes fit into the pipe. If the program does not read them, its exit status tells.
        let _written = stdin.write_all(input.as_bytes());
    }
    let began = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(failed(first_line(&mut child, status))),
            Err(e) => return Err(failed(e.to_string())),
            Ok(None) if began.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(10)),
            Ok(None) => {
                // The program took too long.
                let _ended = child.kill().and_then(|()| child.wait());
                return Err(failed("no answer in time".into()));
            }
        }
    }
}

/// The first line of the program's errors, or its exit status. Resolved obeys only root.
fn first_line(child: &mut Child, status: ExitStatus) -> String {
    let mut said = String::new();
    let stderr = child.stderr.take().map(|stderr| stderr.take(1_024));
    // The program has ended, so this read does not block.
    let read = stderr.map(|mut stderr| stderr.read_to_string(&mut said));
    match (read, said.lines().next()) {
        (Some(Ok(_)), Some(line)) if geteuid().is_root() => line.into(),
        (Some(Ok(_)), Some(line)) => format!("{line} Only root may: see dist/shoal.service"),
        _ => status.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn lines() -> ResolvConfLines {
        let server = "127.0.0.153".parse().unwrap();
        ResolvConfLines { owner: "shoal0".into(), server, search: Some("shoal".into()) }
    }

    #[test]
    fn lines_that_another_program_wrote_over_come_back_until_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("resolv.conf");
        let by_dhcp = "nameserver 192.0.2.1\n";
        std::fs::write(&file, "nameserver 192.0.2.9\n").unwrap();
        let keeper =
            ResolvConfKeeper { file: file.clone(), lines: lines(), ended: Mutex::new(false) };
        let text = || std::fs::read_to_string(&file).unwrap();
        keeper.keep().unwrap();
        std::fs::write(&file, by_dhcp).unwrap();
        keeper.keep().unwrap();
        assert_eq!(resolv_conf::servers(&text()).len(), 2);
        let keeper = Arc::new(keeper);
        drop(Registration(RegistrationKind::File(keeper.clone())));
        assert_eq!(text(), by_dhcp);
        keeper.keep().unwrap();
        assert_eq!(text(), by_dhcp, "the node has stopped");
    }

    /// A stand-in for resolvconf that changes a file of this test.
    fn program(folder: &Path, add: &str) -> (PathBuf, PathBuf) {
        let (program, file) = (folder.join("resolvconf"), folder.join("resolv.conf"));
        let name = file.display();
        let text = format!(
            "#!/bin/sh\ncase $1 in\n-a) cat > {name}.own; cp {name} {name}.old; {add} > {name};;\n\
             -d) cp {name}.old {name};;\nesac\necho $* >> {name}.said\n"
        );
        std::fs::write(&program, text.replace("FILE", &name.to_string())).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        std::fs::write(&file, "nameserver 192.0.2.9\n").unwrap();
        (program, file)
    }

    #[test]
    fn resolvconf_is_told_and_told_again_at_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let (program, file) = program(folder.path(), "cat FILE.own FILE.old");
        let before = std::fs::read_to_string(&file).unwrap();
        let registration = by_resolvconf(program, &lines(), &file).unwrap();
        let during = std::fs::read_to_string(&file).unwrap();
        assert_eq!(during, format!("nameserver 127.0.0.153\nsearch shoal\n{before}"));
        drop(registration);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), before);
        let said = std::fs::read_to_string(folder.path().join("resolv.conf.said")).unwrap();
        assert_eq!(said, "-a lo.shoal0\n-d lo.shoal0\n");
    }

    #[test]
    fn a_resolvconf_that_leaves_out_the_other_servers_is_told_no_more() {
        let folder = tempfile::tempdir().unwrap();
        let (program, file) = program(folder.path(), "cat FILE.own");
        let why = by_resolvconf(program, &lines(), &file).err().unwrap();
        assert!(why.contains("resolv_conf_local_only=NO"), "{why}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "nameserver 192.0.2.9\n");
    }
}
