//! Commands of programs, which the first worker answers.

use shoal_directory::TrafficKind as Right;
use shoal_edge::HostId;
use shoal_wire::Time;

use crate::config::{self, ReloadedFiles};
use crate::control::api::{Command, ControlReply, ErrorCode};
use crate::control::socket::{ClientMessage, ControlRequest};
use crate::control::{answers, circuits, directory, hidden};
use crate::tun::interface::VirtualInterface;
use crate::worker::direct;
use crate::worker::first::{FirstWorker, WorkerParts};
use crate::worker::shifting::check_inside;

/// Most programs that may watch changes at once.
const MONITORS_MAX: usize = 32;

impl FirstWorker {
    /// Handles a message of a control thread.
    pub(crate) fn handle_control(&mut self, now: Time, message: ClientMessage) {
        match message {
            ClientMessage::Request(request) => self.handle_request(now, request),
            ClientMessage::Closed(client) => {
                self.monitors.retain(|monitor| monitor.id() != client);
                self.pings.client_closed(client);
                self.probes.client_closed(client);
                self.shift_probes.client_closed(client);
                let WorkerParts { node, files, .. } = &mut self.parts;
                files.client_closed(now, &mut node.edge, client);
            }
        }
    }

    fn handle_request(&mut self, now: Time, mut request: ControlRequest) {
        if self.stopping.is_some() {
            let reply = match request.command {
                Command::Stop => ControlReply::Ok,
                _ => ControlReply::error(ErrorCode::Internal, "the node is stopping"),
            };
            return request.reply(reply);
        }
        if let Command::Ping { .. } | Command::Hops { .. } | Command::Send { .. } = &request.command
            && let Some(why) = self.parts.authority.as_ref().and_then(|a| a.closed(now))
        {
            return request.reply(ControlReply::error(ErrorCode::Unreachable, why));
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
            Command::ShiftProbe => {
                return self.shift_probes.start(now, &mut self.parts, request.defer());
            }
            Command::Supplements { steps } => {
                let steps = directory::decode(steps);
                let authority = self.parts.authority.as_mut().ok_or_else(directory::none);
                return match (authority, steps) {
                    (Ok(authority), Ok(steps)) => authority.submit(request.defer(), steps),
                    (Err(reply), _) | (_, Err(reply)) => request.reply(reply),
                };
            }
            Command::Stop => {
                self.stop(now);
                return request.reply(ControlReply::Ok);
            }
            _ => {}
        }
        let reply = self.answer(now, &mut request);
        request.reply(reply);
    }

    /// The host called `host`, if policy lets this node ping it.
    fn may_ping(&self, host: &str) -> Result<HostId, ControlReply> {
        let WorkerParts { names, rights, .. } = &self.parts;
        let id = names.find(host).ok_or_else(|| names.unknown(host))?;
        let may = rights.as_ref().is_none_or(|rights| rights.may_we(id, Right::Ping));
        if may { Ok(id) } else { Err(policy_denies()) }
    }

    fn ping(&mut self, now: Time, request: ControlRequest, host: &str, timeout_ms: u32) {
        match self.may_ping(host) {
            Ok(id) => {
                let edge = &mut self.parts.node.edge;
                self.pings.start(now, edge, id, timeout_ms, request.defer());
            }
            Err(reply) => request.reply(reply),
        }
    }

    fn ask_hops(&mut self, now: Time, request: ControlRequest, host: &str, timeout_ms: u32) {
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

    fn answer(&mut self, now: Time, request: &mut ControlRequest) -> ControlReply {
        let client = request.client.id();
        let descriptors = std::mem::take(&mut request.descriptors);
        let WorkerParts { node, files, names, rights, .. } = &mut self.parts;
        let edge = &mut node.edge;
        match &mut request.command {
            Command::Status => self.status(now),
            Command::Peers => ControlReply::Peers(answers::peers(&self.parts, now)),
            Command::Netcheck => ControlReply::Netcheck(Box::new(direct::netcheck(&self.parts))),
            Command::Routes => ControlReply::Routes(answers::routes(&self.parts, now)),
            Command::Hosts { skip } => {
                ControlReply::Hosts(crate::control::known::hosts(&self.parts, now, *skip as usize))
            }
            Command::Circuits => self.circuits(now),
            Command::Hidden { host } => hidden::status(&self.parts, now, host.as_deref()),
            Command::Forget { host } => self.forget_circuits(now, host.as_deref()),
            Command::Metrics => self.counters(now),
            Command::Monitor => self.monitor(request),
            Command::Ping { .. } | Command::Hops { .. } | Command::Supplements { .. } => later(),
            Command::ShiftProbe | Command::Stop => later(),
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
                    // With a stale list, no name is known.
                    ControlReply::Error(refused) if refused.code == ErrorCode::UnknownHost => {
                        closed()
                            .map_or(reply, |why| ControlReply::error(ErrorCode::Unreachable, why))
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

    fn status(&mut self, now: Time) -> ControlReply {
        let open = self.open_circuits(now);
        ControlReply::Status(Box::new(answers::status(&self.parts, open, now)))
    }

    fn circuits(&mut self, now: Time) -> ControlReply {
        let open = self.open_circuits(now);
        ControlReply::Circuits(Box::new(circuits::view(&self.parts, now, open)))
    }

    fn counters(&mut self, now: Time) -> ControlReply {
        let open = self.open_circuits(now);
        let parts = &self.parts;
        let make = || (crate::control::metrics::metrics(parts, open, now), parts.clock.now());
        ControlReply::Metrics(self.metrics.get(now, make))
    }

    /// Rounded number of open circuits.
    fn open_circuits(&mut self, now: Time) -> u64 {
        let WorkerParts { circuits, node, .. } = &mut self.parts;
        circuits.open.get(now, node.circuits.onion.len())
    }

    fn monitor(&mut self, request: &ControlRequest) -> ControlReply {
        if self.monitors.len() >= MONITORS_MAX {
            return ControlReply::error(ErrorCode::Busy, "too many programs watch this node");
        }
        self.monitors.push(request.client.clone());
        ControlReply::Ok
    }

    /// Reads the configuration and the list of hosts again. Returns the keys that are applied and
    /// those that wait for a restart.
    pub(crate) fn reload(&mut self) -> anyhow::Result<(Vec<String>, Vec<String>)> {
        let now = self.parts.clock.now();
        let WorkerParts { names, config, authority, shifting, .. } = &mut self.parts;
        let ReloadedFiles { config: newer, hosts, links, mut applied, mut waiting } =
            config::reread(config, names.hosts())?;
        if newer.shift != config.shift {
            check_inside(&newer)?;
        }
        if newer.shift_prefix() != config.shift_prefix() {
            shifting.as_ref().map_or(Ok(()), |shifting| shifting.may_move(&newer))?;
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
        // The next list must not bring back links of a file that was refused.
        if let (Err(_), Some((links, accept)), Some(authority)) =
            (&done, before, &mut self.parts.authority)
        {
            authority.set_links(links, accept);
        }
        self.apply_list(now);
        self.parts.log.set_level(self.parts.config.log.level.as_str());
        applied.extend(done??);
        let WorkerParts { interface, names, config, .. } = &self.parts;
        interface.iter().for_each(VirtualInterface::put_right);
        let own = names.hosts().by_name(&config.node.name).and_then(|me| me.ipv4);
        if interface.as_ref().is_some_and(|interface| interface.ipv4() != own) {
            waiting.push("ipv4 of this node".into());
        }
        self.parts.journal.waiting.clone_from(&waiting);
        self.look_up_endpoints(now);
        Ok((applied, waiting))
    }
}

fn reloaded(done: anyhow::Result<(Vec<String>, Vec<String>)>) -> ControlReply {
    match done {
        Ok((applied, needs_restart)) => ControlReply::Reloaded { applied, needs_restart },
        Err(error) => ControlReply::error(ErrorCode::BadConfig, format!("{error:#}")),
    }
}

fn no_registrar() -> ControlReply {
    let text =
        "this is a node, not a registrar: name the control socket of the registrar's process";
    ControlReply::error(ErrorCode::BadRequest, text)
}

fn later() -> ControlReply {
    ControlReply::error(ErrorCode::Internal, "this is answered later")
}

fn policy_denies() -> ControlReply {
    let text = "the network's policy does not allow it: see the groups of both with \
                `shoal authority list`";
    ControlReply::error(ErrorCode::Policy, text)
}
