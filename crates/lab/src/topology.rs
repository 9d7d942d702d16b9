//! The nodes of a network and the links between them.

use std::collections::VecDeque;

use shoal_wire::Address;

#[derive(Clone, Debug)]
pub struct NodeSpec {
    /// Name in hosts.toml.
    pub name: String,
    /// Overlay address; host 0 is a router.
    pub address: Address,
    /// True for a machine without a node, an end of other traffic.
    pub plain: bool,
}

impl NodeSpec {
    /// A node of the overlay.
    pub fn new(name: String, address: Address) -> NodeSpec {
        NodeSpec { name, address, plain: false }
    }
}

/// A link between two nodes, by their indices in [`Topology::nodes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkSpec {
    /// One end. For an access link, the host that calls its router.
    pub a: usize,
    /// The other end.
    pub b: usize,
}

/// Nodes and links of a network that is not built yet.
#[derive(Clone, Debug)]
pub struct Topology {
    pub nodes: Vec<NodeSpec>,
    pub links: Vec<LinkSpec>,
}

impl Topology {
    /// The network of the first paper: three fully meshed routers with two hosts each.
    ///
    /// ```text
    ///   h1 h2           h3 h4
    ///     \ |           | /
    ///      r1 --------- r2
    ///        \         /
    ///         \       /
    ///          \     /
    ///            r3
    ///           /  \
    ///         h5    h6
    /// ```
    pub fn paper() -> Topology {
        Topology::sites(2)
    }

    /// The chain on which user-space data planes are compared: h1 - r1 - r2 - h2.
    pub fn chain() -> Topology {
        Topology::of_routers(2, 1, &[(0, 1)])
    }

    /// Two routers with `hosts` hosts each: h1 to hN at r1, hN+1 to h2N at r2.
    pub fn pairs(hosts: u16) -> Topology {
        Topology::of_routers(2, hosts, &[(0, 1)])
    }

    /// Three fully meshed routers with `hosts` hosts each: h1 to hN at r1, and so on.
    pub fn sites(hosts: u16) -> Topology {
        Topology::of_routers(3, hosts, &[(0, 1), (1, 2), (0, 2)])
    }

    /// `routers` routers r1, r2, ... with links `mesh` (counted from 0), and `hosts_each` hosts
    /// each. Hosts are numbered through the whole network.
    fn of_routers(routers: u32, hosts_each: u16, mesh: &[(usize, usize)]) -> Topology {
        let mut nodes: Vec<NodeSpec> =
            (1..=routers).map(|r| NodeSpec::new(format!("r{r}"), Address::new(r, 0))).collect();
        let mut links: Vec<LinkSpec> = mesh.iter().map(|&(a, b)| LinkSpec { a, b }).collect();
        for router in 0..routers {
            for host in 1..=hosts_each {
                let number = router * u32::from(hosts_each) + u32::from(host);
                let address = Address::new(router + 1, host);
                links.push(LinkSpec { a: nodes.len(), b: router as usize });
                nodes.push(NodeSpec::new(format!("h{number}"), address));
            }
        }
        Topology { nodes, links }
    }

    /// Index of the node with this name.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.nodes.iter().position(|n| n.name == name)
    }

    /// Indices of the routers.
    pub fn routers(&self) -> impl Iterator<Item = usize> + '_ {
        let router = |n: &usize| !self.nodes[*n].plain && self.nodes[*n].address.is_router();
        (0..self.nodes.len()).filter(router)
    }

    /// The link between two nodes, in either direction.
    pub fn link_between(&self, x: usize, y: usize) -> Option<usize> {
        self.links.iter().position(|l| (l.a, l.b) == (x, y) || (l.a, l.b) == (y, x))
    }

    /// Link and neighbour of each of a node's links.
    pub fn links_of(&self, node: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.links.iter().enumerate().filter_map(move |(i, l)| {
            (l.a == node).then_some((i, l.b)).or((l.b == node).then_some((i, l.a)))
        })
    }

    /// Link and neighbour of each of a node's configured links: links to other nodes, except links
    /// between two hosts, which are direct links.
    pub fn neighbours_of(&self, node: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
        let is_host = move |n: usize| !self.nodes[n].address.is_router();
        self.links_of(node).filter(move |&(_, neighbour)| {
            let own = is_host(node) && is_host(neighbour);
            !own && !self.nodes[neighbour].plain
        })
    }

    /// The first direct link of the host `node`, with its other end.
    pub fn direct_link_of(&self, node: usize) -> Option<(usize, usize)> {
        let is_host = |n: usize| !self.nodes[n].plain && !self.nodes[n].address.is_router();
        self.links_of(node).find(|&(_, neighbour)| is_host(node) && is_host(neighbour))
    }

    /// Links of a shortest path from one node to another, each with the node it leads to. `None`
    /// without a path. `up` tells which links may be used.
    pub fn path(
        &self,
        from: usize,
        to: usize,
        up: impl Fn(usize) -> bool,
    ) -> Option<Vec<(usize, usize)>> {
        let mut before: Vec<Option<(usize, usize)>> = vec![None; self.nodes.len()];
        let mut queue = VecDeque::from([from]);
        while let Some(node) = queue.pop_front() {
            for (link, next) in self.links_of(node) {
                if next != from && before[next].is_none() && up(link) {
                    before[next] = Some((link, node));
                    queue.push_back(next);
                }
            }
        }
        let mut way = Vec::new();
        let mut node = to;
        while node != from {
            let (link, previous) = before[node]?;
            way.push((link, node));
            node = previous;
        }
        way.reverse();
        Some(way)
    }

    /// Names of a link's ends, for people.
    pub fn link_name(&self, link: usize) -> String {
        let LinkSpec { a, b } = self.links[link];
        format!("{} - {}", self.nodes[a].name, self.nodes[b].name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_network_has_nine_nodes_and_nine_links() {
        let t = Topology::paper();
        assert_eq!((t.nodes.len(), t.links.len()), (9, 9));
        let r1 = t.find("r1").unwrap();
        assert_eq!(t.links_of(r1).count(), 4);
        let h3 = t.find("h3").unwrap();
        assert_eq!(t.nodes[h3].address, Address::new(2, 1));
        assert_eq!(t.links_of(h3).map(|(_, n)| n).collect::<Vec<_>>(), [t.find("r2").unwrap()]);
        let link = t.link_between(t.find("r2").unwrap(), r1).unwrap();
        assert_eq!(t.link_name(link), "r1 - r2");
    }

    #[test]
    fn paths_are_short_and_go_round_what_is_cut() {
        let t = Topology::paper();
        let [h1, h3, r2] = ["h1", "h3", "r2"].map(|n| t.find(n).unwrap());
        let all = t.path(h1, h3, |_| true).unwrap();
        let names: Vec<_> = all.iter().map(|&(l, _)| t.link_name(l)).collect();
        assert_eq!(names, ["h1 - r1", "r1 - r2", "h3 - r2"]);
        assert_eq!(all[1].1, r2);
        assert_eq!(t.path(h1, h3, |l| l != all[1].0).unwrap().len(), 4);
        assert_eq!(t.path(h1, h3, |l| l != all[0].0), None);
        assert_eq!(t.path(h1, h1, |_| true), Some(vec![]));
    }

    #[test]
    fn the_chain_is_a_chain() {
        let t = Topology::chain();
        let names: Vec<_> = (0..t.links.len()).map(|l| t.link_name(l)).collect();
        assert_eq!(names, ["r1 - r2", "h1 - r1", "h2 - r2"]);
    }
}
