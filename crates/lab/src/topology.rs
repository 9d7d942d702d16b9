//! Who is in a network and who is beside whom.

use shoal_wire::Address;

/// A node of a topology.
#[derive(Clone, Debug)]
pub struct NodeSpec {
    /// Its name in hosts.toml.
    pub name: String,
    /// Its overlay address; host 0 is a router.
    pub address: Address,
}

/// A link between two nodes, by their places in [`Topology::nodes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkSpec {
    /// One end. For a host's access link this is the host, who calls its router.
    pub a: usize,
    /// The other end.
    pub b: usize,
}

/// A network on paper.
#[derive(Clone, Debug)]
pub struct Topology {
    /// Its nodes.
    pub nodes: Vec<NodeSpec>,
    /// Its links.
    pub links: Vec<LinkSpec>,
}

impl Topology {
    /// The network of the first paper: three routers, each beside both others, two hosts at each.
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
        Topology::of_routers(3, 2, &[(0, 1), (1, 2), (0, 2)])
    }

    /// The chain that user-space data planes are compared on: h1 - r1 - r2 - h2.
    pub fn chain() -> Topology {
        Topology::of_routers(2, 1, &[(0, 1)])
    }

    /// `routers` routers r1, r2, ... linked as `mesh` says (counted from 0), each with
    /// `hosts_each` hosts; hosts are numbered through the whole network.
    fn of_routers(routers: u32, hosts_each: u16, mesh: &[(usize, usize)]) -> Topology {
        let mut nodes: Vec<NodeSpec> = (1..=routers)
            .map(|r| NodeSpec { name: format!("r{r}"), address: Address::new(r, 0) })
            .collect();
        let mut links: Vec<LinkSpec> = mesh.iter().map(|&(a, b)| LinkSpec { a, b }).collect();
        for router in 0..routers {
            for host in 1..=hosts_each {
                let number = router * u32::from(hosts_each) + u32::from(host);
                let address = Address::new(router + 1, host);
                links.push(LinkSpec { a: nodes.len(), b: router as usize });
                nodes.push(NodeSpec { name: format!("h{number}"), address });
            }
        }
        Topology { nodes, links }
    }

    /// The place of the node called `name`.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.nodes.iter().position(|n| n.name == name)
    }

    /// The link between two nodes, in either direction.
    pub fn link_between(&self, x: usize, y: usize) -> Option<usize> {
        self.links.iter().position(|l| (l.a, l.b) == (x, y) || (l.a, l.b) == (y, x))
    }

    /// `(link, neighbour)` of each of a node's links.
    pub fn links_of(&self, node: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.links.iter().enumerate().filter_map(move |(i, l)| {
            (l.a == node).then_some((i, l.b)).or((l.b == node).then_some((i, l.a)))
        })
    }

    /// Names of a link's ends, as people read them.
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
    fn the_chain_is_a_chain() {
        let t = Topology::chain();
        let names: Vec<_> = (0..t.links.len()).map(|l| t.link_name(l)).collect();
        assert_eq!(names, ["r1 - r2", "h1 - r1", "h2 - r2"]);
    }
}
