//! The outcomes of one service's requests while its Redis was down: a row of the table, and its bounds.

use std::{
    fmt,
    ops::Range,
    time::{Duration, Instant},
};

use crate::support::{
    holds,
    steady::{Asked, Outcome, Verdict, quantile},
};

use super::{
    super::{ENVOYS_PATIENCE, assert_in_time, of_kind},
    FIVE, Fault, MANY, Policy,
};

/// The additional memory of a service without Redis, for waiting requests, which are bounded.
const MORE_MEMORY_KIB: u64 = 32 * 1024;

/// The outcomes of one service's requests: a row of the table.
pub(super) struct Row {
    pub(super) fault: Fault,
    pub(super) policy: Policy,
    pub(super) outcome: Outcome,
    pub(super) fault_time: Range<Instant>,
    pub(super) recovery: Option<Duration>,
    pub(super) back_within: Duration,
    pub(super) by_policy: f64,
    /// Memory before the fault and its maximum, in KiB.
    pub(super) memory: (u64, u64),
}

impl Row {
    pub(super) const HEAD: &str = "fault     | policy | asked  | p50 ms | p99 ms | p99.9 ms | errors | by policy | back after ms | peak MiB";

    pub(super) fn check(&self) {
        assert_in_time(&self.outcome, ENVOYS_PATIENCE);
        let name = format!("{:?}, {:?}", self.fault, self.policy);
        let (before, peak) = self.memory;
        assert!(peak < before + MORE_MEMORY_KIB, "{name}: {before} KiB before, {peak} KiB at the peak");
        self.check_verdicts(&name);
    }

    /// An error if decisions without counters ended too late.
    pub(super) fn recovers_in_time(&self) -> Result<(), String> {
        let name = format!("{:?}, {:?}", self.fault, self.policy);
        let back = self.recovery.ok_or_else(|| format!("{name}: decisions without counters did not end"))?;
        // Recovery has several steps, each of which a busy machine may delay.
        let machine = self.outcome.control.iter().map(|one| one.took).max().unwrap_or_default();
        holds(back <= self.back_within + 10 * machine, || format!("{name}: after {back:?}"))
    }

    /// While Redis is down the policy decides.
    fn check_verdicts(&self, name: &str) {
        // The first decisions may still come from Redis or wait for it.
        let lost = self.fault_time.start + Duration::from_millis(300)..self.fault_time.end;
        let is_late = |one: &&Asked| matches!(one.verdict, Verdict::Error(4, _));
        let during =
            |kind| of_kind(&self.outcome, kind).filter(|one| lost.contains(&one.due) && !is_late(one));
        let is_usual = |one: &&Asked| match self.policy {
            Policy::Error => matches!(one.verdict, Verdict::Error(2, _)),
            Policy::Allow | Policy::Local => one.verdict == Verdict::Ok,
            Policy::Deny => one.verdict == Verdict::OverLimit,
        };
        let (usual, all) = (during(MANY).filter(is_usual).count(), during(MANY).count());
        assert!(usual * 100 >= all * 98, "{name}: {usual} of {all} decisions are those of the policy");

        let passed = during(FIVE).filter(|one| one.verdict == Verdict::Ok).count();
        let may_pass = match self.policy {
            Policy::Error | Policy::Deny => 0..1,
            Policy::Allow => during(FIVE).count() * 98 / 100..usize::MAX,
            Policy::Local => 0..6,
        };
        assert!(may_pass.contains(&passed), "{name}: {passed} of {} passed", during(FIVE).count());
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let asked = &self.outcome.asked;
        let [p50, p99, p999] = [0.5, 0.99, 0.999].map(|share| quantile(asked, share).as_secs_f64() * 1e3);
        let is_error = |one: &&Asked| matches!(one.verdict, Verdict::Error(..) | Verdict::Lost(_));
        let errors = asked.iter().filter(is_error).count();
        let back = self.recovery.map_or_else(|| "never".to_owned(), |time| time.as_millis().to_string());
        let (fault, policy) = (format!("{:?}", self.fault), format!("{:?}", self.policy));
        write!(
            f,
            "{fault:<9} | {policy:<6} | {:>6} | {p50:>6.2} | {p99:>6.2} | {p999:>8.2} | {errors:>6} | {:>9} | \
             {back:>13} | {:>8}",
            asked.len(),
            self.by_policy,
            self.memory.1 / 1024,
        )
    }
}
