//! Which neighbour a cell for a far router goes to: link costs by queries, loop-free routes.
//!
//! In: links that come up and go down, [`RoutingMessage`](shoal_wire::RoutingMessage)s from their
//! far ends, the time. Out: messages to neighbours, [`RouteChange`]s for whoever watches, and a
//! [`RouteTable`] that the data plane looks next hops up in.
//!
//! ```text
//!  link_up/down --> adjacency (hello, instances) --+
//!  query reply ---> cost = default + missing / sent * add_on --+
//!  update --------> proof of the origin --> feasible? ---------+--> selection --> RouteTable
//!                                                                      |      --> RouteChange
//!                     neighbours <-- update, proof <-- feasibility distance
//! ```
//!
//! The algorithm is the paper's query cycle (Custom Fast and Reliable Anonymity Network, III.G)
//! for the cost of a link, and Babel's feasibility condition with sequence numbers (RFC 8966,
//! sections 2.4 to 2.6 and 3.5 to 3.8) for routes: a router takes a route only from a neighbour
//! that was nearer to the destination, under the same sequence number of the origin, than the
//! router itself ever claimed to be. No loop forms, not even for a moment, whatever is lost or
//! late. Who is at a destination is proved by the origin's signature; what it costs to get there
//! is each router's word (docs/routing.md says what follows from that).
//!
//! Invariant: nothing here knows of hosts, sockets or sessions; the machine sees router numbers
//! and [`LinkId`](shoal_wire::LinkId)s. After any call, if output is queued, `poll_timeout` is due
//! now. Memory is bounded by known origins times links.

#![forbid(unsafe_code)]

mod adjacency;
mod budget;
mod config;
mod destination;
mod estimate;
mod inbound;
mod origin;
mod outbound;
mod policies;
mod request;
mod routing;
mod table;
mod timers;

pub use adjacency::WINDOW;
pub use config::{Config, ConfigError, LinkPolicy};
pub use routing::Routing;
pub use table::{LinkInfo, RouteChange, RouteInfo, RouteTable};
