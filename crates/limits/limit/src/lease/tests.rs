//! The rule against a slow model: replicas, a counter per window, and a network that delays, reorders and loses.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;

use super::*;

/// Steps of the random run: enough for every interleaving of a few messages.
const STEPS: usize = 1_000_000;

/// A message of a replica to the counter of a window.
#[derive(Clone, Copy, Debug)]
enum Message {
    /// Counts the hits of a request that its lease does not have. It had `reserved` of them.
    Count {
        hits: u64,
        reserved: u64,
        snapshot: Snapshot,
    },
    Lease {
        hits: u64,
        snapshot: Snapshot,
    },
    ReturnHits {
        hits: u64,
        own: u64,
        grants: Grants,
        /// The number of the lease's first grant.
        first: u64,
    },
    Refund {
        hits: u64,
    },
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    replica: usize,
    start: Time,
    message: Message,
    /// The counter after it was executed, and whether the hits of a lease were added.
    reply: Option<(u64, Grant)>,
    /// It was sent before the counter was reset.
    is_sent_before: bool,
    /// It was executed before the reset.
    is_executed_before: bool,
}

/// A replica with the lease of one key, and the lead of its clock in microseconds.
struct Replica {
    lease: Lease,
    ahead: u64,
    /// The number of the lease's first grant, and all that were confirmed.
    first: u64,
    confirmed: BTreeSet<u64>,
}

/// What Redis keeps of a window: a snapshot has all of it.
#[derive(Clone, Debug, Default)]
struct Stored {
    /// `None` if there is no key.
    counter: Option<u64>,
    /// The number of each replica's last grant.
    last: BTreeMap<usize, u64>,
    /// All grants whose hits the counter has.
    grants: BTreeSet<u64>,
}

/// The counter and the decisions of a window.
#[derive(Clone, Debug, Default)]
struct Window {
    stored: Stored,
    snapshot: Stored,
    admitted: u64,
    /// The hits that may be admitted: the limit, refunds, and the effects of a lost counter.
    allowed: u64,
}

struct World {
    rng: Rng,
    terms: Terms,
    now: u64,
    replicas: Vec<Replica>,
    windows: BTreeMap<Time, Window>,
    network: Vec<Sent>,
    /// Nothing is lost or refunded, so the sums must be exact.
    is_sound: bool,
    decided: [u64; 3],
}

impl World {
    fn new(seed: u64, is_sound: bool) -> Self {
        let mut rng = Rng::with_seed(seed);
        let terms = Terms {
            limit: [0, 1, 40, 200, 1000, 5000, 30_000, 1_000_000][rng.usize(..8)],
            period: crate::Window::of_seconds([1, 2, 60, 3600][rng.usize(..4)]).unwrap().into(),
            round_trip: rng.f64() * 0.01,
        };
        let now = 1_800_000_000_000_000;
        let lease = Lease::new(Time::default(), Pace::default(), 0);
        let replica = |ahead| Replica { lease, ahead, first: 0, confirmed: BTreeSet::new() };
        let replicas = (0..rng.usize(1..5)).map(|_| replica(rng.u64(..1_000_000))).collect();
        let windows = BTreeMap::new();
        Self { rng, terms, now, replicas, windows, network: Vec::new(), is_sound, decided: [0; 3] }
    }

    fn time(&self, replica: usize) -> Time {
        Time::from_micros(self.now + self.replicas[replica].ahead)
    }

    fn window(&mut self, start: Time) -> &mut Window {
        let allowed = self.terms.limit;
        self.windows.entry(start).or_insert(Window { allowed, ..Window::default() })
    }

    fn send(&mut self, replica: usize, start: Time, message: Message) {
        let sent =
            Sent { replica, start, message, reply: None, is_sent_before: false, is_executed_before: false };
        self.network.push(sent);
    }

    fn step(&mut self) {
        match self.rng.u32(..100) {
            0..45 => self.request(),
            45..65 => self.execute(),
            65..85 => self.deliver(),
            85..93 => self.now += self.rng.u64(..8_000),
            93..97 => self.visit(),
            97 => self.lose(),
            98 => self.refund(),
            _ if self.rng.u32(..200) == 0 => self.flush(),
            _ if self.rng.u32(..20) == 0 => self.save(),
            _ if self.rng.u32(..50) == 0 => self.reset(),
            _ if self.rng.u32(..50) == 0 => self.now += self.rng.u64(..3_000_000),
            _ => {}
        }
        self.check();
    }

    fn request(&mut self) {
        let replica = self.rng.usize(..self.replicas.len());
        let (now, terms) = (self.time(replica), self.terms);
        let start = terms.period.start(now);
        let hits = if self.rng.u32(..4) > 0 { 1 } else { self.rng.u64(1..20) };
        let lease = &mut self.replicas[replica].lease;
        lease.enter(start);
        let step = lease.take(hits, self.rng.bool(), &terms, now);
        match step {
            LeaseStep::Admit(count) => {
                assert!(count <= terms.limit || !self.is_sound, "{count} is over the limit");
                self.window(start).admitted += hits;
                self.decided[0] += 1;
            }
            LeaseStep::Reject(count) => {
                assert!(count >= terms.limit);
                self.decided[1] += 1;
            }
            LeaseStep::Query { reserved } => {
                self.decided[2] += 1;
                let snapshot = self.replicas[replica].lease.send(SentHits::Always(hits - reserved));
                self.send(replica, start, Message::Count { hits: hits - reserved, reserved, snapshot });
            }
        }
        let lease = &mut self.replicas[replica].lease;
        if let Some(hits) = lease.renew(&terms, now) {
            let first = self.rng.u64(1..1 << 52);
            let snapshot = lease.send_renewal(first);
            if snapshot.grants.requested == first {
                self.replicas[replica].first = first;
            }
            self.send(replica, start, Message::Lease { hits, snapshot });
        }
    }

    /// Redis executes messages in any order: replicas have several connections.
    fn execute(&mut self) {
        let waiting: Vec<usize> =
            (0..self.network.len()).filter(|n| self.network[*n].reply.is_none()).collect();
        let Some(index) = self.rng.choice(waiting) else { return };
        let (Sent { replica, start, message, .. }, limit) = (self.network[index], self.terms.limit);
        self.window(start);
        let window = self.windows.get_mut(&start).unwrap();
        let stored = &mut window.stored;
        let count = stored.counter.unwrap_or(0);
        let known = stored.last.get(&replica).copied().filter(|_| stored.counter.is_some());
        let knows = |grants: Grants| {
            known.is_some_and(|known| (grants.confirmed..=grants.requested).contains(&known))
        };
        let knows_since = |grants: Grants| {
            known
                .and_then(|known| known.checked_sub(grants.confirmed))
                .is_some_and(|since| since <= 1_000_000)
        };
        let (grant, after) = match message {
            Message::Count { hits, .. } => (Grant::Added, Some(count + hits)),
            Message::Lease { snapshot: Snapshot { grants, .. }, .. }
                if grants.confirmed != 0 && !knows(grants) =>
            {
                (Grant::Lost, stored.counter)
            }
            Message::Lease { hits, .. } if count + hits > limit => (Grant::Refused, stored.counter),
            Message::Lease { hits, snapshot } => {
                stored.last.insert(replica, snapshot.grants.requested);
                stored.grants.insert(snapshot.grants.requested);
                (Grant::Added, Some(count + hits))
            }
            Message::ReturnHits { hits, own, grants, first } if count >= own && knows_since(grants) => {
                let confirmed = self.replicas[replica].confirmed.range(first..=grants.confirmed);
                assert!(
                    confirmed.clone().all(|number| stored.grants.contains(number)),
                    "hits of {confirmed:?} are returned to a counter with {:?}",
                    stored.grants
                );
                (Grant::Added, Some(count - hits))
            }
            Message::ReturnHits { .. } => (Grant::Lost, stored.counter),
            Message::Refund { hits } => {
                (Grant::Added, stored.counter.map(|count| count.saturating_sub(hits)))
            }
        };
        window.stored.counter = after;
        let reply = (after.unwrap_or(0), grant);
        self.network[index].reply = Some(reply);
        if matches!(message, Message::ReturnHits { .. }) {
            self.network.swap_remove(index);
        }
    }

    fn deliver(&mut self) {
        let replied: Vec<usize> =
            (0..self.network.len()).filter(|n| self.network[*n].reply.is_some()).collect();
        let Some(index) = self.rng.choice(replied) else { return };
        let sent = self.network.swap_remove(index);
        let Sent { replica, start, message, reply, .. } = sent;
        let ((after, grant), now, terms) = (reply.unwrap(), self.time(replica), self.terms);
        let lease = &mut self.replicas[replica].lease;
        let is_current = lease.start == start;
        match message {
            Message::Count { hits, reserved, snapshot } => {
                let mut is_admitted = after <= terms.limit;
                if is_current {
                    lease.complete(snapshot);
                }
                if is_current && !lease.is_outdated(snapshot) {
                    lease.counted(hits, after, snapshot, &terms, now);
                    is_admitted = is_admitted || lease.spend(hits);
                }
                // Hits that were counted before a reset are not in the counter.
                let counted = if sent.is_executed_before { 0 } else { hits };
                let reserved = if sent.is_sent_before { 0 } else { reserved };
                self.window(start).admitted += if is_admitted { counted + reserved } else { 0 };
            }
            Message::Lease { hits, snapshot } if is_current => {
                lease.granted(hits, grant, after, snapshot, &terms, now);
                if lease.grants.confirmed == snapshot.grants.requested {
                    self.replicas[replica].confirmed.insert(snapshot.grants.requested);
                }
            }
            Message::Refund { hits } if is_current => lease.refunded(hits, after, &terms, now),
            Message::Lease { .. } | Message::Refund { .. } | Message::ReturnHits { .. } => {}
        }
    }

    /// A message or its reply does not arrive.
    fn lose(&mut self) {
        if self.network.is_empty() {
            return;
        }
        let index = self.rng.usize(..self.network.len());
        let Sent { replica, start, message, reply, .. } = self.network.swap_remove(index);
        let lease = &mut self.replicas[replica].lease;
        if lease.start != start {
            return;
        }
        match message {
            Message::Lease { .. } => lease.renewal_lost(),
            // The request was not decided: its reserved hits are restored.
            Message::Count { reserved, snapshot, .. } => {
                lease.complete(snapshot);
                if !lease.is_outdated(snapshot) && (reply.is_none() || self.rng.bool()) {
                    lease.restore(reserved);
                }
            }
            _ => {}
        }
    }

    fn visit(&mut self) {
        let replica = self.rng.usize(..self.replicas.len());
        let (now, terms) = (self.time(replica), self.terms);
        let lease = &mut self.replicas[replica].lease;
        let (start, before) = (lease.start, lease.left);
        let visit = if self.rng.u32(..50) == 0 {
            let (returned, own) = lease.end();
            Visit { returned, own, ..Visit::default() }
        } else {
            lease.visit(&terms, now)
        };
        assert_eq!(before, lease.left + visit.returned + visit.expired);
        if now >= terms.period.end(start) {
            assert_eq!(lease.left, 0, "no hits are left after the window");
            assert!(visit.returned == 0 || visit.expired == 0);
        }
        if visit.returned > 0 {
            let Replica { lease: Lease { grants, .. }, first, .. } = self.replicas[replica];
            let (hits, own) = (visit.returned, visit.own);
            self.send(replica, start, Message::ReturnHits { hits, own, grants, first });
        }
    }

    fn refund(&mut self) {
        if self.is_sound {
            return;
        }
        let replica = self.rng.usize(..self.replicas.len());
        let (start, hits) = (self.terms.period.start(self.time(replica)), self.rng.u64(1..10));
        self.window(start).allowed += hits;
        self.send(replica, start, Message::Refund { hits });
    }

    /// All counters are reset, and every replica knows. Requests and renewals are in flight.
    fn reset(&mut self) {
        self.network.retain(|sent| !matches!(sent.message, Message::ReturnHits { .. }));
        for sent in &mut self.network {
            sent.is_sent_before = true;
            sent.is_executed_before |= sent.reply.is_some();
        }
        for replica in &mut self.replicas {
            let left = replica.lease.left;
            assert_eq!(replica.lease.forget(), left);
            assert_eq!((replica.lease.left, replica.lease.counter()), (0, None));
        }
        for window in self.windows.values_mut() {
            (window.stored, window.admitted) = (Stored::default(), 0);
        }
    }

    /// Redis saves its keys.
    fn save(&mut self) {
        for window in self.windows.values_mut() {
            window.snapshot = window.stored.clone();
        }
    }

    /// Redis loses its keys, or those since a snapshot. Admitted and held hits are in addition to the new counter.
    fn flush(&mut self) {
        let is_restored = self.rng.bool();
        if self.is_sound {
            return;
        }
        for (start, window) in &mut self.windows {
            let held: u64 =
                self.replicas.iter().filter(|one| one.lease.start == *start).map(|one| one.lease.left).sum();
            let of_window = |sent: &&Sent| sent.start == *start;
            let outstanding = self.network.iter().filter(of_window).map(|sent| match sent.message {
                Message::Count { hits, reserved, .. } => hits + reserved,
                Message::Lease { hits, .. } | Message::Refund { hits } => hits,
                // They are not returned to a counter that has lost them.
                Message::ReturnHits { .. } => 0,
            });
            window.allowed += window.admitted + held + outstanding.sum::<u64>() + self.terms.limit;
            window.stored = if is_restored { window.snapshot.clone() } else { Stored::default() };
        }
    }

    fn check(&self) {
        for (start, window) in &self.windows {
            assert!(window.admitted <= window.allowed, "{window:?} from {start:?} is over its limit");
            if !self.is_sound {
                continue;
            }
            // The counter includes all hits that are admitted, held or being returned: so they are returned once.
            let held = self.replicas.iter().filter(|one| one.lease.start == *start).map(|one| one.lease.left);
            let back =
                self.network.iter().filter(|sent| sent.start == *start).map(|sent| match sent.message {
                    Message::ReturnHits { hits, .. } => hits,
                    _ => 0,
                });
            let owed = window.admitted + held.sum::<u64>() + back.sum::<u64>();
            assert!(owed <= window.stored.counter.unwrap_or(0), "{owed} of {window:?} from {start:?}");
        }
    }

    /// Removes windows that have ended for every replica.
    fn forget(&mut self) {
        let oldest = Time::from_micros(
            self.now.saturating_sub(3_000_000 * self.terms.period.seconds(Time::default())),
        );
        self.network.retain(|sent| sent.start >= oldest);
        self.windows.retain(|start, _| *start >= oldest);
    }
}

/// Runs worlds of a thousand steps. Returns the numbers of admitted, rejected and queried requests.
fn run(is_sound: bool) -> [u64; 3] {
    let mut decided = [0; 3];
    for seed in 0..u64::try_from(STEPS / 1000).unwrap() {
        let mut world = World::new(seed, is_sound);
        for step in 0..1000 {
            world.step();
            if step % 100 == 0 {
                world.forget();
            }
        }
        decided.iter_mut().zip(world.decided).for_each(|(sum, one)| *sum += one);
    }
    decided
}

#[test]
fn never_admits_more_than_the_limit_whatever_is_delayed_or_lost() {
    let decided = run(true);
    assert!(decided.iter().all(|n| *n > 30_000), "every kind of decision occurs: {decided:?}");
}

#[test]
fn a_lost_counter_costs_no_more_than_the_held_hits() {
    let decided = run(false);
    assert!(decided.iter().all(|n| *n > 30_000), "every kind of decision occurs: {decided:?}");
}

fn terms(limit: u64, seconds: u64) -> Terms {
    let window = crate::Window::of_seconds(seconds).unwrap();
    Terms { limit, period: window.into(), round_trip: 0.0005 }
}

/// A hot lease in the window from 1,800,000,000 s on, with this many hits in it.
fn leased(hits: u64, terms: &Terms) -> (Lease, u64) {
    let start = 1_800_000_000_000_000;
    let mut lease = Lease::new(Time::from_micros(start), Pace::default(), 0);
    // 1,000 requests a second.
    for n in 0..1000 {
        lease.take(1, false, terms, Time::from_micros(start + n * 1000));
    }
    let now = start + 1_000_000;
    let snapshot = lease.send_renewal(1);
    lease.granted(hits, Grant::Added, hits, snapshot, terms, Time::from_micros(now));
    (lease, now)
}

#[test]
fn hits_are_returned_when_the_requests_stop() {
    let terms = terms(100_000, 60);
    let (mut lease, now) = leased(300, &terms);
    let at = |after: u64| Time::from_micros(now + after);
    assert_eq!(lease.visit(&terms, at(100_000)).returned, 0);
    let visit = lease.visit(&terms, at(126_000));
    assert_eq!((visit.returned, visit.own, lease.left), (300, 300, 0));
    assert_eq!(lease.visit(&terms, at(130_000)).returned, 0, "once");
    assert!(lease.renew(&terms, at(130_000)).is_none(), "the key is cold");
}

#[test]
fn a_grant_in_flight_while_a_reset_may_have_been_missed_is_not_spent() {
    let terms = terms(100_000, 60);
    let (mut lease, now) = leased(300, &terms);
    let (renewal, request) = (lease.send_renewal(2), lease.send(SentHits::Always(1)));
    assert_eq!(lease.distrust(), (300, 300));
    assert!(lease.is_outdated(request), "a request that fails restores nothing");
    let lost = lease.granted(50, Grant::Added, 350, renewal, &terms, Time::from_micros(now + 1000));
    assert_eq!((lost, lease.left), (50, 0));
}

#[test]
fn a_lease_that_is_too_large_is_reduced_to_the_pace() {
    let terms = terms(100_000, 60);
    let (mut lease, now) = leased(5000, &terms);
    for n in 0..1100 {
        lease.take(1, false, &terms, Time::from_micros(now + n * 1000));
    }
    let visit = lease.visit(&terms, Time::from_micros(now + 1_100_000));
    assert!((380..=520).contains(&lease.left), "half a second of 1,000 requests: {}", lease.left);
    assert_eq!(visit.returned + lease.left, 5000 - 1100);
}

#[test]
fn unspent_hits_expire_with_the_window() {
    let terms = terms(100_000, 60);
    let (mut lease, now) = leased(300, &terms);
    let end = Time::from_micros(now + 60_000_000);
    let mut other = lease;
    assert_eq!(other.visit(&terms, end).expired, 300);
    assert_eq!(lease.enter(terms.period.start(end)), 300);
    assert_eq!(lease.left, 0);
    assert!(matches!(lease.take(1, true, &terms, end), LeaseStep::Query { reserved: 0 }));
}

#[test]
fn a_counter_over_its_limit_is_read_again_after_a_while() {
    let terms = terms(100, 60);
    let mut lease = Lease::new(Time::from_seconds(1_800_000_000), Pace::default(), 0);
    let at = |millis: u64| Time::from_micros(1_800_000_000_000_000 + millis * 1000);
    assert!(matches!(lease.take(1, true, &terms, at(0)), LeaseStep::Query { .. }));
    let snapshot = lease.send(SentHits::Always(1));
    lease.complete(snapshot);
    lease.counted(1, 101, snapshot, &terms, at(1));
    assert_eq!(lease.take(1, true, &terms, at(2)), LeaseStep::Reject(101));
    assert_eq!(lease.take(1, true, &terms, at(4_900)), LeaseStep::Reject(101));
    assert!(
        matches!(lease.take(1, true, &terms, at(5_100)), LeaseStep::Query { .. }),
        "one request queries the store"
    );
    assert_eq!(lease.take(1, true, &terms, at(5_101)), LeaseStep::Reject(101), "the others do not");
    lease.read_again();
    assert!(
        matches!(lease.take(1, true, &terms, at(5_102)), LeaseStep::Query { .. }),
        "it was refunded elsewhere"
    );
    assert_eq!(
        lease.take(1, true, &terms, at(5_103)),
        LeaseStep::Reject(101),
        "until the store has answered"
    );
    lease.refunded(10, 91, &terms, at(5_200));
    assert!(matches!(lease.take(1, true, &terms, at(5_201)), LeaseStep::Query { .. }), "a refund makes room");
}

/// The reply to a request that followed a refund is seen after the renewal that followed both.
#[test]
fn a_refund_in_flight_loses_no_hits() {
    let terms = terms(4000, 60);
    let (mut lease, now) = leased(300, &terms);
    let counter = lease.counter().unwrap();
    let (refund, request) = (lease.send(SentHits::Refund(3)), lease.send(SentHits::Always(1)));
    let renewal = lease.send_renewal(2);
    lease.complete(refund);
    lease.refunded(3, counter - 3, &terms, Time::from_micros(now));
    assert_eq!(lease.granted(100, Grant::Added, counter + 98, renewal, &terms, Time::from_micros(now)), 0);
    lease.complete(request);
    assert_eq!(lease.counted(1, counter - 2, request, &terms, Time::from_micros(now)), 0);
    assert_eq!((lease.left, lease.counter()), (400, Some(counter + 98)));
}

/// The last hits of a window would wait in a replica that believes the counter to be empty.
#[test]
fn nothing_is_leased_before_the_first_reply_of_a_window() {
    let terms = terms(100_000, 60);
    let (mut lease, now) = leased(0, &terms);
    let at = |after: u64| Time::from_micros(now + after);
    assert!(lease.renew(&terms, at(0)).is_some(), "the key is hot");
    lease.renewal_lost();
    let end = 60_000_000;
    lease.enter(terms.period.start(at(end)));
    for n in 0..10 {
        lease.take(1, false, &terms, at(end + n));
        assert_eq!(lease.renew(&terms, at(end + n)), None, "the rest of the limit is unknown");
    }
    let snapshot = lease.send(SentHits::Always(1));
    lease.complete(snapshot);
    let mut nearly_over = lease;
    nearly_over.counted(1, 100_000 - 31, snapshot, &terms, at(end + 20));
    assert_eq!(
        nearly_over.renew(&terms, at(end + 20)),
        None,
        "a sixteenth of the 31 hits that are left is less than 2"
    );
    lease.counted(1, 50_000, snapshot, &terms, at(end + 20));
    assert!(lease.renew(&terms, at(end + 20)).is_some());
}

/// The grant of a renewal is seen before the refusal of the request that was sent before it.
#[test]
fn refused_hits_in_flight_hide_no_hits_of_others() {
    let terms = terms(500, 3600);
    let mut lease = Lease::new(Time::from_seconds(1_800_000_000), Pace::default(), 0);
    let now = Time::from_seconds(1_800_000_001);
    // 430 hits are this replica's, and 5 of others.
    let first = lease.send(SentHits::IfWithin(430));
    lease.complete(first);
    lease.counted(430, 435, first, &terms, now);
    let refused = lease.send(SentHits::IfWithin(90));
    let renewal = lease.send_renewal(1);
    lease.granted(3, Grant::Added, 438, renewal, &terms, now);
    assert_eq!(lease.count(&terms), 435);
    lease.complete(refused);
    lease.counted(0, 435, refused, &terms, now);
    assert_eq!(lease.count(&terms), 435);
}

#[test]
fn few_requests_with_many_hits_are_not_hot() {
    let mut cold = Cold::default();
    for second in 0..100 {
        assert!(cold.visit(1000, Time::from_seconds(second), 0.5).is_none());
    }
    assert!((0..10).any(|n| cold.visit(1, Time::from_micros(100_000_000 + n * 10_000), 0.5).is_some()));
}
