//! Folders, configurations, keys and processes of a network's nodes. All are made as a user would
//! make them with `shoal genkey`, an editor and `shoal run`.

use std::fmt::Write;
use std::fs::File;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use shoal_crypto::{Identity, NetworkSecret};
use shoal_daemon::config::keys;
use shoal_daemon::control::api;
use shoal_daemon::control::socket::ControlConnection;

use crate::executable::Executable;
use crate::network::Network;
use crate::process::ChildProcess;

/// Limit of a Unix socket's path (unix(7): 108 bytes with the final zero).
const SOCKET_PATH_MAX: usize = 107;
/// Interval of checks while waiting for a condition.
const LOOK: Duration = Duration::from_millis(20);

/// A network with its nodes running.
///
/// Fields drop in this order: processes end before their links and folders are removed.
#[derive(Debug)]
pub struct RunningNetwork {
    /// `None` for a machine without a node, and for a killed node that was not restarted.
    nodes: Vec<Option<ChildProcess>>,
    network: Network,
    folder: PathBuf,
    executable: Executable,
}

impl RunningNetwork {
    /// Writes all files of the nodes of `network` into `folder`, and starts `executable` for each.
    /// `extra` is appended to every node's configuration.
    pub fn start(
        network: Network,
        executable: &Executable,
        folder: &Path,
        extra: &str,
    ) -> Result<RunningNetwork> {
        RunningNetwork::start_after(network, executable, folder, extra, |_, _| Ok(()))
    }

    /// Like [`RunningNetwork::start`]; `change` may change the files or the namespaces before the
    /// nodes run.
    pub fn start_after(
        network: Network,
        executable: &Executable,
        folder: &Path,
        extra: &str,
        change: impl FnOnce(&Network, &Path) -> Result<()>,
    ) -> Result<RunningNetwork> {
        write_files(&network, folder, extra)?;
        change(&network, folder)?;
        let mut site = RunningNetwork {
            nodes: Vec::new(),
            network,
            folder: folder.to_path_buf(),
            executable: executable.clone(),
        };
        for node in 0..site.network.topology().nodes.len() {
            let plain = site.network.topology().nodes[node].plain;
            let process = if plain { None } else { Some(site.start_node(node)?) };
            site.nodes.push(process);
        }
        Ok(site)
    }

    pub fn network(&self) -> &Network {
        &self.network
    }

    /// The running node processes, in the topology's order.
    pub fn nodes(&self) -> impl Iterator<Item = &ChildProcess> {
        self.nodes.iter().flatten()
    }

    /// The process of `node`; `None` if the node does not run.
    pub fn process(&self, node: usize) -> Option<&ChildProcess> {
        self.nodes[node].as_ref()
    }

    /// The node's folder.
    pub fn folder(&self, node: usize) -> PathBuf {
        self.folder.join(&self.network.topology().nodes[node].name)
    }

    /// Connects to the node's control socket.
    pub fn control(&self, node: usize) -> Result<ControlConnection> {
        Ok(ControlConnection::connect(&self.socket(node))?)
    }

    /// Sends one command to `node`, and returns its reply.
    pub fn ask(&self, node: usize, command: api::Command) -> Result<api::ControlReply> {
        Ok(self.control(node)?.call(command, &[])?)
    }

    /// The command `shoal ARGS --socket ...`, prepared to run beside `node`, as its user would run
    /// it.
    pub fn command(&self, node: usize, arguments: &[&str]) -> Command {
        let mut command = self.executable.command();
        command.args(arguments).arg("--socket").arg(self.socket(node));
        command.current_dir(self.folder(node)).stdin(Stdio::null());
        command
    }

    /// Ends `node` in order and starts it again.
    pub fn restart(&mut self, node: usize) -> Result<()> {
        // Dropping the process asks it to end, and waits.
        self.nodes[node] = None;
        self.revive(node)
    }

    /// Ends these nodes in order, all at once, and starts them again.
    pub fn restart_all(&mut self, nodes: &[usize]) -> Result<()> {
        for &node in nodes {
            self.nodes[node].iter_mut().for_each(ChildProcess::ask_to_end);
        }
        nodes.iter().try_for_each(|&node| self.restart(node))
    }

    /// Kills `node`, like a power failure.
    pub fn kill(&mut self, node: usize) {
        if let Some(mut process) = self.nodes[node].take() {
            process.kill();
        }
    }

    /// Starts `node` again after a kill; does nothing if it runs.
    pub fn revive(&mut self, node: usize) -> Result<()> {
        if self.nodes[node].is_none() {
            self.nodes[node] = Some(self.start_node(node)?);
        }
        Ok(())
    }

    /// Waits until `done` returns a value, or fails after `patience`. Fails at once if a node has
    /// ended or the user interrupts.
    pub fn wait<T>(
        &mut self,
        what: &str,
        patience: Duration,
        mut done: impl FnMut(&mut RunningNetwork) -> Result<Option<T>>,
    ) -> Result<T> {
        let deadline = Instant::now() + patience;
        let mut last = None;
        loop {
            crate::interrupt::check()?;
            self.check_alive()?;
            match done(self) {
                Ok(Some(value)) => return Ok(value),
                Ok(None) => {}
                // A starting node refuses connections.
                Err(e) => last = Some(e),
            }
            if Instant::now() > deadline {
                let seconds = patience.as_secs();
                return match last {
                    Some(e) => Err(e.context(format!("waited {seconds} s for {what}"))),
                    None => bail!("gave up on {what} after {seconds} s"),
                };
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Waits until every node answers, all links are up, and every router has routes to the others.
    pub fn wait_until_up(&mut self, patience: Duration) -> Result<()> {
        let topology = self.network.topology().clone();
        for (node, spec) in topology.nodes.iter().enumerate().filter(|(_, s)| !s.plain) {
            let links = topology.neighbours_of(node).count();
            let what = format!("{} and its {links} links", spec.name);
            self.wait(&what, patience, |site| match site.ask(node, api::Command::Status)? {
                api::ControlReply::Status(s) => Ok((s.links_up as usize == links).then_some(())),
                other => bail!("unexpected answer {other:?}"),
            })?;
        }
        let routers: Vec<usize> = topology.routers().collect();
        for &from in &routers {
            for &to in routers.iter().filter(|&&to| to != from) {
                let number = topology.nodes[to].address.router;
                let what = format!("a route from {} to router {number}", topology.nodes[from].name);
                self.wait(&what, patience, |site| Ok(site.next_hop(from, number)?.map(drop)))?;
            }
        }
        Ok(())
    }

    /// Name of the neighbour through which `node` reaches router number `router`.
    pub fn next_hop(&self, node: usize, router: u32) -> Result<Option<String>> {
        let api::ControlReply::Routes(routes) = self.ask(node, api::Command::Routes)? else {
            bail!("the node answered `routes` with another reply");
        };
        Ok(routes.into_iter().find(|r| r.router == router).and_then(|r| r.next_hop))
    }

    /// The node's status.
    ///
    /// # Errors
    /// The node does not answer.
    pub fn status(&self, node: usize) -> Result<api::Status> {
        match self.ask(node, api::Command::Status)? {
            api::ControlReply::Status(status) => Ok(*status),
            other => bail!("the node answered `status` with another reply: {other:?}"),
        }
    }

    /// The node's list of neighbours.
    ///
    /// # Errors
    /// The node does not answer.
    pub fn peers(&self, node: usize) -> Result<Vec<api::NeighbourStatus>> {
        match self.ask(node, api::Command::Peers)? {
            api::ControlReply::Peers(peers) => Ok(peers),
            other => bail!("the node answered `peers` with another reply: {other:?}"),
        }
    }

    /// The address of a host's virtual interface.
    pub fn interface(&self, node: usize) -> Result<IpAddr> {
        Ok(self.status(node)?.interface.context("the node has no interface")?.address.parse()?)
    }

    /// Fails if a node has ended, with the end of its log.
    pub fn check_alive(&mut self) -> Result<()> {
        for node in 0..self.nodes.len() {
            let Some(process) = &mut self.nodes[node] else { continue };
            if let Some(status) = process.poll()? {
                let name = process.name().to_owned();
                bail!("node {name} ended by itself ({status}):\n{}", self.log_end(node));
            }
        }
        Ok(())
    }

    /// The last lines of a node's log.
    pub fn log_end(&self, node: usize) -> String {
        let log = std::fs::read_to_string(self.folder(node).join("node.log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }

    fn socket(&self, node: usize) -> PathBuf {
        self.folder(node).join("control.sock")
    }

    fn start_node(&self, node: usize) -> Result<ChildProcess> {
        let name = &self.network.topology().nodes[node].name;
        let folder = self.folder(node);
        let log = File::options()
            .create(true)
            .append(true)
            .open(folder.join("node.log"))
            .context("the node's log")?;
        let mut command = self.executable.node("node.toml");
        command.current_dir(&folder).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        ChildProcess::start(name, command, self.network.namespace_fd(node))
    }
}

impl Drop for RunningNetwork {
    fn drop(&mut self) {
        // All nodes are asked at once, so that their shutdowns overlap.
        self.nodes.iter_mut().flatten().for_each(ChildProcess::ask_to_end);
    }
}

/// Inserts `more` after the line `after` of a file.
pub(crate) fn insert(file: &Path, after: &str, more: &str) -> Result<()> {
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    ensure!(text.contains(after), "{}: there is no {after:?}", file.display());
    std::fs::write(file, text.replacen(after, &format!("{after}{more}"), 1))?;
    Ok(())
}

fn write_files(network: &Network, folder: &Path, extra: &str) -> Result<()> {
    let topology = network.topology();
    let secret = keys::network_secret_text(&NetworkSecret(keys::os_random()?));
    let mut hosts = String::new();
    for (node, spec) in topology.nodes.iter().enumerate().filter(|(_, s)| !s.plain) {
        let home = folder.join(&spec.name);
        std::fs::create_dir_all(&home).with_context(|| home.display().to_string())?;
        let socket = home.join("control.sock");
        if socket.as_os_str().len() > SOCKET_PATH_MAX {
            bail!("{}: too long for a Unix socket; choose a shorter folder", socket.display());
        }
        let identity = Identity::generate(keys::os_random()?);
        keys::create(&home.join("node.key"), &keys::identity_text(&identity))?;
        keys::create(&home.join("network.key"), &secret)?;
        let (name, address, key) = (&spec.name, spec.address, identity.public());
        writeln!(hosts, "[[host]]\nname = \"{name}\"\naddress = \"{address}\"\nkey = \"{key}\"")?;
        if let Some((link, other)) = topology.direct_link_of(node) {
            // Endpoint of the other host for a direct link.
            writeln!(hosts, "endpoint = \"{}\"", network.endpoint(link, other))?;
        }
        writeln!(hosts)?;
        std::fs::write(home.join("node.toml"), config(network, node, extra))?;
    }
    std::fs::write(folder.join("hosts.toml"), hosts)?;
    Ok(())
}

fn config(network: &Network, node: usize, extra: &str) -> String {
    let topology = network.topology();
    let spec = &topology.nodes[node];
    let mut text = format!(
        "[node]\nname = \"{}\"\naddress = \"{}\"\nkey_file = \"node.key\"\n\
         network_secret_file = \"network.key\"\nhosts_file = \"../hosts.toml\"\n\
         listen = [\"{}\"]\ncontrol_socket = \"control.sock\"\n",
        spec.name,
        spec.address,
        network.listen(node)
    );
    for (link, neighbour) in topology.neighbours_of(node) {
        let peer = &topology.nodes[neighbour];
        text += &format!("\n[[link]]\npeer = \"{}\"\n", peer.name);
        // A router waits for the calls of its hosts, as if they were behind home routers.
        if peer.address.is_router() {
            text += &format!("endpoint = \"{}\"\n", network.endpoint(link, node));
        }
    }
    format!("{text}\n{extra}")
}
