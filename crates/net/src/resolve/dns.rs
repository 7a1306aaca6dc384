//! DNS messages for SRV records: the query and its reply. There is no I/O here; `lookup` sends queries.
//!
//! Written by hand because nothing else is resolved here: `ARCHITECTURE.md` has the cost of a resolver crate.

// Type and class of the records.
const SRV: u16 = 33;
const INTERNET: u16 = 1;

const RECURSION_DESIRED: u16 = 0x0100;

/// Bytes before the question.
const HEADER: usize = 12;

/// Maximum number of compression pointers in a name.
const MAX_POINTERS: usize = 16;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    pub host: String,
    pub port: u16,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The servers; empty if the name has no SRV records.
    Targets(Vec<Target>),
    /// The name does not exist.
    NoSuchName,
    /// The reply does not fit; query again over TCP.
    Truncated,
    Failed(u8),
}

/// A query; `None` for an invalid name.
pub fn query(id: u16, name: &str) -> Option<Vec<u8>> {
    let mut message = Vec::with_capacity(name.len().saturating_add(HEADER + 6));
    for number in [id, RECURSION_DESIRED, 1, 0, 0, 0] {
        message.extend_from_slice(&number.to_be_bytes());
    }
    for label in name.strip_suffix('.').unwrap_or(name).split('.') {
        let length = u8::try_from(label.len()).ok().filter(|length| (1..=63).contains(length))?;
        message.push(length);
        message.extend_from_slice(label.as_bytes());
    }
    message.push(0);
    if message.len() > HEADER + 255 {
        return None;
    }
    for number in [SRV, INTERNET] {
        message.extend_from_slice(&number.to_be_bytes());
    }
    Some(message)
}

/// The reply to a query; `None` for anything else.
pub fn reply(question: &[u8], message: &[u8]) -> Option<Answer> {
    let mut reader = Reader { message, at: 0 };
    let id = reader.number()?;
    let flags = reader.number()?;
    let [questions, answers, _, _] = [reader.number()?, reader.number()?, reader.number()?, reader.number()?];
    let is_answer = flags & 0x8000 != 0;
    if !is_answer || question.get(..2) != Some(&id.to_be_bytes()[..]) {
        return None;
    }
    let [_, code] = (flags & 0x000f).to_be_bytes();
    match code {
        _ if flags & 0x0200 != 0 => return Some(Answer::Truncated),
        0 => {}
        3 => return Some(Answer::NoSuchName),
        code => return Some(Answer::Failed(code)),
    }
    let query = question.get(HEADER..)?;
    let end = query.len().saturating_add(HEADER);
    let repeated = message.get(HEADER..end)?;
    if questions != 1 || !repeated.eq_ignore_ascii_case(query) {
        return None;
    }
    reader.at = end;
    let mut targets = Vec::new();
    for _ in 0..answers {
        reader.record(&mut targets)?;
    }
    Some(Answer::Targets(targets))
}

struct Reader<'m> {
    message: &'m [u8],
    at: usize,
}

impl Reader<'_> {
    fn byte(&mut self) -> Option<u8> {
        let byte = self.message.get(self.at).copied();
        self.at = self.at.saturating_add(1);
        byte
    }

    fn number(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes([self.byte()?, self.byte()?]))
    }

    /// Reads the next record, and adds its server if it is an SRV record; `None` if it is invalid.
    fn record(&mut self, targets: &mut Vec<Target>) -> Option<()> {
        self.name()?;
        let [kind, class, _, _, length] =
            [self.number()?, self.number()?, self.number()?, self.number()?, self.number()?];
        let end = self.at.saturating_add(length.into());
        if end > self.message.len() {
            return None;
        }
        if (kind, class) == (SRV, INTERNET) {
            let [_priority, _weight, port] = [self.number()?, self.number()?, self.number()?];
            let host = self.name()?;
            // A single dot means that the service is not available.
            targets.extend((host != ".").then_some(Target { host, port }));
        }
        self.at = end;
        Some(())
    }

    /// A name, with a dot after each label.
    fn name(&mut self) -> Option<String> {
        let mut name = String::new();
        let mut after_pointer = None;
        let mut pointers = 0_usize;
        loop {
            match self.byte()? {
                0 => break,
                length @ 1..=63 => {
                    let end = self.at.saturating_add(length.into());
                    let label = self.message.get(self.at..end)?;
                    if !label.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_*".contains(byte)) {
                        return None;
                    }
                    name.extend(label.iter().map(|byte| char::from(*byte)));
                    name.push('.');
                    self.at = end;
                }
                high @ 0xc0.. if pointers < MAX_POINTERS => {
                    let low = self.byte()?;
                    after_pointer.get_or_insert(self.at);
                    self.at = usize::from(u16::from_be_bytes([high & 0x3f, low]));
                    pointers = pointers.saturating_add(1);
                }
                _ => return None,
            }
            if name.len() > 255 {
                return None;
            }
        }
        self.at = after_pointer.unwrap_or(self.at);
        if name.is_empty() {
            name.push('.');
        }
        Some(name)
    }
}

#[cfg(test)]
pub mod tests {
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
        let expected =
            b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x09_memcache\x04_tcp\x05cache\x04test\0\0\x21\0\x01";
        assert_eq!(asked(), expected);
        assert_eq!(query(0x1234, "_memcache._tcp.cache.test.").unwrap(), expected);
        for name in ["", ".", "a..b", &"x".repeat(64), &"x.".repeat(200)] {
            assert_eq!(query(1, name), None, "{name}");
        }
    }

    #[test]
    fn replies_contain_servers() {
        let message = srv_reply(&asked(), &[("b.cache.test", 11211), ("a.cache.test", 11212)]);
        let target = |host: &str, port| Target { host: host.to_owned(), port };
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
}
