//! A page of any size, which is sent in pieces while it is written: no copy of it is ever complete in memory.
//!
//! Used by `debug`. The requests that wait when the writing begins get the same pieces, so that each page is younger than
//! its request and one thread writes for five hundred clients. A client that does not read falls behind by a few pieces.
//! It may then hold up the writing, but not for others: while there are any, its page is cut off.

use std::{
    fmt,
    mem::{replace, take},
    sync::{Arc, Mutex},
    task::{Poll, ready},
    thread::sleep,
    time::Duration,
};

use bytes::Bytes;
use tokio::sync::mpsc::{self, error::TrySendError};

use super::{Answer, Incomplete, framed, internal_error};
use faults::{
    mutex::lock,
    panics::{self, Boundary, Panicked},
};

/// The size of a piece, and the pieces that wait for a client: together a mebibyte, shared by all clients of the page.
const PIECE: usize = 64 << 10;
const PIECES: usize = 16;

/// How long all pieces of a page together may wait for a client while others wait for it.
const PATIENCE: Duration = Duration::from_millis(500);

/// The interval at which a piece is offered again.
const RETRY: Duration = Duration::from_millis(5);

/// Writes all of a page.
type WritePage = dyn Fn(&mut dyn fmt::Write) -> fmt::Result + Send + Sync;

pub struct SharedPage {
    content_type: &'static str,
    write: Box<WritePage>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Clients whose page is not begun.
    waiting: Vec<mpsc::Sender<Piece>>,
    is_writing: bool,
}

/// A part of the page. A client that does not get the last one was cut off.
#[derive(Clone)]
enum Piece {
    Text(Bytes),
    End,
}

impl SharedPage {
    pub(super) fn new(
        content_type: &'static str,
        write: impl Fn(&mut dyn fmt::Write) -> fmt::Result + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self { content_type, write: Box::new(write), state: Mutex::default() })
    }

    /// The page as it is now. Waits for its first piece, so that a page that cannot be written is an error.
    pub(super) async fn get(self: &Arc<Self>) -> Answer {
        let (sender, mut pieces) = mpsc::channel(PIECES);
        let must_write = {
            let mut state = lock(&self.state);
            state.waiting.push(sender);
            !replace(&mut state.is_writing, true)
        };
        if must_write {
            let page = self.clone();
            // On another thread: a large page must not delay health checks.
            tokio::task::spawn_blocking(move || page.write_all());
        }
        let Some(first) = pieces.recv().await else { return internal_error() };
        let mut first = Some(first);
        let frames = futures_util::stream::poll_fn(move |context| {
            let piece = match first.take() {
                Some(piece) => Some(piece),
                None => ready!(pieces.poll_recv(context)),
            };
            Poll::Ready(match piece {
                Some(Piece::Text(text)) => Some(Ok(text)),
                Some(Piece::End) => None,
                None => Some(Err(Incomplete)),
            })
        });
        framed(self.content_type, frames)
    }

    /// Writes the page for all that wait, until none does.
    fn write_all(&self) {
        loop {
            let clients = {
                let mut state = lock(&self.state);
                state.is_writing = !state.waiting.is_empty();
                take(&mut state.waiting)
            };
            if clients.is_empty() {
                return;
            }
            let clients = clients.into_iter().map(|pieces| Client { pieces, waited: Duration::ZERO });
            let mut writer = Writer { page: self, clients: clients.collect(), text: String::new() };
            let written = panics::catch(Boundary::HttpRequest, || {
                panics::point("admin_page");
                // It fails when no client is left.
                let _ = (self.write)(&mut writer);
            });
            match written {
                Ok(()) => writer.end(),
                Err(Panicked) => drop(writer),
            }
        }
    }
}

/// A client, and how long pieces have waited for it.
struct Client {
    pieces: mpsc::Sender<Piece>,
    waited: Duration,
}

/// Sends what is written to all clients. What is written when the last one has gone is discarded.
struct Writer<'p> {
    page: &'p SharedPage,
    clients: Vec<Client>,
    text: String,
}

impl fmt::Write for Writer<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.clients.is_empty() {
            return Err(fmt::Error);
        }
        self.text.push_str(text);
        if self.text.len() >= PIECE {
            self.send_text();
        }
        Ok(())
    }
}

impl Writer<'_> {
    fn end(mut self) {
        self.send_text();
        self.send(&Piece::End);
    }

    fn send_text(&mut self) {
        if !self.text.is_empty() {
            let text = replace(&mut self.text, String::with_capacity(PIECE + (PIECE >> 2)));
            self.send(&Piece::Text(text.into()));
        }
    }

    fn send(&mut self, piece: &Piece) {
        let mut all = take(&mut self.clients);
        loop {
            // Those that have no room for the piece.
            let mut behind: Vec<Client> = Vec::new();
            for client in all {
                match client.pieces.try_send(piece.clone()) {
                    Ok(()) => self.clients.push(client),
                    Err(TrySendError::Full(_)) => behind.push(client),
                    Err(TrySendError::Closed(_)) => {}
                }
            }
            if behind.is_empty() {
                return;
            }
            sleep(RETRY);
            let others_wait = !self.clients.is_empty() || !lock(&self.page.state).waiting.is_empty();
            behind.retain_mut(|client| {
                client.waited += RETRY;
                !others_wait || client.waited < PATIENCE
            });
            all = behind;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicU64, Ordering},
        time::Instant,
    };

    use http::StatusCode;
    use http_body_util::BodyExt as _;
    use tokio::{
        runtime::Builder,
        task::{JoinSet, yield_now},
    };

    use super::*;

    /// A page that begins with its number and has so many bytes after it.
    fn numbered(bytes: usize) -> (Arc<SharedPage>, Arc<AtomicU64>) {
        let count = Arc::<AtomicU64>::default();
        let written = count.clone();
        let page = SharedPage::new("text/plain", move |out| {
            write!(out, "{} ", written.fetch_add(1, Ordering::Relaxed))?;
            let line = "x".repeat(1 << 10);
            (0..bytes >> 10).try_for_each(|_| out.write_str(&line))
        });
        (page, count)
    }

    async fn read(answer: Answer) -> Result<String, Incomplete> {
        let body = answer.into_body().collect().await?.to_bytes();
        Ok(String::from_utf8(body.to_vec()).unwrap())
    }

    fn run(test: impl Future<Output = ()>) {
        Builder::new_current_thread().enable_time().build().unwrap().block_on(test);
    }

    #[test]
    fn a_page_is_written_after_each_request_and_once_for_those_that_wait() {
        run(async {
            let (page, _) = numbered(0);
            for expected in ["0 ", "1 ", "2 "] {
                assert_eq!(read(page.get().await).await.unwrap(), expected);
            }
            let (end, writing) = mpsc::channel::<()>(1);
            let begun = Arc::<AtomicU64>::default();
            let (count, writing) = (begun.clone(), Mutex::new(writing));
            let page = SharedPage::new("text/plain", move |out| {
                let number = count.fetch_add(1, Ordering::Relaxed);
                let _ = lock(&writing).blocking_recv();
                write!(out, "{number}")
            });
            let mut readers = JoinSet::new();
            let mut ask = |times| {
                for _ in 0..times {
                    let page = page.clone();
                    readers.spawn(async move { read(page.get().await).await.unwrap() });
                }
            };
            ask(1);
            while begun.load(Ordering::Relaxed) < 1 {
                yield_now().await;
            }
            ask(500);
            while lock(&page.state).waiting.len() < 500 {
                yield_now().await;
            }
            drop(end);
            let read = readers.join_all().await;
            assert_eq!(read.iter().filter(|page| **page == "1").count(), 500, "{read:?}");
        });
    }

    #[test]
    fn a_client_that_does_not_read_is_cut_off_while_others_wait() {
        run(async {
            let (page, _) = numbered(4 << 20);
            let silent = page.get().await;
            let begun = Instant::now();
            for number in 1..3 {
                let text = read(page.get().await).await.unwrap();
                assert!(text.starts_with(&format!("{number} ")) && text.len() == (4 << 20) + 2);
            }
            assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
            assert!(read(silent).await.is_err(), "it is told that its page is incomplete");
            // It may be as slow as it likes while nobody else waits.
            let slow = page.get().await;
            tokio::time::sleep(2 * PATIENCE).await;
            assert_eq!(read(slow).await.unwrap().len(), (4 << 20) + 2);
        });
    }

    #[test]
    fn a_page_whose_writing_panics_is_an_error() {
        run(async {
            let page = SharedPage::new("text/plain", |_| panic!("as a test wants it"));
            assert_eq!(page.get().await.status(), StatusCode::INTERNAL_SERVER_ERROR);
            let page = SharedPage::new("text/plain", |out| {
                out.write_str(&"x".repeat(PIECE)).unwrap();
                panic!("as a test wants it");
            });
            assert!(read(page.get().await).await.is_err());
        });
    }
}
