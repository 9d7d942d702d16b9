//! Services of this machine: its node, and its registrar if it has one. Starts them all.

use std::path::PathBuf;

use anyhow::Result;
use shoal_daemon::config::NodeConfig;
use shoal_daemon::control::socket::check_free;
use shoal_daemon::tun::dns::left_to_operator;

use super::interface::names_line;
use super::place::ServiceFolders;
use super::start::{Children, Service, become_service, enable, hand_over, has_units};
use crate::failure::{self, ExitError};
use crate::interrupt::Interrupt;
use crate::options::CommonOptions;
use crate::output;
use crate::registrar;

/// A service, and its place on this machine.
pub struct LocalService {
    pub service: Service,
    pub place: ServiceFolders,
    /// Control socket, as the configuration names it.
    pub socket: PathBuf,
}

impl LocalService {
    /// True if a process answers at the control socket.
    pub fn runs(&self) -> bool {
        check_free(&self.socket).is_err()
    }

    /// True if systemd knows the unit of this place.
    pub fn has_unit(&self) -> bool {
        has_units(&[(self.service, &self.place)])
    }
}

/// The services of a node's place, the node first.
///
/// # Errors
///
/// The machine is in no network, or a configuration is wrong or missing.
pub fn services_of(place: &ServiceFolders) -> Result<Vec<LocalService>> {
    let config = place.config()?;
    let socket = config.control_socket();
    let node = LocalService { service: Service::Node, place: place.clone(), socket };
    Ok([node].into_iter().chain(registrar_of(place, &config)?).collect())
}

/// The registrar beside a node, if it is one of the same network.
fn registrar_of(place: &ServiceFolders, node: &NodeConfig) -> Result<Option<LocalService>> {
    let place = place.registrar();
    let (file, key) = (place.registrar_toml(), place.dir.join("registrar.key"));
    if !file.exists() {
        // A member by invite may have been a network's first machine before.
        if node.registrar.is_some() || !key.exists() {
            return Ok(None);
        }
        let text = format!(
            "{}: is missing, but the registrar's key is there ({}): put it back from a copy of \
             this machine's files; or, if this machine is to have no registrar, move {} away",
            file.display(),
            key.display(),
            place.dir.display()
        );
        return Err(ExitError::of(failure::CONFIG, text));
    }
    let config = registrar::load(&file)?;
    let of_node = node.authority.as_ref().and_then(|authority| authority.key.as_ref());
    if config.authority().ok() != of_node.map(|key| key.0) {
        eprintln!(
            "shoal: {}: this registrar is of another network than the node here, so it is left \
             alone",
            file.display()
        );
        return Ok(None);
    }
    let socket = config.path(&config.control_socket);
    Ok(Some(LocalService { service: Service::Registrar, place, socket }))
}

/// Words for some services, such as "shoal and shoal-registrar".
pub fn units(services: &[&LocalService]) -> String {
    let units: Vec<_> = services.iter().map(|service| service.service.unit()).collect();
    units.join(" and ")
}

/// True if systemd knows the units of all services.
///
/// # Errors
///
/// Systemd knows some of the units, but not all.
fn all_units(services: &[LocalService]) -> Result<bool> {
    let (known, missing): (Vec<_>, Vec<_>) =
        services.iter().partition(|service| service.has_unit());
    if known.is_empty() || missing.is_empty() {
        return Ok(missing.is_empty());
    }
    let text = format!(
        "systemd knows the unit {}, but not {}: install that one, too, as its first lines in dist/ \
         say, run `systemctl daemon-reload`, and repeat",
        units(&known),
        units(&missing)
    );
    Err(ExitError::of(failure::CONFIG, text))
}

/// Starts the services of a node's place that don't run: as units, or in the foreground. With
/// `no_start` prints the commands for it.
pub fn start(common: &CommonOptions, no_start: bool, place: &ServiceFolders) -> Result<()> {
    // With --json standard output holds JSON only.
    let line = |text: &str| {
        if common.json {
            eprintln!("shoal: {text}");
            return Ok(());
        }
        output::line(text)
    };
    let services = services_of(place)?;
    let all: Vec<_> = services.iter().collect();
    let is_unit = all_units(&services)?;
    if let Some(names) = &place.config()?.names
        && let Some(steps) = left_to_operator(names, !is_unit)
    {
        line(&names_line(names.domain.as_str(), &steps))?;
    }
    if no_start {
        if is_unit {
            services.iter().try_for_each(|s| hand_over(s.service, &s.place))?;
        }
        return Ok(line(&later(&services, is_unit, place))?);
    }
    if is_unit {
        services.iter().try_for_each(|s| enable(s.service, &s.place))?;
        return Ok(match all.as_slice() {
            [_] => line("the unit shoal runs, and starts with the machine"),
            _ => line(&format!("the units {} run, and start with the machine", units(&all))),
        }?);
    }
    let (run, rest): (Vec<_>, Vec<_>) = services.iter().partition(|service| service.runs());
    if !run.is_empty() {
        line(&format!("already running: {} (see `shoal status`)", units(&run)))?;
    }
    let until = format!("in the foreground until Ctrl-C (later: {})", place.up_words());
    match rest.as_slice() {
        [] => Ok(()),
        [one] => {
            let name = if one.service == Service::Node { "node" } else { "registrar" };
            eprintln!("shoal: the {name} runs {until}");
            become_service(one.service, &one.place)
        }
        more => {
            let interrupt = Interrupt::catch()?;
            let more: Vec<_> = more.iter().map(|s| (s.service, &s.place)).collect();
            let children = Children::start(&more)?;
            eprintln!("shoal: node and registrar run {until}");
            children.wait(&interrupt)
        }
    }
}

/// Line that says how services are started later.
fn later(services: &[LocalService], is_unit: bool, place: &ServiceFolders) -> String {
    let all: Vec<_> = services.iter().map(|service| service.service.unit()).collect();
    match (services, is_unit) {
        ([_], true) => "start the node with: systemctl enable --now shoal".into(),
        (_, true) => {
            format!("start node and registrar with: systemctl enable --now {}", all.join(" "))
        }
        ([node], false) => {
            format!("start the node with: shoal {}", node.service.words(&node.place).join(" "))
        }
        (_, false) => format!("start node and registrar with: {}", place.up_words()),
    }
}
