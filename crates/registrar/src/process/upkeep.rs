//! Steps that the registrar signs by itself: its endpoints, tiers of cover and second routers.

use std::time::Duration;

use shoal_daemon::net::resolve::route_address;
use shoal_wire::Time;

use super::RegistrarProcess;

/// Interval between looks at the members for the tier of the network's preset, and for second
/// routers.
const FOLLOW_EVERY: Duration = Duration::from_secs(2);
/// Least time between two looks at the registrar's own endpoints.
const STATE_EVERY: Duration = Duration::from_secs(1);
/// Interval between looks at the machine's default route, if an endpoint follows it.
const ROUTE_EVERY: Duration = Duration::from_secs(60);

/// State of these steps.
#[derive(Default)]
pub(super) struct RegistrarUpkeep {
    /// Time of the next look at the members for the tier of the network's preset, and for second
    /// routers.
    pub(super) follow_at: Time,
    /// Logged reason why hosts don't get the preset's tier.
    said_preset: Option<String>,
    /// Logged reason why hosts get no second router.
    said_routers: Option<String>,
    /// Time of the next look at the registrar's endpoints.
    state_at: Time,
    /// Time of the next look at the default route.
    route_at: Time,
    /// Reason why the registrar's endpoints are not signed; it is logged once.
    pub(super) endpoints_fault: Option<String>,
}

impl RegistrarProcess {
    /// Signs the registrar's endpoints if they have changed, so that members follow.
    pub(super) fn state_endpoints(&mut self) {
        let now = self.clock.now();
        if self.upkeep.state_at > now {
            return;
        }
        self.upkeep.state_at = now + STATE_EVERY;
        if self.config.follows_route() && self.upkeep.route_at <= now {
            self.upkeep.route_at = now + ROUTE_EVERY;
            let present = self.config.endpoints(route_address);
            // Without a route the last endpoints stay: the machine may be between two networks.
            if !present.is_empty() {
                self.desk.set_endpoints(present);
            }
        }
        let at = self.at();
        let fault = match self.desk.state_endpoints(at) {
            Ok(false) => None,
            Ok(true) => {
                tracing::info!("the registrar's new endpoints are signed: members follow");
                self.send(usize::MAX);
                None
            }
            Err(why) => Some(format!("the registrar's endpoints are not signed: {why}")),
        };
        if fault != self.upkeep.endpoints_fault && fault.is_some() {
            // The reason may name an address.
            tracing::warn!("the registrar's endpoints are not signed: `shoal registrar status`");
        }
        self.upkeep.endpoints_fault = fault;
    }

    /// Gives members the tier of the network's preset and second routers, some at a time.
    pub(super) fn follow(&mut self) {
        let at = self.at();
        if self.upkeep.follow_at > at.0 {
            return;
        }
        self.upkeep.follow_at = at.0 + FOLLOW_EVERY;
        let followed = self.desk.follow_preset(at);
        let fault = followed.as_ref().err().map(ToString::to_string);
        match followed {
            Ok(0) => {}
            Ok(hosts) => tracing::info!(hosts, "hosts got the tier of the network's preset"),
            Err(why) if fault != self.upkeep.said_preset => {
                tracing::warn!("hosts don't get the tier of the network's preset: {why}");
            }
            Err(_) => {}
        }
        self.upkeep.said_preset = fault;
        let followed = self.desk.follow_routers(at);
        let fault = followed.as_ref().err().map(ToString::to_string);
        match followed {
            Ok(0) => {}
            Ok(hosts) => tracing::info!(hosts, "hosts got a second router"),
            Err(why) if fault != self.upkeep.said_routers => {
                tracing::warn!("hosts don't get a second router: {why}");
            }
            Err(_) => {}
        }
        self.upkeep.said_routers = fault;
        self.send(usize::MAX);
    }
}
