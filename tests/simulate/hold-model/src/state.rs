//! A moment of the model: the requests, the replicas with their queues, what is under way, and what may still happen.

use crate::{
    Protocol, REPLICAS, REQUESTS, SLOTS,
    ledger::{Closing, Ledger},
};

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    pub(crate) ledger: Ledger,
    pub(crate) requests: [Request; REQUESTS],
    pub(crate) replicas: [Replica; REPLICAS],
    pub(crate) messages: Vec<Message>,
    /// The window of requests that begin now.
    pub(crate) window: usize,
    pub(crate) left: Left,
}

/// What may still happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Left {
    pub(crate) expiries: u8,
    pub(crate) forgotten: u8,
    pub(crate) lost_connections: u8,
    pub(crate) ends: u8,
    pub(crate) kills: u8,
    pub(crate) terminations: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct Request {
    pub(crate) phase: Phase,
    /// The slots that hold, while it asks.
    pub(crate) held: [bool; SLOTS],
    /// A replica that was killed had its hold or its closing.
    pub(crate) is_orphan: bool,
    /// Its hold was forgotten before its cost came.
    pub(crate) is_forgotten: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) enum Phase {
    #[default]
    Waiting,
    Asks {
        replica: usize,
        answers: usize,
    },
    /// Nobody got the id: it was refused, or had no answer.
    Failed,
    Runs,
    Done(Option<u8>),
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Replica {
    pub(crate) has_ended: bool,
    /// Closings that the store did not take.
    pub(crate) queue: Vec<Batch>,
}

/// Commands about a request's hold in a slot, which are sent together and run one after the other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct Batch {
    pub(crate) request: usize,
    pub(crate) slot: usize,
    pub(crate) first: Closing,
    pub(crate) second: Option<Closing>,
}

/// A command or a reply. Commands of different connections overtake each other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) enum Message {
    Hold { from: usize, request: usize, slot: usize, window: usize, is_awaited: bool },
    Held { to: usize, request: usize, slot: usize, fits: bool },
    Close { from: usize, batch: Batch, has_begun: bool, is_awaited: bool },
    Closed { to: usize, batch: Batch },
}

impl State {
    pub(crate) fn next_request(&self, model: &Protocol) -> Option<usize> {
        self.requests[..model.requests].iter().position(|request| request.phase == Phase::Waiting)
    }

    pub(crate) fn send(&mut self, replica: usize, batch: Batch) {
        self.messages.push(Message::Close { from: replica, batch, has_begun: false, is_awaited: true });
    }

    pub(crate) fn cancel(&mut self, replica: usize, request: usize, slot: usize) {
        self.replicas[replica].queue.push(Batch { request, slot, first: Closing::Cancel, second: None });
    }

    /// A replica that ends on its own waits for its queue, and for what it has sent.
    pub(crate) fn is_drained(&self, replica: usize) -> bool {
        let is_own = |message: &Message| match message {
            Message::Hold { from, is_awaited, .. } | Message::Close { from, is_awaited, .. } => {
                *is_awaited && *from == replica
            }
            Message::Held { to, .. } | Message::Closed { to, .. } => *to == replica,
        };
        self.replicas[replica].queue.is_empty() && !self.messages.iter().any(is_own)
    }

    pub(crate) fn kill(&mut self, replica: usize) {
        let queue = std::mem::take(&mut self.replicas[replica].queue);
        self.replicas[replica].has_ended = true;
        for batch in &queue {
            self.requests[batch.request].is_orphan = true;
        }
        for message in &mut self.messages {
            let (own, request) = match *message {
                Message::Hold { from, request, .. } => (from, request),
                Message::Held { to, request, .. } => (to, request),
                Message::Close { from, batch, .. } => (from, batch.request),
                Message::Closed { to, batch } => (to, batch.request),
            };
            if own != replica {
                continue;
            }
            self.requests[request].is_orphan = true;
            if let Message::Hold { is_awaited, .. } | Message::Close { is_awaited, .. } = message {
                *is_awaited = false;
            }
        }
        for request in &mut self.requests {
            if matches!(request.phase, Phase::Asks { replica: own, .. } if own == replica) {
                request.phase = Phase::Failed;
                request.is_orphan = true;
            }
        }
        let is_reply = |message: &Message| matches!(message, Message::Held { to, .. } | Message::Closed { to, .. } if *to == replica);
        self.messages.retain(|message| !is_reply(message));
    }

    /// Nothing is under way, and nothing is queued.
    pub(crate) fn is_quiet(&self) -> bool {
        self.messages.is_empty() && self.replicas.iter().all(|replica| replica.queue.is_empty())
    }

    pub(crate) fn every_counter(&self, model: &Protocol, holds: impl Fn(usize, usize, u8) -> bool) -> bool {
        (0..model.windows).all(|window| {
            (0..model.slots)
                .all(|slot| self.ledger.spent[window][slot].is_none_or(|spent| holds(window, slot, spent)))
        })
    }
}
