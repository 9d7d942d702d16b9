//! Routing between routers: link costs measured by queries, and loop-free next hops.
//!
//! Inputs: links that come up and go down, [`RoutingMessage`](shoal_wire::RoutingMessage)s of
//! neighbours, the time. Outputs: messages to neighbours, [`RouteChange`]s for observers, and a
//! [`RouteTable`] in which the data plane looks up next hops.
//!
//! ```text
//!  link_up/down --> adjacency (hello, instances) --+
//!  query reply ---> cost = default + missing / sent * add_on --+
//!  update --------> proof of the origin --> feasible? ---------+--> selection --> RouteTable
//!                                                                      |      --> RouteChange
//!                     neighbours <-- update, proof <-- feasibility distance
//! ```
//!
//! Link costs follow the paper's query cycle (Custom Fast and Reliable Anonymity Network, III.G).
//! Routes follow Babel's feasibility condition with sequence numbers (RFC 8966, sections 2.4 to 2.6
//! and 3.5 to 3.8). A router accepts a route only if the neighbour is nearer to the destination
//! than the router ever claimed to be. Both distances must have one sequence number of the origin.
//! Loops are impossible at every moment, even if messages are lost or late. The origin's signature
//! proves who is at a destination. Nothing proves the cost: each router states its own
//! (docs/design/routing.md describes the consequences).
//!
//! Invariants: the machine knows router numbers and [`LinkId`](shoal_wire::LinkId)s, but no hosts,
//! sockets or sessions. If output is queued after a call, `poll_timeout` is due at once. Memory is
//! bounded by known origins times links.

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
