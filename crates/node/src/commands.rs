//! Commands of programs, answered by the worker.

use shoal_wire::Time;

use crate::answers;
use crate::api::{Command, ErrorCode, Reply};
use crate::build;
use crate::config::{self, Newer};
use crate::control::{FromControl, Request};
use crate::links;
use crate::worker::{Parts, Worker};

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
                let Parts { machines, files, .. } = &mut self.parts;
                files.client_closed(now, &mut machines.edge, client);
            }
        }
    }

    fn handle_request(&mut self, now: Time, mut request: Request) {
        if self.stopping.is_some() {
            return request.reply(Reply::error(ErrorCode::Internal, "the node is stopping"));
        }
        if let Command::Ping { host, timeout_ms } = &request.command {
            let Parts { machines, names, .. } = &mut self.parts;
            return match names.host_id(host) {
                None => {
                    let reply = names.unknown(host);
                    request.reply(reply);
                }
                Some(id) => {
                    let timeout_ms = *timeout_ms;
                    let pending = request.defer();
                    self.pings.start(now, &mut machines.edge, id, timeout_ms, pending);
                }
            };
        }
        let reply = self.answer(now, &mut request);
        request.reply(reply);
    }

    fn answer(&mut self, now: Time, request: &mut Request) -> Reply {
        let client = request.client.id();
        let descriptors = std::mem::take(&mut request.descriptors);
        let Parts { machines, files, names, .. } = &mut self.parts;
        let edge = &mut machines.edge;
        match &mut request.command {
            Command::Status => Reply::Status(Box::new(answers::status(&self.parts, now))),
            Command::Peers => Reply::Peers(answers::peers(&self.parts, now)),
            Command::Routes => Reply::Routes(answers::routes(&self.parts, now)),
            Command::Metrics => Reply::Metrics(answers::metrics(&self.parts, now)),
            Command::Monitor => self.monitor(request),
            Command::Ping { .. } => Reply::error(ErrorCode::Internal, "a ping is answered later"),
            Command::Send { host, files: list } => match names.host_id(host) {
                None => names.unknown(host),
                Some(id) => {
                    let list = std::mem::take(list);
                    files.send(now, edge, &request.client, id, list, descriptors)
                }
            },
            Command::Receive { from, max_size } => {
                files.receive(&request.client, from, *max_size, names)
            }
            Command::Accept { transfer, have } => {
                files.accept(now, edge, client, *transfer, have, descriptors)
            }
            Command::Refuse { transfer, reason } => {
                files.refuse(now, edge, client, *transfer, *reason)
            }
            Command::Confirm { transfer } => files.confirm(now, edge, client, *transfer),
            Command::Cancel { transfer, reason } => {
                files.cancel(now, edge, client, *transfer, *reason)
            }
            Command::Reload => match self.reload() {
                Ok((applied, needs_restart)) => Reply::Reloaded { applied, needs_restart },
                Err(error) => Reply::error(ErrorCode::BadConfig, format!("{error:#}")),
            },
        }
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
        let Parts { machines, names, config, warnings, .. } = &mut self.parts;
        let Newer { config: newer, hosts, mut applied, waiting } =
            config::reread(config, names.hosts())?;
        let outdated = config::warnings(config, names.hosts());
        warnings.retain(|warning| !outdated.contains(warning));
        warnings.extend(config::warnings(&newer, &hosts));
        let mut plan = links::Plan::new(config, names, &newer, &hosts)?;
        *config = newer;
        plan.remove(now, machines, names);
        self.pass_on_events(now);
        let Parts { machines, names, config, .. } = &mut self.parts;
        let links = plan.finish(now, config, &hosts, machines, names);
        let mut others = Ok(());
        if hosts != *names.hosts() {
            applied.push("hosts".into());
            others = build::replace_hosts(now, config, hosts, machines, names);
        }
        (self.parts.set_log_level)(self.parts.config.log.level.as_str());
        applied.extend(links?);
        others?;
        Ok((applied, waiting))
    }
}
