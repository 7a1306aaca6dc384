//! DNS messages for SRV records: the query and its reply. There is no I/O here; `lookup` sends queries.

use simple_dns::{CLASS, Name, Packet, PacketFlag, Question, TYPE, header_buffer, rdata::RData};

use crate::HostPort;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The servers; empty if the name has no SRV records.
    Targets(Vec<HostPort>),
    NoSuchName,
    /// The reply does not fit; query again over TCP.
    Truncated,
    Failed(u8),
}

/// A query; `None` for an invalid name.
pub fn query(id: u16, name: &str) -> Option<Vec<u8>> {
    let name = name.strip_suffix('.').unwrap_or(name);
    if name.split('.').any(str::is_empty) {
        return None;
    }
    let mut packet = Packet::new_query(id);
    packet.set_flags(PacketFlag::RECURSION_DESIRED);
    packet.questions.push(Question::new(Name::new(name).ok()?, TYPE::SRV.into(), CLASS::IN.into(), false));
    packet.build_bytes_vec().ok()
}

/// The reply to a query; `None` for anything else.
pub fn reply(query: &[u8], message: &[u8]) -> Option<Answer> {
    let has = |flag| header_buffer::has_flags(message, flag).ok();
    if header_buffer::id(message).ok()? != header_buffer::id(query).ok()? || !has(PacketFlag::RESPONSE)? {
        return None;
    }
    match message.get(3)? & 0x0f {
        // It may end within a record.
        _ if has(PacketFlag::TRUNCATION)? => return Some(Answer::Truncated),
        0 => {}
        3 => return Some(Answer::NoSuchName),
        code => return Some(Answer::Failed(code)),
    }
    let query = Packet::parse(query).ok()?;
    let reply = Packet::parse(message).ok()?;
    let question = |packet: &Packet<'_>| match &*packet.questions {
        [question] => {
            Some((question.qname.to_string().to_ascii_lowercase(), question.qtype, question.qclass))
        }
        _ => None,
    };
    if question(&reply)? != question(&query)? {
        return None;
    }
    let mut targets = Vec::new();
    for record in reply.answers.iter().filter(|record| record.class == CLASS::IN) {
        let RData::SRV(server) = &record.rdata else { continue };
        let host = format!("{}.", server.target);
        if !host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_*".contains(&byte)) {
            return None;
        }
        // A single dot means that the service is not available.
        targets.extend((host != ".").then_some(HostPort { host, port: server.port }));
    }
    Some(Answer::Targets(targets))
}

#[cfg(test)]
pub mod tests;
