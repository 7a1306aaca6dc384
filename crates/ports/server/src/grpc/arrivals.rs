//! New connections of a worker that it does not serve yet: each address has a turn in which one of its connections begins.
//!
//! A TLS handshake costs the worker as much as many requests. If connections began in the order of their arrival, a client
//! would wait for the handshakes of all that another address opened before it.

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    net::IpAddr,
};

pub(super) struct Arrivals<T> {
    /// Those of each address, the oldest first. No list is empty.
    by_address: HashMap<Option<IpAddr>, VecDeque<T>>,
    /// The addresses with arrivals, in the order of their turns.
    turns: VecDeque<Option<IpAddr>>,
}

impl<T> Default for Arrivals<T> {
    fn default() -> Self {
        Self { by_address: HashMap::new(), turns: VecDeque::new() }
    }
}

impl<T> Arrivals<T> {
    pub(super) fn push(&mut self, address: Option<IpAddr>, arrival: T) {
        let own = self.by_address.entry(address).or_default();
        if own.is_empty() {
            self.turns.push_back(address);
        }
        own.push_back(arrival);
    }

    /// The oldest arrival of the next address for which `is_left` is true. Others are dropped, without a turn.
    pub(super) fn pop(&mut self, is_left: impl Fn(&T) -> bool) -> Option<T> {
        while let Some(address) = self.turns.pop_front() {
            let Entry::Occupied(mut own) = self.by_address.entry(address) else {
                unreachable!("an address with a turn has arrivals");
            };
            let next = std::iter::from_fn(|| own.get_mut().pop_front()).find(&is_left);
            if own.get().is_empty() {
                own.remove();
            } else {
                self.turns.push_back(address);
            }
            if next.is_some() {
                return next;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::unnecessary_wraps, reason = "as `push` takes it")]
    fn address(number: u8) -> Option<IpAddr> {
        Some([10, 0, 0, number].into())
    }

    #[test]
    fn an_address_waits_for_one_connection_of_each_other_address() {
        let mut arrivals = Arrivals::default();
        (0..1_000).for_each(|number| arrivals.push(address(1), (1, number)));
        (0..2).for_each(|number| arrivals.push(address(2), (2, number)));
        arrivals.push(None, (3, 0));
        let first: Vec<_> = (0..7).filter_map(|_| arrivals.pop(|_| true)).collect();
        assert_eq!(first, [(1, 0), (2, 0), (3, 0), (1, 1), (2, 1), (1, 2), (1, 3)]);
        arrivals.push(address(2), (2, 2));
        assert_eq!([arrivals.pop(|_| true), arrivals.pop(|_| true)], [Some((1, 4)), Some((2, 2))]);
    }

    #[test]
    fn what_has_been_closed_meanwhile_takes_no_turn() {
        let mut arrivals = Arrivals::default();
        (0..10).for_each(|number| arrivals.push(address(1), number));
        arrivals.push(address(2), 100);
        assert_eq!(arrivals.pop(|number| *number > 7), Some(8));
        assert_eq!(arrivals.pop(|number| *number < 7), None, "neither address has another");
        assert!(arrivals.by_address.is_empty() && arrivals.turns.is_empty());
    }
}
