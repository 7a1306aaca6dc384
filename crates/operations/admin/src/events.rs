//! `GET /api/v1/events`: the content of the page once a second, as server-sent events.
//!
//! The first event of a stream is made at once, each later one for all followers, by the functions of other calls. A slow
//! follower misses events. A stream ends after `HTTP_TIMEOUT`, and its client asks again: whether a client still reads, or
//! the kernel has room for what it does not read, cannot be seen, and 32 that do not would keep all others out.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::StatusCode;
use tokio::{
    sync::{Semaphore, mpsc, watch},
    time::{Instant, timeout_at},
};

use super::{
    Api, changes, domains,
    history::Point,
    overrides::Page,
    recent::{self, Order},
    reply::{Body, Call, Problem, Reply},
    rules, status,
    view::{Parts, View},
};
use api::OrUnknown;

/// The maximum number of streams. An event of a busy service has 100 kB.
const MAX_FOLLOWERS: usize = 32;

const QUEUE: usize = 2;

/// The bounds of a stream's time.
const LEAST: Duration = Duration::from_secs(2);
const MOST: Duration = Duration::from_secs(60);

pub(super) struct Events {
    last: watch::Sender<Last>,
    places: Arc<Semaphore>,
}

impl Default for Events {
    fn default() -> Self {
        Self { last: watch::Sender::default(), places: Arc::new(Semaphore::new(MAX_FOLLOWERS)) }
    }
}

#[derive(Clone, Default)]
struct Last {
    text: Bytes,
    is_closed: bool,
}

impl Events {
    pub(super) fn has_followers(&self) -> bool {
        self.last.receiver_count() > 0
    }

    pub(super) fn send(&self, tick: &[u8]) {
        let text = event("tick", tick);
        self.last.send_modify(|last| last.text = text);
    }

    pub(super) fn close(&self) {
        self.last.send_modify(|last| last.is_closed = true);
    }
}

/// A stream of events for some seconds: first `history`, with the points of the last five minutes, then `tick` at once and
/// once a second. The points are those of all replicas in steps of ten seconds, or of a single one for each second.
pub(super) async fn follow(api: &Api, _: &Call<'_>) -> Result<Reply, Problem> {
    let Ok(place) = api.events.places.clone().try_acquire_owned() else {
        let message = format!("{MAX_FOLLOWERS} clients receive events already; close one of them");
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, message));
    };
    let View { merged, whose } = api.view_of(None, Parts::default()).await?;
    let known = whose.replicas.as_ref().and_then(OrUnknown::known);
    let is_single = known.is_none_or(|replicas| replicas.known == 1);
    let points = if is_single { api.history.points() } else { Point::of(&merged.steps) };
    let history = serde_json::to_vec(&points).unwrap_or_default();
    let first = event("tick", &tick(api).await);
    let (sender, events) = mpsc::channel(QUEUE);
    let mut last = api.events.last.subscribe();
    last.mark_unchanged();
    let end = Instant::now() + api.access.timeout.clamp(LEAST, MOST);
    let events_sent = async move {
        if sender.send(event("history", &history)).await.is_err() {
            return;
        }
        let mut text = first;
        // Ends when the client disconnects or the service shuts down.
        while sender.send(text).await.is_ok() {
            tokio::select! {
                changed = last.changed() => {
                    let last = last.borrow_and_update();
                    if changed.is_err() || last.is_closed {
                        return;
                    }
                    text = last.text.clone();
                }
                () = sender.closed() => return,
            }
        }
    };
    tokio::task::spawn_local(async move {
        let _place = place;
        let _ = timeout_at(end, events_sent).await;
    });
    Ok(Reply { body: Body::Events(events), change: None })
}

/// An object of the replies to other calls. One that fails is left out.
pub(super) async fn tick(api: &Api) -> Vec<u8> {
    let parts = Parts { keys: true, refusals: true, rules: true, ..Parts::default() };
    let Ok(view) = api.view_of(None, parts).await else { return b"{}".to_vec() };
    let first_rules = rules::Wanted { most: 100, by_hits: true, ..rules::Wanted::default() };
    let mut text = vec![b'{'];
    // The memory of each reply is free before the next one is made.
    let mut add = |name: &str, reply: Result<Reply, Problem>| {
        if let Ok(Reply { body: Body::Json(body), .. }) = reply {
            if text.len() > 1 {
                text.push(b',');
            }
            text.extend_from_slice(format!("\"{name}\":").as_bytes());
            body.pieces().for_each(|piece| text.extend_from_slice(piece));
        }
    };
    add("refusals", recent::refused_keys(api, &view, false, 50));
    add("rules", rules::list(api, &view, &first_rules));
    add("status", status::of_view(api, &view).await);
    add("top", recent::top_keys(api, &view, Order::Refused, 20));
    add("top_allowed", recent::top_keys(api, &view, Order::Allowed, 20));
    add("unmatched", recent::unmatched(api, &view, 20));
    add("overrides", Page { most: 100, ..Page::default() }.reply(api));
    add("domains", domains::list(api));
    add("replicas", status::replicas(api).await);
    add("changes", changes::list(api, 20).await);
    text.push(b'}');
    text
}

/// An event; JSON has no line breaks.
fn event(name: &str, data: &[u8]) -> Bytes {
    [b"event: ", name.as_bytes(), b"\ndata: ", data, b"\n\n"].concat().into()
}
