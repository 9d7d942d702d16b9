//! Joining: `shoal network create`, `fetch` and `preset`, `shoal up`, `shoal down`, `shoal rekey`,
//! `shoal leave` (docs/guide/members.md).
//!
//! ```text
//! network create: authority, router, registrar, first invite      place: folders of a service
//! up: key --> ask the registrar --> files, checked --> start       files: their contents
//! leave: ask --> files removed                                      start: unit, foreground
//! up, down: node and registrar started, stopped                    services: those of this machine
//! endpoint: address or name of this machine     second: a registrar that joins with its router
//! arguments: hides an invite from other users                       interface: name and addresses
//! up on a former member: old key refused --> new key --> files, node.toml edited (rejoin, edit)
//! network preset: the authority's list with another preset (preset)
//! rekey: new key beside the old one --> ask --> chain stored --> renamed
//! network fetch: ask --> list, chain and secret stored (store)
//! up --another-router: ask --> supplements stored --> address in node.toml (reroute)
//! ```
//!
//! Every file is made in a staging folder, checked there, and renamed. `node.toml` comes last, so a
//! machine has joined once it has that file. A repeated command continues an interrupted one: the
//! key is the same, and the registrar knows it.

mod arguments;
mod down;
mod edit;
mod endpoint;
mod fetch;
mod files;
mod interface;
mod leave;
mod network;
mod place;
mod ports;
mod preset;
mod rejoin;
mod rekey;
mod reroute;
mod second;
mod services;
mod start;
pub mod store;
mod up;

pub use down::{DownArgs, down};
pub use leave::{LeaveArgs, leave};
pub use network::{NetworkArgs, run as network};
pub use rekey::{RekeyArgs, rekey};
pub use up::{UpArgs, up};
