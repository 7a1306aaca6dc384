//! What a cluster is asked, and how its answer is read.

use deadpool_redis::redis::{Cmd, FromRedisValue, Value, cmd};

use super::{NOBODY, Servers, slots::SLOTS};
use crate::settings::{HostPort, redis::RedisAddress};

/// Who owns which slots?
pub(super) fn question() -> Cmd {
    let mut question = cmd("CLUSTER");
    question.arg("SLOTS");
    question
}

/// Some slots, and the master that owns them; none when it does not tell its address.
struct Range {
    first: u16,
    last: u16,
    owner: Option<HostPort>,
}

/// Reads what `asked` answered.
///
/// # Errors
/// Why the answer does not tell.
pub(super) fn read(answer: &Value, asked: &HostPort) -> Result<Servers, String> {
    let Value::Array(ranges) = answer else { return Err(nonsense()) };
    let ranges = ranges.iter().map(|range| read_range(range, asked)).collect::<Option<Vec<_>>>();
    let ranges = ranges.ok_or_else(nonsense)?;
    // In an order of their own, so that the same cluster looks the same whoever tells of it.
    let mut masters: Vec<_> = ranges.iter().filter_map(|range| range.owner.as_ref()).collect();
    masters.sort_by(|one, other| (&one.host, one.port).cmp(&(&other.host, other.port)));
    masters.dedup();
    if masters.is_empty() {
        return Err("it knows of no owner of any slot; is the cluster complete?".to_owned());
    }
    let mut slots = vec![NOBODY; usize::from(SLOTS)].into_boxed_slice();
    for range in &ranges {
        let owner = masters.iter().position(|master| range.owner.as_ref() == Some(*master));
        let owner = owner.and_then(|place| u16::try_from(place).ok()).unwrap_or(NOBODY);
        if let Some(owned) = slots.get_mut(usize::from(range.first)..=usize::from(range.last)) {
            owned.fill(owner);
        }
    }
    let masters = masters.into_iter().cloned().map(RedisAddress::Tcp).collect();
    Ok(Servers { masters, slots: Some(slots) })
}

fn nonsense() -> String {
    "it answers something else than the owners of slots".to_owned()
}

/// First slot, last slot, master, replicas.
fn read_range(range: &Value, asked: &HostPort) -> Option<Range> {
    let Value::Array(parts) = range else { return None };
    let [first, last, Value::Array(master), ..] = parts.as_slice() else { return None };
    let (first, last) = (number(first)?, number(last)?);
    let is_sound = first <= last && last < SLOTS;
    is_sound.then_some(Range { first, last, owner: read_node(master, asked)? })
}

/// Host, port, and in newer versions an identity and what else is known of it. A node without a host is
/// to be found where we asked; one that should have a name but has none yet is called `?`, and its
/// address stands among the rest.
#[expect(clippy::option_option, reason = "nonsense, no address, and an address are three answers")]
fn read_node(node: &[Value], asked: &HostPort) -> Option<Option<HostPort>> {
    let [host, port, rest @ ..] = node else { return None };
    let host = <Option<String>>::from_redis_value_ref(host).ok()?;
    let port = number(port)?;
    let host = match host.as_deref() {
        None | Some("") => Some(asked.host.clone()),
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

/// Read as a larger one first: the `redis` crate cuts off what is too much.
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

    fn asked() -> HostPort {
        HostPort { host: "seed".to_owned(), port: 7000 }
    }

    #[test]
    fn every_slot_finds_its_owner() {
        let answer = Value::Array(vec![
            range(5461, 10922, node(text("10.0.0.2"), 6379)),
            range(0, 5460, node(text("10.0.0.1"), 6379)),
            range(10923, 16383, node(text("fd00::3"), 6379)),
        ]);
        let servers = read(&answer, &asked()).unwrap();
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
        let servers = read(&Value::Array(vec![one.clone(), other.clone()]), &asked());
        assert_eq!(servers, read(&Value::Array(vec![other, one]), &asked()));
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
            assert_eq!(read(&answer, &asked()).unwrap().to_string(), shown);
        }
        let old = Value::Array(vec![text("10.0.0.1"), Value::Int(6379)]);
        assert!(read(&Value::Array(vec![range(0, 1, old)]), &asked()).is_ok());
        let hidden = Value::Array(vec![text("?"), Value::Int(6379)]);
        let answer = Value::Array(vec![range(0, 1, hidden), range(2, 3, node(text("a"), 1))]);
        assert_eq!(read(&answer, &asked()).unwrap().orphans(), usize::from(SLOTS) - 2);
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
            assert!(read(&answer, &asked()).is_err(), "{answer:?}");
        }
    }
}
