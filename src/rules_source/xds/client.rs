//! The loop: connect, talk until the stream ends, wait, and again.
//!
//! Trouble is logged once, not at each attempt that meets it, until something came again.

use std::{collections::HashSet, error::Error as _, time::Duration};

use prost_types::{Struct, Value, value::Kind};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tonic::{
    Code, Status,
    metadata::{AsciiMetadataKey, BinaryMetadataKey, MetadataMap, MetadataValue},
    transport::Channel,
};

use super::{
    backoff::{Backoff, chance, spread},
    connect::connect,
    delta,
    session::Session,
    sotw,
};
use crate::{panics, proto::envoy::config::core::v3::Node, settings::groups::Xds, text::cut};

/// How often replaced rules that requests still used are looked at, to free them.
const FREE_EVERY: Duration = Duration::from_secs(10);

/// The kinds of trouble that are logged before something came again. What breaks is not always broken alike.
const MAX_TOLD: usize = 8;

/// Who we are to a control plane.
pub(super) struct Subscriber {
    pub(super) node: Node,
    pub(super) headers: MetadataMap,
    pub(super) max_message_bytes: usize,
    /// Messages in one response, and in all resources together.
    pub(super) max_values: usize,
}

/// Keeps the subscription up for ever.
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
    let mut held = delta::Held::new();
    let mut backoff = Backoff::new(settings.backoff);
    let mut told = HashSet::new();
    loop {
        panics::point("xds_client");
        let (trouble, pause) = match connect(settings).await {
            Err(trouble) => (trouble, spread(settings.connect_retry_interval, chance())),
            Ok(channel) => {
                let end = talk(channel, settings, &subscriber, session, &mut held).await;
                if end.was_of_use {
                    backoff.reset();
                    told.clear();
                }
                (end.trouble, backoff.next(chance()))
            }
        };
        session.lost();
        if told.len() < MAX_TOLD && told.insert(trouble.clone()) {
            tracing::warn!("{}: {trouble}; trying again in {pause:?}", session.origin());
        } else {
            tracing::debug!("{}: {trouble}; trying again in {pause:?}", session.origin());
        }
        sleep(pause).await;
        session.status().change(|status| status.reconnects = status.reconnects.saturating_add(1));
    }
}

/// How a connection ended.
struct End {
    /// Why.
    trouble: String,
    /// Something came on it, or it held so long that something might have.
    was_of_use: bool,
}

/// Talks on one connection until it ends.
async fn talk<T>(
    channel: Channel,
    settings: &Xds,
    subscriber: &Subscriber,
    session: &Session<'_, T>,
    held: &mut delta::Held,
) -> End {
    tracing::debug!("connected to {}", session.origin());
    let (before, begun) = (session.status().state().updates, Instant::now());
    session.status().change(|status| status.connected = true);
    let ended = if settings.incremental {
        delta::talk(channel, subscriber, session, held).await
    } else {
        sotw::talk(channel, subscriber, session).await
    };
    session.status().change(|status| status.connected = false);
    // Where only changes are told, a good stream may have had none to tell.
    let was_of_use = session.status().state().updates > before || begun.elapsed() > settings.backoff.max;
    let trouble = match ended {
        Ok(()) => "it ended the stream".to_owned(),
        Err(status) if was_of_use || status.source().is_none() => in_words(&status),
        Err(status) => format!("{}{}", in_words(&status), help(settings)),
    };
    End { trouble, was_of_use }
}

/// What to do about a connection that broke before anything came: one side may not speak as the other does.
fn help(settings: &Xds) -> &'static str {
    match &settings.tls {
        None => "; if its port speaks TLS, set CONFIG_GRPC_XDS_SERVER_USE_TLS=true",
        Some(tls) if tls.identity.is_none() => {
            "; if it wants a certificate, CONFIG_GRPC_XDS_CLIENT_TLS_CERT and CONFIG_GRPC_XDS_CLIENT_TLS_KEY \
             name it"
        }
        Some(_) => "; it may not trust our certificate",
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

/// Settings let none through that cannot be sent.
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

/// Why a stream ended, with all that is known of the cause.
fn in_words(status: &Status) -> String {
    let mut words = format!("the stream broke: {} ({:?})", cut(status.message()), status.code());
    let mut cause = status.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !words.contains(&more) {
            words = format!("{words}: {more}");
        }
        cause = error.source();
    }
    if status.code() == Code::OutOfRange {
        words.push_str("; XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES sets the limit");
    }
    words
}
