//! Replies of name servers as they are written on the wire, and damaged ones.

use proptest::prelude::*;

use super::*;

const NAME: &str = "_memcache._tcp.cache.test";

/// A reply with these servers, whose names point back at the question.
pub fn srv_reply(question: &[u8], targets: &[(&str, u16)]) -> Vec<u8> {
    let mut message = question.to_vec();
    message[2..4].copy_from_slice(&[0x81, 0x80]);
    message[6..8].copy_from_slice(&u16::try_from(targets.len()).unwrap().to_be_bytes());
    for (host, port) in targets {
        message.extend_from_slice(b"\xc0\x0c\0\x21\0\x01\0\0\0\x05");
        let mut data = vec![0, 10, 0, 5];
        data.extend_from_slice(&port.to_be_bytes());
        for label in host.split('.') {
            data.push(u8::try_from(label.len()).unwrap());
            data.extend_from_slice(label.as_bytes());
        }
        data.push(0);
        message.extend_from_slice(&u16::try_from(data.len()).unwrap().to_be_bytes());
        message.extend_from_slice(&data);
    }
    message
}

fn asked() -> Vec<u8> {
    query(0x1234, NAME).unwrap()
}

fn flagged(flags: [u8; 2]) -> Vec<u8> {
    let mut message = srv_reply(&asked(), &[]);
    message[2..4].copy_from_slice(&flags);
    message
}

#[test]
fn queries_have_the_standard_form() {
    let expected = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x09_memcache\x04_tcp\x05cache\x04test\0\0\x21\0\x01";
    assert_eq!(asked(), expected);
    assert_eq!(query(0x1234, "_memcache._tcp.cache.test.").unwrap(), expected);
    for name in ["", ".", "a..b", &"x".repeat(64), &"x.".repeat(200)] {
        assert_eq!(query(1, name), None, "{name}");
    }
}

#[test]
fn replies_contain_servers() {
    let message = srv_reply(&asked(), &[("b.cache.test", 11211), ("a.cache.test", 11212)]);
    let target = |host: &str, port| HostPort { host: host.to_owned(), port };
    let expected = vec![target("b.cache.test.", 11211), target("a.cache.test.", 11212)];
    assert_eq!(reply(&asked(), &message), Some(Answer::Targets(expected)));
    for cut in 0..message.len() {
        assert_eq!(reply(&asked(), &message[..cut]), None, "{cut}");
    }
}

#[test]
fn other_replies_are_distinguished() {
    assert_eq!(reply(&asked(), &flagged([0x81, 0x80])), Some(Answer::Targets(Vec::new())));
    assert_eq!(reply(&asked(), &flagged([0x81, 0x83])), Some(Answer::NoSuchName));
    assert_eq!(reply(&asked(), &flagged([0x83, 0x80])), Some(Answer::Truncated));
    assert_eq!(reply(&asked(), &flagged([0x81, 0x82])), Some(Answer::Failed(2)));
    assert_eq!(reply(&asked(), &asked()), None, "a query is not a reply");
    let other = query(0x1235, NAME).unwrap();
    assert_eq!(reply(&other, &flagged([0x81, 0x80])), None, "the id of another query");
    let other = query(0x1234, "_memcache._tcp.other.test").unwrap();
    assert_eq!(reply(&other, &flagged([0x81, 0x80])), None, "the name of another query");
}

#[test]
fn other_records_and_unavailable_services_are_ignored() {
    let mut message = srv_reply(&asked(), &[("a.test", 1)]);
    let kind = asked().len() + 3;
    message[kind] = 5;
    assert_eq!(reply(&asked(), &message), Some(Answer::Targets(Vec::new())));
    let mut message = srv_reply(&asked(), &[("x", 1)]);
    let host = message.len() - 3;
    message.truncate(host);
    message.push(0);
    message[host - 7] = 7;
    assert_eq!(reply(&asked(), &message), Some(Answer::Targets(Vec::new())));
}

#[test]
fn circular_names_are_invalid() {
    let mut message = srv_reply(&asked(), &[("a.test", 1)]);
    let at = asked().len();
    let pointer = (0xc000 | u16::try_from(at).unwrap()).to_be_bytes();
    message[at..at + 2].copy_from_slice(&pointer);
    assert_eq!(reply(&asked(), &message), None);
}

proptest! {
    #[test]
    fn nothing_panics(
        mut bytes in prop::collection::vec(any::<u8>(), 0..300),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
    ) {
        let _ = reply(&asked(), &bytes);
        let mut message = srv_reply(&asked(), &[("a.cache.test", 1), ("b.cache.test", 2)]);
        for (at, byte) in changes {
            let at = at.index(message.len());
            message[at] = byte;
        }
        let _ = reply(&asked(), &message);
        bytes.splice(0..0, flagged([0x81, 0x80]));
        let _ = reply(&asked(), &bytes);
    }
}
