//! The control plane that rules come from.
//!
//! Its variables are checked even if rules come from files, except that files of certificates need not exist then.

use std::time::Duration;

use super::{
    parse,
    reader::Reader,
    tls::TlsVars,
    values::RulesSource,
    vars::{self, ControlPlane},
};
use net::Secret;
use rules_source::xds::settings::{Xds, XdsTls};
use text::{InvalidValue, duration};

/// Without a delay, a failing control plane would be retried as fast as both machines can.
const SHORTEST_DELAY: Duration = Duration::from_millis(10);

/// A delay; a shorter one means the shortest.
pub(super) fn delay(text: &str) -> Result<Duration, InvalidValue> {
    duration::parse(text).map(|delay| delay.max(SHORTEST_DELAY))
}

const TLS: TlsVars = TlsVars {
    ca: &vars::CONFIG_GRPC_XDS_SERVER_TLS_CACERT,
    certificate: &vars::CONFIG_GRPC_XDS_CLIENT_TLS_CERT,
    key: &vars::CONFIG_GRPC_XDS_CLIENT_TLS_KEY,
    enabled_by: "CONFIG_GRPC_XDS_SERVER_USE_TLS=true",
};

/// The largest response has `text_of_rules` bytes by default.
pub(super) fn read(reader: &mut Reader<'_>, source: RulesSource, text_of_rules: usize) -> Option<Box<Xds>> {
    let set = ControlPlane::read(reader);
    let xds = Xds {
        node_metadata: node_metadata(reader, &set.node_metadata),
        headers: headers(reader, &set.headers),
        tls: tls(reader, &set, source),
        server: set.server,
        node_id: set.node_id,
        connect_retry_interval: set.connect_retry_interval,
        backoff: set.backoff,
        keepalive_interval: set.keepalive_interval,
        max_message_bytes: if set.max_message_bytes == 0 { text_of_rules } else { set.max_message_bytes },
    };
    (source != RulesSource::File).then(|| Box::new(xds))
}

/// `name=text,name=text`. Entries without `=` are ignored, as in the Go service.
fn node_metadata(reader: &mut Reader<'_>, text: &str) -> Vec<(String, String)> {
    let mut pairs = Vec::new();
    for entry in text.split(',').filter(|entry| !entry.is_empty()) {
        if let Some((name, text)) = entry.split_once('=') {
            pairs.push((name.to_owned(), text.to_owned()));
        } else {
            let message = format!("entry {entry:?} has no `=` and is ignored; expected name=text,name=text");
            reader.warn(&vars::CONFIG_GRPC_XDS_NODE_METADATA, message);
        }
    }
    pairs
}

/// `name:value,name:value`. Values may be secrets, so errors name the entry by its number.
fn headers(reader: &mut Reader<'_>, text: &str) -> Vec<(String, Secret)> {
    let mut headers = Vec::new();
    for (entry, number) in text.split(',').zip(1..).filter(|(entry, _)| !entry.is_empty()) {
        match header(entry) {
            Ok(header) => headers.push(header),
            Err(invalid) => {
                let expected = format!("{} in entry {number}", invalid.expected);
                let invalid = InvalidValue { expected, ..invalid };
                reader.reject(&vars::CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS, invalid);
            }
        }
    }
    headers
}

fn header(entry: &str) -> Result<(String, Secret), InvalidValue> {
    let expected = "name:value,name:value";
    let (name, value) = entry.split_once(':').ok_or_else(|| InvalidValue::new(expected))?;
    let name = parse::header_name(name.trim())?.to_ascii_lowercase();
    let value = value.trim();
    if http::HeaderValue::from_str(value).is_err() {
        return Err(InvalidValue::new(expected).with_hint("values have printable characters only"));
    }
    Ok((name, Secret(value.to_owned())))
}

fn tls(reader: &mut Reader<'_>, set: &ControlPlane, source: RulesSource) -> Option<XdsTls> {
    if !set.use_tls || source != RulesSource::File {
        TLS.check_files(reader, set.use_tls);
    }
    // Not an error: the Go service connects without a certificate then.
    if set.use_tls
        && let Some((half, missing)) = TLS.half_identity(reader)
    {
        reader.warn(half, format!("has no effect without {}", missing.name));
    }
    let server_name = Some(set.server_name.clone()).filter(|name| !name.is_empty());
    let files = TLS.read(reader);
    set.use_tls.then_some(XdsTls { files, server_name })
}

#[cfg(test)]
mod tests;
