//! The lease protocol of docs/reference/leases.md as a model: two replicas, one counter with a small limit, and every order of
//! messages and faults up to a bound.
//!
//! It leaves out time (windows, expiry, idle leases), how many hits a lease asks for, refunds, several keys, a replica
//! that is killed (its hits are only lost), and the messages of exact counting but for one hit.
//!
//! It is written after the page and not after the code: `replica` has a replica's side, `redis` the two scripts, this file
//! what can happen and what must hold. A hit that is added to the counter has a number for life, so the model knows
//! which of the hits the counter still has, and which of them were admitted.
#![expect(clippy::expect_used, reason = "invariants, in tests")]

mod hits;
mod redis;
mod replica;

use hits::Hits;
use redis::Redis;
use replica::{Number, Receipt, Replica, Snapshot};
use stateright::{Model, Property};

pub const REPLICAS: usize = 2;

/// A mistake in the protocol, or a fault that docs/reference/leases.md excludes. Each violates a property.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Slip {
    /// Hits are returned to any counter that has enough of them, as after a flush.
    ReturnToAnyCounter,
    /// A return whose reply is late is sent again.
    ReturnTwice,
    /// A late reply is used when the request was given up, and once more when it arrives.
    ReplyTwice,
    /// A replica does not end its lease when the counter is reset.
    KeepPastReset,
    /// A grant of before the reset is used.
    GrantOfBeforeReset,
    /// A grant that was in flight while messages were missed is used.
    TrustAfterResubscribing,
    /// A grant does not show that earlier hits of the lease are lost.
    BlindGrant,
    /// Hits that a request reserved in an evicted lease are restored to the next one.
    RestoreToAnotherLease,
    /// The counter is deleted or evicted without its leases.
    CounterAlone,
}

/// The limit, and how often things may happen.
#[derive(Clone, Copy, Debug)]
pub struct Protocol {
    pub slip: Option<Slip>,
    pub limit: u8,
    /// The most hits of a grant.
    pub hits: u8,
    /// Grants that the replicas ask for.
    pub renewals: u8,
    /// Requests that Redis counts.
    pub asks: u8,
    pub returns: u8,
    pub in_flight: usize,
    /// Flushes, and restarts from an older snapshot or failovers.
    pub losses: u8,
    pub resets: u8,
    pub lost_connections: u8,
    /// Leases that are evicted from a full table.
    pub evictions: u8,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    redis: Redis,
    /// An older state that Redis may return to.
    saved: Option<Redis>,
    replicas: [Replica; REPLICAS],
    messages: Vec<Message>,
    /// The number of hits that were ever added to the counter.
    added: u8,
    admitted: Hits,
    /// Hits that were admitted again.
    again: u8,
    /// Hits that were added before the last reset.
    before_reset: Hits,
    left: Left,
}

/// What may still happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Left {
    renewals: u8,
    asks: u8,
    returns: u8,
    losses: u8,
    resets: u8,
    lost_connections: u8,
    evictions: u8,
}

/// A command or a reply. Commands of different connections overtake each other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
enum Message {
    Renew {
        from: usize,
        hits: u8,
        receipt: Receipt,
        snapshot: Snapshot,
        is_awaited: bool,
    },
    Renewed {
        to: usize,
        grant: Grant,
        after: u8,
        receipt: Receipt,
        snapshot: Snapshot,
    },
    /// A request whose other hits are reserved in the lease.
    Count {
        from: usize,
        reserved: Hits,
        snapshot: Snapshot,
        is_awaited: bool,
    },
    Counted {
        to: usize,
        hit: Hits,
        reserved: Hits,
        after: u8,
        snapshot: Snapshot,
    },
    Return {
        from: usize,
        hits: Hits,
        own: u8,
        confirmed: Option<Number>,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
enum Grant {
    Added(Hits),
    Refused,
    Lost,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// A request takes a hit from the lease.
    Spend {
        replica: usize,
    },
    Renew {
        replica: usize,
        hits: u8,
    },
    /// A request is counted by Redis; of two hits, one may be reserved in the lease.
    Ask {
        replica: usize,
        reserves: bool,
    },
    /// Returns all unspent hits.
    Return {
        replica: usize,
    },
    /// The table of leases is full: the lease ends, and a new one may begin.
    Evict {
        replica: usize,
    },
    /// A message arrives.
    Deliver(usize),
    /// The connection of a message is lost: nobody waits for the reply, but Redis may run the command.
    Disconnect(usize),
    Save,
    Flush,
    Restore,
    /// `DEL` of the counter alone.
    DeleteCounter,
    Reset,
    /// A replica hears of the reset.
    Hear {
        replica: usize,
    },
    /// A replica that was not subscribed returns everything.
    Resubscribe {
        replica: usize,
    },
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let Self { renewals, asks, returns, losses, resets, lost_connections, evictions, .. } = *self;
        vec![State {
            redis: Redis::default(),
            saved: None,
            replicas: Default::default(),
            messages: Vec::new(),
            added: 0,
            admitted: Hits::NONE,
            again: 0,
            before_reset: Hits::NONE,
            left: Left { renewals, asks, returns, losses, resets, lost_connections, evictions },
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (replica, lease) in state.replicas.iter().enumerate() {
            // Hits have no order. The first ones are those that a counter still has after a restart.
            actions.extend(lease.left.first_number().map(|_| Action::Spend { replica }));
            let has_room = state.messages.len() < self.in_flight;
            if has_room && !lease.renewing && state.left.renewals > 0 {
                actions.extend((1..=self.hits).map(|hits| Action::Renew { replica, hits }));
            }
            if has_room && state.left.asks > 0 {
                actions.push(Action::Ask { replica, reserves: false });
                if lease.left.count() == 1 {
                    actions.push(Action::Ask { replica, reserves: true });
                }
            }
            if has_room && state.left.returns > 0 && !lease.left.is_empty() {
                actions.push(Action::Return { replica });
            }
            if has_room && state.left.evictions > 0 {
                actions.push(Action::Evict { replica });
            }
            if lease.has_missed_reset {
                actions.extend([Action::Hear { replica }, Action::Resubscribe { replica }]);
            }
        }
        for (index, message) in state.messages.iter().enumerate() {
            actions.push(Action::Deliver(index));
            if state.left.lost_connections > 0 && message.is_awaited() {
                actions.push(Action::Disconnect(index));
            }
        }
        if state.left.losses > 0 {
            actions.push(Action::Flush);
            actions.push(if state.saved.is_some() { Action::Restore } else { Action::Save });
            if self.slip == Some(Slip::CounterAlone) {
                actions.push(Action::DeleteCounter);
            }
        }
        if state.left.resets > 0 {
            actions.push(Action::Reset);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Spend { replica } => {
                let hit = state.replicas[replica].left.first();
                state.replicas[replica].left.remove(hit);
                state.admit(hit);
            }
            Action::Renew { replica, hits } => {
                state.left.renewals -= 1;
                let (receipt, snapshot) = state.replicas[replica].renew();
                state.messages.push(Message::Renew {
                    from: replica,
                    hits,
                    receipt,
                    snapshot,
                    is_awaited: true,
                });
            }
            Action::Ask { replica, reserves } => {
                state.left.asks -= 1;
                let (reserved, snapshot) = state.replicas[replica].ask(reserves);
                state.messages.push(Message::Count { from: replica, reserved, snapshot, is_awaited: true });
            }
            Action::Return { replica } => state.give_back(replica),
            Action::Evict { replica } => {
                state.left.evictions -= 1;
                state.give_back(replica);
                state.replicas[replica].begin(self.slip != Some(Slip::RestoreToAnotherLease));
            }
            Action::Deliver(index) => self.deliver(&mut state, index),
            Action::Disconnect(index) => self.disconnect(&mut state, index),
            fault => self.fail(&mut state, fault)?,
        }
        state.messages.sort_unstable();
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(property::BOUND, |model: &Self, state: &State| {
                state.admitted.and(state.redis.has).count() + state.again <= model.limit
            }),
            Property::always(property::NEVER_RETURNED, |_, state: &State| {
                state.redis.counter.unwrap_or(0) >= state.live().and(state.redis.has).count()
            }),
            Property::always(property::ENDED_BY_RESET, |_, state: &State| {
                let mut replicas = state.replicas.iter().filter(|replica| !replica.has_missed_reset);
                replicas.all(|replica| replica.left.and(state.before_reset).is_empty())
            }),
            Property::always(property::ENDED_BY_GRANT, |_, state: &State| {
                state.replicas.iter().all(|replica| {
                    let present = replica.left.and(state.redis.has);
                    let lost = replica.left.without(state.redis.has);
                    lost.is_empty() || present.last() < lost.first_number()
                })
            }),
            Property::sometimes(property::USED_UP, |model: &Self, state: &State| {
                state.admitted.count() == model.limit
            }),
            Property::sometimes(property::RETURNED, |model: &Self, state: &State| {
                let is_intact = state.left.losses == model.losses && state.left.resets == model.resets;
                let gone = Hits::first_of(state.added).without(state.redis.has).without(state.live());
                is_intact && !gone.is_empty()
            }),
            Property::sometimes(property::EXCEEDED, |model: &Self, state: &State| {
                state.admitted.count() > model.limit
            }),
        ]
    }
}

/// The names of the properties. The first four always hold.
pub mod property {
    /// A hit that was admitted and that the counter does not have is one that Redis lost.
    pub const BOUND: &str = "admits no more than the limit and the hits that Redis lost";
    pub const NEVER_RETURNED: &str = "hits that Redis lost are never returned: the counter has all others";
    pub const ENDED_BY_RESET: &str = "a replica that knows of a reset has no hits of before";
    pub const ENDED_BY_GRANT: &str = "a lease that is granted hits after a loss has none of before";
    pub const USED_UP: &str = "the limit is used up";
    pub const RETURNED: &str = "hits are returned";
    pub const EXCEEDED: &str = "more than the limit is admitted";
}

impl Protocol {
    /// What happens to Redis, and the messages about it. `None` if nothing was saved.
    fn fail(&self, state: &mut State, fault: Action) -> Option<()> {
        match fault {
            Action::Save => state.saved = Some(state.redis),
            Action::Flush => state.lose(Redis::default()),
            Action::Restore => state.lose(state.saved?),
            Action::DeleteCounter => {
                let alone = Redis { counter: None, has: Hits::NONE, ..state.redis };
                state.lose(alone);
            }
            Action::Reset => {
                state.left.resets -= 1;
                state.redis = Redis::default();
                state.before_reset = Hits::first_of(state.added);
                for replica in &mut state.replicas {
                    replica.has_missed_reset = true;
                }
            }
            Action::Hear { replica } => {
                let replica = &mut state.replicas[replica];
                replica.has_missed_reset = false;
                if self.slip != Some(Slip::KeepPastReset) {
                    replica.forget();
                }
            }
            Action::Resubscribe { replica } => {
                state.replicas[replica].has_missed_reset = false;
                state.give_back(replica);
                if self.slip != Some(Slip::TrustAfterResubscribing) {
                    state.replicas[replica].distrust();
                }
            }
            _ => unreachable!("{fault:?} is no fault"),
        }
        Some(())
    }

    fn deliver(&self, state: &mut State, index: usize) {
        let message = state.messages.remove(index);
        match message {
            Message::Renew { from, hits, receipt, snapshot, is_awaited } => {
                let is_blind = self.slip == Some(Slip::BlindGrant);
                let (grant, after) =
                    state.redis.lease(from, hits, receipt, self.limit, &mut state.added, is_blind);
                if is_awaited {
                    state.messages.push(Message::Renewed { to: from, grant, after, receipt, snapshot });
                }
            }
            Message::Renewed { to, grant, after, receipt, snapshot } => {
                let checks_epoch = self.slip != Some(Slip::GrantOfBeforeReset);
                state.replicas[to].renewed(grant, after, receipt, snapshot, checks_epoch);
            }
            Message::Count { from, reserved, snapshot, is_awaited } => {
                let (hit, after) = state.redis.count(&mut state.added);
                if is_awaited {
                    state.messages.push(Message::Counted { to: from, hit, reserved, after, snapshot });
                }
            }
            Message::Counted { to, hit, reserved, after, snapshot } => {
                state.replicas[to].counted(after, snapshot);
                if after <= self.limit {
                    state.admit(hit.or(reserved));
                }
            }
            Message::Return { from, hits, own, confirmed } => {
                let is_any = self.slip == Some(Slip::ReturnToAnyCounter);
                state.redis.give_back(from, hits, own, confirmed, is_any);
                if self.slip == Some(Slip::ReturnTwice) && state.left.lost_connections > 0 {
                    state.left.lost_connections -= 1;
                    state.messages.push(message);
                }
            }
        }
    }

    fn disconnect(&self, state: &mut State, index: usize) {
        state.left.lost_connections -= 1;
        match &mut state.messages[index] {
            Message::Renew { from, is_awaited, .. } => {
                *is_awaited = false;
                let from = *from;
                state.replicas[from].renewing = false;
            }
            Message::Renewed { to, grant, after, receipt, snapshot } => {
                let (to, grant, after, receipt, snapshot) = (*to, *grant, *after, *receipt, *snapshot);
                if self.slip == Some(Slip::ReplyTwice) {
                    state.replicas[to].renewed(grant, after, receipt, snapshot, true);
                } else {
                    state.replicas[to].renewing = false;
                    state.messages.remove(index);
                }
            }
            Message::Count { from, reserved, snapshot, is_awaited } => {
                *is_awaited = false;
                let (from, reserved, snapshot) = (*from, std::mem::take(reserved), *snapshot);
                state.replicas[from].restore(reserved, snapshot);
            }
            Message::Counted { to, reserved, snapshot, .. } => {
                let (to, reserved, snapshot) = (*to, *reserved, *snapshot);
                state.messages.remove(index);
                state.replicas[to].restore(reserved, snapshot);
            }
            Message::Return { .. } => {
                state.messages.remove(index);
            }
        }
    }
}

impl State {
    fn admit(&mut self, hits: Hits) {
        self.again += self.admitted.and(hits).count();
        self.admitted = self.admitted.or(hits);
    }

    fn give_back(&mut self, replica: usize) {
        let (hits, own, confirmed) = self.replicas[replica].give_back();
        if !hits.is_empty() {
            self.left.returns = self.left.returns.saturating_sub(1);
            self.messages.push(Message::Return { from: replica, hits, own, confirmed });
        }
    }

    fn lose(&mut self, to: Redis) {
        self.left.losses -= 1;
        self.redis = to;
    }

    /// Hits that were admitted, or that a replica has or will receive.
    fn live(&self) -> Hits {
        let in_flight = self.messages.iter().map(|message| match message {
            Message::Renewed { grant: Grant::Added(hits), .. } => *hits,
            Message::Count { reserved, .. } => *reserved,
            Message::Counted { hit, reserved, .. } => hit.or(*reserved),
            _ => Hits::NONE,
        });
        let left = self.replicas.iter().map(|replica| replica.left);
        left.chain(in_flight).fold(self.admitted, Hits::or)
    }
}

impl Message {
    fn is_awaited(&self) -> bool {
        match self {
            Self::Renew { is_awaited, .. } | Self::Count { is_awaited, .. } => *is_awaited,
            _ => true,
        }
    }
}
