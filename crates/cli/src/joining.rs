//! Joining: `shoal network create` and `fetch`, `shoal up`, `shoal rekey`, `shoal leave`
//! (docs/joining.md).
//!
//! ```text
//! network create: authority, router, registrar, first invite      place: which folders
//! up: key --> ask the registrar --> files, checked --> start       files: what stands in them
//! leave: ask --> files removed                                     start: unit, foreground, words
//! arguments: an invite is no argument for long                     interface: what is free here
//! rekey: new key beside the old one --> ask --> chain stored --> renamed
//! network fetch: ask --> list, chain and secret stored (store)
//! ```
//!
//! Every file is made in a folder beside the others, checked there, and renamed; `node.toml` comes
//! last, so a machine has joined once it has that file. What is broken off before goes on when the
//! command is repeated: the key is the same, and the registrar knows it.

mod arguments;
mod fetch;
mod files;
mod interface;
mod leave;
mod network;
mod place;
mod ports;
mod rekey;
mod start;
pub mod store;
mod up;

pub use leave::{Leave, leave};
pub use network::{NetworkArgs, run as network};
pub use rekey::{Rekey, rekey};
pub use up::{Up, up};
