//! Defects that the simulator plants, one in a run, to show that it finds them: docs/simulation.md.
//!
//! Without the feature `planted`, [`is_planted`] is the constant `false`, so the defects are not compiled. The feature
//! requires debug assertions, which release builds do not have.

#[cfg(all(feature = "planted", not(debug_assertions)))]
compile_error!("the feature `planted` is for the simulator: build it with tests/simulate/run");

text::named! {
    pub enum Plant {
        /// Hits are returned whatever the counter has lost.
        BlindReturn = "blind-return",
        /// The hits of a renewal are spent although its reply is lost.
        LostReplySpent = "lost-reply-spent",
        /// A lease is kept when its counter is reset.
        LeasePastReset = "lease-past-reset",
        /// Unspent hits are kept in the next window.
        LeasePastWindow = "lease-past-window",
        /// Hits that a failed request had reserved are restored twice.
        RestoredTwice = "restored-twice",
        /// A refund enlarges the lease.
        RefundToLease = "refund-to-lease",
        /// A lease that was never renewed is not removed.
        LeaseUnwatched = "lease-unwatched",
        /// Leases are not returned at SIGTERM.
        LeasesKeptAtEnd = "leases-kept-at-end",
        /// The window of a request is that of the clock of Redis.
        WindowOfRedis = "window-of-redis",
        /// A request whose reply is late is sent again.
        RetryCountsTwice = "retry-counts-twice",
        /// The expiry of a counter that Redis lost is not set again.
        ExpiryForgotten = "expiry-forgotten",
        /// A breaker stays open after a successful probe.
        BreakerStaysOpen = "breaker-stays-open",
        /// A request waits for the store beyond the deadline of its caller.
        DeadlineIgnored = "deadline-ignored",
        /// The over-limit cache keeps a key whose counter was reset.
        CachePastReset = "cache-past-reset",
        /// The failure policy `deny` admits.
        DeniedIsAdmitted = "denied-is-admitted",
        /// A decision without the store is counted twice.
        FailureCountedTwice = "failure-counted-twice",
        /// A replica that catches up with several changes of overrides skips the first.
        ChangeSkipped = "change-skipped",
        /// A replica follows no changes after it has lost its connection.
        FollowerGivesUp = "follower-gives-up",
        /// What a request holds that got no answer is not cancelled.
        HoldLeaked = "hold-leaked",
        /// A second settle is charged.
        SettledTwice = "settled-twice",
        /// A late settle is charged in the window in which it comes.
        LateInNewWindow = "late-in-new-window",
        /// A hold renews the time to live of the others.
        HoldRenewed = "hold-renewed",
        /// A request is admitted whatever others hold.
        OthersIgnored = "others-ignored",
        /// The end of a request is applied before its settles.
        EndBeforeSettle = "end-before-settle",
        /// Settles and ends that the store has not taken are dropped at SIGTERM.
        QueueDroppedAtEnd = "queue-dropped-at-end",
        /// Settles and ends wait while a lost server takes none of its own.
        QueueStuck = "queue-stuck",
        /// A request is refused for what has expired and was not swept.
        ExpiredRefuses = "expired-refuses",
        /// A hold lasts until a clock of Redis that was set back has caught up.
        ClockFollowed = "clock-followed",
        /// A hold sets the expiry of its slot's records whatever the others need.
        RecordsShortened = "records-shortened",
    }
}

#[cfg(feature = "planted")]
mod planted {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::Plant;

    /// The discriminant of the defect, plus 1.
    static PLANTED: AtomicUsize = AtomicUsize::new(0);

    pub fn plant(plant: Plant) {
        PLANTED.store(1 + plant as usize, Relaxed);
    }

    pub fn is_planted(plant: Plant) -> bool {
        PLANTED.load(Relaxed) == 1 + plant as usize
    }
}

#[cfg(feature = "planted")]
pub use planted::{is_planted, plant};

#[cfg(not(feature = "planted"))]
pub const fn is_planted(_: Plant) -> bool {
    false
}
