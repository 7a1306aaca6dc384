//! The slots of a cluster, as one of its nodes knows them.

use std::collections::BTreeMap;

use crate::{Address, resp::Reply};

pub const SLOTS: u16 = 16_384;

/// A node's view of its cluster. Other nodes may have another view, as while slots move or a master fails.
#[derive(Clone, PartialEq, Debug)]
pub struct Cluster {
    /// Masters. A node's id is its index.
    nodes: Vec<Address>,
    myself: usize,
    owners: Vec<Option<usize>>,
    migrating: BTreeMap<u16, usize>,
    importing: BTreeMap<u16, usize>,
}

/// Where a command has to go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Route {
    Here,
    Moved { slot: u16, to: usize },
    Ask { slot: u16, to: usize },
    TryAgain,
}

impl Cluster {
    /// The view of node `myself`, of masters that share the slots evenly.
    pub fn even(nodes: &[Address], myself: usize) -> Self {
        let count = nodes.len();
        let owner = |slot: u16| Some(usize::from(slot) * count / usize::from(SLOTS));
        let owners = (0..SLOTS).map(owner).collect();
        let (migrating, importing) = (BTreeMap::new(), BTreeMap::new());
        Self { nodes: nodes.to_vec(), myself, owners, migrating, importing }
    }

    /// Whose view it is. A replica's is that of none of the masters, so it redirects to its master.
    pub fn set_myself(&mut self, node: usize) {
        self.myself = node;
    }

    /// The address of a node changes: its replica has taken its place.
    pub fn replace(&mut self, node: usize, by: Address) {
        self.nodes[node] = by;
    }

    /// `None`: no node serves the slot.
    pub fn set_owner(&mut self, slot: u16, owner: Option<usize>) {
        self.owners[usize::from(slot)] = owner;
        self.migrating.remove(&slot);
        self.importing.remove(&slot);
    }

    pub fn owner(&self, slot: u16) -> Option<usize> {
        self.owners[usize::from(slot)]
    }

    /// Keys of the slot move from here: those that are missing are asked of `to`.
    pub fn migrate(&mut self, slot: u16, to: usize) {
        self.migrating.insert(slot, to);
    }

    /// Keys of the slot move to here: commands after `ASKING` are served.
    pub fn import(&mut self, slot: u16, from: usize) {
        self.importing.insert(slot, from);
    }

    pub(crate) fn address(&self, node: usize) -> &Address {
        &self.nodes[node]
    }

    pub(crate) fn id(&self) -> String {
        node_id(self.myself)
    }

    /// The node that serves a command on keys of one slot that is served, with whether each key is here.
    pub(crate) fn route(&self, slot: u16, is_asking: bool, keys: &[(&[u8], bool)]) -> Route {
        let owner = self.owner(slot).expect("the slot is served");
        let is_missing = keys.iter().any(|(_, is_here)| !is_here);
        if owner == self.myself {
            return match self.migrating.get(&slot) {
                Some(_) if is_missing && keys.iter().any(|(_, is_here)| *is_here) => Route::TryAgain,
                Some(to) if is_missing => Route::Ask { slot, to: *to },
                _ => Route::Here,
            };
        }
        if !is_asking || !self.importing.contains_key(&slot) {
            return Route::Moved { slot, to: owner };
        }
        let is_multiple = keys.iter().any(|(key, _)| Some(key) != keys.first().map(|(first, _)| first));
        if is_multiple && is_missing { Route::TryAgain } else { Route::Here }
    }

    /// The reply to `CLUSTER SLOTS`.
    pub(crate) fn slots(&self) -> Reply {
        let mut ranges = Vec::new();
        let mut first = 0;
        for part in self.owners.chunk_by(|one, other| one == other) {
            let last = first + i64::try_from(part.len()).expect("there are 16,384 slots") - 1;
            if let Some(node) = part[0] {
                let Address { host, port } = &self.nodes[node];
                let node = Reply::Array(vec![
                    Reply::text(host.as_bytes()),
                    Reply::Integer((*port).into()),
                    Reply::text(node_id(node).as_bytes()),
                    Reply::Array(Vec::new()),
                ]);
                ranges.push(Reply::Array(vec![Reply::Integer(first), Reply::Integer(last), node]));
            }
            first = last + 1;
        }
        Reply::Array(ranges)
    }
}

fn node_id(node: usize) -> String {
    format!("{node:040x}")
}

/// The slot of a key: CRC16/XMODEM of its hash tag, or of the whole key without one.
pub fn slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let close = rest.iter().position(|byte| *byte == b'}')?;
        (close > 0).then(|| &rest[..close])
    });
    let crc =
        tag.unwrap_or(key).iter().fold(0_u16, |crc, byte| {
            (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| {
                if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 }
            })
        });
    crc % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis() {
        // As CLUSTER KEYSLOT reports them.
        for (key, expected) in
            [("foo", 12182), ("bar", 5061), ("hello", 866), ("foo{hash_tag}", 2515), ("foo{}{bar}", 8363)]
        {
            assert_eq!(slot(key.as_bytes()), expected, "{key}");
        }
    }
}
