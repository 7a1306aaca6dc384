//! Nodes that can answer the same query: they are queried in turn until one replies.
//!
//! Each node has one connection that stays open. A node's failures and its recovery are logged.

use std::mem;

use tracing::Level;

use crate::{
    dialer::Dialer,
    failure::{Failure, FailureKind},
    resp::{FramedStream, Reply},
};
use net::{HostPort, ServerAddress};
use wire::client_metrics::ClientMetrics;

/// The longest reply: all slots of a cluster, one by one, with a master and a replica each.
const MAX_REPLY: usize = 6 * 1024 * 1024;

/// The nodes, in their configured order.
pub(super) struct NodeList {
    pub(super) dialer: Dialer,
    nodes: Vec<Node>,
    last: usize,
}

struct Node {
    address: HostPort,
    stream: Option<FramedStream>,
    fails: bool,
}

impl NodeList {
    pub(super) fn new(dialer: Dialer, addresses: &[HostPort]) -> Self {
        let mut list = Self { dialer, nodes: Vec::new(), last: 0 };
        list.set(addresses.iter());
        list
    }

    /// Replaces the nodes; known ones keep their connections.
    pub(super) fn set<'a>(&mut self, addresses: impl Iterator<Item = &'a HostPort>) {
        let mut known = mem::take(&mut self.nodes);
        let last = known.get(self.last).map(|node| node.address.clone());
        for address in addresses {
            if self.nodes.iter().any(|node| node.address == *address) {
                continue;
            }
            let index = known.iter().position(|node| node.address == *address);
            self.nodes.push(match index {
                Some(index) => known.swap_remove(index),
                None => Node { address: address.clone(), stream: None, fails: false },
            });
        }
        self.last = self.nodes.iter().position(|node| Some(&node.address) == last.as_ref()).unwrap_or(0);
    }

    /// The first reply that `read` accepts. Starts with the node that replied last, or for a refresh with the next one.
    /// Nodes that failed come last. If none does, the failure of the last one.
    pub(super) async fn query<T>(
        &mut self,
        command: &[&[u8]],
        read: impl Fn(&Reply, &HostPort) -> Result<T, String>,
        is_refresh: bool,
        metrics: &ClientMetrics,
    ) -> Result<T, String> {
        let count = self.nodes.len();
        let mut order: Vec<_> =
            (0..count).cycle().skip(self.last).skip(is_refresh.into()).take(count).collect();
        order.sort_by_key(|index| self.nodes.get(*index).is_some_and(|node| node.fails));
        let mut last_failure = Err("no node to query".to_owned());
        for index in order {
            let Some(node) = self.nodes.get_mut(index) else { continue };
            let server = self.dialer.describe(&node.address);
            let result = node.query(command, &self.dialer).await.map_err(|failure| failure.message);
            let result = result
                .and_then(|reply| read(&reply, &node.address).map_err(|error| format!("{server}: {error}")));
            let has_failed = mem::replace(&mut node.fails, result.is_err());
            match &result {
                Err(failure) => metrics.log(Level::WARN, "node", failure),
                Ok(_) if has_failed => {
                    metrics.log(Level::INFO, "recovered", format_args!("{server}: recovered"));
                }
                Ok(_) => {}
            }
            if result.is_ok() {
                self.last = index;
                return result;
            }
            last_failure = result;
        }
        last_failure
    }
}

impl Node {
    async fn query(&mut self, command: &[&[u8]], dialer: &Dialer) -> Result<Reply, Failure> {
        if let Some(kept) = self.stream.take() {
            match self.query_over(kept, command, dialer).await {
                // The node may have closed the connection long ago.
                Err(failure) if failure.kind == FailureKind::Lost => {}
                reply => return reply,
            }
        }
        let fresh = dialer.dial(&ServerAddress::Tcp(self.address.clone()), false).await?;
        self.query_over(fresh, command, dialer).await
    }

    /// Queries over this connection, and keeps it after a reply.
    async fn query_over(
        &mut self,
        mut stream: FramedStream,
        command: &[&[u8]],
        dialer: &Dialer,
    ) -> Result<Reply, Failure> {
        let reply = dialer.query(&mut stream, command, MAX_REPLY).await?;
        self.stream = Some(stream);
        Ok(reply)
    }
}

#[cfg(test)]
mod tests {
    use net::edges::Edges;

    use super::*;
    use crate::topology::tests::sentinels;

    #[test]
    fn known_nodes_are_kept_in_a_new_list() {
        let [one, two, three] = ["a", "b", "c"].map(|host| HostPort { host: host.to_owned(), port: 1 });
        let dialer = Dialer::of_sentinels(&sentinels(&[&one], None), None, &Edges::system()).unwrap();
        let mut nodes = NodeList::new(dialer, &[one.clone(), two.clone(), two.clone()]);
        assert_eq!(nodes.nodes.len(), 2, "each once");
        nodes.last = 1;
        nodes.nodes[1].fails = true;
        nodes.set([&three, &two].into_iter());
        let now: Vec<_> = nodes.nodes.iter().map(|node| (&*node.address.host, node.fails)).collect();
        assert_eq!((now, nodes.last), (vec![("c", false), ("b", true)], 1));
        nodes.set([&one].into_iter());
        assert_eq!(nodes.last, 0);
    }
}
