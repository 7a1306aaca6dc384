//! A large page: one copy serves all requests that waited for it, and few copies are in memory at a time.
//!
//! Used by `debug`. A page of metrics can have megabytes. Five hundred clients that request it and never read it would
//! otherwise hold five hundred copies, and keep every thread busy rendering them.

use std::{
    sync::{Arc, Mutex},
    time::Instant,
};

use bytes::Bytes;
use http2::{Budget, Share};

use faults::{
    mutex::lock,
    panics::{self, Boundary, Panicked},
};

pub(super) struct SharedPage {
    /// The memory for copies of all pages that are being sent. When it is full, the last copy is shared.
    memory: Arc<Budget>,
    /// Held while the page is rendered.
    turn: tokio::sync::Mutex<()>,
    last: Mutex<Last>,
}

#[derive(Default)]
struct Last {
    waiting: usize,
    /// The last copy, and when it was begun.
    page: Option<(Instant, Bytes)>,
}

impl SharedPage {
    pub(super) fn new(memory: &Arc<Budget>) -> Self {
        Self { memory: memory.clone(), turn: tokio::sync::Mutex::default(), last: Mutex::default() }
    }

    /// True if another copy of this size finds no room.
    fn is_full(&self, size: usize) -> bool {
        self.memory.used() + size > self.memory.limit()
    }

    /// The page, rendered after this call unless `make` panics.
    pub(super) async fn get(
        &self,
        make: impl FnOnce() -> String + Send + 'static,
    ) -> Result<Bytes, Panicked> {
        let requested = Instant::now();
        let _waiting = Waiting::new(self);
        let _turn = self.turn.lock().await;
        if let Some((begun, page)) = &lock(&self.last).page
            && (*begun >= requested || self.is_full(page.len()))
        {
            return Ok(page.clone());
        }
        let begun = Instant::now();
        let make = move || {
            panics::catch(Boundary::HttpRequest, || {
                panics::point("admin_page");
                make()
            })
        };
        // On another thread: a large page must not delay health checks.
        let text = tokio::task::spawn_blocking(make).await.map_err(|_| Panicked)??;
        let page = Bytes::from_owner(Copy::new(text, &self.memory));
        lock(&self.last).page = Some((begun, page.clone()));
        Ok(page)
    }
}

/// A request that waits for the page. The last one drops the copy, unless it is shared.
struct Waiting<'a>(&'a SharedPage);

impl<'a> Waiting<'a> {
    fn new(page: &'a SharedPage) -> Self {
        let mut last = lock(&page.last);
        last.waiting += 1;
        drop(last);
        Self(page)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut last = lock(&self.0.last);
        last.waiting -= 1;
        let size = last.page.as_ref().map_or(0, |(_, page)| page.len());
        if last.waiting == 0 && !self.0.is_full(size) {
            last.page = None;
        }
    }
}

/// A copy, charged until it is sent to its last reader.
struct Copy {
    text: String,
    _share: Share,
}

impl Copy {
    fn new(text: String, memory: &Arc<Budget>) -> Self {
        let mut share = Share::new(memory);
        share.take(text.len());
        Self { text, _share: share }
    }
}

impl AsRef<[u8]> for Copy {
    fn as_ref(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        atomic::{AtomicU64, Ordering},
        mpsc,
    };

    use tokio::{runtime::Builder, task::JoinSet};

    use super::*;

    fn numbered(count: &Arc<AtomicU64>) -> impl FnOnce() -> String + Send + use<> {
        let count = count.clone();
        move || count.fetch_add(1, Ordering::Relaxed).to_string()
    }

    #[test]
    fn a_page_is_rendered_for_each_request_and_shared_by_those_that_wait() {
        Builder::new_current_thread().build().unwrap().block_on(async {
            let (shared, count) = (Arc::new(SharedPage::new(&Budget::new(100))), Arc::default());
            for expected in ["0", "1", "2"] {
                assert_eq!(shared.get(numbered(&count)).await.unwrap(), expected);
            }
            assert!(lock(&shared.last).page.is_none(), "no copy is kept");
            // The first of them is made until all others wait for theirs.
            let (release, held) = mpsc::channel::<()>();
            let make = numbered(&count);
            let make = move || {
                let _ = held.recv();
                make()
            };
            let first = shared.clone();
            let first = tokio::spawn(async move { first.get(make).await.unwrap() });
            let mut waiting = JoinSet::new();
            for _ in 0..500 {
                let (shared, make) = (shared.clone(), numbered(&count));
                waiting.spawn(async move { shared.get(make).await.unwrap() });
            }
            while lock(&shared.last).waiting < 501 {
                tokio::task::yield_now().await;
            }
            drop(release);
            assert_eq!(first.await.unwrap(), "3");
            assert!(waiting.join_all().await.iter().all(|page| page == "4"), "one is made for all of them");
            assert!(lock(&shared.last).page.is_none(), "no copy is kept");
        });
    }

    #[test]
    fn few_copies_are_in_memory_for_any_number_of_readers() {
        Builder::new_current_thread().build().unwrap().block_on(async {
            let memory = Budget::new(4);
            let (shared, count) = (SharedPage::new(&memory), Arc::default());
            let mut held = Vec::new();
            for _ in 0..100 {
                held.push(shared.get(numbered(&count)).await.unwrap());
            }
            assert_eq!((memory.used(), count.load(Ordering::Relaxed)), (4, 4));
            assert_eq!(held[99], "3", "the last one made is shared");
            held.clear();
            shared.get(numbered(&count)).await.unwrap();
            assert_eq!(
                shared.get(numbered(&count)).await.unwrap(),
                "5",
                "it is rendered again without readers"
            );
        });
    }
}
