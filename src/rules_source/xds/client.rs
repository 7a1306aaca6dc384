//! The loop: connect, process the stream until it ends, wait, repeat.
//!
//! An error is logged once, not at each attempt, until a response is received.

use std::{collections::HashSet, error::Error as _, time::Duration};

use prost_types::{Struct, Value, value::Kind};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tonic::{
    Code, Status,
    metadata::{AsciiMetadataKey, BinaryMetadataKey, MetadataMap, MetadataValue},
    transport::Channel,
};

use super::{connect::connect, delta, session::Session, sotw};
use crate::{
    net::backoff::{Backoff, jittered},
    panics,
    proto::envoy::config::core::v3::Node,
    settings::xds::{Xds, XdsBackoff},
    text::cut,
};

/// How often replaced rules that requests still used are checked, to free them.
const FREE_EVERY: Duration = Duration::from_secs(10);

/// The limit of different errors that are logged until a response is received.
const MAX_LOGGED: usize = 8;

/// The identity of this subscriber.
pub(super) struct Subscriber {
    pub(super) node: Node,
    pub(super) headers: MetadataMap,
    pub(super) max_message_bytes: usize,
    /// Messages in one response, and in all resources together.
    pub(super) max_values: usize,
}

/// Runs the subscription for ever.
pub(super) async fn run<T>(settings: &Xds, session: &Session<'_, T>) {
    let mut free = interval(FREE_EVERY);
    free.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let freeing = async {
        loop {
            free.tick().await;
            session.source().free_retired();
        }
    };
    tokio::select! {
        () = subscribe(settings, session) => {}
        () = freeing => {}
    }
}

async fn subscribe<T>(settings: &Xds, session: &Session<'_, T>) {
    let subscriber = Subscriber {
        node: node(settings),
        headers: headers(settings),
        max_message_bytes: settings.max_message_bytes,
        max_values: session.max_values(),
    };
    let mut known = delta::Known::new();
    let XdsBackoff { initial, max, factor, jitter } = settings.backoff;
    let mut backoff = Backoff::new(initial, max).with(factor, jitter);
    let mut logged = HashSet::new();
    loop {
        panics::point("xds_client");
        let (error, pause) = match connect(settings).await {
            Err(error) => (error, jittered(settings.connect_retry_interval, 0.5)),
            Ok(channel) => {
                let end = process(channel, settings, &subscriber, session, &mut known).await;
                if end.was_useful {
                    backoff.reset();
                    logged.clear();
                }
                (end.error, backoff.next_pause())
            }
        };
        session.lost();
        if logged.len() < MAX_LOGGED && logged.insert(error.clone()) {
            tracing::warn!("{}: {error}; trying again in {pause:?}", session.origin());
        } else {
            tracing::debug!("{}: {error}; trying again in {pause:?}", session.origin());
        }
        sleep(pause).await;
        session.status().change(|status| status.reconnects = status.reconnects.saturating_add(1));
    }
}

/// How a connection ended.
struct End {
    /// Why.
    error: String,
    /// A response was received, or the stream was open longer than the longest pause.
    was_useful: bool,
}

/// Processes one connection until it ends.
async fn process<T>(
    channel: Channel,
    settings: &Xds,
    subscriber: &Subscriber,
    session: &Session<'_, T>,
    known: &mut delta::Known,
) -> End {
    tracing::debug!("connected to {}", session.origin());
    let (before, begun) = (session.status().state().updates, Instant::now());
    session.status().change(|status| status.connected = true);
    let ended = if settings.incremental {
        delta::process(channel, subscriber, session, known).await
    } else {
        sotw::process(channel, subscriber, session).await
    };
    session.status().change(|status| status.connected = false);
    // A good incremental stream may have had no changes.
    let was_useful = session.status().state().updates > before || begun.elapsed() > settings.backoff.max;
    let error = match ended {
        Ok(()) => "it ended the stream".to_owned(),
        Err(status) if was_useful || status.source().is_none() => describe(&status),
        Err(status) => format!("{}{}", describe(&status), help(settings)),
    };
    End { error, was_useful }
}

/// The help for a connection that broke before a response: the protocols may differ.
fn help(settings: &Xds) -> &'static str {
    match &settings.tls {
        None => "; if its port speaks TLS, set CONFIG_GRPC_XDS_SERVER_USE_TLS=true",
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
        user_agent_name: env!("CARGO_PKG_NAME").to_owned(),
        user_agent_version: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

/// The settings accept only headers that can be sent.
fn headers(settings: &Xds) -> MetadataMap {
    let mut headers = MetadataMap::new();
    for (name, value) in &settings.headers {
        // gRPC encodes the values of such names.
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
    let mut text = format!("the stream broke: {} ({:?})", cut(status.message()), status.code());
    let mut cause = status.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    if status.code() == Code::OutOfRange {
        text.push_str("; XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES sets the limit");
    }
    text
}
