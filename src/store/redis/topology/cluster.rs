//! The command for cluster nodes, and its reply.

use deadpool_redis::redis::{Cmd, FromRedisValue, Value, cmd};

use super::{NO_OWNER, Servers, slots::SLOTS};
use crate::settings::{HostPort, redis::RedisAddress};

/// The command for the owners of all slots.
pub(super) fn command() -> Cmd {
    let mut command = cmd("CLUSTER");
    command.arg("SLOTS");
    command
}

/// A range of slots and its master; `None` if the master's address is unknown.
struct Range {
    first: u16,
    last: u16,
    owner: Option<HostPort>,
}

/// Reads the reply of the node `from`.
///
/// # Errors
/// When it does not contain the owners.
pub(super) fn read(reply: &Value, from: &HostPort) -> Result<Servers, String> {
    let Value::Array(ranges) = reply else { return Err(unexpected()) };
    let ranges = ranges.iter().map(|range| read_range(range, from)).collect::<Option<Vec<_>>>();
    let ranges = ranges.ok_or_else(unexpected)?;
    // Sorted, so that the result does not depend on the node.
    let mut masters: Vec<_> = ranges.iter().filter_map(|range| range.owner.as_ref()).collect();
    masters.sort_by(|a, b| (&a.host, a.port).cmp(&(&b.host, b.port)));
    masters.dedup();
    if masters.is_empty() {
        return Err("no slot has an owner; is the cluster complete?".to_owned());
    }
    let mut slots = vec![NO_OWNER; usize::from(SLOTS)].into_boxed_slice();
    for range in &ranges {
        let owner = masters.iter().position(|master| range.owner.as_ref() == Some(*master));
        let owner = owner.and_then(|index| u16::try_from(index).ok()).unwrap_or(NO_OWNER);
        if let Some(owned) = slots.get_mut(usize::from(range.first)..=usize::from(range.last)) {
            owned.fill(owner);
        }
    }
    let masters = masters.into_iter().cloned().map(RedisAddress::Tcp).collect();
    Ok(Servers { masters, slots: Some(slots) })
}

fn unexpected() -> String {
    "unexpected reply to CLUSTER SLOTS".to_owned()
}

/// First slot, last slot, master, replicas.
fn read_range(range: &Value, from: &HostPort) -> Option<Range> {
    let Value::Array(parts) = range else { return None };
    let [first, last, Value::Array(master), ..] = parts.as_slice() else { return None };
    let (first, last) = (number(first)?, number(last)?);
    let is_valid = first <= last && last < SLOTS;
    is_valid.then_some(Range { first, last, owner: read_node(master, from)? })
}

/// Reads a node: host, port, and in newer versions its id and metadata. A node without a host has that of the node that
/// replied. A node whose host name is not known yet is called `?`, and its address is in the metadata.
#[expect(clippy::option_option, reason = "an invalid reply, no address, and an address are three results")]
fn read_node(node: &[Value], from: &HostPort) -> Option<Option<HostPort>> {
    let [host, port, rest @ ..] = node else { return None };
    let host = <Option<String>>::from_redis_value_ref(host).ok()?;
    let port = number(port)?;
    let host = match host.as_deref() {
        None | Some("") => Some(from.host.clone()),
        Some("?") => rest.get(1).and_then(address_among),
        Some(host) => Some(host.to_owned()),
    };
    Some(host.map(|host| HostPort { host, port }))
}

/// The value of `ip` in a list of names and values.
fn address_among(more: &Value) -> Option<String> {
    let Value::Array(more) = more else { return None };
    let (pairs, _) = more.as_chunks::<2>();
    let text = |value: &Value| String::from_redis_value_ref(value).ok();
    let found = pairs.iter().find(|[name, _]| text(name).as_deref() == Some("ip"));
    found.and_then(|[_, value]| text(value)).filter(|ip| !ip.is_empty())
}

/// Read as i64 first: the `redis` crate truncates.
fn number(value: &Value) -> Option<u16> {
    i64::from_redis_value_ref(value).ok()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn node(host: Value, port: i64) -> Value {
        let more = Value::Array(vec![text("hostname"), text(""), text("ip"), text("10.0.0.9")]);
        Value::Array(vec![host, Value::Int(port), text("07c37dfeb235213a872192d90877d0cd55635b91"), more])
    }

    fn range(first: i64, last: i64, master: Value) -> Value {
        let replica = node(text("10.0.0.7"), 6379);
        Value::Array(vec![Value::Int(first), Value::Int(last), master, replica])
    }

    fn from() -> HostPort {
        HostPort { host: "seed".to_owned(), port: 7000 }
    }

    #[test]
    fn every_slot_finds_its_owner() {
        let answer = Value::Array(vec![
            range(5461, 10922, node(text("10.0.0.2"), 6379)),
            range(0, 5460, node(text("10.0.0.1"), 6379)),
            range(10923, 16383, node(text("fd00::3"), 6379)),
        ]);
        let servers = read(&answer, &from()).unwrap();
        assert_eq!(servers.to_string(), "10.0.0.1:6379, 10.0.0.2:6379, [fd00::3]:6379");
        // Their slots are 866, 5061 and 12182.
        assert_eq!(
            ["hello", "bar", "foo"].map(|key| servers.owner(key.as_bytes())),
            [Some(0), Some(0), Some(2)]
        );
        assert_eq!(servers.orphans(), 0);
    }

    #[test]
    fn the_order_of_an_answer_does_not_matter() {
        let (one, other) = (range(0, 99, node(text("b"), 1)), range(100, 199, node(text("a"), 1)));
        let servers = read(&Value::Array(vec![one.clone(), other.clone()]), &from());
        assert_eq!(servers, read(&Value::Array(vec![other, one]), &from()));
        assert_eq!(servers.unwrap().orphans(), usize::from(SLOTS) - 200);
    }

    #[test]
    fn nodes_announce_themselves_in_many_ways() {
        for (host, shown) in [
            (Value::Nil, "seed:6379"),
            (text(""), "seed:6379"),
            (text("?"), "10.0.0.9:6379"),
            (text("redis-0.redis.svc"), "redis-0.redis.svc:6379"),
            (text("fd00::1"), "[fd00::1]:6379"),
        ] {
            let answer = Value::Array(vec![range(0, 16383, node(host, 6379))]);
            assert_eq!(read(&answer, &from()).unwrap().to_string(), shown);
        }
        let old = Value::Array(vec![text("10.0.0.1"), Value::Int(6379)]);
        assert!(read(&Value::Array(vec![range(0, 1, old)]), &from()).is_ok());
        let hidden = Value::Array(vec![text("?"), Value::Int(6379)]);
        let answer = Value::Array(vec![range(0, 1, hidden), range(2, 3, node(text("a"), 1))]);
        assert_eq!(read(&answer, &from()).unwrap().orphans(), usize::from(SLOTS) - 2);
    }

    #[test]
    fn other_answers_are_refused() {
        let fine = || node(text("a"), 6379);
        for answer in [
            Value::Nil,
            Value::Okay,
            Value::Array(Vec::new()),
            Value::Array(vec![Value::Int(0)]),
            Value::Array(vec![Value::Array(vec![Value::Int(0), Value::Int(1)])]),
            Value::Array(vec![range(-1, 5, fine())]),
            Value::Array(vec![range(5, 4, fine())]),
            Value::Array(vec![range(0, 16384, fine())]),
            Value::Array(vec![range(0, 5, node(text("a"), 65536))]),
            Value::Array(vec![range(0, 5, Value::Array(vec![text("a")]))]),
        ] {
            assert!(read(&answer, &from()).is_err(), "{answer:?}");
        }
    }
}
