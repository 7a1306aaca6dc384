//! The protocol of holds of docs/reference/holds.md as a model: two replicas, three requests, one limit or two in different slots,
//! and every order of commands, replies and faults up to a bound.
//!
//! It is written after the page and not after the code: `ledger` has the store's side, this file what can happen and what
//! must hold. Time is what may happen next: a hold expires, a remembered one is forgotten, a window ends, its counter
//! expires.
//!
//! It leaves out lost data of the store, several currencies, the bounds on holds and queues, and the over-limit cache.
#![expect(clippy::expect_used, reason = "invariants, in tests")]

mod ledger;
mod state;

use ledger::{By, Closing, Entry, Ledger};
pub use state::State;
use state::{Batch, Left, Message, Phase, Replica, Request};
use stateright::{Model, Property};

pub const REPLICAS: usize = 2;
pub const REQUESTS: usize = 3;
pub const SLOTS: usize = 2;
pub const WINDOWS: usize = 2;

/// A mistake in the protocol, or in its bound. Each violates a property.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Slip {
    /// What others hold is not checked.
    ChecksOnlySpent,
    /// A settle that is repeated is charged again.
    SettlesAgain,
    /// A late cost is charged in the window in which it comes.
    LateInNewWindow,
    /// A hold may begin after it was cancelled.
    NoTombstone,
    /// In a request with both, the end is applied before the settle.
    EndFirst,
    /// A hold that expires charges nothing.
    ExpiryIsFree,
    /// A closing that the store did not take is not repeated.
    NotRepeated,
    /// A replica ends with a queue.
    LeavesQueue,
    /// A request that one slot refuses keeps what it holds in the other.
    KeepsOtherSlot,
    /// The bound counts a late cost against what was held, although others may have used what was not charged.
    LateAgainstHeld,
}

/// The limit, and how often things may happen.
#[derive(Clone, Copy, Debug)]
pub struct Protocol {
    pub slip: Option<Slip>,
    pub limit: u8,
    pub estimate: u8,
    /// What a hold without a cost is charged; `None` for what it held.
    pub unknown: Option<u8>,
    /// The costs that a request may have.
    pub costs: &'static [u8],
    pub requests: usize,
    pub slots: usize,
    pub windows: usize,
    pub in_flight: usize,
    pub expiries: u8,
    /// Remembered holds that are forgotten.
    pub forgotten: u8,
    pub lost_connections: u8,
    /// Ends by operators.
    pub ends: u8,
    pub kills: u8,
    /// Replicas that end after their queues are empty.
    pub terminations: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// The next request begins.
    Ask {
        replica: usize,
    },
    /// A request that runs ends, through any replica.
    Finish {
        request: usize,
        cost: Option<u8>,
        replica: usize,
    },
    Deliver(usize),
    /// The connection of a message is lost: the store may still run the command.
    Disconnect(usize),
    /// A command that nobody waits for is lost.
    Drop(usize),
    /// Repeats the oldest closing of a queue.
    Repeat {
        replica: usize,
    },
    /// The time to live of a hold has passed.
    Expire {
        request: usize,
        slot: usize,
    },
    Forget {
        request: usize,
        slot: usize,
    },
    /// An operator ends the holds of a request.
    End {
        request: usize,
    },
    NextWindow,
    /// The counters of the first window expire.
    CountersExpire,
    Kill {
        replica: usize,
    },
    Terminate {
        replica: usize,
    },
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let Self { expiries, forgotten, lost_connections, ends, kills, terminations, .. } = *self;
        let replica = Replica { has_ended: false, queue: Vec::new() };
        vec![State {
            ledger: Ledger::new(),
            requests: [Request::default(); REQUESTS],
            replicas: [replica.clone(), replica],
            messages: Vec::new(),
            window: 0,
            left: Left { expiries, forgotten, lost_connections, ends, kills, terminations },
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let has_room = state.messages.len() + self.slots <= self.in_flight;
        for (replica, own) in state.replicas.iter().enumerate().filter(|(_, own)| !own.has_ended) {
            if has_room && state.next_request(self).is_some() {
                actions.push(Action::Ask { replica });
            }
            if has_room && !own.queue.is_empty() {
                actions.push(Action::Repeat { replica });
            }
            if has_room {
                let running = (0..self.requests).filter(|at| state.requests[*at].phase == Phase::Runs);
                actions.extend(running.flat_map(|request| {
                    let costs = self.costs.iter().map(|cost| Some(*cost)).chain([None]);
                    costs.map(move |cost| Action::Finish { request, cost, replica })
                }));
            }
            if state.left.kills > 0 {
                actions.push(Action::Kill { replica });
            }
            let is_drained = state.is_drained(replica) || self.slip == Some(Slip::LeavesQueue);
            if state.left.terminations > 0 && is_drained {
                actions.push(Action::Terminate { replica });
            }
        }
        for (index, message) in state.messages.iter().enumerate() {
            actions.push(Action::Deliver(index));
            match message {
                Message::Hold { is_awaited: false, .. } | Message::Close { is_awaited: false, .. } => {
                    actions.push(Action::Drop(index));
                }
                _ if state.left.lost_connections > 0 => actions.push(Action::Disconnect(index)),
                _ => {}
            }
        }
        self.passing_time(state, actions);
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Ask { replica } => {
                let request = state.next_request(self).expect("there is one");
                state.requests[request].phase = Phase::Asks { replica, answers: 0 };
                let window = state.window;
                let hold = |slot| Message::Hold { from: replica, request, slot, window, is_awaited: true };
                state.messages.extend((0..self.slots).map(hold));
            }
            Action::Finish { request, cost, replica } => {
                state.requests[request].phase = Phase::Done(cost);
                let (first, second) = match cost.map(Closing::Settle) {
                    Some(settle) if self.slip == Some(Slip::EndFirst) => (Closing::End, Some(settle)),
                    Some(settle) => (settle, Some(Closing::End)),
                    None => (Closing::End, None),
                };
                (0..self.slots).for_each(|slot| state.send(replica, Batch { request, slot, first, second }));
            }
            Action::Deliver(index) => self.deliver(&mut state, index),
            Action::Disconnect(index) => self.disconnect(&mut state, index),
            Action::Drop(index) => {
                state.messages.remove(index);
            }
            Action::Repeat { replica } => {
                let batch = state.replicas[replica].queue.remove(0);
                state.send(replica, batch);
            }
            Action::Expire { request, slot } => {
                state.left.expiries -= 1;
                state.ledger.end(self, request, slot, By::Expiry);
            }
            Action::Forget { request, slot } => {
                state.left.forgotten -= 1;
                state.requests[request].is_forgotten = true;
                state.ledger.entries[request][slot] = Entry::Absent;
            }
            Action::End { request } => {
                state.left.ends -= 1;
                (0..self.slots).for_each(|slot| state.ledger.end(self, request, slot, By::Operator));
            }
            Action::NextWindow => state.window += 1,
            Action::CountersExpire => state.ledger.spent[0] = [None; SLOTS],
            Action::Kill { replica } => {
                state.left.kills -= 1;
                state.kill(replica);
            }
            Action::Terminate { replica } => {
                state.left.terminations -= 1;
                state.replicas[replica] = Replica { has_ended: true, queue: Vec::new() };
            }
        }
        state.messages.sort_unstable();
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(property::BOUND, |model: &Self, state: &State| {
                state.every_counter(model, |window, slot, spent| {
                    spent <= model.limit + state.ledger.excess[window][slot]
                })
            }),
            Property::always(property::CHARGED, |model: &Self, state: &State| {
                state.every_counter(model, |window, slot, spent| {
                    let charged = state.ledger.charged.iter().filter_map(|own| own[slot]);
                    spent == charged.filter(|(own, _)| *own == window).map(|(_, hits)| hits).sum::<u8>()
                })
            }),
            Property::always(property::RELEASED, |model: &Self, state: &State| {
                let is_open = |request: usize| {
                    let slots = &state.ledger.entries[request][..model.slots];
                    slots.iter().any(|entry| matches!(entry, Entry::Open { .. }))
                };
                !state.is_quiet()
                    || (0..model.requests).all(|request| {
                        let Request { phase, is_orphan, .. } = state.requests[request];
                        phase == Phase::Runs || is_orphan || !is_open(request)
                    })
            }),
            Property::always(property::TAKEN, |model: &Self, state: &State| {
                !state.is_quiet()
                    || (0..model.requests).all(|request| match state.requests[request] {
                        Request { is_orphan: true, .. } | Request { is_forgotten: true, .. } => true,
                        Request { phase: Phase::Done(Some(cost)), .. } => state.ledger.taken[request]
                            [..model.slots]
                            .iter()
                            .all(|taken| *taken == Some(cost)),
                        _ => true,
                    })
            }),
            Property::sometimes(property::USED_UP, |model: &Self, state: &State| {
                state.ledger.spent[0][0] == Some(model.limit)
            }),
            Property::sometimes(property::EXCEEDED, |model: &Self, state: &State| {
                !state.every_counter(model, |_, _, spent| spent <= model.limit)
            }),
            Property::sometimes(property::ALL_DONE, |model: &Self, state: &State| {
                let ended = |request: &Request| matches!(request.phase, Phase::Done(_) | Phase::Failed);
                state.is_quiet() && state.requests[..model.requests].iter().all(ended)
            }),
        ]
    }
}

/// The names of the properties. The first four always hold.
pub mod property {
    pub const BOUND: &str = "no more is spent than the limit and what costs exceeded holds by";
    pub const CHARGED: &str = "a window is charged what its own requests cost, each once";
    /// Unless a replica was killed.
    pub const RELEASED: &str = "nothing is held for a request that has ended, or whose id nobody got";
    /// Unless a replica was killed, or the hold was forgotten.
    pub const TAKEN: &str = "every cost is taken";
    pub const USED_UP: &str = "the limit is used up";
    pub const EXCEEDED: &str = "more than the limit is spent";
    pub const ALL_DONE: &str = "all requests end, and nothing is left to do";
}

impl Protocol {
    fn held(&self) -> u8 {
        self.estimate.min(self.limit)
    }

    fn passing_time(&self, state: &State, actions: &mut Vec<Action>) {
        for request in 0..self.requests {
            for slot in 0..self.slots {
                match state.ledger.entries[request][slot] {
                    Entry::Open { .. } if state.left.expiries > 0 => {
                        actions.push(Action::Expire { request, slot });
                    }
                    Entry::Charged { .. } if state.left.forgotten > 0 => {
                        actions.push(Action::Forget { request, slot });
                    }
                    _ => {}
                }
            }
            if state.left.ends > 0 && state.requests[request].phase == Phase::Runs {
                actions.push(Action::End { request });
            }
        }
        if state.window + 1 < self.windows {
            actions.push(Action::NextWindow);
        }
        // A counter outlives the requests of its window.
        let is_asked = |message: &Message| matches!(message, Message::Hold { window: 0, .. });
        if state.window > 0 && state.ledger.spent[0][0].is_some() && !state.messages.iter().any(is_asked) {
            actions.push(Action::CountersExpire);
        }
    }

    fn deliver(&self, state: &mut State, index: usize) {
        match state.messages.remove(index) {
            Message::Hold { from, request, slot, window, is_awaited } => {
                let fits = state.ledger.hold(self, request, slot, window);
                if is_awaited {
                    state.messages.push(Message::Held { to: from, request, slot, fits });
                }
            }
            Message::Held { to, request, slot, fits } => self.answer(state, to, request, slot, fits),
            Message::Close { from, batch, has_begun, is_awaited } => {
                let Batch { request, slot, first, second } = batch;
                let closing = if has_begun { second.expect("it has begun, not ended") } else { first };
                let now = state.window;
                state.ledger.close(self, request, slot, closing, now);
                if second.is_some() && !has_begun {
                    state.messages.push(Message::Close { from, batch, has_begun: true, is_awaited });
                } else if is_awaited {
                    state.messages.push(Message::Closed { to: from, batch });
                }
            }
            Message::Closed { .. } => {}
        }
    }

    /// A slot has answered: the last one decides.
    fn answer(&self, state: &mut State, replica: usize, request: usize, slot: usize, fits: bool) {
        let own = &mut state.requests[request];
        let Phase::Asks { answers, .. } = own.phase else { return };
        own.held[slot] = fits;
        let answers = answers + 1;
        if answers < self.slots {
            own.phase = Phase::Asks { replica, answers };
        } else if own.held[..self.slots].iter().all(|held| *held) {
            own.phase = Phase::Runs;
        } else {
            own.phase = Phase::Failed;
            let held = own.held;
            let cancelled = (0..self.slots).filter(|slot| held[*slot]);
            if self.slip != Some(Slip::KeepsOtherSlot) {
                cancelled.for_each(|slot| state.cancel(replica, request, slot));
            }
        }
    }

    fn disconnect(&self, state: &mut State, index: usize) {
        state.left.lost_connections -= 1;
        match &mut state.messages[index] {
            Message::Hold { from, request, is_awaited, .. } => {
                *is_awaited = false;
                let (replica, request) = (*from, *request);
                self.give_up(state, replica, request);
            }
            Message::Close { from, batch, is_awaited, .. } => {
                *is_awaited = false;
                let (replica, batch) = (*from, *batch);
                self.repeat_later(state, replica, batch);
            }
            Message::Held { to, request, .. } => {
                let (replica, request) = (*to, *request);
                state.messages.remove(index);
                self.give_up(state, replica, request);
            }
            Message::Closed { to, batch } => {
                let (replica, batch) = (*to, *batch);
                state.messages.remove(index);
                self.repeat_later(state, replica, batch);
            }
        }
    }

    /// The request gets no answer: what it holds anywhere ends.
    fn give_up(&self, state: &mut State, replica: usize, request: usize) {
        if matches!(state.requests[request].phase, Phase::Asks { .. }) {
            state.requests[request].phase = Phase::Failed;
            (0..self.slots).for_each(|slot| state.cancel(replica, request, slot));
        }
    }

    fn repeat_later(&self, state: &mut State, replica: usize, batch: Batch) {
        if self.slip != Some(Slip::NotRepeated) {
            state.replicas[replica].queue.push(batch);
        }
    }
}
