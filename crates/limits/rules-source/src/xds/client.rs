//! The loop of a subscription: connect, process the stream until it ends, wait, repeat.
//!
//! An error is logged once until a response is received, not at each attempt.

use std::{collections::HashSet, error::Error as _};

use prost_types::{Struct, Value, value::Kind};
use tokio::time::{Instant, sleep};
use tonic::{
    Code, Status,
    metadata::{AsciiMetadataKey, BinaryMetadataKey, MetadataMap, MetadataValue},
    transport::Channel,
};

use super::{
    connect::connect,
    session::Session,
    stream::{Subscriber, process},
};
use crate::xds::settings::{Xds, XdsBackoff};
use faults::panics;
use net::backoff::{Backoff, jittered};
use proto::envoy::config::core::v3::Node;
use text::cut;

/// The limit of different errors that are logged until a response is received.
const MAX_LOGGED: usize = 8;

/// Runs the subscription; never returns.
pub(super) async fn run<T>(settings: &Xds, session: &Session<'_, T>) {
    let node = node(settings);
    let headers = headers(settings);
    let subscriber = Subscriber { node, headers, max_message_bytes: settings.max_message_bytes };
    let XdsBackoff { initial, max, factor, jitter } = settings.backoff;
    let mut backoff = Backoff::new(initial, max).with(factor, jitter);
    let mut logged = HashSet::new();
    loop {
        panics::point("xds_client");
        let (error, pause) = match connect(settings).await {
            Err(error) => (error, jittered(settings.connect_retry_interval, 0.5)),
            Ok(channel) => {
                let (error, was_useful) = run_stream(channel, settings, &subscriber, session).await;
                if was_useful {
                    backoff.reset();
                    logged.clear();
                }
                (error, backoff.next_pause())
            }
        };
        session.is_lost.set(true);
        if logged.len() < MAX_LOGGED && logged.insert(error.clone()) {
            tracing::warn!("{}: {error}; retrying in {pause:?}", session.origin);
        } else {
            tracing::debug!("{}: {error}; retrying in {pause:?}", session.origin);
        }
        sleep(pause).await;
        session.status.change(|status| status.reconnects += 1);
    }
}

/// Returns the error that ended the stream, and whether it was useful: it received a response, or was open longer than
/// the longest backoff.
async fn run_stream<T>(
    channel: Channel,
    settings: &Xds,
    subscriber: &Subscriber,
    session: &Session<'_, T>,
) -> (String, bool) {
    tracing::debug!("connected to {}", session.origin);
    let before = session.status.state().updates;
    let begun = Instant::now();
    session.status.change(|status| status.connected = true);
    let ended = process(channel, subscriber, session).await;
    session.status.change(|status| status.connected = false);
    let was_useful = session.status.state().updates > before || begun.elapsed() > settings.backoff.max;
    let error = match ended {
        Ok(()) => "the server closed the stream".to_owned(),
        Err(status) if was_useful || status.source().is_none() => describe(&status),
        Err(status) => format!("{}{}", describe(&status), help(settings)),
    };
    (error, was_useful)
}

/// The help for a connection that failed before the first response: one side may expect TLS.
fn help(settings: &Xds) -> &'static str {
    match &settings.tls {
        None => "; if the port expects TLS, set CONFIG_GRPC_XDS_SERVER_USE_TLS=true",
        Some(tls) if tls.files.identity.is_none() => {
            "; if it requires a client certificate, set CONFIG_GRPC_XDS_CLIENT_TLS_CERT and \
             CONFIG_GRPC_XDS_CLIENT_TLS_KEY"
        }
        Some(_) => "; it may not trust the client certificate",
    }
}

fn node(settings: &Xds) -> Node {
    let text = |text: &String| Value { kind: Some(Kind::StringValue(text.clone())) };
    let fields = settings.node_metadata.iter().map(|(name, value)| (name.clone(), text(value))).collect();
    Node {
        id: settings.node_id.clone(),
        metadata: Some(Struct { fields }),
        user_agent_name: "tollgate".to_owned(),
        user_agent_version: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

/// The settings accept valid headers only.
fn headers(settings: &Xds) -> MetadataMap {
    let mut headers = MetadataMap::new();
    for (name, value) in &settings.headers {
        // Names that end in `-bin`: gRPC encodes their values.
        if let Ok(name) = BinaryMetadataKey::from_bytes(name.as_bytes()) {
            headers.append_bin(name, MetadataValue::from_bytes(value.0.as_bytes()));
        } else if let (Ok(name), Ok(value)) = (AsciiMetadataKey::from_bytes(name.as_bytes()), value.0.parse())
        {
            headers.append(name, value);
        }
    }
    headers
}

/// The error that ended a stream, with its causes.
fn describe(status: &Status) -> String {
    let mut text = format!("stream error: {} ({:?})", cut(status.message()), status.code());
    let mut cause = status.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    if status.code() == Code::OutOfRange {
        text.push_str(
            "; the limit is XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES, by default 32 bytes for each of RULES_MAX_VALUES: send fewer \
             rules, or raise it or MEMORY_LIMIT",
        );
    }
    text
}
