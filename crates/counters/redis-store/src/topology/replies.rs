//! The replies of cluster nodes and sentinels that name the masters.

use super::{KeyOwners, NO_OWNER, slots::SLOTS};
use crate::{failure, resp::Reply};
use net::{HostPort, ServerAddress};

/// A range of slots and its master; `None` if the master's address is unknown.
struct Range {
    first: u16,
    last: u16,
    owner: Option<HostPort>,
}

/// Reads the reply of a sentinel to `SENTINEL get-master-addr-by-name`.
pub(super) fn master(reply: &Reply, name: &str) -> Result<KeyOwners, String> {
    match reply {
        Reply::Nil => Err(format!("no master named {name:?}; see the first part of REDIS_URL")),
        Reply::Error(error) if error.contains("unknown command") => {
            Err("not a sentinel; REDIS_URL expects a master's name, then sentinels".to_owned())
        }
        Reply::Error(error) => Err(rejected(error)),
        reply => {
            let master = read_master(reply).map(|address| KeyOwners::single(ServerAddress::Tcp(address)));
            master.ok_or_else(|| format!("unexpected reply instead of the address of {name:?}"))
        }
    }
}

fn read_master(reply: &Reply) -> Option<HostPort> {
    let Reply::List(address) = reply else { return None };
    let [host, port] = address.as_slice() else { return None };
    let host = host.text().filter(|host| !host.is_empty())?.to_owned();
    Some(HostPort { host, port: port.text()?.parse().ok()? })
}

/// Reads the reply of the node `from` to `CLUSTER SLOTS`.
pub(super) fn slots(reply: &Reply, from: &HostPort) -> Result<KeyOwners, String> {
    let ranges = match reply {
        Reply::Error(error) if error.contains("cluster support disabled") => {
            return Err(format!("{error}; did you mean REDIS_TYPE=SINGLE?"));
        }
        Reply::Error(error) => return Err(rejected(error)),
        Reply::List(ranges) => ranges.iter().map(|range| read_range(range, from)).collect::<Option<Vec<_>>>(),
        _ => None,
    };
    let ranges = ranges.ok_or("unexpected reply to CLUSTER SLOTS")?;
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
    let masters = masters.into_iter().cloned().map(ServerAddress::Tcp).collect();
    Ok(KeyOwners { masters, slots: Some(slots) })
}

fn rejected(error: &str) -> String {
    format!("error reply \"{error}\"{}", failure::hint(failure::kind_of_reply(error)))
}

/// First slot, last slot, master, replicas.
fn read_range(range: &Reply, from: &HostPort) -> Option<Range> {
    let Reply::List(parts) = range else { return None };
    let [first, last, Reply::List(master), ..] = parts.as_slice() else { return None };
    let first = number(first)?;
    let last = number(last)?;
    let is_valid = first <= last && last < SLOTS;
    is_valid.then_some(Range { first, last, owner: read_node(master, from)? })
}

/// Reads a node: host, port, and in newer versions its id and metadata. A node without a host has that of the node that
/// replied. A node whose host name is not known yet is called `?`, and its address is in the metadata.
#[expect(clippy::option_option, reason = "an invalid reply, no address, and an address are three results")]
fn read_node(node: &[Reply], from: &HostPort) -> Option<Option<HostPort>> {
    let [host, port, rest @ ..] = node else { return None };
    let port = number(port)?;
    let host = match host {
        Reply::Nil => Some(&*from.host),
        host => match host.text()? {
            "" => Some(&*from.host),
            "?" => rest.get(1).and_then(address_among),
            host => Some(host),
        },
    };
    Some(host.map(|host| HostPort { host: host.to_owned(), port }))
}

/// The value of `ip` in a list of names and values.
fn address_among(more: &Reply) -> Option<&str> {
    let Reply::List(more) = more else { return None };
    let (pairs, _) = more.as_chunks::<2>();
    let found = pairs.iter().find(|[name, _]| name.text() == Some("ip"));
    found.and_then(|[_, value]| value.text()).filter(|ip| !ip.is_empty())
}

fn number(reply: &Reply) -> Option<u16> {
    match reply {
        Reply::Integer(number) => u16::try_from(*number).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Reply {
        Reply::Text(text.as_bytes().to_vec())
    }

    fn node(host: Reply, port: i64) -> Reply {
        let more = Reply::List(vec![text("hostname"), text(""), text("ip"), text("10.0.0.9")]);
        Reply::List(vec![host, Reply::Integer(port), text("07c37dfeb235213a872192d90877d0cd55635b91"), more])
    }

    fn range(first: i64, last: i64, master: Reply) -> Reply {
        let replica = node(text("10.0.0.7"), 6379);
        Reply::List(vec![Reply::Integer(first), Reply::Integer(last), master, replica])
    }

    fn from() -> HostPort {
        HostPort { host: "seed".to_owned(), port: 7000 }
    }

    #[test]
    fn every_slot_has_its_owner() {
        let reply = Reply::List(vec![
            range(5461, 10922, node(text("10.0.0.2"), 6379)),
            range(0, 5460, node(text("10.0.0.1"), 6379)),
            range(10923, 16383, node(text("fd00::3"), 6379)),
        ]);
        let servers = slots(&reply, &from()).unwrap();
        assert_eq!(servers.to_string(), "10.0.0.1:6379, 10.0.0.2:6379, [fd00::3]:6379");
        // Their slots are 866, 5061 and 12182.
        assert_eq!(
            ["hello", "bar", "foo"].map(|key| servers.owner(key.as_bytes())),
            [Some(0), Some(0), Some(2)]
        );
        assert_eq!(servers.orphans(), 0);
    }

    #[test]
    fn the_order_of_ranges_does_not_matter() {
        let (one, other) = (range(0, 99, node(text("b"), 1)), range(100, 199, node(text("a"), 1)));
        let servers = slots(&Reply::List(vec![one.clone(), other.clone()]), &from());
        assert_eq!(servers, slots(&Reply::List(vec![other, one]), &from()));
        assert_eq!(servers.unwrap().orphans(), usize::from(SLOTS) - 200);
    }

    #[test]
    fn reads_every_form_of_a_nodes_address() {
        for (host, shown) in [
            (Reply::Nil, "seed:6379"),
            (text(""), "seed:6379"),
            (text("?"), "10.0.0.9:6379"),
            (text("redis-0.redis.svc"), "redis-0.redis.svc:6379"),
            (text("fd00::1"), "[fd00::1]:6379"),
        ] {
            let reply = Reply::List(vec![range(0, 16383, node(host, 6379))]);
            assert_eq!(slots(&reply, &from()).unwrap().to_string(), shown);
        }
        let old = Reply::List(vec![text("10.0.0.1"), Reply::Integer(6379)]);
        assert!(slots(&Reply::List(vec![range(0, 1, old)]), &from()).is_ok());
        let hidden = Reply::List(vec![text("?"), Reply::Integer(6379)]);
        let reply = Reply::List(vec![range(0, 1, hidden), range(2, 3, node(text("a"), 1))]);
        assert_eq!(slots(&reply, &from()).unwrap().orphans(), usize::from(SLOTS) - 2);
    }

    #[test]
    fn rejects_other_replies() {
        let fine = || node(text("a"), 6379);
        for reply in [
            Reply::Nil,
            text("OK"),
            Reply::List(Vec::new()),
            Reply::List(vec![Reply::Integer(0)]),
            Reply::List(vec![Reply::List(vec![Reply::Integer(0), Reply::Integer(1)])]),
            Reply::List(vec![range(-1, 5, fine())]),
            Reply::List(vec![range(5, 4, fine())]),
            Reply::List(vec![range(0, 16384, fine())]),
            Reply::List(vec![range(0, 5, node(text("a"), 65536))]),
            Reply::List(vec![range(0, 5, Reply::List(vec![text("a")]))]),
        ] {
            assert!(slots(&reply, &from()).is_err(), "{reply:?}");
        }
    }

    #[test]
    fn reads_the_address_of_the_master() {
        for (host, shown) in
            [("10.0.0.1", "10.0.0.1:6379"), ("fd00::1", "[fd00::1]:6379"), ("redis-0.r", "redis-0.r:6379")]
        {
            let reply = Reply::List(vec![text(host), text("6379")]);
            assert_eq!(master(&reply, "m").unwrap().to_string(), shown);
        }
    }

    #[test]
    fn errors_about_a_master_contain_advice() {
        let unknown = master(&Reply::Nil, "mymaster").unwrap_err();
        assert!(unknown.contains("\"mymaster\"") && unknown.contains("REDIS_URL"), "{unknown}");
        for reply in [
            text("OK"),
            Reply::Integer(1),
            Reply::List(Vec::new()),
            Reply::List(vec![text(""), text("6379")]),
            Reply::List(vec![text("a"), text("99999")]),
            Reply::List(vec![text("a"), Reply::Integer(-1)]),
            Reply::List(vec![text("a"), text("6379"), text("b")]),
        ] {
            assert!(master(&reply, "m").is_err(), "{reply:?}");
        }
    }
}
