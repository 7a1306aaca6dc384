//! `GET /api/v1/events`: the content of the page once a second, as server-sent events.
//!
//! An event is made once for all followers, from the replies of other calls. A slow follower misses events; the server
//! of the port closes one that does not read.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use tokio::sync::{mpsc, watch};

use super::{
    Api,
    guard::Who,
    reply::{Body, Call, Problem, Reply},
    routes::{self, EVENT_PARTS, Found},
};

/// The maximum number of streams. An event of a busy service has 100 kB.
const MAX_FOLLOWERS: usize = 32;

/// The queue of a stream, in events.
const QUEUE: usize = 2;

#[derive(Default)]
pub(super) struct Events {
    /// The last event.
    last: watch::Sender<Last>,
    followers: Arc<AtomicUsize>,
}

#[derive(Clone, Default)]
struct Last {
    text: Bytes,
    is_closed: bool,
}

impl Events {
    /// Ends every stream.
    pub(super) fn close(&self) {
        self.last.send_modify(|last| last.is_closed = true);
    }
}

/// Sends an event to all followers, if there are any.
pub(super) async fn send(api: &Api) {
    if api.events.last.receiver_count() > 0 {
        let text = event("tick", &tick(api).await);
        api.events.last.send_modify(|last| last.text = text);
    }
}

/// A stream of events: first `history`, with the points of the last five minutes, then `tick` once a second.
pub(super) fn follow(api: &Api, call: &Call<'_>) -> Result<Reply, Problem> {
    call.query(&[])?;
    let Some(place) = Place::take(&api.events.followers) else {
        let message = format!("{MAX_FOLLOWERS} clients receive events already; close one of them");
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, message));
    };
    let history = serde_json::to_vec(&api.history.points()).unwrap_or_default();
    let (sender, events) = mpsc::channel(QUEUE);
    let mut last = api.events.last.subscribe();
    last.mark_unchanged();
    tokio::task::spawn_local(async move {
        let _place = place;
        let mut text = event("history", &history);
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
    });
    Ok(Reply { body: Body::Events(events), change: None })
}

/// The replies to the calls of [`EVENT_PARTS`]. One that fails is left out.
async fn tick(api: &Api) -> Vec<u8> {
    let mut text = vec![b'{'];
    for (name, uri) in EVENT_PARTS {
        let Ok(request) = Request::builder().uri(*uri).body(Bytes::new()) else { continue };
        let Found::Route(route, parameter) = routes::find(&Method::GET, request.uri().path()) else {
            continue;
        };
        let call = Call { who: &Who::SELF, parameter, request: &request };
        if let Ok(Reply { body: Body::Json(body), .. }) = (route.handler)(api, &call).await {
            if text.len() > 1 {
                text.push(b',');
            }
            text.extend_from_slice(format!("\"{name}\":").as_bytes());
            text.extend_from_slice(&body);
        }
    }
    text.push(b'}');
    text
}

/// An event; JSON has no line breaks.
fn event(name: &str, data: &[u8]) -> Bytes {
    [b"event: ", name.as_bytes(), b"\ndata: ", data, b"\n\n"].concat().into()
}

/// A place among the followers, released on drop.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(followers: &Arc<AtomicUsize>) -> Option<Self> {
        let more =
            |followers: usize| followers.checked_add(1).filter(|followers| *followers <= MAX_FOLLOWERS);
        followers.fetch_update(Relaxed, Relaxed, more).ok()?;
        Some(Self(followers.clone()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}
