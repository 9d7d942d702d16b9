//! The other programs, each run as its user would run it.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::process::ChildProcess;
use crate::site::RunningNetwork;
use crate::tcp::TcpFlow;

/// Limit of a peer's time for the file; the bytes sent by then count.
const PATIENCE: Duration = Duration::from_secs(25);
/// Limit of a server's time to answer.
const SERVER_PATIENCE: Duration = Duration::from_secs(5);
/// Interval of checks for the end of a program.
const LOOK: Duration = Duration::from_millis(5);

/// A program to compare with.
pub struct PeerProgram {
    /// Name, and whether the program encrypts.
    pub name: &'static str,
    /// Sends the file; returns its rate in Mbit/s of payload.
    pub run: fn(&PeerSite<'_>) -> Result<f64>,
}

pub const ALL: &[PeerProgram] = &[
    PeerProgram { name: "TCP cubic (clear)", run: |place| place.tcp("cubic") },
    PeerProgram { name: "TCP BBR (clear)", run: |place| place.tcp("bbr") },
    PeerProgram { name: "scp (encrypted)", run: |place| place.scp() },
    PeerProgram { name: "UFTP (clear)", run: |place| place.uftp() },
    PeerProgram { name: "wireguard-go hop by hop, TCP cubic", run: |place| place.wireguard() },
];

/// Surroundings of the programs: the chain's namespaces, and a folder.
pub struct PeerSite<'a> {
    site: &'a RunningNetwork,
    nodes: [usize; 4],
    bytes: u64,
    folder: PathBuf,
}

impl<'a> PeerSite<'a> {
    /// The chain of `site`. A file of `size_mb` named `file.bin` must exist at h1.
    pub fn new(site: &'a RunningNetwork, size_mb: f64) -> Result<PeerSite<'a>> {
        let topology = site.network().topology();
        let find = |name| topology.find(name).context("no chain");
        let nodes = [find("h1")?, find("r1")?, find("r2")?, find("h2")?];
        let folder = site.folder(nodes[3]).join("peers");
        fs::create_dir_all(&folder)?;
        Ok(PeerSite { site, nodes, bytes: (size_mb * 1e6) as u64, folder })
    }

    fn start(&self, name: &str, node: usize, mut command: Command) -> Result<ChildProcess> {
        let log = fs::File::create(self.folder.join(format!("{name}-{node}.log")))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        ChildProcess::start(name, command, self.site.network().namespace_fd(self.nodes[node]))
    }

    fn log(&self, name: &str, node: usize) -> String {
        let log = fs::read_to_string(self.folder.join(format!("{name}-{node}.log")));
        let log = log.unwrap_or_default();
        log.lines().rev().find(|l| !l.trim().is_empty()).unwrap_or("no message").to_owned()
    }

    /// Waits for the end of `process`; returns the payload rate in Mbit/s.
    fn time(&self, name: &str, mut process: ChildProcess) -> Result<f64> {
        let start = Instant::now();
        loop {
            crate::interrupt::check()?;
            if let Some(status) = process.poll()? {
                ensure!(status.success(), "failed: {}", self.log(name, 0));
                return Ok(self.bytes as f64 * 8e-6 / start.elapsed().as_secs_f64());
            }
            if start.elapsed() > PATIENCE {
                bail!("not done after {} s", PATIENCE.as_secs());
            }
            std::thread::sleep(LOOK);
        }
    }

    fn address(&self) -> Result<IpAddr> {
        self.site.network().ip_of(self.nodes[0], self.nodes[3])
    }

    fn file(&self) -> PathBuf {
        self.site.folder(self.nodes[0]).join("file.bin")
    }

    fn tcp(&self, congestion: &str) -> Result<f64> {
        self.tcp_to(self.address()?, congestion)
    }

    fn tcp_to(&self, address: IpAddr, congestion: &str) -> Result<f64> {
        let [from, .., to] = self.nodes;
        let start = Instant::now();
        let flow = TcpFlow::start(self.site.network(), (from, to), address, congestion, None)?;
        while flow.received() < self.bytes && start.elapsed() < PATIENCE {
            crate::interrupt::check()?;
            std::thread::sleep(LOOK);
        }
        Ok(flow.received() as f64 * 8e-6 / start.elapsed().as_secs_f64())
    }

    fn scp(&self) -> Result<f64> {
        let sshd = program("sshd", "apt-get install openssh-server")?;
        program("scp", "apt-get install openssh-client")?;
        // Debian's sshd needs this folder to drop its privileges.
        let _ = fs::create_dir("/run/sshd");
        let (host, user) = (self.folder.join("host"), self.folder.join("user"));
        for key in [&host, &user] {
            let _ = fs::remove_file(key);
            let mut make = Command::new("ssh-keygen");
            make.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(key);
            ensure!(make.stdin(Stdio::null()).status()?.success(), "ssh-keygen failed");
        }
        let config = self.folder.join("sshd_config");
        let text = format!(
            "Port 2222\nHostKey {}\nAuthorizedKeysFile {}.pub\nStrictModes no\nPidFile none\n\
             PermitRootLogin yes\nUsePAM no\nSubsystem sftp internal-sftp\n",
            host.display(),
            user.display()
        );
        fs::write(&config, text)?;
        let mut command = Command::new(sshd);
        command.args(["-D", "-e", "-f"]).arg(&config);
        let _server = self.start("sshd", 3, command)?;
        let address = self.address()?;
        self.wait_for_port(SocketAddr::from((address, 2222)))?;
        let mut command = Command::new("scp");
        command.args(["-q", "-P", "2222", "-o", "StrictHostKeyChecking=no", "-o"]);
        command.args(["UserKnownHostsFile=/dev/null", "-o", "BatchMode=yes", "-i"]).arg(&user);
        command.arg(self.file());
        command.arg(format!("{address}:{}", self.folder.join("scp.bin").display()));
        self.time("scp", self.start("scp", 0, command)?)
    }

    fn wait_for_port(&self, at: SocketAddr) -> Result<()> {
        let near = self.site.network().namespace(self.nodes[0]).context("no namespace")?;
        let end = Instant::now() + SERVER_PATIENCE;
        while near.enter(|| Ok(TcpStream::connect_timeout(&at, LOOK * 40)?)).is_err() {
            ensure!(Instant::now() < end, "no answer from its server: {}", self.log("sshd", 3));
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    fn uftp(&self) -> Result<f64> {
        let sender = program("uftp", "apt-get install uftp")?;
        let receiver = program("uftpd", "apt-get install uftp")?;
        let into = self.folder.join("uftp");
        fs::create_dir_all(&into)?;
        let network = self.site.network();
        let mut command = Command::new(receiver);
        command.args(["-d", "-D"]).arg(&into);
        command.args(["-I", &network.interface(self.nodes[3], self.nodes[2])]);
        let _server = self.start("uftpd", 3, command)?;
        std::thread::sleep(Duration::from_millis(500));
        let mut command = Command::new(sender);
        command.args(["-M", &self.address()?.to_string()]);
        command.args(["-I", &network.interface(self.nodes[0], self.nodes[1])]);
        // UFTP has no congestion control by default: its rate is set 8 % below the line's.
        let topology = network.topology();
        let link = topology.link_between(self.nodes[1], self.nodes[2]).context("no link")?;
        let rate = network.rate(link).map_or(2_000_000, |r| r.0 / 1_000 * 92 / 100);
        command.args(["-R", &rate.to_string()]).arg(self.file());
        self.time("uftp", self.start("uftp", 0, command)?)
    }

    fn wireguard(&self) -> Result<f64> {
        let program_path = wireguard_go()?;
        program("wg", "apt-get install wireguard-tools")?;
        // wireguard-go names its control socket by its interface, for the whole machine.
        let names: Vec<String> = (0..4).map(|n| format!("w{}_{n}", std::process::id())).collect();
        let mut all = Vec::new();
        for (n, name) in names.iter().enumerate() {
            let command = wireguard_command(&program_path, name);
            all.push(self.start("wireguard", n, command)?);
        }
        std::thread::sleep(Duration::from_millis(1_500));
        let keys: Vec<(PathBuf, String)> =
            (0..4).map(|n| wireguard_key(&self.folder, n)).collect::<Result<_>>()?;
        for (n, name) in names.iter().enumerate() {
            let port = 51_820.to_string();
            wg(&["set", name, "listen-port", &port, "private-key"], Some(&keys[n].0))?;
            for (other, behind) in [(n.wrapping_sub(1), 0..n), (n + 1, n + 1..4)] {
                let Some((_, public)) = keys.get(other) else { continue };
                let at = self.site.network().ip_of(self.nodes[n], self.nodes[other])?;
                let nets: Vec<String> = behind.map(|i| format!("10.99.0.{}/32", i + 1)).collect();
                let (endpoint, nets) = (format!("{at}:51820"), nets.join(","));
                let words = ["set", name, "peer", public, "endpoint", &endpoint];
                wg(&[&words[..], &["allowed-ips", &nets]].concat(), None)?;
            }
            let space = self.site.network().namespace(self.nodes[n]).context("no namespace")?;
            let at = Ipv4Addr::new(10, 99, 0, n as u8 + 1);
            crate::veth::address(space, name, at.into(), 24)?;
        }
        self.tcp_to(Ipv4Addr::new(10, 99, 0, 4).into(), "cubic")
    }
}

/// The command that runs wireguard-go in the foreground, with this interface name.
pub(crate) fn wireguard_command(program: &Path, interface: &str) -> Command {
    let mut command = Command::new(program);
    command.args(["-f", interface]).env("WG_PROCESS_FOREGROUND", "1").env("LOG_LEVEL", "error");
    command
}

/// Makes a file with a new private key; returns its path and the public key.
pub(crate) fn wireguard_key(folder: &Path, n: usize) -> Result<(PathBuf, String)> {
    let key = Command::new("wg").arg("genkey").output()?.stdout;
    let path = folder.join(format!("wg{n}.key"));
    let _ = fs::remove_file(&path);
    shoal_daemon::config::keys::create(&path, &String::from_utf8(key)?)?;
    let public = Command::new("wg").arg("pubkey").stdin(fs::File::open(&path)?).output()?;
    Ok((path, String::from_utf8(public.stdout)?.trim().to_owned()))
}

/// Runs wireguard's `wg`, with `file` as its last argument.
pub(crate) fn wg(words: &[&str], file: Option<&PathBuf>) -> Result<()> {
    let output = Command::new("wg").args(words).args(file).output()?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "wg {}: {}", words.join(" "), said.trim());
    Ok(())
}

/// Path of wireguard-go; the error tells how to install it.
pub(crate) fn wireguard_go() -> Result<PathBuf> {
    let names = ["wireguard-go", "wireguard"];
    let found = names.iter().map(|n| go_programs().join(n)).find(|p| p.is_file());
    let how = "go install golang.zx2c4.com/wireguard@latest";
    found.map_or_else(|| program("wireguard-go", how), Ok)
}

/// Folder in which `go install` puts programs.
fn go_programs() -> PathBuf {
    let asked = Command::new("go").args(["env", "GOPATH"]).stderr(Stdio::null()).output();
    let said = asked.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    match said {
        Ok(path) if !path.is_empty() => PathBuf::from(path).join("bin"),
        _ => std::env::home_dir().unwrap_or_default().join("go/bin"),
    }
}

/// Path of a program; the error tells how to install it.
pub(crate) fn program(name: &str, how: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    let found = folders.map(|f| f.join(name)).find(|p| p.is_file());
    found.with_context(|| format!("missing: {name} ({how})"))
}
