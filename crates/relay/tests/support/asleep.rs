//! Suspended machines: their clocks continue, and no code runs.

use core::time::Duration;

use super::Net;
use super::shifts::Datagram;

impl Net {
    /// Lets time pass while one node's machine is suspended. Returns the datagrams that arrived for
    /// it.
    pub fn run_without(&mut self, asleep: usize, span: Duration) -> Vec<Datagram> {
        let (mut came, end) = (Vec::new(), self.now + span);
        while self.now < end {
            for node in (0..self.nodes.len()).filter(|node| *node != asleep) {
                self.wire.from = Some(self.nodes[node].at);
                self.work(node);
            }
            while let Some((from, to, mut frame)) = self.wire.sent.pop_front() {
                match self.node_at(to) {
                    Some(node) if node == asleep => came.push((from, to, frame)),
                    Some(node) => self.deliver(node, from, &mut frame),
                    None => {}
                }
            }
            self.now = self.now + Duration::from_millis(1);
        }
        came
    }
}
