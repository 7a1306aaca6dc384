//! The invariants, how often each was put to the test, and the first violation.

use crate::world::Micros;

text::named! {
    pub enum Invariant {
        Limit = "limit",
        Unused = "unused",
        Deadline = "deadline",
        Negative = "negative",
        Reset = "reset",
        Override = "override",
        Converged = "converged",
        Recovery = "recovery",
        Leak = "leak",
        Metrics = "metrics",
        Expiry = "expiry",
        Counted = "counted",
        Policy = "policy",
        Bound = "bound",
        Held = "held",
        Charged = "charged",
        Released = "released",
        Ends = "ends",
        Refused = "refused",
        Quota = "quota",
        Calm = "calm",
    }
}

#[derive(Clone, Debug)]
pub struct Violation {
    pub invariant: Invariant,
    pub at: Micros,
    pub what: String,
    /// The limit that it is about.
    pub limit: Option<usize>,
}

#[derive(Clone, Debug, Default)]
pub struct Checks {
    pub tested: [u64; Invariant::ALL.len()],
    pub violation: Option<Violation>,
}

impl Checks {
    pub fn hold(&mut self, invariant: Invariant, holds: bool, at: Micros, what: impl FnOnce() -> String) {
        self.tested[invariant as usize] += 1;
        if !holds && self.violation.is_none() {
            let what = what();
            let limit = what.split("limit: ").nth(1).and_then(|rest| rest.split(',').next()?.parse().ok());
            self.violation = Some(Violation { invariant, at, what, limit });
        }
    }
}
