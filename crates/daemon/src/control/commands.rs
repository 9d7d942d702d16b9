//! Commands of programs, answered by the first worker.

use shoal_directory::Rights as Right;
use shoal_edge::HostId;
use shoal_wire::Time;

use crate::config::{self, Newer};
use crate::control::api::{Command, ErrorCode, Reply};
use crate::control::socket::{FromControl, Request};
use crate::control::{answers, circuits, directory};
use crate::tun::interface::Interface;
use crate::worker::direct;
use crate::worker::first::{Parts, Worker};
use crate::worker::hopping::check_inside;

/// Programs that may watch changes at once.
const MONITORS_MAX: usize = 32;

impl Worker {
    /// Takes in what a control thread handed over.
    pub(crate) fn handle_control(&mut self, now: Time, message: FromControl) {
        match message {
            FromControl::Request(request) => self.handle_request(now, request),
            FromControl::Closed(client) => {
                self.monitors.retain(|monitor| monitor.id() != client);
                self.pings.client_closed(client);
                self.probes.client_closed(client);
                self.hop_probes.client_closed(client);
                let Parts { node, files, .. } = &mut self.parts;
                files.client_closed(now, &mut node.edge, client);
            }
        }
    }

    fn handle_request(&mut self, now: Time, mut request: Request) {
        if self.stopping.is_some() {
            return request.reply(Reply::error(ErrorCode::Internal, "the node is stopping"));
        }
        if let Command::Ping { .. } | Command::Hops { .. } | Command::Send { .. } = &request.command
            && let Some(why) = self.parts.authority.as_ref().and_then(|a| a.closed(now))
        {
            return request.reply(Reply::error(ErrorCode::Unreachable, why));
        }
        match &request.command {
            Command::Ping { host, timeout_ms } => {
                let (host, timeout_ms) = (host.clone(), *timeout_ms);
                return self.ping(now, request, &host, timeout_ms);
            }
            Command::Hops { host, timeout_ms } => {
                let (host, timeout_ms) = (host.clone(), *timeout_ms);
                return self.ask_hops(now, request, &host, timeout_ms);
            }
            Command::HopProbe => {
                return self.hop_probes.start(now, &mut self.parts, request.defer());
            }
            Command::Supplements { steps } => {
                let steps = directory::decode(steps);
                let authority = self.parts.authority.as_mut().ok_or_else(directory::none);
                return match (authority, steps) {
                    (Ok(authority), Ok(steps)) => authority.submit(request.defer(), steps),
                    (Err(reply), _) | (_, Err(reply)) => request.reply(reply),
                };
            }
            _ => {}
        }
        let reply = self.answer(now, &mut request);
        request.reply(reply);
    }

    /// The host of this name, if it may be sent echoes.
    fn may_ping(&self, host: &str) -> Result<HostId, Reply> {
        let Parts { names, rights, .. } = &self.parts;
        let id = names.find(host).ok_or_else(|| names.unknown(host))?;
        let may = rights.as_ref().is_none_or(|rights| rights.may_we(id, Right::Ping));
        if may { Ok(id) } else { Err(policy_denies()) }
    }

    fn ping(&mut self, now: Time, request: Request, host: &str, timeout_ms: u32) {
        match self.may_ping(host) {
            Ok(id) => {
                let edge = &mut self.parts.node.edge;
                self.pings.start(now, edge, id, timeout_ms, request.defer());
            }
            Err(reply) => request.reply(reply),
        }
    }

    fn ask_hops(&mut self, now: Time, request: Request, host: &str, timeout_ms: u32) {
        let found = self.may_ping(host).and_then(|id| circuits::with(&self.parts, id, host));
        match found {
            Ok((id, to)) => {
                self.parts.node.want_circuit(now, id);
                let pending = request.defer();
                self.probes.start(now, &mut self.parts, to, timeout_ms, pending);
            }
            Err(reply) => request.reply(reply),
        }
    }

    fn answer(&mut self, now: Time, request: &mut Request) -> Reply {
        let client = request.client.id();
        let descriptors = std::mem::take(&mut request.descriptors);
        let Parts { node, files, names, rights, .. } = &mut self.parts;
        let edge = &mut node.edge;
        match &mut request.command {
            Command::Status => self.status(now),
            Command::Peers => Reply::Peers(answers::peers(&self.parts, now)),
            Command::Netcheck => Reply::Netcheck(Box::new(direct::netcheck(&self.parts))),
            Command::Routes => Reply::Routes(answers::routes(&self.parts, now)),
            Command::Hosts { skip } => {
                Reply::Hosts(crate::control::known::hosts(&self.parts, now, *skip as usize))
            }
            Command::Circuits => self.circuits(now),
            Command::Metrics => {
                let open = self.open_circuits(now);
                let parts = &self.parts;
                let make =
                    || (crate::control::metrics::metrics(parts, open, now), parts.clock.now());
                Reply::Metrics(self.metrics.get(now, make))
            }
            Command::Monitor => self.monitor(request),
            Command::Ping { .. } | Command::Hops { .. } | Command::Supplements { .. } => later(),
            Command::HopProbe => later(),
            Command::Directory => directory::directory(&self.parts, now),
            Command::List { version, skip } => directory::list(&self.parts, *version, *skip),
            Command::Steps { mandate, first } => directory::steps(&self.parts, mandate, *first),
            Command::Ledger(end) => directory::keep_ledger(&mut self.parts, end),
            Command::Secret { proof } => directory::secret(&self.parts, proof),
            Command::Send { host, files: list } => match names.find(host) {
                None => names.unknown(host),
                Some(id)
                    if rights.as_ref().is_some_and(|rights| !rights.may_we(id, Right::Files)) =>
                {
                    policy_denies()
                }
                Some(id) => {
                    let list = std::mem::take(list);
                    files.send(now, edge, &request.client, id, list, descriptors)
                }
            },
            Command::Receive { from, max_size } => {
                let reply = files.receive(&request.client, from, *max_size, names);
                let closed = || self.parts.authority.as_ref().and_then(|a| a.closed(now));
                match &reply {
                    // No name is known while the list is too old.
                    Reply::Error(refused) if refused.code == ErrorCode::UnknownHost => {
                        closed().map_or(reply, |why| Reply::error(ErrorCode::Unreachable, why))
                    }
                    _ => reply,
                }
            }
            Command::Accept { transfer, have } => {
                files.accept(now, edge, client, *transfer, have, descriptors)
            }
            Command::Compare { transfer } => {
                files.compare(now, edge, client, *transfer, descriptors)
            }
            Command::Refuse { transfer, reason } => {
                files.refuse(now, edge, client, *transfer, *reason)
            }
            Command::Confirm { transfer } => files.confirm(now, edge, client, *transfer),
            Command::Cancel { transfer, reason } => {
                files.cancel(now, edge, client, *transfer, *reason)
            }
            Command::Reload => reloaded(self.reload()),
            Command::Registrar { .. } => no_registrar(),
        }
    }

    fn status(&mut self, now: Time) -> Reply {
        let open = self.open_circuits(now);
        Reply::Status(Box::new(answers::status(&self.parts, open, now)))
    }

    fn circuits(&mut self, now: Time) -> Reply {
        let open = self.open_circuits(now);
        Reply::Circuits(Box::new(circuits::view(&self.parts, now, open)))
    }

    /// How many circuits there are, as others may see it.
    fn open_circuits(&mut self, now: Time) -> u64 {
        let Parts { circuits, node, .. } = &mut self.parts;
        circuits.open.get(now, node.circuits.onion.len())
    }

    fn monitor(&mut self, request: &Request) -> Reply {
        if self.monitors.len() >= MONITORS_MAX {
            return Reply::error(ErrorCode::Busy, "too many programs watch this node");
        }
        self.monitors.push(request.client.clone());
        Reply::Ok
    }

    /// Reads the configuration and the list of hosts again; says what is applied and what waits
    /// for a restart.
    pub(crate) fn reload(&mut self) -> anyhow::Result<(Vec<String>, Vec<String>)> {
        let now = self.parts.clock.now();
        let Parts { names, config, authority, hopping, .. } = &mut self.parts;
        let Newer { config: newer, hosts, links, mut applied, mut waiting } =
            config::reread(config, names.hosts())?;
        if newer.hop != config.hop {
            check_inside(&newer)?;
        }
        if newer.hop_prefix() != config.hop_prefix() {
            hopping.as_ref().map_or(Ok(()), |hopping| hopping.may_move(&newer))?;
        }
        let mut before = None;
        let (newer, hosts, linked) = match authority {
            None => (newer, hosts, None),
            Some(authority) => {
                authority.reread(now)?;
                before = Some(authority.set_links(links, newer.accept.clone()));
                let (hosts, linked) = (authority.hosts(now), authority.linked(now));
                let of_links = linked.as_ref().unwrap_or(&hosts);
                (authority.effective(&newer, of_links), hosts, linked)
            }
        };
        let done = self.put_in_force(now, newer, hosts, linked);
        // The next list must not bring links of a file that was refused.
        if let (Err(_), Some((links, accept)), Some(authority)) =
            (&done, before, &mut self.parts.authority)
        {
            authority.set_links(links, accept);
        }
        self.apply_list(now);
        self.parts.log.set_level(self.parts.config.log.level.as_str());
        applied.extend(done??);
        let Parts { interface, names, config, .. } = &self.parts;
        interface.iter().for_each(Interface::put_right);
        let own = names.hosts().by_name(&config.node.name).and_then(|me| me.ipv4);
        if interface.as_ref().is_some_and(|interface| interface.ipv4() != own) {
            waiting.push("ipv4 of this node".into());
        }
        self.parts.journal.waiting.clone_from(&waiting);
        self.look_up_endpoints(now);
        Ok((applied, waiting))
    }
}

fn reloaded(done: anyhow::Result<(Vec<String>, Vec<String>)>) -> Reply {
    match done {
        Ok((applied, needs_restart)) => Reply::Reloaded { applied, needs_restart },
        Err(error) => Reply::error(ErrorCode::BadConfig, format!("{error:#}")),
    }
}

fn no_registrar() -> Reply {
    let text = "this is a node, and the registrar is a process of its own: name its control socket";
    Reply::error(ErrorCode::BadRequest, text)
}

fn later() -> Reply {
    Reply::error(ErrorCode::Internal, "this is answered later")
}

fn policy_denies() -> Reply {
    let text = "the network's policy does not allow it: see the groups of both with \
                `shoal authority list`";
    Reply::error(ErrorCode::Policy, text)
}
