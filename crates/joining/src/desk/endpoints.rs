//! Endpoints of the registrar itself: signed into its chain when they change.

use shoal_directory::{DoorEndpoint, Register, StepEntry};
use shoal_wire::Time;

use super::{Desk, Disk, OwnerError};
use crate::record::StepCause;

impl<D: Disk> Desk<D> {
    /// Signs the configured endpoints, if members know others. Nodes accept one change an hour, so
    /// a later call signs what this one can't. Returns true if a step was signed.
    ///
    /// # Errors
    ///
    /// The ledger can't be written, or nodes would refuse the endpoints.
    pub fn state_endpoints(&mut self, at: (Time, u64)) -> Result<bool, OwnerError> {
        let Some(register) = self.register() else { return Ok(false) };
        let ends = register.mandate().until_unix_s;
        let is_due = register.next_door_unix_s().is_some_and(|next| next <= at.1) && at.1 < ends;
        let is_held = self.hold.is_early || self.check_known().is_err();
        let endpoints = &self.config.endpoints;
        if !is_due || is_held || endpoints.is_empty() || register.door() == endpoints {
            return Ok(false);
        }
        let inside = endpoints.iter().filter_map(DoorEndpoint::address);
        if let Some(inside) = inside.map(|at| at.ip()).find(|ip| self.directory.is_inside(*ip)) {
            return Err(OwnerError::EndpointInside(inside));
        }
        let entries = vec![StepEntry::Door(endpoints.clone())];
        let own = self.config.identity.public();
        self.step(StepCause::Door, own, entries, at)?;
        Ok(true)
    }

    /// Replaces the configured endpoints; [`Desk::state_endpoints`] signs them.
    pub fn set_endpoints(&mut self, endpoints: Vec<DoorEndpoint>) {
        self.config.endpoints = endpoints;
    }

    /// Endpoints that invites name: the configured ones, or else the signed ones.
    pub fn endpoints(&self) -> &[DoorEndpoint] {
        match self.config.endpoints.is_empty() {
            true => self.register().map(Register::door).unwrap_or_default(),
            false => &self.config.endpoints,
        }
    }
}

#[cfg(test)]
#[path = "endpoints_tests.rs"]
mod tests;
